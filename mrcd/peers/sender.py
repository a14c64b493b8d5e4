# SPDX-License-Identifier: GPL-2.0-only
"""Choose the planes and T1s over which the daemon's own datagrams reach a peer."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address

from mrcd.config.config import Current
from mrcd.fabric import underlay
from mrcd.fabric.hosts import Host
from mrcd.fabric.way import Way
from mrcd.linux.planesocket import Address
from mrcd.peers.endpoint import OpenEvs

WAYS = 1 << 13
"""Size of the cache of ways to peers, which has one entry for each peer and plane."""

Transmit = Callable[[int, bytes | None, Address, bytes], None]
"""Send a datagram on a plane to an address, over a uSID list unless that is None."""


class Ways:
    """Sends datagrams to peers by name.

    `open_evs` returns the EVs of a plane to a peer that no rule denies.
    """

    def __init__(self, config: Current, transmit: Transmit, open_evs: OpenEvs) -> None:
        self._config = config
        self._transmit = transmit
        self._open_evs = open_evs
        self._random = random.Random()  # the T1 that an Offer takes need not be unpredictable
        self._way = lru_cache(maxsize=WAYS)(self._find)

    def configured(self) -> None:
        """Go by the configuration of now, which is another one."""
        self._way.cache_clear()

    def open_planes(self, peer: str, planes: tuple[int, ...], usable: int) -> tuple[int, ...]:
        """Return the given planes on which some path is not denied, or else one other such plane.

        `usable` is the mask of our usable planes. A keepalive goes out on one plane in turn; it
        must not be lost because that plane is denied.
        """
        open_ = tuple(plane for plane in planes if self._open_evs(peer, plane))
        if open_ or not planes:
            return open_
        ours = (plane for plane in range(self._config().fabric.planes) if usable >> plane & 1)
        others = [plane for plane in ours if self._open_evs(peer, plane)]
        return (self._random.choice(others),) if others else ()

    def send(self, peer: str, plane: int, datagram: bytes) -> None:
        """Send a datagram to a peer over a random T1 of a plane that is not denied.

        Sends nothing if all are denied.
        """
        evs = self._open_evs(peer, plane)
        if not evs:
            return
        found = self._way(peer, plane)
        self._transmit(plane, found.usids(self._random.choice(evs)), found.address, datagram)

    def send_to(self, place: tuple[int, int], plane: int, datagram: bytes) -> None:
        """Send a datagram to a place (T0 and port) where no peer is, over a random T1."""
        across, host = underlay.of(self._config().fabric), self._config().host
        target = Host("", *place, ())
        found = across.way(host, target, plane)
        ev = self._random.choice(across.evs(host, target, plane))
        self._transmit(plane, found.usids(ev), found.address, datagram)

    def send_at(self, plane: int, address: str, datagram: bytes) -> None:
        """Send a datagram to an address of a network without a fabric."""
        self._transmit(plane, None, ip_address(address), datagram)

    def _find(self, peer: str, plane: int) -> Way:
        config = self._config()
        return underlay.of(config.fabric).way(config.host, config.by_name[peer].host, plane)
