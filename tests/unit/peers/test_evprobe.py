# SPDX-License-Identifier: GPL-2.0-only
"""Test the accounting of EV probes."""

from __future__ import annotations

from mrcd.peers.evprobe import PathResult, ProbeRound

A, B = 0x1001_0000, 0x1002_0000


def test_results_count_and_measure() -> None:
    found = ProbeRound([A, B])
    for number, rtt in enumerate((50, 10, 40, 20)):
        found.sent(number, A, 1000)
        assert found.answered(number, A, 1000 + rtt)
    found.sent(9, B, 1000)
    assert found.results() == [
        PathResult(A, 4, 4, 10, 30, 50),
        PathResult(B, 1, 0, None, None, None),
    ]
    assert not found.complete


def test_round_is_complete_when_all_are_answered() -> None:
    found = ProbeRound([A])
    assert found.complete
    found.sent(1, A, 0)
    assert not found.complete
    found.answered(1, A, 5)
    assert found.complete


def test_second_answer_counts_for_nothing() -> None:
    found = ProbeRound([A])
    found.sent(1, A, 0)
    assert found.answered(1, A, 5)
    assert not found.answered(1, A, 6)
    assert found.results() == [PathResult(A, 1, 1, 5, 5, 5)]


def test_answer_with_another_ev_or_id_is_none() -> None:
    found = ProbeRound([A, B])
    found.sent(1, A, 0)
    assert not found.answered(1, B, 5)
    assert not found.answered(2, A, 5)
    assert not found.complete


def test_time_never_runs_backwards() -> None:
    found = ProbeRound([A])
    found.sent(1, A, 100)
    found.answered(1, A, 120)
    found.sent(2, A, 100)
    found.answered(2, A, 90)
    assert found.results() == [PathResult(A, 2, 2, 0, 10, 20)]
