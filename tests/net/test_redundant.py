# SPDX-License-Identifier: GPL-2.0-only
"""Test packets that are sent on two planes at once between two hosts without a fabric."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from rigs.bare_hosts import HOSTS, INNER, Bare, Make, bridge, building, treat, treat_no_more
from rigs.traffic import open_in, transfer

pytestmark = pytest.mark.timeout(600)

PORT, COUNT, BODY = 5001, 500, bytes(160)


@pytest.fixture
def make() -> Iterator[Make]:
    """Build hosts, and remove them at the end."""
    yield from building("d", 2)


def name(bare: Bare) -> None:
    """Name a port in both hosts' configurations."""
    for host in HOSTS:
        place = bare.config(host)
        kinds = f'[mrc0]\nredundant = ["udp/{PORT}"]\n'
        place.write_text(place.read_text().replace("[mrc0]\n", kinds))


def received(bare: Bare) -> list[int]:
    """Send numbered datagrams to the port, a few at a time; return the numbers that arrive."""
    receiver = open_in(bare.namespace("b"), INNER["b"], socket.SOCK_DGRAM)
    sender = open_in(bare.namespace("a"), INNER["b"], socket.SOCK_DGRAM)
    found: list[int] = []
    with receiver, sender:
        receiver.bind((INNER["b"], PORT))
        receiver.settimeout(1)
        sender.connect((INNER["b"], PORT))
        for number in range(0, COUNT, 4):
            for each in range(number, number + 4):
                sender.send(each.to_bytes(4, "big") + BODY)
            for _ in range(4):
                found.append(int.from_bytes(receiver.recv(1000)[:4], "big"))
        receiver.settimeout(0.2)
        with pytest.raises(TimeoutError):  # no copy comes later
            receiver.recv(1000)
    return found


def counted(bare: Bare, host: str, before: dict[str, int], counter: str) -> int:
    return bare.counters(host)[counter] - before[counter]


def test_each_datagram_is_delivered_once_and_none_is_lost(make: Make) -> None:
    bare = make(bridge)
    name(bare)
    bare.begin()
    before = {host: bare.counters(host) for host in HOSTS}
    assert received(bare) == list(range(COUNT))
    assert counted(bare, "a", before["a"], "tx_redundant") == COUNT
    assert counted(bare, "b", before["b"], "rx_duplicate") == COUNT
    assert counted(bare, "a", before["a"], "path_withdrawn") == 0
    treat(bare, "numgen random mod 10 < 3 drop", [1])
    try:
        before = {host: bare.counters(host) for host in HOSTS}
        assert received(bare) == list(range(COUNT))
    finally:
        treat_no_more(bare)
    assert counted(bare, "a", before["a"], "rtx_needless") <= COUNT // 50
    assert counted(bare, "b", before["b"], "rx_duplicate") < COUNT
    transfer(bare, "a", "b", INNER["b"], 1 << 20)


def test_reloaded_configuration_names_and_unnames_them(make: Make) -> None:
    bare = make(bridge)
    bare.begin()
    received(bare)
    assert bare.counters("a")["tx_redundant"] == 0
    name(bare)
    bare.reload("a")
    deadline = time.monotonic() + 20
    while bare.counters("a")["tx_redundant"] == 0:
        assert time.monotonic() < deadline, "it was not read"
        received(bare)
