# SPDX-License-Identifier: GPL-2.0-only
"""Make the interface mrc0 and its other end, or take them over from an earlier daemon.

mrc0 is one end of a veth pair; the spray program runs on the other end, mrc0p
(docs/architecture.md). Without cells the kernel segments packets and computes checksums on the way
there. With cells TCP's large segments arrive whole, and a second pair, mrc0c and mrc0cp, does the
kernel's cutting for those that cannot be sprayed whole: the program sends them out of mrc0c, and it
meets them again in packets on mrc0cp. A pair of its own keeps working whatever offloads an
administrator switches off on mrc0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_interface
from pathlib import Path

from mrcd.config.config import Config
from mrcd.datapath import pins
from mrcd.datapath.datapath import DatapathError
from mrcd.linux import ethtool, sysfs
from mrcd.linux.netlink import Netlink
from mrcd.service.log import get_logger

log = get_logger()


_GSO_MAX_SIZE = 65536
_GSO_MAX_SEGS = 65535
"""The kernel's own bounds."""
_WHOLE = {
    # TCP's segments leave whole, their checksums partial ...
    "tx-scatter-gather": True,
    "tx-checksum-ip-generic": True,
    "tx-generic-segmentation": True,
    "tx-tcp-segmentation": True,
    "tx-tcp-ecn-segmentation": True,
    "tx-tcp6-segmentation": True,
    # ... and the kernel cuts everything whose packets carry no TCP sequence number of their own to
    # tell them apart by, or which is in a tunnel and would need a second outer header.
    "tx-udp-segmentation": False,
    "tx-gso-list": False,
    "tx-gre-segmentation": False,
    "tx-gre-csum-segmentation": False,
    "tx-ipxip4-segmentation": False,
    "tx-ipxip6-segmentation": False,
    "tx-udp_tnl-segmentation": False,
    "tx-udp_tnl-csum-segmentation": False,
    "tx-sctp-segmentation": False,
    "tx-checksum-sctp": False,
    "tx-esp-segmentation": False,
}
"""Features of mrc0 with cells."""
_CUT: Mapping[str, bool] = {"tso": False, "gso": False, "sg": False, "tx_checksum": False}
"""Features of an interface on whose way out the kernel cuts large segments and fills checksums."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The indices of mrc0, of its other end, and of mrc0c; 0 where there is no mrc0c."""

    mrc0: int
    link: int
    cut: int


def _pairs(config: Config) -> list[tuple[str, str]]:
    name = config.mrc0.name
    return [(name, f"{name}p"), *([(f"{name}c", f"{name}cp")] if config.cells else [])]


def names(config: Config) -> set[str]:
    """Return the names of all interfaces of ours."""
    return {name for pair in _pairs(config) for name in pair}


def ends(nl: Netlink, config: Config) -> Ends:
    """Return the indices of the interfaces that `ensure` has made."""
    (mrc0, link), *cut = [(nl.index(one), nl.index(other)) for one, other in _pairs(config)]
    return Ends(mrc0, link, cut[0][0] if cut else 0)


async def ensure(nl: Netlink, config: Config, records: Path) -> bytes:
    """Make the pairs unless an earlier daemon has. Return mrc0's own link-layer address.

    DatapathError if a foreign interface has one of the names.
    """
    name, pairs = config.mrc0.name, _pairs(config)
    made = [await _ensure_pair(nl, config, records, *pair) for pair in pairs]
    if made[0]:
        for cidr in given(records, name):
            _forget(records, name, cidr)  # the address went with an interface that was removed
    await _prepare(nl, config)
    await give_addresses(nl, config, records)
    if made[0]:
        log.info("interface.created", interface=name, mtu=config.mtu)
    return (await nl.links())[name].mac


async def _ensure_pair(nl: Netlink, config: Config, records: Path, name: str, other: str) -> bool:
    """Make a pair unless an earlier daemon has; return whether it was made."""
    ours = name in pins.recorded(records, "device")
    there = [interface for interface in (name, other) if nl.exists(interface)]
    if there and not (ours and len(there) == 2):
        raise DatapathError(
            f"interface {there[0]} exists and was not made by this mrcd: remove it, or "
            "choose another name in [mrc0]"
        )
    for interface in there:
        await nl.set_link(interface, mtu=config.mtu)
    if not there:
        pins.record(records, "device", name)
        # The addresses are set here, because udev replaces the kernel's random ones a moment later
        # (MACAddressPolicy=persistent), and mrc0 would refuse packets to its former address.
        await nl.create_veth(name, other, mtu=config.mtu, mac=_random(), peer_mac=_random())
    return not there


def _random() -> bytes:
    """Return a random link-layer address: unicast, locally administered."""
    return bytes((os.urandom(1)[0] & 0xFC | 0x02, *os.urandom(5)))


async def _prepare(nl: Netlink, config: Config) -> None:
    """Set everything but addresses; leave alone what is already set."""
    for interface in sorted(names(config)):
        for refused in sysfs.write_sysctls(interface):
            log.warning("interface.untuned", interface=interface, error=refused)
    (name, link), *cut = _pairs(config)
    if config.cells:
        _pass_whole(name, link)
    else:
        await _cut_all(nl, name, link)
    for one, other in cut:
        ethtool.set_features(one, **_CUT)
        ethtool.set_features(other, gro=False)
    for interface in _steered(config):
        await sysfs.spread_receiving(interface, sysfs.UDEV_S)  # check_steering warns if this fails
    for pair in _pairs(config):
        for interface in pair:
            await nl.set_link(interface, arp=False, up=True)


def _pass_whole(name: str, link: str) -> None:
    """Let TCP's large segments cross the pair whole, both ways.

    Their length is set elsewhere (mrcd/datapath/cellsize.py).
    """
    ethtool.set_named(name, _WHOLE)
    ethtool.set_features(name, gro=True)
    ethtool.set_features(link, sg=True, tx_checksum=True, gso=True, tso=True, gro=False)


async def _cut_all(nl: Netlink, name: str, link: str) -> None:
    """Make the kernel cut TCP's large segments and fill checksums on the way to the other end."""
    ethtool.set_features(name, gro=True, **_CUT)
    # GRO and NAPI on mrc0 merge deliveries; mrc0p, which sends them, has no TSO and no GRO.
    ethtool.set_features(link, tso=False, gso=False, gro=False)
    await nl.set_gso(name, size=_GSO_MAX_SIZE, segs=_GSO_MAX_SEGS)


def _steered(config: Config) -> list[str]:
    """Return the interfaces on which one CPU handles all packets of a flow (docs/decisions/0002).

    TCP may send from two CPUs in turn, and packets must reach the spray program in the order sent.
    Any CPU may deliver. Without cells, NAPI on mrc0 puts what they deliver into one queue. With
    cells mrc0p keeps TSO, from which veth concludes that NAPI and GRO gain nothing: each CPU
    delivers into its own backlog.
    """
    pairs = _pairs(config)
    return [*(other for _, other in pairs), *([pairs[0][0]] if config.cells else [])]


async def check_steering(config: Config) -> None:
    """Warn unless packets are spread over CPUs in the end, as _prepare asked."""
    for interface in _steered(config):
        if (error := await sysfs.spread_receiving(interface, sysfs.UDEV_LATE_S)) is not None:
            log.warning("interface.untuned", interface=interface, error=error)


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
