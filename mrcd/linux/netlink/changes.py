# SPDX-License-Identifier: GPL-2.0-only
"""Carry out the requests of mrcd.linux.privileged.requests that change something by netlink.

The privileged process does this for the daemon; processes that have the capability themselves, such
as `mrcctl`, do it where they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mrcd.linux.interfaces import Bucket
from mrcd.linux.netlink.messages import mac_bytes
from mrcd.linux.netlink.queues import Queues
from mrcd.linux.netlink.routes import Routes
from mrcd.linux.netlink.ways import Ways
from mrcd.linux.privileged import requests
from mrcd.linux.privileged.requests import FILTER_PRIO, Request


class Changing(Routes, Ways, Queues):
    """What changes interfaces, addresses, routes, neighbours, queues and filters."""


async def _create_veth(nl: Changing, asked: requests.CreateVeth) -> None:
    mac, other = mac_bytes(asked.mac), mac_bytes(asked.other_mac)
    await nl.create_veth(asked.name, asked.other, mtu=asked.mtu, mac=mac, peer_mac=other)


async def _create_macvlan(nl: Changing, asked: requests.CreateMacvlan) -> None:
    await nl.create_macvlan(asked.name, asked.lower, mtu=asked.mtu, mac=mac_bytes(asked.mac))


async def _create_vxlan(nl: Changing, asked: requests.CreateVxlan) -> None:
    await nl.create_vxlan(asked.name, asked.port, mtu=asked.mtu, mac=mac_bytes(asked.mac))


async def _delete_link(nl: Changing, asked: requests.DeleteLink) -> None:
    await nl.delete_link(asked.name)


async def _set_link(nl: Changing, asked: requests.SetLink) -> None:
    await nl.set_link(
        asked.name,
        up=asked.up,
        mtu=asked.mtu,
        arp=asked.arp,
        multicast=asked.multicast,
        mac=None if asked.mac is None else mac_bytes(asked.mac),
        gso_size=asked.gso_size,
        gso_segs=asked.gso_segs,
        master=asked.master,
    )


async def _rename_link(nl: Changing, asked: requests.RenameLink) -> None:
    await nl.rename_link(asked.index, asked.name)


async def _add_address(nl: Changing, asked: requests.AddAddress) -> None:
    await nl.add_address(asked.name, asked.cidr, nodad=asked.nodad, prefix_route=asked.prefix_route)


async def _delete_address(nl: Changing, asked: requests.DeleteAddress) -> None:
    await nl.delete_address(asked.name, asked.cidr)


async def _replace_route(nl: Changing, asked: requests.ReplaceRoute) -> None:
    await nl.replace_route(asked.dst, dev=asked.dev, via=asked.via, mtu=asked.mtu, ecn=asked.ecn)


async def _delete_route(nl: Changing, asked: requests.DeleteRoute) -> None:
    await nl.delete_route(asked.dst, dev=asked.dev)


async def _verify_neighbor(nl: Changing, asked: requests.VerifyNeighbor) -> None:
    await nl.verify_neighbor(asked.dev, asked.ip)


async def _place_neighbor(nl: Changing, asked: requests.PlaceNeighbor) -> None:
    await nl.place_neighbor(asked.dev, asked.ip, mac_bytes(asked.mac) or bytes(6))


async def _set_bucket(nl: Changing, asked: requests.SetBucket) -> None:
    await nl.set_bucket(asked.name, Bucket(asked.rate, asked.burst, asked.limit))


async def _add_clsact(nl: Changing, asked: requests.AddClsact) -> None:
    await nl.replace_qdisc_clsact(asked.name)


async def _detach_clsact(nl: Changing, asked: requests.DetachClsact) -> None:
    await nl.detach_clsact(asked.name, prio=FILTER_PRIO, direction=asked.direction)


_WORK: dict[type[Request], Callable[[Changing, Any], Awaitable[None]]] = {
    requests.CreateVeth: _create_veth,
    requests.CreateMacvlan: _create_macvlan,
    requests.CreateVxlan: _create_vxlan,
    requests.DeleteLink: _delete_link,
    requests.SetLink: _set_link,
    requests.RenameLink: _rename_link,
    requests.AddAddress: _add_address,
    requests.DeleteAddress: _delete_address,
    requests.ReplaceRoute: _replace_route,
    requests.DeleteRoute: _delete_route,
    requests.VerifyNeighbor: _verify_neighbor,
    requests.PlaceNeighbor: _place_neighbor,
    requests.SetBucket: _set_bucket,
    requests.AddClsact: _add_clsact,
    requests.DetachClsact: _detach_clsact,
}
KINDS = frozenset({*_WORK, requests.AttachClsact})
"""The requests that `carry_out` knows."""


async def carry_out(nl: Changing, request: Request, fds: Sequence[int] = ()) -> None:
    """Do what is asked, in the network namespace of `nl`; raise NetlinkFailed if it is refused.

    `fds`: the program that AttachClsact attaches.
    """
    if isinstance(request, requests.AttachClsact):
        await nl.attach_clsact(
            request.name,
            fds[0],
            prog_name=request.program,
            prio=FILTER_PRIO,
            direction=request.direction,
        )
        return
    await _WORK[type(request)](nl, request)
