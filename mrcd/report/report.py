# SPDX-License-Identifier: GPL-2.0-only
"""The answers to the control API, all but those about the configuration."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from mrcd.datapath.capture import Rings, Wanted
from mrcd.model import CaptureInfo, CapturePeer
from mrcd.report.attached import AttachedReport
from mrcd.report.faults import FaultReport
from mrcd.report.paths import PathReport
from mrcd.report.peers import PeerReport
from mrcd.report.status import StatusReport


class Report(StatusReport, AttachedReport, PeerReport, PathReport, FaultReport):
    """All parts of the report as the one object that the control API asks.

    The parts are mixed in, not held, so that a call reaches the part which answers it at once.
    """

    def capture_info(self) -> CaptureInfo:
        """Return what a reader of captured records needs to know of this host."""
        config, peers = self._engine.config, self._engine.table.peers
        return CaptureInfo(
            host=config.host.name,
            encap=config.fabric.routing.code,
            udp_port=config.transport.udp_port,
            cell_port=config.transport.cell_port if config.cell_udp else None,
            interfaces=[*config.interfaces],
            peers=[CapturePeer(index=index, name=name) for name, index in peers.indices.items()],
            qps_per_peer=peers.per_peer,
        )

    def capture(self, wanted: Wanted) -> AsyncGenerator[Rings, None]:
        """Record packets until closed; yield once, when recording has begun."""
        return self._engine.captures.watch(wanted)
