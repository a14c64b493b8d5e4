# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl fabric map``: draw the fabric as a table for each plane, T0s down and T1s across.

A cell is the link between a T0 and a T1. The switches are at the edges with their own state, and
each T0's row ends with the NIC links of its hosts. If the T1s do not fit the width, or the hosts
the line, healthy elements are summed up and faulty ones are named. Without a fabric there is one
table, with a line for each host; where hosts do not share all networks, it is their graph
(cli/fabric/cables.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import click

from cli.console.client import Client
from cli.console.options import json_option
from cli.console.render import BAD, WARN, colour, print_json
from cli.fabric import cables
from cli.state.faults import summary
from mrcd.model import ElementInfo, MapReply

_CELL = 9
_HEAD = 12
_HOSTS_SHOWN = 4
_WAYS_SHOWN = 12
LEGEND_HOSTS = "x dead, % loss, ~ slow or out of order, ? not probed; `mrcctl fault list` says more"
LEGEND = "numbers are one way in us; x dead, % loss, ~ slow, ? not probed"


@click.command("map")
@json_option
@click.pass_obj
def map_(socket: str, as_json: bool) -> None:
    """Draw planes, switches and links with their state, loss and latency.

    Of hosts without a fabric: their NICs, or what is cabled with what.
    """
    with Client(socket) as client:
        reply = client.fabric_map()
    if as_json:
        print_json(reply)
    else:
        click.echo(render(reply, shutil.get_terminal_size().columns))


def render(reply: MapReply, width: int) -> str:
    """Return a block for each plane; `width` is in characters.

    Without a fabric it is one table, of hosts and planes.
    """
    if reply["networks"]:
        return "\n".join([*cables.render(reply, width), cables.LEGEND, summary(reply["survey"])])
    if not reply["t0"]:
        return _hosts(reply)
    by_name = {element.name: element for element in reply["elements"]}
    blocks = [_plane(reply, by_name, plane, width) for plane in range(reply["planes"])]
    return "\n\n".join([*blocks, "\n".join([LEGEND, summary(reply["survey"])])])


def _hosts(reply: MapReply) -> str:
    """Return a table of hosts and planes, where the NICs are, and lines on what else is wrong."""
    nics: dict[str, dict[int, ElementInfo]] = {}
    rest = []
    names = {host.name for host in reply["hosts"]}
    for element in reply["elements"]:
        host = element.name.rpartition(":")[0]
        if element.kind == "nic" and host in names and " " not in element.name:
            nics.setdefault(host, {})[element.plane] = element
        else:
            rest.append(element)
    wide = max([len("host"), *map(len, names)]) + 2
    lines = ["host".ljust(wide) + "".join(_padded(f"plane {k}", None) for k in _planes(reply))]
    for host in sorted(nics):
        cells = (nics[host].get(k) for k in _planes(reply))
        lines.append(
            host.ljust(wide) + "".join(_padded(*_nic(nic)) if nic else " " * _CELL for nic in cells)
        )
    for element in rest:
        text, shade = _nic(element)
        lines.append("  " + colour(f"{element.name} {text}", shade))
    lossy = [way for way in reply["ways"] if way.lost][:_WAYS_SHOWN]
    lines += [
        f"  {way.sender} to {way.receiver} on plane {way.plane}: {way.lost} of {way.sent} lost"
        for way in lossy
    ]
    return "\n".join([*map(str.rstrip, lines), LEGEND_HOSTS, summary(reply["survey"])])


def _planes(reply: MapReply) -> range:
    return range(reply["planes"])


def _nic(element: ElementInfo) -> tuple[str, str | None]:
    if element.state == "ok":
        return "ok", None
    return ("~ slow", WARN) if element.state == "slow" else _cell(element)


def _plane(reply: MapReply, by_name: dict[str, ElementInfo], plane: int, width: int) -> str:
    from mrcd.fabric import naming  # noqa: PLC0415

    here = [element for element in reply["elements"] if element.plane == plane]
    t0s = [by_name[naming.t0(plane, j)] for j in range(1, reply["t0"] + 1)]
    t1s = [by_name[naming.t1(plane, m)] for m in range(1, reply["t1"] + 1)]
    hosts = {
        j: [by_name[naming.nic(plane, h.name)] for h in reply["hosts"] if h.t0 == j]
        for j in range(1, reply["t0"] + 1)
    }
    bad = [element for element in here if element.state in ("dead", "loss", "slow")]
    probed = any(element.state != "unseen" for element in here)
    health = "healthy" if probed else "not probed"
    head = f"plane {plane}: " + (f"{len(bad)} at fault" if bad else health)
    lines = [colour(head, BAD if bad else None)]
    if _HEAD + _CELL * len(t1s) + 30 > width:
        return "\n".join([*lines, *_summed(t0s, t1s, hosts, by_name, bad)])
    lines.append(" " * _HEAD + "".join(_padded(*_switch(t1)) for t1 in t1s) + "hosts")
    for j, t0 in enumerate(t0s, 1):
        row = _padded(*_switch(t0), width=_HEAD)
        row += "".join(_padded(*_cell(by_name[f"{t0.name}:{t1.name}"])) for t1 in t1s)
        lines.append((row + _nics(hosts[j])).rstrip())
    return "\n".join(lines)


def _summed(
    t0s: Sequence[ElementInfo],
    t1s: Sequence[ElementInfo],
    hosts: dict[int, list[ElementInfo]],
    by_name: dict[str, ElementInfo],
    bad: Sequence[ElementInfo],
) -> list[str]:
    """Return a line for each T0 with its links' latency range, and a line for each fault."""
    lines = []
    for j, t0 in enumerate(t0s, 1):
        links = [by_name[f"{t0.name}:{t1.name}"] for t1 in t1s]
        good = sum(link.state == "ok" for link in links)
        times = [link.latency_us for link in links if link.latency_us is not None]
        span = f" {min(times):.0f} to {max(times):.0f} us" if times else ""
        row = _padded(*_switch(t0), width=_HEAD) + f"{good} of {len(links)} T1 links ok{span}"
        lines.append(f"{row}   {_nics(hosts[j])}".rstrip())
    for element in bad:
        text, shade = _cell(element)
        lines.append("  " + colour(f"{element.name} {text}", shade))
    return lines


def _nics(nics: Sequence[ElementInfo]) -> str:
    """Return the NIC links, faulty ones first; healthy ones beyond the first few are counted."""
    ordered = sorted(nics, key=lambda nic: nic.state == "ok")
    shown = [nic for i, nic in enumerate(ordered) if i < _HOSTS_SHOWN or nic.state != "ok"]
    parts = []
    for nic in shown:
        text, shade = _cell(nic)
        parts.append(colour(f"{nic.name.split(':')[0]} {text}", shade))
    if len(shown) < len(nics):
        parts.append(f"and {len(nics) - len(shown)} more")
    return "  ".join(parts)


def _padded(text: str, shade: str | None, width: int = _CELL) -> str:
    return colour(text.ljust(width), shade)


def _switch(element: ElementInfo) -> tuple[str, str | None]:
    if element.state == "ok":
        return element.name, None
    text, shade = _cell(element)
    return f"{element.name} {text}", shade


def _cell(element: ElementInfo) -> tuple[str, str | None]:
    """Return an element's state, loss or latency in a few characters, and its colour."""
    match element.state:
        case "dead":
            return "x", BAD
        case "loss":
            return f"{element.loss * 100:.{1 if element.loss < 0.0995 else 0}f}%", BAD
        case "slow":
            return f"~{element.latency_us or 0:.0f}", WARN
        case "unseen":
            return "?", WARN
    return "-" if element.latency_us is None else f"{element.latency_us:.0f}", None
