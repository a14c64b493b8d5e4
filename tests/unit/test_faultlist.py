# SPDX-License-Identifier: GPL-2.0-only
"""Which faults are named and cleared, and what a lossy NIC link of ours leads to."""

from __future__ import annotations

from mrcd.evidence import Total
from mrcd.faultlist import CERTAIN, CLEARED_AFTER, NAMED_AFTER, FaultList
from mrcd.faultmap import Fault
from mrcd.loops import Element
from mrcd.survey import NIC_CLEAN_S, NIC_LIVE_INTERVALS, NicHealth

S = 1_000_000_000


def fault(name: str, *, certainty: float = 50.0, loss: float = 0.04) -> Fault:
    element = Element(name, "nic", 0)
    kind = "dead" if loss == 1 else "loss"
    return Fault(element, kind, loss, loss * 0.7, loss * 1.3, 0.0, certainty, (), ())


def names(faults: FaultList) -> list[str]:
    return [named.fault.element.name for named in faults.named]


def test_named_after_so_many_judgements_in_a_row() -> None:
    faults = FaultList()
    for i in range(NAMED_AFTER - 1):
        assert faults.update([fault("a")], now_ns=i).named == ()
    changes = faults.update([fault("a")], now_ns=99)
    assert [f.element.name for f in changes.named] == ["a"]
    assert names(faults) == ["a"]
    assert faults.named[0].since_ns == 0
    assert faults.update([fault("a")], now_ns=100).named == ()


def test_an_interruption_begins_the_count_anew() -> None:
    faults = FaultList()
    for _ in range(3):
        for _ in range(NAMED_AFTER - 1):
            faults.update([fault("a")], now_ns=0)
        faults.update([], now_ns=0)
    assert names(faults) == []


def test_doubt_names_nothing_but_clears_nothing_either() -> None:
    faults = FaultList()
    doubtful = fault("a", certainty=CERTAIN - 0.1)
    for _ in range(3 * NAMED_AFTER):
        faults.update([doubtful], now_ns=0)
    assert names(faults) == []
    for _ in range(NAMED_AFTER):
        faults.update([fault("a")], now_ns=0)
    for _ in range(3 * CLEARED_AFTER):
        faults.update([doubtful], now_ns=0)
    assert names(faults) == ["a"]


def test_cleared_after_so_many_misses() -> None:
    faults = FaultList()
    for _ in range(NAMED_AFTER):
        faults.update([fault("a"), fault("b")], now_ns=0)
    for _ in range(CLEARED_AFTER - 1):
        assert faults.update([fault("b")], now_ns=0).cleared == ()
    assert names(faults) == ["a", "b"]
    cleared = faults.update([fault("b")], now_ns=0).cleared
    assert [f.element.name for f in cleared] == ["a"]
    assert names(faults) == ["b"]


def test_shows_the_latest_figures() -> None:
    faults = FaultList()
    for _ in range(NAMED_AFTER):
        faults.update([fault("a", loss=0.04)], now_ns=0)
    faults.update([fault("a", loss=0.08)], now_ns=0)
    assert faults.named[0].fault.loss == 0.08


class Heard:
    """Collects what NicHealth says."""

    def __init__(self, planes: int = 3) -> None:
        self.said: list[tuple[int, bool]] = []
        self.reasons: list[str] = []
        self.nics = NicHealth("h1", planes, self._hear)
        self._near = [(0, 0)] * planes
        for plane in range(planes):
            self.near(plane, *[4] * (NIC_LIVE_INTERVALS + 1))

    def near(self, plane: int, *returned: int) -> None:
        """Intervals in which so many of five probes came back."""
        for each in returned:
            sent, before = self._near[plane]
            self._near[plane] = (sent + 5, before + each)
            self.nics.near(plane, Total(sent + 5, before + each, 0))

    def _hear(self, plane: int, healthy: bool, reason: str) -> None:
        self.said.append((plane, healthy))
        self.reasons.append(reason)

    def at(self, second: float, *faults: Fault) -> list[tuple[int, bool]]:
        self.said.clear()
        self.nics.update(list(faults), now_ns=int(second * S))
        return list(self.said)


def test_our_lossy_nic_link_is_reported_once_and_again_when_clean_for_long_enough() -> None:
    heard, lossy = Heard(), fault("h1:p1")
    assert heard.at(100, lossy) == [(1, False)]
    assert "h1:p1 loses 4.0%" in heard.reasons[0]
    assert heard.at(101, lossy) == []
    assert heard.at(102) == []
    assert heard.at(101 + NIC_CLEAN_S) == []
    assert heard.at(101.1 + NIC_CLEAN_S) == [(1, True)]


def test_a_relapse_takes_twice_as_long() -> None:
    heard, lossy = Heard(), fault("h1:p1")
    heard.at(100, lossy)
    assert heard.at(106) == [(1, True)]
    assert heard.at(107, lossy) == [(1, False)]
    assert heard.at(108 + NIC_CLEAN_S) == []
    assert heard.at(107.1 + 2 * NIC_CLEAN_S) == [(1, True)]
    assert heard.at(1000, lossy) == [(1, False)]
    assert heard.at(1000.1 + NIC_CLEAN_S) == [(1, True)]


def test_dead_link_and_one_that_is_back_are_left_to_the_paths() -> None:
    heard, mixed = Heard(), fault("h1:p1", loss=0.4)
    heard.near(1, 0, 0, 2)  # back in the middle of an interval
    assert heard.at(100, fault("h1:p1", loss=1.0)) == []
    for second in range(20):  # the windows still hold what was lost
        heard.near(1, 5)
        assert heard.at(101 + second, mixed) == []
    heard.near(1, 3, 4)
    assert heard.at(130, mixed) == [(1, False)]


def test_others_links_and_small_losses_are_not_our_business() -> None:
    heard = Heard()
    assert heard.at(100, fault("h2:p1"), fault("p0t0-1"), fault("h1:p1", loss=0.01)) == []


def test_the_last_plane_is_never_given_up() -> None:
    heard = Heard(planes=2)
    both = [fault("h1:p0", loss=1.0), fault("h1:p1")]
    assert heard.at(100, *both) == [(0, False)]
    assert heard.at(101, *both) == []
