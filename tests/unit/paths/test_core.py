# SPDX-License-Identifier: GPL-2.0-only
"""Test host builds of bpf/path.h and pick.h against mrcd.paths.states and a model in Python.

The sets have their maximum size: eight planes of 128 slots. tests/bpf/test_path_model.py tests the
real programs in the same way. MRC_HYPOTHESIS=long gives both a thousand examples and new seeds.
"""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mrcd.paths.states import TRANSITIONS, Event, State
from mrcd.wire.abi import ABI
from tests.host_path import Memory, build
from tests.path_model import (
    CROWD_HOLD_NS,
    CROWDS_MAX,
    FULL,
    MARK_PARTS,
    PathSet,
    check_invariants,
)
from tests.stateful import run

SECOND = 1_000_000_000
SLOW = 0x10000  # a flag in the path that the core picks


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("path"))


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_table_is_that_of_the_programs(core: ctypes.CDLL, state: State, event: Event) -> None:
    assert core.host_next(state, event) == TRANSITIONS[event][state]


def test_table_is_whole() -> None:
    assert TRANSITIONS.keys() == set(Event)
    assert all(row.keys() == set(State) for row in TRANSITIONS.values())
    names = {name for name in ABI.constants if name.startswith("MRC_ON_")}
    assert {ABI.constants[name] for name in names} == set(Event)


def test_event_that_the_table_does_not_know_changes_nothing(core: ctypes.CDLL) -> None:
    assert [core.host_next(state, 7) for state in State] == list(State)


@pytest.mark.parametrize("slots", [{0}, {63}, {64}, {127}, {5, 70}, {0, 127}, set(range(128))])
def test_next_slot_goes_round(core: ctypes.CDLL, slots: set[int]) -> None:
    bits = sum(1 << slot for slot in slots)
    low, high = bits & (1 << 64) - 1, bits >> 64
    for start in range(129):
        right = min(slots, key=lambda slot: (slot - start) % 128)
        assert core.host_slot(low, high, start) == right
    assert core.host_slot(0, 0, 3) == ABI.MRC_EVS_PER_PLANE


class Core(RuleBasedStateMachine):
    """A machine that applies each event to both sides, which must agree on everything after it."""

    core: ClassVar[ctypes.CDLL]

    @initialize(
        planes=st.integers(1, 8),
        slots=st.integers(1, 128),
        active=st.integers(1, 128),
        floor=st.integers(0, 12),
    )
    def begin(self, planes: int, slots: int, active: int, floor: int) -> None:
        active = min(active, slots)
        hold = {"hold_base_ns": 4_000_000, "hold_max_ns": SECOND}
        self.host = Memory("mrc_host", **hold)
        self.model = PathSet([slots] * planes, [active] * planes, floor, **hold)
        self.tx = Memory("mrc_tx", **self.model.members(), **self.model.scalars(), floor=floor)
        self.paths: dict[tuple[int, int], Memory] = {}
        self.shares = [FULL] * 8
        self.up = 0xFF
        self.now = 100 * SECOND
        self.size = (planes, slots)
        self.touched: set[tuple[int, int]] = set()

    def path(self, p: int, k: int) -> tuple[int, int, Memory]:
        key = (p % self.size[0], k % self.size[1])
        self.touched.add(key)
        return *key, self.paths.setdefault(key, Memory("mrc_path"))

    def moved(self, both: int, right: tuple[State, State]) -> None:
        assert (both >> 8, both & 0xFF) == right

    number = st.integers(0, 127)

    @rule(
        prices=st.lists(st.integers(1, FULL), min_size=1, max_size=40),
        alike=st.booleans(),
        avoid=st.none() | st.integers(0, 7),
    )
    def pick(self, prices: list[int], alike: bool, avoid: int | None) -> None:
        for price in [FULL] * len(prices) if alike else prices:
            preferred = self.up if avoid is None else self.up & ~(1 << avoid)
            shares = sum(share << 8 * p for p, share in enumerate(self.shares))
            got = self.core.host_pick(self.tx.at, self.up, preferred, shares, price)
            chosen = None
            if got != ABI.MRC_NO_PATH:
                chosen = (got >> 8 & 7, got & 0x7F)
                assert chosen in self.model.paths
                assert self.model.state(*chosen) is not State.DENIED
            if got & SLOW:
                assert chosen is not None
                assert chosen[1] in self.model.planes[chosen[0]].slow
            self.model.check_pick(chosen, bits(self.up), bits(preferred), self.shares, price)

    @rule(p=number, k=number, alive=st.booleans())
    def lose(self, p: int, k: int, alive: bool) -> None:
        p, k, path = self.path(p, k)
        self.moved(
            self.core.host_lost(
                self.tx.at, path.at, p << 8 | k, self.now, self.host.at, int(alive)
            ),
            self.model.lost(p, k, self.now, alive=alive),
        )

    @rule(p=number, ago=st.sampled_from([0, 1, 2_000_000]))
    def lose_on_a_plane(self, p: int, ago: int) -> None:
        p %= self.size[0]
        self.core.host_plane_lost(self.tx.at, p, self.now - ago, self.now)
        self.model.plane_lost(p, self.now - ago)

    @rule(p=number, ago=st.sampled_from([0, 1, 2_000_000]))
    def hear_of_a_plane(self, p: int, ago: int) -> None:
        p %= self.size[0]
        self.core.host_plane_heard(self.tx.at, p, self.now - ago)
        self.model.plane_heard(p, self.now - ago)

    @rule(p=number, alive=st.booleans())
    def lose_a_plane(self, p: int, alive: bool) -> None:
        for k in range(self.size[1]):
            self.lose(p, k, alive)

    @rule(p=number, k=number, marked=st.booleans(), times=st.integers(1, 9))
    def answer(self, p: int, k: int, marked: bool, times: int) -> None:
        p, k, path = self.path(p, k)
        for _ in range(times):
            self.moved(
                self.core.host_answered(self.tx.at, path.at, p << 8 | k, self.now, int(marked)),
                self.model.answered(p, k, self.now, marked=marked),
            )

    @rule(p=number, k=number)
    def stay_silent(self, p: int, k: int) -> None:
        p, k, path = self.path(p, k)
        self.moved(
            self.core.host_silent(self.tx.at, path.at, p << 8 | k, self.now, self.host.at),
            self.model.silent(p, k, self.now),
        )

    @rule(p=number, k=number, event=st.sampled_from([Event.MARK, Event.DENY, Event.ALLOW]))
    def happen(self, p: int, k: int, event: Event) -> None:
        p, k, _path = self.path(p, k)
        before = self.core.host_state(self.tx.at, p << 8 | k)
        to = self.core.host_next(before, event)
        if to != before:
            self.core.host_enter(self.tx.at, p << 8 | k, to)
        self.moved(before << 8 | to, self.model.event(p, k, event))

    @rule(p=number, event=st.sampled_from([Event.MARK, Event.DENY, Event.ALLOW]))
    def happen_to_a_plane(self, p: int, event: Event) -> None:
        for k in range(self.size[1]):
            self.happen(p, k, event)

    @rule(p=number, k=number)
    def slow(self, p: int, k: int) -> None:
        p, k, _path = self.path(p, k)
        plane = self.model.planes[p]
        plane.slow |= {k} & plane.use
        self.tx.change(slow=self.model.members()["slow"])

    @rule(shares=st.lists(st.integers(4, FULL), min_size=8, max_size=8), alike=st.booleans())
    def share(self, shares: list[int], alike: bool) -> None:
        # shares are relative: at least one is always full
        planes = self.size[0]
        self.shares = [FULL] * 8 if alike else [FULL, *shares[1:planes], *[FULL] * (8 - planes)]

    @rule(up=st.integers(0, 255))
    def planes_are_up(self, up: int) -> None:
        self.up = up

    @rule(ns=st.sampled_from([1, 3_000_000, SECOND, 11 * SECOND]))
    def time_passes(self, ns: int) -> None:
        self.now += ns

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        plain = self.tx.read()
        arrays = {name: self.tx.array(name) for name in self.model.members()}
        assert arrays == self.model.members()
        assert {name: plain[name] for name in self.model.scalars()} == self.model.scalars()
        check_invariants(arrays, plain)
        for key in self.touched:
            values, path = self.paths[key].read(), self.model.paths[key]
            assert values["loss_ppm"] == path.loss_ppm
            assert values["relapses"] == path.relapses
            assert values["probe_need"] == path.need
            assert (values["probe_ok"], values["misses"]) == (path.ok, path.misses)
            assert values["hold_ns"] == path.hold_ns
            assert self.core.host_state(self.tx.at, key[0] << 8 | key[1]) == self.model.state(*key)
        self.touched.clear()


def bits(mask: int) -> set[int]:
    return {p for p in range(8) if mask >> p & 1}


@pytest.mark.timeout(600)
def test_programs_and_model_agree(core: ctypes.CDLL) -> None:
    Core.core = core
    run(Core, examples=40, steps=25)


def fresh(planes: int, slots: int, active: int, **values: Any) -> tuple[PathSet, Memory]:
    model = PathSet([slots] * planes, [active] * planes)
    return model, Memory("mrc_tx", **model.members(), **{**model.scalars(), **values})


@pytest.mark.parametrize("planes", range(1, 9))
def test_planes_get_equally_many_packets_of_every_round(core: ctypes.CDLL, planes: int) -> None:
    _model, tx = fresh(planes, 128, 64)
    whole = int.from_bytes(bytes([FULL] * 8), "little")
    for _ in range(100):
        seen = Counter(
            core.host_pick(tx.at, 0xFF, 0xFF, whole, FULL) >> 8 & 7 for _ in range(planes)
        )
        assert seen == dict.fromkeys(range(planes), 1)


@pytest.mark.parametrize("share", [4, 13, 64, 100, 127])
def test_plane_gets_its_share_of_the_packets(core: ctypes.CDLL, share: int) -> None:
    _model, tx = fresh(4, 64, 64)
    shares = int.from_bytes(bytes([FULL, FULL, share, FULL, *[FULL] * 4]), "little")
    rounds = 128 * 8
    seen: Counter[int] = Counter()
    while seen[0] < rounds:
        seen[core.host_pick(tx.at, 0xFF, 0xFF, shares, FULL) >> 8 & 7] += 1
    assert abs(seen[1] - rounds) <= 1
    assert abs(seen[2] - rounds * share / FULL) <= 1.5


@pytest.mark.parametrize("planes", range(1, 9))
def test_planes_get_equal_bytes_where_cells_differ_in_length(
    core: ctypes.CDLL, planes: int
) -> None:
    """No plane is ahead of another by more than two of the longest cells."""
    _model, tx = fresh(planes, 128, 64)
    whole, draw = int.from_bytes(bytes([FULL] * 8), "little"), random.Random(planes)
    spent: Counter[int] = Counter(dict.fromkeys(range(planes), 0))
    for _ in range(5000):
        price = draw.choice([1, 1, 3, 20, FULL])
        spent[core.host_pick(tx.at, 0xFF, 0xFF, whole, price) >> 8 & 7] += price
        assert max(spent.values()) - min(spent.values()) <= 2 * FULL


def test_cells_of_equal_length_are_sprayed_in_turn(core: ctypes.CDLL) -> None:
    """Even where the longest may be much longer, the same plane is not used twice in a row."""
    _model, tx = fresh(4, 128, 64)
    whole = int.from_bytes(bytes([FULL] * 8), "little")
    for _ in range(1000):
        planes = {core.host_pick(tx.at, 0xFF, 0xFF, whole, 2) >> 8 & 7 for _ in range(4)}
        assert planes == set(range(4))


def test_slow_path_is_used_once_in_32_turns(core: ctypes.CDLL) -> None:
    _model, tx = fresh(2, 8, 8, round=12345)
    tx.change(slow=(1,) + (0,) * (ABI.MRC_SET_WORDS - 1))
    whole = int.from_bytes(bytes([FULL] * 8), "little")
    seen = Counter(core.host_pick(tx.at, 0xFF, 0xFF, whole, FULL) for _ in range(64_000))
    slow = seen.pop(SLOW)
    assert 1 / 40 < slow / (seen[0x100] + 1) < 1 / 24  # 4,000 turns
    assert 0 not in seen  # whenever it is picked, the packet asks for an answer


def test_slow_paths_are_used_when_no_others_are_left(core: ctypes.CDLL) -> None:
    _model, tx = fresh(1, 4, 4)
    tx.change(slow=(15,) + (0,) * (ABI.MRC_SET_WORDS - 1))
    whole = int.from_bytes(bytes([FULL] * 8), "little")
    picks = [core.host_pick(tx.at, 0xFF, 0xFF, whole, FULL) for _ in range(8)]
    assert picks == [0x10000 | k % 4 for k in range(8)]


@pytest.mark.parametrize("planes", [2, 4, 8])
def test_any_plane_is_as_likely_to_begin_a_round(core: ctypes.CDLL, planes: int) -> None:
    """Otherwise the same plane would cause every SACK and measure every round trip."""
    _model, tx = fresh(planes, 4, 4)
    whole = int.from_bytes(bytes([FULL] * 8), "little")
    firsts: Counter[int] = Counter()
    for _ in range(8000):
        picks = [core.host_pick(tx.at, 0xFF, 0xFF, whole, FULL) >> 8 & 7 for _ in range(planes)]
        firsts[picks[0]] += 1
    assert len(firsts) == planes
    assert max(firsts.values()) < 1.25 * 8000 / planes


class Marks:
    """A plane of four paths whose packets are all acknowledged, some of them marked."""

    def __init__(self, core: ctypes.CDLL) -> None:
        self.core = core
        self.model, self.tx = fresh(1, 4, 4, round=0x12345678)
        self.paths = [Memory("mrc_path") for _ in range(4)]
        self.now = 100 * SECOND

    def arrive(self, slot: int, *, marked: bool) -> bool:
        """Acknowledge another packet of this path; return whether that made the path slow."""
        path = self.paths[slot]
        path.change(acked=path.read()["acked"] + 1)
        self.tx.change(acked=(self.tx.array("acked")[0] + 1,) + (0,) * 7)
        self.model.acked(0, slot)
        if not marked:
            return False
        self.model.marked(0, slot)
        made = bool(self.core.host_marked(self.tx.at, path.at, slot, self.now))
        assert path.read()["mark_ppm"] == self.model.paths[0, slot].mark_ppm
        assert self.tx.array("mark_ppm")[0] == self.model.planes[0].mark_ppm
        return made

    @property
    def slow(self) -> int:
        return self.tx.array("slow")[0]

    def crowd(self, slot: int) -> int:
        """Mark only this path's packets until it is slow; return how many that took."""
        for n in range(1, 1000):
            made = [self.arrive(k, marked=k == slot) for k in range(4)]
            if any(made):
                return n
        raise AssertionError("never found crowded")

    def hold_ns(self, slot: int) -> int:
        return self.paths[slot].read()["crowded_ns"] - self.now


def test_path_that_alone_is_marked_becomes_slow(core: ctypes.CDLL) -> None:
    marks = Marks(core)
    assert marks.crowd(2) < 2 * MARK_PARTS
    assert marks.slow == 0b0100
    assert marks.model.planes[0].slow == {2}


@pytest.mark.parametrize("every", [1, 2, 5])
def test_paths_that_are_all_marked_alike_are_not_slow(core: ctypes.CDLL, every: int) -> None:
    marks = Marks(core)
    for n in range(2000):
        for slot in range(4):
            assert not marks.arrive(slot, marked=(n + slot) % every == 0)
    assert marks.slow == 0


def test_half_of_a_planes_paths_are_never_crowded(core: ctypes.CDLL) -> None:
    marks = Marks(core)
    marks.crowd(0)
    marks.crowd(1)
    for _ in range(10 * MARK_PARTS):
        assert not any(marks.arrive(k, marked=k == 2) for k in range(4))
    assert marks.slow == 0b0011
    assert marks.model.planes[0].slow == {0, 1}


@pytest.mark.parametrize("how", ["probe", "needless"])
def test_crowded_path_that_was_withdrawn_is_still_crowded(core: ctypes.CDLL, how: str) -> None:
    marks = Marks(core)
    marks.crowd(3)
    host, path = Memory("mrc_host", hold_base_ns=0, hold_max_ns=0), marks.paths[3]
    core.host_lost(marks.tx.at, path.at, 3, marks.now, host.at, 0)
    assert marks.slow == 0
    if how == "probe":
        core.host_answered(marks.tx.at, path.at, 3, marks.now, 0)
    else:
        core.host_cleared(marks.tx.at, path.at, 3, marks.now)
    assert core.host_state(marks.tx.at, 3) == State.GOOD
    assert marks.slow == 0b1000
    core.host_lost(marks.tx.at, path.at, 3, marks.now, host.at, 0)
    marks.now += marks.hold_ns(3)
    core.host_answered(marks.tx.at, path.at, 3, marks.now, 0)
    assert marks.slow == 0  # the slow period has ended


def test_crowded_path_is_left_alone_longer_each_time(core: ctypes.CDLL) -> None:
    marks = Marks(core)
    for times in [*range(CROWDS_MAX + 1), CROWDS_MAX]:
        marks.crowd(1)
        least = CROWD_HOLD_NS << times
        assert least <= marks.hold_ns(1) < 2 * least
        marks.now += marks.hold_ns(1) - 1
        for _ in range(50):
            assert not marks.arrive(1, marked=True)  # the slow period has not ended
        marks.now += 2
        marks.tx.change(slow=(0,) * ABI.MRC_SET_WORDS)  # as an unmarked packet does
        for _ in range(200):
            for slot in range(4):
                marks.arrive(slot, marked=False)
    marks.now += 11 * SECOND
    marks.crowd(1)
    assert CROWD_HOLD_NS <= marks.hold_ns(1) < 2 * CROWD_HOLD_NS


def test_how_long_a_crowded_path_is_left_alone_is_random(core: ctypes.CDLL) -> None:
    seen = set()
    for number in range(20):
        marks = Marks(core)
        marks.tx.change(round=number << 16)
        marks.crowd(0)
        seen.add(marks.hold_ns(0))
    assert len(seen) == 20


class Life:
    """A path that dies and recovers, in a plane with other paths."""

    BASE_NS = 4_000_000

    def __init__(self, core: ctypes.CDLL) -> None:
        self.core = core
        _model, self.tx = fresh(1, 4, 4)
        self.path = Memory("mrc_path")
        self.host = Memory("mrc_host", hold_base_ns=self.BASE_NS, hold_max_ns=SECOND)
        self.now = 100 * SECOND

    def lose(self) -> int:
        """Lose a packet; return for how many ns the path is then not probed."""
        self.core.host_lost(self.tx.at, self.path.at, 0, self.now, self.host.at, 0)
        assert self.core.host_state(self.tx.at, 0) == State.ASSUMED_BAD
        return max(0, self.path.read()["hold_ns"] - self.now)

    def answer(self) -> None:
        """Answer probes until the path is in use."""
        self.now = max(self.now, self.path.read()["hold_ns"])
        while self.core.host_state(self.tx.at, 0) != State.GOOD:
            self.core.host_answered(self.tx.at, self.path.at, 0, self.now, 0)

    def die(self) -> int:
        """Be dead for 100 ms; return how long the path was not probed."""
        held = self.lose()
        for _ in range(3):
            self.core.host_silent(self.tx.at, self.path.at, 0, self.now, self.host.at)
        self.now += SECOND // 10
        self.answer()
        return held


@pytest.mark.parametrize("every_ns", [SECOND, 9 * SECOND])
def test_single_losses_do_not_keep_the_memory_of_deaths_alive(
    core: ctypes.CDLL, every_ns: int
) -> None:
    life = Life(core)
    held = [life.die() for _ in range(5)]
    assert held == [0, *(life.BASE_NS << n for n in range(1, 5))]
    died = life.now
    while life.now - died <= 10 * SECOND:
        assert life.lose() == life.BASE_NS << 5
        life.answer()
        life.now += every_ns
    assert life.lose() == 0


def test_path_that_loses_more_after_a_long_peace_is_a_beginner(core: ctypes.CDLL) -> None:
    life = Life(core)
    for _ in range(5):
        life.die()
    life.now += 11 * SECOND
    life.path.change(loss_ppm=100_000)  # the other paths lose less
    assert life.lose() == life.BASE_NS << 1


def test_path_that_goes_on_dying_is_left_alone_longer_each_time(core: ctypes.CDLL) -> None:
    life = Life(core)
    for times in range(12):
        assert life.die() == (min(life.BASE_NS << times, SECOND) if times else 0)
        life.now += 9 * SECOND  # the path delivers in the meantime
    life.now += 2 * SECOND
    assert life.die() == 0
