# SPDX-License-Identifier: GPL-2.0-only
"""Who has which inner prefixes: the two maps in which programs look up a packet's addresses.

`mrc_spray` finds the peer that a packet goes to, and where packets arrive, their source must be the
peer's and their destination this host's. Full addresses are in the hash map `addresses`, all other
prefixes in the longest-prefix map `prefixes`. IPv4 is mapped into ::ffff:0:0/96.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network

from mrcd.datapath.datapath import Datapath
from mrcd.linux import bpf
from mrcd.wire.abi import ABI

_ADDRESS_BYTES = 16
_PREFIX_BYTES = 20
_WHOLE = struct.pack("=I", 128)  # the length of a prefix that is a full address
_U32 = struct.Struct("=I")
_MAPPED = bytes(10) + b"\xff\xff"

Network = IPv4Network | IPv6Network


class Prefixes:
    """The prefixes of this host and of all peers in the maps."""

    def __init__(self, datapath: Datapath) -> None:
        self._dp = datapath
        self._keys: set[bytes] = set()

    def adopt(self) -> None:
        """Read back the prefixes that another daemon has written."""
        self._keys.update(bpf.keys(self._dp.maps["prefixes"], _PREFIX_BYTES))
        for address in bpf.keys(self._dp.maps["addresses"], _ADDRESS_BYTES):
            self._keys.add(_WHOLE + address)

    def add(self, prefix: Network) -> tuple[str, bytes]:
        """Note a prefix that the caller writes. Return the map and the key to write it under."""
        key = key_of(prefix)
        self._keys.add(key)
        return _map_of(key)

    def keep(self, wanted: Iterable[Network]) -> list[str]:
        """Remove all prefixes but these. Return the removed ones."""
        kept = {key_of(prefix) for prefix in wanted}
        dropped = sorted(self._keys - kept)
        for key in dropped:
            self._delete(key)
        return [str(_network(key)) for key in dropped]

    def lead(self, prefix: Network, peer: int | None) -> None:
        """Give a prefix to the peer at an index, or to nobody. OSError if there is no room."""
        key = key_of(prefix)
        if peer is None:
            self._delete(key)
            return
        name, short = _map_of(key)
        bpf.update(self._dp.maps[name], short, _U32.pack(peer))
        self._keys.add(key)

    def owner(self, prefix: Network) -> int | None:
        """Return the index of the peer that has exactly this prefix; None if no peer has."""
        name, short = _map_of(key_of(prefix))
        raw = bpf.lookup(self._dp.maps[name], short, _U32.size)
        if raw is None:
            return None
        owner = int(_U32.unpack(raw)[0]) & ABI.MRC_OWNER
        return None if owner == ABI.MRC_OWNER_SELF else owner

    @property
    def all(self) -> list[Network]:
        """All prefixes."""
        return list(map(_network, self._keys))

    def close(self) -> None:
        """Let nothing more be sent to peers. What they send still arrives."""
        for key in self._keys:
            name, short = _map_of(key)
            raw = bpf.lookup(self._dp.maps[name], short, _U32.size)
            if raw is not None:
                owner = _U32.unpack(raw)[0]
                if owner != ABI.MRC_OWNER_SELF:
                    closed = _U32.pack(owner | ABI.MRC_OWNER_CLOSED)
                    bpf.update(self._dp.maps[name], short, closed)

    def _delete(self, key: bytes) -> None:
        name, short = _map_of(key)
        bpf.delete(self._dp.maps[name], short)
        self._keys.discard(key)

    @property
    def addresses(self) -> int:
        """Return the number of full addresses."""
        return sum(key.startswith(_WHOLE) for key in self._keys)

    @property
    def shorter(self) -> int:
        """Return the number of prefixes shorter than an address."""
        return len(self._keys) - self.addresses


def key_of(prefix: Network) -> bytes:
    """Return the longest-prefix key of a network."""
    packed = prefix.network_address.packed
    if prefix.version == 4:
        return struct.pack("=I", 96 + prefix.prefixlen) + _MAPPED + packed
    return struct.pack("=I", prefix.prefixlen) + packed


def _map_of(key: bytes) -> tuple[str, bytes]:
    """Return the map of a prefix, and its key there."""
    if key.startswith(_WHOLE):
        return "addresses", key[len(_WHOLE) :]
    return "prefixes", key


def _network(key: bytes) -> IPv4Network | IPv6Network:
    """Return the network of a key; the inverse of `key_of`."""
    (bits,) = struct.unpack_from("=I", key)
    if bits >= 96 and key[4:16] == _MAPPED:
        return IPv4Network((key[16:], bits - 96))
    return IPv6Network((key[4:], bits))
