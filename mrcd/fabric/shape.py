# SPDX-License-Identifier: GPL-2.0-only
"""The parts and the limits of a fabric; `generate` makes one from a few numbers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mrcd.fabric import hosts as of
from mrcd.fabric.classes import USUAL, Classes
from mrcd.fabric.hosts import Host
from mrcd.fabric.routing import SRV6, Routing

PLANES_MAX = 8
T0_MAX = T1_MAX = PORT_MAX = 2047  # the index of a uSID has 11 bits
# The IPv4 addresses of NICs and switches have one byte for the switch and one for the port, where
# 254 is the T0 itself. Labs stay within these limits; a larger fabric has IPv6 addresses only.
IPV4_SWITCHES_MAX = 254
IPV4_PORT_MAX = 253
_TOO_LARGE_FOR_A_LAB = (
    f"too large for a lab: it has at most {IPV4_SWITCHES_MAX} T0s and T1s in a plane"
    f" and {IPV4_PORT_MAX} hosts on a T0"
)
_OWN_NUMBER = 254  # last number of a T0's own address; a large fabric uses one beyond all ports
_OWN_NUMBER_LARGE = 2048
MTU_MIN = 1408  # 1280 for IPv6 in mrc0, plus 128 bytes of headers
MTU_MAX = 15900  # with any headers, mrc0's is at most MRC_PIECE_BYTES (bpf/maps.c)
MTU_REMEDY = (
    f"is too large: {MTU_MAX} at most, because the programs could not send a longer packet again; "
    f"write {MTU_MAX} or less, the NICs and switches may have more"
)
RATE_MAX_MBPS = 34_000  # tbf's 32-bit rate in bytes per second

NAME_MAX = 31
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
ELEMENT = re.compile(r"p\d+(t[01]-\d+)?")
"""Names of planes and switches, which no host may have."""
PUBLIC_KEY = re.compile(r"[A-Za-z0-9+/]{43}=")
NAME_RULE = "a lower-case letter, then up to 30 lower-case letters, digits or '-'"


class FabricError(Exception):
    """A fabric description is wrong; a command that was started with it exits with status 2."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Fabric:
    """A fabric of `planes` planes, each with `t0` and `t1` switches.

    trim: whether switches cut data to its headers where they would drop it.
    """

    name: str
    block: ipaddress.IPv6Network
    underlay6: ipaddress.IPv6Network
    gateway: ipaddress.IPv6Address
    planes: int
    t0: int
    t1: int
    mtu: int
    rate_mbps: int
    hosts: Sequence[Host]
    routing: Routing = SRV6
    trim: bool = False
    classes: Classes = USUAL

    def host(self, name: str) -> Host:
        """Return the host of that name; raises KeyError that lists the known names."""
        found = of.find(self.hosts, name)
        if found is None:
            known = of.listed(self.hosts)
            raise KeyError(f"no host {name!r} in fabric {self.name!r}; known: {known}")
        return found

    @property
    def described(self) -> bool:
        """Return whether a fabric file describes it; else it is any network between NICs."""
        return not self.routing.network

    @property
    def ipv4(self) -> bool:
        """Return whether NICs and switches also have IPv4 addresses: up to lab size they do."""
        switches = max(self.t0, self.t1)
        return switches <= IPV4_SWITCHES_MAX and of.port_max(self.hosts) <= IPV4_PORT_MAX

    def address4(self, host: Host, plane: int) -> ipaddress.IPv4Address:
        """Return the IPv4 address of the host's NIC in a plane; ValueError if it has none."""
        if host.t0 > IPV4_SWITCHES_MAX or host.port > IPV4_PORT_MAX:
            raise ValueError(f"{host.name} is past what IPv4 addresses of planes can number")
        return self.underlay4(plane, host.t0, host.port)

    def address6(self, host: Host, plane: int) -> ipaddress.IPv6Address:
        """Return the IPv6 address of the host's NIC in a plane, MRC's inner address."""
        return self.underlay(plane, host.t0, host.port)

    def t0_address4(self, plane: int, t0: int) -> ipaddress.IPv4Address:
        """Return the IPv4 address of a T0 itself, the gateway of its hosts."""
        return self.underlay4(plane, t0, _OWN_NUMBER)

    def t0_address6(self, plane: int, t0: int) -> ipaddress.IPv6Address:
        """Return the IPv6 address of a T0 itself."""
        return self.underlay(plane, t0, _OWN_NUMBER if self.ipv4 else _OWN_NUMBER_LARGE)

    def t1_address4(self, plane: int, t1: int) -> ipaddress.IPv4Address:
        """Return the IPv4 address of a T1 itself."""
        return self.underlay4(plane, 0, t1)

    def t1_address6(self, plane: int, t1: int) -> ipaddress.IPv6Address:
        """Return the IPv6 address of a T1 itself."""
        return self.underlay(plane, 0, t1)

    def underlay4(self, plane: int, t0: int, last: int) -> ipaddress.IPv4Address:
        """Return the address 10 . 100 + plane . t0 . last"""
        return ipaddress.IPv4Address(f"10.{100 + plane}.{t0}.{last}")

    def underlay(self, plane: int, t0: int, last: int) -> ipaddress.IPv6Address:
        """Return the address underlay6 : plane : t0 :: last"""
        return ipaddress.IPv6Address(self.underlay_number(plane, t0, last))

    def underlay_number(self, plane: int, t0: int, last: int) -> int:
        """Return the address of `underlay` as a number."""
        return int(self.underlay6.network_address) | plane << 80 | t0 << 64 | last

    def plane_prefix4(self, plane: int) -> ipaddress.IPv4Network:
        """Return the prefix of all IPv4 addresses of a plane."""
        return ipaddress.IPv4Network((int(self.underlay4(plane, 0, 0)), 16))

    def plane_prefix6(self, plane: int) -> ipaddress.IPv6Network:
        """Return the prefix of all IPv6 addresses of a plane."""
        return ipaddress.IPv6Network((int(self.underlay(plane, 0, 0)), 48))


def generate(
    *,
    name: str = "lab",
    hosts: int = 2,
    planes: int = 4,
    t1: int = 2,
    hosts_per_t0: int = 1,
    mtu: int = 9000,
    rate_mbps: int = 0,
    routing: Routing = SRV6,
    trim: bool = False,
) -> Fabric:
    """Return the fabric of `lab up`: hosts h1, h2, ... fill the T0s in order.

    It is checked like a file; raises FabricError with the offending options.
    """
    problems = _out_of_range(
        ("--hosts", hosts, 1, 254),
        ("--planes", planes, 1, PLANES_MAX),
        ("--t1", t1, 1, IPV4_SWITCHES_MAX),
        ("--hosts-per-t0", hosts_per_t0, 1, IPV4_PORT_MAX),
    )
    if problems:
        raise FabricError(problems)
    members = tuple(
        Host(
            name=f"h{i}",
            t0=(i - 1) // hosts_per_t0 + 1,
            port=(i - 1) % hosts_per_t0 + 1,
            addresses=(
                ipaddress.ip_interface(f"10.99.0.{i}/24"),
                ipaddress.ip_interface(f"fd99::{i:x}/64"),
            ),
        )
        for i in range(1, hosts + 1)
    )
    fabric = Fabric(
        name=name,
        block=ipaddress.IPv6Network("fcbb:bb00::/32"),
        underlay6=ipaddress.IPv6Network("fdcb::/32"),
        gateway=ipaddress.IPv6Address("fe80::1"),
        planes=planes,
        t0=members[-1].t0,
        t1=t1,
        mtu=mtu,
        rate_mbps=rate_mbps,
        hosts=members,
        routing=routing,
        trim=trim,
    )
    return checked(fabric)


def checked(fabric: Fabric) -> Fabric:
    """Return the fabric if it is sound and a lab can be made of it; else raise FabricError."""
    problems = [] if fabric.ipv4 else [_TOO_LARGE_FOR_A_LAB]
    return sound(fabric, problems)


def sound(fabric: Fabric, problems: Sequence[str] = ()) -> Fabric:
    """Return the fabric if the values that options override are sound; else raise FabricError."""
    found = [
        *problems,
        *_out_of_range(
            ("--mtu", fabric.mtu, MTU_MIN, MTU_MAX),
            ("--rate", fabric.rate_mbps, 0, RATE_MAX_MBPS),
        ),
        *(f"--{key} {value}: must be {wanted}" for key, value, wanted in fabric.routing.problems()),
    ]
    if not NAME.fullmatch(fabric.name):
        found.append(f"--name {fabric.name}: must be {NAME_RULE}")
    if found:
        raise FabricError(found)
    return fabric


def _out_of_range(*limits: tuple[str, int, int, int]) -> list[str]:
    return [
        f"{option} {value}: must be {low} to {high}"
        for option, value, low, high in limits
        if not low <= value <= high
    ]
