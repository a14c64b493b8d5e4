# SPDX-License-Identifier: GPL-2.0-only
"""Routes and rules, read from the kernel's messages.

The messages are pyroute2's: mrcd.linux.netlink fetches them, this module only reads them.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from mrcd.linux.interfaces import FibRoute, FibRule, Nexthop

ENCAP_SEG6_LOCAL = 7
FLAVOR_NEXT_CSID = 1 << 4
RTAX_FEATURE_ECN = 1
_SEG6_LOCAL_END = 1


def rule_of(message: Any, version: int) -> FibRule | None:
    """Return the rule of a message of a dump; None when it does not match on an interface."""
    iif = message.get_attr("FRA_IIFNAME")
    if iif is None:
        return None
    return FibRule(version, str(iif), message.get_attr("FRA_TABLE") or message["table"])


def _via(message: Any) -> str | None:
    via = message.get_attr("RTA_VIA")
    gateway = message.get_attr("RTA_GATEWAY") or (via["addr"] if via else None)
    return None if gateway is None else str(gateway)


def route_of(message: Any, names: Mapping[int, str]) -> FibRoute:
    """Return the route of a message of a dump; `names` has the interfaces' names by index."""
    ways = [
        (names.get(hop["oif"], "?"), _via(hop)) for hop in message.get_attr("RTA_MULTIPATH") or ()
    ]
    if len(ways) == 1:
        (dev, via), ways = ways[0], []
    else:
        dev, via = names.get(message.get_attr("RTA_OIF"), ""), _via(message)
    metrics = message.get_attr("RTA_METRICS")
    mtu = metrics.get_attr("RTAX_MTU") if metrics is not None else None
    features = metrics.get_attr("RTAX_FEATURES") if metrics is not None else None
    default = "0.0.0.0" if message["family"] == socket.AF_INET else "::"
    return FibRoute(
        dst=f"{message.get_attr('RTA_DST') or default}/{message['dst_len']}",
        table=message.get_attr("RTA_TABLE") or message["table"],
        dev=dev or None,
        via=via,
        src=message.get_attr("RTA_PREFSRC"),
        nexthops=tuple(sorted((Nexthop(dev, via or "") for dev, via in ways), key=str)),
        encap=_encap(message),
        mtu=mtu or 0,
        ecn=bool((features or 0) & RTAX_FEATURE_ECN),
    )


def _encap(message: Any) -> str:
    """Return what seg6local does with packets of a route, or another encapsulation's number."""
    kind = message.get_attr("RTA_ENCAP_TYPE")
    if kind != ENCAP_SEG6_LOCAL:
        return f"encap {kind}" if kind else ""
    encap = message.get_attr("RTA_ENCAP")
    action = encap.get_attr("SEG6_LOCAL_ACTION")
    text = "End" if action == _SEG6_LOCAL_END else f"action {action}"
    flavors = encap.get_attr("SEG6_LOCAL_FLAVORS")
    if flavors is not None and (flavors.get_attr("SEG6_LOCAL_FLV_OPERATION") or 0) & (
        FLAVOR_NEXT_CSID
    ):
        block = flavors.get_attr("SEG6_LOCAL_FLV_LCBLOCK_BITS")
        node = flavors.get_attr("SEG6_LOCAL_FLV_LCNODE_FN_BITS")
        text += f" next-csid {block}/{node}"
    return text
