# SPDX-License-Identifier: GPL-2.0-only
"""Test when Hellos are sent on which lines."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from mrcd.handshake.unicast import NO_COOKIE
from mrcd.peers.lines import (
    BURST,
    CALM_NS,
    EAGER,
    EAGER_NS,
    GAP_NS,
    LOST_NS,
    MS,
    PATIENT_NS,
    RATE,
    RETRY_NS,
    SECOND,
    SEED_NS,
    Line,
    Lines,
)

SEED, OTHER = "10.0.0.1", "10.0.0.2"


def times(lines: Lines, line: Line, until_ns: int, start_ns: int = 0) -> list[int]:
    """Return when Hellos leave on a line, looked at every 10 ms."""
    return [now for now in range(start_ns, until_ns, 10 * MS) if line in lines.due(now)]


def gaps(found: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(found)]


def test_seed_that_does_not_answer_is_asked_often_at_first_then_each_second() -> None:
    lines = Lines()
    lines.aim({SEED: SEED}, [0], [SEED], 0)
    found = times(lines, (0, SEED), 20 * SECOND)
    assert found[0] == 0
    assert gaps(found)[: EAGER - 1] == [EAGER_NS] * (EAGER - 1)
    assert {*gaps(found)[EAGER - 1 :]} == {RETRY_NS}
    later = times(lines, (0, SEED), PATIENT_NS + 20 * SECOND, PATIENT_NS + 5 * SECOND)
    assert {*gaps(later)} == {SEED_NS}


def test_lines_that_are_heard_are_slow_and_those_of_seeds_less_so() -> None:
    lines = Lines()
    lines.aim({SEED: "a", OTHER: "b"}, [0], [SEED], 0)
    for now in range(0, 60 * SECOND, SECOND):
        lines.heard((0, SEED), "a", now)
        lines.heard((0, OTHER), "b", now)
        lines.due(now)
    seed = times(lines, (0, SEED), 90 * SECOND, 60 * SECOND)
    assert {*gaps(seed[:5])} == {SEED_NS}
    lines.heard((0, OTHER), "b", 90 * SECOND)
    assert {*gaps(times(lines, (0, OTHER), 101 * SECOND, 90 * SECOND))} == {CALM_NS}


def test_line_that_is_not_heard_is_slow_if_its_host_is_heard_on_another() -> None:
    lines = Lines()
    lines.aim({OTHER: "b", "10.1.0.2": "b"}, [0, 1], [], 0)
    found = []
    for now in range(0, 30 * SECOND, 10 * MS):
        lines.heard((0, OTHER), "b", now)
        found += [now] * ((1, OTHER) in lines.due(now))
    assert gaps(found)[: EAGER - 1] == [EAGER_NS] * (EAGER - 1)
    assert {*gaps(found)[EAGER:]} == {CALM_NS}


def test_host_that_falls_silent_is_asked_again() -> None:
    lines = Lines()
    lines.aim({OTHER: "b"}, [0], [], 0)
    lines.heard((0, OTHER), "b", 0)
    assert lines.is_heard((0, OTHER), LOST_NS - 1)
    assert not lines.is_heard((0, OTHER), LOST_NS)
    found = times(lines, (0, OTHER), 40 * SECOND)
    assert EAGER_NS in gaps(found)
    assert gaps(found)[-1] == RETRY_NS


def test_who_waits_gets_a_hello_soon_but_not_at_any_rate() -> None:
    lines = Lines()
    line = 0, OTHER
    lines.aim({OTHER: "b"}, [0], [], 0)
    assert lines.due(0) == [line]
    for now in range(0, SECOND, MS):
        lines.hurry(line, now)
    assert lines.next_ns(0) == GAP_NS
    found = []
    for now in range(0, SECOND, MS):
        lines.hurry(line, now)
        found += [now] * (line in lines.due(now))
    assert min(gaps(found)) >= GAP_NS


def test_rate_has_a_bound_and_no_line_starves() -> None:
    lines = Lines()
    owners = {f"10.0.{k // 256}.{k % 256}": f"h{k}" for k in range(1000)}
    lines.aim(owners, [0, 1], [], 0)
    sent: Counter[Line] = Counter()
    for now in range(0, 30 * SECOND, 20 * MS):
        sent.update(lines.due(now))
    assert sum(sent.values()) <= BURST + 30 * RATE
    assert sum(sent.values()) >= 29 * RATE
    assert len(sent) == 2000


def test_aim_keeps_what_is_known_of_lines_that_stay() -> None:
    lines = Lines()
    lines.aim({SEED: SEED, OTHER: "b"}, [0, 1], [SEED], 0)
    assert lines.give((0, SEED), b"12345678")
    assert not lines.give((0, SEED), b"12345678")
    lines.aim({SEED: "a"}, [0], [SEED], SECOND)
    assert lines.all == [(0, SEED)]
    assert lines.given((0, SEED)) == b"12345678"
    assert lines.given((1, SEED)) == NO_COOKIE
    assert not lines.give((1, SEED), b"12345678")
    lines.aim({OTHER: "b"}, [0], [], SECOND)
    assert lines.all == [(0, OTHER)]
