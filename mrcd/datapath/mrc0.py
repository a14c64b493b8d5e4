# SPDX-License-Identifier: GPL-2.0-only
"""Make the interface mrc0 and those beside it, or take them over from an earlier daemon.

With cells mrc0 is a macvlan on mrc0p, one end of a veth pair. The spray program runs where packets
leave mrc0p, still in the sender's context: TCP's large segments arrive whole and in order, and TCP
learns at once if there is no room for one. What arrives enters at mrc0p: cells by a redirect to its
ingress, packets in MRC's framing by its other end, mrc0d, behind which GRO merges them. A second
pair, mrc0c and mrc0cp, does the kernel's cutting for what cannot be sprayed whole: the program
sends it out of mrc0c and meets it again, in packets, on mrc0cp. What leaves by mrc0cp goes nowhere:
packets whose copies wait are parked there, so that their senders' sockets pay for them.

One more pair, mrc0b and mrc0bp, is the clock: a packet circles in it (bpf/beat.c). What leaves by
mrc0b waits for a tick in a token bucket, what leaves by mrc0bp for REST_NS.

With cells in UDP a vxlan device, mrc0u, owns their port: GRO puts a cell's packets together only
where a socket of that driver waits for them. The planes' programs take the cells before it. It has
no VNI and filters by VNIs, so its driver drops whatever else comes to the port.

Without cells mrc0 is itself an end of a veth pair. The kernel segments packets and computes
checksums on the way to mrc0p, the other end, where the spray program runs (docs/architecture.md).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_interface
from pathlib import Path

from mrcd.config.config import Config
from mrcd.datapath import pins, tuning
from mrcd.datapath.datapath import DatapathError
from mrcd.linux import ethtool, rtnl, sysfs
from mrcd.linux.interfaces import Bucket
from mrcd.linux.netlink import Netlink
from mrcd.linux.privileged.requests import (
    AddAddress,
    CreateMacvlan,
    CreateVeth,
    CreateVxlan,
    DeleteAddress,
    DeleteLink,
    RenameLink,
    SetBucket,
    SetLink,
)
from mrcd.service.log import get_logger
from mrcd.wire.abi import ABI

log = get_logger()


_WIDE_MTU = 65535
"""MTU below mrc0, where several packets of a cell that waited may be delivered as one."""
GSO = (65536, 65535)
"""The kernel's own bounds of TCP's segments: bytes and packets."""
_CUT: Mapping[str, bool] = {"tso": False, "gso": False, "sg": False, "tx_checksum": False}
"""Features of an interface on whose way out the kernel cuts large segments and fills checksums."""


_PARK_PART = 4
"""The parking interface lets out this part of what the planes carry (bpf/nscc.h, NSCC_PARK)."""
_PARK_LIMIT = 4 << 20
"""Bytes that may be parked; what exceeds them no longer holds its sender back."""
_ETH_LEN = 14
_RATE_MAX = (1 << 32) - 1
"""Fastest token bucket, bytes a second."""
REST_NS = 20_000_000
"""Time between two beats while nothing is outstanding."""
_BUCKET_PACKETS = 16
"""Beats that a bucket holds; there is one, and for a moment two when a new one is made."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Indices of the interfaces that programs redirect to; 0 where there is none.

    Packets are delivered out of `link` and cells at the ingress of `lower`. What leaves by `cut`
    comes back in packets on `cut_back`. The clock's packet leaves by `beat` or by `rest`.
    """

    link: int
    lower: int = 0
    cut: int = 0
    cut_back: int = 0
    beat: int = 0
    rest: int = 0


def mtus(config: Config) -> dict[str, int]:
    """Return the MTU of each interface of ours."""
    wide = {f"{config.mrc0.name}p", f"{config.mrc0.name}d"} if config.cells else set()
    special = dict.fromkeys(wide, _WIDE_MTU)
    # A bucket is as deep as its interface's longest packet: the kernel warns of shallower ones.
    special |= dict.fromkeys(_beats(config), ABI.MRC_BEAT_PAYLOAD)
    return {name: special.get(name, config.mtu) for name in names(config)}


def buckets(config: Config, mbps: int) -> dict[str, Bucket]:
    """Return the token buckets by interface, where planes carry `mbps` (0: unknown).

    Those of the clock's pair let one beat out at a time. With cells, what leaves by mrc0cp is
    parked: it has been sent as a copy, and its sender's socket pays until it leaves.
    """
    found = {name: _bucket(period_ns) for name, period_ns in _beats(config).items()}
    if config.cells:
        found[f"{config.mrc0.name}cp"] = _park(config, mbps)
    return found


def _beats(config: Config) -> dict[str, int]:
    """Return the interfaces of the clock, and the time between two beats that leave by each."""
    name, tick_ns = config.mrc0.name, config.transport.tick_us * 1000
    return {f"{name}b": tick_ns, f"{name}bp": max(tick_ns, REST_NS)}


def _bucket(period_ns: int) -> Bucket:
    beat = ABI.MRC_BEAT_LEN
    return Bucket(beat * 1_000_000_000 // period_ns, beat, _BUCKET_PACKETS * beat)


def _park(config: Config, mbps: int) -> Bucket:
    rate = len(config.serving) * (mbps or tuning.CC_RATE_MBPS) * 125_000 // _PARK_PART
    return Bucket(min(rate, _RATE_MAX), config.mtu + _ETH_LEN, _PARK_LIMIT)


def _pairs(config: Config) -> list[tuple[str, str]]:
    """Return the veth pairs. Each is recorded, and deleted, under its first name."""
    name = config.mrc0.name
    beat = (f"{name}b", f"{name}bp")
    if not config.cells:
        return [(name, f"{name}p"), beat]
    return [(f"{name}p", f"{name}d"), (f"{name}c", f"{name}cp"), beat]


def _port(config: Config) -> str | None:
    """Return the name of the device that owns the cells' port; None without one."""
    return f"{config.mrc0.name}u" if config.cell_udp else None


def names(config: Config) -> set[str]:
    """Return the names of all interfaces of ours."""
    port = _port(config)
    ours = {config.mrc0.name, *(name for pair in _pairs(config) for name in pair)}
    return ours if port is None else ours | {port}


def kind(config: Config, interface: str) -> str:
    """Return the type of an interface of ours."""
    if interface == _port(config):
        return "vxlan"
    return "macvlan" if config.cells and interface == config.mrc0.name else "veth"


def ends(nl: Netlink, config: Config) -> Ends:
    """Return the indices of the interfaces that `ensure` has made."""
    *data, (beat, rest) = _pairs(config)
    if not config.cells:
        return Ends(nl.index(f"{config.mrc0.name}p"), beat=nl.index(beat), rest=nl.index(rest))
    (lower, link), (cut, back) = data
    return Ends(*map(nl.index, (link, lower, cut, back, beat, rest)))


async def ensure(nl: Netlink, config: Config, records: Path, mbps: int) -> bytes:
    """Make the interfaces unless an earlier daemon has. Return mrc0's own link-layer address.

    `mbps` is what a plane carries, 0 if unknown. DatapathError if a foreign interface has one of
    the names; then nothing has changed.
    """
    name = config.mrc0.name
    _refuse_foreign(nl, config, records)
    await _remove_other_kind(nl, config, records)
    await _refuse_other_kinds(nl, config)
    made = not nl.exists(name)
    for pair in _pairs(config):
        await _ensure_pair(nl, records, *pair, mtu=mtus(config)[pair[0]])
    if config.cells:
        await _take_back(nl, name)
        made = not nl.exists(name)  # perhaps it went with a pair of which half was missing
        if made:
            await _create_macvlan(nl, config)
        else:
            await nl.change(SetLink(name, mtu=config.mtu))
    await _ensure_port(nl, config, records)
    if made:
        for cidr in given(records, name):
            _forget(records, name, cidr)  # the address went with an interface that was removed
    await _prepare(nl, config, mbps)
    await give_addresses(nl, config, records)
    if made:
        log.info("interface.created", interface=name, mtu=config.mtu)
    return await _mac_of(nl, name)


async def _mac_of(nl: Netlink, name: str) -> bytes:
    link = (await nl.links()).get(name)
    if link is None:
        raise OSError(errno.ENODEV, f"{name} was deleted while it was set up")
    return link.mac


def _refuse_foreign(nl: Netlink, config: Config, records: Path) -> None:
    """Raise DatapathError if one of the names belongs to an interface that no mrcd made."""
    name, recorded = config.mrc0.name, pins.recorded(records, "device")
    ours = {one for pair in _pairs(config) if pair[0] in recorded for one in pair}
    if {name, f"{name}p"} & set(recorded):
        ours |= {name, f"{name}p", f"{name}d"}
    ours |= {f"{name}u"} & set(recorded)
    for interface in sorted(names(config) - ours):
        if nl.exists(interface):
            raise DatapathError(
                f"interface {interface} exists and was not made by this mrcd: remove it, or "
                "choose another name in [mrc0]"
            )


async def _refuse_other_kinds(nl: Netlink, config: Config) -> None:
    """Raise DatapathError if something else has taken the name of an interface of ours."""
    links = await nl.links()
    for interface in sorted(names(config)):
        if interface in links and links[interface].kind != kind(config, interface):
            raise DatapathError(
                f"interface {interface} is a {links[interface].kind or 'NIC'} and was not made by "
                f"mrcd: rename it, or remove it (`ip link delete {interface}`)"
            )


async def _remove_other_kind(nl: Netlink, config: Config, records: Path) -> None:
    """Remove mrc0 if it is of the kind for another framing; its addresses and routes go with it."""
    name = config.mrc0.name
    other = name if config.cells else f"{name}p"
    if other in pins.recorded(records, "device"):
        await nl.change(DeleteLink(other))
        pins.forget(records, "device", other)


async def _ensure_pair(nl: Netlink, records: Path, name: str, other: str, *, mtu: int) -> None:
    """Make a pair unless an earlier daemon has."""
    if nl.exists(name) and nl.exists(other):
        for interface in (name, other):
            await nl.change(SetLink(interface, mtu=mtu))
        return
    for half in (name, other):  # of one that somebody moved away
        await nl.change(DeleteLink(half))
    pins.record(records, "device", name)
    # The addresses are set here, because udev replaces the kernel's random ones a moment later
    # (MACAddressPolicy=persistent), and mrc0 would refuse packets to its former address.
    await nl.change(CreateVeth(name, other, mtu, _random(), _random()))


async def _ensure_port(nl: Netlink, config: Config, records: Path) -> None:
    """Make the device that owns the cells' port unless an earlier daemon has; remove another."""
    name, wanted = f"{config.mrc0.name}u", _port(config)
    port = config.transport.cell_port
    recorded = pins.recorded(records, "device")
    there = nl.exists(name)
    if there and name in recorded and (wanted is None or rtnl.vxlan_port(nl.index(name)) != port):
        await nl.change(DeleteLink(name))
        there = False
    if wanted is None:
        pins.forget(records, "device", name)
        return
    pins.record(records, "device", name)
    if there:
        await nl.change(SetLink(name, mtu=config.mtu))
        return
    with _needing("vxlan", "cells in UDP"):
        await nl.change(CreateVxlan(name, port, config.mtu, _random()))


async def _take_back(nl: Netlink, name: str) -> None:
    """Give mrc0, the macvlan on mrc0p, its name back if it lost it while no mrcd ran."""
    if nl.exists(name):
        return
    lower = nl.index(f"{name}p")
    for link in rtnl.links().values():
        if (link.kind, link.lower) == ("macvlan", lower):
            await nl.change(RenameLink(link.index, name))
            log.warning(
                "interface.repaired", about=f"{name} name", what=f"{name} is called {link.name}"
            )
            return


async def _create_macvlan(nl: Netlink, config: Config) -> None:
    name = config.mrc0.name
    with _needing("macvlan", "cells"):
        await nl.change(CreateMacvlan(name, f"{name}p", config.mtu, _random()))


@contextlib.contextmanager
def _needing(module: str, what: str) -> Iterator[None]:
    """Say which kernel module is missing if an interface cannot be made."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        raise DatapathError(
            f"{error}: {what} need the kernel module {module}; install it, or set [transport] "
            'framing = "mrc"'
        ) from error


def _random() -> str:
    """Return a random link-layer address: unicast, locally administered."""
    return bytes((os.urandom(1)[0] & 0xFC | 0x02, *os.urandom(5))).hex(":")


async def _prepare(nl: Netlink, config: Config, mbps: int) -> None:
    """Set everything but addresses; leave alone what is already set."""
    *data, beat = _pairs(config)
    for interface in sorted(names(config) - {*beat}):  # IPv6 has no use for an MTU like the beat's
        for refused in sysfs.write_sysctls(interface):
            log.warning("interface.untuned", interface=interface, error=refused)
    if config.cells:
        (lower, link), (cut, back) = data
        # mrc0 takes over what mrc0p can, and never lets go of TCP's segmentation.
        ethtool.set_features(lower, sg=True, tx_checksum=True, gso=True, tso=True, gro=True)
        ethtool.set_features(cut, **_CUT)
        ethtool.set_features(back, gro=False)
    else:
        ((cut, link),) = data
        ethtool.set_features(cut, gro=True, **_CUT)
        await nl.change(SetLink(cut, gso_size=GSO[0], gso_segs=GSO[1]))
    # GRO and NAPI at the other end merge deliveries; the end that sends them has no TSO and no GRO.
    ethtool.set_features(link, tso=False, gso=False, gro=False)
    _prepare_beat(config)
    await retune(nl, config, mbps)
    for interface in _steered(config):
        await sysfs.spread_receiving(interface, sysfs.UDEV_S)  # check_steering warns if this fails
    for interface in [*(one for pair in _pairs(config) for one in pair), config.mrc0.name]:
        await nl.change(SetLink(interface, arp=False, multicast=False, up=True))
    await _open_port(nl, config)


async def _open_port(nl: Netlink, config: Config) -> None:
    """Open the cells' port: a vxlan device has its socket while it is up."""
    name = _port(config)
    if name is None:
        return
    try:
        await nl.change(SetLink(name, arp=False, up=True))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise DatapathError(
            f"{error}: UDP port {config.transport.cell_port}, which cells need, is another "
            "program's; end it, or choose another port, the same on all hosts, as [transport] "
            "cell_port"
        ) from error


def _prepare_beat(config: Config) -> None:
    """Make the clock's pair ready.

    A beat may be made of any packet, and with these features its checksum is filled on its first
    way out. With GRO each end has a queue of its own: a CPU's backlog drops packets when it is full
    of others.
    """
    for interface in _beats(config):
        ethtool.set_features(interface, gro=True, **_CUT)


def _steered(config: Config) -> list[str]:
    """Return the interfaces on which one CPU handles all packets of a flow (docs/decisions/0002).

    Any CPU may deliver, and with cells into a backlog of its own. Without cells, TCP may also send
    from two CPUs in turn, and packets must reach the spray program in the order sent.
    """
    name = config.mrc0.name
    return [f"{name}p", *([f"{name}cp"] if config.cells else [])]


async def check_steering(config: Config) -> None:
    """Warn unless packets are spread over CPUs in the end, as _prepare asked.

    An interface may be deleted meanwhile; the repair makes it anew and asks again.
    """
    for interface in _steered(config):
        try:
            error = await sysfs.spread_receiving(interface, sysfs.UDEV_LATE_S)
        except OSError as problem:
            error = str(problem)
        if error is not None:
            log.warning("interface.untuned", interface=interface, error=error)


def spread_again(config: Config) -> dict[str, str | None]:
    """Spread packets over CPUs again where another program has ended that.

    Return the interfaces where it had, and why it cannot be undone, if it cannot.
    """
    found: dict[str, str | None] = {}
    for interface in _steered(config):
        try:
            if sysfs.spread_again(interface):
                found[interface] = None
        except FileNotFoundError:
            continue  # it is made anew
        except OSError as error:
            found[interface] = str(error)
    return found


def given(records: Path, name: str) -> list[str]:
    """Return the addresses that we gave to mrc0."""
    entries = map(pins.given, pins.recorded(records, "address"))
    return [cidr for interface, cidr in entries if interface == name]


def _forget(records: Path, name: str, cidr: str) -> None:
    interface = ip_interface(cidr)
    pins.forget_given(records, "address", name, interface.ip, interface.network.prefixlen)


async def retune(nl: Netlink, config: Config, mbps: int) -> None:
    """Set the token buckets to the time between two beats, and to what planes carry, Mb/s."""
    for interface, bucket in buckets(config, mbps).items():
        await nl.change(SetBucket.of(interface, bucket))


async def give_addresses(nl: Netlink, config: Config, records: Path) -> None:
    """Give mrc0 the configured addresses; remove others that an earlier configuration gave it."""
    name, wanted = config.mrc0.name, [str(address) for address in config.mrc0.addresses]
    for address in config.mrc0.addresses:
        bits = address.network.prefixlen
        await nl.change(AddAddress(name, str(address)))
        pins.record_given(records, "address", name, address.ip, bits)
    for cidr in given(records, name):
        if cidr not in wanted:
            await nl.change(DeleteAddress(name, cidr))
            _forget(records, name, cidr)
