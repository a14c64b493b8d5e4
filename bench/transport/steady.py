# SPDX-License-Identifier: GPL-2.0-only
"""Measure goodput without faults and under loss, and the order of arrivals."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.instruments import counters, flow
from bench.instruments.flow import Recording
from bench.instruments.metrics import S, imbalance, order_of
from bench.instruments.result import Line, Target, at_least, at_most
from cli.lab import lab

RATE_MBPS = 250
PLANES = 4
CAPACITY_BPS = PLANES * RATE_MBPS * 1e6

_FORGOTTEN_S = 11.0  # RELAPSE_NS and some more: mrcd uses a plane less that lost more than others
_ETHERNET = 14  # a link's rate limiter counts the Ethernet header, too
_TCP_IP = 20 + 32  # IPv4, and TCP with time stamps
_UDP_IP = 20 + 8
_WARM_NS = S
_UDP_SHARE = 0.85  # of the capacity, to stay somewhat below it


def planes_of(name: str, host: str) -> counters.Interfaces:
    """Return the plane NICs of a host."""
    names = tuple(f"plane{plane}" for plane in range(PLANES))
    return counters.Interfaces(f"{name}-{host}", names)


def _longest(name: str) -> int:
    """Return the MTU of mrc0, bytes: what the headers of a framing leave of that of the planes."""
    return int(flow.inside(name, "h1", "cat", "/sys/class/net/mrc0/mtu"))


def _goodput(recording: Recording) -> float:
    return recording.arrivals.bps(recording.began_ns + _WARM_NS, recording.ended_ns)


def goodput(name: str, mtu: int, rounds: int, seconds: float) -> Iterator[Line]:
    """Measure one TCP connection over mrc0, and where the rest of the capacity goes."""
    mss = _longest(name) - _TCP_IP
    per_byte = (mtu + _ETHERNET) / mss - 1
    shares: list[float] = []
    idle: list[float] = []
    other: list[float] = []
    uneven: list[float] = []
    for _ in range(rounds):
        with counters.Watch(planes_of(name, "h2")) as watch:
            recording = flow.run(name, flow.mrc0_route(name), seconds)
        start, end = recording.began_ns + _WARM_NS, recording.ended_ns
        took_ns, received = watch.between(start, end)
        carried = float(received.sum()) * 8 * S / took_ns / CAPACITY_BPS * 100
        share = _goodput(recording) / CAPACITY_BPS * 100
        shares.append(share)
        idle.append(100 - carried)
        other.append(carried - share * (1 + per_byte))
        uneven.append(imbalance([float(count) for count in received]) * 100)
    most = 100 / (1 + per_byte)

    def line(what: str, values: list[float], target: Target | None = None) -> Line:
        return Line("goodput", f"MTU {mtu}", what, "%", tuple(values), target)

    yield line(f"of 4 x {RATE_MBPS} Mb/s", shares, at_least(90 if mtu > 4000 else 84))
    yield line(f"of the {most:.1f} % that headers leave", [share / most * 100 for share in shares])
    yield line("lost to headers", [share * per_byte for share in shares])
    yield line("lost to repair, probes, SACKs", other)
    yield line("lost to idle planes", idle)
    yield line("largest deviation of a plane", uneven, at_most(3))


def loss(name: str, mtu: int, rounds: int, seconds: float) -> Iterator[Line]:
    """Measure goodput when planes lose packets at random, and the same run without loss."""
    planes = [f"p{plane}" for plane in range(PLANES)]
    clean, one, every = [], [], []
    for _ in range(rounds):
        clean.append(_goodput_with(name, [], "", seconds))
        one.append(_goodput_with(name, ["p1"], "loss=5%", seconds))
        time.sleep(_FORGOTTEN_S)
        every.append(_goodput_with(name, planes, "loss=1%", seconds))
    pairs = list(zip(clean, one, every, strict=True))

    def line(what: str, values: Iterator[float], target: Target | None = None) -> Line:
        return Line("loss", f"MTU {mtu}", what, "%", tuple(values), target)

    yield line("5 % on one plane: of no loss", (100 * o / c for c, o, _ in pairs))
    yield line(
        "5 % on one plane: of 3/4 of no loss", (100 * o / c / 0.75 for c, o, _ in pairs),
        at_least(97),
    )  # fmt: skip
    yield line("1 % on every plane: of no loss", (100 * e / c for c, _, e in pairs), at_least(80))


def _goodput_with(name: str, elements: list[str], action: str, seconds: float) -> float:
    for element in elements:
        lab.fault(name, element, action)
    try:
        return _goodput(flow.run(name, flow.mrc0_route(name), seconds))
    finally:
        for element in elements:
            lab.fault(name, element, "clear")


def order(name: str, mtu: int, rounds: int, seconds: float) -> Iterator[Line]:
    """Measure order at the receiver's TCP and in a numbered UDP stream, without and with loss."""
    planes = [f"p{plane}" for plane in range(PLANES)]
    for action, words in (("", "no fault"), ("loss=1%", "1 % loss")):
        for plane in planes if action else ():
            lab.fault(name, plane, action)
        try:
            yield _tcp_order(name, f"MTU {mtu}, {words}", rounds, seconds)
            yield from _udp_order(name, f"MTU {mtu}, {words}", mtu, rounds, seconds)
        finally:
            for plane in planes if action else ():
                lab.fault(name, plane, "clear")


def _tcp_order(name: str, where: str, rounds: int, seconds: float) -> Line:
    counts = []
    for _ in range(rounds):
        before = counters.tcp_out_of_order(f"{name}-h2")
        flow.run(name, flow.mrc0_route(name), seconds)
        counts.append(float(counters.tcp_out_of_order(f"{name}-h2") - before))
    return Line("order", where, "TCP: out of order arrivals", "", tuple(counts), at_most(0))


def _udp_order(name: str, where: str, mtu: int, rounds: int, seconds: float) -> Iterator[Line]:
    size = _longest(name) - _UDP_IP
    mbps = CAPACITY_BPS / 1e6 * size / (mtu + _ETHERNET) * _UDP_SHARE
    found = []
    for _ in range(rounds):
        recording = flow.run_udp(name, flow.mrc0_route(name), seconds, mbps, size)
        found.append((order_of(recording.sent, recording.numbers), recording))

    def line(what: str, values: Iterator[float], target: Target | None, unit: str = "") -> Line:
        return Line("order", where, f"UDP: {what}", unit, tuple(values), target)

    yield line("rate", (recording.mbps for _, recording in found), None, "Mb/s")
    yield line("datagrams sent", (recording.sent for _, recording in found), None)
    yield line("missing", (seen.missing for seen, _ in found), at_most(0))
    yield line("of these, full socket buffer", (recording.overrun for _, recording in found), None)
    yield line("out of order", (seen.reordered for seen, _ in found), at_most(0))
    yield line("duplicates", (seen.duplicated for seen, _ in found), at_most(0))
