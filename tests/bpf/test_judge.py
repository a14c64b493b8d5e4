# SPDX-License-Identifier: GPL-2.0-only
"""mrc_judge: equal planes have whole shares, and a worse one gives up part of its share."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrcd.wire.abi import ABI
from mrcd.wire.packet import decode_frame
from rigs.packets import ip4
from rigs.rig import PLANES, TC_REDIRECT, Rig, clock_passes

FULL: int = ABI.MRC_SHARE_FULL
_BALANCE = ABI.structs["mrc_balance"]
MIN, REST, STEP, STRIKES, MORE_STRIKES, PACKETS = 4, 16, 1, 4, 2, 12
KNEE_PARTS, LEAD_PARTS, SLACK_PACKETS = 4, 32, 2
ROUND_TRIPS, LATEST_NS = 3, 100_000_000
MS = 1_000_000
LIST = list[int]
TARGET_NS = MS  # of the congestion window


@dataclass
class Seen:
    """The measurements of each plane before a judgement."""

    rtt_ns: LIST = field(default_factory=lambda: [MS] * PLANES)
    acked: LIST = field(default_factory=lambda: [100] * PLANES)
    lost: LIST = field(default_factory=lambda: [0] * PLANES)
    marked: LIST = field(default_factory=lambda: [0] * PLANES)
    age_ns: LIST = field(default_factory=lambda: [0] * PLANES)


@pytest.fixture
def judged(rig: Rig) -> Rig:
    """Return the rig with a QP that the clock watches, judged in every run of the program."""
    rig.tune(judge_ns=0, judge_slack_ns=0)
    rig.spray(ip4(src="10.99.0.1", dst="10.99.0.2"))
    return rig


def whole(values: LIST) -> tuple[int, ...]:
    return (*values, *[0] * (ABI.MRC_MAX_PLANES - len(values)))


def judge(rig: Rig, seen: Seen, times: int = 1, *, due: bool = True) -> LIST:
    """Judge `times` times, each time on the same new measurements; return the last shares.

    With `due`, each judgement takes place regardless of the time that the one before set.
    """
    peer = rig.table.peers.indices["h2"]
    for _ in range(times):
        if due:
            rig.edit("balances", peer, "mrc_balance", judge_at_ns=0)
        rig.edit(
            "balances", peer, "mrc_balance",
            srtt_ns=whole(seen.rtt_ns), fast_ns=whole(seen.rtt_ns), now_ns=whole(seen.rtt_ns),
            rtt_at_ns=whole([time.monotonic_ns() - age for age in seen.age_ns]),
            acked=whole(seen.acked), lost=whole(seen.lost), marked=whole(seen.marked),
        )  # fmt: skip
        assert rig.beat() == TC_REDIRECT
    return shares(rig)


def balance(rig: Rig) -> dict[str, tuple[int, ...]]:
    """Return the balance of the peer's planes, by member."""
    raw = rig.dp.read_raw("balances", rig.table.peers.indices["h2"], _BALANCE.size)
    return {name: _BALANCE.unpack_array(raw, name) for name in ("knee", "strikes")}


def shares(rig: Rig) -> LIST:
    return [round(share * FULL) for share in rig.table.peers.balance("h2").shares]


def grown(share: int, knee: int) -> int:
    """Return a share after a judgement that did not find its plane worse."""
    share += STEP
    return share if share < REST else share + max(0, knee - share) // KNEE_PARTS


EQUAL = [FULL] * PLANES


@pytest.mark.parametrize(
    "seen",
    [
        Seen(),
        Seen(lost=[10] * PLANES),
        Seen(marked=[80] * PLANES),
        Seen(rtt_ns=[20 * MS] * PLANES, lost=[50] * PLANES, marked=[100] * PLANES),
        Seen(acked=[20, 400, 90, 13]),
        Seen(rtt_ns=[MS, MS * 5 // 4, MS, MS * 3 // 2]),
        Seen(lost=[0, 1, 2, 0]),
        Seen(marked=[0, 25, 10, 0]),
    ],
    ids=["nothing", "lossy", "marked", "bad", "uneven", "jitter", "some loss", "some marks"],
)
def test_planes_that_are_alike_keep_exactly_equal_shares(judged: Rig, seen: Seen) -> None:
    for _ in range(30):
        assert judge(judged, seen) == EQUAL


BAD = {
    "delay": Seen(rtt_ns=[MS, 10 * MS, MS, MS]),
    "loss": Seen(lost=[0, 20, 0, 0]),
    "marks": Seen(marked=[0, 90, 0, 0]),
}


@pytest.mark.parametrize("what", BAD)
def test_plane_that_stays_worse_gives_up_part_of_its_share(judged: Rig, what: str) -> None:
    first = next(n for n in range(1, 40) if judge(judged, BAD[what]) != EQUAL)
    assert first >= STRIKES  # one bad judgement is not enough, and averages are slower still
    before = shares(judged)[1]
    assert judge(judged, BAD[what])[1] < before
    assert judge(judged, BAD[what], 200) == [FULL, MIN, FULL, FULL]  # MIN shows if it heals


@pytest.mark.parametrize("what", BAD)
def test_plane_that_heals_gets_its_share_back(judged: Rig, what: str) -> None:
    judge(judged, BAD[what], 200)
    again = [judge(judged, Seen())[1] for _ in range(FULL)]
    assert again == sorted(again)
    assert all(b - a <= STEP for a, b in itertools.pairwise(again))
    assert shares(judged) == EQUAL


def test_strikes_are_in_a_row(judged: Rig) -> None:
    for _ in range(20):
        judge(judged, BAD["delay"], STRIKES - 1)
        assert judge(judged, Seen()) == EQUAL


def test_delay_within_the_slack_is_nobodys_fault(judged: Rig) -> None:
    judged.tune(judge_slack_ns=10 * MS)
    assert judge(judged, BAD["delay"], 30) == EQUAL
    judged.tune(judge_slack_ns=8 * MS)
    assert judge(judged, BAD["delay"], 30)[1] < FULL


def test_loss_counts_while_it_goes_on(judged: Rig) -> None:
    """The average remembers a burst for a long time; it must not reduce the plane's share."""
    judge(judged, Seen(lost=[0, 90, 0, 0]), STRIKES - 1)
    assert judge(judged, Seen(), 10) == EQUAL


@pytest.mark.parametrize(
    "seen",
    [
        Seen(rtt_ns=[MS, 10 * MS, MS, MS], acked=[100, PACKETS - 1, 100, 100]),
        Seen(rtt_ns=[MS, 10 * MS, MS, MS], age_ns=[300 * MS] * PLANES),
    ],
    ids=["too few packets", "too long ago"],
)
def test_plane_of_which_too_little_is_known_is_not_judged(judged: Rig, seen: Seen) -> None:
    assert judge(judged, seen, 30) == EQUAL


def test_one_bad_plane_of_two(judged: Rig) -> None:
    judged.tune(plane_mask=0b0011)
    assert judge(judged, BAD["delay"], 200)[:2] == [FULL, MIN]


def test_shares_are_relative_to_the_best_plane_left(judged: Rig) -> None:
    judge(judged, BAD["delay"], STRIKES + 2)
    worse = shares(judged)[1]
    assert MIN < worse < FULL
    judged.tune(plane_mask=0b0010)  # the only plane: there is nothing to compare it with
    assert judge(judged, BAD["delay"])[1] == FULL


def test_nobody_is_judged_before_it_is_time(judged: Rig) -> None:
    assert judge(judged, BAD["delay"], STRIKES)[1] < FULL
    judged.tune(judge_ns=4_000_000_000)
    before = judge(judged, BAD["delay"])
    assert judge(judged, BAD["delay"], 20, due=False) == before


@pytest.mark.parametrize(
    ("rtt_ns", "wait_ns"),
    [(MS, ROUND_TRIPS * MS), (20 * MS, ROUND_TRIPS * 20 * MS), (90 * MS, LATEST_NS)],
)
def test_next_judgement_waits_for_what_this_one_changed(
    judged: Rig, rtt_ns: int, wait_ns: int
) -> None:
    """Judging faster than the round trips would judge planes by their state before the change."""
    begun = time.monotonic_ns()
    judge(judged, Seen(rtt_ns=[rtt_ns, 2 * rtt_ns, rtt_ns, rtt_ns]))
    ended = time.monotonic_ns()
    raw = judged.dp.read_raw("balances", judged.table.peers.indices["h2"], _BALANCE.size)
    at_ns = _BALANCE.unpack(raw)["judge_at_ns"]
    assert begun + wait_ns <= at_ns <= ended + wait_ns


def test_one_bad_judgement_between_good_ones_takes_nothing_more(judged: Rig) -> None:
    judge(judged, BAD["delay"], 12)
    before, knee = shares(judged)[1], balance(judged)["knee"][1]
    for _ in range(8):
        judge(judged, Seen())
        judge(judged, BAD["delay"], MORE_STRIKES - 1)
        before = grown(before, knee)
    assert shares(judged)[1] == min(FULL, before)


def test_share_grows_fast_to_where_it_was_too_much_and_slowly_from_there(judged: Rig) -> None:
    judge(judged, BAD["delay"], STRIKES + 20)
    share, knee = shares(judged)[1], 100
    judged.edit(
        "balances", judged.table.peers.indices["h2"], "mrc_balance", knee=(0, knee, *[0] * 6)
    )
    steps = []
    while share < FULL:
        assert judge(judged, Seen())[1] == min(FULL, grown(share, knee))
        steps.append(shares(judged)[1] - share)
        share = shares(judged)[1]
    assert max(steps) > 5 * STEP
    assert steps[-2] == STEP


def test_share_that_shrinks_to_less_than_an_eighth_is_the_smallest(judged: Rig) -> None:
    """A plane at a tenth of the others' rate would hold up all order for the sake of a tenth."""
    before = FULL
    while (share := judge(judged, BAD["delay"], 1)[1]) != MIN:
        assert REST <= share <= before
        before = share
    assert before < FULL
    for grown_once in range(MIN + STEP, REST, STEP):  # also where more was too much
        assert judge(judged, Seen())[1] == grown_once
    assert judge(judged, BAD["delay"], MORE_STRIKES)[1] == MIN


def give(rig: Rig, *shares: int) -> None:
    rig.edit(
        "balances", rig.table.peers.indices["h2"], "mrc_balance",
        shares=int.from_bytes(bytes(whole(list(shares))), "little"), knee=whole([0] * PLANES),
    )  # fmt: skip


LESS = FULL // 2


@pytest.mark.parametrize(
    "seen",
    [
        Seen(rtt_ns=[5 * MS, MS, 5 * MS, 4 * MS]),
        Seen(lost=[6, 0, 6, 2]),
        Seen(marked=[70, 0, 70, 25]),
    ],
    ids=BAD,
)
def test_plane_that_is_given_less_is_not_what_the_others_are_held_against(
    judged: Rig, seen: Seen
) -> None:
    """Its queues are short because it carries less. Compared with it, all would shrink in turn."""
    for _ in range(30):
        give(judged, FULL, LESS, FULL, FULL)
        got = judge(judged, seen)
        assert got.pop(1) > LESS
        assert got == [FULL] * (PLANES - 1)


def test_plane_that_went_silent_is_not_what_the_others_are_held_against(judged: Rig) -> None:
    seen = Seen(rtt_ns=[5 * MS, MS, 5 * MS, 5 * MS], age_ns=[0, 300 * MS, 0, 0])
    assert judge(judged, seen, 30) == EQUAL


@pytest.mark.parametrize("delay_ns", [4 * MS, 3 * MS, 2 * MS, MS])
def test_share_grows_by_how_much_less_late_the_plane_is(judged: Rig, delay_ns: int) -> None:
    give(judged, FULL, LESS, FULL, FULL)
    share = judge(judged, Seen(rtt_ns=[4 * MS, delay_ns, 4 * MS, 4 * MS]))[1]
    more = LESS + STEP
    assert share == more + more * (4 * MS - delay_ns) // (4 * MS) // LEAD_PARTS


@pytest.mark.parametrize(
    ("packets", "worse"), [(SLACK_PACKETS - 1, False), (SLACK_PACKETS + 2, True)]
)
def test_queue_that_is_a_few_packets_longer_is_no_delay(
    judged: Rig, packets: int, worse: bool
) -> None:
    """The packets of every plane are 10 ms apart."""
    peer, apart = judged.table.peers.indices["h2"], 10 * MS
    rtt = 2 * apart
    late = Seen(rtt_ns=[rtt, rtt * 3 // 2 + packets * apart, rtt, rtt], acked=[19] * PLANES)
    for _ in range(STRIKES + 2):
        since = time.monotonic_ns() - 20 * apart
        judged.edit("balances", peer, "mrc_balance", stock_ns=whole([since] * PLANES))
        judge(judged, late)
    assert (shares(judged)[1] < FULL) == worse


def turns(rig: Rig) -> LIST:
    raw = rig.dp.read_raw("balances", rig.table.peers.indices["h2"], _BALANCE.size)
    (word,) = _BALANCE.unpack_array(raw, "turns")
    return list(word.to_bytes(ABI.MRC_MAX_PLANES, "little"))[:PLANES]


@pytest.mark.parametrize(
    ("longer_ns", "expected"),
    [
        (0, FULL),
        (TARGET_NS // 4, FULL),
        (TARGET_NS * 5 // 4, FULL - FULL // 16),
        (TARGET_NS * 9 // 4, FULL - FULL // 8),
        (TARGET_NS * 9, FULL - FULL // 4),
    ],
    ids=["no queue", "chance", "a target", "two targets", "many targets"],
)
def test_a_longer_queue_costs_turns_at_once(judged: Rig, longer_ns: int, expected: int) -> None:
    judged.tune(cc_target_ns=TARGET_NS)
    judge(judged, Seen(rtt_ns=[MS, MS + longer_ns, MS, MS]))
    assert turns(judged) == [FULL, expected, FULL, FULL]
    assert shares(judged) == EQUAL


def test_queues_of_a_full_window_take_no_share(judged: Rig) -> None:
    """The same delays are a worse plane where nothing controls the window."""
    judged.tune(cc_target_ns=TARGET_NS)
    peer, delays = judged.table.peers.indices["h2"], Seen(rtt_ns=[MS, 8 * MS, MS, MS])
    judged.edit("balances", peer, "mrc_balance", target_ns=4 * TARGET_NS)
    judge(judged, delays, STRIKES + 2)
    assert shares(judged) == EQUAL
    judged.tune(cc_target_ns=0)
    judge(judged, delays, STRIKES + 2)
    assert shares(judged)[1] < FULL
    assert turns(judged) == shares(judged)


def test_a_shorter_queue_gets_its_turns_back(judged: Rig) -> None:
    judged.tune(cc_target_ns=TARGET_NS)
    judge(judged, Seen(rtt_ns=[MS, 4 * MS, MS, MS]))
    assert turns(judged)[1] < FULL
    judge(judged, Seen())
    assert turns(judged) == EQUAL


def weigh(rig: Rig, *rates: int) -> None:
    rig.table.peers.set_rates(rates)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((1_000, 250, 25, 1_000), [128, 32, 3, 128]),
        ((250, 1_000, 1_000, 1_000), [32, 128, 128, 128]),
        ((100_000, 100, 100, 100), [128, 1, 1, 1]),
    ],
)
def test_turns_go_by_what_planes_carry(judged: Rig, rates: LIST, expected: LIST) -> None:
    weigh(judged, *rates)
    judge(judged, Seen())
    assert turns(judged) == expected
    assert shares(judged) == EQUAL  # none of them is worse than that


def test_turns_are_relative_to_the_most_that_a_usable_plane_has(judged: Rig) -> None:
    weigh(judged, 1_000, 250, 125, 250)
    judged.table.peers.set_planes("h2", 0b1110)
    judge(judged, Seen())
    assert turns(judged)[1:] == [128, 64, 128]


def test_a_plane_that_carries_less_than_it_should_gives_up_part_of_its_turns(judged: Rig) -> None:
    weigh(judged, 1_000, 500, 500, 1_000)
    judge(judged, BAD["loss"], 200)
    assert shares(judged)[1] == MIN
    assert turns(judged) == [128, MIN // 2, 64, 128]


@pytest.mark.parametrize(("own", "worse"), [(2, False), (4, True)])
def test_a_slow_plane_may_be_late_by_packets_of_its_own(
    judged: Rig, own: int, *, worse: bool
) -> None:
    """The busiest plane sends a packet in 0.1 ms, so one of a quarter of its rate takes 0.4 ms."""
    weigh(judged, 1_000, 250, 1_000, 1_000)
    late = MS + MS // 2 + own * 400_000
    peer = judged.table.peers.indices["h2"]
    for _ in range(STRIKES + 2):
        now = time.monotonic_ns()
        judged.edit("balances", peer, "mrc_balance", stock_ns=whole([now - 10 * MS] * PLANES))
        judge(judged, Seen(rtt_ns=[MS, late, MS, MS]))
    assert (shares(judged)[1] < FULL) is worse


def test_peer_without_an_active_qp_is_not_judged(rig: Rig) -> None:
    rig.tune(judge_ns=0, judge_slack_ns=0)
    assert judge(rig, BAD["delay"], 20) == EQUAL


def test_spraying_follows_what_planes_carry(judged: Rig) -> None:
    weigh(judged, 1_000, 250, 500, 1_000)
    judge(judged, Seen())
    planes = [judged.spray(ip4(src="10.99.0.1", dst="10.99.0.2")) for _ in range(110)]
    used = Counter(decode_frame(ran.frame).envelope.ev >> 28 for ran in planes)
    for plane, part in enumerate((40, 10, 20, 40)):
        assert abs(used[plane] - part) <= 2


def test_spraying_follows_the_shares(judged: Rig) -> None:
    judge(judged, BAD["delay"], 200)
    planes = [judged.spray(ip4(src="10.99.0.1", dst="10.99.0.2")) for _ in range(100)]
    used = Counter(decode_frame(ran.frame).envelope.ev >> 28 for ran in planes)
    assert used[1] <= 2  # 4 of 128: one of 32 rounds
    assert min(used[p] for p in (0, 2, 3)) >= 32


@settings(
    max_examples=60, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    rtt=st.lists(st.integers(1, 2**31), min_size=PLANES, max_size=PLANES),
    acked=st.lists(st.integers(0, 2**32), min_size=PLANES, max_size=PLANES),
    lost=st.lists(st.integers(0, 2**32), min_size=PLANES, max_size=PLANES),
    marked=st.lists(st.integers(0, 2**32), min_size=PLANES, max_size=PLANES),
    mask=st.integers(1, 15),
)
def test_shares_stay_within_bounds_and_the_best_is_whole(
    judged: Rig, rtt: LIST, acked: LIST, lost: LIST, marked: LIST, mask: int
) -> None:
    judged.tune(plane_mask=mask)
    got = judge(judged, Seen(rtt, acked, lost, marked), 6)
    assert all(MIN <= share <= FULL for share in got)
    assert max(got[p] for p in range(PLANES) if mask >> p & 1) == FULL


def test_plane_too_quiet_to_be_judged_regains_its_share_by_time(judged: Rig) -> None:
    """Otherwise a plane once found slow would never get enough packets to be found well again."""
    assert judge(judged, BAD["delay"], 200)[1] == MIN
    quiet, begun = Seen(acked=[100, 0, 100, 100]), time.monotonic_ns()
    for _ in range(3):
        clock_passes(51 * MS)
        share = judge(judged, quiet, 4)[1]
    steps = (time.monotonic_ns() - begun) // (50 * MS)  # one for each 50 ms, not for each judgement
    assert MIN + 2 * STEP <= share <= MIN + (steps + 1) * STEP


def test_quiet_plane_that_is_still_late_regains_nothing(judged: Rig) -> None:
    assert judge(judged, BAD["delay"], 200)[1] == MIN
    for _ in range(3):
        clock_passes(51 * MS)
        assert judge(judged, Seen(rtt_ns=[MS, 10 * MS, MS, MS], acked=[100, 0, 100, 100]))[1] == MIN
