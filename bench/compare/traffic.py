# SPDX-License-Identifier: GPL-2.0-only
"""Run flows between the hosts of a lab at once over one competitor, and record the arrivals."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.compare import programs
from bench.compare.routes import Competitor
from bench.instruments import counters, flow
from bench.instruments.flow import BenchFailed, Step, Talker
from bench.instruments.metrics import Arrivals, Ints, S, last_at
from bench.instruments.processor import Processor
from cli.lab.injection import Applied

PORT = 5310
_ASK_PORT = 5311
_READY_S = 15.0
_DRAIN_S = 10.0
_ID_SHIFT = 16
_LEAD_S = 0.5  # the time from the start of a load to the first request


def counted(connections: int) -> str:
    """Return the name of a case with this number of connections."""
    return "1 connection" if connections == 1 else f"{connections} connections"


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow between two hosts; `port` is the first source port, 0 lets the kernel choose."""

    source: str
    target: str
    connections: int = 1
    port: int = 0


@dataclass(frozen=True, slots=True)
class Connection:
    """The record of one connection."""

    flow: int
    sent: int
    received: int
    error: int
    arrivals: Arrivals

    @property
    def alive(self) -> bool:
        """Return whether it lasted to the end, and everything sent arrived."""
        return self.error == 0 and self.sent == self.received


@dataclass(frozen=True, slots=True)
class Traffic:
    """The record of all flows: `retransmits` are (time, total so far), `busy` the CPUs' share."""

    began_ns: int
    ended_ns: int
    connections: tuple[Connection, ...]
    applied: tuple[Applied, ...]
    retransmits: tuple[tuple[int, int], ...]
    busy: float

    def bps(self, start_ns: int, end_ns: int, which: int | None = None) -> float:
        """Return the goodput of all flows, or of one."""
        return sum(
            connection.arrivals.bps(start_ns, end_ns)
            for connection in self.connections
            if which in (None, connection.flow)
        )

    def after(self, warm_s: float, which: int | None = None) -> float:
        """Return the goodput of all flows, or of one, from `warm_s` after the start to the end."""
        return self.bps(self.began_ns + int(warm_s * S), self.ended_ns, which)

    def arrivals(self) -> Arrivals:
        """Return the arrivals of all connections in time order."""
        times = np.concatenate([each.arrivals.times_ns for each in self.connections])
        sizes = np.concatenate([each.arrivals.sizes for each in self.connections])
        order = np.argsort(times, kind="stable")
        return Arrivals(times[order], sizes[order])

    def longest_gap_ns(self, start_ns: int, end_ns: int) -> int:
        """Return the longest time in which some connection received nothing."""
        return max(each.arrivals.longest_gap_ns(start_ns, end_ns) for each in self.connections)

    def resent(self, start_ns: int, end_ns: int) -> int:
        """Return the segments retransmitted between two times, to the nearest samples."""
        return last_at(self.retransmits, end_ns) - last_at(self.retransmits, start_ns)

    @property
    def broken(self) -> int:
        """Return how many connections did not survive."""
        return sum(not each.alive for each in self.connections)


@dataclass(slots=True)
class Resent:
    """A sampler of the retransmissions by the hosts' TCP."""

    namespaces: Sequence[str]
    samples: list[tuple[int, int]] = field(default_factory=list)
    _first: int | None = None

    def look(self, now_ns: int) -> None:
        """Take a sample."""
        total = sum(counters.tcp_retransmits(namespace) for namespace in self.namespaces)
        self._first = total if self._first is None else self._first
        self.samples.append((now_ns, total - self._first))


def run(
    name: str,
    competitor: Competitor,
    flows: Sequence[Flow],
    seconds: float,
    steps: Sequence[Step] = (),
    rate_bps: float = 0,
    begun: threading.Event | None = None,
    cpus: Mapping[str, int] | None = None,
) -> Traffic:
    """Send on all flows for `seconds`, and do the steps meanwhile.

    `rate_bps` limits each connection; `begun` is set when they send. `cpus` has the CPU of each
    host whose processes have one of their own.
    """
    sources = sorted({each.source for each in flows})
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        sinks = _sinks(stack, name, competitor, flows, Path(folder))
        targets = list(dict.fromkeys(each.target for each in flows))
        senders = {
            host: _sender(stack, name, competitor, flows, host, seconds, rate_bps)
            for host in sources
        }
        for host, talker in (*senders.items(), *zip(targets, sinks, strict=True)):
            if cpus:
                os.sched_setaffinity(talker.process.pid, {cpus[host]})
        for sender in senders.values():
            sender.read(_READY_S)
        resent = Resent([f"{name}-{host}" for host in sources])
        processor = Processor()
        began_ns = time.monotonic_ns()
        resent.look(began_ns)
        for sender in senders.values():
            sender.process.send_signal(signal.SIGUSR1)
        if begun is not None:
            begun.set()
        applied = list(_stepped(steps, began_ns, resent))
        said = [sender.read(seconds + _DRAIN_S) for sender in senders.values()]
        busy = processor.busy()
        resent.look(time.monotonic_ns())
        sent = {entry[0]: entry for each in said for entry in each["sent"]}
        received = {entry[0]: entry for sink in sinks for entry in _drained(sink)["received"]}
        records = [np.fromfile(file, dtype=np.int64) for file in Path(folder).iterdir()]
    return Traffic(
        began_ns=began_ns,
        ended_ns=began_ns + int(seconds * S),
        connections=tuple(connections(sent, received, records)),
        applied=tuple(applied),
        retransmits=tuple(resent.samples),
        busy=busy,
    )


def _stepped(steps: Sequence[Step], began_ns: int, resent: Resent) -> Iterator[Applied]:
    for step in steps:
        flow.wait_until(began_ns + int(step.at_s * S))
        with flow.stepping_back():
            resent.look(time.monotonic_ns())
            yield step.act()


def _sinks(
    stack: contextlib.ExitStack,
    name: str,
    competitor: Competitor,
    flows: Sequence[Flow],
    folder: Path,
) -> list[Talker]:
    """Start a listening sink in every host that is a target."""
    expected: Counter[str] = Counter()
    for each in flows:
        expected[each.target] += each.connections
    sinks = []
    for host, count in expected.items():
        where = competitor.between(name, host, host).address
        words = ["sink", str(PORT), str(count), str(folder / host), *_options(competitor, where)]
        sinks.append(stack.enter_context(_talking(f"{name}-{host}", *words)))
    for sink in sinks:
        sink.read(_READY_S)
    return sinks


def _sender(
    stack: contextlib.ExitStack,
    name: str,
    competitor: Competitor,
    flows: Sequence[Flow],
    host: str,
    seconds: float,
    rate_bps: float,
) -> Talker:
    """Start the process that sends all flows of a host."""
    specs = [
        f"{number}/{competitor.between(name, host, each.target).address}/{each.connections}"
        + (f"/{each.port}" if each.port else "")
        for number, each in enumerate(flows)
        if each.source == host
    ]
    rate = ["rate", str(int(rate_bps / 8))] if rate_bps else []
    words = ["source", str(PORT), str(int(seconds * 1000)), *_options(competitor), *rate, *specs]
    return stack.enter_context(_talking(f"{name}-{host}", *words))


def _options(competitor: Competitor, at: str = "") -> list[str]:
    words = ["mptcp"] if competitor.mptcp else []
    return [*words, "control", competitor.control, *(["at", at] if at else [])]


def _drained(sink: Talker) -> dict[str, list[list[int]]]:
    """Return what a sink received; terminate it if its connections do not end."""
    try:
        return sink.read(_DRAIN_S)
    except BenchFailed:
        sink.process.terminate()
        return sink.read(_READY_S)


def connections(
    sent: dict[int, list[int]], received: dict[int, list[int]], records: Sequence[Ints]
) -> Iterator[Connection]:
    """Yield the connections that were opened, in the order of their numbers."""
    rows = np.concatenate([record.reshape(-1, 3) for record in records])
    for number, (_, moved, error) in sorted(sent.items()):
        mine = rows[rows[:, 1] == number]
        _, arrived, failed = received.get(number, (number, 0, 0))
        yield Connection(
            flow=number >> _ID_SHIFT,
            sent=moved,
            received=arrived,
            error=error or failed,
            arrivals=Arrivals(mine[:, 0].copy(), mine[:, 2].copy()),
        )


def requests(
    name: str,
    competitor: Competitor,
    source: str,
    target: str,
    seconds: float,
    size: int,
    *,
    in_flight: int = 1,
    warm_s: float = 0.0,
) -> Ints:
    """Send requests with answers of `size` bytes for `seconds`; return the ns of each.

    There are `in_flight` connections, each with one request after another. Answers within `warm_s`
    of the start do not count.
    """
    where = competitor.between(name, source, target).address
    options = _options(competitor, where)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        record = Path(folder, "took")
        what = [str(size), str(in_flight)]
        words = ["answer", str(_ASK_PORT), *what, *options]
        stack.enter_context(_talking(f"{name}-{target}", *words)).read(_READY_S)
        words = ["ask", str(_ASK_PORT), str(int(seconds * 1000)), *what, str(record), *options]
        asking = stack.enter_context(_talking(f"{name}-{source}", *words))
        asking.read(_READY_S)
        began_ns = asking.read(seconds + _DRAIN_S)["began_ns"]
        return answered(np.fromfile(record, dtype=np.int64), began_ns + int(warm_s * S))


def answered(record: Ints, from_ns: int) -> Ints:
    """Return what the requests took that were answered from a time on, ns.

    `record` has pairs: the time of the answer, and what its request took.
    """
    pairs = record.reshape(-1, 2)
    return pairs[pairs[:, 0] >= from_ns, 1].copy()


@contextlib.contextmanager
def loaded(
    name: str, competitor: Competitor, flows: Sequence[Flow], seconds: float, rate_bps: float
) -> Iterator[list[Traffic]]:
    """Run flows during the block, each connection at this rate; the list has them afterwards."""
    done: list[Traffic] = []
    begun = threading.Event()

    def load() -> None:
        done.append(run(name, competitor, flows, seconds, (), rate_bps, begun))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        begun.wait(_READY_S)
        flow.wait_until(time.monotonic_ns() + int(_LEAD_S * S))
        yield done
    finally:
        thread.join()
    if not done:
        raise BenchFailed("the load beside the requests failed")


def _talking(namespace: str, *arguments: str) -> contextlib.AbstractContextManager[Talker]:
    """Run the traffic program in a namespace; end it afterwards."""
    return flow.talker(namespace, "traffic", [str(programs.traffic())], *arguments)
