# SPDX-License-Identifier: GPL-2.0-only
"""Test the rate limit of answers to strangers."""

from __future__ import annotations

from mrcd.handshake.ratelimit import BURST, GAP_NS, Allowance, Answers


def test_take__once_for_all_copies_of_an_offer() -> None:
    answers = Answers()
    assert [answers.take(7, 1, now_ns=0) for _ in range(3)] == [True, False, False]
    assert answers.take(7, 2, now_ns=0)
    assert answers.take(8, 1, now_ns=0)


def test_take__a_burst_then_one_in_each_gap() -> None:
    answers, hour_ns = Answers(), 3600 * 1_000_000_000
    assert sum(answers.take(sid, 1, now_ns=hour_ns) for sid in range(3 * BURST)) == BURST
    later = range(100 * BURST, 103 * BURST)
    taken = [sid for sid in later if answers.take(sid, 1, now_ns=hour_ns + 5 * GAP_NS)]
    assert len(taken) == 5
    assert not answers.take(0, 2, now_ns=hour_ns + 5 * GAP_NS)


def test_take__remembers_no_more_strangers_than_a_burst() -> None:
    answers = Answers()
    for sid in range(10 * BURST):
        answers.take(sid, 1, now_ns=sid * GAP_NS)
    assert len(answers._answered) <= BURST


def test_allowance__a_burst_after_a_rest_then_one_in_each_gap() -> None:
    allowance = Allowance(10, 4)
    assert [allowance.take(0) for _ in range(5)] == [True] * 4 + [False]
    assert [allowance.take(now) for now in (9, 10, 11, 20)] == [False, True, False, True]
    assert sum(allowance.take(1_000_000) for _ in range(9)) == 4
