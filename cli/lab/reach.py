# SPDX-License-Identifier: GPL-2.0-only
"""Wait until every host of a lab reaches every other through mrc0.

The echo requests are our own, sent from raw sockets opened inside the hosts' namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface
from typing import Protocol

from mrcd.linux import netns

_INTERVAL_S = 0.05
_ECHO = {4: (8, 0), 6: (128, 129)}  # request, reply
_PROTO_ICMP = {4: socket.IPPROTO_ICMP, 6: socket.IPPROTO_ICMPV6}


class Member(Protocol):
    """A host, with the addresses of its mrc0."""

    @property
    def name(self) -> str: ...

    @property
    def addresses(self) -> Sequence[IPv4Interface | IPv6Interface]: ...


@dataclass(frozen=True, slots=True)
class Pair:
    """A source host and an address of another host."""

    source: str
    target: str
    address: str

    def __str__(self) -> str:
        return f"{self.source} to {self.target} ({self.address})"


def pairs(hosts: Sequence[Member]) -> set[Pair]:
    """Return all pairs that must work."""
    return {
        Pair(a.name, b.name, str(address.ip))
        for a in hosts
        for b in hosts
        if a is not b
        for address in b.addresses
    }


async def wait(
    lab: str, hosts: Sequence[Member], deadline_s: float, alive: Callable[[], str | None]
) -> tuple[set[Pair], str | None]:
    """Ping until all pairs answer, the deadline passes or `alive` returns a reason to stop.

    `lab` is the name of the hosts' lab. Returns the pairs that never answered, and that reason.
    """
    missing = pairs(hosts)
    loop = asyncio.get_running_loop()
    identity = os.getpid() & 0xFFFF
    sockets: dict[tuple[str, int], socket.socket] = {}
    done = asyncio.Event()

    def receive(source: str, version: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet, sender = sockets[source, version].recvfrom(2048)
                if _is_reply(packet, version, identity):
                    missing.difference_update(
                        {p for p in missing if p.source == source and p.address == sender[0]}
                    )
                    if not missing:
                        done.set()

    try:
        for host in hosts:
            for version in (4, 6):
                sockets[host.name, version] = _raw(f"{lab}-{host.name}", version)
                loop.add_reader(sockets[host.name, version], receive, host.name, version)
        end = loop.time() + deadline_s
        reason = None
        while missing and reason is None and loop.time() < end:
            for pair in missing:
                version = 6 if ":" in pair.address else 4
                # Without a route, the host's mrcd has not created mrc0 yet.
                with contextlib.suppress(OSError):
                    sockets[pair.source, version].sendto(
                        _request(version, identity), (pair.address, 0)
                    )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), _INTERVAL_S)
            reason = alive()
        return missing, reason
    finally:
        for sock in sockets.values():
            loop.remove_reader(sock)
            sock.close()


def _raw(namespace: str, version: int) -> socket.socket:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with netns.entered(namespace):
        sock = socket.socket(family, socket.SOCK_RAW, _PROTO_ICMP[version])
    sock.setblocking(False)
    return sock


def _request(version: int, identity: int) -> bytes:
    """Return an echo request; the kernel fills in the checksum of ICMPv6 only."""
    packet = struct.pack("!BBHHH", _ECHO[version][0], 0, 0, identity, 1)
    if version == 6:
        return packet
    total = sum(struct.unpack("!4H", packet))
    return packet[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + packet[4:]


def _is_reply(packet: bytes, version: int, identity: int) -> bool:
    """Return whether a packet is a reply to us; IPv4 raw sockets include the IP header."""
    start = (packet[0] & 0xF) * 4 if version == 4 else 0
    if len(packet) < start + 8:
        return False
    kind, _, _, found, _ = struct.unpack_from("!BBHHH", packet, start)
    return (kind, found) == (_ECHO[version][1], identity)
