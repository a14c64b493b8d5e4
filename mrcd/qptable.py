# SPDX-License-Identifier: GPL-2.0-only
"""Peers, QPs and paths as the maps hold them: programming them and reading them back.

A peer's QPs are a contiguous range of indices. A QP is programmed while it is
DOWN and no program runs on it any more; the programs own it afterwards.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from mrcd import bpfsys
from mrcd.abi import ABI
from mrcd.config import Config, Peer
from mrcd.datapath import Datapath, wait_for_programs
from mrcd.fabric import usid
from mrcd.handshake import LocalQp, RemoteQp

_PEER = ABI.structs["mrc_peer"]
_PEER_PLANE = ABI.structs["mrc_peer_plane"]
_QP = ABI.structs["mrc_qp"]
_TX = ABI.structs["mrc_tx"]
_RX = ABI.structs["mrc_rx"]
_PATH = ABI.structs["mrc_path"]
_TX_ENTRY = ABI.structs["mrc_tx_entry"]
_RX_ENTRY = ABI.structs["mrc_rx_entry"]
PLANES = ABI.MRC_MAX_PLANES
ALL_PLANES = (1 << PLANES) - 1


def words(address: bytes) -> tuple[int, ...]:
    """An IPv6 address as four words whose bytes in memory are the address."""
    return struct.unpack("=4I", address)


def evs_per_plane(config: Config) -> int:
    """Size of a plane's EV set, a power of two that the fabric fills."""
    size = 1
    while size < min(config.fabric.t1, ABI.MRC_EVS_PER_PLANE):
        size *= 2
    return size


@dataclass(frozen=True, slots=True)
class QpView:
    """A QP as read from the maps."""

    qp: dict[str, int]
    tx: dict[str, int]
    rx: dict[str, int]


class QpTable:
    """The peers and QPs of one data path."""

    def __init__(self, datapath: Datapath, config: Config) -> None:
        self._dp = datapath
        self._config = config
        self._evs: dict[tuple[int, int], tuple[int, ...]] = {}
        self.indices = {peer.name: i for i, peer in enumerate(config.peers)}
        self.per_peer = config.transport.qps_per_peer
        self._paired: dict[str, int] = {}
        self._masks: dict[str, int] = {}

    def base(self, peer: str) -> int:
        """Index of the peer's first QP."""
        return self.indices[peer] * self.per_peer

    # ---- peers

    def add_peer(self, peer: Peer, seed: int) -> None:
        """Program where a peer is and which paths lead to it; its QPs stay DOWN.

        `seed` chooses the paths where the fabric has more than a set holds.
        """
        config, index = self._config, self.indices[peer.name]
        rng = random.Random(seed)
        for plane in range(config.fabric.planes):
            template = usid.template_da(config.fabric.block, config.host, peer.host, plane)
            address = config.fabric.address6(peer.host, plane).packed
            self._dp.write(
                "peer_planes",
                index * PLANES + plane,
                _PEER_PLANE,
                addr=words(address),
                usids=words(template),
            )
            evs = usid.evs_between(config.fabric, config.host, peer.host, plane)
            if len(evs) > self._dp.sizes.evs:
                evs = sorted(rng.sample(evs, self._dp.sizes.evs))
            self._evs[index, plane] = tuple(evs)
        self.set_peer_planes(peer.name, ALL_PLANES)
        for prefix in peer.allowed:
            bpfsys.update(self._dp.maps["prefixes"], _prefix(prefix), struct.pack("=I", index))

    def set_peer_planes(self, peer: str, mask: int) -> None:
        """Which planes the peer says it can be reached on."""
        self._masks[peer] = mask
        self._dp.write(
            "peers",
            self.indices[peer],
            _PEER,
            qp_base=self.base(peer),
            qp_mask=self._paired.get(peer, self.per_peer) - 1,
            plane_mask=mask,
        )

    # ---- QPs

    def configure(self, peer: str, pairs: tuple[tuple[LocalQp, RemoteQp], ...], mpr: int) -> None:
        """Program QPs to receive (RTR). Whatever they were before is forgotten."""
        self.reset(tuple(local.index for local, _remote in pairs))
        # Where one side has fewer QPs, flows are spread over those both have.
        self._paired[peer] = len(pairs)
        self.set_peer_planes(peer, self._masks[peer])
        for local, remote in pairs:
            index = local.index
            sets = self._write_paths(peer, index)
            self._dp.write(
                "txs",
                index,
                _TX,
                next=local.psn,
                una=local.psn,
                high=local.psn,
                plane_next=index % self._config.fabric.planes,
                plane_good=sum(1 << p for p, bits in enumerate(sets) if bits),
                plane_all=sum(1 << p for p, bits in enumerate(sets) if bits),
                good=sets,
                all=sets,
            )
            self._dp.write("rxs", index, _RX, next=remote.psn, high=remote.psn)
            self._write_qp(index, ABI.MRC_QP_RECEIVE, peer, local.qpn, remote.qpn, mpr)

    def _write_paths(self, peer: str, qp: int) -> tuple[int, ...]:
        """Write the QP's EV set; returns each plane's set as a bit mask."""
        masks = []
        for plane in range(PLANES):
            evs = self._evs.get((self.indices[peer], plane), ())
            for k, ev in enumerate(evs):
                self._dp.write("paths", self._path_index(qp, plane, k), _PATH, ev=ev)
            masks.append((1 << len(evs)) - 1)
        return tuple(masks)

    def _path_index(self, qp: int, plane: int, k: int) -> int:
        return (qp * PLANES + plane) * self._dp.sizes.evs + k

    def _write_qp(self, index: int, state: int, peer: str, qpn: int, remote: int, mpr: int) -> None:
        self._dp.write(
            "qps",
            index,
            _QP,
            state=state,
            peer=self.indices[peer],
            qpn=qpn,
            remote_qpn=remote,
            mpr=mpr,
        )

    def ready(self, peer: str) -> None:
        """Let the peer's configured QPs send (RTS)."""
        for index in self.qps_of(peer):
            qp = self._dp.read("qps", index, _QP)
            if qp["state"] == ABI.MRC_QP_RECEIVE:
                self._write_qp(
                    index, ABI.MRC_QP_READY, peer, qp["qpn"], qp["remote_qpn"], qp["mpr"]
                )

    def reset(self, indices: tuple[int, ...]) -> None:
        """Take QPs DOWN and give back the ring slots they hold."""
        live = []
        for index in indices:
            qp = self._dp.read("qps", index, _QP)
            if qp["state"] != ABI.MRC_QP_DOWN:
                live.append(index)
                self._dp.write("qps", index, _QP, **{**qp, "state": ABI.MRC_QP_DOWN, "qpn": 0})
        if not live:
            return
        wait_for_programs()
        for index in live:
            self._free_tx(index)
            self._free_rx(index)

    def _free_tx(self, index: int) -> None:
        raw = self._dp.read_raw("txs", index, _TX.size)
        tx, sacked = _TX.unpack(raw), _TX.unpack_array(raw, "sacked")
        for offset in range((tx["next"] - tx["una"]) & 0xFFFFFFFF):
            psn = (tx["una"] + offset) & 0xFFFFFFFF
            if not self._bit(sacked, psn):
                entry = self._dp.read("tx_entries", self._slot_index(index, psn), _TX_ENTRY)
                if entry["psn"] == psn:
                    bpfsys.update(self._dp.maps["tx_free"], None, struct.pack("=I", entry["slot"]))

    def _free_rx(self, index: int) -> None:
        raw = self._dp.read_raw("rxs", index, _RX.size)
        rx, received = _RX.unpack(raw), _RX.unpack_array(raw, "received")
        for offset in range((rx["high"] - rx["next"]) & 0xFFFFFFFF):
            psn = (rx["next"] + offset) & 0xFFFFFFFF
            if self._bit(received, psn):
                entry = self._dp.read("rx_entries", self._slot_index(index, psn), _RX_ENTRY)
                if entry["psn"] == psn and entry["slot"]:
                    bpfsys.update(
                        self._dp.maps["rx_free"], None, struct.pack("=I", entry["slot"] - 1)
                    )

    def _bit(self, bitmap: tuple[int, ...], psn: int) -> int:
        window = self._dp.sizes.window
        return bitmap[(psn % window) // 64] >> psn % 64 & 1

    def _slot_index(self, qp: int, psn: int) -> int:
        return qp * self._dp.sizes.window + psn % self._dp.sizes.window

    # ---- reading

    def qps_of(self, peer: str) -> range:
        """Indices of the peer's QPs."""
        return range(self.base(peer), self.base(peer) + self.per_peer)

    def view(self, index: int) -> QpView:
        """One QP, as it is now."""
        return QpView(
            self._dp.read("qps", index, _QP),
            self._dp.read("txs", index, _TX),
            self._dp.read("rxs", index, _RX),
        )

    def paths(self, peer: str, index: int) -> list[dict[str, int]]:
        """Every path of a QP as the map holds it, with its plane."""
        found = []
        for plane in range(PLANES):
            for k, _ev in enumerate(self._evs.get((self.indices[peer], plane), ())):
                path = self._dp.read("paths", self._path_index(index, plane, k), _PATH)
                found.append({**path, "plane": plane})
        return found


def _prefix(prefix: IPv4Network | IPv6Network) -> bytes:
    """The longest-prefix key of a network; IPv4 is mapped into ::ffff:0:0/96."""
    packed = prefix.network_address.packed
    if prefix.version == 4:
        return struct.pack("=I", 96 + prefix.prefixlen) + bytes(10) + b"\xff\xff" + packed
    return struct.pack("=I", prefix.prefixlen) + packed
