# SPDX-License-Identifier: GPL-2.0-only
"""Check that states, maps and memory are as before after all faults of a soak are cleared."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.instruments import path_states, stream
from bench.instruments.counters import Interfaces, Watch
from bench.instruments.metrics import S, imbalance
from bench.soak.traffic import Verdict
from cli.lab import lab, state
from mrcd.linux import bpf, bpfmap, netns
from rigs.lab_hosts import maps_of

_EVERY_S = 0.2
_LOOKUP_AND_DELETE = 21
_SYS_BPF = 321 if os.uname().machine == "x86_64" else 280
_RSS_SLACK_KB = 8192
_FDS_SLACK = 4
_BAD_EVENTS = ("tick.failed", "daemon.failed", "control.call_failed", "Traceback")
_UNEVEN = 0.05

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Memory:
    """The resources that a daemon holds."""

    pid: int
    rss_kb: int
    fds: int
    threads: int


def memory(name: str, host: str) -> Memory | None:
    """Return the resources of a host's daemon now; None if it is not running."""
    pid = lab.daemon_pid(name, host)
    if pid is None:
        return None
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    fds = len(os.listdir(f"/proc/{pid}/fd"))
    return Memory(pid, int(status["VmRSS"].split()[0]), fds, int(status["Threads"]))


class Memories:
    """The memory of each host's daemon, some seconds after its start or the soak's."""

    def __init__(self, name: str, after_s: float) -> None:
        self._name, self._after_s = name, after_s
        self._found: dict[str, Memory | None] = {}
        self._timers: dict[str, threading.Timer] = {}

    def remember(self, host: str) -> None:
        """Begin anew with a host's daemon: look at it later."""
        if host in self._timers:
            self._timers[host].cancel()
        self._found.pop(host, None)
        self._timers[host] = threading.Timer(self._after_s, self._look, (host,))
        self._timers[host].start()

    def _look(self, host: str) -> None:
        self._found[host] = memory(self._name, host)

    def stop(self) -> None:
        """Look no more."""
        for timer in self._timers.values():
            timer.cancel()

    def kept(self, host: str) -> Verdict:
        """Judge whether a host's daemon is still running, and holds no more than it did."""
        now = memory(self._name, host)
        if now is not None and host not in self._found:
            return Verdict(None, f"daemon of {host}", "was started too late to compare its memory")
        return kept(host, self._found.get(host), now)


def kept(host: str, before: Memory | None, after: Memory | None) -> Verdict:
    """Judge whether a daemon is still running, and holds no more than before."""
    what = f"daemon of {host}"
    if before is None or after is None or before.pid != after.pid:
        return Verdict(False, what, "is not the one that was started")
    good = after.rss_kb - before.rss_kb <= _RSS_SLACK_KB and after.fds - before.fds <= _FDS_SLACK
    return Verdict(
        good,
        what,
        f"RSS {before.rss_kb / 1024:.1f} to {after.rss_kb / 1024:.1f} MB,"
        f" {before.fds} to {after.fds} descriptors, {before.threads} to {after.threads} threads",
    )


def healed(name: str, deadline_s: float) -> Iterator[Verdict]:
    """Wait for the states to match the ground truth that nothing is broken, and judge them."""
    yield _within(deadline_s, "every path came back", path_states.Recovery(name).missing)
    yield _within(deadline_s, "peers are established", lambda: _strangers(name))
    yield _within(deadline_s, "daemons are ok", lambda: _degraded(name))
    yield _within(deadline_s, "no fault is listed", lambda: _listed(name))


def _within(deadline_s: float, what: str, wrong: Callable[[], object]) -> Verdict:
    """Poll until nothing is wrong, or the deadline is over."""
    began = time.monotonic()
    while found := wrong():
        took = time.monotonic() - began
        if isinstance(found, Unknown):
            return Verdict(None, what, str(found))
        if took > deadline_s:
            return Verdict(False, what, f"after {took:.0f} s still: {found}")
        time.sleep(_EVERY_S)
    return Verdict(True, what, f"after {time.monotonic() - began:.1f} s")


class Unknown(str):
    """The reason why a state is unknown."""


def _strangers(name: str) -> list[str]:
    return [
        f"{host}: {peer.name} is {peer.state}"
        for host in path_states.hosts(name)
        for peer in path_states.peers(name, host)
        if peer.state != "established"
    ]


def _degraded(name: str) -> list[str]:
    return [
        f"{host}: {status.state} {status.reasons}"
        for host in path_states.hosts(name)
        if (status := path_states.status(name, host)).state != "ok"
    ]


def _listed(name: str) -> object:
    found = {}
    for host in path_states.hosts(name):
        command = (sys.executable, "-m", "cli", "fault", "list", "--json")
        line, environment = lab.command_in(name, host, command)
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=30, check=False
        )
        if "No such command" in done.stderr:
            return Unknown("mrcctl has no `fault list`")
        if done.returncode:
            return {host: done.stderr.strip()}
        answer = json.loads(done.stdout)
        faults = answer["faults"] if isinstance(answer, dict) else answer
        if faults:
            found[host] = faults
    return found


def even(name: str, planes: int, deadline_s: float) -> Iterator[Verdict]:
    """Judge under traffic whether each host receives evenly on all planes again."""
    names = tuple(f"plane{plane}" for plane in range(planes))
    for host in path_states.hosts(name):
        began, uneven = time.monotonic(), 1.0
        while uneven > _UNEVEN and time.monotonic() - began < deadline_s:
            with Watch(Interfaces(f"{name}-{host}", names), every_s=0.1) as watch:
                time.sleep(3)
            rows = watch.table()
            _took, received = watch.between(int(rows[0][0]), int(rows[0][0]) + 3 * S)
            uneven = imbalance([float(count) for count in received])
        took = time.monotonic() - began
        detail = f"largest deviation of a plane {100 * uneven:.1f} % after {took:.0f} s"
        if uneven > _UNEVEN:
            counts = "/".join(f"{count:.0f}" for count in received)
            detail += f"; {counts} bytes; {_weights(name, host)}"
        yield Verdict(uneven <= _UNEVEN, f"planes to {host} carry alike", detail)


def _weights(name: str, target: str) -> str:
    """Return how other hosts rate the planes to a host: shares, round trips, slow paths."""
    parts = []
    for host in path_states.hosts(name):
        for peer in path_states.peers(name, host):
            if peer.name == target:
                shares = "/".join(f"{100 * share:.0f}" for share in peer.shares)
                rtts = "/".join(f"{(us or 0) / 1000:.1f}" for us in peer.planes_srtt_us)
                paths = path_states.paths(name, host, target)
                slow = [sum(path.slow for path in paths if path.plane == p)
                        for p in range(len(peer.shares))]  # fmt: skip
                parts.append(f"{host}: shares {shares} %, {rtts} ms, {slow} of {len(paths)} slow")
    return "; ".join(parts)


def rings(name: str, deadline_s: float) -> Iterator[Verdict]:
    """Judge whether all slots of the rings are free again, each once. There must be no traffic."""
    for host in path_states.hosts(name):
        yield _within(
            deadline_s, f"{host} has nothing outstanding", functools.partial(_busy, name, host)
        )
        folder = maps_of(name, host)
        for ring in ("tx_free", "rx_free"):
            free, total = _free_slots(folder / ring)
            detail = f"{len(free)} of {total} free, {len(set(free))} different"
            good = len(free) == total == len(set(free))
            yield Verdict(good, f"{host} {ring}", detail)


def _busy(name: str, host: str) -> list[str]:
    return [
        f"{conn.peer}/{conn.qp}: {conn.outstanding} outstanding, {conn.rx_waiting} waiting"
        for conn in path_states.connections(name, host)
        if conn.outstanding or conn.rx_waiting
    ]


def _free_slots(pinned: Path) -> tuple[list[int], int]:
    """Return the content of a stack of free slots: all are popped, and pushed back in order."""
    handle = bpf.get(pinned)
    try:
        total = bpfmap.described(handle).entries
        taken = []
        while (slot := _pop(handle)) is not None:
            taken.append(slot)
        for slot in reversed(taken):
            bpf.update(handle, None, struct.pack("=I", slot))
        return taken, total
    finally:
        os.close(handle)


def _pop(handle: int) -> int | None:
    """Pop the top of a stack; None if it is empty."""
    value = ctypes.create_string_buffer(4)
    attr = ctypes.create_string_buffer(
        struct.pack("=IxxxxQQQ", handle, 0, ctypes.addressof(value), 0), 128
    )
    if _libc.syscall(_SYS_BPF, _LOOKUP_AND_DELETE, attr, 32):
        code = ctypes.get_errno()
        if code == errno.ENOENT:
            return None
        raise OSError(code, f"pop from a stack: {os.strerror(code)}")
    return int(struct.unpack("=I", value.raw)[0])


def complaints(name: str, excused: Mapping[str, int] | None = None) -> Iterator[Verdict]:
    """Judge whether daemons logged anything that they never should.

    `excused` are the starts on each host that may have failed.
    """
    for host in path_states.hosts(name):
        log = state.places(name, host).log.read_text(errors="replace").splitlines()
        bad = [line for line in log if any(word in line for word in _BAD_EVENTS)]
        failures = [ln for ln in bad if '"daemon.failed"' in ln and "Traceback" not in ln]
        if len(failures) <= (excused or {}).get(host, 0):
            bad = [line for line in bad if line not in failures]
            for line in failures:
                yield Verdict(None, f"a start on {host} failed, the next did not", line)
        yield Verdict(not bad, f"log of {host}", bad[0] if bad else f"{len(log)} lines, none bad")


_LOST = (
    *("drop_window", "drop_ring", "drop_backlog", "drop_skb", "drop_not_ready", "drop_buffer"),
    "hole_skipped",
)


@dataclass(frozen=True, slots=True)
class Losses:
    """Counters of all hosts together that may explain missing datagrams."""

    counts: dict[str, int]

    def since(self, before: Losses) -> dict[str, int]:
        """Return the increase without zeros."""
        added = {key: value - before.counts.get(key, 0) for key, value in self.counts.items()}
        return {key: value for key, value in added.items() if value}


def losses(name: str) -> Losses:
    """Return the counters of packets dropped, in mrcd and after it."""
    counts: dict[str, int] = {}
    for host in path_states.hosts(name):
        found = path_states.counters(name, host)
        seen = {key: found.get(key, 0) for key in _LOST}
        with netns.entered(f"{name}-{host}"), contextlib.suppress(OSError):
            seen["UDP checksum"] = stream.counter("snmp", "Udp", "InCsumErrors")
            seen["UDP socket full"] = stream.counter("snmp", "Udp", "RcvbufErrors")
            seen["IP header"] = stream.counter("snmp", "Ip", "InHdrErrors")
            seen["IP address"] = stream.counter("snmp", "Ip", "InAddrErrors")
            seen["TCP sent again"] = stream.counter("snmp", "Tcp", "RetransSegs")
        for key, value in seen.items():
            counts[key] = counts.get(key, 0) + value
    rows = Path("/proc/net/softnet_stat").read_text().splitlines()
    counts["CPU backlog"] = sum(int(row.split()[1], 16) for row in rows)
    return Losses(counts)


def explained(title: str, missing: int, added: dict[str, int], allowed: int = 0) -> Verdict:
    """Judge whether counters of drops account for all missing datagrams but the allowed ones."""
    known = sum(value for key, value in added.items() if key != "TCP sent again")
    what = ", ".join(f"{key} {value}" for key, value in sorted(added.items())) or "nothing"
    more = f"{allowed} may be missing because of mistakes; " if allowed else ""
    good: bool | None = True if not missing else (None if missing <= known + allowed else False)
    return Verdict(good, title, f"{missing} missing; {more}counted: {what}")


def failed(verdicts: Sequence[Verdict]) -> int:
    """Return how many verdicts are not good."""
    return sum(verdict.good is False for verdict in verdicts)
