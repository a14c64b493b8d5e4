# SPDX-License-Identifier: GPL-2.0-only
"""The survey's findings on the fabric, as the control API shows them."""

from __future__ import annotations

import statistics
import time

from mrcd.fabric.loops import Element, Loop, link, nic, t0, t1
from mrcd.model import (
    SCHEMA_VERSION,
    ElementInfo,
    FaultInfo,
    FaultsReply,
    HostSpot,
    MapReply,
    SurveyInfo,
)
from mrcd.report.live import Live
from mrcd.survey.inference import Seen


class FaultReport(Live):
    """The faults, and the map of the fabric."""

    def _about(self) -> SurveyInfo:
        survey = self._engine.survey
        return SurveyInfo(
            enabled=not survey.reason,
            reason=survey.reason,
            pps=survey.pps,
            loops=len(survey.loops),
            hosts_heard=survey.heard,
            hosts_total=len(self._engine.config.peers),
            accepted=survey.accepted,
            rejected=survey.rejections.count,
        )

    def faults(self) -> FaultsReply:
        """Return the faults that are named now."""
        now = time.monotonic_ns()
        found = [
            FaultInfo(
                element=named.fault.element.name,
                kind=named.fault.kind,
                loss=round(named.fault.loss, 5),
                loss_low=round(named.fault.low, 5),
                loss_high=round(named.fault.high, 5),
                extra_us=round(named.fault.extra_us, 1),
                since_s=round((now - named.since_ns) / 1e9, 3),
                evidence=list(named.fault.evidence),
                alternatives=[list(names) for names in named.fault.alternatives],
            )
            for named in self._engine.survey.list.named
        ]
        return {"schema_version": SCHEMA_VERSION, "survey": self._about(), "faults": found}

    def fabric_map(self) -> MapReply:
        """Return every element of the fabric with its state, loss and latency."""
        fabric, survey = self._engine.config.fabric, self._engine.survey
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
                    state=fault.kind if fault else "ok" if element in sent else "unseen",
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
        }


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
