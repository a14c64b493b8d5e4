# SPDX-License-Identifier: GPL-2.0-only
"""Check prefixes against the address ranges that a fabric needs for itself (pure)."""

from __future__ import annotations

from ipaddress import ip_network

from mrcd.config.overlap import Prefix
from mrcd.fabric.description import Fabric


class Reserved:
    """The ranges of the planes, whose packets must not be sprayed. `fabric` None: no ranges."""

    def __init__(self, fabric: Fabric | None) -> None:
        self._ranges: list[tuple[str, Prefix]] = []
        if fabric is not None and fabric.routing.network:
            self._ranges = [
                ("the source addresses of cells", fabric.underlay6),
                *(
                    (f"{host.name}'s endpoint on plane {plane},", ip_network(address))
                    for host in fabric.hosts
                    for plane, address in enumerate(host.endpoints)
                    if not address.is_unspecified
                ),
            ]
        elif fabric is not None:
            self._ranges = [
                ("the uSID block", fabric.block),
                ("the planes' IPv6 range", fabric.underlay6),
                *(
                    (f"plane {plane}'s IPv4 range", fabric.plane_prefix4(plane))
                    for plane in range(fabric.planes)
                ),
            ]

    def clash(self, network: Prefix) -> str | None:
        """Return the name of the range that a prefix overlaps, or None if there is none."""
        for what, own in self._ranges:
            if network.version == own.version and network.overlaps(own):
                return f"{what} {own}"
        return None
