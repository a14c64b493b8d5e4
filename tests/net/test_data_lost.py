# SPDX-License-Identifier: GPL-2.0-only
"""Test networks that let probes through and not data, by rules that nftables has between the hosts.

What the application has is compared with what status says: as long as a plane is left it notices
nothing but the first packets, and otherwise traffic goes on in another way within a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from rigs.bare_hosts import (
    HOSTS,
    INNER,
    Bare,
    Make,
    bridge,
    building,
    router4,
    set_offloads,
    treat,
    treat_no_more,
)
from rigs.lab_hosts import eventually
from rigs.traffic import Arrivals

pytestmark = [pytest.mark.timeout(300), pytest.mark.alone]

PLANES = 2
MS = 1_000_000
NAMED_S = 6.0
"""How long status may take on a busy machine; half a second on a quiet one."""
PAUSE_NS = 150 * MS
"""The longest pause while a plane is left: 15 ms on a quiet one, and time-outs of TCP take 200."""
BACK_NS = 3000 * MS
"""The longest pause where all planes lose data; 0.7 s on a quiet one."""
AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Network:
    """A network that loses some packets: what is between the hosts, and which packets."""

    name: str
    how: Callable[[Bare], None]
    mtu: int
    lost: str  # an expression of nftables
    one: str  # status says so of plane 0 if only that loses them ...
    all: str  # ... and so if both do
    told: tuple[str, ...] = HOSTS  # whose status does
    settings: str = ""


NETWORKS = (
    Network(
        "sources are filtered", bridge, 1500, "ip6 saddr fdcb::/32",
        "plane 0: answers probes and loses data",
        "goes in MRC's packets, because cells are lost on every plane",
        settings='[transport]\ncell_envelope = "ipv6"\n',
    ),
    Network(
        "frames longer than 1,500 bytes are swallowed", bridge, 9000, "meta length > 1500",
        "plane 0 carries packets of 1,500 bytes to peer",
        "plane 1 carries packets of 1,500 bytes to peer",
        told=("a",),  # the other sends nothing that is long
    ),
    Network(
        "the port of cells is closed", router4, 1500, "udp dport 4974",
        "plane 0: answers probes and loses data",
        "goes in MRC's packets, because cells are lost on every plane",
    ),
)  # fmt: skip


@pytest.fixture
def make() -> Iterator[Make]:
    """Build hosts by one of BUILDERS, and remove them at the end."""
    yield from building("w", PLANES)


def build(make: Make, network: Network) -> Bare:
    bare = make(network.how, network.settings, mtu=network.mtu)
    set_offloads(bare, "tso off gso off")
    bare.begin()
    return bare


def lose(bare: Bare, network: Network, planes: Sequence[int]) -> int:
    """Have what is between the hosts lose packets of some planes; return the time."""
    treat(bare, f"{network.lost} drop", planes)
    return time.monotonic_ns()


def wait_for(bare: Bare, network: Network, words: str) -> None:
    """Wait until the status of hosts says something."""
    for host in network.told:
        eventually(
            lambda host=host: any(words in line for line in bare.said(host) or ()),
            lambda host=host: f"{host} says '{words}': {bare.said(host)}",
            NAMED_S,
        )  # fmt: skip


def undo(bare: Bare) -> None:
    """Let everything through again, and wait until both hosts have nothing to name."""
    treat_no_more(bare)
    for host in HOSTS:
        eventually(
            lambda host=host: bare.ok(host) and not bare.said(host),
            lambda host=host: f"{host} names nothing: {bare.said(host)}",
            AGAIN_S,
        )  # fmt: skip


CASES = pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)


@CASES
def test_plane_that_loses_data_is_left_and_named(make: Make, network: Network) -> None:
    bare = build(make, network)
    arrivals = Arrivals(bare, "a", "b", INNER["b"])
    since_ns = lose(bare, network, [0])
    wait_for(bare, network, network.one)
    print(f"named after {(time.monotonic_ns() - since_ns) / MS:.0f} ms: {bare.said('a')}")
    arrivals.stream.progress(64 << 20, 30)
    gap_ns, again = arrivals.longest_ns(since_ns), arrivals.stream.retransmissions()
    print(f"longest gap {gap_ns / MS:.1f} ms, {again} retransmissions of TCP")
    assert gap_ns < PAUSE_NS
    undo(bare)
    arrivals.stream.finish()


@CASES
def test_traffic_goes_on_in_another_way_where_all_planes_lose_data(
    make: Make, network: Network
) -> None:
    bare = build(make, network)
    arrivals = Arrivals(bare, "a", "b", INNER["b"])
    since_ns = lose(bare, network, range(PLANES))
    wait_for(bare, network, network.all)
    print(f"named after {(time.monotonic_ns() - since_ns) / MS:.0f} ms: {bare.said('a')}")
    arrivals.stream.progress(32 << 20, 30)
    gap_ns = arrivals.longest_ns(since_ns - 100 * MS)
    print(f"longest gap {gap_ns / MS:.1f} ms")
    assert gap_ns < BACK_NS
    undo(bare)
    arrivals.stream.finish()
