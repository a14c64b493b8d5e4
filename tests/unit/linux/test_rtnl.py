# SPDX-License-Identifier: GPL-2.0-only
"""Test the reading of rtnetlink messages, from bytes as the kernel sends them."""

from __future__ import annotations

import socket
import struct

from mrcd.linux import rtnl
from mrcd.linux.rtnl import Changed


def attribute(kind: int, value: bytes) -> bytes:
    head = struct.pack("=HH", 4 + len(value), kind)
    return head + value + bytes(-len(value) % 4)


def message(kind: int, body: bytes, length: int | None = None) -> bytes:
    size = 16 + len(body) if length is None else length
    return struct.pack("=IHHII", size, kind, 0, 0, 0) + body + bytes(-len(body) % 4)


def route(family: int, dst: str, bits: int, index: int) -> bytes:
    head = struct.pack("=BBBBBBBBI", family, bits, 0, 0, 254, 4, 0, 1, 0)
    number = attribute(4, struct.pack("=I", index))
    return head + attribute(1, socket.inet_pton(family, dst)) + number


def test_changes__of_every_kind() -> None:
    link = struct.pack("=BxHiII", 0, 1, 8, 0x1, 0)
    address = struct.pack("=BBBBI", socket.AF_INET, 24, 0, 0, 8)
    queue = struct.pack("=BxxxiIII", 0, 8, 0, 0, 0)
    data = (
        message(16, link)
        + message(21, address)
        + message(36, queue)
        + message(24, route(socket.AF_INET, "10.99.0.2", 32, 8))
        + message(25, route(socket.AF_INET6, "fd99::2", 128, 8))
    )
    assert list(rtnl.changes(data)) == [
        Changed(8),
        Changed(8),
        Changed(8),
        Changed(8, "10.99.0.2/32"),
        Changed(8, "fd99::2/128", gone=True),
    ]


def test_changes__tell_a_link_that_moved_from_one_that_is_gone() -> None:
    link = struct.pack("=BxHiII", 0, 1, 8, 0x1, 0)
    moved = link + attribute(45, struct.pack("=i", 3))  # IFLA_NEW_NETNSID
    data = message(17, link) + message(17, moved) + message(16, moved)
    assert list(rtnl.changes(data)) == [Changed(8), Changed(8, moved=True), Changed(8)]


def test_changes__of_routes_of_other_families_are_skipped() -> None:
    head = struct.pack("=BBBBBBBBI", 128, 0, 0, 0, 254, 4, 0, 1, 0)  # AF_MPLS is 28, RTNL has 128
    assert list(rtnl.changes(message(24, head))) == []


def test_messages__end_where_one_is_cut_off() -> None:
    whole = message(16, bytes(16))
    assert len(list(rtnl.messages(whole + whole[:20]))) == 1
    assert list(rtnl.messages(message(16, b"", length=4))) == []


def test_attributes__nested_and_padded() -> None:
    data = attribute(0x8000 | 18, attribute(1, b"veth\0")) + attribute(3, b"mrc0\0")
    found = rtnl.attributes(data)
    assert rtnl.attributes(found[18]) == {1: b"veth\0"}
    assert found[3] == b"mrc0\0"


def test_this_machine_has_a_loopback() -> None:
    (loopback,) = (link for link in rtnl.links().values() if link.name == "lo")
    assert loopback.mtu > 0
    leads, hops = rtnl.routes(loopback.index)
    assert leads.keys() <= {"127.0.0.0/8", "::1/128"}
    assert hops == {}
    assert set(rtnl.addresses().get(loopback.index, ())) <= {"127.0.0.1/8", "::1/128"}
