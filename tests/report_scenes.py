# SPDX-License-Identifier: GPL-2.0-only
"""Hosts to report on: degraded, healthy, of a large fabric, of none, with hostile names."""

from __future__ import annotations

import math
from dataclasses import replace

from mrcd.model import (
    ElementInfo,
    ElementKind,
    ElementState,
    FaultInfo,
    FaultsReply,
    HostSpot,
    MapReply,
    PathInfo,
    PeerInfo,
    PlaneInfo,
    Status,
)
from rigs.control_double import FakeSource

HOSTILE = '"><script>alert(1)</script><img src=http://evil.example/x>&\x00\x1b[31m\u202e\ud7ff'


class Host(FakeSource):
    """A host with planes and peers at will, whose counters grow with every status."""

    def __init__(self, *, planes: int = 4, peers: int = 3, hosts_per_t0: int = 2) -> None:
        super().__init__()
        self.planes, self.peer_count, self.hosts_per_t0 = planes, peers, hosts_per_t0
        self.bad_plane: int | None = None
        self.bad: dict[str, ElementState] = {}  # elements of the fabric
        self.unseen_planes: set[int] = set()
        self.prefix = "h"
        self.config_path = "/etc/mrcd/mrcd.toml"

    def named(self, number: int) -> str:
        return f"{self.prefix}{number}"

    def status(self) -> Status:
        status = super().status()
        sick = "no path gets through to any of the peers"
        planes = [
            replace(
                self._plane(index),
                tx_bytes=self._sent(index),
                rx_bytes=self._sent(index) // 2,
                wrong=sick if index == self.bad_plane else None,
                unreached=self.peer_count if index == self.bad_plane else 0,
            )
            for index in range(self.planes)
        ]
        return replace(
            status, host=self.named(1), planes=planes, peers_total=self.peer_count,
            peers_up=self.peer_count,
        )  # fmt: skip

    def _sent(self, plane: int) -> int:
        if plane == self.bad_plane:
            return 200 * self.readings
        wave = 1 + 0.3 * math.sin(self.readings / 3 + plane)
        return int(40_000_000 * (self.readings + wave))

    def peers(self) -> list[PeerInfo]:
        first = super().peers()[0]
        usable = [plane for plane in range(self.planes) if plane != self.bad_plane]
        return [
            replace(
                first,
                name=self.named(number),
                addresses=[f"10.99.{number >> 8}.{number & 255}/32"],
                planes_usable=usable,
                shares=[1.0] * self.planes,
                planes_srtt_us=[80.0 + plane if plane in usable else None
                                for plane in range(self.planes)],
                tx_packets=1000 * self.readings,
                rx_packets=500 * self.readings,
            )
            for number in range(2, self.peer_count + 2)
        ]  # fmt: skip

    def paths(self, peer: str | None) -> list[PathInfo]:
        first = super().paths("h2")[0]
        found = []
        for name in [each.name for each in self.peers()] if peer is None else [peer]:
            for plane in range(self.planes):
                sick = plane == self.bad_plane
                for t1 in range(1, 9):
                    found.append(replace(
                        first, peer=name, plane=plane, t1=t1, ev=plane << 28 | t1 << 16,
                        state="ASSUMED_BAD" if sick else "GOOD",
                        role="backup" if sick else "active", sent=1000 * self.readings + 1,
                        lost=7 * self.readings if sick else 0, srtt_us=None if sick else 81.0,
                    ))  # fmt: skip
        return found

    def faults(self) -> FaultsReply:
        reply = super().faults()
        lossy = reply["faults"][1] if reply["faults"] else None
        found: list[FaultInfo] = []
        if lossy is not None:
            for name, state in self.bad.items():
                assert state in ("dead", "loss", "slow")
                found.append(replace(lossy, element=name, kind=state, extra_us=5400.0))
        return {**reply, "faults": found}

    def fabric_map(self) -> MapReply:
        elements: list[ElementInfo] = []
        hosts = [
            HostSpot(name=self.named(number + 1), t0=1 + number // self.hosts_per_t0)
            for number in range(self.peer_count + 1)
        ]

        def add(name: str, kind: ElementKind, plane: int, latency: float | None) -> None:
            state = self.bad.get(name, "unseen" if plane in self.unseen_planes else "ok")
            elements.append(
                ElementInfo(
                    name=name,
                    kind=kind,
                    plane=plane,
                    state=state,
                    loss={"dead": 1.0, "loss": 0.041}.get(state, 0.0),
                    sent=100,
                    latency_us=latency if state == "ok" else None,
                )
            )

        for plane in range(self.planes if self.t0s else 0):
            for j in range(1, self.t0s + 1):
                add(f"p{plane}t0-{j}", "t0", plane, None)
                for m in range(1, self.t1s + 1):
                    add(f"p{plane}t0-{j}:p{plane}t1-{m}", "link", plane, 23.4 + m / 10)
            for m in range(1, self.t1s + 1):
                add(f"p{plane}t1-{m}", "t1", plane, None)
            for host in hosts:
                add(f"{host.name}:p{plane}", "nic", plane, 12.0)
        return {
            "schema_version": 1,
            "survey": self._survey,
            "planes": self.planes,
            "t0": self.t0s,
            "t1": self.t1s,
            "hosts": hosts if self.t0s else [],
            "elements": elements,
            "ways": [],
            "networks": [],
            "loose": [],
        }


def healthy() -> Host:
    """Return a host of a small fabric in which all is well."""
    return Host()


def degraded() -> Host:
    """Return a host with a plane that reaches nobody, in a fabric with a fault of each kind."""
    host = Host()
    host.state = "degraded"
    host.bad_plane = 2
    host.reasons = ["plane 2: no path gets through to any of the peers"]
    host.bad = {
        "p2t0-1": "dead", "p1t0-1:p1t1-2": "loss", "h3:p0": "slow", "p3t0-2:p3t1-1": "dead",
    }  # fmt: skip
    return host


def large() -> Host:
    """Return a host of 500 in a fabric of 8 planes with 64 T1s and 64 T0s each."""
    host = Host(planes=8, peers=499, hosts_per_t0=8)
    host.t0s, host.t1s = 63, 64
    host.bad = {
        "p1t0-7:p1t1-12": "dead", "p1t0-40:p1t1-33": "loss", "p3t1-20": "dead", "h77:p4": "slow",
        "p5t0-3": "loss",
    }  # fmt: skip
    host.bad |= {f"p6t0-{j}:p6t1-{m}": "loss" for j in range(1, 64, 2) for m in range(1, 65, 2)}
    host.unseen_planes = {7}
    return host


def without_fabric(peers: int = 5) -> Host:
    """Return a host that knows no fabric, with a plane that carries nothing."""
    host = Host(planes=3, peers=peers)
    host.t0s, host.t1s, host.bad_plane = 0, 0, 1
    host.survey_off = "without a fabric there is nothing to survey"
    return host


def hostile() -> Host:
    """Return a host whose name, peers, reasons and planes' NICs try to become markup."""

    class Hostile(Host):
        def status(self) -> Status:
            status = super().status()
            planes: list[PlaneInfo] = [
                replace(plane, interface=HOSTILE, gateway=HOSTILE, wrong=HOSTILE)
                for plane in status.planes
            ]
            return replace(status, planes=planes, version=HOSTILE)

    host = Hostile()
    host.prefix = HOSTILE
    host.state, host.reasons = "degraded", [HOSTILE, "x" * 3000]
    host.bad = {f"{HOSTILE}2:p0": "dead"}
    host.config_path = HOSTILE
    return host


SCENES = {
    "healthy": healthy,
    "degraded": degraded,
    "large": large,
    "without-fabric": without_fabric,
    "many-without-fabric": lambda: without_fabric(300),
    "hostile": hostile,
}
