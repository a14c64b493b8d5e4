# SPDX-License-Identifier: GPL-2.0-only
"""Carry out the disturbances of a mixed soak, and record what came of each.

Every kind has a thread that takes its disturbances one after another; restarts have one for each
host. So a daemon may be away while a mistake is made, keys change under a flood, and so on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from subprocess import SubprocessError
from typing import Any

from bench.instruments import path_states
from bench.instruments.metrics import S
from bench.soak import mix, schedule
from bench.soak.mix import Attack, Disturbance, Restart, Rotation, Slip
from cli.console.exits import CommandError
from cli.lab import faults, lab, processes, state, topology
from rigs import mistakes
from rigs.running_lab import RunningLab
from rigs.stranger import Flood, Stranger, frames

REPAIR_S = 10.0
"""mrcd takes far less than a second (docs/operations.md); a busy machine takes longer."""
RETURN_S = 90.0
_END_S = 30.0
_AT_MOST_S = 180.0  # excused time included
_LOOK_S = 0.05
_AGAIN_S, _NEVER_AGAIN = 1.0, (2, 5)  # RestartSec and RestartPreventExitStatus of mrcd.service
_FRAMES = 256
_NIC_CUT = f"{mistakes.HOST}:p{mix.PLANE}:nic"


@dataclass(slots=True)
class Record:
    """What came of a disturbance: when it was in effect, and what was wrong, if anything.

    Times are CLOCK_MONOTONIC. `took_s` is the time that mrcd took, without what is excused.
    """

    what: Disturbance
    began_ns: int
    over_ns: int = 0
    took_s: float = 0.0
    problem: str = ""
    count: int = 0  # frames that were sent, peers with new keys, or starts that failed
    pid: int | None = None  # of the daemon that was started


class Service:
    """Starts a host's daemon, and again after a second when it fails, as systemd does."""

    def __init__(self, name: str, host: str) -> None:
        self._name, self._host = name, host
        self._process = lab.start_daemon(name, host)
        self._again = 0.0
        self.failed = 0

    @property
    def pid(self) -> int:
        """Return the pid of the latest start."""
        return self._process.pid

    @property
    def ended(self) -> str:
        """Say how the latest start has ended, if it has."""
        status = self._process.poll()
        return "" if status is None else f": it ended with status {status}"

    def runs(self) -> bool:
        """Return whether it runs; start it again if it is time."""
        status = self._process.poll()
        if status is None:
            return True
        if not self._again:
            self.failed += 1
            self._again = time.monotonic() + _AGAIN_S
        elif time.monotonic() > self._again and status not in _NEVER_AGAIN:
            self._again = 0.0
            self._process = lab.start_daemon(self._name, self._host)
        return False


@dataclass(slots=True)
class Disturber:
    """Begins disturbances of a running lab when it is told to."""

    running: RunningLab
    before: dict[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    broken: frozenset[str] = frozenset()
    """Elements with a fault now; written by the thread that makes faults."""
    at_nic: set[str] = field(default_factory=set)
    """Those of them whose fault is at the NIC of mistakes."""
    away: set[str] = field(default_factory=set)
    """Hosts whose daemon is away because it is being restarted."""
    on_return: Callable[[str], object] = lambda _host: None
    _lanes: dict[str, ThreadPoolExecutor] = field(default_factory=dict)
    _begun: list[Future[None]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _nic: threading.Lock = field(default_factory=threading.Lock)
    """Held while the NIC of mistakes may be away or have another name, or a fault is made at it."""

    @contextlib.contextmanager
    def beside(self, actions: dict[str, str]) -> Iterator[None]:
        """Keep mistakes away, during the block, from a NIC that these faults change.

        A fault is made at a switch's port, and may change features of what the port leads to.
        """
        plan = topology.plan(state.read_fabric(self.running.name))
        ports = {
            (cable.near.node, cable.near.ifname)
            for cable in plan.cables
            if (cable.far.node, cable.far.ifname) == (mistakes.HOST, mistakes.PLANE)
        }
        at_nic = {each for each in actions if ports & {*faults.ports(plan, each)}}
        with self._nic if at_nic else contextlib.nullcontext():
            yield
            made = {each for each in at_nic if actions[each] != "clear"}
            self.at_nic = (self.at_nic - at_nic) | made

    @contextlib.contextmanager
    def _whole_nic(self) -> Iterator[None]:
        """Keep faults away, during the block, from the NIC of mistakes once it has none.

        What waits for mrcd in the block is excused while a fault is there, and it could not end.
        """
        while True:
            with self._nic:
                if not self.at_nic or self._over.is_set():
                    yield
                    return
            time.sleep(_LOOK_S)

    def notice(self, actions: dict[str, str]) -> None:
        """Take note of faults that were made or cleared."""
        cleared = {element for element, action in actions.items() if action == "clear"}
        self.broken = (self.broken | actions.keys()) - cleared

    def begin(self, what: Disturbance) -> None:
        """Begin a disturbance as soon as the one before it of its kind is over."""
        name = mix.kind_of(what)
        if isinstance(what, Restart):
            name += f" {what.host}"
        lane = self._lanes.setdefault(name, ThreadPoolExecutor(1))
        self._begun.append(lane.submit(self._do, what))

    def finish(self) -> None:
        """Wait until all are over."""
        for each in self._begun:
            each.result()
        for lane in self._lanes.values():
            lane.shutdown()

    def stop(self) -> None:
        """Give up what has not begun, and end what has as soon as possible."""
        self._over.set()
        for lane in self._lanes.values():
            lane.shutdown(cancel_futures=True)

    def cuts(self) -> list[tuple[int, int, dict[str, str]]]:
        """Return when mistakes took a plane away and gave it back, as faults that were applied.

        The element is the mistake's own, so that clearing a fault of the same link changes nothing.
        """
        found = []
        for each in self.records:
            if isinstance(each.what, Slip) and mix.cuts_plane(each.what.name):
                found.append((each.began_ns, each.began_ns, {_NIC_CUT: "down"}))
                found.append((each.over_ns, each.over_ns, {_NIC_CUT: "clear"}))
        return found

    def _do(self, what: Disturbance) -> None:
        if self._over.is_set():
            return
        record = Record(what, time.monotonic_ns())
        self.records.append(record)
        try:
            if isinstance(what, Attack):
                self._attack(what, record)
            elif isinstance(what, Restart):
                self._restart(what, record)
            elif isinstance(what, Rotation):
                self._rotate(what, record)
            else:
                self._slip(what, record)
        except (AssertionError, OSError, SubprocessError) as error:
            record.problem += f"could not be made or undone: {error}"
        finally:
            record.over_ns = record.over_ns or time.monotonic_ns()

    # ---- attacks

    def _attack(self, what: Attack, record: Record) -> None:
        here, target, posing = map(self.running.fabric.host, (what.host, what.target, what.posing))
        source = Stranger(self.running, here, target, posing, what.seed)
        each = _FRAMES // len(what.packets)
        made = [frame for kind in what.packets for frame in frames(source, kind, each)]
        source.rng.shuffle(made)
        flood = Flood(self.running.namespace(what.host), made, self.running.fabric.planes)
        flood.start(what.pps)
        self._over.wait(what.seconds)
        record.count = flood.stop()

    # ---- restarts

    def _restart(self, what: Restart, record: Record) -> None:
        name, namespace = self.running.name, self.running.namespace(what.host)
        pid = lab.daemon_pid(name, what.host)
        if pid is None:
            record.problem = "the daemon had ended by itself"
        self.away.add(what.host)
        try:
            if pid is not None:
                os.kill(pid, signal.Signals[what.signal])
                ended = self._wait(lambda: not processes.runs_in(pid, namespace), _END_S)
                if ended is None:
                    record.problem = f"still runs {_END_S:.0f} s after {what.signal}"
                    return
            self._over.wait(what.away_s)
            service = Service(name, what.host)
            took_s = self._wait(lambda: service.runs() and self._well(what.host, service.pid),
                                RETURN_S)  # fmt: skip
            record.pid, record.count = service.pid, service.failed
        finally:
            self.away.discard(what.host)
        if took_s is None:
            record.problem = f"not back with all peers within {RETURN_S:.0f} s{service.ended}"
        record.took_s = took_s or 0.0
        record.over_ns = time.monotonic_ns()
        self.on_return(what.host)

    def _well(self, host: str, pid: int | None) -> bool:
        """Return whether this daemon answers, and has sessions with all peers."""
        try:
            now = path_states.status(self.running.name, host)
            peers = path_states.peers(self.running.name, host)
        except CommandError:
            return False
        return now.pid == pid and all(peer.state == "established" for peer in peers)

    # ---- rotations

    def _rotate(self, what: Rotation, record: Record) -> None:
        """Ask once. A peer or the daemon itself may be away; at the end all are asked again."""
        with (
            contextlib.suppress(CommandError),
            path_states.client(self.running.name, what.host) as asked,
        ):
            record.count = len(asked.rotate_keys(None)["rotated"])
        record.took_s = (time.monotonic_ns() - record.began_ns) / S

    # ---- mistakes

    def _slip(self, what: Slip, record: Record) -> None:
        planes = mix.planes_of(what.name)
        with self._whole_nic() if planes else contextlib.nullcontext():
            record.began_ns = time.monotonic_ns()
            self._err(what, record, planes)

    def _err(self, what: Slip, record: Record, planes: tuple[int, ...]) -> None:
        mistake = mix.mistake(what.name)
        mistake.make(self.running)
        if mistake.named:
            # A daemon may not start before it is undone, so it is then not waited for.
            named_s = self._wait(
                lambda: mistakes.HOST in self.away or mistakes.named(self.running, mistake.named),
                REPAIR_S,
                planes,
            )
            self._over.wait(what.seconds)
            _undo(mistake, self.running)
            if named_s is None:
                record.problem = f"status does not name it within {REPAIR_S:.0f} s; "
        took_s = self._wait(lambda: not self.different(planes), REPAIR_S, planes)
        record.over_ns = time.monotonic_ns()
        if took_s is None:
            record.problem += f"after {REPAIR_S:.0f} s still: {self.different(planes)}"
        record.took_s = took_s or 0.0
        if not mistake.named:
            _undo(mistake, self.running)

    def look(self) -> None:
        """Remember everything that mrcd looks after on the host of mistakes."""
        self.before = mistakes.seen(self.running)

    def different(self, planes: Iterable[int]) -> str:
        """Say what is not as before, of mrc0, the programs and the NICs of some planes.

        Faults change other NICs: a lower rate of a link is a queue at both of its ends.
        """
        try:
            found = mistakes.seen(self.running)
        except OSError as error:  # something ended during the look
            return str(error)
        wanted = tuple(f"plane{plane}" for plane in planes)
        names = [n for n in self.before.keys() | found.keys()
                 if not n.startswith("plane") or n in wanted]  # fmt: skip
        return mistakes.difference(
            {name: self.before[name] for name in names if name in self.before},
            {name: found[name] for name in names if name in found},
        )

    # ---- waiting

    def _wait(
        self,
        condition: Callable[[], bool],
        within_s: float,
        planes: Iterable[int] | None = None,
    ) -> float | None:
        """Wait for a condition; return the seconds, or None if they were too many.

        With `planes`, the condition is up to the daemon of the host of mistakes: time in which that
        is away, or a fault is on one of these planes, does not count.
        """
        counted, since = 0.0, time.monotonic()
        end = since + _AT_MOST_S
        while not condition():
            time.sleep(_LOOK_S)
            now = time.monotonic()
            if planes is None or not self._excused(planes):
                counted += now - since
            since = now
            if counted > within_s or now > end:
                return None
        return counted

    def _excused(self, planes: Iterable[int]) -> bool:
        faulty = {schedule.plane_of(element) for element in self.broken}
        return mistakes.HOST in self.away or bool(faulty & set(planes))


def _undo(mistake: mistakes.Mistake, running: RunningLab) -> None:
    if mistake.undo is not None:
        mistake.undo(running)
