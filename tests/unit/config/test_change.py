# SPDX-License-Identifier: GPL-2.0-only
"""Test what a change of the configuration means for peers and parts, and where peers stay."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from mrcd.config import config
from mrcd.config.change import Change, Roamed, planes_readdressed
from mrcd.config.config import Config
from mrcd.fabric import description
from mrcd.handshake import identity
from mrcd.handshake.identity import Secret

TEXT = """
[host]
name = "a"
[mrc0]
addresses = ["10.99.0.1/24"]
[[plane]]
interface = "eth1"
[[plane]]
interface = "eth2"
"""
PEER = """
[[peer]]
name = "{name}"
allowed = ["10.99.0.{number}/32"]
endpoints = ["192.0.2.{number}", "198.51.100.{number}"]
"""
HOME, AWAY, FAR = (ip_address(f"192.0.2.{number}") for number in (2, 77, 99))


def network(*names: str, more: str = "") -> Config:
    """Return host a's configuration with these peers, of which b has the addresses .2."""
    peers = [PEER.format(name=name, number=ord(name) - ord("a") + 1) for name in names]
    return config.loads(TEXT + more + "".join(peers), Path("mrcd.toml"))


def fabric(tmp_path: Path, **more: Any) -> Config:
    file = tmp_path / "fabric.toml"
    file.write_text(description.dumps(description.generate(hosts=3, planes=2, **more)))
    text = '[host]\nname = "h1"\nfabric = "fabric.toml"\n'
    return config.loads(text, tmp_path / "mrcd.toml")


def names(peers: Any) -> list[str]:
    return [peer.name for peer in peers]


def test_nothing_changes_between_equal_configurations() -> None:
    assert Change.between(network("b"), network("b")) == Change((), (), (), (), False, False)


def test_peers_come_and_go_and_others_stay() -> None:
    change = Change.between(network("b", "c"), network("c", "d"))
    assert (names(change.gone), names(change.new), names(change.changed)) == (["b"], ["d"], ["d"])
    assert change.survey


def test_peer_with_other_prefixes_keeps_its_session() -> None:
    before = network("b")
    (peer,) = before.peers
    after = replace(before, peers=(replace(peer, allowed=()),))
    change = Change.between(before, after)
    assert (change.gone, change.new, names(change.changed)) == ((), (), ["b"])


def test_peer_at_another_address_keeps_its_session() -> None:
    before = network("b")
    after = Roamed().moved(before, "b", 0, AWAY)
    change = Change.between(before, after)
    assert (change.gone, change.new) == ((), ())
    ((was, now),) = change.readdressed
    assert (was.host.endpoints[0], now.host.endpoints[0]) == (HOME, AWAY)


def test_peer_elsewhere_in_the_fabric_begins_anew(tmp_path: Path) -> None:
    before = fabric(tmp_path)
    (h2, h3) = before.peers
    moved = replace(h2, host=replace(h2.host, port=h2.host.port + 1))
    change = Change.between(before, replace(before, peers=(moved, h3)))
    assert (change.gone, change.new, change.readdressed) == ((h2,), (moved,), ())


def test_peer_with_another_key_begins_anew(tmp_path: Path) -> None:
    plain = fabric(tmp_path)
    one, other = (
        replace(
            plain, keyring=identity.simple_keys(Secret(bytes([k]) * 32), "h1", names(plain.peers))
        )
        for k in (1, 2)
    )
    assert one.keyring is not None
    assert other.keyring is not None
    mixed = {**one.keyring.peers, "h3": other.keyring.peers["h3"]}
    change = Change.between(one, replace(one, keyring=replace(one.keyring, peers=mixed)))
    assert names(change.gone) == names(change.new) == names(change.changed) == ["h3"]
    assert names(Change.between(plain, one).gone) == ["h2", "h3"]


@pytest.mark.parametrize(
    ("more", "tick", "survey"),
    [
        ("[transport]\ntick_us = 2000\n", True, True),
        ("[service]\non_stop = 'keep'\n", False, False),
    ],
)
def test_parts_that_a_key_concerns(more: str, tick: bool, survey: bool) -> None:
    change = Change.between(network("b"), network("b", more=more))
    assert (change.tick, change.survey) == (tick, survey)


def test_planes_that_have_another_address_now() -> None:
    none = ip_address("0.0.0.0")
    before = network("b").placed((HOME, AWAY), 1500)
    assert planes_readdressed(before, before.placed((HOME, FAR), 1500)) == [1]
    assert planes_readdressed(before, before.placed((none, FAR), 1500)) == [1]
    assert planes_readdressed(before.placed((none, none), 1500), before) == [0, 1]


# ---- peers that have moved


def endpoint(found: Config) -> Any:
    return found.peers[0].host.endpoints[0]


def test_peer_that_has_moved_stays_there_when_the_file_is_read_again() -> None:
    roamed = Roamed()
    for address in (FAR, AWAY):  # twice
        now = roamed.moved(network("b"), "b", 0, address)
        assert endpoint(now) == address
    again = roamed.applied(network("b", "c"))
    assert endpoint(again) == AWAY
    assert again.fabric.host("b").endpoints[0] == AWAY
    roamed.forget(again)
    assert endpoint(roamed.applied(network("b"))) == AWAY


def test_file_that_says_another_address_counts() -> None:
    roamed = Roamed()
    roamed.moved(network("b"), "b", 0, AWAY)
    other = config.with_endpoint(network("b"), "b", 0, FAR)
    now = roamed.applied(other)
    assert endpoint(now) == FAR
    roamed.forget(now)
    assert endpoint(roamed.applied(network("b"))) == HOME


def test_peer_that_was_removed_comes_back_where_the_file_says() -> None:
    roamed = Roamed()
    roamed.moved(network("b"), "b", 0, AWAY)
    now = roamed.applied(network("c"))
    roamed.forget(now)
    assert endpoint(roamed.applied(network("b"))) == HOME
