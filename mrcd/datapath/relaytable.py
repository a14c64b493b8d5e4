# SPDX-License-Identifier: GPL-2.0-only
"""The map of what this host hands on for others, from one plane to another."""

from __future__ import annotations

import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

from mrcd.config.config import Current
from mrcd.datapath.datapath import Datapath
from mrcd.linux import bpf
from mrcd.wire.abi import ABI

_KEY = ABI.structs["mrc_relayed"]
_RELAY = ABI.structs["mrc_relay"]
ROOM: int = ABI.MRC_RELAYS
"""So many entries fit: two for each way between two other hosts."""
LINGER_S: Final = 10.0
"""What is not known to be wanted stays for this time: one that has just started knows little."""


class RelayTable:
    """What is handed on: an entry is written as soon as the neighbour's MAC address is known."""

    def __init__(
        self, datapath: Datapath, config: Current, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._dp = datapath
        self._config = config
        self._now_s = now_s
        self._unwanted: dict[bytes, float] = {}  # since when
        self._macs: dict[tuple[int, str], bytes] = {}
        self._written: dict[bytes, bytes] = {}

    def adopt(self) -> None:
        """Take over what an earlier daemon has written."""
        there = self._dp.maps["relays"]
        for key in bpf.keys(there, _KEY.size):
            value = bpf.lookup(there, key, _RELAY.size)
            if value is not None:
                self._written[key] = value
                self._unwanted[key] = self._now_s()

    def learn(self, plane: int, neighbor: str, mac: bytes) -> None:
        """Note the MAC address of a neighbour on a plane."""
        if self._macs.get((plane, neighbor)) != mac:
            self._macs[plane, neighbor] = mac
            self.configured()

    def configured(self) -> None:
        """Go by the configuration of now."""
        there, now = self._dp.maps["relays"], self._now_s()
        wanted = self._wanted()
        gone = self._written.keys() - wanted.keys()
        self._unwanted = {key: self._unwanted.get(key, now) for key in gone}
        for key, since in self._unwanted.items():
            if now - since > LINGER_S:
                bpf.delete(there, key)
                del self._written[key]
        for key, value in wanted.items():
            if self._written.get(key) != value:
                bpf.update(there, key, value)
                self._written[key] = value

    def _wanted(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for each in self._config().handed[:ROOM]:
            ends = ip_address(each.source).packed, ip_address(each.target).packed
            mac = self._macs.get((each.nic, each.via))
            if mac is not None and all(len(end) == 16 for end in ends):
                found[ends[0] + ends[1]] = _RELAY.pack(plane=each.nic, mac=tuple(mac))
        return found
