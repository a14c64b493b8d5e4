# SPDX-License-Identifier: GPL-2.0-only
"""Test how often the survey wakes up, and which loops it probes most."""

from __future__ import annotations

import pytest

from mrcd.fabric.loops import loops_of
from mrcd.survey.evidence import INTERVAL_NS
from mrcd.survey.inference import Fault
from mrcd.survey.survey import PEERS_TOLD_QUIET, UNSURE, interval_of, telling_of, tick_of
from mrcd.wire.abi import ABI
from tests.unit.fault_double import fabric_of

FABRIC = fabric_of(2, 4, 4, 1)
LOOPS = loops_of(FABRIC, FABRIC.hosts[0])
NUMBERS = {loop: index for index, loop in enumerate(LOOPS)}


def fault(*telling: int, certainty: float = UNSURE - 1) -> Fault:
    """Return a fault with these telling loops of ours, and one of another host in second place."""
    loops = [LOOPS[number] for number in telling]
    loops.insert(1, loops_of(FABRIC, FABRIC.hosts[1])[0])
    element = next(iter(loops[0].crossings))
    return Fault(element, "loss", 0.04, 0.02, 0.06, 0.0, certainty, (), (), tuple(loops))


def test_telling_of__each_fault_in_its_turn_and_no_loop_twice() -> None:
    assert telling_of([], NUMBERS) == ()
    assert telling_of([fault(5, 2, 9), fault(3), fault(9, 7)], NUMBERS) == (5, 3, 9, 2, 7)


def test_telling_of__what_is_certain_needs_no_more_probes() -> None:
    faults = [fault(1, 2, certainty=UNSURE), fault(4, certainty=UNSURE - 0.1)]
    assert telling_of(faults, NUMBERS) == (4,)


def test_telling_of__has_room_for_no_more_than_the_kernel() -> None:
    every = range(len(LOOPS))
    assert telling_of([fault(*every)], NUMBERS) == tuple(every)[: ABI.MRC_TELLING_MAX]
    assert len(LOOPS) > ABI.MRC_TELLING_MAX


@pytest.mark.parametrize(
    ("pps", "lossy_s", "quiet_s"),
    [(1, 0.1, 0.25), (200, 0.1, 0.25), (500, 0.04, 0.1), (1000, 0.02, 0.05), (100_000, 0.02, 0.02)],
)
def test_tick_of__is_longer_while_nothing_is_lost(pps: int, lossy_s: float, quiet_s: float) -> None:
    assert tick_of(pps, quiet=False) == lossy_s
    assert tick_of(pps, quiet=True) == quiet_s
    assert quiet_s * 1e9 <= INTERVAL_NS / 2  # the probes have had time to come back


@pytest.mark.parametrize(
    ("peers", "quiet", "seconds"),
    [
        (1, True, 0.5),
        (PEERS_TOLD_QUIET, True, 0.5),
        (PEERS_TOLD_QUIET + 1, True, 1.0),
        (1000, True, 1.0),
        (1000, False, 0.5),
    ],
)
def test_interval_of__is_longer_among_many_while_nothing_is_lost(
    peers: int, quiet: bool, seconds: float
) -> None:
    assert interval_of(peers, quiet=quiet) == seconds
