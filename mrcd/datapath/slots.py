# SPDX-License-Identifier: GPL-2.0-only
"""Give back the slots of the retransmit and reorder rings that a QP holds when it goes DOWN."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator

from mrcd.datapath.control import Commands
from mrcd.datapath.datapath import Datapath
from mrcd.linux import bpf
from mrcd.wire.abi import ABI

_TX = ABI.structs["mrc_tx"]
_RX = ABI.structs["mrc_rx"]
_TX_ENTRY = ABI.structs["mrc_tx_entry"]
_RX_ENTRY = ABI.structs["mrc_rx_entry"]


def give_back(dp: Datapath, qp: int) -> None:
    """Give back the slots of a QP on which no program runs any more."""
    _free(dp, "tx", _sent(dp, qp))
    rings = {0: ABI.MRC_ROOM_PACKETS, ABI.MRC_SLOT_BIG: ABI.MRC_ROOM_CELLS}
    for big, count in _free(dp, "rx", _held(dp, qp)).items():
        Commands(dp).give_room(rings[big], count)


def _sent(dp: Datapath, qp: int) -> Iterator[int]:
    """Yield the slot of each packet that is not acknowledged."""
    raw = dp.read_raw("txs", qp, _TX.size)
    tx, sacked = _TX.unpack(raw), _TX.unpack_array(raw, "sacked")
    window = dp.sizes.window
    for offset in range((tx["next"] - tx["una"]) & 0xFFFFFFFF):
        psn = (tx["una"] + offset) & 0xFFFFFFFF
        if not _bit(sacked, psn, window):
            entry = dp.read("tx_entries", qp * window + psn % window, _TX_ENTRY)
            if entry["psn"] == psn:
                yield entry["slot"]


def _held(dp: Datapath, qp: int) -> Iterator[int]:
    """Yield the slot of each packet that waits behind a gap."""
    raw = dp.read_raw("rxs", qp, _RX.size)
    rx, received = _RX.unpack(raw), _RX.unpack_array(raw, "received")
    window = dp.sizes.window
    half = window // 2
    for offset in range((rx["high"] - rx["next"]) & 0xFFFFFFFF):
        psn = (rx["next"] + offset) & 0xFFFFFFFF
        if _bit(received, psn, window):
            entry = dp.read("rx_entries", qp * half + psn % half, _RX_ENTRY)
            if entry["psn"] == psn & 0xFFFF and entry["slot"]:
                yield entry["slot"] - 1


def _free(dp: Datapath, ring: str, slots: Iterator[int]) -> Counter[int]:
    """Free slots of a ring; return how many, by MRC_SLOT_BIG or 0.

    The packets of a cell share one, which is given back once.
    """
    given: set[tuple[int, int]] = set()
    for slot in slots:
        big, index = slot & ABI.MRC_SLOT_BIG, slot & ABI.MRC_SLOT_INDEX
        if (big, index) not in given:
            given.add((big, index))
            stack = f"{ring}_cells_free" if big else f"{ring}_free"
            bpf.update(dp.maps[stack], None, struct.pack("=I", index))
    return Counter(big for big, _index in given)


def _bit(bitmap: tuple[int, ...], psn: int, window: int) -> int:
    return bitmap[(psn % window) // 64] >> psn % 64 & 1
