# SPDX-License-Identifier: GPL-2.0-only
"""The hand-shake's datagrams as packets, against scapy; and its sockets."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

from mrcd.offers import OfferSockets, udp6

A, B = IPv6Address("fdcb:0:1:1::1"), IPv6Address("fdcb:0:1:2::1")
LOOP = IPv6Address("::1")


@given(payload=st.binary(max_size=600), sport=st.integers(1, 0xFFFF), dport=st.integers(1, 0xFFFF))
def test_packet_is_what_scapy_makes(payload: bytes, sport: int, dport: int) -> None:
    expected = IPv6(src=str(A), dst=str(B), hlim=64) / UDP(sport=sport, dport=dport)
    assert udp6(A, B, sport, dport, payload) == bytes(expected / Raw(payload))


def test_checksum_zero_is_sent_as_ones() -> None:
    """RFC 8200: zero would mean that there is none."""
    payload = next(
        body
        for number in range(1 << 16)
        if udp6(A, B, 1, 1, body := number.to_bytes(2, "big"))[46:48] == b"\xff\xff"
    )
    assert bytes(IPv6(udp6(A, B, 1, 1, payload))) == udp6(A, B, 1, 1, payload)


def free_port() -> int:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind(("::1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.fixture
def port() -> int:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_RAW, 41):
            pass
        return free_port()
    except PermissionError:
        pytest.skip("raw sockets need root: run the tests as root")


def test_datagrams_are_read_with_their_plane(port: int) -> None:
    async def run() -> list[tuple[bytes, int]]:
        arrived: list[tuple[bytes, int]] = []
        sockets = OfferSockets(port, lambda data, plane: arrived.append((data, plane)))
        sockets.open_plane(3, "lo", LOOP)
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
                for number in range(5):
                    sock.sendto(bytes([number]), ("::1", port))
            async with asyncio.timeout(5):
                while len(arrived) < 5:
                    await asyncio.sleep(0)
        finally:
            sockets.close()
        return arrived

    assert asyncio.run(run()) == [(bytes([number]), 3) for number in range(5)]


def test_port_in_use_is_named(port: int) -> None:
    async def run() -> None:
        sockets = OfferSockets(port, lambda _data, _plane: None)
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as other:
            other.bind(("::1", port))
            try:
                sockets.open_plane(0, "lo", LOOP)
            finally:
                sockets.close()

    with pytest.raises(OSError, match=rf"hand-shake sockets on lo \(\[::1\]:{port}\)"):
        asyncio.run(run())


def test_sending_on_a_plane_that_is_not_open_is_no_error(port: int) -> None:
    async def run() -> None:
        sockets = OfferSockets(port, lambda _data, _plane: None)
        sockets.send(2, IPv6Address("fcbb:bb00::1"), B, b"offer")
        sockets.close()

    asyncio.run(run())
