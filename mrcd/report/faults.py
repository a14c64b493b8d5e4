# SPDX-License-Identifier: GPL-2.0-only
"""The survey's findings on the fabric, as the control API shows them."""

from __future__ import annotations

import statistics
import time

from mrcd.fabric.loops import Element, Loop, link, nic, t0, t1
from mrcd.linux.ethtool import link_mbps
from mrcd.model import (
    SCHEMA_VERSION,
    ElementInfo,
    FaultsReply,
    HostSpot,
    MapReply,
    SurveyInfo,
    WayInfo,
)
from mrcd.report import cables
from mrcd.report.cables import STATES as STATES
from mrcd.report.cables import faulty
from mrcd.report.live import Live
from mrcd.survey.cables import CabledLayout
from mrcd.survey.inference import Fault, Seen
from mrcd.survey.matrix import Matrix
from mrcd.survey.named import info_of
from mrcd.survey.pairsurvey import PairSurvey


class FaultReport(Live):
    """The faults, and the map of the fabric."""

    def _about(self) -> SurveyInfo:
        survey = self._engine.survey
        lost, queued = survey.matrix.lost_here if isinstance(survey, PairSurvey) else (0, 0)
        return SurveyInfo(
            arrived=survey.prober.received if isinstance(survey, PairSurvey) else 0,
            lost=lost,
            queued=queued,
            enabled=not survey.reason,
            reason=survey.reason,
            pps=survey.pps,
            loops=len(survey.loops),
            trips="ways" if isinstance(survey, PairSurvey) else "loops",
            hosts_heard=survey.heard,
            hosts_total=len(self._engine.config.peers),
            accepted=survey.accepted,
            rejected=survey.rejections.count,
        )

    def faults(self) -> FaultsReply:
        """Return the faults that are named now."""
        now = time.monotonic_ns()
        found = [info_of(named, now_ns=now) for named in self._engine.survey.list.named]
        return {"schema_version": SCHEMA_VERSION, "survey": self._about(), "faults": found}

    def fabric_map(self) -> MapReply:
        """Return every element of the fabric with its state, loss and latency."""
        fabric, survey = self._engine.config.fabric, self._engine.survey
        if isinstance(survey, PairSurvey):
            return self._pair_map(survey)
        seen = survey.seen
        sent: dict[Element, int] = {}
        for one in seen:
            for element in one.loop.crossings:
                sent[element] = sent.get(element, 0) + one.sent
        named = {each.fault.element: each.fault for each in survey.list.named}
        latencies = _latencies(seen)
        elements = []
        for plane in range(fabric.planes):
            elements += [t0(plane, j) for j in range(1, fabric.t0 + 1)]
            elements += [t1(plane, m) for m in range(1, fabric.t1 + 1)]
            elements += [nic(plane, host) for host in fabric.hosts]
            elements += [
                link(plane, j, m) for j in range(1, fabric.t0 + 1) for m in range(1, fabric.t1 + 1)
            ]
        infos = []
        for element in elements:
            fault = named.get(element)
            infos.append(
                ElementInfo(
                    name=element.name,
                    kind=element.kind,
                    plane=element.plane,
                    state=STATES[fault.kind] if fault else "ok" if element in sent else "unseen",
                    loss=round(fault.loss, 5) if fault else 0.0,
                    sent=sent.get(element, 0),
                    latency_us=latencies.get(element),
                )
            )
        return {
            "schema_version": SCHEMA_VERSION,
            "survey": self._about(),
            "planes": fabric.planes,
            "t0": fabric.t0,
            "t1": fabric.t1,
            "hosts": [HostSpot(name=host.name, t0=host.t0) for host in fabric.hosts],
            "elements": infos,
            "ways": [],
            "networks": [],
            "loose": [],
        }

    def _pair_map(self, survey: PairSurvey) -> MapReply:
        """Return the NICs of all hosts with their state, and what else is at fault."""
        matrix = survey.matrix
        named = [each.fault for each in survey.list.named]
        sent: dict[str, int] = {}
        for each in matrix.counted:
            for element in each.way.crossings:
                sent[element.name] = sent.get(element.name, 0) + each.seen.sent
        if isinstance(matrix.layout, CabledLayout):
            return self._cabled_map(survey, matrix.layout, named, sent)
        infos, shown = [], set()
        for host in matrix.layout.hosts:
            for plane in range(matrix.planes):
                nic_ = matrix.layout.nic(host, plane)
                own = {nic_.name, f"{nic_.name} sending", f"{nic_.name} receiving"}
                faults = [fault for fault in named if fault.element.name in own]
                shown |= own
                probed = any(sent.get(f"{name}") for name in own) or _is_end(matrix, host, plane)
                infos.append(
                    ElementInfo(
                        name=nic_.name,
                        kind="nic",
                        plane=plane,
                        state=STATES[faults[0].kind] if faults else "ok" if probed else "unseen",
                        loss=round(max((fault.loss for fault in faults), default=0.0), 5),
                        sent=sent.get(nic_.name, 0),
                        latency_us=None,
                    )
                )
        infos += [faulty(fault, sent) for fault in named if fault.element.name not in shown]
        hosts = [HostSpot(name=name, t0=0) for name in matrix.layout.hosts]
        return self._without_fabric(matrix, hosts, infos)

    def _cabled_map(
        self,
        survey: PairSurvey,
        layout: CabledLayout,
        named: list[Fault],
        sent: dict[str, int],
    ) -> MapReply:
        """Return the graph of hosts that do not share all networks."""
        config, matrix = self._engine.config, survey.matrix
        rates = [link_mbps(name) for name in config.interfaces]
        nodes = self._running.discovering.meeting.graph.nodes if config.keys.discover else {}
        forwarding = {name for name, node in nodes.items() if node.forwards}
        networks = cables.networks(matrix, layout, named, rates)
        elements = cables.elements(layout, named, networks, sent)
        found = self._without_fabric(matrix, cables.hosts(layout, named, forwarding), elements)
        found["networks"], found["loose"] = networks, cables.loose(matrix, layout, rates)
        return found

    def _without_fabric(
        self, matrix: Matrix, hosts: list[HostSpot], elements: list[ElementInfo]
    ) -> MapReply:
        """Return a map without switches, and without a graph of networks."""
        return {
            "schema_version": SCHEMA_VERSION,
            "survey": self._about(),
            "planes": matrix.planes,
            "t0": 0,
            "t1": 0,
            "hosts": hosts,
            "elements": elements,
            "ways": _ways(matrix),
            "networks": [],
            "loose": [],
        }


WAYS_MAX = 240
"""Ways that the map lists; those that lose most come first."""


def _is_end(matrix: Matrix, host: str, plane: int) -> bool:
    """Return whether probes have crossed a NIC."""
    return any(
        each.way.plane == plane and host in (each.way.sender, each.way.host.name)
        for each in matrix.counted
    )


def _ways(matrix: Matrix) -> list[WayInfo]:
    found = [
        WayInfo(
            sender=each.way.sender,
            receiver=each.way.host.name,
            plane=each.way.leaves,
            sent=each.seen.sent,
            lost=each.seen.lost,
        )
        for each in matrix.counted
    ]
    return sorted(found, key=lambda way: (-way.lost, way.plane, way.sender))[:WAYS_MAX]


def _latencies(seen: list[Seen]) -> dict[Element, float]:
    """Return the microseconds of one crossing of each link, switch included.

    That is half of the extra round trip of a loop over the link.
    """
    trips: dict[tuple[str, int, int, int], float] = {}
    for one in seen:
        if one.rtt_us is not None and isinstance(one.loop, Loop):
            trips[one.loop.host.name, one.loop.plane, one.loop.t1, one.loop.t0] = one.rtt_us
    samples: dict[Element, list[float]] = {}
    for one in seen:
        if one.rtt_us is None or not isinstance(one.loop, Loop):
            continue
        host, plane, m, k = one.loop.host, one.loop.plane, one.loop.t1, one.loop.t0
        if one.loop.kind == "near":
            samples.setdefault(nic(plane, host), []).append(one.rtt_us / 2)
            continue
        shorter = trips.get((host.name, plane, m if k else 0, 0))
        if shorter is not None:
            crossed = link(plane, k or host.t0, m)
            samples.setdefault(crossed, []).append(max(0.0, one.rtt_us - shorter) / 2)
    return {element: round(statistics.median(values), 1) for element, values in samples.items()}
