# SPDX-License-Identifier: GPL-2.0-only
"""Test that the memory that pages say maps take is that of their structs and sizes."""

from __future__ import annotations

import re
from pathlib import Path

from mrcd.datapath import tuning
from mrcd.datapath.sizes import Sizes
from mrcd.wire.abi import ABI

DOCS = Path(__file__).parents[2] / "docs"
PLANES = ABI.MRC_MAX_PLANES
SLOT_HEAD = 2 * 8  # struct mrc_slot of bpf/maps.c, without its data
BIG_HEAD = 32  # struct mrc_big


def size(name: str) -> int:
    return ABI.structs[name].size


WINDOW = 2 * size("mrc_tx_entry") + size("mrc_rx_entry")  # for each packet of mpr
PATHS = PLANES * size("mrc_path")  # for each slot of a plane in an EV set
REST = sum(map(size, ("mrc_qp", "mrc_tx", "mrc_rx", "mrc_keys"))) + PLANES * size("mrc_replay")


def text(page: str) -> str:
    return re.sub(r"\s+", " ", (DOCS / page).read_text())


def rings_mb(mtu: int, slots: int = 8192) -> float:
    """Return the memory of both rings of single packets, for an MTU of mrc0."""
    sizes = Sizes(mtu, 4096, slots, 1, 1, 1, 1)
    (data,) = [int(each.partition("=")[2]) for each in sizes.defines() if "SLOT_BYTES" in each]
    return 2 * slots * (data + SLOT_HEAD) / 1e6


def test_structs_of_rings_are_those_of_the_programs() -> None:
    maps = (DOCS.parent / "bpf" / "maps.c").read_text()
    slot = re.search(r"struct mrc_slot \{(.*?)__u8 data", maps, re.S)
    big = re.search(r"struct mrc_big \{(.*?)__u8 data", maps, re.S)
    assert slot is not None
    assert big is not None
    width = {"__u64": 8, "__u32": 4, "__u16": 2}
    heads = [
        sum(width[kind] for kind in re.findall(r"^\s*(__u\d+) \w+;", body, re.M))
        for body in (slot[1], big[1])
    ]
    assert heads[0] == SLOT_HEAD
    assert -(-heads[1] // 8) * 8 == BIG_HEAD


def test_memory_of_rings() -> None:
    large, small = round(rings_mb(8960)), round(rings_mb(1460))
    cells = 2 * tuning.CELL_SLOTS * (BIG_HEAD + ABI.MRC_CELL_BYTES + ABI.MRC_PIECE_ROOM) / 1e6
    said = f"{large} MB at 8,192 slots and MTU 9000, {small} MB at 1500; rings of cells take"
    assert f"{said} {cells:.0f} MB more" in text("install.md")
    assert f"| both rings, 8,192 slots each, MTU 9000 | {large} MB |" in text("performance.md")


def test_memory_of_a_qp() -> None:
    rest = f"{REST / 1000:.0f} KB"
    said = f"A QP takes {WINDOW} bytes for each packet of its `mpr`"
    assert said in text("operations.md")
    assert f"It takes {rest} beside that, and {PATHS:,} bytes for each slot" in text(
        "operations.md"
    )
    per_qp = (WINDOW * 2048 + REST) / 1000
    said = f"Each QP takes {per_qp:.0f} KB at `mpr` 2048"
    assert said in text("install.md")
    assert f"{PATHS:,} bytes for each slot of a plane in its EV set" in text("install.md")


def test_memory_of_a_peer() -> None:
    def peer(mpr: int, slots: int = 2) -> float:
        return 4 * (WINDOW * mpr + REST + slots * PATHS)

    said = f"{peer(2048) / 1e6:.1f} MB a peer at `mpr` 2048, {peer(512) / 1e6:.2f} MB at 512"
    assert f"{said}, {peer(128) / 1e3:.0f} KB at 128" in text("operations.md")
    slots = 2 * 128 // PLANES
    parts = {
        "tx_entries": 4096 * size("mrc_tx_entry"),
        "paths": slots * PATHS,
        "rx_entries": 2048 * size("mrc_rx_entry"),
        "txs": size("mrc_tx"),
        "rxs": size("mrc_rx"),
    }
    listed = ", ".join(f"`{name}` {count / 1000:.0f}" for name, count in parts.items())
    said = f"| {sum(parts.values()) / 1000:.0f} KB: {listed} |"
    assert said in text("performance.md")
    page = text("performance.md")
    assert f"| a peer with the usual four QPs | {peer(2048, slots) / 1e6:.1f} MB |" in page
    assert f"| each EV in use, with its backup | {2 * size('mrc_path')} bytes |" in page
    assert f"which is twice the MPR | {WINDOW // 2} bytes |" in page
