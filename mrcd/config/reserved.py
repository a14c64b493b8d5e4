# SPDX-License-Identifier: GPL-2.0-only
"""Check prefixes against the address ranges that a fabric needs for itself (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

from mrcd.config.overlap import Claim, Owners, Prefix, overlaps
from mrcd.fabric import hosts
from mrcd.fabric.description import Fabric


class Reserved:
    """The ranges of the planes, whose packets must not be sprayed. `fabric` None: no ranges."""

    def __init__(self, fabric: Fabric | None) -> None:
        self._ranges = Owners(Claim(own, f"{what} {own}") for what, own in _ranges(fabric))

    def clash(self, network: Prefix) -> str | None:
        """Return the name of the range that a prefix overlaps, or None if there is none."""
        return self._ranges.of(network)


def _ranges(fabric: Fabric | None) -> Iterator[tuple[str, Prefix]]:
    if fabric is None:
        return
    if not fabric.described:
        yield "the source addresses of cells", fabric.underlay6
        for host in fabric.hosts:
            for plane, address in host.places:
                yield f"{host.name}'s endpoint on plane {plane},", ip_network(address)
        return
    yield "the uSID block", fabric.block
    yield "the planes' IPv6 range", fabric.underlay6
    for plane in range(fabric.planes):
        yield f"plane {plane}'s IPv4 range", fabric.plane_prefix4(plane)


def clashes(fabric: Fabric) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the prefixes of a fabric's hosts, each with its owner."""
    reserved = Reserved(fabric)
    claimed = []
    for owner, shown, prefix in hosts.claims(fabric.hosts):
        if clash := reserved.clash(prefix):
            yield owner, f"{shown} lies in {clash}; mrc0 needs a prefix of its own"
        claimed.append(Claim(prefix, owner))
    for earlier, later in overlaps(claimed):
        if earlier.owner != later.owner:
            wrong = f"overlaps {earlier.network} of {earlier.owner}; a destination has one host"
            yield later.owner, f"{later.network} {wrong}"
