# SPDX-License-Identifier: GPL-2.0-only
"""A plane's NIC as it is now, and how the planes' NICs are found."""

from __future__ import annotations

from dataclasses import dataclass

from mrcd.config.config import Config
from mrcd.linux.interfaces import Link
from mrcd.linux.netlink import Netlink
from mrcd.planes.usable import PortState, why_unused


class PlaneError(Exception):
    """A plane cannot be set up; the message names it and says what to do."""


@dataclass(slots=True)
class Plane:
    """One plane NIC. While it is `usable`, packets are sprayed on it and peers may send to it.

    Without a fabric it needs no gateway, but an address: whether it is `addressed`.
    """

    index: int
    link: Link
    gateway_mac: bytes | None = None
    drained: bool = False
    sick: str | None = None
    usable: bool = False
    present: bool = True
    mtu: int = 0  # the least that its NIC must have
    configured: str = ""  # the name of its NIC in the configuration
    addressed: bool = False

    def __post_init__(self) -> None:
        """Take the NIC's present name as the configured one."""
        self.configured = self.configured or self.link.name

    @property
    def port(self) -> PortState:
        """The facts that decide whether the plane is usable."""
        link, known = self.link, self.gateway_mac is not None or self.addressed
        return PortState(
            link.up, link.carrier, known, self.drained, self.sick, self.present, self._narrow()
        )

    def _narrow(self) -> str | None:
        name, there = self.link.name, self.link.mtu
        if there >= self.mtu:
            return None
        return (
            f"{name} has MTU {there}, less than the planes' {self.mtu}: "
            f"`ip link set {name} mtu {self.mtu}`"
        )

    def why_unused(self, gateway: str | None) -> str | None:
        """Return the reason why the plane is not usable, or None if it is.

        `gateway` is None without a fabric.
        """
        return None if self.usable else why_unused(self.port, self.link.name, gateway)


async def find_planes(nl: Netlink, config: Config) -> list[Plane]:
    """Return the planes with their interfaces, without changing anything.

    A plane whose interface is missing, or has too small an MTU, is not used, and status says why.
    Raises PlaneError, which names them, if that is so for all planes.
    """
    links, described = await nl.links(), config.fabric.described
    missing = [name for name in config.interfaces if name not in links]
    if len(missing) == len(config.interfaces):
        raise PlaneError(
            f"no interface {', '.join(missing)} on this host; there is "
            f"{', '.join(sorted(links))}. Name the plane NICs in {_where(config)}"
        )
    there = [name for name in config.interfaces if name in links]
    small = [name for name in there if links[name].mtu < config.fabric.mtu]
    if len(small) == len(there):
        whose, where = ("fabric's", "[fabric]") if described else ("network's", "[[plane]]")
        raise PlaneError(
            f"{', '.join(f'{name} has MTU {links[name].mtu}' for name in small)}: less than the "
            f"{whose} {config.fabric.mtu}. Raise it (`ip link set {small[0]} mtu "
            f"{config.fabric.mtu}`) or lower {where} mtu"
        )
    return [
        Plane(i, links.get(name) or _nothing(name), present=name in links, mtu=config.fabric.mtu)
        for i, name in enumerate(config.interfaces)
    ]


def _nothing(name: str) -> Link:
    """Return what stands for an interface that is not there."""
    return Link(0, name, bytes(6), 0, up=False, carrier=False)


def _where(config: Config) -> str:
    """Return the key that names the plane NICs."""
    return "[planes] interfaces" if config.fabric.described else "[[plane]] interface"
