# SPDX-License-Identifier: GPL-2.0-only
"""Test the compact history of loops against a plain list of all reported counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.fabric.loops import loops_of
from mrcd.survey.history import _STEP_MAX, BLOCK, MEMORY, RECENT, SINGLE, History, Tally
from tests.unit.fault_double import fabric_of

FABRIC = fabric_of(2, 2, 2, 1)
LOOPS = {host.name: loops_of(FABRIC, host) for host in FABRIC.hosts}
NEVER = math.inf


def empty() -> History:
    history = History()
    for host, loops in LOOPS.items():
        history.know(host, loops)
    return history


def sums(history: History, newest: int, intervals: int) -> dict[tuple[str, int], tuple[float, ...]]:
    """Return (sent, lost, least round trip) of every active loop, by host and number."""
    found = {}
    for plane, hosts in history.total(newest, intervals).items():
        for host, tally in hosts.items():
            loops = history.loops((host, plane))
            for at, loop in enumerate(loops):
                counts = (tally.sent[at], tally.lost[at], tally.rtt_us[at])
                if counts != (0, 0, NEVER):
                    found[host, LOOPS[host].index(loop)] = counts
    return found


TOLD = st.tuples(
    st.integers(0, 400),  # interval
    st.sampled_from(sorted(LOOPS)),
    st.integers(0, len(LOOPS["h1"]) - 1),
    st.integers(1, 50),  # sent
    st.integers(0, 3),  # lost
    st.integers(1, 1000) | st.none(),
)


@given(st.lists(TOLD, max_size=60), st.integers(1, RECENT * SINGLE))
def test_sums_are_those_of_all_that_was_told(
    told: list[tuple[int, str, int, int, int, int | None]], intervals: int
) -> None:
    history = empty()
    newest = 0
    for newest, host, index, sent, lost, rtt_us in sorted(told, key=lambda each: each[0]):
        history.age(newest)
        history.add(newest, host, index, sent, min(sent, lost), rtt_us)
    history.age(newest)
    block = RECENT * BLOCK

    def expected(since: int) -> dict[tuple[str, int], tuple[float, ...]]:
        found: dict[tuple[str, int], tuple[float, ...]] = {}
        for number, host, index, sent, lost, rtt_us in told:
            if number > since:
                all_sent, all_lost, least = found.get((host, index), (0, 0, NEVER))
                found[host, index] = (
                    all_sent + sent,
                    all_lost + min(sent, lost),
                    min(least, rtt_us or NEVER),
                )
        return found

    assert sums(history, newest, intervals) == expected(newest - intervals)
    # A sum over the whole memory may reach further back, to the start of a block.
    last = newest - RECENT * MEMORY
    assert sums(history, newest, RECENT * MEMORY) in [
        expected(last - more) for more in range(block)
    ]
    assert len(history) <= RECENT * SINGLE + block + RECENT * MEMORY // block
    for number in range(newest - RECENT * SINGLE + 1, newest + 1):
        wanted = any(told_in >= number and lost for told_in, *_, lost, _rtt in told)
        assert history.lost_since(number) == wanted


def test_add__what_came_back_late_is_taken_from_the_latest_losses() -> None:
    history = empty()
    for number in (5, 6, 7, 8):
        history.add(number, "h1", 3, 10, 2, None)
    history.add(8, "h1", 3, 10, -3, None)
    assert sums(history, 8, 1)["h1", 3] == (20, 0, NEVER)
    assert sums(history, 7, 1)["h1", 3] == (10, 1, NEVER)
    history.add(8, "h1", 3, 0, -50, None)  # takes back losses of three intervals, not of all
    assert sums(history, 8, 4)["h1", 3] == (50, 2, NEVER)


@pytest.mark.parametrize(("sent", "lost"), [(1 << 62, 1 << 62), (1 << 63, 0), (5, 1 << 63)])
def test_add__numbers_of_a_mad_peer_break_no_sum(sent: int, lost: int) -> None:
    history = empty()
    for _ in range(100):
        history.add(1, "h2", 0, sent, lost, 4e9)
    ((all_sent, all_lost, _rtt),) = sums(history, 1, 1).values()
    assert all_sent == 100 * min(sent, _STEP_MAX)
    assert all_lost == 100 * min(lost, sent, _STEP_MAX)


def test_total__takes_nothing_from_those_it_adds_up() -> None:
    one, two = Tally.empty(2), Tally.empty(2)
    one.sent[0], two.sent[0], two.lost[1], two.rtt_us[1] = 3, 4, 5, 60.0
    for tallies, sent in (([one, two], 7), ([one], 3)):
        both = Tally.total(tallies)
        assert both.sent[0] == sent
        both.sent[0] = both.lost[1] = 99
        both.forget_round_trips()
    assert (one.sent[0], one.lost[1], two.lost[1], two.rtt_us[1]) == (3, 0, 5, 60.0)
