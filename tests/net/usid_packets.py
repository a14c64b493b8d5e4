# SPDX-License-Identifier: GPL-2.0-only
"""Make packets that follow a uSID list, and taps that see them arrive."""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import time
from typing import Any

from mrcd.fabric import description, usid
from mrcd.fabric.description import Host
from mrcd.linux import netns

ETH_P_IPV6 = 0x86DD
IPPROTO_IPV6 = 41
SO_RCVBUFFORCE = 33  # missing in Python's socket module
MARK = b"mrcd lab test"

Lab = Any  # conftest.RunningLab


def udp_in_ipv6(fabric: description.Fabric, a: Host, b: Host, plane: int, payload: bytes) -> bytes:
    """Return an IPv6 packet from NIC to NIC that holds a UDP datagram without checksum."""
    length = 8 + len(payload)
    header = struct.pack("!IHBB", 6 << 28, length, socket.IPPROTO_UDP, 64)
    addresses = fabric.address6(a, plane).packed + fabric.address6(b, plane).packed
    return header + addresses + struct.pack("!4H", 1, 4971, length, 0) + payload


class Tap:
    """A tap for marked IPv6 packets that arrive at an interface, from the network header on."""

    def __init__(self, namespace: str, ifname: str) -> None:
        with netns.entered(namespace):
            self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IPV6))
        self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self.sock.bind((ifname, ETH_P_IPV6))

    def next(self, within_s: float = 2.0) -> bytes | None:
        deadline = time.monotonic() + within_s
        while (left := deadline - time.monotonic()) > 0:
            self.sock.settimeout(left)
            try:
                packet, address = self.sock.recvfrom(65536)
            except TimeoutError:
                return None
            if MARK in packet and address[2] != socket.PACKET_OUTGOING:
                return packet
        return None

    def close(self) -> None:
        self.sock.close()


def send_usid(running: Lab, a: Host, b: Host, ev: int, payload: bytes = MARK) -> None:
    """Send one packet of this EV from a raw socket in host a."""
    fabric = running.fabric
    with netns.entered(running.namespace(a.name)):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, IPPROTO_IPV6)
    with sock:
        address = usid.da_bytes(fabric.block, usid.path_usids(a, b, ev))
        inner = udp_in_ipv6(fabric, a, b, usid.ev_plane(ev), payload)
        sock.sendto(inner, (str(ipaddress.IPv6Address(address)), 0))


def arrives(running: Lab, a: Host, b: Host, ev: int) -> bool:
    tap = Tap(running.namespace(b.name), f"plane{usid.ev_plane(ev)}")
    try:
        send_usid(running, a, b, ev)
        return tap.next(0.5) is not None
    except OSError as error:
        if error.errno != errno.ENOBUFS:  # our own NIC has no carrier
            raise
        return False
    finally:
        tap.close()
