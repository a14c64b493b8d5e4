# SPDX-License-Identifier: GPL-2.0-only
"""Many entries in one system call, compared with one at a time; this needs real maps."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from mrcd.datapath.prefixes import key_of
from mrcd.linux import bpf, bpfbatch
from rigs.rig import Rig

ENTRIES = 3 * bpfbatch._AT_ONCE // 2
KEY = struct.Struct("=I")


@pytest.fixture
def array(rig: Rig) -> Iterator[int]:
    fd = bpf.create_array(8, ENTRIES, name="batched")
    yield fd
    os.close(fd)


def test_update__is_what_one_at_a_time_would_write(array: int) -> None:
    bpfbatch.update(array, {KEY.pack(i): struct.pack("=Q", i * i) for i in range(0, ENTRIES, 3)})
    bpfbatch.update_array(array, 1, [b"x" * 8, b"y" * 8])
    expected = [struct.pack("=Q", i * i if i % 3 == 0 else 0) for i in range(ENTRIES)]
    expected[1:3] = [b"x" * 8, b"y" * 8]
    assert bpfbatch.lookup(array, 0, ENTRIES, 8) == expected
    assert bpf.lookup(array, KEY.pack(1), 8) == b"x" * 8


@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 1), (1, 1), (5, 100), (ENTRIES - 2, 2)])
def test_lookup__reads_a_range(array: int, first: int, count: int) -> None:
    bpfbatch.update_array(array, 0, [struct.pack("=Q", i) for i in range(ENTRIES)])
    found = bpfbatch.lookup(array, first, count, 8)
    assert found == [struct.pack("=Q", i) for i in range(first, first + count)]


def test_update__beyond_the_map_says_so(array: int) -> None:
    with pytest.raises(bpf.BpfError, match="batch"):
        bpfbatch.update(array, {KEY.pack(ENTRIES): bytes(8)})


def test_update__serves_hashes_and_tries(rig: Rig) -> None:
    rig.reset()
    sources = {bytes([i] * 16): KEY.pack(i) for i in range(8)}
    prefixes = {key_of(ip_network(f"192.0.{i}.0/24")): KEY.pack(i) for i in range(8)}
    for name, entries in (("sources", sources), ("prefixes", prefixes)):
        bpfbatch.update(rig.dp.maps[name], entries)
        for key, value in entries.items():
            assert bpf.lookup(rig.dp.maps[name], key, 4) == value
    rig.reset()
