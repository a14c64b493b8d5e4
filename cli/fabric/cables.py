# SPDX-License-Identifier: GPL-2.0-only
"""Draw the graph of hosts that do not share all networks: a line for each host and each network.

Networks follow each other as one walks along the cables, so a ring is read from top to bottom.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cli.console.render import BAD, WARN, colour
from mrcd.model import ElementInfo, HostSpot, MapReply, NetworkInfo, NicSpot

LEGEND = "x dead, % loses, ~ slow, ? not probed; `mrcctl fault list` says more"
_MARKS = {"ok": "---", "dead": "-x-", "loss": "-%-", "slow": "-~-", "unseen": "-?-"}
_STATES = {"dead": "x", "loss": "%", "slow": "~"}
_MOST = 3
"""Hosts on a network that the line of a host names; more are counted."""


def render(reply: MapReply, width: int) -> list[str]:
    """Return the lines of the graph, of at most `width` characters where names allow."""
    networks = list(walk(reply["networks"]))
    lines = ["host, and what its NICs lead to"]
    for host in reply["hosts"]:
        lines += _host(host, networks, reply["loose"], width)
    lines += ["", "network"]
    ends = [_ends(network) for network in networks]
    wide = max((len(one) for one, _other in ends if _other), default=0)
    for network, (one, other) in zip(networks, ends, strict=True):
        lines += _network(network, one, other, wide, width)
    for nic in reply["loose"]:
        carrier = "" if nic.carrier else ", no carrier"
        lines.append(colour(f"{_name(nic):<{wide}} -?- far end unknown{carrier}", WARN))
    shown = {network.name for network in networks}
    rest = [e for e in reply["elements"] if e.name not in shown and e.kind not in ("host", "cable")]
    lines += [_other(element) for element in rest]
    return lines


def walk(networks: Sequence[NetworkInfo]) -> Iterator[NetworkInfo]:
    """Yield the networks in the order of a walk; cables have the end first that is walked from."""
    left = {network.name: network for network in networks}
    at = ""
    while left:
        here = [n for n in left.values() if any(nic.host == at for nic in n.nics)]
        network = min(here, key=lambda n: len(n.nics)) if here else next(iter(left.values()))
        del left[network.name]
        if len(network.nics) == 2:
            one, other = network.nics
            if other.host == at:
                one, other = other, one
            at = other.host
            network = replace(network, nics=[one, other])
        yield network


def _host(
    host: HostSpot, networks: Sequence[NetworkInfo], loose: Sequence[NicSpot], width: int
) -> list[str]:
    parts: dict[str, str] = {}
    for network in networks:
        for nic in network.nics:
            if nic.host == host.name:
                others = [each.host for each in network.nics if each.host != host.name]
                rest = f" +{len(others) - _MOST}" if len(others) > _MOST else ""
                mark = _STATES.get(network.state, "")
                down = "" if nic.carrier else " down"
                parts[nic.nic] = (
                    f"{nic.nic}{mark and ' ' + mark}{down} {','.join(others[:_MOST])}{rest}"
                )
    for nic in loose:
        if nic.host == host.name:
            parts[nic.nic] = f"{nic.nic} ?" + ("" if nic.carrier else " down")
    words = [parts[nic].replace(" ", "\0") for nic in sorted(parts, key=lambda n: (len(n), n))]
    if host.forwards:
        words.append("(hands\0packets\0on)")
    mark = _STATES.get(host.state or "", " ")
    text = "  ".join(words) or "-"
    found = textwrap.wrap(
        text,
        width,
        initial_indent=f"{mark} {host.name:<10} ",
        subsequent_indent=" " * 13,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [colour(line.replace("\0", " "), BAD if host.state else None) for line in found]


def _ends(network: NetworkInfo) -> tuple[str, str]:
    if len(network.nics) != 2:
        return network.name, ""
    one, other = network.nics
    return _name(one), _name(other)


def _network(network: NetworkInfo, one: str, other: str, wide: int, width: int) -> list[str]:
    """Return the line of a network, or the lines of one with many NICs."""
    state = _state(network)
    shade = BAD if network.state in ("dead", "loss") else None if network.state == "ok" else WARN
    if other:
        mark = _MARKS[network.state]
        if network.towards is not None:
            mark = mark[:2] + ">" if network.nics[1].host == network.towards else "<" + mark[1:]
        return [colour(f"{one:<{wide}} {mark} {other}{state}", shade)]
    names = "  ".join(map(_name, network.nics))
    lines = textwrap.wrap(
        names, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    return [colour(f"switched, {len(network.nics)} NICs{state}", shade), *lines]


def _state(network: NetworkInfo) -> str:
    words = []
    rates = [nic.rate_mbps for nic in network.nics if nic.rate_mbps]
    if rates:
        words.append(_rate(min(rates)))
    if network.state == "loss":
        words.append(f"loses {100 * network.loss:.1f} %")
        if network.towards is not None:
            words[-1] += f" to {network.towards}"
    elif network.state != "ok":
        words.append("not probed" if network.state == "unseen" else network.state)
    words += [f"{_name(nic)} has no carrier" for nic in network.nics if not nic.carrier]
    return "  " + ", ".join(words) if words else ""


def _rate(mbps: int) -> str:
    return f"{mbps / 1000:g} Gb/s" if mbps >= 1000 else f"{mbps} Mb/s"


def _name(nic: NicSpot) -> str:
    return f"{nic.host}:{nic.nic}"


_WORDS: Mapping[str, str] = {"dead": "is dead", "slow": "is slow", "unseen": "is not probed"}


def _other(element: ElementInfo) -> str:
    words = _WORDS.get(element.state, f"loses {100 * element.loss:.1f} %")
    return "  " + colour(f"{element.name} {words}", BAD)
