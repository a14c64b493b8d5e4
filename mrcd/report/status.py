# SPDX-License-Identifier: GPL-2.0-only
"""The daemon as a whole, mrc0 and the planes, as the control API shows them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from mrcd import __version__
from mrcd.fabric import underlay
from mrcd.handshake import State
from mrcd.linux import interfaces
from mrcd.linux.interfaces import Traffic
from mrcd.model import Counter, DatapathInfo, Mrc0Info, PlaneInfo, StatsInfo, Status, TickState
from mrcd.planes.planes import Plane
from mrcd.report import peers
from mrcd.report.live import Live
from mrcd.running import Running
from mrcd.wire.abi import COUNTERS


class StatusReport(Live):
    """The daemon, its planes and its counters."""

    def __init__(self, running: Running) -> None:
        super().__init__(running)
        self._started = time.monotonic()

    def status(self) -> Status:
        """Return the state of the daemon as a whole."""
        engine = self._engine
        config, datapath, clock = engine.config, engine.datapath, engine.clock
        reasons = self._reasons()
        tick: TickState = "stopped"
        if clock.is_alive():
            tick = "running" if clock.running else "idle"
        return Status(
            host=config.host.name,
            version=__version__,
            state="stopping" if self._running.stopping else "degraded" if reasons else "ok",
            reasons=reasons,
            pid=os.getpid(),
            config=str(config.path.absolute()),
            uptime_s=round(time.monotonic() - self._started, 3),
            mrc0=self._mrc0(),
            planes=self._shown(engine.planes.planes),
            peers_total=len(config.peers),
            peers_up=len(engine.peers.answering),
            peers_silent=engine.peers.count(State.SILENT),
            datapath=DatapathInfo(
                xdp=datapath.xdp_mode,
                tc=datapath.tc_kind,
                tick=tick,
                routing=config.fabric.routing.shown,
                bpffs=str(self._running.bpffs),
                cell_bytes=None if engine.cells is None else engine.cells.bytes,
            ),
        )

    def _mrc0(self) -> Mrc0Info:
        config = self._engine.config
        traffic = interfaces.traffic().get(config.mrc0.name, Traffic())
        return Mrc0Info(
            name=config.mrc0.name,
            mtu=config.mtu,
            addresses=[str(address) for address in config.mrc0.addresses],
            tx_packets=traffic.tx_packets,
            tx_bytes=traffic.tx_bytes,
            rx_packets=traffic.rx_packets,
            rx_bytes=traffic.rx_bytes,
        )

    def _reasons(self) -> list[str]:
        """Return why the daemon is degraded, a line for each reason."""
        reasons = []
        for plane in self._engine.planes.planes:
            if not plane.usable:
                why = plane.why_unused(self._gateway(plane.index))
                reasons.append(f"plane {plane.index}: {why}")
            elif plane.sick is not None:
                reasons.append(f"plane {plane.index}: {plane.sick}; used for want of another")
        return [*reasons, *peers.reasons(self._engine)]

    def stats(self) -> StatsInfo:
        """Return all counters of the data path."""
        values = self._engine.datapath.counters()
        return StatsInfo(
            counters=[
                Counter(name=name, value=values[name], help=text) for _i, name, text in COUNTERS
            ]
        )

    # ---- planes

    def drain(self, plane: int, force: bool) -> PlaneInfo:
        """Take a plane out of service."""
        planes = self._engine.planes
        planes.drain(plane, force=force)
        return self._shown([planes.planes[plane]])[0]

    def undrain(self, plane: int) -> PlaneInfo:
        """Put a plane back into service."""
        planes = self._engine.planes
        planes.undrain(plane)
        return self._shown([planes.planes[plane]])[0]

    def _shown(self, planes: Sequence[Plane]) -> list[PlaneInfo]:
        traffic = interfaces.traffic()
        return [self._plane(each, traffic.get(each.link.name, Traffic())) for each in planes]

    def _plane(self, plane: Plane, traffic: Traffic) -> PlaneInfo:
        config = self._engine.config
        return PlaneInfo(
            index=plane.index,
            interface=plane.link.name,
            up=plane.link.up,
            carrier=plane.link.carrier,
            usable=plane.usable,
            gateway=self._gateway(plane.index),
            gateway_mac=plane.gateway_mac.hex(":") if plane.gateway_mac else None,
            tx_packets=traffic.tx_packets,
            tx_bytes=traffic.tx_bytes,
            rx_packets=traffic.rx_packets,
            rx_bytes=traffic.rx_bytes,
            drained=plane.drained,
            sick=plane.sick,
            mtu=plane.link.mtu,
            address=str(underlay.address(config.fabric, config.host, plane.index)),
        )

    def _gateway(self, plane: int) -> str:
        config = self._engine.config
        return str(underlay.gateway(config.fabric, config.host, plane))
