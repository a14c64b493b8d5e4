# SPDX-License-Identifier: GPL-2.0-only
"""The fabric of a report: a drawing for each plane, or a matrix if a drawing would be too dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from xml.etree.ElementTree import Element

from cli.report import matrix
from cli.report.marks import AT_FAULT, WORDS, WORST, badge, condition, icon, plane_badge
from cli.report.markup import Child, el
from cli.state.faults import summary
from mrcd.model import ElementInfo, MapReply, PlaneInfo

SWITCHES_DRAWN, HOSTS_DRAWN = 8, 12
"""A plane with more switches of a tier, or more hosts, is shown as a matrix."""
NAMED = 8
"""The number of elements at fault that are named below a plane; the others are counted."""
_STEP, _BOX, _HIGH = 66, 58, 22
_T1_Y, _T0_Y, _HOST_Y, _HEIGHT = 16, 112, 182, 206
_NAME = 8  # characters of a host's name that fit below each other host's
_NARROW = 4 * _STEP  # a drawing that fits a narrow panel

ByName = Mapping[str, ElementInfo]


def fabric(reply: MapReply, host: str, planes: Sequence[PlaneInfo]) -> list[Element]:
    """Return the legend and a figure of each plane; `planes` are those of this host."""
    from mrcd.fabric import naming  # noqa: PLC0415

    hidden = _hidden(reply)
    known = [_known(element, hidden) for element in reply["elements"]]
    by_name = {element.name: element for element in known}
    here = {plane.index: plane for plane in planes}
    drawn = max(reply["t0"], reply["t1"]) <= SWITCHES_DRAWN and len(reply["hosts"]) <= HOSTS_DRAWN
    across = max(reply["t0"], reply["t1"], len(reply["hosts"]))
    width = _STEP * across if drawn else 0
    figures = []
    for plane in range(reply["planes"]):
        t0s = [by_name[naming.t0(plane, j)] for j in range(1, reply["t0"] + 1)]
        t1s = [by_name[naming.t1(plane, m)] for m in range(1, reply["t1"] + 1)]
        nics: dict[int, list[ElementInfo]] = {j: [] for j in range(1, reply["t0"] + 1)}
        for spot in reply["hosts"]:
            nics[spot.t0].append(by_name[naming.nic(plane, spot.name)])
        figure = (
            _drawing(t0s, t1s, nics, by_name, host)
            if drawn
            else matrix.matrix(t0s, t1s, nics, by_name)
        )
        elements = [element for element in known if element.plane == plane]
        figures.append(_panel(plane, here.get(plane), figure, elements))
    sizes = (
        f"{reply['planes']} planes, each of {reply['t1']} T1 and {reply['t0']} T0 switches; "
        f"{len(reply['hosts'])} hosts. "
    )
    how = "" if drawn else matrix.EXPLANATION
    return [
        el("p", sizes, how),
        el("p", summary(reply["survey"]), class_="quiet"),
        _legend(),
        el("div", *figures, class_="panels" if 0 < width <= _NARROW else "panels wide"),
    ]


def _hidden(reply: MapReply) -> set[str]:
    """Return the elements that only packets through a dead switch would reach."""
    from mrcd.fabric import naming  # noqa: PLC0415

    dead = {each.name for each in reply["elements"] if each.state == "dead"}
    t0s, t1s = range(1, reply["t0"] + 1), range(1, reply["t1"] + 1)
    hidden: set[str] = set()
    for plane in range(reply["planes"]):
        gone = [j for j in t0s if naming.t0(plane, j) in dead]
        for j in gone:
            hidden |= {naming.link(plane, j, m) for m in t1s}
            hidden |= {naming.nic(plane, spot.name) for spot in reply["hosts"] if spot.t0 == j}
        for m in t1s:
            if naming.t1(plane, m) in dead:
                hidden |= {naming.link(plane, j, m) for j in t0s}
            elif len(gone) == len(t0s):
                hidden.add(naming.t1(plane, m))
    return hidden


def _known(element: ElementInfo, hidden: set[str]) -> ElementInfo:
    """Return an element as it is shown: of one behind a dead switch nothing good is known."""
    if element.state != "ok" or element.name not in hidden:
        return element
    return replace(element, state="unseen", latency_us=None)


def _legend() -> Element:
    return el("p", *(badge(state, WORDS[state]) for state in reversed(WORST)), class_="legend")


def _panel(
    index: int, plane: PlaneInfo | None, figure: Element, elements: Sequence[ElementInfo]
) -> Element:
    bad = sorted(
        (each for each in elements if each.state in AT_FAULT),
        key=lambda each: WORST.index(each.state),
    )
    unseen = sum(each.state == "unseen" for each in elements)
    if bad:
        health = badge(bad[0].state, f"{len(bad)} at fault")
    elif unseen == len(elements):
        health = badge("unseen", WORDS["unseen"])
    else:
        health = badge("ok", "no fault")
    named: list[Child] = [
        el("li", badge(each.state, each.name), f" {condition(each)}") for each in bad[:NAMED]
    ]
    if len(bad) > NAMED:
        named.append(el("li", f"and {len(bad) - NAMED} more"))
    if 0 < unseen < len(elements):
        named.append(el("li", badge("unseen", f"{unseen} of {len(elements)} not known")))
    head = el("h3", f"Plane {index} ", health)
    state = el("p", "this host's NIC: ", plane_badge(plane), class_="quiet") if plane else None
    return el(
        "section",
        head,
        state,
        el("div", figure, class_="scroll"),
        el("ul", *named, class_="plain") if named else None,
        el("p", _latencies(elements), class_="quiet"),
        class_="panel",
    )


def _latencies(elements: Sequence[ElementInfo]) -> str:
    """Return the range of the latencies of links between switches, and of NIC links."""
    words = []
    for kind, name in (("link", "links between switches"), ("nic", "NIC links")):
        times = [e.latency_us for e in elements if e.kind == kind and e.latency_us is not None]
        if times:
            low, high = f"{min(times):.0f}", f"{max(times):.0f}"
            words.append(f"{name} {low if low == high else f'{low} to {high}'} us")
    return "one way: " + ", ".join(words) if words else ""


def _drawing(
    t0s: Sequence[ElementInfo],
    t1s: Sequence[ElementInfo],
    nics: Mapping[int, Sequence[ElementInfo]],
    by_name: ByName,
    host: str,
) -> Element:
    """Return T1s above T0s above hosts, with the links between them."""
    hosts = [(j, nic) for j, group in nics.items() for nic in group]
    width = _STEP * max(len(t0s), len(t1s), len(hosts), 4)
    t1_x, t0_x = _spread(len(t1s), width), _spread(len(t0s), width)
    lines: list[Element] = []
    labels: list[Element] = []
    for j, t0 in enumerate(t0s):
        for m, t1 in enumerate(t1s):
            link = by_name[f"{t0.name}:{t1.name}"]
            _join(lines, labels, link, t1_x[m], _T1_Y + _HIGH / 2, t0_x[j], _T0_Y - _HIGH / 2)
    boxes = [_switch(each, x, _T1_Y) for each, x in zip(t1s, t1_x, strict=True)]
    boxes += [_switch(each, x, _T0_Y) for each, x in zip(t0s, t0_x, strict=True)]
    for (j, nic), x in zip(hosts, _spread(len(hosts), width), strict=True):
        _join(lines, labels, nic, t0_x[j - 1], _T0_Y + _HIGH / 2, x, _HOST_Y - _HIGH / 2)
        boxes.append(_host(nic.name.rpartition(":")[0], x, host))
    return el(
        "svg",
        *sorted(lines, key=lambda line: line.get("class") != "line ok"),
        *boxes,
        *labels,
        viewBox=f"0 0 {width} {_HEIGHT}",
        class_="map",
        style=f"min-width:{min(width, 720)}px;max-width:{max(width * 1.5, 480):.0f}px",
        role="img",
        aria_label="the plane's switches, hosts and links; faults are listed below",
    )


def _spread(count: int, width: int) -> list[float]:
    return [width * (i + 0.5) / count for i in range(count)]


def _join(
    lines: list[Element],
    labels: list[Element],
    element: ElementInfo,
    x1: float,
    y1: float,
    x2: float,
    y2: float,
) -> None:
    """Draw a link from one place to another; one at fault gets its shape and its figure."""
    line = el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=f"line {element.state}")
    line.append(el("title", f"{element.name}: {condition(element)}"))
    lines.append(line)
    if element.state not in AT_FAULT:
        return
    # Not in the middle, where other links cross.
    x, y = x1 + (x2 - x1) * 0.68, y1 + (y2 - y1) * 0.68
    text = {"dead": "dead", "loss": f"{element.loss * 100:.1f} %", "slow": "slow"}[element.state]
    labels.append(icon(element.state, x=x - 6, y=y - 6))
    labels.append(el("text", text, x=x + 8, y=y + 4, class_=f"note {element.state}"))


def _switch(element: ElementInfo, x: float, y: float) -> Element:
    made = el(
        "g",
        el("title", f"{element.name}: {condition(element)}"),
        el("rect", x=x - _BOX / 2, y=y - _HIGH / 2, width=_BOX, height=_HIGH, rx=4),
        el("text", element.name, x=x, y=y + 4, class_="middle"),
        class_=f"node {element.state}",
    )
    if element.state != "ok":
        made.append(icon(element.state, x=x + _BOX / 2 - 8, y=y - _HIGH / 2 - 5))
    return made


def _host(name: str, x: float, own: str) -> Element:
    short = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    return el(
        "g",
        el("title", f"{name}, this host" if name == own else name),
        el("rect", x=x - _BOX / 2, y=_HOST_Y - _HIGH / 2, width=_BOX, height=_HIGH, rx=11),
        el("text", short, x=x, y=_HOST_Y + 4, class_="middle"),
        class_="node host own" if name == own else "node host",
    )
