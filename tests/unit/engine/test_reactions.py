# SPDX-License-Identifier: GPL-2.0-only
"""Test what is done about news, and a drain, with doubles of the parts: no lab, no kernel."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import pytest

from mrcd.config.inforce import InForce
from mrcd.engine import engine as engine_module
from mrcd.engine.engine import Engine
from mrcd.engine.reactions import Reactions, Sessions
from mrcd.handshake import State
from mrcd.planes.nexthops import Hop
from mrcd.service import log
from tests.unit.config.test_change import network

SAYS = (10_000, 1_000)
MAC = b"\x02\x00\x00\x00\x00\x01"


class Part:
    """A double of any part: it notes what it is asked, under its name."""

    def __init__(self, name: str, heard: list[tuple[Any, ...]]) -> None:
        self._name, self._heard = name, heard

    def __getattr__(self, method: str) -> Any:
        return lambda *args: self._heard.append((f"{self._name}.{method}", *args))


class Stand:
    """The reactions of host a, whose peers are b and c, on a network without a fabric."""

    def __init__(self) -> None:
        log.configure("json", strict=True)
        self.heard: list[tuple[Any, ...]] = []
        self.in_force = InForce(network("b", "c"))
        self.states = {"b": State.ESTABLISHED, "c": State.OFFERING}
        parts = {
            name: Part(name, self.heard)
            for name in (
                "interfaces",
                "routes",
                "denials",
                "relays",
                "endpoint",
                "trials",
                "memory",
            )
        }
        peers: Any = Part("peers", self.heard)
        peers.state = self.states.__getitem__
        self.table: Any = SimpleNamespace(
            peers=Part("table", self.heard), quiet=lambda: True, remove_peer=None
        )
        self.table.peers.planes = {"b": 3}
        planes: Any = [
            SimpleNamespace(index=k, link=SimpleNamespace(name=f"eth{k + 1}")) for k in range(2)
        ]
        given: Any = parts
        given["interfaces"].says = SAYS
        self.reactions = Reactions(
            self.in_force,
            self.table,
            given["interfaces"],
            given["routes"],
            given["denials"],
            given["relays"],
            planes,
        )
        self.sessions = Sessions(given["endpoint"], peers, given["trials"], given["memory"])
        self.planes: Any = Part("planes", self.heard)
        self.reactions.follow(self.planes, given["endpoint"], peers)

    def taken(self) -> list[tuple[Any, ...]]:
        """Return what the parts have heard since the last call."""
        heard, self.heard[:] = [*self.heard], []
        return heard


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_before_there_are_sessions_only_programs_hear(stand: Stand) -> None:
    stand.reactions.planes_changed(0b01)
    stand.reactions.path_measured(Hop("b", 0, "10.0.0.2", None, None, mtu=1400))
    plane: Any = SimpleNamespace(index=1, link=SimpleNamespace(name="eth9"))
    stand.reactions.plane_bound(plane)
    stand.reactions.plane_up(plane)
    assert stand.taken() == [("interfaces.write_host", 0b01), ("table.set_rates", SAYS)]


def test_planes_that_changed_are_said_to_programs_first(stand: Stand) -> None:
    stand.reactions.begin(stand.sessions)
    stand.reactions.planes_changed(0b10)
    assert stand.taken() == [
        ("interfaces.write_host", 0b10),
        ("table.set_rates", SAYS),
        ("peers.set_rates",),
        ("endpoint.set_planes", 0b10),
        ("peers.set_planes", 0b10),
        ("memory.changed",),
    ]
    stand.reactions.draining = True  # peers know already that we take nothing
    stand.reactions.planes_changed(0b11)
    assert stand.taken() == [
        ("interfaces.write_host", 0b11),
        ("table.set_rates", SAYS),
        ("peers.set_rates",),
    ]


def test_nic_in_the_place_of_another_gets_sockets(stand: Stand) -> None:
    stand.reactions.begin(stand.sessions)
    plane: Any = SimpleNamespace(index=1, link=SimpleNamespace(name="eth9"))
    stand.reactions.plane_bound(plane)
    stand.reactions.plane_up(plane)
    assert stand.taken() == [
        ("endpoint.rebind", 1, "eth9"),
        ("peers.rebind", 1, "eth9"),
        ("endpoint.open_closed", 1, "eth9"),
        ("peers.open_closed", 1, "eth9"),
    ]


def test_our_other_address_moves_sockets_of_that_plane_only(stand: Stand) -> None:
    stand.reactions.begin(stand.sessions)
    ours = (ip_address("fe80::1:1"), ip_address("fe80::2:1"))
    stand.reactions.we_moved(ours)
    stand.taken()
    stand.reactions.we_moved((ours[0], ip_address("fe80::2:9")))
    heard = stand.taken()
    assert ("endpoint.move", {1: "eth2"}) in heard
    assert ("peers.move", {1: "eth2"}) in heard
    assert stand.in_force.config.host.endpoints[1] == ip_address("fe80::2:9")


def test_next_hop_is_written_for_peers_that_there_are(stand: Stand) -> None:
    b = stand.in_force.config.by_name["b"]
    stand.reactions.hop_found(Hop("b", 1, "10.0.1.2", "10.0.1.2", MAC))
    stand.reactions.hop_found(Hop("b", 0, "10.0.0.2", "10.0.0.2", None))
    stand.reactions.hop_found(Hop("gone", 0, "10.0.0.9", "10.0.0.9", MAC))
    assert stand.taken() == [
        ("relays.learn", 1, "10.0.1.2", MAC),
        ("table.set_next_hop", b, 1, MAC),
        ("relays.learn", 0, "10.0.0.9", MAC),
    ]


def test_peer_is_followed_unless_we_take_our_leave(stand: Stand) -> None:
    stand.reactions.begin(stand.sessions)
    stand.reactions.draining = True
    stand.reactions.peer_moved("b", 1, "fe80::77")
    assert stand.taken() == []
    stand.reactions.draining = False
    stand.reactions.peer_moved("b", 1, "fe80::77")
    after = stand.in_force.config.by_name["b"]
    assert after.host.endpoints[1] == ip_address("fe80::77")
    heard = [name for name, *_ in stand.taken()]
    assert heard == [
        "denials.configured",
        "endpoint.configured",
        "peers.configured",
        "relays.configured",
        "table.readdress",
        "planes.configured",
    ]


def test_peer_whose_session_begins_is_tried_and_denied_paths_stay_denied(stand: Stand) -> None:
    b, c = (stand.in_force.config.by_name[name] for name in "bc")
    stand.reactions.longest_changed(c, 1400)
    assert stand.taken() == [("denials.apply", "c"), ("routes.want", c, 1400)]
    stand.reactions.begin(stand.sessions)
    stand.reactions.longest_changed(c, 1400)
    assert stand.taken()[-1] == ("trials.begin", "c")
    stand.reactions.longest_changed(b, 1400)
    assert stand.taken() == [("denials.apply", "b"), ("routes.want", b, 1400)]


class _Draining:
    """An engine of which a drain is asked; packets are outstanding for some looks."""

    def __init__(self, stand: Stand, looks: int) -> None:
        stand.reactions.begin(stand.sessions)
        left = iter([False] * looks)
        stand.table.quiet = lambda: next(left, True)
        stand.table.peers.prefixes = Part("prefixes", stand.heard)
        endpoint: Any = stand.sessions.endpoint
        endpoint.unanswered = False
        self.engine: Any = SimpleNamespace(
            reactions=stand.reactions, table=stand.table, endpoint=endpoint
        )

    def drain(self) -> bool:
        return asyncio.run(Engine.drain(self.engine))


def test_drain_ends_spraying_tells_peers_and_waits(stand: Stand) -> None:
    assert _Draining(stand, looks=3).drain()
    assert stand.taken() == [
        ("prefixes.close",),
        ("endpoint.set_planes", 0),
        ("peers.set_planes", 0),
        ("memory.changed",),
    ]
    assert stand.reactions.draining


def test_drain_does_not_wait_for_ever(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "DRAIN_S", 0.05)
    assert not _Draining(stand, looks=10_000).drain()
