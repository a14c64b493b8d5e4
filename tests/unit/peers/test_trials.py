# SPDX-License-Identifier: GPL-2.0-only
"""Test what is concluded from trials, with a network that answers as told."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from mrcd.datapath.control import CommandRefused
from mrcd.peers import trials
from mrcd.peers.peer import Tried
from mrcd.peers.trials import Places, Trials, Way
from mrcd.wire.abi import ABI

_PATH, _TX = ABI.structs["mrc_path"], ABI.structs["mrc_tx"]
FULL = 8960


@dataclass
class Network:
    """Two planes to one peer. `fits` tells what gets through: by plane, the longest packet.

    `probed` tells whether probes do.
    """

    fits: dict[int, int] = field(default_factory=lambda: {0: FULL, 1: FULL})
    probed: dict[int, bool] = field(default_factory=lambda: {0: True, 1: True})
    delivers: dict[int, bool] = field(default_factory=lambda: {0: False, 1: False})
    sent: list[tuple[int, int]] = field(default_factory=list)
    paths: dict[int, dict[str, int]] = field(default_factory=dict)
    told: list[tuple[int, int]] = field(default_factory=list)
    ready: bool = True
    gone: int = 0
    gone_len: int = 0
    change: Callable[[Network], None] = lambda _network: None  # before each trial

    def try_path(self, _qp: int, plane: int, _slot: int, length: int, _framing: int) -> None:
        if not self.ready:
            raise CommandRefused("not ready")
        self.change(self)
        self.sent.append((plane, length))
        path = self.paths.setdefault(plane, dict.fromkeys(("probe_id", "fits"), 0))
        path["probe_id"] += 1
        path["fits"] = length if length <= self.fits[plane] else 0

    def probe(self, _qp: int, plane: int, _slot: int) -> None:
        self.change(self)
        assert plane in self.probed

    def set_most(self, _peer: int, plane: int, most: int) -> None:
        self.told.append((plane, most))

    def read_raw(self, name: str, index: int, size: int) -> bytes:
        raw = bytearray(size)
        if name == "txs":
            at = _TX.fields["all"].offset
            for plane in self.fits:
                struct.pack_into("=Q", raw, at + 16 * plane, 1)
            return bytes(raw)
        plane = index % ABI.MRC_MAX_PLANES
        values = self.paths.get(plane, {}) | {
            "answered_ns": (1 << 63) * self.probed[plane],
            "delivered_ns": (1 << 63) * self.delivers[plane],
            "gone": self.gone,
            "gone_len": self.gone_len,
        }
        for member, value in values.items():
            at = _PATH.fields[member]
            raw[at.offset : at.offset + at.size] = value.to_bytes(at.size, "little")
        return bytes(raw)


@dataclass
class Sessions:
    """What is said to sessions."""

    now: Tried | None = field(default_factory=lambda: Tried(FULL, ABI.MRC_FRAMING_CELL, 40, (1, 1)))
    most: dict[int, int | None] = field(default_factory=dict)
    swallowed: dict[int, bool] = field(default_factory=dict)
    hear: Callable[[], None] = lambda: None

    def tried(self, _peer: str) -> Tried | None:
        return self.now

    def set_most(self, _peer: str, plane: int, most: int | None) -> None:
        self.most[plane] = most

    def set_swallowed(self, _peer: str, planes: Mapping[int, bool]) -> None:
        self.swallowed = dict(planes)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    monkeypatch.setattr(trials, "WAITS_S", (0.001, 0.001))
    return Network()


def built(network: Network, sessions: Sessions) -> Trials:
    datapath: Any = SimpleNamespace(read_raw=network.read_raw, sizes=SimpleNamespace(evs=1))
    places = Places(lambda _peer: range(1), lambda _peer: 0, lambda _peer: 0b11)
    made = Trials(datapath, places, sessions, lambda: ["b"])
    made._commands = network  # type: ignore[assignment]
    return made


def looked(network: Network, sessions: Sessions, made: Trials | None = None) -> Trials:
    """Look at both planes once."""
    made = made or built(network, sessions)

    async def look() -> None:
        made.doubt("b", None)
        await asyncio.gather(*made._looking.values())

    asyncio.run(look())
    return made


def test_full_length_is_tried_once_on_each_plane(network: Network) -> None:
    sessions = Sessions()
    made = looked(network, sessions)
    assert sorted(network.sent) == [(0, FULL), (1, FULL)]
    assert made.ways == {("b", 0): Way(), ("b", 1): Way()}
    assert sessions.swallowed == {0: False, 1: False}
    assert sorted(network.told) == [(0, 0), (1, 0)], "an earlier daemon may have told another"


def test_shorter_plane_is_found_and_told(network: Network) -> None:
    network.fits[1] = 1464
    sessions = Sessions()
    made = looked(network, sessions)
    most = made.ways["b", 1].most
    assert most is not None
    assert 1456 <= most <= 1464
    assert sessions.most == {0: None, 1: most}
    assert (1, most) in network.told
    network.fits[1] = FULL
    looked(network, sessions, made)
    assert made.ways["b", 1] == Way()
    assert sessions.most[1] is None
    assert network.told[-1] == (1, 0)


@pytest.mark.parametrize(
    ("gone", "length", "believed"),
    [(7, 1400, False), (8, 1400, True), (2, 1480, False), (3, 1480, True)],
)
def test_long_packets_are_lost_if_data_says_so(
    network: Network, gone: int, length: int, believed: bool
) -> None:
    """An overloaded switch loses long trials, while data of that length arrives."""
    network.fits[1] = 1464
    network.delivers[1] = True
    network.gone, network.gone_len = gone, length
    made = looked(network, Sessions())
    assert (("b", 1) in made.ways) is believed


def test_data_that_is_lost_where_probes_are_answered(network: Network) -> None:
    network.fits[1] = 0
    sessions = Sessions()
    made = looked(network, sessions)
    assert sessions.swallowed == {0: False, 1: True}
    since = made.ways["b", 1].swallowed_ns
    assert since is not None
    looked(network, sessions, made)
    assert made.ways["b", 1].swallowed_ns == since, "it has lasted since then"
    network.fits[1] = FULL
    looked(network, sessions, made)
    assert sessions.swallowed == {0: False, 1: False}


@pytest.mark.parametrize("trial", range(1, 8))
def test_plane_that_was_dead_for_a_moment_swallows_nothing(network: Network, trial: int) -> None:
    """It loses trials, and a moment later everything gets through."""
    network.fits[1], network.probed[1] = 0, False

    def change(now: Network) -> None:
        if sum(plane == 1 for plane, _ in now.sent) >= trial:
            now.fits[1], now.probed[1] = FULL, True

    network.change = change
    sessions = Sessions()
    made = looked(network, sessions)
    assert made.ways.get(("b", 1), Way()).swallowed_ns is None
    assert sessions.swallowed == {0: False, 1: False}


def test_plane_that_comes_and_goes_swallows_nothing(network: Network) -> None:
    """Every other trial finds it dead, and a probe is answered in between."""
    turn = iter(range(1 << 20))

    def change(now: Network) -> None:
        now.fits[1] = 0 if next(turn) % 5 else FULL

    network.change = change
    sessions = Sessions()
    for _ in range(20):
        made = looked(network, sessions)
        assert made.ways.get(("b", 1), Way()).swallowed_ns is None


def test_plane_that_was_not_tried_yet_may_carry_cells(network: Network) -> None:
    network.fits = {0: 0, 1: 0}
    sessions = Sessions()
    made = built(network, sessions)
    for plane, known in ((0, {0: True, 1: False}), (1, {0: True, 1: True})):
        assert asyncio.run(made._look("b", plane, lost=True)) is True
        assert sessions.swallowed == known


def test_all_planes_are_doubted_where_one_loses_data(network: Network) -> None:
    """One that is being looked at for no such reason is looked at once more."""
    network.fits = {0: 0, 1: 0}
    sessions = Sessions()
    made = built(network, sessions)

    async def look() -> None:
        made._looking["b", 1] = asyncio.create_task(made._visit(("b", 1), lost=False))
        await asyncio.sleep(0)
        made.doubt("b", 0)
        while made._looking:
            await asyncio.gather(*made._looking.values())

    asyncio.run(look())
    assert sessions.swallowed == {0: True, 1: True}


def test_cells_are_lost_everywhere_if_the_other_plane_is_dead(network: Network) -> None:
    """It carried them before; whichever is found out first."""
    sessions = Sessions()
    made = looked(network, sessions)
    network.fits = {0: 0, 1: 0}
    network.probed[0] = False
    assert asyncio.run(made._look("b", 0, lost=True)) is False
    assert sessions.swallowed == {0: False, 1: False}, "nothing is known of data"
    assert asyncio.run(made._look("b", 1, lost=True)) is True
    assert sessions.swallowed == {0: True, 1: True}
    network.probed[0], network.fits[0] = True, FULL
    looked(network, sessions, made)
    assert sessions.swallowed == {0: False, 1: True}


def test_data_that_arrives_is_not_lost(network: Network) -> None:
    """A full queue may drop every trial."""
    network.fits[1] = 0
    network.delivers[1] = True
    sessions = Sessions()
    made = looked(network, sessions)
    assert list(made.ways) == [("b", 0)]
    assert sessions.swallowed == {0: False, 1: False}


def test_data_is_lost_where_only_short_packets_arrive(network: Network) -> None:
    """Pings and acknowledgements do, and nothing else."""
    network.fits[1] = 400
    network.delivers[1] = True
    sessions = Sessions()
    made = looked(network, sessions)
    assert made.ways["b", 1].swallowed_ns is not None
    assert sessions.swallowed == {0: False, 1: True}


def test_data_is_not_called_lost_because_of_trials_alone(network: Network) -> None:
    """Nothing was sent: a peer that answers no trial may take data."""
    network.fits = {0: 0, 1: 0}
    sessions = Sessions()
    made = built(network, sessions)
    for plane in (0, 1):
        assert asyncio.run(made._look("b", plane, lost=False)) is False
    assert (made.ways, sessions.swallowed) == ({}, {})


def test_dead_plane_says_nothing_of_data(network: Network) -> None:
    network.fits[1] = 0
    network.probed[1] = False
    sessions = Sessions()
    made = looked(network, sessions)
    assert list(made.ways) == [("b", 0)]
    assert sessions.swallowed == {0: False, 1: False}


@pytest.mark.parametrize("change", ["new session", "none", "not ready"])
def test_nothing_is_concluded_while_a_session_is_set_up(network: Network, change: str) -> None:
    network.fits = {0: 0, 1: 0}
    sessions = Sessions()
    made = built(network, sessions)
    before = sessions.now
    assert before is not None

    async def look() -> None:
        made.doubt("b", None)
        await asyncio.sleep(0)
        if change == "new session":
            sessions.now = Tried(FULL, ABI.MRC_FRAMING_CELL, 40, (1, 2))
        elif change == "none":
            sessions.now = None
        else:
            network.ready = False
        await asyncio.gather(*made._looking.values())

    asyncio.run(look())
    assert made.ways == {}
    assert sessions.swallowed == {}


def test_peer_that_is_gone_is_forgotten(network: Network) -> None:
    made = looked(network, Sessions())
    made.forget("b")
    assert made.ways == {}


def test_follow__looks_at_each_plane_in_turn(network: Network) -> None:
    made = built(network, Sessions())

    async def follow() -> None:
        task = asyncio.create_task(made.follow())
        async with asyncio.timeout(10):
            while len(made.ways) < 2:
                await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(follow())
    assert set(made.ways) == {("b", 0), ("b", 1)}


@pytest.mark.parametrize(
    ("vain", "now", "rest_s"),
    [
        ([], 0.0, 0.0),
        ([0.0], 0.0, 0.0),
        ([0.0, 1.0], 1.0, 0.1),
        ([0.0, 1.0], 1.06, 0.04),
        ([0.0, 1.0], 1.1, 0.0),
        ([0.0, 1.0, 2.0], 2.0, 0.2),
        ([float(at) for at in range(20)], 19.0, 1.0),
        ([0.0, 1.0], 11.5, 0.0),  # long ago
        ([0.0, 1.0, 12.0], 12.0, 0.0),
    ],
)
def test_in_vain__doubts_wait_the_longer_the_more_were_in_vain(
    vain: list[float], now: float, rest_s: float
) -> None:
    seen = trials.InVain()
    for at in vain:
        seen.looked(("b", 0), at, vain=True)
    assert seen.rest_s(("b", 0), now) == pytest.approx(rest_s)
    assert seen.rest_s(("b", 1), now) == 0.0, "another plane"


@pytest.mark.parametrize("how", ["wrong", "forget"])
def test_in_vain__begins_anew_when_something_was_wrong(how: str) -> None:
    seen = trials.InVain()
    for at in range(5):
        seen.looked(("b", 0), at, vain=True)
    assert seen.rest_s(("b", 0), 4.0) > 0
    if how == "wrong":
        seen.looked(("b", 0), 4.0, vain=False)
    else:
        seen.forget(("b", 0))
    assert seen.rest_s(("b", 0), 4.0) == 0.0


def test_doubts_in_vain_make_the_next_wait_but_none_is_dropped(network: Network) -> None:
    """A plane that begins to swallow data then is found out a moment later."""
    sessions = Sessions()
    made = built(network, sessions)
    for _ in range(trials.IN_VAIN + 1):
        looked(network, sessions, made)
    assert made._in_vain.rest_s(("b", 1), time.monotonic()) > 0
    network.fits[1] = 0
    looked(network, sessions, made)
    assert sessions.swallowed == {0: False, 1: True}
    assert made._in_vain.rest_s(("b", 1), time.monotonic()) == 0.0


def test_doubt_of_a_dead_plane_is_not_in_vain(network: Network) -> None:
    network.fits[1] = 0
    network.probed[1] = False
    made = built(network, Sessions())
    for _ in range(trials.IN_VAIN + 1):
        looked(network, Sessions(), made)
    assert made._in_vain.rest_s(("b", 1), time.monotonic()) == 0.0
