# SPDX-License-Identifier: GPL-2.0-only
"""The ways to peers: over which planes and T1s what mrcd itself has to say gets to one of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache

from mrcd.config.config import Config
from mrcd.fabric import underlay, usid
from mrcd.linux.planesocket import Address
from mrcd.peers.endpoint import OpenEvs

WAYS = 1 << 13
"""Ways to peers, one for each plane, that are remembered."""

Transmit = Callable[[int, bytes | None, Address, bytes], None]
"""Send a datagram on a plane, over a uSID list if there are any, to an address."""


class Ways:
    """Sends datagrams to peers by name; `open_evs`: the EVs of a plane that no rule denies."""

    def __init__(self, config: Config, transmit: Transmit, open_evs: OpenEvs) -> None:
        self._transmit = transmit
        self._open_evs = open_evs
        self._random = random.Random()  # which T1 an Offer takes is no secret
        self._way = lru_cache(maxsize=WAYS)(self._find)
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """From now on this is the configuration."""
        self._config = config
        self._hosts = {peer.name: peer.host for peer in config.peers}
        self._way.cache_clear()

    def open_planes(self, peer: str, planes: tuple[int, ...], usable: int) -> tuple[int, ...]:
        """Those of the planes that the operator left a path; where there is none, another one.

        `usable`: the mask of our planes. A keepalive is meant for one plane in turn: one that is
        denied must not swallow it.
        """
        open_ = tuple(plane for plane in planes if self._open_evs(peer, plane))
        if open_ or not planes:
            return open_
        ours = (plane for plane in range(self._config.fabric.planes) if usable >> plane & 1)
        others = [plane for plane in ours if self._open_evs(peer, plane)]
        return (self._random.choice(others),) if others else ()

    def send(self, peer: str, plane: int, datagram: bytes) -> None:
        """One datagram to a peer over any T1 of a plane that is not denied; none if all are."""
        evs = self._open_evs(peer, plane)
        if not evs:
            return
        address, template = self._way(peer, plane)
        if template is not None:
            template = usid.with_t1(template, usid.ev_t1(self._random.choice(evs)))
        self._transmit(plane, template, address, datagram)

    def _find(self, peer: str, plane: int) -> tuple[Address, bytes | None]:
        """A peer's address on a plane, and the template of the uSID lists to it, if there is."""
        fabric, host, target = self._config.fabric, self._config.host, self._hosts[peer]
        address = underlay.address(fabric, target, plane)
        if fabric.routing.mode != "srv6":
            return address, None
        return address, usid.template_da(fabric.block, host, target, plane)
