# SPDX-License-Identifier: GPL-2.0-only
"""Test what is concluded of planes from round trips and from what NICs send and receive."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.measure.estimate import (
    AGAIN_S,
    FRESH_NS,
    LASTS_S,
    SPAN,
    Arrivals,
    Estimates,
    Second,
    carried_mbps,
    waits,
)

SAYS = 10_000
B, C, NONE = frozenset({"b"}), frozenset({"c"}), frozenset[str]()
FULL = Second(SAYS, 95.0, 0.3, B, B)
CAME = Arrivals(SAYS, 95.0, 99.0, 0.3)


class Host:
    """Estimates of a host, and its clock."""

    def __init__(self) -> None:
        self.estimates = Estimates()
        self.now = 100.0

    def see(self, *seconds: Second, plane: int = 0) -> list[str]:
        """Look once for each second; return whom the last look asks about the plane."""
        asked: list[str] = []
        for second in seconds:
            self.now += 1
            asked = self.estimates.look(plane, second, self.now)
        return asked

    def answer(self, arrived: Arrivals = CAME, peer: str = "b", plane: int = 0) -> None:
        self.estimates.answered(peer, plane, arrived, self.now)

    @property
    def mbps(self) -> dict[str, float]:
        return {peer: found.mbps for (peer, _plane), found in self.estimates.found.items()}


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def cut(host: Host) -> Host:
    """Return a host that knows that plane 0 carries 95 Mb/s."""
    assert host.see(*[FULL] * SPAN) == ["b"]
    host.answer()
    return host


class TestEstimates:
    def test_a_full_plane_between_idle_hosts_is_what_limits_the_rate(self, cut: Host) -> None:
        assert cut.mbps == {"b": 95.0}
        assert cut.estimates.rates == {0: 95.0}

    def test_nobody_is_asked_before_packets_have_waited_for_some_time(self, host: Host) -> None:
        assert host.see(*[FULL] * (SPAN - 1)) == []

    @pytest.mark.parametrize(
        "other",
        [
            replace(FULL, full=NONE),
            replace(FULL, full=C),
            replace(FULL, busy=0.9),
            replace(FULL, mbps=0.5),
            replace(FULL, mbps=130.0),
            replace(FULL, mbps=9_000.0),
            replace(FULL, says=0),
            replace(FULL, says=100),
        ],
        ids=["not full", "another's", "busy", "idle", "unsteady", "NIC full", "unknown", "as said"],
    )
    @pytest.mark.parametrize("at", range(SPAN))
    def test_one_second_without_the_evidence_is_enough_not_to_ask(
        self, host: Host, other: Second, at: int
    ) -> None:
        seconds = [FULL] * SPAN
        seconds[at] = other
        assert host.see(*seconds) == []
        host.answer()
        assert host.mbps == {}

    @pytest.mark.parametrize(
        "arrived",
        [
            replace(CAME, mbps=9_900.0, peak=9_900.0),
            replace(CAME, peak=9_900.0),
            replace(CAME, peak=160.0),
            replace(CAME, mbps=95.0, says=100),
            replace(CAME, busy=0.95),
            replace(CAME, mbps=300.0, peak=300.0),
            replace(CAME, mbps=40.0),
        ],
        ids=[
            "its NIC is full",
            "full in bursts",
            "bursts",
            "its NIC is slower",
            "busy",
            "from others",
            "to others",
        ],
    )
    def test_what_the_peer_says_may_explain_the_rate(self, host: Host, arrived: Arrivals) -> None:
        assert host.see(*[FULL] * SPAN) == ["b"]
        host.answer(arrived)
        assert host.mbps == {}
        assert host.estimates.rates == {}

    def test_a_peer_whose_nic_says_nothing_may_confirm(self, host: Host) -> None:
        host.see(*[FULL] * SPAN)
        host.answer(replace(CAME, says=0))
        assert host.mbps == {"b": 95.0}

    def test_planes_take_turns_at_having_a_queue(self, host: Host) -> None:
        idle = replace(FULL, queued=NONE)
        assert host.see(idle, FULL, idle) == ["b"]
        host.now += AGAIN_S
        assert host.see(*[idle] * SPAN) == []

    def test_the_best_second_counts(self, host: Host) -> None:
        host.see(replace(FULL, mbps=80.0), FULL, replace(FULL, mbps=90.0))
        host.answer()
        assert host.mbps == {"b": 95.0}

    def test_an_answer_that_nobody_asked_for_is_nothing(self, host: Host) -> None:
        host.answer()
        assert host.mbps == {}

    def test_peers_are_asked_again_now_and_then(self, cut: Host) -> None:
        assert all(cut.see(FULL) == [] for _ in range(int(AGAIN_S) - 1))
        assert cut.see(FULL) == ["b"]

    def test_more_than_the_estimate_raises_the_rate_at_once(self, cut: Host) -> None:
        cut.see(replace(FULL, mbps=200.0))
        assert (cut.estimates.rates, cut.mbps) == ({0: 200.0}, {"b": 200.0})
        cut.see(replace(FULL, mbps=0.85 * SAYS))
        assert (cut.estimates.rates, cut.mbps) == ({}, {})

    def test_what_gets_through_to_a_peer_is_raised_by_its_answer(self, cut: Host) -> None:
        """Another peer's rate is the plane's now, so what this host sends says nothing of it."""
        cut.see(*[replace(FULL, mbps=60.0, full=C, queued=C)] * SPAN)
        cut.answer(replace(CAME, mbps=60.0, peak=60.0), peer="c")
        assert cut.mbps == {"b": 95.0, "c": 60.0}
        cut.now += AGAIN_S
        assert cut.see(replace(FULL, mbps=200.0, full=NONE)) == ["b"]
        cut.answer(replace(CAME, mbps=198.0, peak=198.0))
        assert cut.mbps == {"b": 198.0, "c": 200.0}
        cut.now += AGAIN_S
        assert cut.see(replace(FULL, mbps=9_000.0, full=NONE)) == ["b"]
        cut.answer(replace(CAME, mbps=8_900.0, peak=8_900.0))
        assert cut.mbps == {}

    def test_planes_are_judged_alone(self, cut: Host) -> None:
        cut.see(*[replace(FULL, mbps=500.0)] * SPAN, plane=1)
        cut.answer(replace(CAME, mbps=500.0, peak=500.0), plane=1)
        assert cut.estimates.rates == {0: 95.0, 1: 500.0}

    def test_an_estimate_ends_with_its_peer_and_with_time(self, cut: Host) -> None:
        cut.estimates.keep({"b"}, cut.now + LASTS_S - 1)
        assert cut.mbps == {"b": 95.0}
        cut.estimates.keep({"b"}, cut.now + LASTS_S)
        assert (cut.mbps, cut.estimates.rates) == ({}, {})
        cut.now += 2 * AGAIN_S
        cut.see(*[FULL] * SPAN)
        cut.answer()
        cut.estimates.keep({"c"}, cut.now)
        assert (cut.mbps, cut.estimates.rates) == ({}, {})

    @given(
        st.lists(
            st.tuples(st.floats(0, 20_000), st.floats(0, 1), st.booleans(), st.floats(0, 20_000)),
            max_size=30,
        )
    )
    def test_no_estimate_exceeds_what_is_said(
        self, seen: list[tuple[float, float, bool, float]]
    ) -> None:
        host = Host()
        for sent, busy, queued, came in seen:
            peers = B if queued else NONE
            host.see(Second(SAYS, sent, busy, peers, peers))
            host.answer(Arrivals(SAYS, came, came, busy))
            for mbps in (*host.mbps.values(), *host.estimates.rates.values()):
                assert 1.0 <= mbps < 0.8 * SAYS


@pytest.mark.parametrize(
    ("srtt_ns", "idle_ns", "age_ns", "expected"),
    [
        (600_000, 200_000, 0, True),
        (450_000, 200_000, 0, False),
        (600_000, 200_000, FRESH_NS, False),
        (0, 200_000, 0, False),
        (600_000, 0, 0, False),
        (7_000_000, 5_000_000, 0, False),
        (8_000_000, 5_000_000, 0, True),
    ],
    ids=["a queue", "a busy CPU", "old", "unknown", "idle unknown", "far", "far, and a queue"],
)
def test_packets_wait_where_round_trips_are_far_longer_than_a_probes(
    srtt_ns: int, idle_ns: int, age_ns: int, expected: bool
) -> None:
    now_ns = 10**12
    assert waits(srtt_ns, now_ns - age_ns, idle_ns, now_ns) is expected


@pytest.mark.parametrize(
    ("rates", "says", "expected"),
    [
        ({}, [10_000, 10_000], None),
        ({0: 100.0}, [10_000, 10_000], (100, 10_000)),
        ({0: 100.0, 1: 95.4}, [10_000, 10_000], (100, 95)),
        ({0: 20_000.0}, [10_000, 10_000], (10_000, 10_000)),
        ({0: 100.0}, [10_000, 0], (100, 0)),
        ({0: 100.0}, [0, 10_000], None),
        ({0: 5_000.0}, [10_000, 1_000], (5_000, 1_000)),
        ({0: 0.1}, [10], (1,)),
        ({3: 100.0}, [10_000, 10_000], None),
        ({}, [], None),
    ],
)
def test_what_each_plane_carries(
    rates: dict[int, float], says: list[int], expected: tuple[int, ...] | None
) -> None:
    assert carried_mbps(rates, says) == expected
