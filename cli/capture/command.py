# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl capture``: the packets on the planes, each with what the data path knows about it."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO, TYPE_CHECKING

import click

from cli.console.client import Captured, Client
from cli.console.exits import CommandError
from cli.console.options import json_option, peer_option
from cli.console.planeargument import Plane
from cli.console.render import print_json_line
from mrcd import __version__
from mrcd.model import Direction

if TYPE_CHECKING:
    from cli.capture.packets import Packet
    from mrcd.linux.ringbuf import RingBuffer

LOOK_S = 0.02
"""Seconds between two reads of the ring buffer."""
SNAPLEN = 262_144
SNAPLEN_TEXT = 192  # our headers and those of the application's packet

Show = Callable[["Packet"], None]


@click.command()
@click.option(
    "-w",
    "--write",
    "path",
    metavar="FILE",
    help="Write pcapng to FILE instead of printing lines; - is standard output.",
)
@click.option(
    "--plane",
    type=Plane(),
    metavar="PLANE",
    help="Only packets of this plane: its number (2), p2 or its NIC (eth2).",
)
@peer_option
@click.option(
    "-Q", "--direction", type=click.Choice(["tx", "rx"]), help="Only packets sent, or received."
)
@click.option("-c", "--count", type=click.IntRange(1), metavar="N", help="Stop after N packets.")
@click.option(
    "-s",
    "--snaplen",
    type=click.IntRange(0, SNAPLEN),
    metavar="BYTES",
    help="Keep at most this much of each packet in the file; 0, the default, keeps all.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Stop after this number of seconds.",
)
@click.option(
    "--survey", is_flag=True, help="Include survey probes: two records for each of survey_pps."
)
@json_option
@click.pass_obj
def capture(
    socket: str,
    path: str | None,
    plane: int | None,
    peer: str | None,
    direction: Direction | None,
    count: int | None,
    snaplen: int | None,
    seconds: float | None,
    survey: bool,
    as_json: bool,
) -> None:
    """Show or write every packet sent or received on a plane, until interrupted.

    tcpdump cannot see these packets: they are redirected, or taken by XDP. Each packet is shown
    with its path, peer, QP and PSN, whether it is a retransmission, and its verdict: in order,
    reordered, duplicate, or the counter of its drop.

    With -w FILE the packets are written as pcapng for Wireshark and tshark, and these details
    become packet comments (wireshark/mrc.lua shows them). --json prints one packet a line.
    """
    if path is not None and as_json:
        raise click.UsageError("--json prints lines and --write writes a file: choose one")
    if path == "-" and sys.stdout.isatty():
        raise click.UsageError("pcapng is binary and not for a terminal: pipe it, or name a file")
    wanted = SNAPLEN_TEXT if path is None else snaplen or SNAPLEN
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(socket))
        begun = client.capture(
            snaplen=wanted, plane=plane, peer=peer, direction=direction, survey=survey
        )
        watch = stack.enter_context(contextlib.closing(_Watch(client, begun, count, seconds)))
        stack.enter_context(_signals(watch))
        click.echo(f"capturing on {', '.join(begun.capture.interfaces)}", err=True)
        if path is None:
            show = _json_line if as_json else _liner()
            watch.run(show, sys.stdout.flush)
        else:
            _write(watch, stack.enter_context(_opened(path)), wanted)
        watch.say_how_many()
    if watch.ended is not None:
        raise watch.ended


class _Watch:
    """A running capture, which reads the ring buffer until it is ended."""

    def __init__(
        self, client: Client, begun: Captured, count: int | None, seconds: float | None
    ) -> None:
        from cli.capture.packets import Packets  # noqa: PLC0415  # reads C headers
        from mrcd.linux.ringbuf import RingBuffer  # noqa: PLC0415
        from mrcd.wire.abi import CAPTURE  # noqa: PLC0415

        self._client = client
        self._left = count
        self._until = None if seconds is None else time.monotonic() + seconds
        self.info = begun.capture
        self.begun_ns = time.time_ns()
        self._packets = Packets(self.info, time.time_ns() - time.monotonic_ns())
        self._ring: RingBuffer = RingBuffer(begun.records, begun.ring_bytes)
        self._state = mmap.mmap(begun.state, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ)
        self._layout = CAPTURE.structs["mrc_capturing"]
        os.close(begun.records)
        os.close(begun.state)
        self.seen = 0
        self.interrupted = False
        self.ended: CommandError | None = None  # the reason, if the daemon ended the capture

    def run(self, show: Show, flush: Callable[[], object]) -> None:
        """Pass packets to `show` until interrupted, or until the count or the time is reached."""
        while not self._over():
            self._look(show, flush, held=True)
        self._look(show, flush, held=False)

    def _over(self) -> bool:
        """Return whether the capture is over; wait up to LOOK_S if it is not."""
        late = self._until is not None and time.monotonic() >= self._until
        if self.interrupted or self._left == 0 or late:
            return True
        left = LOOK_S if self._until is None else self._until - time.monotonic()
        try:
            self._client.wait_for_end(max(0.0, min(LOOK_S, left)))
        except CommandError as error:
            self.ended = error
            return True
        return False

    def _look(self, show: Show, flush: Callable[[], object], *, held: bool) -> None:
        from cli.capture.packets import HOLD_NS  # noqa: PLC0415

        before = time.monotonic_ns() - HOLD_NS if held else None
        self._packets.add(self._ring.take())
        for packet in self._packets.release(before):
            if self._left == 0:
                return
            show(packet)
            self.seen += 1
            if self._left is not None:
                self._left -= 1
        flush()

    def lost(self) -> tuple[int, ...]:
        """Return the number of packets lost to a full ring buffer, by plane."""
        return self._layout.unpack_array(self._state[: self._layout.size], "lost")

    def say_how_many(self) -> None:
        """Print the packet counts on standard error, as tcpdump does."""
        click.echo(f"{self.seen} packets captured", err=True)
        if lost := sum(self.lost()):
            click.echo(
                f"{lost} packets not captured: the ring buffer was full; narrow the capture "
                "with --plane, --peer, --direction or a smaller --snaplen",
                err=True,
            )

    def close(self) -> None:
        """Unmap the ring buffer and the counters."""
        self._ring.close()
        self._state.close()


def _liner() -> Show:
    from cli.capture.packets import line  # noqa: PLC0415

    return lambda packet: click.echo(line(packet))


def _json_line(packet: Packet) -> None:
    print_json_line(packet.about)


def _write(watch: _Watch, file: IO[bytes], snaplen: int) -> None:
    from cli.capture.packets import comment  # noqa: PLC0415
    from cli.capture.pcapng import Writer  # noqa: PLC0415

    info = watch.info
    interfaces = [(name, f"plane {k} of {info.host}") for k, name in enumerate(info.interfaces)]

    def show(packet: Packet) -> None:
        about = packet.about
        plane = min(about.plane, len(interfaces) - 1)
        writer.write(
            plane, about.time_ns, packet.data[:snaplen], about.length, about.direction,
            comment(about),
        )  # fmt: skip

    try:
        writer = Writer(
            file, interfaces, snaplen, f"mrcctl {__version__}", f"captured by mrcd on {info.host}"
        )
        watch.run(show, file.flush)
        writer.finish(watch.begun_ns, time.time_ns(), watch.lost())
    except BrokenPipeError:  # the reader of the pipe has exited, as `head` does
        with contextlib.suppress(OSError):
            file.close()
    except OSError as error:
        raise CommandError(f"cannot write the capture: {error.strerror}") from error


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """Open the output file with mode 0600, because packets contain payload."""
    if path == "-":
        yield sys.stdout.buffer
        return
    try:
        file = open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):  # a failed write has been reported already
            file.close()


@contextlib.contextmanager
def _signals(watch: _Watch) -> Iterator[None]:
    """End the capture between two packets on SIGINT or SIGTERM; a second one ends the process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def interrupt(number: int, _frame: FrameType | None) -> None:
        watch.interrupted = True
        signal.signal(number, signal.SIG_DFL)

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
