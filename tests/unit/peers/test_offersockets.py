# SPDX-License-Identifier: GPL-2.0-only
"""Test the hand-shake's packets against scapy, and its sockets."""

from __future__ import annotations

import asyncio
import re
import socket
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

from mrcd.fabric.routing import ENCAP_ECMP4, ENCAP_ECMP6, ENCAP_FULL, ENCAP_REDUCED
from mrcd.peers.offersockets import Address, OfferSockets, udp6

A, B = IPv6Address("fdcb:0:1:1::1"), IPv6Address("fdcb:0:1:2::1")
LOOP6, LOOP4 = IPv6Address("::1"), IPv4Address("127.0.0.1")


@given(payload=st.binary(max_size=600), sport=st.integers(1, 0xFFFF), dport=st.integers(1, 0xFFFF))
def test_packet_is_what_scapy_makes(payload: bytes, sport: int, dport: int) -> None:
    expected = IPv6(src=str(A), dst=str(B), hlim=64) / UDP(sport=sport, dport=dport)
    assert udp6(A, B, sport, dport, payload) == bytes(expected / Raw(payload))


def test_checksum_zero_is_sent_as_ones() -> None:
    """A checksum of zero would mean that there is none (RFC 8200)."""
    payload = next(
        body
        for number in range(1 << 16)
        if udp6(A, B, 1, 1, body := number.to_bytes(2, "big"))[46:48] == b"\xff\xff"
    )
    assert bytes(IPv6(udp6(A, B, 1, 1, payload))) == udp6(A, B, 1, 1, payload)


def free_port() -> int:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind(("::", 0))
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


@pytest.mark.parametrize(
    ("encap", "address"),
    [(ENCAP_FULL, LOOP6), (ENCAP_REDUCED, LOOP6), (ENCAP_ECMP6, LOOP6), (ENCAP_ECMP4, LOOP4)],
)
def test_datagrams_are_read_with_their_plane(port: int, encap: int, address: Address) -> None:
    async def run() -> list[tuple[bytes, int]]:
        arrived: list[tuple[bytes, int]] = []
        sockets = OfferSockets(
            port, lambda data, plane, _: arrived.append((data, plane)), encap, admitted=None
        )
        sockets.open_plane(3, "lo", address)
        try:
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                for number in range(5):
                    sock.sendto(bytes([number]), (str(address), port))
            async with asyncio.timeout(5):
                while len(arrived) < 5:
                    await asyncio.sleep(0)
        finally:
            sockets.close()
        return arrived

    assert asyncio.run(run()) == [(bytes([number]), 3) for number in range(5)]


@pytest.mark.parametrize(("encap", "address"), [(ENCAP_ECMP6, LOOP6), (ENCAP_ECMP4, LOOP4)])
def test_without_usids_an_offer_is_plain_udp_from_ever_another_port(
    port: int, encap: int, address: Address
) -> None:
    """Switches hash the port, so a repeated Offer can take another path."""

    async def run() -> set[int]:
        sockets = OfferSockets(port, lambda _data, _plane, _source: None, encap)
        sockets.open_plane(0, "lo", address)
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        ports = set()
        with socket.socket(family, socket.SOCK_DGRAM) as peer:
            peer.bind((str(address), 0))
            peer.settimeout(5)
            sockets._port = peer.getsockname()[1]  # both ends are this host: send to the peer
            for number in range(8):
                sockets.send(0, None, address, bytes([number]))
                datagram, source = peer.recvfrom(100)
                assert datagram == bytes([number])
                ports.add(source[1])
        sockets.close()
        return ports

    assert len(asyncio.run(run())) > 1


@pytest.mark.parametrize("address", [LOOP6, LOOP4])
def test_port_in_use_is_named(port: int, address: Address) -> None:
    async def run() -> None:
        encap = ENCAP_ECMP4 if address.version == 4 else ENCAP_FULL
        sockets = OfferSockets(port, lambda _data, _plane, _source: None, encap)
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as other:
            other.bind((str(address), port))
            try:
                sockets.open_plane(0, "lo", address)
            finally:
                sockets.close()

    shown = re.escape(f"hand-shake sockets on lo ([{address}]:{port})")
    with pytest.raises(OSError, match=shown):
        asyncio.run(run())


def test_sending_on_a_plane_that_is_not_open_is_no_error(port: int) -> None:
    async def run() -> None:
        sockets = OfferSockets(port, lambda _data, _plane, _source: None, ENCAP_FULL)
        sockets.send(2, IPv6Address("fcbb:bb00::1"), B, b"offer")
        sockets.close()

    asyncio.run(run())


def test_while_it_rests_nothing_is_read_and_nothing_is_lost(port: int) -> None:
    """Datagrams are read at once until a pause is requested, and then together after the pause."""
    rests = [0.0, 0.05, 0.0]
    heard: list[bytes] = []

    async def run() -> None:
        batches: list[int] = []

        def heard_all() -> float:
            batches.append(len(heard))
            return rests.pop(0) if rests else 0.0

        async def until(count: int) -> None:
            async with asyncio.timeout(5):
                while len(batches) < count:
                    await asyncio.sleep(0)

        sockets = OfferSockets(
            port, lambda data, *_: heard.append(data), ENCAP_FULL, heard_all, admitted=None
        )
        sockets.open_plane(0, "lo", LOOP6)
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:

            def send(*numbers: int) -> None:
                for number in numbers:
                    sock.sendto(bytes([number]), (str(LOOP6), port))

            try:
                send(0)
                await until(1)
                send(1)
                await until(2)  # reading is paused now
                send(2, 3, 4)
                for _ in range(10):
                    await asyncio.sleep(0)
                assert len(batches) == 2
                await until(3)
                assert batches == [1, 2, 5]
                send(5)  # reading has resumed
                await until(4)
            finally:
                sockets.close()

    asyncio.run(run())
    assert heard == [bytes([number]) for number in range(6)]
