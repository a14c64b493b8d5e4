# SPDX-License-Identifier: GPL-2.0-only
"""Test that a lossy NIC link of ours is given up, and one with a full queue is not."""

from __future__ import annotations

from mrcd.survey.inference import Fault
from mrcd.survey.messages import Total
from mrcd.survey.nichealth import NIC_CLEAN_S, NIC_LIVE_INTERVALS, NIC_PROBES, NicHealth
from mrcd.wire.abi import ABI
from tests.unit.survey.test_named import fault

S = 1_000_000_000
PROMPT, LATE = 7, 10  # buckets of round trips: about 100 us and about 800 us


class Heard:
    """Collects NicHealth's reports on planes that lose some of their probes."""

    def __init__(self, planes: int = 3, *, lossy: bool = True) -> None:
        self.said: list[tuple[int, bool]] = []
        self.reasons: list[str] = []
        self.nics = NicHealth("h1", planes, self._hear)
        self._totals = [[0, 0] for _ in range(planes)]
        self._round_trips = [[0] * ABI.MRC_RTT_BUCKETS for _ in range(planes)]
        for plane in range(planes if lossy else 0):
            self.near(plane, *[4] * (NIC_LIVE_INTERVALS + 1))

    def near(self, plane: int, *returned: int, late: int = 0, of: int = 5) -> None:
        """Add intervals in which `returned` of `of` probes came back, `late` of them late."""
        for each in returned:
            totals, round_trips = self._totals[plane], self._round_trips[plane]
            totals[0] += of
            totals[1] += each
            round_trips[PROMPT] += each - late
            round_trips[LATE] += late
            self.nics.near(plane, Total(*totals, None), round_trips)

    def _hear(self, plane: int, healthy: bool, reason: str) -> None:
        self.said.append((plane, healthy))
        self.reasons.append(reason)

    def at(self, second: float, *faults: Fault) -> list[tuple[int, bool]]:
        self.said.clear()
        self.nics.update(list(faults), now_ns=int(second * S))
        return list(self.said)


def test_our_lossy_nic_link_is_reported_once_and_again_when_clean_for_long_enough() -> None:
    heard, lossy = Heard(), fault("h1:p1")
    assert heard.at(100, lossy) == [(1, False)]
    assert "h1:p1 loses 4.0%" in heard.reasons[0]
    assert heard.at(101, lossy) == []
    assert heard.at(102) == []
    assert heard.at(101 + NIC_CLEAN_S) == []
    assert heard.at(101.1 + NIC_CLEAN_S) == [(1, True)]


def test_a_relapse_takes_twice_as_long() -> None:
    heard, lossy = Heard(), fault("h1:p1")
    heard.at(100, lossy)
    assert heard.at(106) == [(1, True)]
    assert heard.at(107, lossy) == [(1, False)]
    assert heard.at(108 + NIC_CLEAN_S) == []
    assert heard.at(107.1 + 2 * NIC_CLEAN_S) == [(1, True)]
    assert heard.at(1000, lossy) == [(1, False)]
    assert heard.at(1000.1 + NIC_CLEAN_S) == [(1, True)]


def test_the_first_fault_after_boot_is_no_relapse() -> None:
    heard, lossy = Heard(), fault("h1:p1")
    assert heard.at(2, lossy) == [(1, False)]
    assert heard.at(2.1 + NIC_CLEAN_S) == [(1, True)]


def test_dead_link_and_one_that_is_back_are_left_to_the_paths() -> None:
    heard, mixed = Heard(), fault("h1:p1", loss=0.4)
    heard.near(1, 0, 0, 2)  # the link returns in the middle of an interval
    assert heard.at(100, fault("h1:p1", loss=1.0)) == []
    for second in range(20):  # the windows still contain the losses
        heard.near(1, 5)
        assert heard.at(101 + second, mixed) == []
    heard.near(1, 3, 4)
    assert heard.at(130, mixed) == [(1, False)]


def test_others_links_and_small_losses_are_not_our_business() -> None:
    heard = Heard()
    assert heard.at(100, fault("h2:p1"), fault("p0t0-1"), fault("h1:p1", loss=0.01)) == []


def test_the_last_plane_is_never_given_up() -> None:
    heard = Heard(planes=2)
    both = [fault("h1:p0", loss=1.0), fault("h1:p1")]
    assert heard.at(100, *both) == [(0, False)]
    assert heard.at(101, *both) == []


class TestQueues:
    """Faults that a full queue may cause: h1:p1 is named in all of these tests."""

    def test_a_full_queue_is_not_a_bad_link(self) -> None:
        heard, named = Heard(lossy=False), fault("h1:p1", loss=0.13)
        heard.near(1, *[5] * 40)
        for second in range(30):  # competing traffic comes for a second and goes
            heard.near(1, 4, 3, late=3)
            heard.near(1, 5, 5)
            assert heard.at(100 + second, named) == []

    def test_a_bad_link_under_load_is_found_when_its_queue_is_short(self) -> None:
        heard, named = Heard(lossy=False), fault("h1:p1", loss=0.2)
        heard.near(1, *[5] * 40)
        for second in range(20):
            heard.near(1, 4, late=4)
            assert heard.at(100 + second, named) == []
        for second in range(20, 100):
            heard.near(1, 4)
            if heard.at(100 + second, named):
                break
        assert heard.said == [(1, False)]

    def test_a_long_way_is_not_a_queue(self) -> None:
        heard = Heard(lossy=False)
        heard.near(1, *[4] * (NIC_LIVE_INTERVALS + 1), late=4)  # every probe is late
        assert heard.at(100, fault("h1:p1", loss=0.2)) == [(1, False)]

    def test_weeks_without_loss_do_not_hide_a_link_that_goes_bad(self) -> None:
        heard, named = Heard(lossy=False), fault("h1:p1", loss=0.1)
        heard.near(1, 1_000_000, of=1_000_000)
        for second in range(NIC_PROBES):
            heard.near(1, 9, of=10)
            if heard.at(100 + second, named):
                break
        assert heard.said == [(1, False)]
        assert second < 30


def test_a_near_loop_that_is_probed_seldom_is_judged_all_the_same() -> None:
    heard = Heard(lossy=False)
    for _ in range(20):  # in a large fabric, one probe at a time
        heard.near(1, 1, 1, 0, 1, 1, of=1)
    assert heard.at(100, fault("h1:p1", loss=0.2)) == [(1, False)]
