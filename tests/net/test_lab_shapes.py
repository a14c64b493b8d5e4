# SPDX-License-Identifier: GPL-2.0-only
"""Test labs of hosts with cables and switches, and without a fabric."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab, processes, shape, state
from mrcd.linux import netns
from rigs.lab_hosts import ROOT, eventually
from rigs.traffic import Stream, transfer

pytestmark = pytest.mark.timeout(600)
FOLLOWED_S = 30.0


@dataclass
class Shaped:
    """A lab that `mrcctl lab up --shape` builds."""

    name: str

    def mrcctl(self, command: str, *more: str, code: int = 0) -> str:
        """Run a command of `mrcctl lab` on this lab; return what it prints."""
        line = [sys.executable, "-m", "cli", "lab", command, "--name", self.name, *more]
        done = subprocess.run(
            line, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def json(self, command: str, *more: str) -> Any:
        return json.loads(self.mrcctl(command, "--json", *more))

    def namespace(self, node: str) -> str:
        return f"{self.name}-{node}"

    def pings(self, source: str, address: str) -> bool:
        line = ["ip", "netns", "exec", self.namespace(source), "ping", "-q", "-c", "2", "-i", "0.1"]
        return subprocess.run([*line, "-w", "1", address], capture_output=True).returncode == 0

    def inside(self, host: str, *command: str, code: int = 0) -> Any:
        """Return the JSON that mrcctl prints in a host."""
        exits = (code, 6)
        line = [sys.executable, "-m", "cli", "lab", "exec", "--name", self.name, host, "--"]
        done = subprocess.run(
            [*line, sys.executable, "-m", "cli", *command, "--json"],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode in exits, done.stderr
        return json.loads(done.stdout)

    def assert_nothing_left(self, spaces: set[str]) -> None:
        assert not spaces & set(netns.names())
        assert not state.folder(self.name).exists()
        assert not [
            entry
            for entry in Path("/proc").glob("[0-9]*/cmdline")
            if f"{state.folder(self.name)}/".encode() in _read(entry)
        ]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""  # the process has ended


@pytest.fixture
def shaped() -> Iterator[Shaped]:
    if os.geteuid() != 0:
        pytest.skip("labs need root: run the tests as root")
    made = Shaped(f"y{os.getpid()}")
    try:
        yield made
    finally:
        if made.name in state.labs():
            lab.down(made.name)


def test_triangle(shaped: Shaped) -> None:
    built = shaped.json("up", "--shape", "triangle", "--mtu", "4000", "--rate", "500")
    assert (built["hosts"], built["networks"]) == (["h1", "h2", "h3"], 3)
    spaces = {shaped.namespace(host) for host in ("h1", "h2", "h3")}
    assert spaces <= set(netns.names())
    found = shaped.json("status")
    assert found["healthy"]
    assert [each["nics"] for each in found["networks"]] == [
        ["h1:eth1", "h2:eth1"],
        ["h2:eth2", "h3:eth1"],
        ["h3:eth2", "h1:eth2"],
    ]
    assert "3 hosts on 3 networks, MTU 4000, 500 Mb/s" in shaped.mrcctl("status")
    for one, other in (("h1", 2), ("h2", 3), ("h3", 1)):
        for address in (f"10.99.0.{other}", f"fd99::{other}"):
            transfer(shaped, one, f"h{other}", address, 1 << 20)
    stream = Stream(shaped, "h1", "h2", "10.99.0.2").start()
    for action in ("down", "blackhole"):
        shaped.mrcctl("fault", "h1:h2", action)
        assert shaped.json("status")["faults"] == [{"element": "h1:h2", "action": action}]
        stream.progress(8 << 20, 30)
        shaped.mrcctl("fault", "h2:h1", "clear")
        eventually(
            lambda: shaped.inside("h1", "status")["state"] == "ok",
            "the cable is used again",
            FOLLOWED_S,
        )
    stream.finish(60)
    refused = shaped.mrcctl("up", "--shape", "chain:2", code=1)
    assert f"lab {shaped.name} is up already" in refused
    shaped.mrcctl("down")
    shaped.assert_nothing_left(spaces)


def test_file_with_a_switch_and_a_cable(shaped: Shaped, tmp_path: Path) -> None:
    """What h1 and h2 send to h4 goes by the switch to h3, which hands it on by the cable."""
    file = tmp_path / "rack.toml"
    file.write_text(
        '[[network]]\nhosts = ["h1", "h2", "h3"]\n[[network]]\nhosts = ["h3", "h4"]\nrate = 200\n'
    )
    shaped.mrcctl("up", "--shape", str(file))
    spaces = {shaped.namespace(node) for node in ("h1", "h2", "h3", "h4", "s1")}
    assert spaces <= set(netns.names())
    text = shaped.mrcctl("status")
    assert "s1       h1:eth1, h2:eth1, h3:eth1  unlimited" in text
    assert "cable    h3:eth2, h4:eth1           200 Mb/s" in text
    transfer(shaped, "h1", "h4", "10.99.0.4", 1 << 20)
    transfer(shaped, "h4", "h2", "fd99::2", 1 << 20)
    relayed = {c["name"]: c["value"] for c in shaped.inside("h3", "stats")["counters"]}["relayed"]
    assert relayed > 100
    for element, gone, there in (
        ("h3:eth2", "10.99.0.4", "10.99.0.2"),
        ("h2:eth1", "10.99.0.2", "10.99.0.4"),
        ("s1", "10.99.0.2", None),
    ):
        for action in ("blackhole", "down"):
            shaped.mrcctl("fault", element, action)
            assert not shaped.pings("h1", gone)
            assert there is None or shaped.pings("h1", there)
            shaped.mrcctl("fault", element, "clear")
            eventually(
                lambda gone=gone: shaped.pings("h1", gone), f"{gone} answers again", FOLLOWED_S
            )
    assert "no host 'h5' in this lab; known: h1, h2, h3, h4" in shaped.mrcctl(
        "exec", "h5", "--", "true", code=4
    )
    assert "known: NICs h1:eth1" in shaped.mrcctl("fault", "p0", "down", code=4)
    assert "delay is for labs of a fabric" in shaped.mrcctl("fault", "s1", "delay=3ms", code=2)
    shaped.mrcctl("down")
    shaped.assert_nothing_left(spaces)


def test_lab_that_cannot_work_is_removed(shaped: Shaped, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's mrcd ends at once, because its configuration has a key that is wrong."""
    right = shape.configuration

    def wrong(*arguments: Any) -> dict[str, object]:
        return {**right(*arguments), "mrc0": {"addresses": "no"}}

    monkeypatch.setattr(shape, "configuration", wrong)
    with pytest.raises(state.LabFailed, match=r"mrcd of h[12] ended with status 2\n.*ends with"):
        lab.up_shape(shape.drawn("chain:2", name=shaped.name))
    shaped.assert_nothing_left({shaped.namespace("h1"), shaped.namespace("h2")})
    assert processes.inside([shaped.namespace("h1")]) == {}
