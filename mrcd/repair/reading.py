# SPDX-License-Identifier: GPL-2.0-only
"""Read how interfaces, addresses, routes and programs are, and write down how they should be."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

from mrcd.config.config import Config, Peer
from mrcd.config.overlap import Prefix
from mrcd.datapath import mrc0
from mrcd.datapath.attachment import Attachment, Hook
from mrcd.linux import ethtool, rtnl
from mrcd.linux.interfaces import LinkState
from mrcd.planes.plane import Plane
from mrcd.planes.planes import Planes
from mrcd.repair.wanted import Offloads, OurLink, OurPlane, Present, Wanted


@dataclass(frozen=True, slots=True)
class Made:
    """Our interfaces as they were when they had been made: index and offloads by name."""

    mac: bytes  # of mrc0
    indices: Mapping[str, int]
    offloads: Mapping[str, Offloads]

    @classmethod
    def now(cls, config: Config, mac: bytes) -> Made:
        """Read our interfaces, which have just been made or put right.

        Another interface may have taken the name of one since then; that one is missing.
        """
        ours = mrc0.names(config)
        indices = {
            link.name: link.index
            for link in rtnl.links().values()
            if link.name in ours and link.kind == mrc0.kind(config, link.name)
        }
        return cls(mac, indices, offloads(ours))


def offloads(names: Iterable[str]) -> dict[str, Offloads]:
    """Return the offloads of those of the interfaces that exist."""
    found: dict[str, Offloads] = {}
    for name in names:
        with contextlib.suppress(OSError):
            found[name] = asdict(ethtool.get_features(name))
    return found


def our_links(
    config: Config, made: Made, gso: tuple[int, int] | None, mbps: int
) -> tuple[OurLink, ...]:
    """Return our interfaces as they should be, those below others first.

    `mbps` is what a plane carries, 0 if unknown.
    """
    name = config.mrc0.name
    mtus, buckets = mrc0.mtus(config), mrc0.buckets(config, mbps)
    return tuple(
        OurLink(
            each,
            made.indices.get(each, 0),
            mtus[each],
            kind=mrc0.kind(config, each),
            mac=made.mac if each == name else None,
            gso=gso if each == name else None,
            offloads=made.offloads.get(each),
            bucket=buckets.get(each),
        )
        for each in sorted(mtus, key=lambda each: (each == name, each))
    )


def our_planes(planes: Planes) -> tuple[OurPlane, ...]:
    """Return the plane NICs that are there and up, with what they need."""
    found = []
    for plane in planes.planes:
        if plane.present and plane.link.up:
            link, (address, route) = plane.link, planes.ground.needs(plane)
            found.append(
                OurPlane(plane.index, link.name, link.index, plane.configured, address, route)
            )
    return tuple(found)


def programs(
    attachment: Attachment, hooks: Sequence[Hook], made: Made, planes: Sequence[Plane]
) -> dict[str, tuple[int, int]]:
    """Return the place and the program of each hook whose interface is there."""
    indices = dict(made.indices)
    indices |= {plane.configured: plane.link.index for plane in planes if plane.present}
    return {
        hook.pin: (indices[hook.interface], attachment.program(hook))
        for hook in hooks
        if hook.interface in indices
    }


def kernel(wanted: Wanted, asked: Sequence[str] = ()) -> tuple[Present, float]:
    """Read everything but programs that `wanted` says something about. Raises OSError.

    `asked` are addresses of peers, for which the kernel is asked where packets to them leave.

    Return the seconds of CPU that it took, too. This is for a thread: with thousands of routes the
    event loop would be blocked.
    """
    began_s = time.thread_time()
    links = rtnl.links()
    ours = [links[link.index] for link in wanted.links if link.index in links]
    indices = {link.index for link in ours if link.name == wanted.mrc0}
    indices |= {plane.index for plane in wanted.planes if plane.index in links}
    routes = {index: rtnl.routes(index) for index in indices}
    found = Present(
        links=links,
        addresses={index: frozenset(found) for index, found in rtnl.addresses().items()},
        routes={index: leads for index, (leads, _hops) in routes.items()},
        offloads=offloads(link.name for link in ours),
        buckets=rtnl.buckets(link.index for link in wanted.links if link.bucket is not None),
        ways=rtnl.ways(asked),
        next_hops=routes.get(wanted.index, ({}, {}))[1],
    )
    return found, time.thread_time() - began_s


def named(links: Mapping[int, LinkState], name: str) -> bool:
    """Return whether there is an interface of that name."""
    return any(link.name == name for link in links.values())


def routes_of(peers: Iterable[Peer], mtus: Mapping[str, int]) -> dict[str, int]:
    """Return the routes that peers should have: prefix to MTU. `mtus` has those with routes."""
    return {
        prefix: mtus[peer.name]
        for peer in peers
        if peer.name in mtus
        for prefix in _texts(peer.allowed)
    }


@lru_cache(maxsize=1 << 14)
def _texts(prefixes: tuple[Prefix, ...]) -> tuple[str, ...]:
    return tuple(map(str, prefixes))
