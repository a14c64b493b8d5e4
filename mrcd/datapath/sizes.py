# SPDX-License-Identifier: GPL-2.0-only
"""The sizes of the maps, and the fingerprints under which a data path is pinned (pure).

Two fingerprints decide whether a running data path can be taken over. The *layout* covers
everything on which the maps' contents depend: their definitions, the structs in them, the sizes
that programs are compiled for, the identity of this host. It leaves out capacities, which are read
from the kernel: a larger map than needed will do. The *code* covers the programs' text and its
compilation. Other code with the same layout is loaded over the same maps.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mrcd.wire.abi import ABI
from mrcd.wire.packet import Header

_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_MAP = re.compile(r"^BPF_\w+\([^;]*\);", re.M)
_STRUCT = re.compile(r"^struct \w+ \{.*?^\};", re.M | re.S)
_DIGITS = 16
_SLOT_SPARE = 640
"""Bytes behind a slot's packet that programs may read: headers and sums go in fixed steps."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that maps and programs are made for.

    mtu: of mrc0, bytes. window: PSNs, a power of two, at least twice the MPR. evs: EVs of one plane
    in a QP's set, a power of two. encap: one of MRC_ENCAP_*. xdp: whether mrc_receive is a native
    XDP program instead of one at tc (bpf/hook.h). peers, qps, prefixes and loops are capacities.
    decap: whether the kernel has the flags of bpf_skb_adjust_room that name the packet behind the
    header that comes off (mrcd.linux.kernel.has_decap). capture: whether the programs also record
    packets (bpf/capture.c).
    """

    mtu: int
    window: int
    ring_slots: int
    peers: int
    qps: int
    evs: int
    prefixes: int
    loops: int = 1
    encap: int = 0
    cell_slots: int = 1
    xdp: bool = False
    decap: bool = False
    capture: bool = False

    def defines(self) -> list[str]:
        """Return the CFG_ constants that the programs are compiled with."""
        return [
            f"-DCFG_MTU={self.mtu}",
            f"-DCFG_SLOT_BYTES={-(-self.mtu // 8) * 8 + _SLOT_SPARE}",
            f"-DCFG_WINDOW={self.window}",
            f"-DCFG_RING_SLOTS={self.ring_slots}",
            f"-DCFG_CELL_SLOTS={self.cell_slots}",
            f"-DCFG_MAX_PEERS={max(1, self.peers)}",
            f"-DCFG_MAX_QPS={max(1, self.qps)}",
            f"-DCFG_EVS={self.evs}",
            f"-DCFG_MAX_PREFIXES={max(1, self.prefixes)}",
            f"-DCFG_LOOPS={max(1, self.loops)}",
            f"-DCFG_ENCAP={self.encap}",
            f"-DCFG_XDP={int(self.xdp)}",
            f"-DCFG_DECAP={int(self.decap)}",
            f"-DCFG_CAPTURE={int(self.capture)}",
            f"-DCFG_ACTIVE_WORDS={-(-max(1, self.qps) // 64)}",
        ]

    def entries(self) -> dict[str, int]:
        """Return how many entries each map has that holds a capacity."""
        planes = ABI.MRC_MAX_PLANES
        peers, qps = max(1, self.peers), max(1, self.qps)
        return {
            "addresses": max(1, self.prefixes),
            "prefixes": max(1, self.prefixes),
            "peers": peers,
            "balances": peers,
            "peer_planes": peers * planes,
            "sources": peers * planes,
            "qps": qps,
            "txs": qps,
            "rxs": qps,
            "tx_entries": qps * self.window,
            "rx_entries": qps * (self.window // 2),
            "paths": qps * planes * self.evs,
            "active": -(-qps // 64),
            "loop_paths": max(1, self.loops),
            "loops": max(1, self.loops),
            "tx_ring": self.ring_slots,
            "rx_ring": self.ring_slots,
            "tx_free": self.ring_slots,
            "rx_free": self.ring_slots,
            "tx_cells": self.cell_slots,
            "rx_cells": self.cell_slots,
            "tx_cells_free": self.cell_slots,
            "rx_cells_free": self.cell_slots,
        }

    def compiled(self) -> Sizes:
        """Return the sizes that programs are compiled with: capacities they do not know are 1."""
        return replace(self, ring_slots=1, cell_slots=1, peers=1, prefixes=1, loops=1)

    def lacking(self, needed: Sizes) -> list[str]:
        """Describe what of `needed` exceeds these capacities."""
        return [
            f"{name}: {getattr(self, name)} fit, {getattr(needed, name)} are wanted"
            for name in ("peers", "qps", "prefixes", "loops")
            if getattr(self, name) < getattr(needed, name)
        ]


def room_for_peers(count: int) -> int:
    """Return the capacity of maps made for `count` peers.

    At least one more fits, so that adding a peer needs no new maps. A QP takes some 150 KB, so the
    capacity grows in steps of four, or of about an eighth: 4 for 1, 12 for 10, 10,240 for 10,000.
    """
    step = max(4, (1 << max(0, count.bit_length() - 1)) // 8)
    return -(-(count + 1) // step) * step


def room_for_prefixes(count: int) -> int:
    """Return the capacity for prefixes; unused entries take no memory."""
    return max(1024, 4 * count)


def room_for_loops(count: int) -> int:
    """Return the capacity for loops. More hosts may mean more loops, at some 200 bytes each."""
    return -(-(count + 1) // 64) * 64


# ---- fingerprints --------------------------------------------------------------------------


def _structs(header: Header) -> dict[str, Any]:
    return {
        name: [
            struct.size,
            [[f.name, f.offset, f.item_size, f.count] for f in struct.fields.values()],
        ]
        for name, struct in header.structs.items()
    }


def definitions(maps_header: str) -> list[str]:
    """Return every map and struct that a header declares, comments and white space removed."""
    bare = _COMMENT.sub("", maps_header)
    return [" ".join(text.split()) for text in (*_MAP.findall(bare), *_STRUCT.findall(bare))]


def layout_key(
    sizes: Sizes,
    maps_header: str,
    treaty: Mapping[str, Header],
    identity: Mapping[str, object],
) -> str:
    """Return the key of a layout.

    treaty: the two headers. identity: JSON of whatever else gives the maps' contents their meaning.
    """
    text = json.dumps(
        {
            "compiled": [
                sizes.mtu,
                sizes.window,
                sizes.ring_slots,
                sizes.cell_slots,
                sizes.evs,
                sizes.encap,
                sizes.xdp,
            ],
            "maps": definitions(maps_header),
            "structs": {name: _structs(header) for name, header in treaty.items()},
            "constants": {name: dict(header.constants) for name, header in treaty.items()},
            "identity": dict(identity),
        },
        sort_keys=True,
        default=str,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def code_key(source: str, sizes: Sizes, kernel: str) -> str:
    """Return the key of compiled programs. kernel: the release whose headers were used."""
    text = "\n".join([source, *sizes.defines(), kernel])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
