# SPDX-License-Identifier: GPL-2.0-only
"""Routes and rules, with the uSID flavour that pyroute2 does not know."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, nla
from pyroute2.netlink.rtnl import RTM_DELROUTE, RTM_NEWROUTE
from pyroute2.netlink.rtnl.rtmsg import rtmsg, rtmsg_base

from mrcd.linux.fib import ENCAP_SEG6_LOCAL, FLAVOR_NEXT_CSID, RTAX_FEATURE_ECN, route_of, rule_of
from mrcd.linux.interfaces import FibRoute, FibRule, Nexthop, Route
from mrcd.linux.netlink.connection import IP_FAMILIES, NetlinkFailed, family_of, trying
from mrcd.linux.netlink.links import Links

_RTPROT_STATIC = 4
_RTN_UNICAST = 1
_SCOPE_UNIVERSE = 0
_SCOPE_LINK = 253
_TABLE_UNSPEC = 0
_TABLE_MAIN = 254
_TABLE_LOCAL = 255
_RULE_PRIORITY = {"iif": 1000, "src": 1001}  # behind the local table, before the main one


class _Flavors(nla):  # type: ignore[misc]  # pyroute2 is not typed
    """SEG6_LOCAL_FLAVORS of linux/seg6_local.h, which pyroute2 0.9.7 does not know."""

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


def _via_attribute(family: int, via: str) -> tuple[str, Any]:
    """Return RTA_GATEWAY, or RTA_VIA for an IPv4 route over an IPv6 neighbour (RFC 8950)."""
    if family_of(via) == family:
        return ("RTA_GATEWAY", via)
    return ("RTA_VIA", {"family": family_of(via), "addr": via})


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
        message["table"] = _TABLE_UNSPEC  # the attribute can hold numbers above 255
        message["attrs"].append(("RTA_TABLE", table))
    return message


class Routes(Links):
    """Routes and the rules that choose among their tables."""

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

        The route goes either through `dev`, with or without the neighbour `via`, which may be IPv6
        for an IPv4 route, or through several `nexthops` that are chosen by flow hash.
        """
        on_link = dev is not None and via is None and family_of(dst) == socket.AF_INET
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
        """Look up packets that enter through `iif`, or come from the network `src`, in `table`."""
        spec: dict[str, Any] = {} if iif is None else {"iifname": iif}
        if src is not None:
            spec["src"], _, spec["src_len"] = src.partition("/")
            spec["src_len"] = int(spec["src_len"])
        with trying(f"add rule {iif or src} lookup {table}", present_ok=True):
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

        See RFC 9800 section 4.1. `dev` only anchors the route, but must stay up. The route is read
        back, since a kernel or library that does not know the flavour silently installs a plain
        End, which drops every packet.
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
        # With a destination the request is a look-up, in the table that the rules choose: main.
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
        with trying(f"install {what}"):
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
        with trying(f"delete route {dst} dev {dev}", missing_ok=True):
            flags = NLM_F_REQUEST | NLM_F_ACK
            async for _ in await self._ipr.nlm_request(message, RTM_DELROUTE, flags):
                pass

    async def routes(self, dev: str | None = None) -> list[Route]:
        """Return the unicast routes of the main table, all or those through `dev`."""
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
        """Return every unicast route in every table except the local one."""
        names = {link.index: name for name, link in (await self.links()).items()}
        found = []
        for family in IP_FAMILIES:
            async for message in self._dump(self._ipr.get_routes, family=family):
                route = route_of(message, names)
                if message["type"] == _RTN_UNICAST and route.table != _TABLE_LOCAL:
                    found.append(route)
        return found

    async def rules(self) -> list[FibRule]:
        """Return every rule that chooses a table by the interface a packet entered through."""
        found = []
        for family, version in ((socket.AF_INET, 4), (socket.AF_INET6, 6)):
            async for message in self._dump(self._ipr.get_rules, family=family):
                if (rule := rule_of(message, version)) is not None:
                    found.append(rule)
        return found
