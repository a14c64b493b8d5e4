# SPDX-License-Identifier: GPL-2.0-only
"""Links and neighbours, read from the kernel's messages."""

from __future__ import annotations

from typing import Any

from pyroute2.netlink.rtnl import RTM_DELNEIGH

from mrcd.linux.interfaces import Link, NeighborChanged

_IFF_UP = 0x1
_NUD_FAILED = 0x20
_NUD_VALID = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80


def mac_text(mac: bytes) -> str:
    return mac.hex(":")


def mac_bytes(text: str | None) -> bytes:
    return bytes.fromhex(text.replace(":", "")) if text else b""


def link_of(message: Any) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    return Link(
        index=message["index"],
        name=message.get_attr("IFLA_IFNAME") or "",
        mac=mac_bytes(message.get_attr("IFLA_ADDRESS")),
        mtu=message.get_attr("IFLA_MTU") or 0,
        up=bool(message["flags"] & _IFF_UP),
        carrier=bool(message.get_attr("IFLA_CARRIER")),
        kind=(info.get_attr("IFLA_INFO_KIND") if info is not None else "") or "",
    )


def neighbor_of(message: Any) -> NeighborChanged:
    state = message["state"]
    lladdr = message.get_attr("NDA_LLADDR")
    usable = bool(state & _NUD_VALID) and message["header"]["type"] != RTM_DELNEIGH
    return NeighborChanged(
        ifindex=message["ifindex"],
        ip=message.get_attr("NDA_DST") or "",
        mac=mac_bytes(lladdr) if usable and lladdr else None,
        failed=bool(state & _NUD_FAILED),
    )
