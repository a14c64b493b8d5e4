# SPDX-License-Identifier: GPL-2.0-only
"""The sizes of the maps, and the key of the programs (pure).

Two keys decide whether a running data path can be taken over: that of the layout
(mrcd/datapath/layoutkey.py), and that of the code, which covers the programs' text and its
compilation. Other code with the same layout is loaded over the same maps.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from mrcd.wire.abi import ABI

_DIGITS = 16
_FEW_QPS = 1024
"""QPs that the clock searches in one run; more have to be compiled in."""
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
    packets (bpf/capture.c). next_hops: whether each peer has a next hop of its own on a plane,
    because there is no fabric. cell_udp: whether cells go in MRC_CELL_UDP instead of MRC_CELL_IP6.
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
    next_hops: bool = False
    cell_udp: bool = False

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
            f"-DCFG_CAPTURE={int(self.capture)}",
            f"-DCFG_NEXT_HOPS={int(self.next_hops)}",
            f"-DCFG_CELL_UDP={int(self.cell_udp)}",
            f"-DCFG_ACTIVE_WORDS={-(-max(_FEW_QPS, self.qps) // 64)}",
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
            "keys": qps,
            "peer_keys": peers,
            "replays": qps * planes,
            "peer_budgets": peers,
            "indices": peers * ABI.MRC_INDICES,
            "tx_entries": qps * self.window,
            "rx_entries": qps * (self.window // 2),
            "paths": qps * planes * self.evs,
            "active": -(-max(_FEW_QPS, qps) // 64),
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
        """Return the sizes that programs are compiled with: what they do not know is 1.

        They do not know capacities. What `evs` and `decap` are, the loader writes into their
        instructions.
        """
        plain = replace(self, ring_slots=1, cell_slots=1, peers=1, prefixes=1, loops=1)
        few = 1 if self.qps <= _FEW_QPS else self.qps
        return replace(plain, qps=few, evs=1, decap=False)

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


def code_key(source: str, sizes: Sizes, kernel: str) -> str:
    """Return the key of compiled programs. kernel: the release whose headers were used."""
    text = "\n".join([source, *sizes.defines(), kernel])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
