# SPDX-License-Identifier: GPL-2.0-only
"""Configuration files and fabric files: an input is the one, a byte 0, and the other."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from unittest import mock

from mrcd.config import config, permits
from mrcd.config.config import ConfigError
from mrcd.config.diff import diff
from mrcd.config.render import render
from mrcd.fabric import description
from mrcd.fabric.description import Fabric, FabricError
from mrcd.fabric.routing import SRV6, Routing

ROOT = Path(__file__).parents[2]
PLACE = Path("/etc/mrcd/mrcd.toml")
PROBLEM_BYTES = 1 << 20
"""All problems of a configuration together are no longer, so that they fit into an answer."""
WORDS = (
    "inf",
    "nan",
    "-1",
    "9" * 30,
    "9" * 4400,
    "1e400",
    "[" * 1200,
    "{a=" * 600,
    "2026-11-30",
    '"\\ud800"',
    "1:2",
)
"""What fuzzers are to try in place of anything."""


def _fabric(text: str) -> Fabric | None:
    try:
        found = description.parse(text, "fabric.toml")
    except FabricError as error:
        _check_problems(error.problems)
        return None
    assert description.parse(description.dumps(found), "fabric.toml") == found
    return found


def _check_problems(problems: list[str]) -> None:
    assert problems
    assert sum(map(len, problems)) < PROBLEM_BYTES
    for problem in problems:
        problem.encode()  # it gets into logs and answers


def check(data: bytes) -> None:
    """Read both; what is good can be written and read again, and is the same."""
    texts = data.decode("utf-8", "replace").split("\0", 1)
    text, fabric = texts[0], texts[1] if len(texts) > 1 else ""
    _fabric(fabric)

    def given(path: Path) -> Fabric:
        return description.parse(fabric, str(path))

    with mock.patch.object(description, "load", given):
        try:
            found = config.loads(text, PLACE)
        except ConfigError as error:
            _check_problems(error.problems)
            return
        again = config.loads(render(found), PLACE)
        assert not diff(found, again, fits=True).changes
    permits.permits_of(found, "/sys/fs/bpf/mrcd").dumps()
    ours = tuple(ip_address(f"fe80::{plane + 1}") for plane in range(len(found.interfaces)))
    if not found.fabric.described and found.fabric.routing.underlay == 6:
        found.placed(ours, 1500)


def seeds() -> Iterator[bytes]:
    """Yield the examples, and fabrics of each kind of routing."""
    example = (ROOT / "packaging" / "examples" / "mrcd.toml").read_text()
    routings = (SRV6, Routing("srv6", "reduced"), Routing("ecmp", underlay=6))
    for routing in (*routings, Routing("ecmp", underlay=4)):
        made = description.generate(name="rig", hosts=3, planes=2, t1=2, mtu=1500, routing=routing)
        text = '[host]\nname = "h1"\nfabric = "fabric.toml"\n[planes]\nstandby = ["plane1"]\n'
        yield f"{text}\0{description.dumps(made)}".encode()
        yield f"{example}\0{description.dumps(made)}".encode()
    for file in sorted((ROOT / "packaging" / "examples").glob("*.toml")):
        yield file.read_bytes()
    yield _NETWORK.encode()
    yield (_NETWORK + _SECTIONS).encode()
    for word in WORDS:
        yield _NETWORK.replace("200", word).encode()
        yield f"{_NETWORK}[service]\nx = {word}\n".encode()
    hosts = '[hosts]\ncount = 8\nper_t0 = 4\nname = "h"\naddresses = ["10.0.0.0/16"]\n'
    frame = "[fabric]\nplanes = 2\nt0 = 2\nt1 = 2\nmtu = 9000\n"
    yield f'[host]\nname = "h1"\nfabric = "f"\n\0{frame}{hosts}[dscp]\ndata = 3\n'.encode()


_NETWORK = """
[host]
name = "a"
[mrc0]
addresses = ["10.99.0.1/24"]
[[plane]]
interface = "eth1"
mtu = 1500
rate_mbps = 200
[[plane]]
interface = "eth2"
standby = true
address = "192.0.2.1"
[[peer]]
name = "b"
public_key = "lwQvdgHbWXf5jcIPidmi0tPdu1xw2kaPgbIQyYSWr0s="
endpoints = ["192.0.2.2", "fe80::2:2"]
allowed = ["10.99.0.2/32", "10.8.0.0/16"]
"""
_SECTIONS = """
[keys]
secret_file = "s"
discover = true
[metrics]
listen = "127.0.0.1:9400"
[transport]
probe_pps = 2000
mpr = 128
[service]
log_level = "debug"
"""
