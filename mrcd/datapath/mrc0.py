# SPDX-License-Identifier: GPL-2.0-only
"""Make the interface mrc0 and its other end, or take them over from an earlier daemon.

mrc0 is one end of a veth pair. On the way to the other end, mrc0p, the kernel segments packets and
computes checksums; the spray program runs there (docs/architecture.md).
"""

from __future__ import annotations

import os
from ipaddress import ip_interface
from pathlib import Path

from mrcd.config.config import Config
from mrcd.datapath import pins
from mrcd.datapath.datapath import DatapathError
from mrcd.linux import ethtool, sysfs
from mrcd.linux.netlink import Netlink
from mrcd.service.log import get_logger

log = get_logger()


def other_end(config: Config) -> str:
    """Return the name of the end that is not mrc0."""
    return f"{config.mrc0.name}p"


async def ensure(nl: Netlink, config: Config, records: Path) -> bytes:
    """Make the pair unless an earlier daemon has. Return mrc0's own link-layer address.

    DatapathError if a foreign interface has one of the names.
    """
    name, link = config.mrc0.name, other_end(config)
    ours = name in pins.recorded(records, "device")
    there = [interface for interface in (name, link) if nl.exists(interface)]
    if there and not (ours and len(there) == 2):
        raise DatapathError(
            f"interface {there[0]} exists and was not made by this mrcd: remove it, or "
            "choose another name in [mrc0]"
        )
    if there:
        for interface in (name, link):
            await nl.set_link(interface, mtu=config.mtu)
    else:
        pins.record(records, "device", name)
        # The addresses are set here, because udev replaces the kernel's random ones a moment later
        # (MACAddressPolicy=persistent), and mrc0 would refuse packets to its former address.
        await nl.create_veth(name, link, mtu=config.mtu, mac=_random(), peer_mac=_random())
        for cidr in given(records, name):
            _forget(records, name, cidr)  # the address went with an interface that was removed
    await _prepare(nl, name, link)
    await give_addresses(nl, config, records)
    if not there:
        log.info("interface.created", interface=name, mtu=config.mtu)
    return (await nl.links())[name].mac


def _random() -> bytes:
    """Return a random link-layer address: unicast, locally administered."""
    return bytes((os.urandom(1)[0] & 0xFC | 0x02, *os.urandom(5)))


async def _prepare(nl: Netlink, name: str, link: str) -> None:
    """Set everything but addresses; leave alone what is already set."""
    for interface in (name, link):
        for refused in sysfs.write_sysctls(interface):
            log.warning("interface.untuned", interface=interface, error=refused)
    # Make the kernel cut TCP's large segments and fill checksums on the way to the other end.
    ethtool.set_features(name, tso=False, gso=False, sg=False, tx_checksum=False, gro=True)
    # GRO and NAPI on mrc0 merge deliveries; mrc0p, which sends them, has no TSO and no GRO.
    ethtool.set_features(link, tso=False, gso=False, gro=False)
    # TCP may send from two CPUs in turn, and packets must reach the spray program in the order
    # sent. So one CPU handles all packets of a flow (docs/decisions/0002).
    await sysfs.spread_receiving(link, sysfs.UDEV_S)  # check_steering warns if this fails for good
    await nl.set_link(name, arp=False, up=True)
    await nl.set_link(link, arp=False, up=True)


async def check_steering(config: Config) -> None:
    """Warn unless the other end's packets are spread over CPUs in the end, as _prepare asked."""
    link = other_end(config)
    if (error := await sysfs.spread_receiving(link, sysfs.UDEV_LATE_S)) is not None:
        log.warning("interface.untuned", interface=link, error=error)


def given(records: Path, name: str) -> list[str]:
    """Return the addresses that we gave to mrc0."""
    entries = map(pins.given, pins.recorded(records, "address"))
    return [cidr for interface, cidr in entries if interface == name]


def _forget(records: Path, name: str, cidr: str) -> None:
    interface = ip_interface(cidr)
    pins.forget_given(records, "address", name, interface.ip, interface.network.prefixlen)


async def give_addresses(nl: Netlink, config: Config, records: Path) -> None:
    """Give mrc0 the configured addresses; remove others that an earlier configuration gave it."""
    name, wanted = config.mrc0.name, [str(address) for address in config.mrc0.addresses]
    for address in config.mrc0.addresses:
        bits = address.network.prefixlen
        await nl.add_address(name, str(address))
        pins.record_given(records, "address", name, address.ip, bits)
    for cidr in given(records, name):
        if cidr not in wanted:
            await nl.delete_address(name, cidr)
            _forget(records, name, cidr)
