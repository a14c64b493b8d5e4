# SPDX-License-Identifier: GPL-2.0-only
"""The receiver's penalty: bpf/penalty.h and nscc.h, compiled for the host, around a reorder ring.

Several senders share planes of one receiver, of which one is late. What arrives on the others waits
in the ring, and what finds no slot is refused and sent again about a round trip later.
"""

from __future__ import annotations

import ctypes
import heapq

import pytest

from mrcd.wire.layout import WIRE
from tests.host_path import Memory, compiled

MTU, MS = 4000, 1_000_000
RATE = 25_000  # bytes in a millisecond, of all planes together
PLANES, LATE = 4, 32  # one packet of so many takes the late plane
BASE, TARGET = 2 * MS, MS
MPR, UNIT = 2048, 128

_SOURCE = """
#include <linux/types.h>
typedef __u32 u32; typedef __u64 u64; typedef __s32 s32;
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
struct bpf_spin_lock { __u32 val; };
#define PATH_LAST 0x20000
#define CFG_MTU 4000
#include "mrc_wire.h"
#include "mrc_abi.h"
#include "nscc.h"
#include "penalty.h"
u32 host_open(const struct mrc_host *h, struct mrc_tx *tx) { return nscc_open(h, tx, 0); }
u32 host_take(const struct mrc_host *h, struct mrc_tx *tx)
{ return take_window(h, tx, tx->next++, CFG_MTU); }
void host_sack(const struct mrc_host *h, struct mrc_tx *tx, struct mrc_balance *b, u32 bytes,
               u32 rtt, u32 press, u64 now)
{
    u32 pressed = nscc_press(h, tx, bytes, press);

    tx->srtt_ns = rtt ? rtt : tx->srtt_ns;
    nscc_sack(h, tx, b, 0, bytes, rtt, 3, 0, now);
    if (pressed == MRC_C_PENALTY_RX)
        nscc_keep_pressed(tx);
}
u32 host_penalty(const struct mrc_room *room, u32 waiting, u64 can, u64 mpr, u32 *ample)
{ return ring_penalty(room, waiting, can, mpr, ample); }
"""
_U32, _U64, _PTR = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_ARGUMENTS = {
    "host_open": (_PTR, _PTR),
    "host_take": (_PTR, _PTR),
    "host_sack": (_PTR, _PTR, _PTR, _U32, _U32, _U32, _U64),
    "host_penalty": (_PTR, _U32, _U64, _U64, _PTR),
}


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("penalty"), _SOURCE, _ARGUMENTS)


class Qp:
    """One sender and what its receiver knows of it."""

    def __init__(self) -> None:
        self.tx, self.balance = Memory("mrc_tx"), Memory("mrc_balance")
        self.psn = self.next = 0
        self.granted = MPR
        self.held: set[int] = set()
        self.pressed = False


class Ring:
    """A receiver with a reorder ring of so many slots for all QPs, and the planes to it."""

    def __init__(
        self, functions: ctypes.CDLL, slots: int, late_ms: int, *, qps: int = 3, penalty: bool
    ) -> None:
        self.functions, self.slots, self.late, self.penalty = (
            functions,
            slots,
            late_ms * MS,
            penalty,
        )
        self.host = Memory("mrc_host", cc_target_ns=TARGET, cc_rate=RATE, planes=1)
        self.qps = [Qp() for _ in range(qps)]
        self.free = slots
        self.now = 1_000_000 * MS
        self.planes = [self.now] * PLANES
        self.events: list[tuple[int, int, int, Qp, int, int, int]] = []
        self.count = self.refused = self.penalties = 0

    def send(self, qp: Qp, psn: int, again: int = 0) -> None:
        """Send a packet by a plane: the queue, the way, then its arrival."""
        self.count += 1
        plane = 0 if self.count % LATE == 0 else 1 + self.count % (PLANES - 1)
        self.planes[plane] = max(self.planes[plane], self.now) + MTU * MS * PLANES // RATE
        arrives = self.planes[plane] + BASE // 2 + (0 if plane else self.late)
        # Round trips of the late plane do not count, as its share is not whole.
        sent = self.now if plane and not again else 0
        heapq.heappush(self.events, (arrives, self.count, 0, qp, psn, sent, 0))

    def arrive(self, qp: Qp, psn: int, sent: int) -> None:
        """Deliver, hold or refuse a packet, and answer."""
        self.count += 1
        if psn == qp.next:
            qp.next += 1
            while qp.next in qp.held:
                qp.held.remove(qp.next)
                self.free += 1
                qp.next += 1
        elif self.free:
            self.free -= 1
            qp.held.add(psn)
        else:
            self.refused += 1
            # The sender waits for about a round trip before it sends the packet again.
            later = self.now + 2 * BASE
            heapq.heappush(self.events, (later, self.count, 2, qp, psn, 0, 0))
            return
        can = len(qp.held) + self.free
        told = self.now + BASE // 2
        heapq.heappush(self.events, (told, self.count, 1, qp, can, sent, self.press(qp, can)))

    def press(self, qp: Qp, can: int) -> int:
        """Return what a SACK asks for, as bpf/sack_tx.c has it."""
        if not self.penalty:
            return 0
        room, ample = Memory("mrc_room", free=self.free, all=self.slots), ctypes.c_uint32(1)
        part = self.functions.host_penalty(room.at, len(qp.held), can, MPR, ctypes.addressof(ample))
        if part:
            qp.pressed = True
            self.penalties += 1
            return int(part) << WIRE.MRC_CC_PENALTY_SHIFT
        return WIRE.MRC_CC_RESTORE if ample.value and qp.pressed else 0

    def run(self, milliseconds: int) -> float:
        """Run for a time; return the goodput, of what the planes carry."""
        end, before = self.now + milliseconds * MS, sum(qp.next for qp in self.qps)
        while self.now < end:
            for qp in self.qps:
                while (
                    qp.psn - qp.next < max(UNIT, min(qp.granted, MPR))
                    and self.functions.host_open(self.host.at, qp.tx.at)
                ):  # fmt: skip
                    self.functions.host_take(self.host.at, qp.tx.at)
                    self.send(qp, qp.psn)
                    qp.psn += 1
            self.now, _, kind, qp, number, sent, press = heapq.heappop(self.events)
            if kind == 0:
                self.arrive(qp, number, sent)
            elif kind == 1:
                qp.granted = number
                rtt = self.now - sent if sent else 0
                self.functions.host_sack(
                    self.host.at, qp.tx.at, qp.balance.at, MTU, rtt, press, self.now
                )
            else:
                self.send(qp, number, again=1)
        return (sum(qp.next for qp in self.qps) - before) * MTU / (RATE * milliseconds)


def measured(
    functions: ctypes.CDLL, qps: int, slots: int, late_ms: int, *, penalty: bool
) -> tuple[float, int, int]:
    """Return goodput, refused packets and penalties in a second, after a third of one."""
    ring = Ring(functions, slots, late_ms, qps=qps, penalty=penalty)
    ring.run(300)
    ring.refused = ring.penalties = 0
    return ring.run(1000), ring.refused, ring.penalties


@pytest.mark.parametrize(("qps", "slots", "late_ms"), [(3, 64, 60), (3, 128, 60), (8, 64, 60)])
def test_ring_that_runs_short_refuses_half_as_much(
    functions: ctypes.CDLL, qps: int, slots: int, late_ms: int
) -> None:
    without = measured(functions, qps, slots, late_ms, penalty=False)
    beside = measured(functions, qps, slots, late_ms, penalty=True)
    assert without[2] == 0 < beside[2]
    assert beside[1] < 0.5 * without[1]
    assert beside[0] > 0.95 * without[0]


@pytest.mark.parametrize(("slots", "late_ms"), [(64, 0), (256, 20), (8192, 60)])
def test_ring_with_room_costs_nothing(functions: ctypes.CDLL, slots: int, late_ms: int) -> None:
    without = measured(functions, 3, slots, late_ms, penalty=False)
    beside = measured(functions, 3, slots, late_ms, penalty=True)
    assert beside == without
    assert beside[1:] == (0, 0)
