# SPDX-License-Identifier: GPL-2.0-only
"""Test that evidence messages survive anything, that counts stay exact, and that windows follow
changes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import zlib
from collections.abc import Mapping
from ipaddress import ip_network
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.fabric.hosts import HostRange
from mrcd.fabric.loops import loops_of
from mrcd.handshake import MAX_BYTES
from mrcd.survey import evidence, messages
from mrcd.survey.evidence import INTERVAL_NS, Evidence
from mrcd.survey.history import BLOCK, MEMORY, RECENT, SINGLE, History
from mrcd.survey.inference import Seen, infer
from mrcd.survey.messages import EvidenceError, Total
from tests.unit.fault_double import fabric_of

FABRIC = fabric_of(2, 2, 2, 1)
DIGEST = messages.digest(FABRIC)
ON_TIME: Mapping[str, float] = {}


def empty() -> Evidence:
    makers = {host.name: functools.partial(loops_of, FABRIC, host) for host in FABRIC.hosts}
    return Evidence(makers, DIGEST)


def message(**changes: object) -> bytes:
    good = messages.Message(messages.VERSION, "h2", 7, DIGEST, ((0, 10, 10, 50),))
    body = msgspec.msgpack.encode(msgspec.structs.replace(good, **changes))
    return messages.MAGIC + len(body).to_bytes(2, "big") + body


class Feeder:
    """Two hosts whose loops are probed at a rate and lose as a test specifies."""

    def __init__(self, per_interval: int = 7) -> None:
        self.evidence = empty()
        self.now_ns = 1000 * INTERVAL_NS
        self._per = per_interval
        self._totals: dict[tuple[str, int], Total] = {}
        self._rng = random.Random(1)

    def run(
        self, intervals: int, losses: dict[str, float], late_us: Mapping[str, float] = ON_TIME
    ) -> list[str]:
        """Continue for some intervals, and return the names inferred after the last one."""
        for _ in range(intervals):
            self.now_ns += INTERVAL_NS
            for host in FABRIC.hosts:
                fresh = {}
                for index, loop in enumerate(loops_of(FABRIC, host)):
                    back, rtt_us = 1.0, 50.0
                    for element, times in loop.crossings.items():
                        rtt_us += times * late_us.get(element.name, 0)
                        back *= (1 - losses.get(element.name, 0)) ** times
                    returned = sum(self._rng.random() < back for _ in range(self._per))
                    old = self._totals.get((host.name, index), Total(0, 0, None))
                    fresh[index] = Total(old.sent + self._per, old.returned + returned, rtt_us)
                    self._totals[host.name, index] = fresh[index]
                self.evidence.add(host.name, 1, fresh, now_ns=self.now_ns)
        return [fault.element.name for fault in infer(self.seen())]

    def seen(self) -> list[Seen]:
        return self.evidence.seen(now_ns=self.now_ns)


def test_totals_survive_the_wire() -> None:
    totals = {i: Total(1000 + i, 990 + i, 12.0) for i in range(150)}
    datagrams = messages.encode("h2", (1 << 63) - 1, DIGEST, totals)
    assert all(len(datagram) <= MAX_BYTES for datagram in datagrams)
    back = {}
    for datagram in datagrams:
        told = messages.decode(datagram)
        assert (told.host, told.epoch, told.digest) == ("h2", (1 << 63) - 1, DIGEST)
        back |= {index: Total(sent, ret, rtt) for index, sent, ret, rtt in told.totals}
    assert back == totals


def test_a_full_datagram_of_greatest_numbers_fits() -> None:
    most = (1 << 63) - 1
    totals = {65535 - i: Total(most, most, 4e9) for i in range(40)}
    (datagram,) = messages.encode("h" * 31, most, (1 << 32) - 1, totals)
    assert len(datagram) <= MAX_BYTES


@pytest.mark.parametrize(
    ("datagram", "why"),
    [
        (b"", "0 bytes"),
        (b"MRCf\0\0" + b"x" * 2000, "2006 bytes"),
        (b"MRCh\0\0", "no message"),
        (message()[:-1], "no message"),
        (b"MRCf\0\1\xc1", "not a message"),
        (b"MRCf\0\1\x90", "not a message"),
        (message(version=9), "version 9"),
        (message(host="h9"), "no host 'h9'"),
        (message(digest=1), "another fabric"),
        (message(totals=((10, 1, 1, 0),)), "loop 10"),
        (message(totals=((0, 1, 2, 0),)), "sent 1, 2 back"),
        (message(totals=((0, -1, -1, 0),)), "not a message"),
        (message(epoch=1 << 63), "not a message"),
        (message(totals=tuple((0, 1, 1, 0) for _ in range(41))), "not a message"),
    ],
)
def test_bad_datagrams_are_refused_and_change_nothing(datagram: bytes, why: str) -> None:
    held = empty()
    with pytest.raises(EvidenceError, match=why):
        held.receive(datagram, now_ns=1)
    assert held.heard_ns == {}


def test_totals_in_the_name_of_another_host_are_refused() -> None:
    held = empty()
    with pytest.raises(EvidenceError, match="in the name of h2, from h3"):
        held.receive(message(), now_ns=1, sender="h3")
    assert held.heard_ns == {}
    held.receive(message(), now_ns=1, sender="h2")
    assert held.heard_ns == {"h2": 1}


@given(st.binary(max_size=64))
def test_no_datagram_raises_anything_else(rest: bytes) -> None:
    for datagram in (rest, messages.MAGIC + len(rest).to_bytes(2, "big") + rest):
        try:
            empty().receive(datagram, now_ns=1)
        except EvidenceError:
            continue


def counts(held: Evidence, now_ns: int) -> tuple[int, int]:
    seen = [one for one in held.seen(now_ns=now_ns) if one.loop.host.name == "h2"]
    return sum(one.sent for one in seen), sum(one.lost for one in seen)


def tell(held: Evidence, sent: int, returned: int, now_ns: int, epoch: int = 7) -> None:
    held.receive(message(epoch=epoch, totals=((0, sent, returned, 50),)), now_ns=now_ns)


def test_lost_repeated_and_overtaken_messages_change_no_count() -> None:
    held, step = empty(), INTERVAL_NS
    tell(held, 100, 90, 10 * step)  # the earlier counts are unknown
    assert counts(held, 10 * step) == (0, 0)
    tell(held, 130, 117, 13 * step)  # two messages in between were lost
    tell(held, 130, 117, 13 * step)
    tell(held, 120, 108, 13 * step)
    assert counts(held, 13 * step) == (30, 3)


def test_a_restarted_daemon_begins_anew() -> None:
    held, step = empty(), INTERVAL_NS
    tell(held, 100, 100, 10 * step)
    tell(held, 4, 4, 11 * step, epoch=8)
    tell(held, 9, 8, 12 * step, epoch=8)
    assert counts(held, 12 * step) == (5, 1)


def test_what_comes_back_late_was_not_lost() -> None:
    held, step = empty(), INTERVAL_NS
    tell(held, 10, 10, 10 * step)
    tell(held, 20, 17, 11 * step)
    tell(held, 30, 30, 12 * step)
    assert counts(held, 12 * step) == (20, 0)


def test_old_counts_are_forgotten() -> None:
    held, step = empty(), INTERVAL_NS
    tell(held, 10, 10, 10 * step)
    tell(held, 20, 20, 11 * step)
    assert counts(held, (11 + 3 * MEMORY) * step) == (0, 0)


def test_it_is_quiet_until_something_is_lost_and_when_that_is_forgotten() -> None:
    held, step = empty(), INTERVAL_NS
    tell(held, 10, 10, 10 * step)
    tell(held, 20, 20, 11 * step)
    assert held.quiet(now_ns=11 * step)
    tell(held, 30, 29, 12 * step)
    assert not held.quiet(now_ns=12 * step)
    assert not held.quiet(now_ns=(11 + 3 * evidence.CALM) * step)
    assert held.quiet(now_ns=(12 + 3 * evidence.CALM) * step)


@given(st.data())
def test_what_is_quiet_is_seen_in_one_pass_as_it_was_by_comparing(data: st.DataObject) -> None:
    """A single loop loses nothing, and has a different round trip in each interval."""
    rtts = data.draw(st.lists(st.floats(1, 1e6) | st.none(), min_size=1, max_size=250))
    held, sent = empty(), 0
    for number, rtt in enumerate(rtts):
        sent += data.draw(st.integers(0, 3))
        held.add("h2", 1, {0: Total(sent, sent, rtt)}, now_ns=number * INTERVAL_NS)
    now_ns = (len(rtts) - 1) * INTERVAL_NS
    assert held.quiet(now_ns=now_ns)
    together = held.seen(now_ns=now_ns)
    with patch.object(History, "lost_since", return_value=True):
        assert held.seen(now_ns=now_ns) == together


@pytest.mark.parametrize("name", ["p0t0-1:p0t1-2", "p0t1-1", "h1:p0", "p0t0-2"])
def test_a_dead_element_is_found_within_a_recent_window_and_forgotten_as_soon(name: str) -> None:
    feeder = Feeder()
    assert feeder.run(60, {}) == []
    assert feeder.run(RECENT, {name: 1.0}) == [name]
    assert feeder.run(50, {name: 1.0}) == [name]
    assert feeder.run(RECENT, {}) == []


def test_a_small_loss_is_measured_over_the_whole_memory() -> None:
    feeder = Feeder()
    memory, block = RECENT * MEMORY, RECENT * BLOCK
    feeder.run(memory + 2 * block, {"p1t0-1:p1t1-1": 0.04})
    (sent,) = {one.sent for one in feeder.seen()}
    assert 7 * memory <= sent < 7 * (memory + block)
    (fault,) = infer(feeder.seen())
    assert 0.03 < fault.loss < 0.05


def test_old_intervals_are_kept_as_sums_and_none_is_counted_twice() -> None:
    held, memory = empty(), RECENT * MEMORY
    lost = 0
    for number in range(memory):
        lost += number % 5 == 0
        held.add("h2", 7, {0: Total(number, number - lost, 50.0)}, now_ns=number * INTERVAL_NS)
        assert counts(held, number * INTERVAL_NS) == (number, lost - 1)
    single, block = RECENT * SINGLE, RECENT * BLOCK
    assert len(held._history) <= single + block + memory // block


def test_windows_grow_to_the_ends_that_have_a_meaning() -> None:
    ends = set(itertools.accumulate(evidence.CHUNKS))
    assert {evidence.RTT_MEMORY, SINGLE, MEMORY} <= ends
    assert max(ends) == MEMORY


def test_what_lost_long_ago_is_compared_until_it_is_forgotten() -> None:
    """A block, and the fact that something was lost in it, is kept as long as its last interval."""
    held, memory, end = empty(), RECENT * MEMORY, 1001
    sent = returned = 0
    for number in range(900, end + memory + 20):
        sent, returned = sent + 7, returned + (0 if number < end else 7)
        held.add("h2", 7, {0: Total(sent, returned, 50.0)}, now_ns=number * INTERVAL_NS)
        if number >= end + RECENT:
            # A single interval at the far end of a window is too little to disagree.
            assert counts(held, number * INTERVAL_NS)[1] <= 7


def test_a_loop_that_is_probed_more_changes_no_rate() -> None:
    """One of two loops over the NIC link loses everything; later the other is probed more."""
    held = empty()
    sent, back = {0: 0, 2: 0}, 0
    for number in range(60):
        fresh = {0: 4 if number < 50 else 20, 2: 4}
        sent = {index: sent[index] + fresh[index] for index in sent}
        back += fresh[0]
        totals = {0: Total(sent[0], back, 50.0), 2: Total(sent[2], 0, None)}
        held.add("h2", 7, totals, now_ns=number * INTERVAL_NS)
    assert counts(held, 59 * INTERVAL_NS) == (49 * 4 + 10 * 20 + 59 * 4, 59 * 4)


def test_a_change_in_one_plane_leaves_the_windows_of_others() -> None:
    feeder = Feeder()
    feeder.run(100, {})
    feeder.run(RECENT, {"p1t1-1": 1.0})
    sent = {one.loop.plane: one.sent for one in feeder.seen()}
    assert sent[0] > sent[1] == 7 * RECENT


@pytest.mark.parametrize(
    ("loops", "pps", "seconds"), [(15, 200, 0.5), (520, 200, 3.5), (4096, 100, 55), (3, 1, 4)]
)
def test_a_unit_of_intervals_holds_a_few_probes_of_every_loop(
    loops: int, pps: int, seconds: float
) -> None:
    found = evidence.interval_ns(loops, pps)
    assert found == seconds * 1e9
    assert found * RECENT * pps / 1e9 >= evidence.PROBES_RECENT * loops


@pytest.mark.parametrize(
    ("histogram", "low", "high"),
    [
        ([0, 0, 0, 8], 4, 5),
        ([4, 0, 0, 4], 0.4, 0.6),
        ([0] * 5 + [1], 16, 24),
        ([0] * 6, None, None),
    ],
)
def test_quantile_lies_in_its_bucket(
    histogram: list[int], low: float | None, high: float | None
) -> None:
    found = evidence.quantile_us(histogram)
    assert (found is None) == (low is None)
    assert found is None or (low is not None and high is not None and low <= found <= high)


def test_digest_tells_fabrics_apart_but_not_their_names() -> None:
    assert messages.digest(fabric_of(2, 2, 3, 1)) != DIGEST
    assert messages.digest(dataclasses.replace(FABRIC, name="other", mtu=1500)) == DIGEST
    pattern = HostRange(4, 2, "h", (ip_network("10.99.0.0/24"),))
    assert messages.digest(dataclasses.replace(FABRIC, hosts=pattern)) != DIGEST


def test_digest_is_of_the_text_that_the_protocol_gives() -> None:
    """Hosts of different versions compare it."""
    assert zlib.crc32(b"2 2 2\nh1 1 1\nh2 2 1") == DIGEST
    moved = tuple(dataclasses.replace(host, port=7) for host in FABRIC.hosts)
    assert messages.digest(dataclasses.replace(FABRIC, hosts=moved)) != DIGEST


def test_link_that_becomes_late_is_found_and_forgotten_long_before_the_longest_window() -> None:
    """The least round trip of a whole minute would date from before the delay."""
    feeder, late = Feeder(), {"p1t0-1:p1t1-2": 3000.0}
    memory = RECENT * evidence.RTT_MEMORY
    assert feeder.run(2 * RECENT * MEMORY, {}) == []
    assert feeder.run(memory // 2, {}, late) == []  # a transient queue is not a fault
    assert feeder.run(memory // 2 + 1, {}, late) == list(late)
    assert feeder.run(200, {}, late) == list(late)
    assert feeder.run(1, {}) == []
