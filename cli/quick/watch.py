# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl watch``: name grey failures between hosts, without mrcd."""

from __future__ import annotations

import json
import signal
import socket as sockets
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cli.console.exits import CommandError, NoSuchObject
from cli.console.options import HELP_NAMES
from cli.console.render import BAD, GOOD, WARN, colour
from cli.state.faults import sentence
from mrcd.model import SCHEMA_VERSION, FaultInfo
from mrcd.wording import duration

if TYPE_CHECKING:
    from mrcd.survey.matrix import Matrix
    from mrcd.survey.named import Changes

PPS, PPS_MAX = 200, 2000


@click.command(context_settings=HELP_NAMES)
@click.argument("nics", nargs=-1, required=True, metavar="NIC...")
@click.option("--name", help="This host's name.  [default: the system's]")
@click.option("--insecure", is_flag=True, help="Do without a secret: anyone can pose as a host.")
@click.option(
    "--pps",
    type=click.IntRange(2, PPS_MAX),
    default=PPS,
    show_default=True,
    help="Probes a second of this host, to all others together.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65534),
    help="UDP port, the same on all hosts; the next one is for probes.  [default: 4976]",
)
@click.option("--for", "seconds", type=click.FloatRange(min=0), help="End after these seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each fault.")
def watch(
    nics: tuple[str, ...],
    name: str | None,
    insecure: bool,
    pps: int,
    port: int | None,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Name what loses, delays or changes packets between hosts, without mrcd, until Ctrl-C.

    Run it on all hosts, with the NICs of each network at the same place; they find each other. They
    need one secret: it is asked for, or made and shown once. An mrcd that runs is not touched, and
    nothing is left behind.
    """
    from cli.quick import command, files  # noqa: PLC0415
    from cli.quick.watching import PORT, Watching  # noqa: PLC0415

    command.refuse_nics(nics)
    for nic in nics:
        try:
            sockets.if_nametoindex(nic)
        except OSError:
            raise NoSuchObject(
                "interface", nic, [each for _index, each in sockets.if_nameindex()]
            ) from None
    own = name or files.name_of(sockets.gethostname())
    command.refuse_name(own)
    secret = b"" if insecure else command.ask_secret()
    watching = Watching(own, nics, secret, pps, port or PORT, _tell)
    _tell(f"watching {', '.join(nics)} as {own}")
    printer = _Printer(as_json)
    ended = _Ended(seconds)
    try:
        watching.run(ended, printer.changed)
    except OSError as error:
        raise CommandError(f"cannot watch: {error.strerror or error}") from error
    printer.close(watching.matrix)


class _Ended:
    """Whether it is time to end: after a signal, or some seconds."""

    def __init__(self, seconds: float | None) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds
        self._signalled = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signal)

    def _signal(self, _number: int, _frame: object) -> None:
        self._signalled = True

    def __call__(self) -> bool:
        return self._signalled or (self._until is not None and time.monotonic() > self._until)


class _Printer:
    """Prints a line when a fault is named, and one when it is gone."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._since: dict[str, float] = {}

    def changed(self, changes: Changes, matrix: Matrix, now_ns: int) -> None:
        """Print what has changed on the list of faults."""
        from mrcd.survey.named import info_of  # noqa: PLC0415

        infos = {each.fault.element: info_of(each, now_ns=now_ns) for each in matrix.list.named}
        for fault in changes.named:
            info = infos.get(fault.element)
            if info is not None:
                self._since[info.element] = time.time() - info.since_s
                self._print("named", info)
        for fault in changes.cleared:
            since = self._since.pop(fault.element.name, time.time())
            if self._as_json:
                _json({"event": "cleared", "element": fault.element.name, "kind": fault.kind})
            else:
                lasted = duration(time.time() - since)
                text = f"{fault.element.name} is well again, after {lasted}"
                click.echo(f"{_clock()} {colour(text, GOOD)}")

    def _print(self, event: str, info: FaultInfo) -> None:
        if self._as_json:
            _json({"event": event, **asdict(info)})
            return
        click.echo(f"{_clock()} {colour(line(info), _shade(info))}")
        for each in info.evidence[1:]:
            click.echo(f"{' ' * 9}{each}")

    def close(self, matrix: Matrix) -> None:
        """Say how it ended."""
        named = ", ".join(each.fault.element.name for each in matrix.list.named)
        _tell(f"ended; {'at fault now: ' + named if named else 'no faults'}")


def line(info: FaultInfo) -> str:
    """Return a fault in one line, with its numbers."""
    numbers = [info.evidence[0]] if info.evidence else []
    numbers.append(f"since {time.strftime('%H:%M:%S', time.localtime(time.time() - info.since_s))}")
    other = [" and ".join(names) for names in info.alternatives[:2]]
    also = f"; cannot be told from {', or from '.join(other)}" if other else ""
    return f"{sentence(info)} ({'; '.join(numbers)}{also})"


def _shade(info: FaultInfo) -> str:
    return WARN if info.kind in ("slow", "repeat", "reorder") else BAD


def _json(told: dict[str, object]) -> None:
    whole = {"schema_version": SCHEMA_VERSION, "time": round(time.time(), 3), **told}
    click.echo(json.dumps(whole))
    sys.stdout.flush()


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _tell(text: str) -> None:
    click.echo(f"{_clock()} {text}", err=True)
