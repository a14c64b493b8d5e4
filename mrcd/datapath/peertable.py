# SPDX-License-Identifier: GPL-2.0-only
"""Peers as the maps hold them: addresses, planes, prefixes, balances and the place of their QPs."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping

from mrcd.config.config import Current, Peer
from mrcd.config.overlap import Prefix, within
from mrcd.datapath import carried, view
from mrcd.datapath.control import Commands
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.prefixes import Prefixes
from mrcd.datapath.view import ALL_PLANES, PLANES, Balance
from mrcd.fabric import underlay
from mrcd.linux import bpf, bpfbatch
from mrcd.wire.abi import ABI

_PEER = ABI.structs["mrc_peer"]
_BALANCE = ABI.structs["mrc_balance"]
_U32 = struct.Struct("=I")
_PEER_PLANE = ABI.structs["mrc_peer_plane"]
_ADDRESS_BYTES = 16
_MAC_BYTES = 6
_SELF = _U32.pack(ABI.MRC_OWNER_SELF)
EQUAL_SHARES = int.from_bytes(bytes([ABI.MRC_SHARE_FULL] * PLANES), "little")
_BALANCE_AT_FIRST = _BALANCE.pack(
    shares=EQUAL_SHARES, turns=EQUAL_SHARES, ports=ALL_PLANES, heard_ports=ALL_PLANES
)


class PeerTable:
    """The peers of one data path.

    `indices` holds the place of each peer in the maps, `planes` the mask of planes on which each
    peer says that it can be reached, `per_peer` the number of QPs that each peer has. Without a
    fabric, `next_hops` has the MAC address that leads to a peer on a plane, where it is known.
    `spare` holds the mask of planes that carry data to a peer only while no other one can, beside
    those that this host keeps as standby for all peers, and `far` those that are so because the way
    is far longer than others.

    Turns of planes go by what they carry: by the lesser of both hosts' rates, and of what is in
    between where that is known.
    """

    def __init__(self, datapath: Datapath, config: Current) -> None:
        self._dp = datapath
        self._commands = Commands(datapath)
        self._config = config
        self.indices: dict[str, int] = {}
        self.planes: dict[str, int] = {}
        self.spare: dict[str, int] = {}
        self.far: dict[str, int] = {}
        self.per_peer = config().transport.qps_per_peer
        self.next_hops: dict[tuple[str, int], bytes] = {}
        self._unheard: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self.rates: tuple[int, ...] = ()
        """What our planes should carry, Mb/s, 0 where unknown; `set_rates` changes it."""
        self._their_rates: dict[str, tuple[int, ...]] = {}
        self.prefixes = Prefixes(datapath)
        self._names: dict[int, str] = {}
        self._free = 0  # no index below is free
        self._paired: dict[str, int] = {}
        self.followed: dict[Prefix, str] = {}
        """The prefixes that belong to peers by routes of others, with the peers' names."""

    def base(self, peer: str) -> int:
        """Return the index of the peer's first QP."""
        return self.indices[peer] * self.per_peer

    def peer_of(self, qp: int) -> str | None:
        """Return the peer that a QP index belongs to; None where no peer has the place."""
        return self._names.get(qp // self.per_peer)

    def adopt(self) -> None:
        """Read back which of the configured peers the maps hold, and remove the others' addresses.

        For maps that another daemon has programmed, before the first `add`.
        """
        fabric = self._config().fabric
        at = {
            underlay.of(fabric).packed(peer.host, plane): peer.name
            for peer in self._config().peers
            for plane in range(fabric.planes)
            if underlay.of(fabric).leads(peer.host, plane)
        }
        found: dict[str, set[int]] = {}
        for key in bpf.keys(self._dp.maps["sources"], _ADDRESS_BYTES):
            name = at.get(key)
            if name is None:
                bpf.delete(self._dp.maps["sources"], key)
            else:
                found.setdefault(name, set()).add(self._index_at(key))
        for name, indices in found.items():
            index = min(indices)
            peer = self._dp.read("peers", index, _PEER)
            if len(indices) == 1 and peer["qp_base"] == index * self.per_peer:
                self._assign(name, index)
                self._paired[name] = peer["qp_mask"] + 1
                self._adopt_next_hops(name, index)
                self._numbers[name] = peer["ours"]
                self.planes[name] = peer["plane_mask"] | (ALL_PLANES & ~self.reached(name))
                self.spare[name] = peer["spare"]
                self.far[name] = peer["far"]
        self.prefixes.adopt()
        self._adopt_followed()

    def _adopt_followed(self) -> None:
        """Read back the prefixes that another daemon has followed, until `follow` knows better."""
        owned, routed = self._owned(), self._config().mrc0.routed
        for prefix in self.prefixes.all:
            if prefix in owned or not any(within(prefix, each) for each in routed):
                continue
            index = self.prefixes.owner(prefix)
            if index is not None and (name := self._names.get(index)) is not None:
                self.followed[prefix] = name

    def _adopt_next_hops(self, name: str, index: int) -> None:
        if not underlay.of(self._config().fabric).next_hops:
            return
        for plane in range(self._config().fabric.planes):
            raw = self._dp.read_raw("peer_planes", index * PLANES + plane, _PEER_PLANE.size)
            mac = raw[_ADDRESS_BYTES : _ADDRESS_BYTES + _MAC_BYTES]
            if any(mac):
                self.next_hops[name, plane] = mac

    def _index_at(self, address: bytes) -> int:
        raw = bpf.lookup(self._dp.maps["sources"], address, _U32.size)
        return _U32.unpack(raw)[0] if raw is not None else -1

    def _assign(self, name: str, index: int) -> None:
        self.indices[name] = index
        self._names[index] = name

    # ---- added and removed

    def add(self, peers: Iterable[Peer]) -> None:
        """Program where peers and this host are, in few system calls.

        QPs stay as they are, at first DOWN.
        """
        # Written in this order, so that a prefix leads only to entries that exist.
        entries: dict[str, dict[bytes, bytes]] = {
            name: {}
            for name in ("peer_planes", "sources", "balances", "peers", "addresses", "prefixes")
        }
        for prefix in self._config().own_prefixes:
            name, key = self.prefixes.add(prefix)
            entries[name][key] = _SELF
        for peer in peers:
            self._enter(peer, entries)
        for name, values in entries.items():
            bpfbatch.update(self._dp.maps[name], values)

    def _enter(self, peer: Peer, entries: dict[str, dict[bytes, bytes]]) -> None:
        known = peer.name in self.planes
        if peer.name not in self.indices:
            self._assign(peer.name, self._free_index())
        config, index = self._config(), self.indices[peer.name]
        own = _U32.pack(index)
        for plane in range(config.fabric.planes):
            address = underlay.of(config.fabric).packed(peer.host, plane)
            entries["peer_planes"][_U32.pack(index * PLANES + plane)] = self._way(peer, plane)
            if underlay.of(config.fabric).leads(peer.host, plane):
                entries["sources"][address] = own
        if not known:
            self.spare.setdefault(peer.name, peer.host.spare)
            self.planes[peer.name] = ALL_PLANES
            entries["balances"][own] = _BALANCE_AT_FIRST
            entries["peers"][own] = self._entry(peer.name)
        for prefix in peer.allowed:
            name, key = self.prefixes.add(prefix)
            entries[name][key] = own

    def _way(self, peer: Peer, plane: int) -> bytes:
        """Return the entry of map peer_planes: the peer's address, and what leads to it."""
        config = self._config()
        across = underlay.of(config.fabric)
        if not across.leads(peer.host, plane):
            return bytes(_PEER_PLANE.size)
        leads = across.way(config.host, peer.host, plane).template
        if across.next_hops:
            leads = self.next_hops.get((peer.name, plane), bytes(_MAC_BYTES))
        return (across.packed(peer.host, plane) + (leads or b"")).ljust(_PEER_PLANE.size, b"\0")

    def reached(self, peer: str) -> int:
        """Return the mask of planes on which it is known which neighbour leads to a peer."""
        if not underlay.of(self._config().fabric).next_hops:
            return ALL_PLANES
        planes = range(self._config().fabric.planes)
        return sum(1 << plane for plane in planes if (peer, plane) in self.next_hops)

    def shared(self, peer: Peer) -> int:
        """Return the mask of our planes that a peer is on, too."""
        fabric = self._config().fabric
        across = underlay.of(fabric)
        return sum(1 << p for p in range(fabric.planes) if across.leads(peer.host, p))

    def _addresses(self, peer: Peer) -> set[bytes]:
        """Return the addresses of a peer's NICs, as the maps have them."""
        fabric = self._config().fabric
        across = underlay.of(fabric)
        planes = (plane for plane in range(fabric.planes) if across.leads(peer.host, plane))
        return {across.packed(peer.host, plane) for plane in planes}

    def set_next_hop(self, peer: Peer, plane: int, mac: bytes) -> None:
        """Send to a peer by this neighbour on a plane from now on, or once the peer is added."""
        self.next_hops[peer.name, plane] = mac
        if peer.name in self.planes:
            key = _U32.pack(self.indices[peer.name] * PLANES + plane)
            bpf.update(self._dp.maps["peer_planes"], key, self._way(peer, plane))
            self.set_planes(peer.name, self.planes[peer.name])

    def readdress(self, before: Peer, after: Peer) -> None:
        """Take packets from a peer's new addresses, and send to them; its QPs stay.

        Which neighbours lead there is found out, and told by `set_next_hop`.
        """
        for plane in range(self._config().fabric.planes):
            if after.host.endpoints[plane].is_unspecified:
                self.next_hops.pop((after.name, plane), None)
        entries: dict[str, dict[bytes, bytes]] = {"peer_planes": {}, "sources": {}}
        self._enter(after, {**entries, "addresses": {}, "prefixes": {}})
        for name, values in entries.items():
            bpfbatch.update(self._dp.maps[name], values)
        for address in self._addresses(before) - self._addresses(after):
            bpf.delete(self._dp.maps["sources"], address)
        self.set_planes(after.name, self.planes[after.name])
        self.set_spare(after.name, after.host.spare)

    def _free_index(self) -> int:
        while self._free in self._names:
            self._free += 1
        return self._free

    def drop_prefixes(self) -> list[str]:
        """Remove and return the prefixes that neither we nor a configured peer have any more."""
        owned = self._owned()
        # What the configuration says by now is no route's any more, and stays when that goes.
        self.followed = {p: name for p, name in self.followed.items() if p not in owned}
        return self.prefixes.keep((*owned, *self.followed))

    def _owned(self) -> set[Prefix]:
        """Return the prefixes that the configuration gives to us and to peers."""
        config = self._config()
        return {*config.own_prefixes, *(each for peer in config.peers for each in peer.allowed)}

    def follow(self, leads: Mapping[Prefix, str]) -> None:
        """Have these prefixes be peers', by name, because routes of others lead there.

        None of them is in the configuration. OSError if they do not fit.
        """
        self._unfollow(self.followed.keys() - leads.keys())
        for prefix, name in leads.items():
            if self.followed.get(prefix) != name and name in self.indices:
                self.prefixes.lead(prefix, self.indices[name])
                self.followed[prefix] = name

    def _unfollow(self, prefixes: Iterable[Prefix]) -> None:
        for prefix in prefixes:
            del self.followed[prefix]
            self.prefixes.lead(prefix, None)

    def remove(self, peer: Peer) -> None:
        """Forget a peer whose prefixes are dropped and whose QPs are forgotten already."""
        self._unfollow([prefix for prefix, name in self.followed.items() if name == peer.name])
        for address in self._addresses(peer):
            bpf.delete(self._dp.maps["sources"], address)
        index = self.indices.pop(peer.name)
        del self._names[index]
        self._free = min(self._free, index)
        self._dp.write("peers", index, _PEER)
        self.planes.pop(peer.name, None)
        self._paired.pop(peer.name, None)
        self._unheard.pop(peer.name, None)
        self._numbers.pop(peer.name, None)
        self.spare.pop(peer.name, None)
        self.far.pop(peer.name, None)
        self._their_rates.pop(peer.name, None)
        for plane in range(self._config().fabric.planes):
            self.next_hops.pop((peer.name, plane), None)

    # ---- changed

    def set_planes(self, peer: str, mask: int) -> None:
        """Note on which planes the peer says that it can be reached."""
        self.planes[peer] = mask
        bpf.update(self._dp.maps["peers"], _U32.pack(self.indices[peer]), self._entry(peer))

    def set_numbering(self, peer: str, word: int) -> None:
        """Note which of our planes a peer's are, as the data path has it (fabric/numbering.py)."""
        self._numbers[peer] = word
        self.set_planes(peer, self.planes[peer])

    def set_spare(self, peer: str, mask: int) -> None:
        """Note which planes to a peer are spare: they carry data only while no other one can.

        That stays until it is set anew, also for a peer that is added later. Where all planes are
        spare, none is.
        """
        if self.spare.get(peer, 0) == mask:
            return
        self.spare[peer] = mask
        if peer in self.planes:
            bpf.update(self._dp.maps["peers"], _U32.pack(self.indices[peer]), self._entry(peer))

    def set_far(self, peer: str, mask: int) -> None:
        """Note which planes to a peer are spare because the way is far longer than others."""
        self.far[peer] = mask
        bpf.update(self._dp.maps["peers"], _U32.pack(self.indices[peer]), self._entry(peer))

    def set_rates(self, rates: tuple[int, ...]) -> None:
        """Note what our planes should carry, Mb/s by plane, 0 where unknown."""
        if self.rates == rates:
            return
        self.rates = rates
        entries = {_U32.pack(self.indices[peer]): self._entry(peer) for peer in self.planes}
        bpfbatch.update(self._dp.maps["peers"], entries)

    def set_their_rates(self, peer: str, rates: tuple[int, ...]) -> None:
        """Note what a peer says that its planes should carry, Mb/s by our planes, 0: unknown."""
        if self._their_rates.get(peer) == rates:
            return
        self._their_rates[peer] = rates
        if peer in self.planes:
            bpf.update(self._dp.maps["peers"], _U32.pack(self.indices[peer]), self._entry(peer))

    def spares(self, peer: str) -> int:
        """Return the mask of planes to a peer that are spare for any reason (bpf/pick.h)."""
        return self._config().standby | self.spare.get(peer, 0) | self.far.get(peer, 0)

    def weights(self, peer: str) -> int:
        """Return the parts of a turn that planes to a peer get by what they carry (carried.py)."""
        rates = carried.common(self.rates, self._their_rates.get(peer, ()))
        if (known := self._config().by_name.get(peer)) is not None:
            rates = carried.common(rates, [rank.mbps for rank in known.host.ranks])
        return carried.weights(rates, self.spares(peer))

    def pair(self, peer: str, qps: int) -> None:
        """Spread flows over the first `qps` QPs: where one side has fewer, those that both have."""
        self._paired[peer] = qps
        self.set_planes(peer, self.planes[peer])

    def set_unheard(self, until_ns: Mapping[str, int]) -> None:
        """Note until when the programs shall take it that nothing is heard of each of some peers.

        The times are of the monotonic clock; 0: the peer is heard.
        """
        self._unheard |= until_ns
        entries = {_U32.pack(self.indices[peer]): self._entry(peer) for peer in until_ns}
        bpfbatch.update(self._dp.maps["peers"], entries)

    def _entry(self, peer: str) -> bytes:
        return _PEER.pack(
            qp_base=self.base(peer),
            qp_mask=self._paired.get(peer, self.per_peer) - 1,
            plane_mask=self.planes[peer] & self.reached(peer),
            ours=self._numbers.get(peer, ABI.MRC_OURS_ALIKE),
            unheard_ns=self._unheard.get(peer, 0),
            spare=self.spare.get(peer, 0),
            far=self.far.get(peer, 0),
            weights=self.weights(peer),
        )

    def set_ports(self, peer: str, mask: int) -> None:
        """Set the planes on which a peer takes packets.

        The peer's next Port Status Update counts whatever its number is.
        """
        self._commands.set_ports(self.indices[peer], mask)

    # ---- read

    def every_ports(self) -> dict[str, int]:
        """Return the mask of planes on which each peer takes packets.

        The mask combines the peer's Port Status Updates and its SACKs.
        """
        places = range(max(self.indices.values(), default=-1) + 1)
        masks = [
            view.ports_of(raw)
            for raw in bpfbatch.rows(self._dp.maps["balances"], places, _BALANCE.size)
        ]
        return {peer: masks[index] for peer, index in self.indices.items()}

    def balance(self, peer: str) -> Balance:
        """Return how the programs rate a peer's planes."""
        raw = self._dp.read_raw("balances", self.indices[peer], _BALANCE.size)
        return view.balance_of(raw, self._config().fabric.planes)

    def nearest_ns(self, peer: str) -> tuple[int, ...]:
        """Return the shortest round trip of a probe of late by plane, ns; 0: none, or too soon."""
        raw = self._dp.read_raw("balances", self.indices[peer], _BALANCE.size)
        return view.nearest_ns(raw, time.monotonic_ns())[: self._config().fabric.planes]

    def data_loss(self) -> dict[tuple[str, int], int]:
        """Return what data to each peer loses by each plane, in packets of a million, unless 0."""
        places = range(max(self.indices.values(), default=-1) + 1)
        rows = list(bpfbatch.rows(self._dp.maps["balances"], places, _BALANCE.size))
        planes = self._config().fabric.planes
        found: dict[tuple[str, int], int] = {}
        for peer, index in self.indices.items():
            lost = _BALANCE.unpack_array(rows[index], "loss_ppm")
            found |= {(peer, plane): lost[plane] for plane in range(planes) if lost[plane]}
        return found
