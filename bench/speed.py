# SPDX-License-Identifier: GPL-2.0-only
"""Measure the speed limited only by the processor, against TCP without segmentation offload.

Plain TCP runs over plane 0 of the same lab, through mrcd's programs like all traffic on a plane,
and over plane 0 of a second lab of the same shape without mrcd. The turns alternate, so that a slow
moment of the machine affects all alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench import flow
from bench.metrics import spread
from bench.result import Line, at_least
from mrcd.linux import ethtool, netns

_PLAIN = "plain TCP"
_NO_CHECKSUM = "plain TCP, tx checksum off too"
_BARE = "plain TCP, no mrcd on the hosts"
_CONNECTIONS = (1, 4)


def no_segmentation_offload(name: str, planes: int = 1) -> None:
    """Make packets of the first planes cross the fabric one by one, as a NIC's would."""
    for plane in range(planes):
        for node in ("h1", "h2"):
            with netns.entered(f"{name}-{node}"):
                ethtool.set_features(f"plane{plane}", tso=False, gso=False, gro=False)
        for t0 in (1, 2):
            with netns.entered(f"{name}-p{plane}t0-{t0}"):
                ethtool.set_features("port1", gro=False)


def _checksum_offload(name: str, on: bool) -> None:
    for node in ("h1", "h2"):
        with netns.entered(f"{name}-{node}"):
            ethtool.set_features("plane0", tx_checksum=on)


def speed(name: str, bare: str, mtu: int, rounds: int, seconds: float) -> Iterator[Line]:
    """Measure the ratio of mrc0 to plain TCP, with cubic everywhere."""
    no_segmentation_offload(name)
    no_segmentation_offload(bare)
    for connections in _CONNECTIONS:
        rates: dict[str, list[float]] = {"mrc0": [], _PLAIN: [], _NO_CHECKSUM: [], _BARE: []}
        for _ in range(rounds):
            for variant, turns in rates.items():
                turns.append(_turn(name, bare, variant, connections, seconds))
        yield from _lines(f"MTU {mtu}, {connections} TCP", rates)


def _turn(name: str, bare: str, variant: str, connections: int, seconds: float) -> float:
    lab = bare if variant == _BARE else name
    route = flow.mrc0_route(lab) if variant == "mrc0" else flow.plane_route(lab, 0)
    if variant == _NO_CHECKSUM:
        _checksum_offload(lab, False)
    try:
        return flow.iperf3(lab, route, seconds, connections=connections)
    finally:
        if variant == _NO_CHECKSUM:
            _checksum_offload(lab, True)
            no_segmentation_offload(lab)  # features that depend on the checksum may be on again


def _lines(where: str, rates: dict[str, list[float]]) -> Iterator[Line]:
    for variant, values in rates.items():
        yield Line("speed", where, variant, "Gb/s", tuple(value / 1e9 for value in values))
    for variant, values in rates.items():
        if variant != "mrc0":
            plain = spread(values).median
            ratios = tuple(value / plain for value in rates["mrc0"])
            target = at_least(0.6) if variant == _PLAIN else None
            yield Line("speed", where, f"mrc0 to {variant}", "", ratios, target)
