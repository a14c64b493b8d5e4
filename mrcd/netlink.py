# SPDX-License-Identifier: GPL-2.0-only
"""Links, addresses, routes, neighbours and queues; the only importer of pyroute2.

Requests with flavours pyroute2 does not know, or drops silently (the uSID
flavour of seg6local), are built from attributes here instead of its keywords.
Everything is idempotent where that has a meaning: adding what is there and
deleting what is not there succeed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import struct
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from types import TracebackType
from typing import Any, Self

from pyroute2 import AsyncIPRoute
from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, nla
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import (
    RTM_DELLINK,
    RTM_DELNEIGH,
    RTM_DELROUTE,
    RTM_NEWLINK,
    RTM_NEWNEIGH,
    RTM_NEWROUTE,
)
from pyroute2.netlink.rtnl.marshal import MarshalRtnl
from pyroute2.netlink.rtnl.rtmsg import rtmsg, rtmsg_base

from mrcd import netns as namespaces
from mrcd.fib import ENCAP_SEG6_LOCAL, FLAVOR_NEXT_CSID, RTAX_FEATURE_ECN, route_of, rule_of
from mrcd.interfaces import (
    Event,
    FibRoute,
    FibRule,
    Link,
    LinkChanged,
    NeighborChanged,
    Nexthop,
    Resync,
    Route,
)

__all__ = [
    "Event",
    "FibRoute",
    "FibRule",
    "Link",
    "LinkChanged",
    "NeighborChanged",
    "Netlink",
    "NetlinkFailed",
    "Nexthop",
    "Resync",
    "Route",
    "Watch",
]

_SIOCGIFINDEX = 0x8933
_GROUP_LINK, _GROUP_NEIGH = 0x1, 0x4
_IFF_UP = 0x1
_IFA_F_NODAD = 0x02
_IFA_F_NOPREFIXROUTE = 0x200
_RTPROT_STATIC = 4
_RTN_UNICAST = 1
_SCOPE_UNIVERSE = 0
_SCOPE_LINK = 253
_TABLE_UNSPEC = 0
_TABLE_MAIN = 254
_TABLE_LOCAL = 255
_RULE_PRIORITY = {"iif": 1000, "src": 1001}  # behind the local table, before the main one
_NUD_FAILED = 0x20
_NUD_PERMANENT = 0x80
_NUD_VALID = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80
_CLSACT_PARENT = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}
_ETH_P_ALL = 0x0003
_DISCARD_PORT = 9
_IP_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class _Flavors(nla):  # type: ignore[misc]  # pyroute2 is not typed
    """SEG6_LOCAL_FLAVORS of linux/seg6_local.h, unknown to pyroute2 0.9.7."""

    __slots__ = ()
    nla_map = (
        ("SEG6_LOCAL_FLV_UNSPEC", "none"),
        ("SEG6_LOCAL_FLV_OPERATION", "uint32"),
        ("SEG6_LOCAL_FLV_LCBLOCK_BITS", "uint8"),
        ("SEG6_LOCAL_FLV_LCNODE_FN_BITS", "uint8"),
    )


def _extend_seg6local() -> None:
    info = rtmsg_base.seg6local_encap_info
    known = {name for name, _ in info.nla_map}
    if "SEG6_LOCAL_FLAVORS" not in known:
        info.flavors = _Flavors
        info.nla_map = (
            *info.nla_map,
            ("SEG6_LOCAL_COUNTERS", "hex"),
            ("SEG6_LOCAL_FLAVORS", "flavors"),
        )


_extend_seg6local()


class NetlinkFailed(OSError):
    """The kernel refused; the message says what was tried on what."""


@contextlib.contextmanager
def _trying(what: str, *, missing_ok: bool = False, present_ok: bool = False) -> Iterator[None]:
    """Turn a refusal into NetlinkFailed, except the ones that mean 'done already'."""
    try:
        yield
    except NetlinkError as error:
        if present_ok and error.code == errno.EEXIST:
            return
        if missing_ok and error.code in (errno.ENOENT, errno.ENODEV, errno.ESRCH):
            return
        if missing_ok and error.code in (errno.EADDRNOTAVAIL, errno.EINVAL):
            return
        detail = os.strerror(error.code) if error.code else str(error)
        extra = error.args[1] if len(error.args) > 1 and error.args[1] else ""
        hint = f" ({extra})" if extra and extra != detail else ""
        raise NetlinkFailed(error.code, f"could not {what}: {detail}{hint}") from None


def _mac_text(mac: bytes) -> str:
    return mac.hex(":")


def _mac_bytes(text: str | None) -> bytes:
    return bytes.fromhex(text.replace(":", "")) if text else b""


def _link_of(message: Any) -> Link:
    return Link(
        index=message["index"],
        name=message.get_attr("IFLA_IFNAME") or "",
        mac=_mac_bytes(message.get_attr("IFLA_ADDRESS")),
        mtu=message.get_attr("IFLA_MTU") or 0,
        up=bool(message["flags"] & _IFF_UP),
        carrier=bool(message.get_attr("IFLA_CARRIER")),
    )


def _own_address(message: Any) -> str:
    """IFA_ADDRESS is the far end on point-to-point links; IFA_LOCAL is absent in IPv6."""
    return str(message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS"))


def _family(ip: str) -> int:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def _via_attribute(family: int, via: str) -> tuple[str, Any]:
    """RTA_GATEWAY, or RTA_VIA for an IPv4 route over an IPv6 neighbour (RFC 8950)."""
    if _family(via) == family:
        return ("RTA_GATEWAY", via)
    return ("RTA_VIA", {"family": _family(via), "addr": via})


def _route_message(dst: str, scope: int = _SCOPE_UNIVERSE, table: int | None = None) -> Any:
    network = ipaddress.ip_network(dst)
    message = rtmsg()
    message["family"] = socket.AF_INET if network.version == 4 else socket.AF_INET6
    message["dst_len"] = network.prefixlen
    message["table"] = _TABLE_MAIN
    message["proto"] = _RTPROT_STATIC
    message["scope"] = scope
    message["type"] = _RTN_UNICAST
    message["attrs"] = [("RTA_DST", str(network.network_address))]
    if table is not None:
        message["table"] = _TABLE_UNSPEC  # the attribute holds numbers above 255, too
        message["attrs"].append(("RTA_TABLE", table))
    return message


class Netlink:
    """A conversation with the kernel in one network namespace.

    Use as `async with Netlink() as nl` (the caller's namespace) or
    `Netlink("name")` (one of `ip netns`). All names are interface names there.
    """

    def __init__(self, netns: str | None = None) -> None:
        self.netns = netns
        self._ipr: Any = None
        self._ioctl: socket.socket | None = None
        self._dumping = asyncio.Lock()

    async def __aenter__(self) -> Self:
        with namespaces.entered(self.netns):
            self._ipr = AsyncIPRoute()
            # Reading the property opens the socket: it must happen in here.
            self._ipr.socket.fileno()
            self._ioctl = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        await self._ipr.setup_endpoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ipr.close()
        if self._ioctl is not None:
            self._ioctl.close()

    # Links

    def index(self, name: str) -> int:
        """The interface's index; NetlinkFailed (ENODEV) when there is none."""
        assert self._ioctl is not None, "use Netlink as an async context manager"
        request = struct.pack("16si20x", os.fsencode(name), 0)
        try:
            answer = fcntl.ioctl(self._ioctl, _SIOCGIFINDEX, request)
        except OSError as error:
            where = f" in {self.netns}" if self.netns else ""
            raise NetlinkFailed(error.errno, f"no interface {name}{where}") from None
        return int(struct.unpack_from("i", answer, 16)[0])

    def exists(self, name: str) -> bool:
        """Whether there is an interface of that name."""
        try:
            self.index(name)
        except NetlinkFailed:
            return False
        return True

    async def _dump(self, ask: Callable[..., Any], **what: Any) -> AsyncGenerator[Any, None]:
        """The messages of one dump; the kernel runs one at a time on a socket (EBUSY)."""
        async with self._dumping:
            with _trying(f"dump by {getattr(ask, '__name__', ask)}"):
                messages = [message async for message in await ask(**what)]
        for message in messages:
            yield message

    async def links(self) -> dict[str, Link]:
        """All interfaces by name."""
        found = [_link_of(message) async for message in self._dump(self._ipr.get_links)]
        return {link.name: link for link in found}

    async def create_veth(
        self,
        name: str,
        peer: str,
        *,
        mtu: int,
        mac: bytes | None = None,
        peer_mac: bytes | None = None,
        peer_netns: str | None = None,
    ) -> None:
        """Create a veth pair, `peer` straight in `peer_netns` when given.

        Fails when either name is taken: a pair is never adopted.
        """
        other: dict[str, Any] = {"ifname": peer, "mtu": mtu}
        spec: dict[str, Any] = {"kind": "veth", "ifname": name, "mtu": mtu, "peer": other}
        if mac is not None:
            spec["address"] = _mac_text(mac)
        if peer_mac is not None:
            other["address"] = _mac_text(peer_mac)
        handle = None
        try:
            if peer_netns is not None:
                handle = os.open(namespaces.path(peer_netns), os.O_RDONLY)
                other["net_ns_fd"] = handle
            with _trying(f"create veth pair {name}, {peer}"):
                await self._ipr.link("add", **spec)
        finally:
            if handle is not None:
                os.close(handle)

    async def create_ifb(self, name: str) -> None:
        """Create an ifb, a device that is always up and needs no peer."""
        with _trying(f"create ifb {name}", present_ok=True):
            await self._ipr.link("add", kind="ifb", ifname=name)

    async def delete_link(self, name: str) -> None:
        """Delete an interface (of a veth, both ends)."""
        if self.exists(name):
            with _trying(f"delete link {name}", missing_ok=True):
                await self._ipr.link("del", index=self.index(name))

    async def set_link(
        self,
        name: str,
        *,
        up: bool | None = None,
        mtu: int | None = None,
        arp: bool | None = None,
        mac: bytes | None = None,
    ) -> None:
        """Change what is not None of an interface."""
        spec: dict[str, Any] = {}
        if up is not None:
            spec["state"] = "up" if up else "down"
        if mtu is not None:
            spec["mtu"] = mtu
        if arp is not None:
            spec["arp"] = arp
        if mac is not None:
            spec["address"] = _mac_text(mac)
        shown = ", ".join(f"{key} {value}" for key, value in spec.items())
        with _trying(f"set {shown} on link {name}"):
            await self._ipr.link("set", index=self.index(name), **spec)

    # Addresses

    async def add_address(
        self, name: str, cidr: str, *, nodad: bool = True, prefix_route: bool = True
    ) -> None:
        """Give `name` the address; without `prefix_route` no route comes with it."""
        interface = ipaddress.ip_interface(cidr)
        flags = 0 if prefix_route else _IFA_F_NOPREFIXROUTE
        if interface.version == 6 and nodad:
            flags |= _IFA_F_NODAD
        with _trying(f"add address {cidr} to {name}", present_ok=True):
            await self._ipr.addr(
                "add",
                index=self.index(name),
                address=str(interface.ip),
                prefixlen=interface.network.prefixlen,
                flags=flags,
            )

    async def delete_address(self, name: str, cidr: str) -> None:
        """Take the address away from `name`."""
        interface = ipaddress.ip_interface(cidr)
        with _trying(f"delete address {cidr} of {name}", missing_ok=True):
            await self._ipr.addr(
                "del",
                index=self.index(name),
                address=str(interface.ip),
                prefixlen=interface.network.prefixlen,
            )

    async def addresses(self, name: str) -> list[str]:
        """All addresses of `name`, link-local ones too, as address/prefix length."""
        index = self.index(name)
        return [
            f"{_own_address(message)}/{message['prefixlen']}"
            async for message in self._dump(self._ipr.get_addr, index=index)
            if message["index"] == index
        ]

    # Routes

    async def replace_route(
        self,
        dst: str,
        *,
        dev: str | None = None,
        via: str | None = None,
        src: str | None = None,
        mtu: int | None = None,
        ecn: bool = False,
        nexthops: tuple[Nexthop, ...] = (),
        table: int | None = None,
    ) -> None:
        """Install the route to `dst`, in place of another one to it in the (main) table.

        Either `dev` (with or without the neighbour `via`, which may be IPv6
        for an IPv4 route) or several `nexthops` chosen by flow hash.
        """
        on_link = dev is not None and via is None and _family(dst) == socket.AF_INET
        message = _route_message(dst, _SCOPE_LINK if on_link else _SCOPE_UNIVERSE, table)
        family, attributes = message["family"], message["attrs"]
        if dev is not None:
            attributes.append(("RTA_OIF", self.index(dev)))
        if via is not None:
            attributes.append(_via_attribute(family, via))
        if src is not None:
            attributes.append(("RTA_PREFSRC", src))
        metrics: list[tuple[str, int]] = []
        if mtu is not None:
            metrics.append(("RTAX_MTU", mtu))
        if ecn:
            metrics.append(("RTAX_FEATURES", RTAX_FEATURE_ECN))
        if metrics:
            attributes.append(("RTA_METRICS", {"attrs": metrics}))
        if nexthops:
            ways = [
                {"oif": self.index(hop.dev), "attrs": [_via_attribute(family, hop.via)]}
                for hop in nexthops
            ]
            attributes.append(("RTA_MULTIPATH", ways))
        await self._install(f"route {dst} dev {dev or nexthops} via {via}", message)

    async def add_rule(
        self, version: int, table: int, *, iif: str | None = None, src: str | None = None
    ) -> None:
        """Look up what enters through `iif`, or comes from the network `src`, in `table`."""
        spec: dict[str, Any] = {} if iif is None else {"iifname": iif}
        if src is not None:
            spec["src"], _, spec["src_len"] = src.partition("/")
            spec["src_len"] = int(spec["src_len"])
        with _trying(f"add rule {iif or src} lookup {table}", present_ok=True):
            await self._ipr.rule(
                "add",
                family=socket.AF_INET if version == 4 else socket.AF_INET6,
                priority=_RULE_PRIORITY["iif" if iif else "src"],
                table=table,
                action="FR_ACT_TO_TBL",
                **spec,
            )

    async def add_usid_end(
        self,
        locator: str,
        *,
        dev: str,
        lblen: int = 32,
        nflen: int = 16,
        table: int | None = None,
        read_back: bool = True,
    ) -> None:
        """Make `locator` (block + one uSID) a uN: seg6local End with NEXT-C-SID.

        RFC 9800 section 4.1. `dev` only anchors the route: it must stay up.
        The route is read back, since a kernel or library that does not know
        the flavour silently installs a plain End, which drops every packet.
        """
        message = _route_message(locator, table=table)
        flavors = [
            ("SEG6_LOCAL_FLV_OPERATION", FLAVOR_NEXT_CSID),
            ("SEG6_LOCAL_FLV_LCBLOCK_BITS", lblen),
            ("SEG6_LOCAL_FLV_LCNODE_FN_BITS", nflen),
        ]
        end = [
            ("SEG6_LOCAL_ACTION", {"value": "End"}),
            ("SEG6_LOCAL_FLAVORS", {"attrs": flavors}),
        ]
        message["attrs"] += [
            ("RTA_OIF", self.index(dev)),
            ("RTA_ENCAP_TYPE", ENCAP_SEG6_LOCAL),
            ("RTA_ENCAP", {"attrs": end}),
        ]
        await self._install(f"uSID {locator} dev {dev}", message)
        if read_back and not await self._has_next_csid(locator, table):
            raise NetlinkFailed(
                errno.EOPNOTSUPP,
                f"uSID {locator} on {dev} was installed without the NEXT-C-SID flavour:"
                " this kernel's seg6local does not know it (Linux 6.1 or later does)",
            )

    async def _has_next_csid(self, locator: str, table: int | None) -> bool:
        network = ipaddress.ip_network(locator)
        # With a destination it is a look-up, which sees what the rules choose: the main table.
        which = {"dst": str(network.network_address), "dst_len": network.prefixlen}
        if table is not None:
            which = {"table": table}
        async for message in self._dump(self._ipr.get_routes, family=socket.AF_INET6, **which):
            if message.get_attr("RTA_DST") != str(network.network_address):
                continue
            encap = message.get_attr("RTA_ENCAP")
            flavors = encap.get_attr("SEG6_LOCAL_FLAVORS") if encap is not None else None
            if flavors is not None:
                operation = flavors.get_attr("SEG6_LOCAL_FLV_OPERATION") or 0
                return bool(operation & FLAVOR_NEXT_CSID)
        return False

    async def _install(self, what: str, message: Any) -> None:
        flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
        with _trying(f"install {what}"):
            async for _ in await self._ipr.nlm_request(message, RTM_NEWROUTE, flags):
                pass

    async def delete_route(self, dst: str, *, dev: str | None = None) -> None:
        """Delete the route to `dst` (through `dev` when given)."""
        if dev is not None and not self.exists(dev):
            return
        message = _route_message(dst, 255)  # RT_SCOPE_NOWHERE matches every scope
        if dev is not None:
            message["attrs"].append(("RTA_OIF", self.index(dev)))
        message["proto"] = 0
        with _trying(f"delete route {dst} dev {dev}", missing_ok=True):
            flags = NLM_F_REQUEST | NLM_F_ACK
            async for _ in await self._ipr.nlm_request(message, RTM_DELROUTE, flags):
                pass

    async def routes(self, dev: str | None = None) -> list[Route]:
        """Unicast routes of the main table, through `dev` or all."""
        index = None if dev is None else self.index(dev)
        names = {link.index: name for name, link in (await self.links()).items()}
        found = []
        for family in (socket.AF_INET, socket.AF_INET6):
            async for message in self._dump(self._ipr.get_routes, family=family, table=_TABLE_MAIN):
                oif = message.get_attr("RTA_OIF")
                if message["type"] != _RTN_UNICAST or (index is not None and oif != index):
                    continue
                default = "0.0.0.0" if family == socket.AF_INET else "::"
                metrics = message.get_attr("RTA_METRICS")
                via = message.get_attr("RTA_VIA")
                found.append(
                    Route(
                        dst=f"{message.get_attr('RTA_DST') or default}/{message['dst_len']}",
                        dev=names.get(oif),
                        via=message.get_attr("RTA_GATEWAY") or (via["addr"] if via else None),
                        src=message.get_attr("RTA_PREFSRC"),
                        mtu=metrics.get_attr("RTAX_MTU") if metrics is not None else None,
                    )
                )
        return found

    async def fib(self) -> list[FibRoute]:
        """Every unicast route of every table but the local one, as the kernel has it."""
        names = {link.index: name for name, link in (await self.links()).items()}
        found = []
        for family in _IP_FAMILIES:
            async for message in self._dump(self._ipr.get_routes, family=family):
                route = route_of(message, names)
                if message["type"] == _RTN_UNICAST and route.table != _TABLE_LOCAL:
                    found.append(route)
        return found

    async def rules(self) -> list[FibRule]:
        """Every rule that chooses a table by the interface a packet entered through."""
        found = []
        for family, version in ((socket.AF_INET, 4), (socket.AF_INET6, 6)):
            async for message in self._dump(self._ipr.get_rules, family=family):
                if (rule := rule_of(message, version)) is not None:
                    found.append(rule)
        return found

    # Neighbours

    async def add_neighbor(self, dev: str, ip: str, mac: bytes) -> None:
        """Make `ip` a permanent neighbour behind `dev`."""
        with _trying(f"add neighbour {ip} on {dev}"):
            await self._ipr.neigh(
                "replace",
                dst=ip,
                lladdr=_mac_text(mac),
                ifindex=self.index(dev),
                state=_NUD_PERMANENT,
            )

    async def neighbor(self, dev: str, ip: str) -> bytes | None:
        """The MAC address of `ip` behind `dev`, None while it is not known."""
        index = self.index(dev)
        async for message in self._dump(
            self._ipr.get_neighbours, family=_family(ip), ifindex=index
        ):
            change = _neighbor_of(message)
            if change.ifindex == index and change.ip == ip and change.mac is not None:
                return change.mac
        return None

    async def resolve_neighbor(self, dev: str, ip: str, timeout_s: float) -> bytes | None:
        """The MAC address of `ip`, asking the network for it; None after the time.

        One datagram to the discard port makes the kernel ask; its answer
        arrives as a netlink event.
        """
        index = self.index(dev)
        events = self.watch()
        try:
            known = await self.neighbor(dev, ip)
            if known is not None:
                return known
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    self._nudge(dev, ip, index)
                    async for event in events:
                        if isinstance(event, Resync):
                            known = await self.neighbor(dev, ip)
                            if known is not None:
                                return known
                        elif isinstance(event, NeighborChanged) and (event.ifindex, event.ip) == (
                            index,
                            ip,
                        ):
                            if event.mac is not None:
                                return event.mac
                            if event.failed:
                                self._nudge(dev, ip, index)
            return None
        finally:
            await events.aclose()

    def _nudge(self, dev: str, ip: str, index: int) -> None:
        with namespaces.entered(self.netns):
            sock = socket.socket(_family(ip), socket.SOCK_DGRAM)
        with sock:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(dev))
            scoped = ":" in ip and ipaddress.ip_address(ip).is_link_local
            where = (ip, _DISCARD_PORT, 0, index) if scoped else (ip, _DISCARD_PORT)
            # An unreachable network is the caller's time-out, not an error.
            with contextlib.suppress(OSError):
                sock.sendto(b"", where)

    # Queues and classifiers

    async def replace_tbf(
        self, name: str, *, rate_bytes_per_s: int, burst_bytes: int, limit_bytes: int
    ) -> None:
        """Make the root queue of `name` a token bucket filter, or change it."""
        with _trying(f"set tbf {rate_bytes_per_s} B/s on {name}"):
            await self._ipr.tc(
                "replace",
                "tbf",
                self.index(name),
                rate=rate_bytes_per_s,
                burst=burst_bytes,
                limit=limit_bytes,
            )

    async def delete_root_qdisc(self, name: str) -> None:
        """Give `name` its default queue back."""
        with _trying(f"delete the root queue of {name}", missing_ok=True):
            await self._ipr.tc("del", index=self.index(name), parent=0xFFFFFFFF)

    async def replace_qdisc_clsact(self, name: str) -> None:
        """Make sure `name` has a clsact, where programs attach."""
        with _trying(f"add clsact to {name}", present_ok=True):
            await self._ipr.tc("add", "clsact", self.index(name))

    async def delete_clsact(self, name: str) -> None:
        """Delete the clsact of `name` with everything attached to it."""
        with _trying(f"delete clsact of {name}", missing_ok=True):
            await self._ipr.tc("del", "clsact", self.index(name))

    async def attach_clsact(
        self,
        name: str,
        prog_fd: int,
        *,
        prog_name: str,
        prio: int,
        direction: str = "ingress",
        classid: int | None = None,
    ) -> None:
        """Attach a SCHED_CLS program (direct action) in place of what has this prio.

        `direction` is ingress or egress. `name` needs its clsact first. The
        program finds `classid` in its context, as tc_classid.
        """
        extra = {} if classid is None else {"classid": classid}
        with _trying(f"attach {prog_name} to {direction} of {name}"):
            await self._ipr.tc(
                "replace-filter",
                "bpf",
                self.index(name),
                handle=1,
                fd=prog_fd,
                name=prog_name,
                parent=_CLSACT_PARENT[direction],
                prio=prio,
                protocol=_ETH_P_ALL,
                direct_action=True,
                **extra,
            )

    async def detach_clsact(self, name: str, *, prio: int, direction: str = "ingress") -> None:
        """Detach what `attach_clsact` attached with this prio."""
        with _trying(f"detach prio {prio} from {direction} of {name}", missing_ok=True):
            await self._ipr.tc(
                "del-filter",
                "bpf",
                self.index(name),
                handle=1,
                parent=_CLSACT_PARENT[direction],
                prio=prio,
                protocol=_ETH_P_ALL,
            )

    # Events

    def watch(self, *, links: bool = True) -> Watch:
        """Changes of links and neighbours, or of neighbours alone, from now on.

        Subscribed when this returns, so that a dump afterwards misses nothing.
        Close it with aclose() (or contextlib.aclosing).
        """
        with namespaces.entered(self.netns):
            sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        sock.setblocking(False)
        sock.bind((0, (_GROUP_LINK if links else 0) | _GROUP_NEIGH))
        return Watch(sock)


def _neighbor_of(message: Any) -> NeighborChanged:
    state = message["state"]
    lladdr = message.get_attr("NDA_LLADDR")
    usable = bool(state & _NUD_VALID) and message["header"]["type"] != RTM_DELNEIGH
    return NeighborChanged(
        ifindex=message["ifindex"],
        ip=message.get_attr("NDA_DST") or "",
        mac=_mac_bytes(lladdr) if usable and lladdr else None,
        failed=bool(state & _NUD_FAILED),
    )


class Watch:
    """An endless asynchronous iterator over events; close it with aclose()."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._marshal = MarshalRtnl()
        self._waiting: deque[Event] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        loop = asyncio.get_running_loop()
        while not self._waiting:
            try:
                data = await loop.sock_recv(self._sock, 1 << 16)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._drain()
                return Resync()
            self._waiting.extend(_parse(self._marshal, data))
        return self._waiting.popleft()

    def _drain(self) -> None:
        """Empty the queue: until then the kernel goes on dropping without a word."""
        while True:
            try:
                self._sock.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    async def aclose(self) -> None:
        """Stop watching."""
        self._sock.close()


def _parse(marshal: Any, data: bytes) -> Iterator[Event]:
    """The events of one datagram from the kernel."""
    for message in marshal.parse(data):
        kind = message["header"]["type"]
        if kind in (RTM_NEWLINK, RTM_DELLINK):
            # Bridges send link and neighbour messages of their own family.
            if message["family"] == socket.AF_UNSPEC:
                yield LinkChanged(link=_link_of(message), gone=kind == RTM_DELLINK)
        elif kind in (RTM_NEWNEIGH, RTM_DELNEIGH) and message["family"] in _IP_FAMILIES:
            yield _neighbor_of(message)
