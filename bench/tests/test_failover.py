# SPDX-License-Identifier: GPL-2.0-only
"""Tests of fail-over times from a recorded sample of events, and from packet headers."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from bench.faults import failover
from bench.faults.failover import Death, Left
from bench.instruments import capture
from bench.instruments.capture import Packets
from bench.instruments.path_events import parse
from mrcd.model import PathEvent as Event

MS = 1_000_000
SAMPLE = [
    {"time_ns": 105 * MS, "peer": "h2", "qp": 0, "ev": 0x10010000, "plane": 1, "t1": 1,
     "from_state": "GOOD", "to_state": "ASSUMED_BAD", "cause": "loss", "sent_ns": 101 * MS,
     "rtt_ns": 2 * MS, "missed": 0},
    {"time_ns": 106 * MS, "peer": "h2", "qp": 0, "ev": 0x10010000, "plane": 1, "t1": 1,
     "from_state": "GOOD", "to_state": "ASSUMED_BAD", "cause": "loss", "sent_ns": 102 * MS,
     "rtt_ns": 2 * MS, "missed": 0},
    {"time_ns": 104 * MS, "peer": "h2", "qp": 1, "ev": 0x10010000, "plane": 1, "t1": 1,
     "from_state": "SKIP", "to_state": "ASSUMED_BAD", "cause": "loss", "sent_ns": 101 * MS,
     "rtt_ns": None, "missed": 0},
    {"time_ns": 107 * MS, "peer": "h2", "qp": 0, "ev": 0x20010000, "plane": 2, "t1": 1,
     "from_state": "GOOD", "to_state": "ASSUMED_BAD", "cause": "loss", "sent_ns": 101 * MS,
     "rtt_ns": 2 * MS, "missed": 0},
    {"time_ns": 150 * MS, "peer": "h2", "qp": 0, "ev": 0x10010000, "plane": 1, "t1": 1,
     "from_state": "ASSUMED_BAD", "to_state": "GOOD", "cause": "probe", "sent_ns": None,
     "rtt_ns": 2 * MS, "missed": 0},
]  # fmt: skip
DEATH = Death("p1t1-1", dead_ns=100 * MS, cleared_ns=140 * MS)


def test_events_are_read_as_mrcctl_prints_them() -> None:
    events = parse(json.dumps(line) + "\n" for line in SAMPLE)
    assert [event.took_ns for event in events[:2]] == [4 * MS, 4 * MS]
    assert [event.withdrawal for event in events] == [True, True, True, True, False]
    assert set(SAMPLE[0]) == set(Event.__dataclass_fields__)


def test_first_withdrawal_of_each_path_that_the_death_covers() -> None:
    events = parse(json.dumps(line) for line in SAMPLE)
    found = failover.withdrawals(events, [DEATH])
    took = {place: event.took_ns for place, event in found.items()}
    assert took == {(0, 0, 0x10010000): 4 * MS, (0, 1, 0x10010000): 3 * MS}


@pytest.mark.parametrize(
    ("element", "covered"),
    [
        ("p1", [(1, 1), (1, 2)]),
        ("p1t1-2", [(1, 2)]),
        ("p1t0-1:p1t1-1", [(1, 1)]),
        ("p0", []),
    ],
)
def test_death_covers(element: str, covered: list[tuple[int, int]]) -> None:
    death = Death(element, 0, 1)
    assert [path for path in ((1, 1), (1, 2), (2, 1)) if death.covers(*path)] == covered


def packets(*rows: tuple[int, int, int, bool]) -> Packets:
    """Return data packets sent by QP 7 from rows of time in ms, EV, PSN and rtx."""
    columns = list(zip(*rows, strict=True))
    count = len(rows)
    return Packets(
        time_ns=np.array(columns[0], dtype=np.int64) * MS,
        ifindex=np.ones(count, dtype=np.int64),
        outgoing=np.ones(count, dtype=np.bool_),
        opcode=np.full(count, capture.DATA, dtype=np.int64),
        ev=np.array(columns[1], dtype=np.int64),
        qpn=np.full(count, 7, dtype=np.int64),
        psn=np.array(columns[2], dtype=np.int64),
        rtx=np.array(columns[3], dtype=np.bool_),
        answers=np.full(count, -1, dtype=np.int64),
        lost=0,
    )


def test_round_trips_of_what_was_answered() -> None:
    data = packets((10, 1, 5, False), (11, 1, 6, False), (14, 1, 6, True), (20, 1, 7, False))
    sacks = replace(
        packets((13, 1, 0, False), (15, 1, 0, False), (16, 1, 0, False)),
        outgoing=np.zeros(3, dtype=np.bool_),
        opcode=np.full(3, capture.SACK),
        qpn=np.full(3, 9),
        answers=np.array([5, 6, -1]),
    )
    both = Packets(
        **{
            field.name: np.concatenate((getattr(data, field.name), getattr(sacks, field.name)))
            for field in fields(Packets)
            if field.name != "lost"
        },
        lost=0,
    )
    assert failover.round_trips(both, {7: 9, 8: 10}) == [3 * MS, MS]  # of the last sending
    assert failover.round_trips(both, {7: 10}) == []


def test_first_lost_packet_of_a_path_and_its_repetition() -> None:
    dead, alive = 0x10010000, 0x20010000
    seen = packets(
        (99, dead, 1, False),  # before the death
        (101, dead, 2, False),  # in time to arrive: never sent again
        (102, dead, 3, False),  # the first that is lost
        (103, alive, 4, False),
        (104, dead, 5, False),
        (106, alive, 3, True),
        (107, alive, 5, True),
        (108, alive, 3, True),
        (150, dead, 9, False),  # after the repair
    )
    found = failover.paths_left(seen, DEATH, {dead: 2 * MS})
    assert found == [Left(ev=dead, qpn=7, again_ns=4 * MS, last_ns=2 * MS, rtt_ns=2 * MS)]


def test_path_that_lost_nothing_is_no_sample() -> None:
    seen = packets((101, 0x10010000, 2, False), (102, 0x20010000, 3, False))
    assert failover.paths_left(seen, DEATH, {}) == []


def test_elements_that_die_differ() -> None:
    shape = failover.SHAPE
    found = list(failover.elements(shape, 48))
    assert len(set(found)) > 30
    assert {len(element) for element in found} == {2, 6, 13}
