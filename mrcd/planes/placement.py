# SPDX-License-Identifier: GPL-2.0-only
"""Find what a configuration without a fabric leaves to the kernel: our addresses and the MTU."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_interface

from mrcd.config.config import Config
from mrcd.fabric import network
from mrcd.fabric.hosts import Address
from mrcd.linux.netlink import Netlink, NetlinkFailed


async def placed(nl: Netlink, config: Config) -> Config:
    """Return the configuration with this host's addresses and MTU, if it leaves them open.

    Interfaces that do not exist are ignored here; find_planes() names them.
    """
    if config.fabric.described:
        return config
    links = await nl.links()
    mtu = min((links[name].mtu for name in config.interfaces if name in links), default=0)
    return config.placed(await own_addresses(nl, config, config.interfaces), mtu)


async def own_addresses(
    nl: Netlink, config: Config, interfaces: Sequence[str | None]
) -> tuple[Address, ...]:
    """Return the address of each plane: what the operator says, or the kernel prefers.

    `interfaces` has the present name of each NIC; one that is missing, None, keeps its address.
    """
    found: list[Address | None] = []
    for plane, (nic, name) in enumerate(zip(config.nics, interfaces, strict=True)):
        if nic.address is not None or name is None:
            found.append(nic.address or config.host.endpoints[plane])
            continue
        ends = (peer.host.endpoints[plane] for peer in config.peers)
        targets = [str(end) for end in ends if not end.is_unspecified]
        address = await _preferred(nl, name, [*targets, *config.keys.seeds])
        if address is None and config.keys.seeds:
            address = await _first(nl, name, config.fabric.routing.underlay)
        found.append(address)
    unknown = network.nowhere(config.fabric.routing.underlay)
    return tuple(unknown if address is None else address for address in found)


async def _preferred(nl: Netlink, interface: str, targets: Sequence[str]) -> Address | None:
    """Return the address of an interface from which the kernel sends to the first target it can."""
    try:
        own = {ip_interface(text).ip for text in await nl.addresses(interface)}
        for target in targets:
            way = await nl.way_to(interface, target)
            if way is not None and way.src is not None and ip_address(way.src) in own:
                return ip_address(way.src)
    except NetlinkFailed:  # the interface has gone
        return None
    return None


async def _first(nl: Netlink, interface: str, version: int) -> Address | None:
    """Return the first address of an interface to which routers may lead."""
    try:
        own = [ip_interface(text).ip for text in await nl.addresses(interface)]
    except NetlinkFailed:  # the interface has gone
        return None
    return next((ip for ip in own if ip.version == version and not ip.is_link_local), None)
