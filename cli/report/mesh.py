# SPDX-License-Identifier: GPL-2.0-only
"""The figure of a host that is no part of a described fabric: its planes, and peers behind them."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from cli.report.marks import badge, icon, plane_mark
from cli.report.markup import el
from cli.state.status import plane_state
from mrcd.model import PeerInfo, PlaneInfo, Status

PEERS_DRAWN = 12
"""More peers than this are drawn as groups: those that a plane reaches are counted."""
_LEGEND = {
    "ok": "usable",
    "loss": "usable, but something is wrong",
    "dead": "not usable",
    "unseen": "drained",
}
_ROW, _HIGH = 34, 24
_HOST_X, _PLANE_X, _PEER_X, _WIDTH, _BOX = 62, 250, 480, 560, 116


def mesh(status: Status, peers: Sequence[PeerInfo]) -> list[Element]:
    """Return this host, its planes and its peers; a line is drawn where a plane can be used."""
    note = f"No fabric is described: {len(status.planes)} planes and {len(peers)} peers. "
    note += "A line to a peer means that both ends can use the plane."
    if len(peers) > PEERS_DRAWN:
        note += " The peers are counted."
    legend = el("p", *(badge(state, word) for state, word in _LEGEND.items()), class_="legend")
    return [el("p", note), legend, el("div", _figure(status, peers), class_="scroll")]


def _figure(status: Status, peers: Sequence[PeerInfo]) -> Element:
    planes = status.planes
    shown = list(peers) if len(peers) <= PEERS_DRAWN else []
    height = _ROW * max(len(planes), len(shown), 2) + 12
    plane_y, peer_y = _spread(len(planes), height), _spread(len(shown), height)
    lines: list[Element] = []
    boxes = [_box("host own", status.host, _HOST_X, height / 2, None)]
    for plane, y in zip(planes, plane_y, strict=True):
        mark = plane_mark(plane)
        lines.append(_line(_HOST_X + _BOX / 2, height / 2, _PLANE_X - _BOX / 2, y, mark))
        for peer, at in zip(shown, peer_y, strict=True):
            if plane.index in peer.planes_usable:
                lines.append(_line(_PLANE_X + _BOX / 2, y, _PEER_X - _BOX / 2, at, mark))
        if not shown:
            reached = sum(plane.index in peer.planes_usable for peer in peers)
            text = f"{reached} of {len(peers)} peers"
            state = mark if reached else "dead"
            lines.append(_line(_PLANE_X + _BOX / 2, y, _PEER_X - _BOX / 2, y, state))
            boxes.append(_box("host", text, _PEER_X, y, None if reached else "dead"))
        boxes.append(_plane(plane, y, mark))
    for peer, at in zip(shown, peer_y, strict=True):
        mark_of = {"established": None, "silent": "dead", "connecting": "unseen"}[peer.state]
        boxes.append(_box("host", peer.name, _PEER_X, at, mark_of, peer.state))
    return el(
        "svg",
        *lines,
        *boxes,
        viewBox=f"0 0 {_WIDTH} {height}",
        class_="map",
        style="min-width:440px;max-width:760px",
        role="img",
        aria_label="this host, its planes and its peers; the tables below have the same",
    )


def _spread(count: int, height: int) -> list[float]:
    return [height * (i + 0.5) / count for i in range(count)]


def _line(x1: float, y1: float, x2: float, y2: float, state: str) -> Element:
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=f"line {state}")


def _plane(plane: PlaneInfo, y: float, mark: str) -> Element:
    text = f"{plane.index} {plane.interface}"
    return _box(mark, text, _PLANE_X, y, None if mark == "ok" else mark, plane_state(plane))


def _box(kind: str, text: str, x: float, y: float, mark: str | None, state: str = "") -> Element:
    short = text if len(text) <= 17 else f"{text[:16]}…"
    made = el(
        "g",
        el("title", f"{text}: {state}" if state else text),
        el("rect", x=x - _BOX / 2, y=y - _HIGH / 2, width=_BOX, height=_HIGH, rx=4),
        el("text", short, x=x, y=y + 4, class_="middle"),
        class_=f"node {kind}",
    )
    if mark is not None:
        made.append(icon(mark, x=x + _BOX / 2 - 8, y=y - _HIGH / 2 - 5))
    return made
