# SPDX-License-Identifier: GPL-2.0-only
"""QPs and their EV sets as the maps hold them.

A peer's QPs are a contiguous range of indices. A QP is programmed while it is DOWN and no program
runs on it any more; from then on the programs own it.
"""

from __future__ import annotations

from collections.abc import Collection

from mrcd.config.config import Config, Current, Peer
from mrcd.datapath import slots, view
from mrcd.datapath.control import Commands
from mrcd.datapath.datapath import Datapath, wait_for_programs
from mrcd.datapath.keytable import KeyTable
from mrcd.datapath.peertable import PeerTable
from mrcd.datapath.view import PLANES
from mrcd.fabric import underlay
from mrcd.fabric.hosts import Host
from mrcd.handshake import LocalQp, Memory, RemoteQp
from mrcd.linux import bpfbatch
from mrcd.paths import evset
from mrcd.wire.abi import ABI
from mrcd.wire.layout import picker

_QP = ABI.structs["mrc_qp"]
_TX = ABI.structs["mrc_tx"]
_RX = ABI.structs["mrc_rx"]
_PATH = ABI.structs["mrc_path"]
_KEYS = ABI.structs["mrc_keys"]
TOTALS = ("sent", "acked", "lost", "marked")
"""Members of mrc_path that count for as long as the data path exists, across sessions of its QP."""
_PATH_EV = picker(_PATH, "ev")
_PATH_TOTALS = picker(_PATH, *TOTALS)


def evs_per_plane(config: Config) -> int:
    """Return the slots of each plane in a QP's EV set, a power of two."""
    fabric, host = config.fabric, config.host
    # Peers on another T0 have the most paths. Leave room for one even if none is configured.
    elsewhere = Host("", host.t0 % max(1, fabric.t0) + 1, 1, ())
    remote = [peer.host for peer in config.peers] + [elsewhere] * (fabric.t0 > 1)
    paths = max((len(underlay.of(fabric).evs(host, there, 0)) for there in remote), default=1)
    return evset.slots_per_plane(paths, fabric.planes, config.transport.evs)


class QpTable:
    """The QPs of one data path. `peers` holds the peers that they lead to, `keys` their keys."""

    def __init__(self, datapath: Datapath, config: Current) -> None:
        self._dp = datapath
        self._commands = Commands(datapath)
        self._config = config
        self._sets: dict[int, tuple[evset.PlaneSet, ...]] = {}  # by QP
        self.peers = PeerTable(datapath, config)
        self.keys = KeyTable(datapath, config().host.name, self.peers.indices, self.peers.per_peer)

    def qps_of(self, peer: str) -> range:
        """Return the indices of the peer's QPs."""
        base = self.peers.base(peer)
        return range(base, base + self.peers.per_peer)

    def adopt(self) -> None:
        """Read back what another daemon has programmed; reset the QPs that no peer has."""
        self.peers.adopt()
        every = range(self._dp.sizes.qps)
        self._forget(tuple(qp for qp in every if self.peers.peer_of(qp) is None))

    def remove_peer(self, peer: Peer) -> None:
        """Forget a peer whose prefixes are dropped already: its QPs, addresses and place."""
        if peer.name not in self.peers.indices:
            return
        qps = self.qps_of(peer.name)
        self._forget(tuple(qps))
        for qp in qps:
            self._sets.pop(qp, None)
        self.keys.remove(peer.name)
        self.peers.remove(peer)

    def holds(
        self,
        peer: str,
        memory: Memory,
        *,
        cells: bool,
        trims: bool = False,
        timed: bool = False,
    ) -> bool:
        """Return whether the maps hold exactly the QPs that a session remembers, in use.

        cells: whether their data goes in cells. trims: whether switches trim data to the peer.
        timed: whether SACKs of cells say when they were sent.
        """
        if peer not in self.peers.planes:
            return False
        pairs = list(zip(memory.qps, memory.offer.qps, strict=False))
        if [local.index for local, _ in pairs] != list(self.qps_of(peer))[: len(pairs)]:
            return False
        for local, (remote_qpn, _psn) in pairs:
            there = self._dp.read("qps", local.index, _QP)
            wanted = {"state": ABI.MRC_QP_READY, "qpn": local.qpn, "remote_qpn": remote_qpn}
            wanted["peer"] = self.peers.indices[peer]
            wanted["framing"] = _framing(cells)
            wanted["trims"] = int(trims)
            wanted["timed"] = int(timed)
            if not wanted.items() <= there.items():
                return False
            if not self._has_paths(local.index, self._choose_paths(peer, local.index)):
                return False
        return True

    def _has_paths(self, qp: int, sets: tuple[evset.PlaneSet, ...]) -> bool:
        """Return whether a QP's paths are those of an EV set; if so, it is the QP's from now on."""
        for plane, one in enumerate(sets):
            for slot in {0, len(one.evs) - 1} if one.evs else ():
                path = self._dp.read("paths", view.path_index(self._dp, qp, plane, slot), _PATH)
                if path["ev"] != one.evs[slot]:
                    return False
        self._sets[qp] = sets
        return True

    # ---- up and down

    def configure(
        self,
        peer: str,
        pairs: tuple[tuple[LocalQp, RemoteQp], ...],
        mpr: int,
        *,
        cells: bool = False,
        trims: bool = False,
        timed: bool = False,
    ) -> None:
        """Program QPs to receive (RTR). Their earlier state is forgotten, except for totals.

        cells: whether their data goes in cells. trims: whether switches trim data to the peer.
        timed: whether SACKs of cells say when they were sent.
        """
        self.reset(tuple(local.index for local, _remote in pairs))
        self.peers.pair(peer, len(pairs))
        for local, remote in pairs:
            index = local.index
            sets = self._write_paths(peer, index)
            before = view.read(self._dp, index)
            in_use = tuple(word for one in sets for word in evset.words(one.active))
            there = tuple(word for one in sets for word in evset.words(len(one.evs)))
            spare = tuple(a & ~u for a, u in zip(there, in_use, strict=True))
            planes = sum(1 << p for p, one in enumerate(sets) if one.evs)
            active = tuple(one.active for one in sets) + (0,) * (PLANES - len(sets))
            self._dp.write(
                "txs",
                index,
                _TX,
                packets=before.tx["packets"],
                retransmits=before.tx["retransmits"],
                next=local.psn,
                una=local.psn,
                high=local.psn,
                round=index * 0x9E3779B1 & 0xFFFFFFFF,
                plane_use=planes,
                plane_open=planes,
                use=_filled(in_use),
                spare=_filled(spare),
                all=_filled(there),
                active=active,
                used=active,
                used_all=sum(active),
                floor=self._config().transport.ev_min_active or sum(active) // 4,
            )
            packets = before.rx["packets"]
            self._dp.write("rxs", index, _RX, next=remote.psn, high=remote.psn, packets=packets)
            self.keys.configure(peer, index, local.qpn, remote.qpn)
            self._dp.write(
                "qps",
                index,
                _QP,
                state=ABI.MRC_QP_RECEIVE,
                peer=self.peers.indices[peer],
                qpn=local.qpn,
                remote_qpn=remote.qpn,
                mpr=mpr,
                framing=_framing(cells),
                trims=int(trims),
                timed=int(timed),
            )

    def _choose_paths(self, peer: str, qp: int) -> tuple[evset.PlaneSet, ...]:
        """Return the QP's EV set, a set for each plane. It is the same each time."""
        fabric, host = self._config().fabric, self._config().host
        target = self._config().by_name[peer].host
        return evset.generate(
            [underlay.of(fabric).evs(host, target, plane) for plane in range(fabric.planes)],
            self._config().transport.evs,
            self._dp.sizes.evs,
            f"{host.name} {peer} {qp - self.peers.base(peer)}",
        )

    def _write_paths(self, peer: str, qp: int) -> tuple[evset.PlaneSet, ...]:
        """Choose, write and return the QP's EV set, a set for each plane.

        A path keeps its totals as long as its slot holds the same EV.
        """
        sets = self._choose_paths(peer, qp)
        for plane, one in enumerate(sets):
            first = view.path_index(self._dp, qp, plane, 0)
            before = bpfbatch.lookup(self._dp.maps["paths"], first, len(one.evs), _PATH.size)
            values = [_path_entry(ev, raw) for ev, raw in zip(one.evs, before, strict=True)]
            bpfbatch.update_array(self._dp.maps["paths"], first, values)
        self._sets[qp] = sets
        return sets

    def ready(self, peer: str) -> None:
        """Let the peer's configured QPs send (RTS)."""
        for index in self.qps_of(peer):
            qp = self._dp.read("qps", index, _QP)
            if qp["state"] == ABI.MRC_QP_RECEIVE:
                self._dp.write("qps", index, _QP, **{**qp, "state": ABI.MRC_QP_READY})

    def quiet(self) -> bool:
        """Return whether no packet is outstanding, held behind a gap or without its SACK."""
        for peer in self.peers.indices:
            for index in self.qps_of(peer):
                one = view.read(self._dp, index)
                tx, rx = one.tx, one.rx
                if one.qp["state"] < ABI.MRC_QP_RECEIVE:
                    continue
                if tx["next"] != tx["una"] or rx["waiting"] or rx["pending_packets"]:
                    return False
        return True

    def reset(self, indices: tuple[int, ...]) -> None:
        """Take QPs DOWN and give back the ring slots they hold.

        One in ERROR stays there until it is configured: its packets are dropped for that reason.
        """
        live = []
        for index in indices:
            qp = self._dp.read("qps", index, _QP)
            if qp["state"] != ABI.MRC_QP_DOWN and qp["qpn"]:
                live.append(index)
                failed = qp["state"] == ABI.MRC_QP_ERROR
                state = ABI.MRC_QP_ERROR if failed else ABI.MRC_QP_DOWN
                self._dp.write("qps", index, _QP, **{**qp, "state": state, "qpn": 0})
        if not live:
            return
        wait_for_programs()
        for index in live:
            slots.give_back(self._dp, index)

    def has_failed(self, index: int) -> bool:
        """Return whether a QP gave up and has not been reset since."""
        qp = self._dp.read("qps", index, _QP)
        return qp["state"] == ABI.MRC_QP_ERROR and qp["qpn"] != 0

    def _forget(self, indices: tuple[int, ...]) -> None:
        """Reset QPs and clear their totals, because another peer may take their place."""
        self.reset(indices)
        for index in indices:
            if not self._dp.read("qps", index, _QP)["mpr"]:
                continue  # it was never set up
            count = PLANES * self._dp.sizes.evs
            first = view.path_index(self._dp, index, 0, 0)
            bpfbatch.update_array(self._dp.maps["paths"], first, [bytes(_PATH.size)] * count)
            for name, kind in (("txs", _TX), ("rxs", _RX), ("qps", _QP), ("keys", _KEYS)):
                self._dp.write(name, index, kind)

    # ---- EV sets

    def deny(self, index: int, plane: int, slot: int, *, denied: bool) -> None:
        """Make a path of a QP DENIED, or allow it again. CommandRefused if the path is unknown."""
        self._commands.deny(index, plane, slot, denied=denied)

    def denied_slots(self, index: int) -> set[tuple[int, int]]:
        """Return the planes and slots of a QP's set that are DENIED."""
        return view.denied_slots(self._dp, index)

    @property
    def configured(self) -> Collection[int]:
        """Return the indices of the QPs that were ever set up, or taken over in use."""
        return self._sets.keys()

    def evs(self, index: int) -> tuple[evset.PlaneSet, ...]:
        """Return the EV set of a QP, a set for each plane; empty until it is first configured."""
        return self._sets.get(index, ())


def _framing(cells: bool) -> int:
    return ABI.MRC_FRAMING_CELL if cells else ABI.MRC_FRAMING_MRC


def _path_entry(ev: int, before: bytes) -> bytes:
    """Return the entry of a fresh path; `before`, the slot's old entry, may give it its totals."""
    if _PATH_EV(before) != (ev,):
        return _PATH.pack(ev=ev)
    totals = dict(zip(TOTALS, _PATH_TOTALS(before), strict=True))
    return _PATH.pack(ev=ev, **totals)


def _filled(bitmap: tuple[int, ...]) -> tuple[int, ...]:
    """Return all words of a set of a QP; those of missing planes are zero."""
    return bitmap + (0,) * (ABI.MRC_SET_WORDS - len(bitmap))
