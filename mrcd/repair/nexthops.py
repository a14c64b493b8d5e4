# SPDX-License-Identifier: GPL-2.0-only
"""Find what routes of other programs over mrc0 lead to, by a peer's address or to nobody (pure).

Programs such as Flannel's host-gw, Calico and FRR install routes by a next hop. Data of mrc0 goes
to the peer that owns the destination, so where the operator has said that such prefixes may be
behind hosts here (`routed`), what a route leads to by a peer's address is that peer's.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_interface, ip_network

from mrcd.config.overlap import Prefix, meet, within
from mrcd.repair.wanted import Finding, Kind, Present, Wanted


def led(wanted: Wanted, present: Present) -> tuple[dict[Prefix, str], list[Finding]]:
    """Return the prefixes that belong to a peer by routes of others, with the peer's name.

    Beside them are the routes of others over mrc0 that lead to no peer.
    """
    followed: dict[Prefix, str] = {}
    nobodys = []
    for text, route in _others(wanted, present):
        hop = present.next_hops.get(text)
        peer = None if hop is None else _peer_at(wanted, hop)
        if peer is not None and any(_inside(route, around) for around in wanted.routed):
            followed[route] = peer
        else:
            nobodys.append(_nobodys(wanted.mrc0, text, hop, peer))
    return followed, nobodys


def _nobodys(mrc0: str, route: str, hop: str | None, peer: str | None) -> Finding:
    """Return what is wrong with a route: `peer` is the one that has its next hop, if one has."""
    by = "" if hop is None else f" by {hop}"
    remedy = f"add {route} to `allowed` of the peer behind which they are, and to `routed` there"
    if peer is not None:
        remedy = (
            f"put {route}, or a prefix around all such routes, into `routed` of [mrc0] here "
            f"and at {peer}: within it next hops are followed"
        )
    text = f"a route leads to {route} over {mrc0}{by}, and no peer has these addresses"
    return Finding(Kind.FOREIGN, f"route {route}", text, remedy)


def _others(wanted: Wanted, present: Present) -> Iterator[tuple[str, Prefix]]:
    """Yield the routes over mrc0 that are neither ours nor to networks of mrc0 nor to a peer's."""
    addresses = wanted.addresses | present.addresses.get(wanted.index, frozenset())
    connected = {str(ip_interface(address).network) for address in addresses}
    for text in present.routes.get(wanted.index, {}):
        if text in wanted.routes or text in connected or (route := ip_network(text)).is_link_local:
            continue
        if any(meet(route, prefix) for prefixes in wanted.owned.values() for prefix in prefixes):
            continue
        yield text, route


def _inside(route: Prefix, around: Prefix) -> bool:
    return route != around and within(route, around)


def _peer_at(wanted: Wanted, hop: str) -> str | None:
    """Return the peer that has an address."""
    address = ip_network(ip_address(hop))
    for name, prefixes in wanted.owned.items():
        if any(within(address, prefix) for prefix in prefixes):
            return name
    return None
