# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl status``: the state of the daemon, mrc0, the planes and the data path."""

from __future__ import annotations

import click

from cli.console.client import Client
from cli.console.exits import DEGRADED, Unreachable
from cli.console.options import awaited, json_option, wait_option
from cli.console.render import BAD, GOOD, WARN, bit_rate, colour, print_json, table
from mrcd.model import PlaneInfo, Status
from mrcd.wording import duration

PLANE_COLUMNS = (
    "PLANE",
    "INTERFACE",
    "STATE",
    "GATEWAY",
    "AT",
    "TX PACKETS",
    "TX BYTES",
    "RX PACKETS",
    "RX BYTES",
)
STATE_COLOURS = {"ok": GOOD, "degraded": BAD, "starting": WARN, "stopping": WARN}


@click.command()
@wait_option(
    "Return when all is well, or after this time with what is not; also while mrcd starts."
)
@json_option
@click.pass_obj
def status(socket: str, wait: float | None, as_json: bool) -> None:
    """Show the daemon, mrc0, the planes and the data path; exit 6 when degraded."""
    answer = _asked(socket) if wait is None else _awaited(socket, wait)
    if as_json:
        print_json(answer)
    else:
        click.echo(render(answer))
    if answer.state == "degraded" or (wait is not None and answer.state != "ok"):
        click.get_current_context().exit(DEGRADED)


def _asked(socket: str) -> Status:
    with Client(socket) as client:
        return client.status()


def _awaited(socket: str, seconds: float) -> Status:
    """Return the first status that is ok, or the last one within this time.

    Raises Unreachable if mrcd does not answer then.
    """

    def ask() -> Status | Unreachable:
        try:
            return _asked(socket)
        except Unreachable as error:
            return error

    def is_ok(answer: Status | Unreachable) -> bool:
        return isinstance(answer, Status) and answer.state == "ok"

    answer = awaited(ask, is_ok, seconds)
    if isinstance(answer, Unreachable):
        raise answer
    return answer


def render(answer: Status) -> str:
    """Return the status as text."""
    state = colour(answer.state, STATE_COLOURS[answer.state])
    up = f"up {duration(answer.uptime_s)} (pid {answer.pid})"
    lines = [f"mrcd {answer.version} on {answer.host}: {state}, {up}"]
    lines += [f"  {colour('!', BAD)} {reason}" for reason in answer.reasons]
    lines += [f"  {colour('?', WARN)} {warning}" for warning in answer.warnings]
    path = answer.datapath
    lines += [
        f"  mrc0       {answer.mrc0.name}, mtu {answer.mrc0.mtu}, {_speed(answer)}"
        + (" ".join(answer.mrc0.addresses) or "no address"),
        f"  routing    {path.routing}" + _cells(answer),
        f"  data path  xdp {path.xdp}, tc {path.tc}, tick {path.tick}, pinned in {path.bpffs}",
        f"  peers      {answer.peers_up} of {answer.peers_total} established" + _admitted(answer),
        f"  keys       {_keys(answer)}",
        "",
        planes_table(answer.planes),
    ]
    return "\n".join(lines)


def _speed(answer: Status) -> str:
    speed = answer.mrc0.speed_mbps
    return f"{bit_rate(speed * 1e6)}, " if speed else ""


def _keys(answer: Status) -> str:
    if answer.secured:
        return f"secured, public key {answer.public_key}" + _known_by(answer)
    return colour("insecure", BAD) + ": peers are not authenticated (insecure = true)"


def _known_by(answer: Status) -> str:
    by = {"secret": ", known by the secret", "invitation": ", known by its invitation"}
    out = f"; revoked: {', '.join(answer.revoked)}" if answer.revoked else ""
    return by.get(answer.known_by, "") + out


def _admitted(answer: Status) -> str:
    return f", {answer.peers_admitted} of them admitted" if answer.peers_admitted else ""


def _cells(answer: Status) -> str:
    longest = answer.datapath.cell_bytes
    if longest is None:
        return ""
    cells = ", cells in UDP" if answer.datapath.cell_envelope == "udp" else ", cells"
    single = longest < 2 * answer.mrc0.mtu
    return f"{cells} of one packet" if single else f"{cells} up to {longest / 1000:.0f} kB"


def plane_state(plane: PlaneInfo) -> str:
    """Return a plane's state in a word or two: ``usable``, or why it is not."""
    if plane.drained:
        return "drained"
    if plane.usable and plane.sick is not None:
        return "usable, sick"
    if plane.usable and plane.wrong is not None:
        return "no path" if plane.unreached else "no neighbour"
    if plane.usable and plane.standing_in:
        return "standby, in use"
    if plane.usable:
        return "standby" if plane.standby else "usable"
    if not plane.up:
        return "down"
    if not plane.carrier:
        return "no carrier"
    if plane.gateway and plane.gateway_mac is None:
        return "no gateway"
    return "no address" if plane.sick is None else "sick"


def planes_table(planes: list[PlaneInfo]) -> str:
    """Return a table with a row for each plane."""
    return table(
        PLANE_COLUMNS,
        [
            [
                plane.index,
                plane.interface,
                plane_state(plane),
                plane.gateway,
                plane.gateway_mac,
                plane.tx_packets,
                plane.tx_bytes,
                plane.rx_packets,
                plane.rx_bytes,
            ]
            for plane in planes
        ],
        [{2: GOOD if plane.usable and plane.wrong is None else BAD} for plane in planes],
    )


def plane_reasons(planes: list[PlaneInfo]) -> list[str]:
    """Return a line for each plane that does not carry what it should, or what its NIC says."""
    wrong = [
        f"{colour('!', BAD)} plane {plane.index}: {plane.wrong}"
        for plane in planes
        if plane.wrong is not None
    ]
    return wrong + [
        f"{colour('!', WARN)} plane {plane.index}: {plane.measured}"
        for plane in planes
        if plane.measured is not None
    ]
