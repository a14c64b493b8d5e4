# SPDX-License-Identifier: GPL-2.0-only
"""Peers, QPs and paths as the maps hold them: programming them and reading them back.

A peer's QPs are a contiguous range of indices. A QP is programmed while it is
DOWN and no program runs on it any more; the programs own it afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable

from mrcd.config.config import Config, Peer
from mrcd.datapath import census, slots
from mrcd.datapath import view as qpview
from mrcd.datapath.control import Commands
from mrcd.datapath.datapath import Datapath, wait_for_programs
from mrcd.datapath.prefixes import Prefixes
from mrcd.datapath.view import ALL_PLANES, PLANES, Balance, PathView, QpView
from mrcd.fabric import underlay, usid
from mrcd.fabric.hosts import Host
from mrcd.handshake import LocalQp, Memory, RemoteQp
from mrcd.linux import bpf, bpfbatch
from mrcd.paths import evset
from mrcd.wire.abi import ABI

_PEER = ABI.structs["mrc_peer"]
_BALANCE = ABI.structs["mrc_balance"]
_QP = ABI.structs["mrc_qp"]
_TX = ABI.structs["mrc_tx"]
_RX = ABI.structs["mrc_rx"]
_PATH = ABI.structs["mrc_path"]
TOTALS = ("sent", "acked", "lost", "marked")
"""What a path counts for as long as the data path is there, whatever happens to it and its QP."""
_PATH_EV = census.picker(_PATH, "ev")
_PATH_TOTALS = census.picker(_PATH, *TOTALS)
_U32 = struct.Struct("=I")
_ADDRESS_BYTES = 16
EQUAL_SHARES = int.from_bytes(bytes([ABI.MRC_SHARE_FULL] * PLANES), "little")
_BALANCE_AT_FIRST = _BALANCE.pack(shares=EQUAL_SHARES, ports=ALL_PLANES, heard_ports=ALL_PLANES)


def words(address: bytes) -> tuple[int, ...]:
    """An IPv6 address as four words whose bytes in memory are the address."""
    return struct.unpack("=4I", address)


def evs_per_plane(config: Config) -> int:
    """Slots of each plane in a QP's EV set, a power of two."""
    fabric, host = config.fabric, config.host
    # To a T0 that is not ours there are most: room for a peer there, also if none is so far.
    elsewhere = Host("", host.t0 % fabric.t0 + 1, 1, ())
    remote = [peer.host for peer in config.peers] + [elsewhere] * (fabric.t0 > 1)
    paths = max((len(usid.evs_between(fabric, host, there, 0)) for there in remote), default=1)
    return evset.slots_per_plane(paths, fabric.planes, config.transport.evs)


class QpTable:
    """The peers and QPs of one data path."""

    def __init__(self, datapath: Datapath, config: Config) -> None:
        self._dp = datapath
        self._commands = Commands(datapath)
        self._config = config
        self._sets: dict[int, tuple[evset.PlaneSet, ...]] = {}  # by QP
        self._peers = {peer.name: peer for peer in config.peers}
        self.indices: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._free = 0  # no index below is free
        self.per_peer = config.transport.qps_per_peer
        self._paired: dict[str, int] = {}
        self._masks: dict[str, int] = {}
        self.prefixes = Prefixes(datapath)

    def base(self, peer: str) -> int:
        """Index of the peer's first QP."""
        return self.indices[peer] * self.per_peer

    def peer_of(self, qp: int) -> str | None:
        """Whose QP an index is."""
        return self._names.get(qp // self.per_peer)

    # ---- what the maps hold already

    def adopt(self) -> None:
        """Read back which of the configured peers the maps hold, and remove all others.

        For maps that another daemon has programmed, before the first `add_peer`.
        """
        fabric = self._config.fabric
        at = {
            underlay.packed(fabric, peer.host, plane): name
            for name, peer in self._peers.items()
            for plane in range(fabric.planes)
        }
        found: dict[str, set[int]] = {}
        for key in bpf.keys(self._dp.maps["sources"], _ADDRESS_BYTES):
            name = at.get(key)
            if name is None:
                bpf.delete(self._dp.maps["sources"], key)
            else:
                found.setdefault(name, set()).add(self._value("sources", key))
        for name, indices in found.items():
            index = min(indices)
            peer = self._dp.read("peers", index, _PEER)
            if len(indices) == 1 and peer["qp_base"] == index * self.per_peer:
                self._assign(name, index)
                self._paired[name] = peer["qp_mask"] + 1
                self._masks[name] = peer["plane_mask"]
        self.prefixes.adopt()
        unused = (qp for qp in range(self._dp.sizes.qps) if qp // self.per_peer not in self._names)
        self._forget(tuple(unused))

    def _value(self, name: str, key: bytes) -> int:
        raw = bpf.lookup(self._dp.maps[name], key, 4)
        return struct.unpack("=I", raw)[0] if raw is not None else -1

    def _assign(self, name: str, index: int) -> None:
        self.indices[name] = index
        self._names[index] = name

    def holds(self, peer: str, memory: Memory) -> bool:
        """Whether the maps hold exactly the QPs that a session remembers, in use."""
        if peer not in self.indices or peer not in self._masks:
            return False
        pairs = list(zip(memory.qps, memory.offer.qps, strict=False))
        if [local.index for local, _ in pairs] != list(self.qps_of(peer))[: len(pairs)]:
            return False
        for local, (remote_qpn, _psn) in pairs:
            there = self._dp.read("qps", local.index, _QP)
            wanted = {"state": ABI.MRC_QP_READY, "qpn": local.qpn, "remote_qpn": remote_qpn}
            wanted["peer"] = self.indices[peer]
            if not wanted.items() <= there.items():
                return False
            if not self._has_paths(local.index, self._choose_paths(peer, local.index)):
                return False
        return True

    def _has_paths(self, qp: int, sets: tuple[evset.PlaneSet, ...]) -> bool:
        """Whether a QP's paths are those of an EV set; it is the QP's from now on, if so."""
        for plane, one in enumerate(sets):
            for slot in {0, len(one.evs) - 1} if one.evs else ():
                path = self._dp.read("paths", qpview.path_index(self._dp, qp, plane, slot), _PATH)
                if path["ev"] != one.evs[slot]:
                    return False
        self._sets[qp] = sets
        return True

    def peer_planes(self, peer: str) -> int:
        """Which planes the peer said it can be reached on."""
        return self._masks[peer]

    # ---- peers

    def reconfigure(self, config: Config) -> None:
        """From now on this is the configuration; its peers are to be added and removed."""
        self._config = config
        self._peers = {peer.name: peer for peer in config.peers}

    def add_peer(self, peer: Peer) -> None:
        """Program where a peer is; its QPs stay as they are, at first DOWN."""
        self.add_peers((peer,))

    def add_peers(self, peers: Iterable[Peer]) -> None:
        """The same for many, in few system calls."""
        # Written in this order: a prefix leads to what is there already.
        entries: dict[str, dict[bytes, bytes]] = {
            name: {}
            for name in ("peer_planes", "sources", "balances", "peers", "addresses", "prefixes")
        }
        for peer in peers:
            self._enter(peer, entries)
        for name, values in entries.items():
            bpfbatch.update(self._dp.maps[name], values)

    def _enter(self, peer: Peer, entries: dict[str, dict[bytes, bytes]]) -> None:
        known = peer.name in self._masks
        if peer.name not in self.indices:
            self._assign(peer.name, self._free_index())
        config, index = self._config, self.indices[peer.name]
        own = _U32.pack(index)
        for plane in range(config.fabric.planes):
            template = usid.template_da(config.fabric.block, config.host, peer.host, plane)
            address = underlay.packed(config.fabric, peer.host, plane)
            entries["peer_planes"][_U32.pack(index * PLANES + plane)] = address + template
            entries["sources"][address] = own
        if not known:
            self._masks[peer.name] = ALL_PLANES
            entries["balances"][own] = _BALANCE_AT_FIRST
            entries["peers"][own] = self._peer_entry(peer.name)
        for prefix in peer.allowed:
            name, key = self.prefixes.add(prefix)
            entries[name][key] = own

    def _free_index(self) -> int:
        while self._free in self._names:
            self._free += 1
        return self._free

    def drop_prefixes(self) -> list[str]:
        """Remove the prefixes that no configured peer is allowed any more; returns them."""
        return self.prefixes.keep(p for peer in self._peers.values() for p in peer.allowed)

    def remove_peer(self, peer: Peer) -> None:
        """Forget a peer whose prefixes are dropped already: its QPs, addresses and place."""
        if peer.name not in self.indices:
            return
        self._forget(tuple(self.qps_of(peer.name)))
        for plane in range(self._config.fabric.planes):
            address = underlay.packed(self._config.fabric, peer.host, plane)
            bpf.delete(self._dp.maps["sources"], address)
        for qp in self.qps_of(peer.name):
            self._sets.pop(qp, None)
        index = self.indices.pop(peer.name)
        del self._names[index]
        self._free = min(self._free, index)
        self._dp.write("peers", index, _PEER)
        self._masks.pop(peer.name, None)
        self._paired.pop(peer.name, None)

    def set_peer_planes(self, peer: str, mask: int) -> None:
        """Which planes the peer says it can be reached on."""
        self._masks[peer] = mask
        key = _U32.pack(self.indices[peer])
        bpf.update(self._dp.maps["peers"], key, self._peer_entry(peer))

    def _peer_entry(self, peer: str) -> bytes:
        return _PEER.pack(
            qp_base=self.base(peer),
            qp_mask=self._paired.get(peer, self.per_peer) - 1,
            plane_mask=self._masks[peer],
        )

    # ---- QPs

    def configure(self, peer: str, pairs: tuple[tuple[LocalQp, RemoteQp], ...], mpr: int) -> None:
        """Program QPs to receive (RTR). Whatever they were before is forgotten, but for totals."""
        self.reset(tuple(local.index for local, _remote in pairs))
        # Where one side has fewer QPs, flows are spread over those both have.
        self._paired[peer] = len(pairs)
        self.set_peer_planes(peer, self._masks[peer])
        for local, remote in pairs:
            index = local.index
            sets = self._write_paths(peer, index)
            before = self.view(index)
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
                floor=self._config.transport.ev_min_active or sum(active) // 4,
            )
            packets = before.rx["packets"]
            self._dp.write("rxs", index, _RX, next=remote.psn, high=remote.psn, packets=packets)
            self._write_qp(index, ABI.MRC_QP_RECEIVE, peer, local.qpn, remote.qpn, mpr)

    def _choose_paths(self, peer: str, qp: int) -> tuple[evset.PlaneSet, ...]:
        """The QP's EV set, a set for each plane; the same each time."""
        fabric, host = self._config.fabric, self._config.host
        target = self._peers[peer].host
        return evset.generate(
            [usid.evs_between(fabric, host, target, plane) for plane in range(fabric.planes)],
            self._config.transport.evs,
            self._dp.sizes.evs,
            f"{host.name} {peer} {qp - self.base(peer)}",
        )

    def _write_paths(self, peer: str, qp: int) -> tuple[evset.PlaneSet, ...]:
        """Choose and write the QP's EV set; returns it, a set for each plane.

        What a path has counted stays, as long as its slot holds the same EV.
        """
        sets = self._choose_paths(peer, qp)
        for plane, one in enumerate(sets):
            first = qpview.path_index(self._dp, qp, plane, 0)
            before = bpfbatch.lookup(self._dp.maps["paths"], first, len(one.evs), _PATH.size)
            values = [_path_entry(ev, raw) for ev, raw in zip(one.evs, before, strict=True)]
            bpfbatch.update_array(self._dp.maps["paths"], first, values)
        self._sets[qp] = sets
        return sets

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

    def pause(self) -> None:
        """Take no more packets from mrc0; what is outstanding goes on being sent again."""
        self.prefixes.clear()

    def quiet(self) -> bool:
        """Whether nothing is outstanding, waiting for order or owed a SACK."""
        for peer in self.indices:
            for index in self.qps_of(peer):
                view = self.view(index)
                tx, rx = view.tx, view.rx
                if not view.qp["state"]:
                    continue
                if tx["next"] != tx["una"] or rx["waiting"] or rx["pending_packets"]:
                    return False
        return True

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
            slots.give_back(self._dp, index)

    def _forget(self, indices: tuple[int, ...]) -> None:
        """Reset QPs, and forget their totals too: the next peer with their place is another one."""
        self.reset(indices)
        for index in indices:
            if not self._dp.read("qps", index, _QP)["mpr"]:
                continue  # it was never set up
            count = PLANES * self._dp.sizes.evs
            first = qpview.path_index(self._dp, index, 0, 0)
            bpfbatch.update_array(self._dp.maps["paths"], first, [bytes(_PATH.size)] * count)
            for name, kind in (("txs", _TX), ("rxs", _RX), ("qps", _QP)):
                self._dp.write(name, index, kind)

    def deny(self, index: int, plane: int, slot: int, *, denied: bool) -> None:
        """Make a path of a QP DENIED, or end that; CommandRefused when it has no such path."""
        self._commands.deny(index, plane, slot, denied=denied)

    def set_ports(self, peer: str, mask: int) -> None:
        """A peer takes packets on these planes; its next Port Status Update counts anyhow."""
        self._commands.set_ports(self.indices[peer], mask)

    # ---- reading

    def every_ports(self) -> dict[str, int]:
        """The mask of planes that each peer takes packets on, as its updates and its SACKs say."""
        places = range(max(self.indices.values(), default=-1) + 1)
        masks = [
            qpview.ports_of(raw)
            for raw in bpfbatch.rows(self._dp.maps["balances"], places, _BALANCE.size)
        ]
        return {peer: masks[index] for peer, index in self.indices.items()}

    def qps_of(self, peer: str) -> range:
        """Indices of the peer's QPs."""
        return range(self.base(peer), self.base(peer) + self.per_peer)

    def view(self, index: int) -> QpView:
        """One QP, as it is now."""
        return qpview.read(self._dp, index)

    def paths(self, index: int) -> list[PathView]:
        """Every path of a QP as the maps hold it; none before its EV set was chosen."""
        return qpview.paths(self._dp, index, self._sets.get(index, ()))

    def denied_slots(self, index: int) -> set[tuple[int, int]]:
        """The planes and slots of a QP's set that are DENIED."""
        return qpview.denied_slots(self._dp, index)

    @property
    def configured(self) -> Collection[int]:
        """Indices of the QPs that were set up, whether they still are or not."""
        return self._sets.keys()

    def evs(self, index: int) -> tuple[evset.PlaneSet, ...]:
        """The EV set of a QP, a set for each plane; empty while it was never configured."""
        return self._sets.get(index, ())

    def balance(self, peer: str) -> Balance:
        """What the programs think of a peer's planes."""
        raw = self._dp.read_raw("balances", self.indices[peer], _BALANCE.size)
        return qpview.balance_of(raw, self._config.fabric.planes)


def _path_entry(ev: int, before: bytes) -> bytes:
    """A path that has happened nothing yet; `before`: what its slot holds so far."""
    if _PATH_EV(before) != (ev,):
        return _PATH.pack(ev=ev)
    totals = dict(zip(TOTALS, _PATH_TOTALS(before), strict=True))
    return _PATH.pack(ev=ev, **totals)


def _filled(bitmap: tuple[int, ...]) -> tuple[int, ...]:
    """All words of the sets of a QP, those of planes that are not there zero."""
    return bitmap + (0,) * (ABI.MRC_SET_WORDS - len(bitmap))
