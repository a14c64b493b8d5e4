# SPDX-License-Identifier: GPL-2.0-only
"""Test how the kernel's tables of neighbours are read."""

from __future__ import annotations

from pathlib import Path

from mrcd.linux.neighbortable import KERNEL_LIMIT, Table, neighbor_limit, read_tables

STAT = """entries  allocs   destroys table_fulls
0000001f 00000100 000000f0 00000002
0000001f 00000010 00000000 0000000a
"""
OLD = """entries  allocs   destroys
00000003 00000001 00000002
"""


def test_counts_of_all_cpus_are_one(tmp_path: Path) -> None:
    _write(tmp_path / "net/stat/arp_cache", STAT)
    _write(tmp_path / "net/stat/ndisc_cache", OLD)
    _write(tmp_path / "sys/net/ipv4/neigh/default/gc_thresh3", "4096\n")
    assert read_tables(tmp_path) == [Table("ipv4", 31, 12, 4096), Table("ipv6", 3, 0, None)]


def test_kernel_without_ipv6_has_one_table(tmp_path: Path) -> None:
    _write(tmp_path / "net/stat/arp_cache", STAT)
    (table,) = read_tables(tmp_path)
    assert table.key == "net.ipv4.neigh.default.gc_thresh3"


def test_smaller_limit_counts(tmp_path: Path) -> None:
    assert neighbor_limit(tmp_path) == KERNEL_LIMIT, "other network namespaces do not show it"
    _write(tmp_path / "sys/net/ipv4/neigh/default/gc_thresh3", "4096\n")
    _write(tmp_path / "sys/net/ipv6/neigh/default/gc_thresh3", "2048\n")
    assert neighbor_limit(tmp_path) == 2048


def test_tables_of_this_machine_are_read() -> None:
    assert {table.family for table in read_tables()} <= {"ipv4", "ipv6"}
    assert all(table.entries >= 0 and table.fulls >= 0 for table in read_tables())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
