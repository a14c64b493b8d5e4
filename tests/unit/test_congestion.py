# SPDX-License-Identifier: GPL-2.0-only
"""Congestion control: bpf/nscc.h, compiled for the host, against queues that the tests make."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import pytest

from mrcd.config.sections import QPS_MAX
from tests.host_path import Memory, compiled

MTU = 4000
US, MS = 1_000, 1_000_000
RATE = 25_000  # bytes in a millisecond: 200 Mb/s
TARGET = MS
BASE = 2 * MS
LEAST, FIRST = 2 * MTU, 16 * MTU
PARK_LEAST = 128

_SOURCE = """
#include <linux/types.h>
typedef __u32 u32; typedef __u64 u64; typedef __s32 s32;
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
struct bpf_spin_lock { __u32 val; };
#define PATH_LAST 0x20000
#define CFG_MTU 4000
#include "mrc_abi.h"
#include "nscc.h"
u32 host_open(const struct mrc_host *h, struct mrc_tx *tx, u32 tcp)
{ return nscc_open(h, tx, tcp); }
u32 host_take(const struct mrc_host *h, struct mrc_tx *tx, u32 len)
{ return take_window(h, tx, tx->next++, len); }
u32 host_parked(const struct mrc_host *h, const struct mrc_tx *tx, u32 len, u64 now)
{ return nscc_parked(h, tx, tx->others, len, now); }
u32 host_sharers(const struct mrc_balance *b) { return nscc_sharers(b); }
u32 host_full(const struct mrc_host *h, const struct mrc_tx *tx, u32 len, u32 tcp, u32 pays)
{ return nscc_full(h, tx, len, tcp, tcp, pays, 0, ~0ull); }
void host_sack(const struct mrc_host *h, struct mrc_tx *tx, struct mrc_balance *b, u32 qp,
               u32 bytes, u32 rtt, u32 class, u32 marked, u64 now)
{ tx->srtt_ns = rtt ? rtt : tx->srtt_ns; nscc_sack(h, tx, b, qp, bytes, rtt, class, marked, now); }
void host_loss(const struct mrc_host *h, struct mrc_tx *tx, u32 bytes) { nscc_loss(h, tx, bytes); }
u32 host_class(u32 len) { return length_class(len); }
"""
_U32, _U64, _PTR = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_ARGUMENTS = {
    "host_open": (_PTR, _PTR, _U32),
    "host_take": (_PTR, _PTR, _U32),
    "host_full": (_PTR, _PTR, _U32, _U32, _U32),
    "host_parked": (_PTR, _PTR, _U32, _U64),
    "host_sharers": (_PTR,),
    "host_sack": (_PTR, _PTR, _PTR, _U32, _U32, _U32, _U32, _U32, _U64),
    "host_loss": (_PTR, _PTR, _U32),
    "host_class": (_U32,),
}


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(
        tmp_path_factory.mktemp("nscc"), _SOURCE, _ARGUMENTS, {"host_sack", "host_loss"}
    )


class Sender:
    """A sender with an endless supply of full packets."""

    def __init__(
        self, functions: ctypes.CDLL, base: int = BASE, *, target: int = TARGET, **state: int
    ) -> None:
        self.functions, self.base = functions, base
        self.host = Memory("mrc_host", cc_target_ns=target, cc_rate=RATE, planes=1)
        self.tx = Memory("mrc_tx", **state)
        self.balance, self.qp = Memory("mrc_balance"), 0
        self.idle = True

    def open(self, *, tcp: bool = False) -> bool:
        return bool(self.functions.host_open(self.host.at, self.tx.at, tcp))

    def take(self, length: int = MTU) -> int:
        return int(self.functions.host_take(self.host.at, self.tx.at, length))

    def sack(
        self, count: int, rtt: int, now: int, *, length: int = MTU, marked: bool = False
    ) -> None:
        self.functions.host_sack(
            self.host.at, self.tx.at, self.balance.at, self.qp, count, rtt,
            self.functions.host_class(length), marked, now,
        )  # fmt: skip

    def lose(self, count: int) -> None:
        self.functions.host_loss(self.host.at, self.tx.at, count)

    def __getitem__(self, name: str) -> int:
        return self.tx.read()[name]


class Link:
    """One queue of RATE bytes a millisecond for all senders, and each one's own way to it."""

    def __init__(self, senders: list[Sender]) -> None:
        self.senders = senders
        self.rate = RATE
        self.now = self.free_ns = 1_000_000 * MS
        self.flying: list[tuple[int, int, Sender]] = []
        self.bytes = dict.fromkeys(map(id, senders), 0)
        self.delays: list[int] = []

    def run(self, duration: int) -> dict[int, int]:
        """Run for a time; return the bytes that each sender got through in it."""
        self.bytes = dict.fromkeys(map(id, self.senders), 0)
        self.delays = []
        end = self.now + duration
        while self.now < end:
            turns = [sender for sender in self.senders if not sender.idle and sender.open()]
            for sender in turns:
                sender.take()
                self.free_ns = max(self.free_ns, self.now) + MTU * MS // self.rate
                self.delays.append(self.free_ns - self.now)
                self.flying.append((self.free_ns + sender.base, self.now, sender))
            if turns:
                continue
            self.flying.sort(key=lambda each: each[0])
            self.now, sent, sender = self.flying.pop(0)
            self.bytes[id(sender)] += MTU
            sender.sack(MTU, self.now - sent, self.now)
        return self.bytes


def shares(link: Link, duration: int) -> list[float]:
    got = link.run(duration)
    whole = sum(got.values())
    return [got[id(sender)] / whole * len(link.senders) for sender in link.senders]


@pytest.mark.parametrize("farther", [0, 2])
@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_senders_get_equal_shares_also_from_farther_away(
    functions: ctypes.CDLL, count: int, farther: int
) -> None:
    """Whole packets and a world without chance leave differences that a fabric does not show."""
    link = Link([Sender(functions, BASE * (1 + i % (1 + farther))) for i in range(count)])
    for sender in link.senders:  # each has once measured an empty queue
        sender.sack(0, sender.base + MTU * MS // RATE, link.now)
        sender.idle = False
    link.run(3000 * MS)
    got = shares(link, 3000 * MS)
    assert min(got) > 0.88, got
    assert max(got) < 1.15, got
    assert sum(link.bytes.values()) > 0.98 * RATE * 3000
    assert sorted(link.delays)[int(len(link.delays) * 0.99)] < TARGET * (1 + count)


def test_one_sender_fills_the_link_at_its_target(functions: ctypes.CDLL) -> None:
    link = Link([Sender(functions)])
    link.senders[0].idle = False
    link.run(1000 * MS)
    link.run(1000 * MS)
    assert link.bytes[id(link.senders[0])] > 0.98 * RATE * 1000
    assert sorted(link.delays)[len(link.delays) // 2] < 2 * TARGET


def test_newcomer_gets_its_share_and_gives_it_back(functions: ctypes.CDLL) -> None:
    link = Link([Sender(functions) for _ in range(4)])
    for sender in link.senders:
        sender.sack(0, sender.base + MTU * MS // RATE, link.now)
        sender.idle = sender is link.senders[3]
    link.run(1000 * MS)
    link.senders[3].idle = False
    link.run(300 * MS)
    assert shares(link, 500 * MS)[3] > 0.9
    link.senders[3].idle = True
    link.run(100 * MS)
    assert sum(link.run(500 * MS).values()) > 0.98 * RATE * 500


def of_one_peer(functions: ctypes.CDLL, qps: int) -> list[Sender]:
    senders = [Sender(functions) for _ in range(qps)]
    for qp, sender in enumerate(senders):
        sender.balance, sender.qp = senders[0].balance, 40 + qp
    return senders


@pytest.mark.parametrize("qps", [4, 8])
def test_qps_of_one_peer_make_the_queue_of_one(functions: ctypes.CDLL, qps: int) -> None:
    link = Link(of_one_peer(functions, qps))
    for sender in link.senders:
        sender.sack(0, sender.base + MTU * MS // RATE, link.now)
        sender.idle = False
    link.run(2000 * MS)
    got = shares(link, 2000 * MS)
    assert min(got) > 0.8, got
    assert sum(link.bytes.values()) > 0.98 * RATE * 2000
    assert sorted(link.delays)[len(link.delays) // 2] < 2.2 * TARGET


def test_peer_gets_no_more_by_having_more_qps(functions: ctypes.CDLL) -> None:
    link = Link([Sender(functions), *of_one_peer(functions, 4)])
    for sender in link.senders:
        sender.sack(0, sender.base + MTU * MS // RATE, link.now)
        sender.idle = False
    link.run(2000 * MS)
    single = shares(link, 2000 * MS)[0] / len(link.senders)
    assert 0.4 < single < 0.6


@pytest.mark.parametrize("probed", [True, False])
def test_who_knows_its_way_by_probes_does_not_take_a_queue_for_it(
    functions: ctypes.CDLL, probed: bool
) -> None:
    """All others have measured an empty queue; without probes the last takes more than they."""
    link = Link([Sender(functions) for _ in range(4)])
    for sender in link.senders:
        sender.idle = sender is link.senders[3]
        if not sender.idle:
            sender.sack(0, sender.base + MTU * MS // RATE, link.now)
    link.run(1000 * MS)
    last = link.senders[3]
    if probed:
        last.balance.change(probed_ns=last.base)
    last.idle = False
    link.run(1000 * MS)
    share = shares(link, 1000 * MS)[3]
    assert (0.9 < share < 1.1) if probed else share > 1.3


def test_window_follows_a_link_that_becomes_ten_times_slower(functions: ctypes.CDLL) -> None:
    link = Link([Sender(functions)])
    link.senders[0].idle = False
    link.run(1000 * MS)
    link.rate = RATE // 10
    link.run(1000 * MS)
    link.run(1000 * MS)
    assert sum(link.bytes.values()) > 0.9 * RATE // 10 * 1000
    link.rate = RATE
    link.run(1000 * MS)
    assert sum(link.run(1000 * MS).values()) > 0.95 * RATE * 1000


@pytest.mark.parametrize("probed", [0, BASE])
def test_longer_path_is_not_taken_for_a_queue_for_ever(functions: ctypes.CDLL, probed: int) -> None:
    sender = Sender(functions)
    sender.balance.change(probed_ns=probed)
    link = Link([sender])
    sender.idle = False
    link.run(500 * MS)
    sender.base = 10 * BASE
    link.run(4000 * MS)
    assert sum(link.run(1000 * MS).values()) > 0.8 * RATE * 1000


def test_queue_of_others_is_not_taken_for_a_longer_path(functions: ctypes.CDLL) -> None:
    """It varies, however long it lasts."""
    sender, base = Sender(functions), BASE + MTU * MS // RATE
    assert sender.open()
    sender.sack(0, base, 0)
    for turn in range(1, 400):
        queue = TARGET * (12 + 4 * (turn // 20 % 2))
        sender.take()
        sender.sack(MTU, base + queue, turn * 10 * (base + queue))
    assert sender["delay_ns"] > 10 * TARGET


@pytest.mark.parametrize("marked", [False, True])
def test_steady_queue_that_is_marked_is_not_taken_for_a_longer_path(
    functions: ctypes.CDLL, marked: bool
) -> None:
    """Without marks nothing tells such a queue from a longer path."""
    sender, base = Sender(functions), BASE + MTU * MS // RATE
    assert sender.open()
    sender.sack(0, base, 0)
    rtt = base + 12 * TARGET
    for turn in range(1, 400):
        sender.take()
        sender.sack(MTU, rtt, turn * 10 * rtt, marked=marked and turn % 20 == 0)
    assert (sender["delay_ns"] > 10 * TARGET) == marked


def test_without_control_nothing_is_held(functions: ctypes.CDLL) -> None:
    sender = Sender(functions, target=0, inflight=1 << 30)
    assert sender.open()
    assert sender.take() == 0


def test_window_is_full_by_bytes_and_says_so(functions: ctypes.CDLL) -> None:
    sender = Sender(functions)
    last = [sender.take() for _ in range(16) if sender.open()]
    assert [each != 0 for each in last] == [False] * 15 + [True]
    assert sender["inflight"] == FIRST
    assert not sender.open()
    assert sender.open(tcp=True)
    sender.tx.change(inflight=FIRST * 3 // 2)
    assert not sender.open(tcp=True)
    sender.tx.change(inflight=FIRST)
    sender.sack(MTU, 0, MS)  # a clock's SACK: room, and nothing learnt
    assert sender.open()
    assert (sender["cwnd"], sender["delay_ns"]) == (FIRST, 0)


def test_full_window_asks_once_for_each_of_its_parts(functions: ctypes.CDLL) -> None:
    """Each packet that asks draws a SACK, and a SACK for each packet releases one at a time."""
    sender = Sender(functions, cwnd=80 * MTU, inflight=80 * MTU, una=1, next=1)
    asked = [i for i in range(80) if sender.take()]
    assert asked[0] == 0
    assert all(after - before == 10 for before, after in pairwise(asked))
    sender.tx.change(una=sender["next"])  # what had asked was acknowledged
    assert sender.take()


def test_smallest_window_asks_with_each_packet(functions: ctypes.CDLL) -> None:
    """Else nothing would ask when the last packet that did is lost."""
    sender = Sender(functions, cwnd=LEAST, inflight=LEAST)
    assert all(sender.take() for _ in range(4))


def test_all_qps_of_a_peer_share(functions: ctypes.CDLL) -> None:
    balance = Memory("mrc_balance")
    sender = Sender(functions, inflight=FIRST, cwnd=FIRST)
    sender.balance = balance
    for sender.qp in range(QPS_MAX):
        sender.tx.change(inflight=FIRST)
        sender.sack(0, 0, MS)
    assert functions.host_sharers(balance.at) == 16 * QPS_MAX


@pytest.mark.parametrize("pays", [False, True])
def test_sender_that_pays_may_wait_for_longer(functions: ctypes.CDLL, pays: bool) -> None:
    """Its socket bounds what waits; of others a queue that stays is as short as the window."""
    host = Memory("mrc_host", cc_target_ns=TARGET, cc_rate=RATE)
    tx = Memory("mrc_tx", cwnd=FIRST, backlog=100_000, others=100_000, others_ns=1)
    assert bool(functions.host_full(host.at, tx.at, MTU, False, pays)) != pays
    tx.change(backlog=1 << 20, others=1 << 20)
    assert functions.host_full(host.at, tx.at, MTU, False, pays)


@pytest.mark.parametrize(
    ("others", "parked"), [(60_000, 0), (70_000, 125), (140_000, 250), (200_000, 1000)]
)
def test_more_that_waits_holds_its_sender_for_longer(
    functions: ctypes.CDLL, others: int, parked: int
) -> None:
    """A quarter of the planes' rate leaves: an eighth of a packet is twice their rate."""
    host = Memory("mrc_host", cc_target_ns=TARGET, cc_rate=RATE)
    tx = Memory("mrc_tx", cwnd=FIRST, others=others, others_ns=MS)
    found = functions.host_parked(host.at, tx.at, 1000, MS)
    assert found == (max(parked, PARK_LEAST) if parked else 0)
    tx.change(others=FIRST // 4)  # a queue that stays is compared with the window
    assert functions.host_parked(host.at, tx.at, 1000, 1000 * MS)
    assert not functions.host_parked(host.at, tx.at, 1000, MS)


def test_mark_without_delay_leaves_the_window(functions: ctypes.CDLL) -> None:
    sender = Sender(functions, cwnd=FIRST, inflight=FIRST)
    sender.sack(MTU, BASE, MS, marked=True)
    assert sender["cwnd"] == FIRST
    sender.sack(MTU, BASE, 2 * MS)
    assert sender["cwnd"] > FIRST


@pytest.mark.parametrize(("back", "shrinks"), [(0, True), (TARGET, True), (4 * TARGET, False)])
def test_way_of_sacks_is_no_delay_of_data(functions: ctypes.CDLL, back: int, shrinks: bool) -> None:
    """Else of two hosts that send to each other, the one that has more would keep it."""
    sender = Sender(functions, cwnd=FIRST, inflight=FIRST)
    sender.balance.change(back_ns=back, probed_ns=BASE)
    now = 1_000_000 * MS
    for _ in range(50):
        now += MS
        sender.take()
        sender.sack(MTU, BASE + 4 * TARGET, now)
    assert (sender["cwnd"] < FIRST) == shrinks


def test_idle_sender_does_not_grow(functions: ctypes.CDLL) -> None:
    sender = Sender(functions, cwnd=FIRST, inflight=2 * MTU)
    sender.sack(MTU, BASE, MS)
    assert sender["cwnd"] == FIRST


def test_decrease_at_most_once_a_round_trip_and_at_most_by_half(functions: ctypes.CDLL) -> None:
    sender = Sender(functions, cwnd=FIRST, inflight=FIRST)
    sender.sack(0, BASE, MS)
    sender.tx.change(delay_ns=100 * MS)
    sender.sack(0, 100 * BASE, 1000 * MS)
    halved = sender["cwnd"]
    assert FIRST // 2 <= halved < FIRST * 0.51
    sender.sack(0, 100 * BASE, 1000 * MS + 1)
    assert sender["cwnd"] == halved
    for i in range(10):
        sender.sack(0, 100 * BASE, (2000 + 1000 * i) * MS)
    assert sender["cwnd"] == LEAST


def test_loss_shrinks_the_window_only_beside_a_queue(functions: ctypes.CDLL) -> None:
    sender = Sender(functions, cwnd=FIRST, target_ns=TARGET)
    sender.lose(MTU)
    assert sender["cwnd"] == FIRST
    sender.tx.change(delay_ns=TARGET)
    sender.lose(MTU)
    assert sender["cwnd"] == FIRST - MTU
    for _ in range(30):
        sender.lose(MTU)
    assert sender["cwnd"] == LEAST


def test_window_becomes_what_arrived_if_nearly_all_was_lost(functions: ctypes.CDLL) -> None:
    sender = Sender(functions, cwnd=100 * MTU, inflight=100 * MTU, target_ns=TARGET)
    sender.sack(0, BASE, MS)
    sender.tx.change(delay_ns=TARGET, epoch_ns=MS, got=0, cwnd=50 * MTU)
    sender.lose(MTU)
    sender.sack(3 * MTU, BASE, 100 * MS)
    assert sender["cwnd"] == 3 * MTU
    assert (sender["got"], sender["lost"]) == (0, 0)


@pytest.mark.parametrize(
    ("length", "tcp", "most"),
    [(60, True, 262144 + 131072), (MTU, True, 262144 + 131072), (MTU + 1, True, FIRST),
     (60, False, FIRST), (MTU, False, FIRST)],
)  # fmt: skip
def test_single_packets_of_tcp_may_wait_when_large_segments_may_not(
    functions: ctypes.CDLL, length: int, tcp: bool, most: int
) -> None:
    for waiting, full in ((most, False), (most + 1, True)):
        others = 0 if tcp else waiting
        sender = Sender(functions, cwnd=FIRST, held=1, backlog=waiting, others=others)
        assert bool(functions.host_full(sender.host.at, sender.tx.at, length, tcp, 0)) == full


@pytest.mark.parametrize(("rate", "most"), [(1, 262144), (26214, 262144), (50_000, 500_000)])
def test_burst_may_hold_what_the_planes_carry_in_ten_milliseconds(
    functions: ctypes.CDLL, rate: int, most: int
) -> None:
    for waiting, full in ((most, False), (most + 1, True)):
        sender = Sender(
            functions, cwnd=FIRST, held=1, backlog=waiting, others=waiting, others_ns=(1 << 64) - 1
        )
        sender.host.change(cc_rate=rate)
        assert bool(functions.host_full(sender.host.at, sender.tx.at, MTU, False, 0)) == full


@pytest.mark.parametrize(("length", "wanted"), [(1, 0), (1000, 0), (1001, 1), (3000, 2), (4000, 3)])
def test_classes_of_lengths(functions: ctypes.CDLL, length: int, wanted: int) -> None:
    assert functions.host_class(length) == wanted
