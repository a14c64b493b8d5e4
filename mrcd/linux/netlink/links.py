# SPDX-License-Identifier: GPL-2.0-only
"""Interfaces and their addresses."""

from __future__ import annotations

import errno
import ipaddress
import os
from typing import Any

from pyroute2.netlink.rtnl.ifinfmsg.plugins.vxlan import vxlan

from mrcd.linux import netns as namespaces
from mrcd.linux.interfaces import Link, XdpProgram
from mrcd.linux.netlink.connection import Connection, trying
from mrcd.linux.netlink.messages import link_of, mac_text

_XDP_MODES = {"xdp": "native", "xdpgeneric": "generic", "xdpoffload": "offload"}
_IFF_MULTICAST = 0x1000
_IFA_F_NODAD = 0x02
_IFA_F_NOPREFIXROUTE = 0x200


def _own_address(message: Any) -> str:
    """Return the address of our end.

    IFA_ADDRESS is the far end on point-to-point links; IFA_LOCAL is absent in IPv6.
    """
    return str(message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS"))


def _extend_vxlan() -> None:
    """Add the attribute of linux/if_link.h behind the last one that pyroute2 0.9.7 has."""
    known = [name for name, _ in vxlan.nla_map]
    if known[-1] == "IFLA_VXLAN_DF":
        vxlan.nla_map = (*vxlan.nla_map, ("IFLA_VXLAN_VNIFILTER", "uint8"))


_extend_vxlan()


class Links(Connection):
    """Interfaces and their addresses."""

    async def links(self) -> dict[str, Link]:
        """Return all interfaces by name."""
        found = [link_of(message) async for message in self._dump(self._ipr.get_links)]
        return {link.name: link for link in found}

    async def xdp_program(self, name: str) -> XdpProgram | None:
        """Return the XDP program of `name`, ours or another, or None."""
        index = self.index(name)
        with trying(f"look at link {name}"):
            messages = await self._ipr.link("get", index=index)
        for message in messages:
            xdp = message.get_attr("IFLA_XDP")
            ident = xdp.get_attr("IFLA_XDP_PROG_ID") if xdp is not None else None
            if ident:
                mode = _XDP_MODES.get(xdp.get_attr("IFLA_XDP_ATTACHED"), "several")
                return XdpProgram(ident, mode)
        return None

    async def create_veth(
        self,
        name: str,
        peer: str,
        *,
        mtu: int,
        mac: bytes | None = None,
        peer_mac: bytes | None = None,
        peer_netns: str | None = None,
        queues: int = 1,
    ) -> None:
        """Create a veth pair, with `peer` directly in `peer_netns` when that is given.

        Both ends have `queues` transmit and receive queues, and of several, `name` has one transmit
        queue more. What leaves there by transmit queue q + 1 arrives as from receive queue q: a
        packet keeps the number of the first (Linux 6.18), and where drivers record the second,
        0 means none. Fails when either name is taken: an existing pair is never adopted.
        """
        other: dict[str, Any] = {"ifname": peer, "mtu": mtu}
        spec: dict[str, Any] = {"kind": "veth", "ifname": name, "mtu": mtu, "peer": other}
        if queues > 1:  # without a number, one is in use, and there are spare ones for all CPUs
            other |= {"num_tx_queues": queues, "num_rx_queues": queues}
            spec |= {"num_tx_queues": queues + 1, "num_rx_queues": queues}
        if mac is not None:
            spec["address"] = mac_text(mac)
        if peer_mac is not None:
            other["address"] = mac_text(peer_mac)
        handle = None
        try:
            if peer_netns is not None:
                handle = os.open(namespaces.path(peer_netns), os.O_RDONLY)
                other["net_ns_fd"] = handle
            with trying(f"create veth pair {name}, {peer}"):
                await self._ipr.link("add", **spec)
        finally:
            if handle is not None:
                os.close(handle)

    async def create_macvlan(self, name: str, lower: str, *, mtu: int, mac: bytes) -> None:
        """Create a macvlan (mode private) on the interface `lower`.

        Fails when the name is taken, or when the kernel has no macvlan.
        """
        with trying(f"create macvlan {name} on {lower}"):
            await self._ipr.link(
                "add",
                kind="macvlan",
                ifname=name,
                link=self.index(lower),
                macvlan_mode="private",
                address=mac_text(mac),
                mtu=mtu,
            )

    async def create_vxlan(self, name: str, port: int, *, mtu: int, mac: bytes) -> None:
        """Create a vxlan device that opens a UDP port, and takes no VNI: nothing enters by it.

        Fails when the name is taken, or when the kernel has no vxlan.
        """
        with trying(f"create vxlan {name} with UDP port {port}"):
            await self._ipr.link(
                "add",
                kind="vxlan",
                ifname=name,
                vxlan_port=port,
                vxlan_collect_metadata=1,
                vxlan_vnifilter=1,
                vxlan_learning=0,
                vxlan_udp_zero_csum6_rx=1,
                address=mac_text(mac),
                mtu=mtu,
            )

    async def create_ifb(self, name: str) -> None:
        """Create an ifb, a device that is always up and needs no peer."""
        with trying(f"create ifb {name}", present_ok=True):
            await self._ipr.link("add", kind="ifb", ifname=name)

    async def create_bridge(self, name: str, *, mtu: int) -> None:
        """Create a bridge without ports."""
        with trying(f"create bridge {name}"):
            await self._ipr.link("add", kind="bridge", ifname=name, mtu=mtu)

    async def delete_link(self, name: str) -> None:
        """Delete an interface (of a veth, both ends)."""
        if self.exists(name):
            with trying(f"delete link {name}", missing_ok=True):
                await self._ipr.link("del", index=self.index(name))

    async def set_link(
        self,
        name: str,
        *,
        up: bool | None = None,
        mtu: int | None = None,
        arp: bool | None = None,
        multicast: bool | None = None,
        mac: bytes | None = None,
        gso_size: int | None = None,
        gso_segs: int | None = None,
        master: int | None = None,
    ) -> None:
        """Change the settings of an interface that are not None.

        `gso_size` and `gso_segs` bound the segments that TCP builds, in bytes and in packets.
        Longer ones are cut into single packets on their way to the interface. A connection learns
        of new values when its route is looked up again. Up to 64 KiB the size applies to IPv4 and
        to IPv6 alike (netif_set_gso_max_size). A `master` of 0 takes it out of a bridge or bond.
        """
        if multicast is not None:
            flags = {"flags": _IFF_MULTICAST * multicast, "change": _IFF_MULTICAST}
            with trying(f"set multicast {multicast} on link {name}"):
                await self._ipr.link("set", index=self.index(name), **flags)
        spec: dict[str, Any] = {}
        if up is not None:
            spec["state"] = "up" if up else "down"
        if mtu is not None:
            spec["mtu"] = mtu
        if arp is not None:
            spec["arp"] = arp
        if mac is not None:
            spec["address"] = mac_text(mac)
        given = {"gso_max_size": gso_size, "gso_max_segs": gso_segs, "master": master}
        spec |= {key: value for key, value in given.items() if value is not None}
        if not spec:
            return
        shown = ", ".join(f"{key} {value}" for key, value in spec.items())
        with trying(f"set {shown} on link {name}"):
            await self._ipr.link("set", index=self.index(name), **spec)

    async def rename_link(self, index: int, name: str) -> None:
        """Rename an interface. Where the kernel does not do that while it is up, set it down."""
        try:
            with trying(f"rename link {index} to {name}"):
                await self._ipr.link("set", index=index, ifname=name)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            with trying(f"set link {index} down and rename it to {name}"):
                await self._ipr.link("set", index=index, state="down")
                await self._ipr.link("set", index=index, ifname=name)

    async def move_link(self, name: str, netns: str, new_name: str, mtu: int) -> None:
        """Move an interface to another namespace, under a new name; it is down afterwards."""
        handle = os.open(namespaces.path(netns), os.O_RDONLY)
        try:
            with trying(f"move link {name} to {new_name} in {netns}"):
                await self._ipr.link(
                    "set", index=self.index(name), net_ns_fd=handle, ifname=new_name, mtu=mtu
                )
        finally:
            os.close(handle)

    async def add_address(
        self, name: str, cidr: str, *, nodad: bool = True, prefix_route: bool = True
    ) -> None:
        """Add the address to `name`; without `prefix_route` the kernel adds no route for it."""
        interface = ipaddress.ip_interface(cidr)
        flags = 0 if prefix_route else _IFA_F_NOPREFIXROUTE
        if interface.version == 6 and nodad:
            flags |= _IFA_F_NODAD
        with trying(f"add address {cidr} to {name}", present_ok=True):
            await self._ipr.addr(
                "add",
                index=self.index(name),
                address=str(interface.ip),
                prefixlen=interface.network.prefixlen,
                flags=flags,
            )

    async def delete_address(self, name: str, cidr: str) -> None:
        """Remove the address from `name`."""
        interface = ipaddress.ip_interface(cidr)
        with trying(f"delete address {cidr} of {name}", missing_ok=True):
            await self._ipr.addr(
                "del",
                index=self.index(name),
                address=str(interface.ip),
                prefixlen=interface.network.prefixlen,
            )

    async def addresses(self, name: str) -> list[str]:
        """Return all addresses of `name`, with link-local ones, as address/prefix length."""
        index = self.index(name)
        return [
            f"{_own_address(message)}/{message['prefixlen']}"
            async for message in self._dump(self._ipr.get_addr, index=index)
            if message["index"] == index
        ]
