# SPDX-License-Identifier: GPL-2.0-only
"""The way of SACKs back: bpf/back.h, compiled for the host, with two clocks that the tests make."""

from __future__ import annotations

import ctypes

import pytest

from tests.host_path import Memory, compiled

US, MS, S = 1_000, 1_000_000, 1_000_000_000
LEAST = 100 * US
"""The shortest round trip; half of it is the way back."""
UNIT = 1 << 12
_SOURCE = """
#include <linux/types.h>
typedef __u32 u32; typedef __u64 u64; typedef __s32 s32; typedef __u16 u16;
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
struct bpf_spin_lock { __u32 val; };
#include "mrc_wire.h"
#include "mrc_abi.h"
#include "back.h"
u32 host_stamp(u32 attempt, u64 now) { return back_stamp(attempt, now); }
void host_sample(struct mrc_balance *b, u32 plane, u32 stamp, u32 rtt, u64 now)
{ back_sample(b, plane, stamp, rtt, now); }
"""
_U32, _U64, _PTR = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_ARGUMENTS = {
    "host_stamp": (_U32, _U64),
    "host_sample": (_PTR, _U32, _U32, _U32, _U64),
}


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("back"), _SOURCE, _ARGUMENTS, {"host_sample"})


class Way:
    """SACKs on their way back, from a host whose clock is ahead, and drifts by so many ppm."""

    def __init__(self, functions: ctypes.CDLL, *, ahead: int = 0, drift_ppm: int = 0) -> None:
        self.functions = functions
        self.ahead, self.drift_ppm = ahead, drift_ppm
        self.balance = Memory("mrc_balance", probed_ns=LEAST)
        self.now = S

    def sack(self, queue: int = 0, *, forth: int = 0, plane: int = 0, known: bool = True) -> int:
        """Have a SACK wait for `queue` ns, its packet for `forth`; return what is known, ns."""
        self.now += 100 * US
        sent = self.now - LEAST // 2 - queue
        stamp = self.functions.host_stamp(0, sent + self.ahead + sent * self.drift_ppm // 1_000_000)
        rtt = LEAST + queue + forth if known else 0
        self.functions.host_sample(self.balance.at, plane, stamp, rtt, self.now)
        return int(self.balance.read()["back_ns"])

    def settle(self, queue: int = 0, *, forth: int = 0, count: int = 100) -> int:
        for _ in range(count):
            known = self.sack(queue, forth=forth)
        return known


def test_stamp_keeps_the_attempt(functions: ctypes.CDLL) -> None:
    for attempt in range(4):
        for now in (0, S, (1 << 64) - 1):
            stamp = functions.host_stamp(attempt, now)
            assert stamp & 3 == attempt
            assert stamp < 1 << 16


@pytest.mark.parametrize("ahead", [0, 20 * MS, 40 * MS, -30 * MS, 12345 * S])
def test_only_what_is_longer_than_the_shortest_counts(functions: ctypes.CDLL, ahead: int) -> None:
    way = Way(functions, ahead=ahead)
    assert way.settle() <= UNIT
    assert way.settle(MS) == pytest.approx(MS, abs=2 * UNIT)
    assert way.settle(0) <= 2 * UNIT


def test_queue_of_the_other_direction_is_not_counted(functions: ctypes.CDLL) -> None:
    way = Way(functions)
    way.settle()
    assert way.settle(0, forth=2 * MS) <= UNIT
    assert way.settle(MS, forth=2 * MS) == pytest.approx(MS, abs=2 * UNIT)


@pytest.mark.parametrize("drift_ppm", [-100, 100])
def test_drift_of_clocks_adds_up_to_little(functions: ctypes.CDLL, drift_ppm: int) -> None:
    """A queue of the own direction, which would hide an error that grows."""
    way = Way(functions, drift_ppm=drift_ppm)
    way.settle(0, forth=3 * MS, count=100_000)  # 10 s
    assert way.settle(0, forth=3 * MS) <= 4 * S * 100 // 1_000_000 + UNIT


def test_queue_that_never_ends_is_forgotten(functions: ctypes.CDLL) -> None:
    """It cannot be told from a clock that drifts."""
    way = Way(functions)
    way.settle()
    assert way.settle(MS, count=10_000) == pytest.approx(MS, abs=2 * UNIT)
    assert way.settle(MS, count=40_000) <= UNIT


@pytest.mark.parametrize("jump", [5 * MS, 20 * MS, 50 * MS, -5 * MS])
def test_clock_that_jumps_is_no_queue(functions: ctypes.CDLL, jump: int) -> None:
    """The peer was rebooted. No way back is longer than its round trip allows."""
    way = Way(functions)
    way.settle(0, forth=MS)
    way.ahead -= jump
    way.sack(0, forth=MS)
    assert way.settle(0, forth=MS) <= MS + 3 * UNIT
    assert way.settle(0) <= 3 * UNIT
    assert way.settle(0, forth=3 * MS) <= 3 * UNIT


def test_planes_have_ways_of_their_own(functions: ctypes.CDLL) -> None:
    way = Way(functions)
    for _ in range(50):
        assert way.sack(0, plane=0) <= UNIT
        assert way.sack(5 * MS, plane=1) <= UNIT, "it is always so long"


def test_round_trip_need_not_be_known(functions: ctypes.CDLL) -> None:
    way = Way(functions)
    way.settle()
    for _ in range(100):
        known = way.sack(MS, known=False)
    assert known == pytest.approx(MS, abs=2 * UNIT)
