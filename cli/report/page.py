# SPDX-License-Identifier: GPL-2.0-only
"""The page of ``mrcctl report``, made of what was observed and nothing else (pure)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from xml.etree.ElementTree import Element

from cli.console.render import bit_rate
from cli.report import chart, map, mesh, tables
from cli.report.data import Observed, averages, lost_by_plane
from cli.report.marks import badge, fault_mark, per_second, symbols
from cli.report.markup import Child, document, el
from cli.report.style import STYLE
from cli.state.faults import sentence, summary
from mrcd.model import FaultInfo, Status
from mrcd.wording import duration

FAULTS_MAX = 24
STATE_MARKS = {"ok": "ok", "degraded": "dead", "starting": "unseen", "stopping": "unseen"}


def page(found: Observed) -> str:
    """Return the whole page."""
    shape = bool(found.map["t0"])
    mapped = (
        map.fabric(found.map, found.status.host, found.status.planes)
        if shape
        else [*mesh.mesh(found.status, found.peers), *tables.nics(found)]
    )
    charted = chart.charts(found.rates, found.status.planes, found.seconds)
    sections = [
        ("map", "Fabric" if shape else "Planes and peers", mapped),
        ("planes", "Planes of this host", tables.planes(found)),
        ("faults", "Faults", _faults(found)),
        ("rates", f"Rates over {duration(found.seconds)}", charted),
        ("peers", "Peers", tables.peers(found)),
        ("paths", "Paths by peer and plane", tables.paths(found)),
        ("worst", "Worst paths", tables.worst(found)),
        ("counters", "Counters that moved", tables.counters(found)),
        ("facts", "Versions and settings", _facts(found)),
    ]
    links = [el("a", heading, href=f"#{name}") for name, heading, _content in sections]
    body = el(
        "body",
        symbols(),
        el("header", *_head(found)),
        el("nav", *links, aria_label="sections"),
        el("main", *(
            el("section", el("h2", heading), *content, id=name)
            for name, heading, content in sections
        )),
        el("footer", f"Written by mrcctl {found.versions['mrcctl']} at {_time(found)}."),
    )  # fmt: skip
    return document(f"{found.status.host}: mrcd {found.status.state}", STYLE, body)


def _time(found: Observed) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.time_s))


def _head(found: Observed) -> list[Element]:
    status = found.status
    about = (
        f"mrcd {status.version}, up {duration(status.uptime_s)}. Observed for "
        f"{duration(found.seconds)} until {_time(found)}."
    )
    state = badge(STATE_MARKS[status.state], status.state)
    made = [el("h1", f"{status.host} ", state), el("p", about, class_="quiet")]
    if status.reasons:
        reasons = [el("li", reason) for reason in status.reasons]
        made.append(el("ul", *reasons, class_="reasons"))
    made.append(el("dl", *_figures(found), class_="cards"))
    return made


def _figures(found: Observed) -> list[Element]:
    """Return the figures that tell most, each with what it is of."""
    status = found.status
    well = sum(plane.usable and plane.wrong is None for plane in status.planes)
    good = sum(path.state in ("GOOD", "SKIP") for path in found.paths)
    lost = sum(lost_by_plane(found.paths_before, found.paths).values())
    means = [averages(rates) for rates in found.rates.values()]
    faults = found.faults["faults"]
    kind = next((k for k in ("dead", "loss", "slow") if any(f.kind == k for f in faults)), "ok")
    no_survey = not found.faults["survey"].enabled
    return [
        _card("planes well", f"{well} of {len(status.planes)}", well == len(status.planes)),
        _card("peers established", f"{status.peers_up} of {status.peers_total}",
              status.peers_up == status.peers_total),
        _card("paths good", f"{good} of {len(found.paths)}", good == len(found.paths)),
        _card("faults in the fabric", "no survey" if no_survey else str(len(faults)),
              "unseen" if no_survey else kind),
        _card("packets lost/s", per_second(lost, found.seconds), lost == 0),
        _card("sent", bit_rate(sum(mean[0] for mean in means)), None),
        _card("received", bit_rate(sum(mean[1] for mean in means)), None),
    ]  # fmt: skip


def _card(what: str, figure: str, mark: bool | str | None) -> Element:
    """Return a figure and its meaning; `mark` is a state, or whether all is well."""
    state = ("ok" if mark else "loss") if isinstance(mark, bool) else mark
    shown: Child = figure if state is None else badge(state, figure)
    return el("div", el("dt", what), el("dd", shown))


def _faults(found: Observed) -> list[Element]:
    survey = found.faults["survey"]
    faults = found.faults["faults"]
    if not survey.enabled:
        return [el("p", badge("unseen", summary(survey)))]
    if not faults:
        return [el("p", badge("ok", "no faults")), el("p", summary(survey), class_="quiet")]
    listed = [_fault(each) for each in faults[:FAULTS_MAX]]
    if len(faults) > FAULTS_MAX:
        listed.append(el("li", f"and {len(faults) - FAULTS_MAX} more"))
    return [el("p", summary(survey), class_="quiet"), el("ul", *listed, class_="faults")]


def _fault(fault: FaultInfo) -> Element:
    others = [
        el("li", f"cannot be told from: {' and '.join(names)}") for names in fault.alternatives
    ]
    evidence = [el("li", line) for line in fault.evidence]
    return el(
        "li",
        badge(fault_mark(fault.kind), sentence(fault)),
        f" for {duration(fault.since_s)}",
        el("ul", *others, *evidence) if others or evidence else None,
    )


def _facts(found: Observed) -> list[Element]:
    facts = {**found.versions, **_running(found.status)}
    return [
        _listed(facts),
        el("h3", "Configuration"),
        _listed(found.settings),
        el("p", "Keys and other secrets are not read.", class_="quiet"),
    ]


def _running(status: Status) -> dict[str, str]:
    path = status.datapath
    cells = "none" if path.cell_bytes is None else f"up to {path.cell_bytes:,} bytes"
    return {
        "process": f"{status.pid}",
        "configuration file": status.config,
        "mrc0": f"{status.mrc0.name}, MTU {status.mrc0.mtu}, {', '.join(status.mrc0.addresses)}",
        "routing": path.routing,
        "data path": f"xdp {path.xdp}, tc {path.tc}, tick {path.tick}",
        "pinned in": path.bpffs,
        "cells": cells,
        "authentication": "secured" if status.secured else "insecure: peers are not authenticated",
        "public key": status.public_key or "none",
    }


def _listed(facts: Mapping[str, str]) -> Element:
    pairs = [el("div", el("dt", name), el("dd", value)) for name, value in facts.items()]
    return el("dl", *pairs, class_="facts")
