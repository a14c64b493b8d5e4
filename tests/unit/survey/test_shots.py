# SPDX-License-Identifier: GPL-2.0-only
"""Test where probes go, what they look like, and what hosts tell of them."""

from __future__ import annotations

from collections import Counter

import pytest

from mrcd.handshake.datagram import MAX_BYTES
from mrcd.survey import shots, told
from mrcd.survey.arrivals import Kinds
from mrcd.survey.messages import EvidenceError
from mrcd.survey.shots import SHORT, NoProbe, Probe, Shots
from mrcd.survey.told import Nic, Self, Way

PROBE = Probe(1 << 62, (1 << 63) - 1, 7, 4_000_000_000, -5)
TARGETS = [(peer, plane) for peer in "bcd" for plane in range(2)]


@pytest.mark.parametrize("length", [0, SHORT, 1452, 8952])
def test_probe__read_again(length: int) -> None:
    datagram = shots.encode(PROBE, length)
    assert len(datagram) == max(SHORT, length)
    assert shots.decode(datagram) == PROBE


def test_probe__damage_is_seen() -> None:
    datagram = shots.encode(PROBE, 200)
    for at in range(4, 200):
        assert (
            shots.decode(datagram[:at] + bytes([datagram[at] ^ 0x10]) + datagram[at + 1 :]) is None
        )


def test_probe__too_short() -> None:
    with pytest.raises(NoProbe):
        shots.decode(b"MRCp")


def test_turns() -> None:
    turns = Shots()
    assert turns.next() is None
    turns.aim(TARGETS)
    assert Counter(turns.next() for _ in range(60)) == dict.fromkeys(TARGETS, 10)


def test_every_other_shot_goes_where_it_tells_most() -> None:
    turns = Shots()
    turns.aim(TARGETS, [("c", 1), ("gone", 0)])
    count = Counter(turns.next() for _ in range(120))
    assert count["c", 1] == 70
    assert all(count[target] == 10 for target in TARGETS if target != ("c", 1))


def test_numbers_go_on() -> None:
    turns = Shots()
    turns.sent(("b", 0))
    turns.sent(("b", 0))
    assert (turns.number(("b", 0)), turns.number(("c", 0))) == (4, 0)


def way(number: int, kinds: tuple[int, ...] = ()) -> Way:
    return Way(number, 7, 1 << 62, number - 1, number, 3, 1, -0.5, kinds)


OWN = Self("a" * 31, 1 << 62, 1 << 62, tuple(Nic("eth1", 1500, True, 0, 9) for _ in range(8)))


@pytest.mark.parametrize("peers", [0, 1, 63])
@pytest.mark.parametrize("planes", [1, 8])
@pytest.mark.parametrize("odd", [False, True])
def test_what_is_told__read_again(peers: int, planes: int, odd: bool) -> None:
    kinds = Kinds([100.0, 3.0], [101.0, 0.0], moved=2.0) if odd else Kinds()
    ways = {
        f"host-of-a-long-name-{k}": [way(1 << 50, told.counts_of(kinds))] * planes
        for k in range(peers)
    }
    datagrams = list(told.encode(OWN, ways))
    assert all(len(each) <= MAX_BYTES for each in datagrams)
    found: dict[str, tuple[Way, ...]] = {}
    for each in datagrams:
        message = told.decode(each)
        assert (message.host, message.run, message.nics) == (OWN.host, OWN.run, OWN.nics)
        found |= message.ways
    assert found.keys() == ways.keys()
    assert all(way_.received == 1 << 50 for each in found.values() for way_ in each)
    if odd and planes == 1:
        assert all(told.kinds_of(each[0].kinds).moved == 2 for each in found.values())


def test_what_is_told__kinds() -> None:
    assert told.counts_of(Kinds([50.0, 0.0], [50.0, 0.0])) == ()
    kinds = Kinds([50.0, 1.0], [49.0, 4.0], repeated=2.0, damaged=1.0)
    assert told.kinds_of(told.counts_of(kinds)) == kinds
    assert told.kinds_of((1, 2, 3)) == Kinds()


@pytest.mark.parametrize("datagram", [b"", b"MRCw", b"MRCw\0\1\xc0", b"MRCf\0\1\xc0"])
def test_what_is_told__nonsense(datagram: bytes) -> None:
    with pytest.raises(EvidenceError):
        told.decode(datagram)
