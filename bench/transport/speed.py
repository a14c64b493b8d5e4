# SPDX-License-Identifier: GPL-2.0-only
"""Measure the speed limited only by the processor, against plain TCP.

Plain TCP runs without segmentation offload over plane 0 of the same lab, through mrcd's programs
like all traffic on a plane, and over plane 0 of a second lab of the same shape without mrcd; there
also with every offload. The turns alternate, so that a slow moment of the machine affects all
alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.instruments import flow, wire
from bench.instruments.metrics import spread
from bench.instruments.result import Line, at_least
from bench.instruments.wire import Wire
from mrcd.linux import ethtool, netns

_PLAIN = "plain TCP"
_NO_CHECKSUM = "plain TCP, tx checksum off too"
_BARE = "plain TCP, no mrcd on the hosts"
_OFFLOADS = "plain TCP, all offloads, no mrcd on the hosts"
_CONNECTIONS = (1, 4)
_WHOLE = ("mrc0", _OFFLOADS)  # may send large segments


def _checksum_offload(name: str, on: bool) -> None:
    for node in ("h1", "h2"):
        with netns.entered(f"{name}-{node}"):
            ethtool.set_features("plane0", tx_checksum=on)


def speed(name: str, bare: str, mtu: int, rounds: int, seconds: float) -> Iterator[Line]:
    """Measure the ratio of mrc0 to plain TCP, with cubic everywhere."""
    variants = ("mrc0", _PLAIN, _NO_CHECKSUM, _BARE, _OFFLOADS)
    for connections in _CONNECTIONS:
        rates: dict[str, list[float]] = {variant: [] for variant in variants}
        for _ in range(rounds):
            for variant, turns in rates.items():
                turns.append(_turn(name, bare, variant, connections, seconds))
        yield from _lines(f"MTU {mtu}, {connections} TCP", rates)


def _turn(name: str, bare: str, variant: str, connections: int, seconds: float) -> float:
    lab = bare if variant in (_BARE, _OFFLOADS) else name
    wire.lay(lab, Wire.WHOLE if variant in _WHOLE else Wire.SINGLE)
    route = flow.mrc0_route(lab) if variant == "mrc0" else flow.plane_route(lab, 0)
    if variant == _NO_CHECKSUM:
        _checksum_offload(lab, False)
    try:
        return flow.iperf3(lab, route, seconds, connections=connections)
    finally:
        if variant == _NO_CHECKSUM:
            _checksum_offload(lab, True)


def _lines(where: str, rates: dict[str, list[float]]) -> Iterator[Line]:
    for variant, values in rates.items():
        yield Line("speed", where, variant, "Gb/s", tuple(value / 1e9 for value in values))
    for variant, values in rates.items():
        if variant != "mrc0":
            plain = spread(values).median
            ratios = tuple(value / plain for value in rates["mrc0"])
            target = at_least(0.6) if variant == _PLAIN else None
            yield Line("speed", where, f"mrc0 to {variant}", "", ratios, target)
