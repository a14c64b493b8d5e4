# SPDX-License-Identifier: GPL-2.0-only
"""Test what follows from news of a peer: how long packets to it are, and what they are in."""

from __future__ import annotations

import random
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mrcd.config.config import Peer as Configured
from mrcd.fabric.hosts import Host
from mrcd.handshake import CELLS_LOST, Memory, Offer, Ours, Session
from mrcd.paths.largest import LEAST
from mrcd.peers.peer import PLAIN_S, Lengths, Peer, SessionFraming
from mrcd.wire.abi import ABI

LENGTHS = Lengths(plane=9000, cell=8930, packet=8870)
CELLS = SessionFraming(mtu=8930, cells=True, trims=False)
PACKETS = SessionFraming(mtu=8870, cells=False, trims=True)
BOTH = 0b11
OFFER = Offer(
    version=6,
    host="h2",
    target="h1",
    epoch=1,
    sid=22,
    ack_sid=11,
    seq=5,
    bound=True,
    want=False,
    mtu=8930,
    mpr=64,
    port_mask=BOTH,
    capabilities=(),
    qps=((5, 0),),
    frame=7,
    hosts=8,
)


def peer(offer: Offer = OFFER, framing: SessionFraming | None = CELLS, **more: Any) -> Peer:
    """Return h2 as h1 knows it, with an established session."""
    ours = Ours("h1", 1, 8930, 64, 0, 1, frame=7, hosts=8)
    memory = Memory(1, 11, 1, 1, (), offer)
    session = Session.resume(ours, "h2", BOTH, random.Random(1), memory, now_ns=0)
    found = Peer(Configured(Host("h2", 1, 2, ()), ()), session, **more)
    if framing is not None:
        found.frame(framing, LENGTHS)
    return found


def unknown() -> Peer:
    """Return h2 before it has answered."""
    session = Session(Ours("h1", 1, 8930, 64, 0, 1), "h2", BOTH, random.Random(1))
    return Peer(Configured(Host("h2", 1, 2, ()), ()), session)


def test_mtu_is_that_of_the_worst_way() -> None:
    found = peer()
    assert found.mtu == LENGTHS.cell
    found.set_path_mtu(0, 1500)
    assert found.frame(CELLS, LENGTHS) == 1500 - 70
    found.set_most(1, 1300, LENGTHS)
    assert found.frame(CELLS, LENGTHS) == 1300
    found.set_most(1, None, LENGTHS)
    found.set_path_mtu(0, 0)
    assert found.frame(CELLS, LENGTHS) == LENGTHS.cell


def test_way_carries_less_of_an_application_in_another_framing() -> None:
    found = peer()
    found.set_most(0, 1430, LENGTHS)
    assert found.narrow == {0: 1500}
    assert found.frame(PACKETS, LENGTHS) == 1500 - 130


@given(
    st.dictionaries(st.integers(0, 7), st.integers(1280, 9000)),
    st.dictionaries(st.integers(0, 7), st.integers(1280, 9000)),
    st.integers(1280, 9000),
    st.booleans(),
)
def test_no_packet_is_longer_than_any_way_takes(
    kernel: dict[int, int], trials: dict[int, int], offered: int, cells: bool
) -> None:
    found = peer(path_mtu=kernel, narrow=trials)
    mtu = found.frame(SessionFraming(offered, cells, False), LENGTHS)
    longest = LENGTHS.longest(cells=cells)
    headers = LENGTHS.plane - longest
    ways = [longest, offered, *(way - headers for way in (*kernel.values(), *trials.values()))]
    assert mtu == found.mtu == min(ways)


def test_nothing_is_tried_without_a_session() -> None:
    assert unknown().tried(LENGTHS) is None
    assert peer(framing=None).tried(LENGTHS) is None


def test_longest_packet_is_tried_in_the_framing_of_data() -> None:
    tried = peer().tried(LENGTHS)
    assert tried is not None
    assert (tried.longest, tried.framing, tried.headers) == (8930, ABI.MRC_FRAMING_CELL, 70)
    assert tried.session == (11, 22)
    tried = peer(framing=PACKETS).tried(LENGTHS)
    assert tried is not None
    assert (tried.longest, tried.framing, tried.headers) == (8870, ABI.MRC_FRAMING_MRC, 130)


def test_trial_is_no_longer_than_the_peer_takes() -> None:
    tried = peer(framing=replace(CELLS, mtu=4000)).tried(LENGTHS)
    assert tried is not None
    assert tried.longest == 4000
    tried = peer(framing=replace(CELLS, mtu=1280)).tried(LENGTHS)
    assert tried is not None
    assert tried.longest == max(LEAST, 1280)


def test_data_leaves_cells_when_all_usable_planes_lose_them() -> None:
    found = peer()
    assert not found.set_swallowed({0: True, 1: False}, BOTH, 100.0)
    assert not found.set_swallowed({}, BOTH, 100.0)
    assert found.set_swallowed({0: True, 1: False}, 0b01, 100.0)  # plane 1 is down here
    assert found.plain_s == 100.0
    assert found.loses_cells is True


def test_data_comes_back_to_cells_after_a_while_only() -> None:
    found = peer(framing=PACKETS, plain_s=100.0)
    assert not found.set_swallowed({0: True, 1: True}, BOTH, 100 + 2 * PLAIN_S)
    assert not found.set_swallowed({0: False, 1: False}, BOTH, 100 + PLAIN_S / 2)
    assert found.set_swallowed({0: False, 1: False}, BOTH, 101 + PLAIN_S)
    assert found.plain_s is None
    assert found.loses_cells is None


def test_cells_are_tried_while_data_is_not_in_them() -> None:
    found = peer(framing=PACKETS, plain_s=1.0)
    tried = found.tried(LENGTHS)
    assert tried is not None
    assert tried.plain
    assert tried.framing == ABI.MRC_FRAMING_CELL
    found.set_most(0, 1430, LENGTHS)  # found with a cell, and data is in packets
    assert found.narrow == {}


def test_peer_without_a_session_leaves_no_framing() -> None:
    assert not unknown().set_swallowed({0: True}, BOTH, 1.0)


def test_peer_says_that_it_loses_cells() -> None:
    assert peer().loses_cells is None
    assert peer(msgspec.structs.replace(OFFER, capabilities=(CELLS_LOST,))).loses_cells is False


def test_difference_of_files_is_told_when_it_begins() -> None:
    found = peer(refused="why")
    assert found.hear(OFFER, 5) is None
    assert (found.heard_ns, found.refused, found.other_file) == (5, None, None)
    other = msgspec.structs.replace(OFFER, frame=9)
    told = found.hear(other, 6)
    assert told
    assert "h2" in told
    assert found.hear(other, 7) is None
    assert found.other_file == told
    assert found.hear(OFFER, 8) is None
    assert found.other_file is None


def test_ports_change_once() -> None:
    found = unknown()
    assert found.ports is None
    assert found.set_ports(0)
    assert not found.set_ports(0)
    assert found.set_ports(BOTH)


def test_planes_of_a_peer_are_numbered_as_it_says() -> None:
    ends = tuple(map(ip_address, ("fe80::2:1", "fe80::2:0")))
    found = peer()
    found.configured = Configured(replace(found.configured.host, endpoints=ends), ())
    said = tuple(end.packed for end in reversed(ends))
    assert found.number(msgspec.structs.replace(OFFER, endpoints=said))
    assert found.numbering.ours[:2] == (1, 0)
    assert not found.number(msgspec.structs.replace(OFFER, endpoints=said))
    assert found.number(OFFER), "one that says nothing has our numbers"
