# SPDX-License-Identifier: GPL-2.0-only
"""Gather what a report shows: the daemon's state now, and how its counters move for a while."""

from __future__ import annotations

import os
import platform
import re
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cli.console.client import Client
from cli.state.daemonlog import SOUNDS
from cli.state.shownpaths import shown_paths
from mrcd import __version__
from mrcd.model import (
    FaultsReply,
    MapReply,
    MonitorSample,
    PathInfo,
    PeerInfo,
    StatsInfo,
    Status,
)

POINTS = 30
"""The most points of a line in a chart."""
INTERVAL_S = 0.1
PEERS_READ = 128
PATHS_OFTEN = 4096
"""More paths than this are read only before and after the other samples."""
SECTIONS = ("planes", "mrc0", "transport")
"""The tables of the configuration that are shown; none has a place for a secret."""
SECRET = re.compile(SOUNDS, re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rate:
    """The rates of one plane between two samples.

    `at_s` counts from the first sample to the second of the two; traffic is in bits a second,
    losses are in packets a second, and None if the paths were not read at both samples.
    """

    at_s: float
    seconds: float  # between the two samples
    tx: float
    rx: float
    lost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The material of a report."""

    time_s: int  # since the epoch, when the last sample was taken
    seconds: float  # between the first and the last sample
    status: Status
    peers: Sequence[PeerInfo]
    peers_before: Mapping[str, PeerInfo]
    paths: Sequence[PathInfo]
    paths_before: Mapping[tuple[str, int, int], PathInfo]
    stats: StatsInfo
    stats_before: Mapping[str, int]
    rates: Mapping[int, Sequence[Rate]]  # by plane
    faults: FaultsReply
    map: MapReply
    versions: Mapping[str, str]
    settings: Mapping[str, str]


def observe(socket: str, seconds: float) -> Observed:
    """Watch the daemon for `seconds`, and return what there was to see.

    Raises a CommandError of ``cli.console.exits`` if the daemon does not answer.
    """
    with Client(socket) as watching, Client(socket) as asking:
        peers_before = {peer.name: peer for peer in asking.peers()["peers"]}
        samples, readings = _watch(watching, asking, seconds)
        first, last = samples[0], samples[-1]
        return Observed(
            time_s=int(time.time()),
            seconds=(last.monotonic_ns - first.monotonic_ns) / 1e9,
            status=last.status,
            peers=asking.peers()["peers"],
            peers_before=peers_before,
            paths=readings[-1],
            paths_before=_by_ev(readings[0]),
            stats=last.stats,
            stats_before={counter.name: counter.value for counter in first.stats.counters},
            rates=_rates(samples, readings),
            faults=asking.faults(),
            map=asking.fabric_map(),
            versions=_versions(last.status),
            settings=settings(asking.config_text()["text"]),
        )


def _watch(
    watching: Client, asking: Client, seconds: float
) -> tuple[list[MonitorSample], list[Sequence[PathInfo]]]:
    """Return the samples, and the paths at each of them; those that were not read are empty."""
    interval = max(INTERVAL_S, seconds / POINTS)
    count = max(1, round(seconds / interval))
    samples: list[MonitorSample] = []
    readings: list[Sequence[PathInfo]] = []
    earlier: dict[str, PeerInfo] = {}
    for number, sample in enumerate(watching.monitor(round(interval * 1000), PEERS_READ)):
        often = not readings or len(readings[0]) <= PATHS_OFTEN
        paths: Sequence[PathInfo] = ()
        if often or number == count:
            paths = shown_paths(asking, sample.status.peers_total, sample.peers, earlier)
        earlier = earlier or {peer.name: peer for peer in sample.peers}
        samples.append(sample)
        readings.append(paths)
        if number == count:
            break
    return samples, readings


def _by_ev(paths: Sequence[PathInfo]) -> dict[tuple[str, int, int], PathInfo]:
    return {(path.peer, path.qp, path.ev): path for path in paths}


def _rates(
    samples: Sequence[MonitorSample], readings: Sequence[Sequence[PathInfo]]
) -> dict[int, list[Rate]]:
    found: dict[int, list[Rate]] = {plane.index: [] for plane in samples[-1].status.planes}
    begun = samples[0].monotonic_ns
    ends = list(zip(samples, readings, strict=True))
    for (was, paths_were), (now, paths_are) in pairwise(ends):
        seconds = max(1e-9, (now.monotonic_ns - was.monotonic_ns) / 1e9)
        lost = lost_by_plane(_by_ev(paths_were), paths_are)
        read = bool(paths_were and paths_are)
        earlier = {plane.index: plane for plane in was.status.planes}
        for plane in now.status.planes:
            before = earlier.get(plane.index, plane)
            found.setdefault(plane.index, []).append(
                Rate(
                    at_s=(now.monotonic_ns - begun) / 1e9,
                    seconds=seconds,
                    tx=8 * max(0, plane.tx_bytes - before.tx_bytes) / seconds,
                    rx=8 * max(0, plane.rx_bytes - before.rx_bytes) / seconds,
                    lost=lost[plane.index] / seconds if read else None,
                )
            )
    return found


def averages(rates: Sequence[Rate]) -> tuple[float, float, float | None]:
    """Return the mean of what was sent, received and lost, weighted with the time between samples.

    The last is None if the losses are not known.
    """
    seconds = max(1e-9, sum(rate.seconds for rate in rates))
    lost = [rate.lost * rate.seconds for rate in rates if rate.lost is not None]
    return (
        sum(rate.tx * rate.seconds for rate in rates) / seconds,
        sum(rate.rx * rate.seconds for rate in rates) / seconds,
        sum(lost) / seconds if len(lost) == len(rates) else None,
    )


def lost_by_plane(
    before: Mapping[tuple[str, int, int], PathInfo], now: Sequence[PathInfo]
) -> Counter[int]:
    """Return the packets that were lost on each plane between two readings of the paths."""
    lost: Counter[int] = Counter()
    for path in now:
        was = before.get((path.peer, path.qp, path.ev), path)
        lost[path.plane] += max(0, path.lost - was.lost)
    return lost


def _versions(status: Status) -> dict[str, str]:
    system = platform.freedesktop_os_release() if os.path.exists("/etc/os-release") else {}
    return {
        "mrcd": status.version,
        "mrcctl": __version__,
        "kernel": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "distribution": system.get("PRETTY_NAME", "unknown"),
        "Python": platform.python_version(),
        "CPUs": str(os.cpu_count()),
    }


def settings(text: str) -> dict[str, str]:
    """Return the settings of a configuration that a report shows, by their path."""
    found = {}
    tables = tomllib.loads(text)
    for section in SECTIONS:
        for key, value in tables.get(section, {}).items():
            if not SECRET.search(key) and not isinstance(value, dict):
                shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
                found[f"{section}.{key}"] = {"True": "yes", "False": "no"}.get(shown, shown)
    return found
