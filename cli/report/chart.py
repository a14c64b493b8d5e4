# SPDX-License-Identifier: GPL-2.0-only
"""The line charts of a report: traffic and losses of each plane, all to one scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from cli.console.render import bit_rate
from cli.report.data import Rate, averages
from cli.report.marks import per_second, plane_badge
from cli.report.markup import el
from mrcd.model import PlaneInfo

_LEFT, _RIGHT, _WIDTH, _HEIGHT = 56.0, 284.0, 290, 178
TRAFFIC, _LOST = (14.0, 98.0), (118.0, 158.0)  # top and bottom of the two charts

Point = tuple[float, float]


def charts(
    rates: Mapping[int, Sequence[Rate]], planes: Sequence[PlaneInfo], seconds: float
) -> list[Element]:
    """Return the legend, and two charts for each plane over the `seconds` that were watched."""
    every = [rate for series in rates.values() for rate in series]
    traffic = ceiling(max((max(rate.tx, rate.rx) for rate in every), default=0), 1000)
    lost = ceiling(max((rate.lost or 0 for rate in every), default=0), 1)
    legend = [
        _sample("tx", "sent"),
        _sample("rx", "received"),
        _sample("lost", "lost packets (the lower chart)"),
    ]
    panels = [_panel(plane, rates.get(plane.index, ()), seconds, traffic, lost) for plane in planes]
    return [
        el("p", *legend, "all planes to the same scale", class_="legend"),
        el("div", *panels, class_="panels"),
    ]


def _sample(kind: str, words: str) -> Element:
    line = el("line", x1=1, y1=6, x2=27, y2=6, class_=f"curve {kind}")
    drawn = el("svg", line, viewBox="0 0 28 12", class_="sample", aria_hidden="true")
    return el("span", drawn, f" {words}", class_="badge")


def _panel(
    plane: PlaneInfo, rates: Sequence[Rate], seconds: float, traffic: float, lost: float
) -> Element:
    sent, received, losses = averages(rates)
    told = "" if losses is None else f", lost {per_second(losses, 1)}/s"
    return el(
        "section",
        el("h3", f"Plane {plane.index} {plane.interface} ", plane_badge(plane)),
        el("p", f"on average: sent {bit_rate(sent)}, received {bit_rate(received)}{told}",
           class_="quiet"),
        _chart(rates, seconds, traffic, lost),
        class_="panel",
    )  # fmt: skip


def _chart(rates: Sequence[Rate], seconds: float, traffic: float, lost: float) -> Element:
    def at(rate: Rate, value: float, most: float, span: tuple[float, float]) -> Point:
        x = _LEFT + (_RIGHT - _LEFT) * min(1.0, rate.at_s / max(1e-9, seconds))
        return x, span[1] - (span[1] - span[0]) * min(1.0, value / most)

    parts = [
        *_axis(TRAFFIC, bit_rate(traffic).replace(".00", "")),
        *_axis(_LOST, f"{lost:,.0f}/s"),
        _curve("tx", [at(rate, rate.tx, traffic, TRAFFIC) for rate in rates]),
        _curve("rx", [at(rate, rate.rx, traffic, TRAFFIC) for rate in rates]),
    ]
    known = [rate for rate in rates if rate.lost is not None]
    parts.append(_curve("lost", [at(rate, rate.lost or 0, lost, _LOST) for rate in known]))
    parts.append(el("text", f"{seconds:.1f} s ago", x=_LEFT, y=_HEIGHT - 6, class_="axis"))
    parts.append(el("text", "now", x=_RIGHT, y=_HEIGHT - 6, class_="axis end"))
    if not known:
        parts.append(el("text", "not sampled: too many paths", x=_LEFT + 8, y=_LOST[1] - 14))
    return el(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        class_="chart",
        role="img",
        aria_label="rates over time; the averages are above",
    )


def _axis(span: tuple[float, float], most: str) -> list[Element]:
    top, bottom = span
    return [
        el("line", x1=_LEFT, y1=top, x2=_RIGHT, y2=top, class_="grid"),
        el("line", x1=_LEFT, y1=bottom, x2=_RIGHT, y2=bottom, class_="grid base"),
        el("text", most, x=_LEFT - 5, y=top + 4, class_="axis end"),
        el("text", "0", x=_LEFT - 5, y=bottom + 4, class_="axis end"),
    ]


def _curve(kind: str, points: Sequence[Point]) -> Element:
    """Return a line through the points; a single one is a line across the whole chart."""
    if len(points) == 1:
        points = [(_LEFT, points[0][1]), points[0]]
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return el("polyline", points=text, class_=f"curve {kind}")


def ceiling(value: float, least: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is not below `value`, and at least `least`."""
    value = max(value, least)
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))
