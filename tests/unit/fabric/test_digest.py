# SPDX-License-Identifier: GPL-2.0-only
"""Test what the digests of a fabric file cover, and what is said when two differ."""

from __future__ import annotations

from dataclasses import fields, replace
from ipaddress import IPv6Address, IPv6Network, ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import mrcctl
from mrcd.fabric import description, digest, network
from mrcd.fabric.classes import Classes
from mrcd.fabric.hosts import Host
from mrcd.fabric.routing import Routing

FABRIC = description.generate(name="x", hosts=3)
H1, H2, H3 = FABRIC.hosts
FRAME, PAIR = 0x369A3326EFE549E2, 0xB585BC243C58C46F

MUST_AGREE: dict[str, Any] = {
    "block": IPv6Network("fcbb:bb01::/32"),
    "underlay6": IPv6Network("fdcc::/32"),
    "gateway": IPv6Address("fe80::2"),
    "planes": 3,
    "t1": 3,
    "mtu": 1500,
    "routing": Routing(encap="reduced"),
    "trim": True,
    "classes": Classes(control=45),
}
MAY_DIFFER: dict[str, Any] = {"name": "y", "t0": 9, "rate_mbps": 7, "hosts": (H1,)}


def test_golden_values() -> None:
    """Hosts of different builds compare these numbers, so they may not change."""
    assert digest.of_frame(FABRIC) == FRAME
    assert digest.of_hosts(FABRIC, H1, H2) == PAIR


def test_every_part_of_a_fabric_file_is_covered_or_may_differ() -> None:
    parts = {field.name for field in fields(FABRIC)}
    assert parts == MUST_AGREE.keys() | MAY_DIFFER.keys()


@pytest.mark.parametrize("part", MUST_AGREE)
def test_frame__covers_what_all_must_agree_on(part: str) -> None:
    other = replace(FABRIC, **{part: MUST_AGREE[part]})
    assert digest.of_frame(other) != FRAME
    assert digest.of_hosts(other, H1, H2) == PAIR


@pytest.mark.parametrize("part", MAY_DIFFER)
def test_frame__does_not_change_when_a_host_is_added(part: str) -> None:
    other = replace(FABRIC, **{part: MAY_DIFFER[part]})
    assert (digest.of_frame(other), digest.of_hosts(other, H1, H2)) == (FRAME, PAIR)


@pytest.mark.parametrize(
    "other",
    [
        replace(H2, name="h9"),
        replace(H2, t0=9),
        replace(H2, port=9),
        replace(H2, addresses=(*H2.addresses, ip_interface("10.99.0.9/24"))),
        replace(H2, routed=(ip_network("10.98.2.0/24"),)),
        H3,
    ],
)
def test_hosts__covers_their_places(other: Host) -> None:
    assert digest.of_hosts(FABRIC, H1, other) != PAIR


def test_hosts__order_and_keys_do_not_matter() -> None:
    turned = replace(H2, addresses=H2.addresses[::-1], public_key="A" * 43 + "=")
    assert digest.of_hosts(FABRIC, turned, H1) == PAIR


def test_without_a_fabric_file_nothing_is_stated() -> None:
    none = network.describe(2, 6, 1, 1500, [H1, H2])
    assert (digest.of_frame(none), digest.of_hosts(none, H1, H2)) == (digest.NONE, digest.NONE)


@pytest.mark.parametrize(
    ("theirs", "ours", "says"),
    [
        ((1, 2), (1, 2), None),
        ((0, 0), (1, 2), None),
        ((1, 2), (0, 0), None),
        ((3, 4), (1, 2), "peer h7 has another fabric file: digest 0000000000000003 there, "
                         "0000000000000001 here"),
        ((1, 4), (1, 2), "peer h7 has another entry for itself or for this host in its fabric "
                         "file: digest 0000000000000004 there, 0000000000000002 here"),
    ],
)  # fmt: skip
def test_differences(theirs: tuple[int, int], ours: tuple[int, int], says: str | None) -> None:
    assert digest.differences("h7", theirs, ours) == says


def test_command_shows_what_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "fabric.toml"
    file.write_text(description.dumps(FABRIC))

    def run(*args: str) -> tuple[int, str]:
        done = CliRunner().invoke(mrcctl, ["fabric", "digest", str(file), *args])
        return done.exit_code, done.output

    code, text = run("h2", "h1")
    assert code == 0
    assert f"fabric {FRAME:016x}\n  block                 fcbb:bb00::/32\n" in text
    assert f"hosts {PAIR:016x}\n  h2: T0 2, port 1, 10.99.0.2/24 fd99::2/64\n" in text
    assert f'"frame": "{FRAME:016x}"' in run("--json")[1]
    assert run("h1")[0] == 2
    assert run("h1", "h9") == (4, "mrcctl: no host 'h9'; known: h1, h2, h3\n")
