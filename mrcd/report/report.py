# SPDX-License-Identifier: GPL-2.0-only
"""What the daemon says of itself: the maps and the sessions as the control API shows them."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from ipaddress import IPv6Address
from pathlib import Path
from typing import Protocol

from mrcd import __version__
from mrcd.config import render
from mrcd.config.config import Peer
from mrcd.datapath.capture import Rings, Wanted
from mrcd.engine import Engine
from mrcd.fabric import underlay, usid
from mrcd.handshake import State
from mrcd.linux import interfaces
from mrcd.linux.interfaces import Traffic
from mrcd.model import (
    CaptureInfo,
    CapturePeer,
    ConfigChanges,
    ConnInfo,
    Counter,
    DatapathInfo,
    DeniedInfo,
    FaultsReply,
    MapReply,
    Mrc0Info,
    PathEvent,
    PathInfo,
    PathProbe,
    PeerInfo,
    PlaneInfo,
    QpState,
    StatsInfo,
    Status,
    TickState,
)
from mrcd.paths.feed import STATES
from mrcd.planes.planes import Plane
from mrcd.report import peers as peerlist
from mrcd.report.faults import FaultReport
from mrcd.wire.abi import COUNTERS

_QP_STATES: tuple[QpState, ...] = ("RESET", "RTR", "RTS")
_PSN = 0xFFFFFF


def _us(nanoseconds: int | None) -> float | None:
    return nanoseconds / 1000 if nanoseconds else None


class Reconfigure(Protocol):
    """Who changes the configuration of a running daemon; as in mrcd.control.backend.Source."""

    def diff(self, text: str) -> ConfigChanges:
        """What applying a text would change."""

    async def apply(self, text: str, confirm_s: int) -> ConfigChanges:
        """Apply it, for good or until confirmed."""

    def confirm(self) -> None:
        """Keep what was applied."""


class Report:
    """Answers the control API (mrcd.control.server.Source) from live state."""

    def __init__(self, engine: Engine, reconfigure: Reconfigure, bpffs: Path) -> None:
        self._reconfigure = reconfigure
        self._bpffs = bpffs
        self._reconfigure = reconfigure
        self._started = time.monotonic()
        self.stopping = False
        self.follow(engine)

    def follow(self, engine: Engine) -> None:
        """Answer from this engine from now on, and from what it is configured for now."""
        self._engine = engine
        self._config = engine.config
        self._dp = engine.datapath
        self._table = engine.table
        self._planes = engine.planes
        self._peers = engine.peers
        self._endpoint = engine.endpoint
        self._clock = engine.clock
        self._denials = engine.denials
        self._feed = engine.feed
        self._captures = engine.captures
        self._faults = FaultReport(engine.config, engine.survey)

    # ---- the configuration

    def config_text(self) -> str:
        """The running configuration as TOML."""
        return render.render(self._config)

    def config_diff(self, text: str) -> ConfigChanges:
        """What applying a text would change; ConfigError with every problem of it."""
        return self._reconfigure.diff(text)

    async def config_apply(self, text: str, confirm_s: int) -> ConfigChanges:
        """Apply a text, for good or until confirmed."""
        return await self._reconfigure.apply(text, confirm_s)

    def config_confirm(self) -> None:
        """Keep what was applied; CannotApply when nothing waits."""
        self._reconfigure.confirm()

    # ---- the whole

    def status(self) -> Status:
        """The daemon as a whole."""
        reasons = self._reasons()
        up = len(self._peers.answering)
        tick: TickState = "stopped"
        if self._clock.is_alive():
            tick = "running" if self._clock.running else "idle"
        return Status(
            host=self._config.host.name,
            version=__version__,
            state="stopping" if self.stopping else "degraded" if reasons else "ok",
            reasons=reasons,
            pid=os.getpid(),
            config=str(self._config.path.absolute()),
            uptime_s=round(time.monotonic() - self._started, 3),
            mrc0=self._mrc0(),
            planes=self._shown(self._planes.planes),
            peers_total=len(self._config.peers),
            peers_up=up,
            peers_silent=self._peers.count(State.SILENT),
            datapath=DatapathInfo(
                xdp=self._dp.xdp_mode,
                tc=self._dp.tc_kind,
                tick=tick,
                routing=self._config.fabric.routing.shown,
                bpffs=str(self._bpffs),
            ),
        )

    def _mrc0(self) -> Mrc0Info:
        mrc0 = self._config.mrc0
        traffic = interfaces.traffic().get(mrc0.name, Traffic())
        return Mrc0Info(
            name=mrc0.name,
            mtu=self._config.mtu,
            addresses=[str(address) for address in mrc0.addresses],
            tx_packets=traffic.tx_packets,
            tx_bytes=traffic.tx_bytes,
            rx_packets=traffic.rx_packets,
            rx_bytes=traffic.rx_bytes,
        )

    def _gateway(self, plane: int) -> str:
        return str(underlay.gateway(self._config.fabric, self._config.host, plane))

    def _reasons(self) -> list[str]:
        reasons = []
        for plane in self._planes.planes:
            if not plane.usable:
                why = plane.why_unused(self._gateway(plane.index))
                reasons.append(f"plane {plane.index}: {why}")
            elif plane.sick is not None:
                reasons.append(f"plane {plane.index}: {plane.sick}; used for want of another")
        return [*reasons, *peerlist.reasons(self._engine)]

    def _shown(self, planes: Sequence[Plane]) -> list[PlaneInfo]:
        traffic = interfaces.traffic()
        return [self._plane(each, traffic.get(each.link.name, Traffic())) for each in planes]

    def _plane(self, plane: Plane, traffic: Traffic) -> PlaneInfo:
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
            address=str(underlay.address(self._config.fabric, self._config.host, plane.index)),
        )

    # ---- what operators ask for

    def drain(self, plane: int, force: bool) -> PlaneInfo:
        """Take a plane out of service."""
        self._planes.drain(plane, force=force)
        return self._shown([self._planes.planes[plane]])[0]

    def undrain(self, plane: int) -> PlaneInfo:
        """Put a plane back into service."""
        self._planes.undrain(plane)
        return self._shown([self._planes.planes[plane]])[0]

    async def probe(self, peer: str, plane: int | None, count: int) -> list[PathProbe]:
        """EV probes over every path of these planes to a peer."""
        fabric = self._config.fabric
        (target,) = self._chosen(peer)
        planes = range(fabric.planes) if plane is None else (plane,)
        found = []
        for result in await self._endpoint.probe(peer, planes, count):
            t1, usids = self._way(target, result.ev)
            found.append(
                PathProbe(
                    peer=peer,
                    ev=result.ev,
                    plane=usid.ev_plane(result.ev),
                    t1=t1,
                    usids=usids,
                    sent=result.sent,
                    answered=result.answered,
                    min_us=_us(result.min_ns),
                    median_us=_us(result.median_ns),
                    max_us=_us(result.max_ns),
                )
            )
        return found

    # ---- the parts

    def peers(self) -> list[PeerInfo]:
        """Every configured peer."""
        return peerlist.listed(self._engine)

    def foremost_peers(
        self, count: int, before: Mapping[str, int]
    ) -> tuple[list[PeerInfo], Mapping[str, int]]:
        """Those in trouble and the busiest of them; and the packets of each, for the next time."""
        return peerlist.foremost_of(self._engine, count, before)

    def peer_names(self) -> list[str]:
        """The names of the same."""
        return [peer.name for peer in self._config.peers]

    def _chosen(self, name: str | None) -> list[Peer]:
        return [peer for peer in self._config.peers if name in (None, peer.name)]

    def paths(self, peer: str | None) -> list[PathInfo]:
        """Every path of every QP."""
        found = []
        for each in self._chosen(peer):
            for number, index in enumerate(self._table.qps_of(each.name)):
                for path in self._table.paths(index):
                    t1, usids = self._way(each, path.ev)
                    found.append(
                        PathInfo(
                            peer=each.name,
                            qp=number,
                            ev=path.ev,
                            plane=path.plane,
                            t1=t1,
                            usids=usids,
                            state=STATES[path.state],
                            role="active" if path.use else "backup",
                            slow=path.slow,
                            sent=path.values["sent"],
                            acked=path.values["acked"],
                            lost=path.values["lost"],
                            marked=path.values["marked"],
                            srtt_us=_us(path.values["srtt_ns"]),
                        )
                    )
        return found

    def _way(self, peer: Peer, ev: int) -> tuple[int, str]:
        """The T1 and the uSID list of an EV; 0 and nothing where only the switches know."""
        fabric, host = self._config.fabric, self._config.host
        if fabric.routing.mode == "ecmp":
            return 0, ""
        usids = usid.path_usids(host, peer.host, ev)
        return usid.ev_t1(ev), str(IPv6Address(usid.da_bytes(fabric.block, usids)))

    def connections(self, peer: str | None) -> list[ConnInfo]:
        """Every QP."""
        found = []
        for each in self._chosen(peer):
            for number, index in enumerate(self._table.qps_of(each.name)):
                view = self._table.view(index)
                qp, tx, rx = view.qp, view.tx, view.rx
                found.append(
                    ConnInfo(
                        peer=each.name,
                        qp=number,
                        qpn=qp["qpn"],
                        remote_qpn=qp["remote_qpn"],
                        state=_QP_STATES[qp["state"]],
                        next_psn=tx["next"] & _PSN,
                        una_psn=tx["una"] & _PSN,
                        outstanding=(tx["next"] - tx["una"]) & 0xFFFFFFFF,
                        mpr=qp["mpr"],
                        srtt_us=_us(tx["srtt_ns"]),
                        rx_next_psn=rx["next"] & _PSN,
                        rx_waiting=rx["waiting"],
                        retransmits=tx["retransmits"],
                    )
                )
        return found

    def stats(self) -> StatsInfo:
        """All counters."""
        values = self._dp.counters()
        return StatsInfo(
            counters=[
                Counter(name=name, value=values[name], help=text) for _i, name, text in COUNTERS
            ]
        )

    # ---- paths: what the operator denies, what happens to them

    async def deny(self, element: str, peer: str | None, *, force: bool) -> bool:
        """Add a rule to the denylist; False when it was there."""
        return await self._denials.deny(element, peer, force=force)

    async def allow(self, element: str, peer: str | None) -> None:
        """Remove a rule."""
        await self._denials.allow(element, peer)

    def denied(self) -> list[DeniedInfo]:
        """The rules of the denylist."""
        return self._denials.listed()

    def watch_paths(self) -> AsyncGenerator[PathEvent | None, None]:
        """None at once, then every path event."""
        return self._feed.watch()

    def capture_info(self) -> CaptureInfo:
        """What records of packets need to be understood."""
        config = self._config
        indices = self._table.indices.items()
        return CaptureInfo(
            host=config.host.name,
            encap=config.fabric.routing.code,
            udp_port=config.transport.udp_port,
            interfaces=[*config.interfaces],
            peers=[CapturePeer(index=index, name=name) for name, index in indices],
            qps_per_peer=self._table.per_peer,
        )

    def capture(self, wanted: Wanted) -> AsyncGenerator[Rings, None]:
        """Record packets until closed; yields once, when that has begun."""
        return self._captures.watch(wanted)

    def faults(self) -> FaultsReply:
        """What is at fault in the fabric."""
        return self._faults.faults()

    def fabric_map(self) -> MapReply:
        """Every link and switch, as the survey sees it."""
        return self._faults.fabric_map()
