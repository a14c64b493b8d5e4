# SPDX-License-Identifier: GPL-2.0-only
"""Test that the turns of many names are punctual, in order and within a budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mrcd.handshake import MS
from mrcd.peers.schedule import BURST, GRAIN_NAMES, GRAIN_NS, PACKETS_PER_S, TURNS, Agenda

SECOND = 1000 * MS


def taken(agenda: Agenda, now_ns: int) -> list[str]:
    return list(agenda.take(now_ns=now_ns))


def test_take__nobody_is_early_and_everybody_has_one_turn() -> None:
    agenda = Agenda(now_ns=0)
    agenda.put("a", 5 * MS, prompt=True)
    agenda.put("b", 3 * MS, prompt=False)
    assert agenda.deadline_ns(now_ns=0) == 3 * MS
    assert taken(agenda, 3 * MS - 1) == []
    assert taken(agenda, 5 * MS) == ["a", "b"]
    assert taken(agenda, 9 * MS) == []
    assert len(agenda) == 0


def test_put__an_earlier_time_counts_at_once_a_later_one_when_the_first_has_come() -> None:
    agenda = Agenda(now_ns=0)
    agenda.put("a", 9 * MS, prompt=True)
    agenda.put("a", 4 * MS, prompt=True)
    assert agenda.deadline_ns(now_ns=0) == 4 * MS
    agenda.put("a", 20 * MS, prompt=True)
    assert taken(agenda, 4 * MS) == ["a"]  # the session checks its deadline and postpones itself
    agenda.put("a", 20 * MS, prompt=True)
    assert taken(agenda, 19 * MS) == []
    assert taken(agenda, 20 * MS) == ["a"]


def test_put__who_becomes_prompt_leaves_the_other_queue() -> None:
    agenda = Agenda(now_ns=0)
    agenda.put("a", 4 * MS, prompt=False)
    agenda.put("a", 6 * MS, prompt=True)
    assert agenda.deadline_ns(now_ns=0) == 6 * MS
    assert taken(agenda, 5 * MS) == []
    assert taken(agenda, 6 * MS) == ["a"]


def test_drop__has_no_turn_any_more() -> None:
    agenda = Agenda(now_ns=0)
    agenda.put("a", 4 * MS, prompt=True)
    agenda.drop("a")
    agenda.drop("nobody")
    assert taken(agenda, 10 * MS) == []


def test_take__a_few_at_a_time_and_the_next_at_once() -> None:
    agenda = Agenda(now_ns=0)
    names = [f"h{i}" for i in range(3 * TURNS)]
    for name in names:
        agenda.put(name, MS, prompt=True)
    served: list[str] = []
    for _ in range(3):
        assert agenda.deadline_ns(now_ns=MS) <= MS
        served += taken(agenda, MS)
    assert sorted(served) == sorted(names)


def test_take__patient_ones_share_a_budget_in_order_of_their_time() -> None:
    agenda, planes, names = Agenda(now_ns=0), 4, [f"h{i:05}" for i in range(10_000)]
    for due, name in enumerate(names):
        agenda.put(name, due, prompt=False)
    now, served, packets = 10_000, list[str](), 0
    while now < 2 * SECOND:
        for name in taken(agenda, now):
            served.append(name)
            packets += planes
            agenda.spend(planes)
        now = max(now + 1, agenda.deadline_ns(now_ns=now))
    assert served == names[: len(served)]
    assert 0.95 * 2 * PACKETS_PER_S <= packets <= 2 * PACKETS_PER_S + BURST + planes * TURNS


def test_take__prompt_ones_never_wait_for_the_budget_of_the_others() -> None:
    agenda = Agenda(now_ns=0)
    for i in range(1000):
        agenda.put(f"h{i}", 0, prompt=False)
    agenda.spend(100 * BURST)
    agenda.put("urgent", MS, prompt=True)
    assert taken(agenda, MS) == ["urgent"]
    assert agenda.deadline_ns(now_ns=MS) > MS


def test_deadline__many_are_served_together() -> None:
    agenda = Agenda(now_ns=0)
    for i in range(GRAIN_NAMES + 1):
        agenda.put(f"h{i}", 10 * SECOND + i, prompt=True)
    agenda.put("next", 5 * MS, prompt=True)
    assert taken(agenda, 5 * MS) == ["next"]
    agenda.put("one more", 6 * MS, prompt=True)
    assert agenda.deadline_ns(now_ns=5 * MS) == 5 * MS + GRAIN_NS


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 50), st.booleans(), st.booleans()),
        max_size=60,
    )
)
def test_agenda__is_a_table_of_times(steps: list[tuple[str, int, bool, bool]]) -> None:
    """Compare with a plain table: exactly the due names get a turn, whatever was put before."""
    agenda, now = Agenda(now_ns=0), 0
    wanted: dict[str, tuple[int, bool]] = {}
    for name, delay, prompt, wait in steps:
        due = now + delay * MS
        if name not in wanted or wanted[name][1] != prompt or due < wanted[name][0]:
            wanted[name] = (due, prompt)
        agenda.put(name, due, prompt=prompt)
        if wait:
            now += delay * MS
            expected = {each for each, (at, _) in wanted.items() if at <= now}
            assert set(taken(agenda, now)) == expected
            for each in expected:
                del wanted[each]
    soonest = min((at for at, _ in wanted.values()), default=None)
    if soonest is not None:
        assert agenda.deadline_ns(now_ns=now) == soonest
