# SPDX-License-Identifier: GPL-2.0-only
"""Record a flow between two hosts of a lab while faults come and go."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from bench.instruments import simultaneous, stream
from bench.instruments.metrics import Arrivals, Ints
from cli.lab import lab, processes, state
from cli.lab.injection import Applied
from cli.lab.multiqueue import ONE_QUEUE, QDISCS, HostNics
from mrcd.fabric import description
from mrcd.fabric.description import Fabric

FRAMINGS = ("auto", "cell", "mrc")
"""What `framing` may be in a host's configuration."""
ENVELOPES = ("udp", "ipv6")
"""What `cell_envelope` may be, besides auto."""

_PORT = 5301
IPERF3_PORT = 5302
_START_DEADLINE_S = 10.0
_ERROR_CHARACTERS = 500  # the tail of a failed command's output; iperf3 prints its reason last
_DRAIN_DEADLINE_S = 30.0


class BenchFailed(Exception):
    """A measurement that could not be taken; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Step:
    """An action on the lab, `at_s` seconds after the flow began."""

    at_s: float
    act: Callable[[], Applied]


@dataclass(frozen=True, slots=True)
class Route:
    """The route of a flow: the address it connects to, the protocol, both hosts, and the port."""

    name: str
    address: str
    listen: str
    mptcp: bool = False
    source: str = "h1"
    target: str = "h2"
    port: int = _PORT


@dataclass(frozen=True, slots=True)
class Recording:
    """The record of one flow. `retransmits` are (time, total so far)."""

    arrivals: Arrivals
    began_ns: int
    ended_ns: int
    applied: tuple[Applied, ...]
    retransmits: tuple[tuple[int, int], ...]
    subflows: int
    sent: int
    received: int
    error: str | None

    @property
    def alive(self) -> bool:
        """Return whether the connection lasted to the end and everything sent arrived."""
        return self.error is None and self.sent == self.received


def mrc0_route(name: str, target: str = "h2") -> Route:
    """Return the route over mrc0 to a host."""
    address = str(state.read_fabric(name).host(target).addresses[0].ip)
    return Route("mrcd", address, address, target=target)


def plane_route(name: str, plane: int) -> Route:
    """Return the route of plain TCP over one plane, in which ECMP picks the T1."""
    fabric = state.read_fabric(name)
    address = str(fabric.address4(fabric.host("h2"), plane))
    return Route("TCP, ECMP", address, address)


def mptcp_route(name: str) -> Route:
    """Return the route of MPTCP over all planes, begun on plane 0; call `prepare_mptcp` first."""
    # A listener bound to one address refuses the subflows to the others.
    return replace(plane_route(name, 0), name="MPTCP", listen="0.0.0.0", mptcp=True)


def has_mptcp() -> bool:
    """Return whether this kernel supports MPTCP."""
    try:
        stream.tcp_socket(mptcp=True).close()
    except OSError:
        return False
    return True


def prepare_mptcp(name: str) -> None:
    """Configure MPTCP for best results: h2 announces its addresses, and h1 connects to each.

    Black-hole detection is off, because it would disable MPTCP for a while after a fault.
    """
    fabric = state.read_fabric(name)
    for host in ("h1", "h2"):
        for file, value in (("enabled", 1), ("blackhole_timeout", 0)):
            inside(name, host, "sh", "-c", f"echo {value} > /proc/sys/net/mptcp/{file}")
        shell(name, host, "ip mptcp limits set subflow 8 add_addr_accepted 8")
        shell(name, host, "ip mptcp endpoint flush")
    for plane in range(1, fabric.planes):
        address = str(fabric.address4(fabric.host("h2"), plane))
        shell(name, "h2", f"ip mptcp endpoint add {address} dev plane{plane} signal")


def inside(name: str, host: str, *command: str, timeout_s: float = 60) -> str:
    """Return the output of a command in a host, with its own /sys and /proc/net, or BenchFailed."""
    line, environment = lab.command_in(name, host, command)
    done = subprocess.run(
        line, capture_output=True, text=True, env=environment, timeout=timeout_s, check=False
    )
    if done.returncode:
        words = (done.stderr or done.stdout).strip()[-_ERROR_CHARACTERS:]
        raise BenchFailed(f"{' '.join(command)} in {host}: {words}")
    return done.stdout


def shell(name: str, host: str, line: str) -> str:
    """Call `inside` for a command line whose words contain no blanks."""
    return inside(name, host, *line.split())


def fault(name: str, element: str, action: str, at_s: float) -> Step:
    """Return a step that makes or clears a fault of the lab."""
    return Step(at_s, lambda: lab.fault(name, element, action))


def faults(name: str, changes: Mapping[str, str], at_s: float) -> Step:
    """Return a step that makes several faults of the lab at once: action by element."""
    return Step(at_s, lambda: simultaneous.faults(name, changes))


def command(name: str, host: str, line: str, at_s: float) -> Step:
    """Return a step that runs a command in a host."""

    def act() -> Applied:
        began_ns = time.monotonic_ns()
        shell(name, host, line)
        return Applied(began_ns, time.monotonic_ns())

    return Step(at_s, act)


def run(
    name: str, route: Route, seconds: float, steps: Sequence[Step] = (), pace_mbps: float = 0
) -> Recording:
    """Send along a route for `seconds`, doing the steps meanwhile; return the record.

    `pace_mbps` is the most that the connection sends, in Mb/s; 0 is no limit.
    """
    options, port = ["--mptcp"] if route.mptcp else [], str(route.port)
    how = [str(seconds), *options, *(["--pace", str(pace_mbps)] if pace_mbps else [])]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        record = Path(folder, "arrivals")
        receiver = stack.enter_context(
            talking(f"{name}-{route.target}", "recv", route.listen, port, str(record), *options)
        )
        receiver.read(_START_DEADLINE_S)
        sender = stack.enter_context(
            talking(f"{name}-{route.source}", "send", route.address, port, *how)
        )
        began_ns = int(sender.read(_START_DEADLINE_S)["began_ns"])
        applied = []
        for step in steps:
            wait_until(began_ns + int(step.at_s * 1e9))
            with stepping_back():
                applied.append(step.act())
        result = sender.read(seconds + _DRAIN_DEADLINE_S)
        got = receiver.read(_DRAIN_DEADLINE_S)
        times, sizes = read_pairs(record)
    return Recording(
        arrivals=Arrivals(times, sizes),
        began_ns=began_ns,
        ended_ns=began_ns + int(seconds * 1e9),
        applied=tuple(applied),
        retransmits=tuple((at, count) for at, count in result["retransmits"]),
        subflows=result["subflows"],
        sent=result["sent"],
        received=got["received"],
        error=result["error"] or got["error"],
    )


@contextlib.contextmanager
def stepping_back() -> Iterator[None]:
    """Lower our priority in the block: preparing a fault takes some 20 ms of a core."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, before + 10)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def run_udp(name: str, route: Route, seconds: float, mbps: float, size: int) -> UdpRecording:
    """Send numbered datagrams along a route at a steady pace."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        record = Path(folder, "numbers")
        receiver = stack.enter_context(
            talking(f"{name}-{route.target}", "udp-recv", route.listen, str(_PORT), str(record))
        )
        receiver.read(_START_DEADLINE_S)
        pace = ("--mbps", str(mbps), "--size", str(size))
        sender = stack.enter_context(
            talking(
                f"{name}-{route.source}", "udp-send", route.address, str(_PORT), str(seconds), *pace
            )
        )
        sender.read(_START_DEADLINE_S)
        sent = sender.read(seconds + _DRAIN_DEADLINE_S)
        overrun = receiver.read(_DRAIN_DEADLINE_S)["overrun"]
        numbers = np.fromfile(record, dtype=np.uint64).astype(np.int64)
    return UdpRecording(sent["sent"], sent["mbps"], numbers, overrun)


def run_requests(name: str, route: Route, seconds: float, size: int) -> Ints:
    """Send requests of `size` bytes along a route one after another; return the ns of each."""
    port = str(_PORT + 2)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        record = Path(folder, "took")
        server = stack.enter_context(
            talking(f"{name}-{route.target}", "answer", route.listen, port, "-")
        )
        server.read(_START_DEADLINE_S)
        more = ("--size", str(size), "--record", str(record))
        asking = stack.enter_context(
            talking(f"{name}-{route.source}", "ask", route.address, port, str(seconds), *more)
        )
        asking.read(_START_DEADLINE_S)
        asking.read(seconds + _DRAIN_DEADLINE_S)
        return np.fromfile(record, dtype=np.uint64).astype(np.int64)


@dataclass(frozen=True, slots=True)
class UdpRecording:
    """Datagrams 0 .. sent-1 in order of arrival; `overrun` counts those the socket dropped."""

    sent: int
    mbps: float
    numbers: Ints
    overrun: int


def read_pairs(record: Path) -> tuple[Ints, Ints]:
    """Return the times and sizes in a receiver's record."""
    pairs = np.fromfile(record, dtype=np.uint64).astype(np.int64).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def wait_until(when_ns: int) -> None:
    """Sleep until a time of CLOCK_MONOTONIC."""
    left_ns = when_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)


@dataclass(frozen=True, slots=True)
class Talker:
    """A running stream.py in a namespace."""

    process: subprocess.Popen[bytes]
    what: str

    def read(self, deadline_s: float) -> dict[str, Any]:
        """Return the next object that it prints; BenchFailed if there is none in time."""
        out = self.process.stdout
        assert out is not None
        end = time.monotonic() + deadline_s
        line = b""
        os.set_blocking(out.fileno(), False)
        while not line.endswith(b"\n"):
            chunk = os.read(out.fileno(), 1 << 20) if self._readable(end) else None
            if not chunk:
                ended = "ended" if chunk is not None else f"said nothing within {deadline_s:.0f} s"
                raise BenchFailed(f"{self.what} {ended}: {self._complaint()}")
            line += chunk
        message: dict[str, Any] = json.loads(line)
        return message

    def _readable(self, end: float) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0])

    def _complaint(self) -> str:
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        text = self.process.stderr.read() or b""
        return text.decode(errors="replace").strip() or "no message"


def talking(namespace: str, *arguments: str) -> contextlib.AbstractContextManager[Talker]:
    """Run stream.py in a namespace; end it afterwards."""
    return talker(namespace, "stream", [sys.executable, stream.__file__], *arguments)


@contextlib.contextmanager
def talker(namespace: str, name: str, program: Sequence[str], *arguments: str) -> Iterator[Talker]:
    """Run a program that prints JSON as stream.py does; end it afterwards."""
    process = processes.spawn(
        namespace, [*program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        try:
            yield Talker(process, f"{name} {arguments[0]} in {namespace}")
        finally:
            process.kill()


@contextlib.contextmanager
def lab_up(
    name: str, *, mtu: int, rate_mbps: int, daemons: bool = True, settings: str = ""
) -> Iterator[str]:
    """Build a lab of 2 hosts and 4 planes; take it down at the end in any case."""
    fabric = description.generate(name=name, mtu=mtu, rate_mbps=rate_mbps)
    with fabric_up(fabric, daemons=daemons, settings=settings):
        yield name


@contextlib.contextmanager
def fabric_up(
    fabric: Fabric,
    *,
    daemons: bool = True,
    settings: str = "",
    host_nics: HostNics = ONE_QUEUE,
) -> Iterator[str]:
    """Build a lab of this fabric; take it down at the end in any case.

    `settings` is TOML for every host's mrcd, such as `framed` returns.
    """
    if fabric.name in state.labs():  # a run that was killed has left it
        lab.down(fabric.name)
    lab.up(fabric, daemons=daemons, settings=settings, host_nics=host_nics)
    try:
        yield fabric.name
    finally:
        lab.down(fabric.name)


def nic_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say of what kind the NICs of a lab's hosts are."""
    parser.add_argument("--queues", type=int, default=1, help="queues of the hosts' NICs")
    parser.add_argument("--qdisc", choices=QDISCS, default="", help="their queueing discipline")


def framing_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that says in what data goes; `framed` takes its value."""
    about = "framing of mrcd's data, or the envelope of cells"
    parser.add_argument("--framing", choices=(*FRAMINGS, *ENVELOPES), help=about)


def framed(framing: str | None, **more: str | int) -> str:
    """Return settings that choose mrcd's framing of data, and more of its `[transport]`.

    An envelope stands for cells in that envelope.
    """
    wanted = dict(more)
    if framing in ENVELOPES:
        wanted = {"framing": "cell", "cell_envelope": framing, **more}
    elif framing:
        wanted = {"framing": framing, **more}
    return tomli_w.dumps({"transport": wanted}) if wanted else ""


def iperf3(
    name: str, route: Route, seconds: float, *, connections: int = 1, skip_s: float = 1
) -> float:
    """Return the goodput of cubic TCP at iperf3's receiver, in bits per second."""
    with iperf3_server(name, route):
        output = inside(
            name, "h1",
            *("iperf3", "-J", "-C", "cubic", "-c", route.address, "-p", str(IPERF3_PORT)),
            *("-t", str(seconds), "-O", str(skip_s), "-P", str(connections)),
            timeout_s=seconds + skip_s + 30,
        )  # fmt: skip
    report = json.loads(output)
    return float(report["end"]["sum_received"]["bits_per_second"])


@contextlib.contextmanager
def iperf3_server(name: str, route: Route) -> Iterator[None]:
    """Run an iperf3 server in h2; the block begins when it listens."""
    server = processes.spawn(
        f"{name}-h2",
        ["iperf3", "-s", "-B", route.address, "-p", str(IPERF3_PORT)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with server:
        try:
            wait_listening(f"{name}-h2", IPERF3_PORT)
            yield
        finally:
            server.kill()


def wait_listening(namespace: str, port: int) -> None:
    """Wait until a process listens on a TCP port there; BenchFailed if none does in time."""
    end = time.monotonic() + _START_DEADLINE_S
    listening = f":{port:04X}".encode()
    line = ["cat", "/proc/net/tcp", "/proc/net/tcp6"]
    while True:
        reader = processes.spawn(namespace, line, stdout=subprocess.PIPE)
        with reader:
            output, _ = reader.communicate()
        if any(row.split()[1].endswith(listening) for row in output.splitlines()):
            return
        if time.monotonic() > end:
            raise BenchFailed(f"nothing listens on port {port} in {namespace}")
        time.sleep(0.02)
