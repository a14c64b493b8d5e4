# SPDX-License-Identifier: GPL-2.0-only
"""The interface mrc0 and its other end: made, or taken over as an earlier daemon left them.

mrc0 is one end of a veth pair. The kernel cuts packets to size and sums them on the way to the
other end, mrc0p, where the spray program is (docs/architecture.md).
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
    """The name of the end that is not mrc0."""
    return f"{config.mrc0.name}p"


async def ensure(nl: Netlink, config: Config, records: Path) -> bytes:
    """Make the pair unless an earlier daemon has; returns mrc0's own link-layer address.

    DatapathError when the name is taken by somebody else's interface.
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
        # With addresses of ours: udev replaces the kernel's random ones a moment later
        # (MACAddressPolicy=persistent), and mrc0 would not take what is delivered to the old one.
        await nl.create_veth(name, link, mtu=config.mtu, mac=_random(), peer_mac=_random())
        for cidr in given(records, name):
            _forget(records, name, cidr)  # they went with an interface that somebody removed
    await _prepare(nl, name, link)
    await give_addresses(nl, config, records)
    if not there:
        log.info("interface.created", interface=name, mtu=config.mtu)
    return (await nl.links())[name].mac


def _random() -> bytes:
    """A link-layer address: unicast, locally administered."""
    return bytes((os.urandom(1)[0] & 0xFC | 0x02, *os.urandom(5)))


async def _prepare(nl: Netlink, name: str, link: str) -> None:
    """Everything but addresses; what is so already stays untouched."""
    for interface in (name, link):
        for refused in sysfs.write_sysctls(interface):
            log.warning("interface.untuned", interface=interface, error=refused)
    # TCP's large segments are cut, and every packet is summed, on the way to the other end.
    ethtool.set_features(name, tso=False, gso=False, sg=False, tx_checksum=False, gro=True)
    # With GRO and NAPI on mrc0, and none on a sender without TSO, deliveries are merged.
    ethtool.set_features(link, tso=False, gso=False, gro=False)
    # TCP may send from two CPUs in turn; each packet must reach the spray program in that
    # order, so all packets of a flow are handled on one CPU (docs/decisions/0002).
    await sysfs.spread_receiving(link, sysfs.UDEV_S)  # check_steering tells if it stays undone
    await nl.set_link(name, arp=False, up=True)
    await nl.set_link(link, arp=False, up=True)


async def check_steering(config: Config) -> None:
    """Warn unless the other end's packets are spread as _prepare asked for, if late."""
    link = other_end(config)
    if (error := await sysfs.spread_receiving(link, sysfs.UDEV_LATE_S)) is not None:
        log.warning("interface.untuned", interface=link, error=error)


def given(records: Path, name: str) -> list[str]:
    """The addresses that mrc0 was given by us."""
    entries = map(pins.given, pins.recorded(records, "address"))
    return [cidr for interface, cidr in entries if interface == name]


def _forget(records: Path, name: str, cidr: str) -> None:
    interface = ip_interface(cidr)
    pins.forget_given(records, "address", name, interface.ip, interface.network.prefixlen)


async def give_addresses(nl: Netlink, config: Config, records: Path) -> None:
    """Give mrc0 the addresses it should have; take away those we gave it and should not."""
    name, wanted = config.mrc0.name, [str(address) for address in config.mrc0.addresses]
    for address in config.mrc0.addresses:
        bits = address.network.prefixlen
        await nl.add_address(name, str(address))
        pins.record_given(records, "address", name, address.ip, bits)
    for cidr in given(records, name):
        if cidr not in wanted:
            await nl.delete_address(name, cidr)
            _forget(records, name, cidr)
