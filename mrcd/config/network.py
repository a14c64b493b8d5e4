# SPDX-License-Identifier: GPL-2.0-only
"""Planes and peers of a configuration without a fabric file: [[plane]] and endpoints (pure).

A [[plane]] names a NIC, and a [[peer]] says at which addresses, one for each plane, it is found. An
empty text is in the place of a plane that the peer is not on.
`read` turns both into a network (mrcd/fabric/network.py); what else a [[peer]] holds is read as in
a fabric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Literal

from mrcd.config.table import HIDDEN, Table
from mrcd.fabric import network
from mrcd.fabric.hosts import Address, Host
from mrcd.fabric.routing import PATHS_MAX
from mrcd.fabric.shape import (
    ELEMENT,
    MTU_MAX,
    MTU_MIN,
    MTU_REMEDY,
    NAME,
    NAME_RULE,
    PLANES_MAX,
    PUBLIC_KEY,
    Fabric,
)

_NIC_MAX_MBPS = 1_600_000
_ANY_MTU = 0xFFFFFFFF  # that of an interface is a 32-bit number
_EXAMPLE = '"fe80::2%eth1" or "192.0.2.2"'


@dataclass(frozen=True, slots=True)
class Nic:
    """One [[plane]]: the interface, and what the operator says of it.

    `address` is None where the kernel's choice is taken, and `mtu` and `rate_mbps` are 0 where the
    NIC's are. standby: it carries data only while no other plane can.
    """

    interface: str
    address: Address | None = None
    mtu: int = 0
    rate_mbps: int = 0
    standby: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What the tables say: the NICs in the order of the planes, and the network they are in."""

    nics: tuple[Nic, ...]
    fabric: Fabric


def read(
    planes: Sequence[Table],
    options: Table,
    peers: Sequence[Table],
    own_name: str | None,
    seeds: Sequence[str] = (),
) -> Found | None:
    """Read [[plane]], [planes] and the endpoints of each [[peer]].

    Without an address there, the network has the IP version of the first of the `seeds`. Problems
    are recorded in the tables. Returns None if the network cannot be described.
    """
    nics = tuple(_nic(table) for table in planes)
    paths = options.integer("paths", 1, 1, PATHS_MAX)
    if options.raw("interfaces", None) is not None:
        options.problem("interfaces", HIDDEN, "is for a fabric; each [[plane]] names its NIC here")
    if options.raw("standby", None) is not None:
        wrong = "is for a fabric; write standby = true in the [[plane]] here"
        options.problem("standby", HIDDEN, wrong)
    options.finish()
    if len(nics) > PLANES_MAX:
        planes[PLANES_MAX].problem(
            "interface", nics[PLANES_MAX].interface, f"is one plane too many: at most {PLANES_MAX}"
        )
        return None
    hosts = [_peer(table, nics) for table in peers]
    _check_unique(peers, hosts)
    version = _version(planes, nics, peers, hosts, seeds)
    hosts = [None if host is None else network.of_version(host, version) for host in hosts]
    _check_scopes(peers, hosts)
    known = [host for host in hosts if host is not None]
    mtu = min((nic.mtu for nic in nics if nic.mtu), default=0)
    if nics and all(nic.standby for nic in nics):
        wrong = "is so for every plane; leave it out where data is to go"
        planes[0].problem("standby", True, wrong)
    serving = (nic for nic in nics if not nic.standby)
    rate = min((nic.rate_mbps for nic in serving if nic.rate_mbps), default=0)
    own = network.host(own_name or "", [nic.address or network.nowhere(version) for nic in nics])
    fabric = network.describe(len(nics), version, paths, mtu, [own, *known], rate)
    return Found(nics, fabric)


def bad_name(name: str) -> str | None:
    """Return why a host cannot have a name, or None if it can."""
    if not NAME.fullmatch(name):
        return f"must be {NAME_RULE}"
    return "must be unlike the names of planes and switches" if ELEMENT.fullmatch(name) else None


def _nic(table: Table) -> Nic:
    name = table.text("interface", None)
    text = table.optional("address")
    address = None if text is None else _address(table, "address", text, name)
    mtu = table.integer("mtu", 0, 0, _ANY_MTU)
    if mtu > MTU_MAX:
        table.problem("mtu", mtu, f"{MTU_REMEDY}, or leave it out")
        mtu = 0
    if 0 < mtu < MTU_MIN:
        table.problem("mtu", mtu, f"is too small: at least {MTU_MIN}, or 0 for that of the NIC")
        mtu = 0
    rate = table.integer("rate_mbps", 0, 0, _NIC_MAX_MBPS)
    standby = table.flag("standby", False)
    table.finish()
    return Nic(name or "", address, mtu, rate, standby)


def _peer(table: Table, nics: Sequence[Nic]) -> Host | None:
    """Return the host that a [[peer]] describes; None if there is not one address per plane."""
    name = table.raw("name", None)
    if isinstance(name, str) and name and (wrong := bad_name(name)):
        table.problem("name", name, wrong)
    key = table.optional("public_key") or ""
    if key and not PUBLIC_KEY.fullmatch(key):
        # The value is not shown, because it may be another kind of key.
        wrong = "must be 44 characters of base64, as `mrcctl key public` prints them on that host"
        table.problem("public_key", HIDDEN, wrong)
        key = ""
    texts = table.strings("endpoints")
    if texts is None:
        if table.raw("endpoints", None) is None:
            wrong = f"is missing; give an address of the peer for each [[plane]], like {_EXAMPLE}"
            table.problem("endpoints", [], wrong)
        return None
    if len(texts) != len(nics):
        wrong = (
            f"{len(texts)} addresses for {len(nics)} planes; give one for each, in their order, "
            'and an empty one ("") for a plane that the peer is not on'
        )
        table.problem("endpoints", texts, wrong)
        return None
    if not any(texts):
        table.problem("endpoints", texts, f"has no address; give one, as {_EXAMPLE}")
        return None
    found = [
        _address(table, "endpoints", text, nic.interface) if text else network.nowhere(6)
        for text, nic in zip(texts, nics, strict=True)
    ]
    addresses = [address for address in found if address is not None]
    if len(addresses) != len(found) or not isinstance(name, str):
        return None
    return network.host(name, addresses, key)


def _address(table: Table, key: str, text: str, interface: str | None) -> Address | None:
    """Return an address of a NIC, without its scope; None (with a problem) if it cannot be one."""
    try:
        found = ip_address(text)
    except ValueError:
        wrong = f"is not an address; write one like {_EXAMPLE}, without a port"
        table.problem(key, text, wrong)
        return None
    if isinstance(found, IPv6Address) and found.scope_id is not None:
        if interface and found.scope_id != interface:
            wrong = f"names {found.scope_id}, but the plane in this place is {interface}"
            table.problem(key, text, wrong)
        found = ip_address(text.partition("%")[0])
    if found.is_multicast or found.is_unspecified or found.is_loopback:
        table.problem(key, text, "is not the address of a NIC")
        return None
    return found


def _version(
    planes: Sequence[Table],
    nics: Sequence[Nic],
    peers: Sequence[Table],
    hosts: Sequence[Host | None],
    seeds: Sequence[str],
) -> Literal[4, 6]:
    """Return the IP version of the network; record a problem with each address of another."""
    given = [
        (table, "endpoints", address)
        for table, host in zip(peers, hosts, strict=True)
        for _plane, address in (host.places if host is not None else ())
    ]
    given += [
        (table, "address", nic.address)
        for table, nic in zip(planes, nics, strict=True)
        if nic.address is not None
    ]
    first = given[0][2] if given else ip_address(seeds[0]) if seeds else network.nowhere(6)
    version: Literal[4, 6] = 4 if first.version == 4 else 6
    for table, key, address in given:
        if address.version != version:
            wrong = f"is IPv{address.version}, others are IPv{version}; take one for all planes"
            table.problem(key, address, wrong)
    return version


def _check_unique(peers: Sequence[Table], hosts: Sequence[Host | None]) -> None:
    """Record a problem with each address that two peers have: arrivals are told apart by it."""
    owners: dict[Address, str] = {}
    for table, host in zip(peers, hosts, strict=True):
        places = host.places if host is not None else ()
        for address in dict.fromkeys(address for _plane, address in places):
            assert host is not None
            owner = owners.setdefault(address, host.name)
            if owner != host.name:
                wrong = f"is an endpoint of peer {owner}, too; each address has one owner"
                table.problem("endpoints", address, wrong)


def _check_scopes(peers: Sequence[Table], hosts: Sequence[Host | None]) -> None:
    """Record a problem where peers of a plane are reached from two addresses of this host."""
    kinds: dict[int, tuple[bool, str]] = {}
    for table, host in zip(peers, hosts, strict=True):
        for plane, address in host.places if host is not None else ():
            assert host is not None
            local, first = kinds.setdefault(plane, (address.is_link_local, host.name))
            if address.is_link_local != local:
                wrong = (
                    f"and that of peer {first} on plane {plane}: one is link-local, one is not; "
                    "a plane has one address of this host, so take the same kind for all peers"
                )
                table.problem("endpoints", address, wrong)
