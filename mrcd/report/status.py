# SPDX-License-Identifier: GPL-2.0-only
"""The daemon as a whole, mrc0 and the planes, as the control API shows them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from mrcd import __version__
from mrcd.config.config import Config
from mrcd.config.overlap import Prefix
from mrcd.datapath import budgets
from mrcd.engine.engine import Engine
from mrcd.fabric import underlay
from mrcd.handshake import State
from mrcd.handshake.channel import Drop
from mrcd.handshake.identity import encode_key
from mrcd.linux import interfaces, kernel
from mrcd.linux.interfaces import Traffic
from mrcd.model import (
    CellEnvelope,
    Counter,
    DatapathInfo,
    FaultKind,
    Mrc0Info,
    PlaneInfo,
    SourceInfo,
    StatsInfo,
    Status,
)
from mrcd.planes.plane import Plane
from mrcd.report import health, peers, standby
from mrcd.report.health import Health
from mrcd.report.live import Live
from mrcd.running import Running
from mrcd.service.log import current_level
from mrcd.survey.cables import CabledLayout
from mrcd.survey.inference import Fault
from mrcd.survey.pairsurvey import PairSurvey
from mrcd.wire.abi import COUNTERS


class StatusReport(Live):
    """The daemon, its planes and its counters."""

    def __init__(self, running: Running) -> None:
        super().__init__(running)
        self._started = time.monotonic()

    def plane_indices(self) -> list[int]:
        """Return the numbers of the planes."""
        return [plane.index for plane in self._engine.planes.planes]

    def status(self) -> Status:
        """Return the state of the daemon as a whole."""
        engine = self._engine
        config, datapath, clock = engine.config, engine.datapath, engine.clock
        found, trust = health.examine(engine), self._running.trust
        reasons = [*trust.reasons(), *found.reasons]
        ring = config.keyring
        return Status(
            host=config.host.name,
            version=__version__,
            state="stopping" if self._running.stopping else "degraded" if reasons else "ok",
            reasons=reasons,
            pid=os.getpid(),
            config=str(config.path.absolute()),
            uptime_s=round(time.monotonic() - self._started, 3),
            mrc0=self._mrc0(),
            planes=self._shown(engine.planes.planes, found),
            peers_total=len(config.peers),
            peers_up=len(engine.peers.answering),
            peers_silent=engine.peers.count(State.SILENT),
            secured=ring is not None,
            public_key=None if ring is None else encode_key(ring.public),
            known_by="invitation" if ring is not None and ring.invited else peers.known_by(ring),
            revoked=sorted(each.name for each in trust.revocations),
            warnings=[
                *peers.warnings(engine),
                *self._running.admitted.warnings,
                *self._running.discovering.warnings(),
                *_fault_map(engine, found.planes),
                *(f"plane {k}: {text}" for k, text in sorted(_short(engine).items())),
                *unforwarded(config.mrc0.routed, kernel.forwarding()),
            ],
            peers_admitted=len(config.admitted),
            log_level=current_level(),
            datapath=DatapathInfo(
                xdp=datapath.xdp_mode,
                tc=datapath.tc_kind,
                tick=clock.state,
                routing=config.fabric.routing.shown,
                bpffs=str(self._running.bpffs),
                cell_bytes=None if engine.cells is None else engine.cells.bytes,
                cell_envelope=_envelope(config),
            ),
        )

    def _mrc0(self) -> Mrc0Info:
        config, engine = self._engine.config, self._engine
        traffic = interfaces.traffic().get(config.mrc0.name, Traffic())
        return Mrc0Info(
            name=config.mrc0.name,
            mtu=config.mtu,
            addresses=[str(address) for address in config.mrc0.addresses],
            tx_packets=traffic.tx_packets,
            tx_bytes=traffic.tx_bytes,
            rx_packets=traffic.rx_packets,
            rx_bytes=traffic.rx_bytes,
            speed_mbps=standby.sending(engine).bit_count() * engine.interfaces.mbps,
        )

    def stats(self) -> StatsInfo:
        """Return all counters of the data path, and those of the sealed channels."""
        values = self._engine.datapath.counters()
        found = [Counter(name=name, value=values[name], help=text) for _i, name, text in COUNTERS]
        channels = self._engine.peers.channels
        dropped = channels.dropped if channels is not None else {}
        found += [
            Counter(
                name=f"channel_{why.name.lower()}",
                value=dropped.get(why, 0),
                help=f"a message of a daemon {why.value}",
            )
            for why in Drop
        ]
        return StatsInfo(counters=found, sources=self._refused_sources())

    def _refused_sources(self) -> list[SourceInfo]:
        """Return the sources of refused messages, peers first."""
        names = {place: name for name, place in self._engine.table.peers.indices.items()}
        peers, nets = budgets.refused(self._engine.datapath)
        found = [
            SourceInfo(source=names[place], beyond_budget=refused, forged=forged)
            for place, (refused, forged) in sorted(peers.items())
            if place in names
        ]
        for source, (refused, forged) in nets.items():
            found.append(SourceInfo(source=source, beyond_budget=refused, forged=forged))
        return found

    # ---- planes

    def drain(self, plane: int, force: bool) -> PlaneInfo:
        """Take a plane out of service."""
        planes = self._engine.planes
        planes.drain(plane, force=force)
        return self._now(plane)

    def undrain(self, plane: int) -> PlaneInfo:
        """Put a plane back into service."""
        planes = self._engine.planes
        planes.undrain(plane)
        return self._now(plane)

    def _now(self, plane: int) -> PlaneInfo:
        engine = self._engine
        return self._shown([engine.planes.planes[plane]], health.examine(engine))[0]

    def _shown(self, planes: Sequence[Plane], found: Health) -> list[PlaneInfo]:
        traffic, short = interfaces.traffic(), _short(self._engine)
        spare = standby.look(self._engine)
        return [
            replace(
                self._plane(
                    each, traffic.get(each.link.name, Traffic()), found, short.get(each.index)
                ),
                standby=bool(spare.planes >> each.index & 1),
                standing_in=spare.standing_in[each.index],
            )
            for each in planes
        ]

    def _plane(
        self, plane: Plane, traffic: Traffic, found: Health, measured: str | None
    ) -> PlaneInfo:
        config = self._engine.config
        return PlaneInfo(
            index=plane.index,
            interface=plane.link.name,
            up=plane.link.up,
            carrier=plane.link.carrier,
            usable=plane.usable,
            gateway=health.gateway(self._engine, plane.index) or "",
            gateway_mac=plane.gateway_mac.hex(":") if plane.gateway_mac else None,
            tx_packets=traffic.tx_packets,
            tx_bytes=traffic.tx_bytes,
            rx_packets=traffic.rx_packets,
            rx_bytes=traffic.rx_bytes,
            drained=plane.drained,
            unsaved=self._engine.planes.unsaved,
            sick=plane.sick,
            wrong=found.planes.get(plane.index),
            unreached=found.unreached.get(plane.index, 0),
            swallowed=found.swallowed.get(plane.index, 0),
            mtu=plane.link.mtu,
            address=str(underlay.of(config.fabric).address(config.host, plane.index)),
            measured=measured,
        )


def _short(engine: Engine) -> dict[int, str]:
    """Return the planes that carry less than they should: as measured last, else as estimated."""
    return {**engine.watch.short, **engine.measuring.short}


def _envelope(config: Config) -> CellEnvelope | None:
    if not config.cells:
        return None
    return "udp" if config.cell_udp else "ipv6"


def unforwarded(routed: Sequence[Prefix], forwards: Mapping[int, bool]) -> list[str]:
    """Return which of the prefixes behind this host it does not forward to, with the remedy."""
    found = []
    for version, key in kernel.FORWARDING.items():
        behind = [str(prefix) for prefix in routed if prefix.version == version]
        if behind and not forwards.get(version, True):
            text = f"peers cannot reach {', '.join(behind)} behind this host: {key} is 0"
            found.append(f"{text}; remedy: `sysctl -w {key}=1`")
    return found


def _fault_map(engine: Engine, planes: Collection[int]) -> list[str]:
    """Return what is at fault between hosts without a fabric file, beyond what `planes` say.

    Where hosts are cabled without sharing all networks, all that is named: it concerns all of them.
    """
    survey = engine.survey
    if not isinstance(survey, PairSurvey):
        return []
    named = [each.fault for each in survey.list.named]
    if not isinstance(survey.matrix.layout, CabledLayout):
        named = own_deaths(named, engine.config.host.name, planes)
    lines = [
        f"fault map: {fault.element.name} {_WORDS[fault.kind]}" for fault in named[:FAULTS_MAX]
    ]
    if len(named) > FAULTS_MAX:
        lines.append(f"fault map: {len(named) - FAULTS_MAX} more, see `mrcctl fault list`")
    return lines


def own_deaths(named: Iterable[Fault], host: str, planes: Collection[int]) -> list[Fault]:
    """Return what is dead at this host's NICs or between them and others, except on these planes.

    What a host sends may arrive while nothing arrives of what it is sent: its own planes are well
    then, and only the others' say that they are not.
    """
    own = re.compile(rf"(?:^|\s){re.escape(host)}:")
    return [
        fault
        for fault in named
        if fault.kind == "dead"
        and fault.element.plane not in planes
        and own.search(fault.element.name)
    ]


FAULTS_MAX = 8
_WORDS: dict[FaultKind, str] = {
    "dead": "is dead",
    "loss": "loses packets",
    "slow": "is slow",
    "damage": "damages packets",
    "repeat": "repeats packets",
    "reorder": "reorders packets",
    "flap": "flaps",
}
