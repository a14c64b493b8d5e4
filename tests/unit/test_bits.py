# SPDX-License-Identifier: GPL-2.0-only
"""Bit sets over PSNs: bpf/bits.h, compiled for the host, beside the same in Python's integers."""

from __future__ import annotations

import ctypes
import random

import pytest

from tests.host_path import compiled

_SOURCE = """
#include <linux/types.h>
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#include "bits.h"
__u32 host_lowest(__u64 v) { return lowest_bit(v); }
__u32 host_highest(__u64 v) { return highest_bit(v); }
void host_bits(__u64 n, __u64 *out) { *out = lowest_bits(n); }
void host_range(__u32 word, __u32 from, __u32 to, __u64 *out) { *out = range_mask(word, from, to); }
void host_shifted(__u64 v, __u32 base, __u32 word, __u64 *out) { *out = shifted(v, base, word); }
"""
_U32, _U64, _PTR = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_ARGUMENTS = {
    "host_lowest": (_U64,),
    "host_highest": (_U64,),
    "host_bits": (_U64, _PTR),
    "host_range": (_U32, _U32, _U32, _PTR),
    "host_shifted": (_U64, _U32, _U32, _PTR),
}
_RESULTS = ("host_bits", "host_range", "host_shifted")
FULL = (1 << 64) - 1
DISTANCES = (-70_000, -129, -128, -65, -64, -63, -1, 0, 1, 31, 32, 33, 62, 63, 64, 65, 127, 70_000)
WORDS = (0, 64, 0x7FFFFFC0, 0x80000000, 0xFFFFFFC0)
"""PSNs wrap round at 32 bits here, so a word may begin anywhere."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("bits"), _SOURCE, _ARGUMENTS, _RESULTS)


def wide(function: ctypes._NamedFuncPointer, *arguments: int) -> int:
    """Call a function that writes its result, of 64 bits, through a pointer."""
    out = ctypes.c_uint64()
    function(*arguments, ctypes.byref(out))
    return out.value


def test_lowest_and_highest_bit(host: ctypes.CDLL) -> None:
    rng = random.Random(1)
    for value in [1 << n for n in range(64)] + [rng.getrandbits(64) | 1 << 63 for _ in range(200)]:
        assert host.host_lowest(value) == (value & -value).bit_length() - 1
        assert host.host_highest(value) == value.bit_length() - 1
    assert host.host_lowest(0) == 64


def test_lowest_bits(host: ctypes.CDLL) -> None:
    assert [wide(host.host_bits, n) for n in range(65)] == [(1 << n) - 1 for n in range(65)]


@pytest.mark.parametrize("word", WORDS)
def test_range_mask(host: ctypes.CDLL, word: int) -> None:
    for low in DISTANCES:
        for high in DISTANCES:
            expected = sum(1 << n for n in range(max(low, 0), min(high, 64)))
            found = wide(host.host_range, word, (word + low) % 2**32, (word + high) % 2**32)
            assert found == expected, (low, high)


@pytest.mark.parametrize("word", WORDS)
def test_shifted(host: ctypes.CDLL, word: int) -> None:
    rng = random.Random(2)
    for distance in DISTANCES:
        for bitmap in (1, 1 << 63, FULL, rng.getrandbits(64)):
            expected = bitmap << distance if distance >= 0 else bitmap >> -distance
            found = wide(host.host_shifted, bitmap, (word + distance) % 2**32, word)
            assert found == expected & FULL, distance
