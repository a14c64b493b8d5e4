# SPDX-License-Identifier: GPL-2.0-only
"""The marks of a report: each state has a word, a shape and a colour, so none needs its colour."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from cli.report.markup import Child, el
from cli.state.status import plane_state
from mrcd.model import ElementInfo, ElementState, PlaneInfo

WORDS: dict[ElementState, str] = {
    "ok": "ok",
    "dead": "dead",
    "loss": "loses packets",
    "slow": "slow",
    "unseen": "not known",
}
WORST: tuple[ElementState, ...] = ("dead", "loss", "slow", "unseen", "ok")
"""The states from the worst to the best."""
AT_FAULT = ("dead", "loss", "slow")


def symbols() -> Element:
    """Return the shapes, 12 units wide, that `icon` refers to."""
    shapes = {
        "ok": el("path", d="M2 6.5l2.8 2.8L10 3.2", class_="stroke"),
        "dead": el("path", d="M2.5 2.5l7 7m0-7l-7 7", class_="stroke"),
        "loss": el("path", d="M6 1.2L11.4 11H.6z"),
        "slow": el("path", d="M1 1h10L7 6l4 5H1l4-5z"),
        "unseen": el("circle", cx=6, cy=6, r=4, class_="stroke dotted"),
    }
    made = [
        el("symbol", shape, id=f"mark-{name}", viewBox="0 0 12 12")
        for name, shape in shapes.items()
    ]
    return el("svg", *made, width="0", height="0", class_="hidden", aria_hidden="true")


def icon(state: str, **place: float) -> Element:
    """Return the shape of a state, to be drawn beside its word; `place` holds x and y in an SVG."""
    use = el("use", href=f"#mark-{state}", width=12.0, height=12.0, **place)
    if place:
        use.set("class", f"icon {state}")
        return use
    return el("svg", use, viewBox="0 0 12 12", class_=f"icon {state}", aria_hidden="true")


def badge(state: str, *words: Child) -> Element:
    """Return words with the shape and the colour of a state."""
    return el("span", icon(state), " ", *words, class_=f"badge {state}")


def plane_badge(plane: PlaneInfo) -> Element:
    """Return the state of one of this host's planes."""
    return badge(plane_mark(plane), plane_state(plane))


def plane_mark(plane: PlaneInfo) -> str:
    """Return the state whose shape a plane gets."""
    if plane.drained:
        return "unseen"
    if not plane.usable:
        return "dead"
    return "ok" if plane.wrong is None and plane.sick is None else "loss"


def fault_mark(kind: str) -> str:
    """Return the state whose shape a fault gets."""
    return {"damage": "loss", "flap": "loss", "repeat": "slow", "reorder": "slow"}.get(kind, kind)


def condition(element: ElementInfo) -> str:
    """Return what is known of an element of the fabric in a few words."""
    match element.state:
        case "loss":
            return f"loses {percent(element.loss)}"
        case "slow" if element.latency_us is not None:
            return f"slow, {element.latency_us:.0f} us one way"
        case "ok" if element.latency_us is not None:
            return f"ok, {element.latency_us:.0f} us one way"
    return WORDS[element.state]


def percent(share: float) -> str:
    """Return a share with at least two digits that count."""
    return f"{share * 100:.{1 if share < 0.0995 else 0}f} %"


def per_second(count: float, seconds: float) -> str:
    """Return a rate with one decimal where it is small."""
    rate = max(0.0, count) / max(1e-9, seconds)
    return f"{rate:,.0f}" if rate >= 9.5 or rate == 0 else f"{rate:.1f}"
