# SPDX-License-Identifier: GPL-2.0-only
"""Plan the two-tier multi-plane fabric that switches of a given radix make (pure).

A NIC with P ports has one port in each of P planes, which share no switch. In a plane, a T0 has
half of its R ports down to NICs and half up, one to each T1. A T1 has all of its ports down, one to
each T0:

    T1s in a plane   R / 2               (a T0's uplinks)
    T0s in a plane   up to R             (a T1's ports)
    NICs             up to R x R / 2     (one port of a T0 in each plane)

This follows section 2 of "Resilient AI Supercomputer Networking using MRC and SRv6"
(arXiv:2605.04333), whose figures the tests reproduce: 512-port switches and 8 planes connect
131,072 NICs of 8 x 100 Gb/s, with 2/3 of the optics and 3/5 of the switches of three tiers.

The comparison is a folded Clos of three tiers in one plane. The same chips then have k = R / P
ports at the whole NIC's speed. Up to k^3 / 4 NICs hang on k^2 / 2 T0s, k^2 / 2 T1s and k^2 / 4 T2s
(Al-Fares et al., SIGCOMM 2008). That takes 5 switches for every k NICs, against 3 with two tiers.
There are three links for each NIC's worth of bandwidth against two, so the optics, two to a link,
are 6 per NIC against 4. Neither fabric is oversubscribed.

If fewer NICs are wanted, only the T0s that hold them are counted, and the tiers above as far as
those T0s fill them. A T1 then needs one port for each T0. Several T1s, each with its own uSID and
table (a VRF), share a switch as far as its ports go.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from mrcd.fabric import usid
from mrcd.fabric.description import PLANES_MAX, Fabric, HostRange
from mrcd.fabric.hosts import Host, Network, port_max, room

RADIX_MAX = 1 << 16
_SMALL = ("10.99.0.0/24", "10.99.0.0/16")  # below 10.100.0.0, where the planes start
_LARGE = ipaddress.IPv4Network("10.128.0.0/9")
_INNER6 = ipaddress.IPv6Network("fd99::/64")


class PlanError(ValueError):
    """The fabric cannot be built; the message names the option."""


@dataclass(frozen=True, slots=True)
class ThreeTiers:
    """The same NICs in one plane of full-speed ports, with three tiers of the same switches."""

    radix: int  # ports of a switch at the NIC's speed
    nics_max: int  # limit of three tiers; the other figures hold even if more NICs are wanted
    switches: int
    links: int  # at the NIC's speed
    optics: int
    nics_per_t0: int


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a uSID or an EV, and the largest number that the fabric puts into it."""

    name: str
    bits: int
    largest: int

    @property
    def holds(self) -> bool:
        """Return whether the largest number fits."""
        return self.largest < 1 << self.bits


@dataclass(frozen=True, slots=True)
class Plan:
    """The figures of a fabric. T0s and T1s are per plane, table sizes per switch."""

    radix: int
    planes: int
    nics: int
    nics_max: int
    nics_per_host: int
    hosts: int
    t0: int
    t1: int
    nics_per_t0: int
    t1_per_switch: int  # T1s that share a switch if there are few T0s
    switches: int
    nic_links: int  # links at one plane's speed, in all planes together
    trunk_links: int
    links: int
    optics: int  # at the NIC's speed: one serves a NIC's links of all planes, or as many trunks
    paths: int  # EVs between two NICs on different T0s
    t0_usid_routes: int  # its own, plus one to each T1 and one to each of its NIC ports
    t1_usid_routes: int  # its own, plus one to each T0; again for each T1 in the switch
    t0_ecmp_groups: int  # without SRv6 (routing = "ecmp"): one prefix for each other T0
    host_usid_routes: int  # one /35 per plane
    fields: tuple[Field, ...]
    three: ThreeTiers | None

    @property
    def fits(self) -> bool:
        """Return whether uSIDs and EVs can number the fabric."""
        return all(field.holds for field in self.fields)


def plan(*, radix: int, planes: int, nics: int | None = None, nics_per_host: int = 4) -> Plan:
    """Return the plan for `planes` planes of switches with `radix` ports at a plane's speed.

    `nics` is the wanted number of NICs; None means as many as fit. Raises PlanError when the fabric
    cannot be built.
    """
    if not 2 <= radix <= RADIX_MAX or radix % 2:
        raise PlanError(f"--radix {radix}: must be an even number, 2 to {RADIX_MAX}")
    if not 1 <= planes <= PLANES_MAX:
        raise PlanError(f"--planes {planes}: must be 1 to {PLANES_MAX}")
    if nics_per_host < 1:
        raise PlanError(f"--nics-per-host {nics_per_host}: must be at least 1")
    half, most = radix // 2, radix * radix // 2
    wanted = most if nics is None else nics
    if not 1 <= wanted <= most:
        raise PlanError(
            f"--nics {wanted}: must be 1 to {most}: two tiers of {radix}-port switches have"
            f" {radix} T0s of {half} NICs"
        )
    t0 = _up(wanted, half)
    shared = min(half, radix // t0)
    nic_links, trunks = wanted * planes, planes * t0 * half
    return Plan(
        radix=radix,
        planes=planes,
        nics=wanted,
        nics_max=most,
        nics_per_host=nics_per_host,
        hosts=_up(wanted, nics_per_host),
        t0=t0,
        t1=half,
        nics_per_t0=min(half, wanted),
        t1_per_switch=shared,
        switches=planes * (t0 + _up(half, shared)),
        nic_links=nic_links,
        trunk_links=trunks,
        links=nic_links + trunks,
        optics=2 * _up(nic_links + trunks, planes),
        paths=planes * half,
        t0_usid_routes=1 + half + min(half, wanted),
        t1_usid_routes=1 + t0,
        t0_ecmp_groups=t0 - 1,
        host_usid_routes=planes,
        fields=_fields(planes, t0, half, min(half, wanted)),
        three=_three_tiers(radix, planes, wanted),
    )


def _up(amount: int, unit: int) -> int:
    return -(-amount // unit)


def _fields(planes: int, t0: int, t1: int, ports: int) -> tuple[Field, ...]:
    index = usid.INDEX_MASK.bit_length()
    return (
        Field("uSID plane", 16 - usid.PLANE_SHIFT, planes - 1),
        Field("uSID role", usid.PLANE_SHIFT - usid.ROLE_SHIFT, usid.ROLE_HOST),
        Field("uSID index of a T0", index, t0),
        Field("uSID index of a T1", index, t1),
        Field("uSID index of a host port", index, ports),
        Field("EV plane", 32 - usid.EV_PLANE_SHIFT, planes - 1),
        Field("EV T1", usid.EV_T1_MASK.bit_length(), t1),
    )


def _three_tiers(radix: int, planes: int, nics: int) -> ThreeTiers | None:
    """Return the comparison, or None if a switch's ports do not make an even k."""
    if radix % (2 * planes):
        return None
    k = radix // planes
    t0 = _up(nics, k // 2)
    links = nics + 2 * t0 * (k // 2)
    return ThreeTiers(
        radix=k,
        nics_max=k**3 // 4,
        switches=2 * t0 + _up(t0, 2),
        links=links,
        optics=2 * links,
        nics_per_t0=k // 2,
    )


def fabric(plan: Plan, *, name: str, mtu: int) -> Fabric:
    """Return the fabric of a plan: one host for each NIC, as a pattern.

    Raises PlanError when uSIDs or EVs cannot number it.
    """
    for field in plan.fields:
        if not field.holds:
            raise PlanError(
                f"{field.name} {field.largest} does not fit its {field.bits} bits"
                f" (at most {(1 << field.bits) - 1}): fewer NICs or a smaller radix"
            )
    return Fabric(
        name=name,
        block=ipaddress.IPv6Network("fcbb:bb00::/32"),
        underlay6=ipaddress.IPv6Network("fdcb::/32"),
        gateway=ipaddress.IPv6Address("fe80::1"),
        planes=plan.planes,
        t0=plan.t0,
        t1=plan.t1,
        mtu=mtu,
        rate_mbps=0,
        hosts=HostRange(plan.nics, plan.nics_per_t0, "h", (_inner4(plan.nics), _INNER6)),
    )


def _inner4(count: int) -> Network:
    """Return an IPv4 network for `count` mrc0s.

    It is outside the planes' range, 10.100.0.0 to 10.107.255.255.
    """
    for text in _SMALL:
        network = ipaddress.IPv4Network(text)
        if room(network) >= count:
            return network
    length = 32 - (count + 1).bit_length()
    return ipaddress.IPv4Network((int(_LARGE.network_address), length))


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of `check`: how many items of each kind were found correct."""

    nics: int
    addresses: int  # of NICs, switches and mrc0s, all different
    usids: int  # of T0s, T1s and host ports, all different
    destinations: int  # uSID lists that end at a NIC, all different
    evs: int
    paths: int  # from EV to uSID list to address and back


def check(fabric: Fabric) -> Checked:
    """Check every address and every EV of a fabric; raises PlanError for the first wrong one.

    Every address is generated and compared with all others. Every EV is turned into a path and
    back at every T0, both as the source's and as the destination's. Every ordered pair of T0s and
    every NIC take part in this. The check is complete although it does not try every triple: the
    uSIDs of a path lie in separate fields, each a function of one of source T0, T1, destination T0
    and port, and every value of each of these is tried with every EV.
    """
    addresses = _check_addresses(fabric)
    bare = [Host(host.name, host.t0, host.port, ()) for host in fabric.hosts]
    return Checked(
        nics=len(bare),
        addresses=addresses,
        usids=_check_usids(fabric),
        destinations=_check_destinations(fabric, bare),
        evs=fabric.planes * (fabric.t1 + 1),
        paths=_check_paths(fabric, bare),
    )


def _check_addresses(fabric: Fabric) -> int:
    """Check and count the plane addresses of NICs and switches, and the addresses of mrc0s."""
    seen: set[int] = set()
    count = 0
    for number in _addresses(fabric):
        seen.add(number)
        count += 1
        if len(seen) != count:
            raise PlanError(f"address {_shown(number)} is given twice")
    return count


def _addresses(fabric: Fabric) -> Iterator[int]:
    """Yield every address as a number.

    IPv4 addresses are below 2^32 and the IPv6 addresses of a fabric above, so they never collide.
    """
    prefixes = [int(fabric.plane_prefix6(plane).network_address) for plane in range(fabric.planes)]
    for plane, prefix in enumerate(prefixes):
        switches = [fabric.t0_address6(plane, j) for j in range(1, fabric.t0 + 1)]
        switches += [fabric.t1_address6(plane, m) for m in range(1, fabric.t1 + 1)]
        for address in switches:
            yield _inside(int(address), prefix)
    for host in fabric.hosts:
        for plane, prefix in enumerate(prefixes):
            yield _inside(fabric.underlay_number(plane, host.t0, host.port), prefix)
        for inner in host.addresses:
            yield int(inner.ip)


def _inside(number: int, prefix: int) -> int:
    if number >> 80 != prefix >> 80:
        raise PlanError(f"address {_shown(number)} is not of its plane, {_shown(prefix)}/48")
    return number


def _shown(number: int) -> str:
    return str(ipaddress.ip_address(number))


def _check_usids(fabric: Fabric) -> int:
    seen = set()
    ports = port_max(fabric.hosts)
    for plane in range(fabric.planes):
        for role, most in enumerate((fabric.t0, fabric.t1, ports)):
            for index in range(1, most + 1):
                value = usid.usid(plane, role, index)
                if usid.split(value) != usid.Usid(plane, role, index) or value in seen:
                    raise PlanError(f"uSID {value:#06x} is not of plane {plane}, {role}, {index}")
                seen.add(value)
    return len(seen)


def _check_destinations(fabric: Fabric, hosts: list[Host]) -> int:
    """Check that the last two uSIDs, T0 and host port, differ for each NIC and plane."""
    seen = set()
    for host in hosts:
        for plane in range(fabric.planes):
            t0 = usid.usid(plane, usid.ROLE_T0, host.t0)
            seen.add(t0 << 16 | usid.usid(plane, usid.ROLE_HOST, host.port))
    if len(seen) != len(hosts) * fabric.planes:
        raise PlanError("two NICs have the same T0 and port")
    return len(seen)


def _check_paths(fabric: Fabric, hosts: list[Host]) -> int:
    """Check every EV at every T0, both ways; see `check`."""
    by_t0: dict[int, list[Host]] = {}
    for host in hosts:
        by_t0.setdefault(host.t0, []).append(host)
    t0s = list(by_t0.values())
    for plane in range(fabric.planes):  # EVs of two hosts on one T0
        for members in t0s:
            _check_path(fabric.block, members[0], members[-1], usid.ev(plane, 0))
    count = fabric.planes * len(t0s)
    if len(t0s) == 1:
        return count
    evs = [usid.ev(plane, t1) for plane in range(fabric.planes) for t1 in range(1, fabric.t1 + 1)]
    turns = max(len(evs), len(t0s) - 1, *map(len, t0s))
    for turn in range(turns):
        value, shift = evs[turn % len(evs)], turn % (len(t0s) - 1) + 1
        for at, near in enumerate(t0s):
            far = t0s[(at + shift) % len(t0s)]
            _check_path(fabric.block, near[turn % len(near)], far[(turn + at) % len(far)], value)
    return count + turns * len(t0s)


def _check_path(block: ipaddress.IPv6Network, src: Host, dst: Host, value: int) -> None:
    """Convert one EV between two hosts to its uSIDs, to the address on the wire, and back."""
    usids = usid.path_usids(src, dst, value)
    back = usid.usids_of_da(block, usid.da_bytes(block, usids))
    if back != usids or usid.ev_of_path(back) != value:
        raise PlanError(f"EV {value:#010x} from {src.name} to {dst.name} is not its path's")
