# SPDX-License-Identifier: GPL-2.0-only
"""Sum up map entries of QPs and peers for the metrics (pure).

A host may have thousands of QPs with some kilobytes of bitmaps each. So the sums run over slices of
map entries as a batch look-up returns them, and only members that count are unpacked. Paths are
counted from the bitmaps of mrc_tx. The entries of single paths take a hundred times as much memory
and are not read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from mrcd.wire.abi import ABI
from mrcd.wire.layout import Struct, picker

PLANES = ABI.MRC_MAX_PLANES
_PLANE_BITS = 64 * ABI.MRC_EV_WORDS
_PLANE = (1 << _PLANE_BITS) - 1


def _bitmap(kind: Struct, name: str) -> slice:
    member = kind.fields[name]
    return slice(member.offset, member.offset + member.size)


_QP = picker(ABI.structs["mrc_qp"], "state", "mpr")
_TX = picker(ABI.structs["mrc_tx"], "next", "una", "packets", "retransmits")
_RX = picker(ABI.structs["mrc_rx"], "waiting", "packets")
_SETS = tuple(
    _bitmap(ABI.structs["mrc_tx"], name) for name in ("use", "skip", "slow", "denied", "all")
)
_SPARE = _bitmap(ABI.structs["mrc_tx"], "spare")
_SACKED = _bitmap(ABI.structs["mrc_tx"], "sacked")

_BALANCE_HEAD = picker(ABI.structs["mrc_balance"], "shares", "ports", "heard_ports")
_WORDS8 = struct.Struct(f"={PLANES}I").unpack_from
_SRTT_AT, _LOSS_AT, _MARK_AT = (
    ABI.structs["mrc_balance"].fields[name].offset for name in ("srtt_ns", "loss_ppm", "mark_ppm")
)


@dataclass(slots=True)
class Paths:
    """Numbers of paths by state, of paths in rotation, and of slow ones among the latter."""

    good: int = 0
    skip: int = 0
    assumed_bad: int = 0
    denied: int = 0
    in_use: int = 0
    slow: int = 0


@dataclass(slots=True)
class PeerCount:
    """Sums over a peer's QPs. Packets count over all sessions, the rest over the present one."""

    receiving: int = 0  # RTR
    ready: int = 0  # RTS
    failed: int = 0  # ERROR
    tx_packets: int = 0
    rx_packets: int = 0
    retransmits: int = 0
    outstanding: int = 0
    window: int = 0
    kept: int = 0  # slots of the retransmit ring
    waiting: int = 0  # slots of the reorder ring
    paths: Paths = field(default_factory=Paths)


@dataclass(slots=True)
class Census:
    """The sums over the QPs of each peer, by its index, and over the paths of each plane."""

    peers: dict[int, PeerCount] = field(default_factory=dict)
    planes: list[Paths] = field(default_factory=lambda: [Paths() for _ in range(PLANES)])

    def add(self, peer: int, qp: bytes, tx: bytes, rx: bytes) -> bool:
        """Count a QP by its entries of the maps qps, txs and rxs. Return whether it is in use."""
        state, mpr = _QP(qp)
        count = self.peers.get(peer)
        if count is None:
            count = self.peers[peer] = PeerCount()
        following, una, packets, retransmits = _TX(tx)
        waiting, received = _RX(rx)
        count.tx_packets += packets
        count.rx_packets += received
        count.retransmits += retransmits
        if state < ABI.MRC_QP_RECEIVE:
            count.failed += state == ABI.MRC_QP_ERROR
            return False
        outstanding = (following - una) & 0xFFFFFFFF
        if state == ABI.MRC_QP_READY:
            count.ready += 1
        else:
            count.receiving += 1
        count.outstanding += outstanding
        count.window += mpr
        count.waiting += waiting
        if outstanding:
            # A packet that a SACK reported has freed its slot; una clears its bit in passing.
            sacked = int.from_bytes(tx[_SACKED], "little").bit_count()
            count.kept += max(0, outstanding - sacked)
        self._add_paths(count.paths, tx)
        return True

    def _add_paths(self, total: Paths, tx: bytes) -> None:
        """Apply the rule of mrc_tx's comment in bpf/mrc_abi.h to whole sets at once."""
        use, skip, slow, denied, every = (int.from_bytes(tx[at], "little") for at in _SETS)
        spare = int.from_bytes(tx[_SPARE], "little")
        skip &= use & ~denied
        sets = {
            "good": (use | spare) & ~skip & ~denied,
            "skip": skip,
            "assumed_bad": every & ~(use | spare | denied),
            "denied": denied,
            "in_use": use,
            "slow": slow & use,
        }
        for name, one in sets.items():
            if not one:
                continue
            setattr(total, name, getattr(total, name) + one.bit_count())
            for plane in self.planes:
                if here := one & _PLANE:
                    setattr(plane, name, getattr(plane, name) + here.bit_count())
                one >>= _PLANE_BITS
                if not one:
                    break


@dataclass(frozen=True, slots=True)
class PlaneCount:
    """A plane of a peer. `srtt_ns` is 0 if never measured; shares and ratios go from 0 to 1."""

    open: bool  # the peer takes packets on it
    share: float
    srtt_ns: int
    loss: float
    marked: float


def planes_of(balance: bytes, planes: int) -> list[PlaneCount]:
    """Return the planes in a peer's entry of the map balances."""
    shares, ports, heard = _BALANCE_HEAD(balance)
    both = ports & heard
    srtt = _WORDS8(balance, _SRTT_AT)
    loss, marks = _WORDS8(balance, _LOSS_AT), _WORDS8(balance, _MARK_AT)
    return [
        PlaneCount(
            open=bool(both >> plane & 1),
            share=(shares >> 8 * plane & 0xFF) / ABI.MRC_SHARE_FULL,
            srtt_ns=srtt[plane],
            loss=loss[plane] / 1e6,
            marked=marks[plane] / 1e6,
        )
        for plane in range(planes)
    ]
