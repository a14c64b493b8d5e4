# SPDX-License-Identifier: GPL-2.0-only
"""Test which faults are named and cleared."""

from __future__ import annotations

from mrcd.fabric.loops import Element
from mrcd.survey.inference import Fault
from mrcd.survey.named import CERTAIN, CLEARED_AFTER, NAMED_AFTER, FaultList

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
