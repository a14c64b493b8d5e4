# SPDX-License-Identifier: GPL-2.0-only
"""Run the traffic of a soak: checked flows between all hosts, and verdicts on them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.instruments import checked
from bench.instruments.flow import BenchFailed
from cli.lab import processes, state

_READY_S = 15.0
_PORT = 5400


@dataclass(slots=True)
class End:
    """A process of checked.py. `progress` are the times and amounts at which it had changed."""

    name: str
    namespace: str
    process: subprocess.Popen[bytes]
    progress: list[tuple[int, int]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    complaint: str = ""
    _ready: threading.Event = field(default_factory=threading.Event)
    _reader: threading.Thread | None = None

    def begin(self) -> None:
        """Begin to read its output, until it ends."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(_READY_S):
            raise BenchFailed(f"{self.name} did not start: {self.complaint or 'it says nothing'}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "progress" in said:
                if not self.progress or said["progress"] != self.progress[-1][1]:
                    self.progress.append((said["at_ns"], said["progress"]))
            elif "ready" in said:
                self._ready.set()
            else:
                self.result = said
        assert self.process.stderr is not None
        self.complaint = self.process.stderr.read().decode(errors="replace").strip()
        self._ready.set()

    def stop(self) -> None:
        """Ask it to finish."""
        if self.process.poll() is None:
            self.process.terminate()

    def finish(self, deadline_s: float) -> None:
        """Wait for its result; there is none if it takes too long."""
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.complaint = f"did not finish within {deadline_s:.0f} s"
            self.process.kill()
        if self._reader is not None:
            self._reader.join()

    def stamps(self, until_ns: int) -> list[int]:
        """Return the times of its progress up to a time, and that time."""
        return [at_ns for at_ns, _ in self.progress if at_ns < until_ns] + [until_ns]


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow with two ends: `far` listens, `near` sends first."""

    kind: str
    name: str
    near: End
    far: End

    @property
    def watched(self) -> tuple[End, ...]:
        """Return the ends that receive."""
        return {"tcp": (self.near, self.far), "udp": (self.far,), "request": (self.near,)}[
            self.kind
        ]


@contextlib.contextmanager
def flows(name: str, seed: int, tcp_mbps: float, udp_mbps: float, mtu: int) -> Iterator[list[Flow]]:
    """Start all flows; end their processes after the block."""
    hosts = state.read_fabric(name).hosts
    pairs = [(a, hosts[(i + 1) % len(hosts)]) for i, a in enumerate(hosts)]
    kinds: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
        ("tcp", "tcp-connect", "tcp-listen", ("--mbps", str(tcp_mbps))),
        ("udp", "udp-send", "udp-recv", ("--mbps", str(udp_mbps), "--size", str(mtu - 28))),
        ("request", "ask", "answer", ("--size", str(4 * mtu))),
    )
    with contextlib.ExitStack() as stack:
        made = []
        for i, (a, b) in enumerate(pairs):
            address = str(b.addresses[0].ip)
            for j, (kind, near, far, options) in enumerate(kinds):
                port = str(_PORT + 10 * j + i)
                number = str(2 * (seed + 100 * i + 10 * j))
                more = (address, port, "--seed", number, *options)
                title = f"{kind} {a.name}-{b.name}"
                listening = _end(stack, f"{title} at {b.name}", f"{name}-{b.name}", far, *more)
                talking = _end(stack, f"{title} at {a.name}", f"{name}-{a.name}", near, *more)
                made.append(Flow(kind, title, talking, listening))
        yield made


def _end(stack: contextlib.ExitStack, title: str, namespace: str, *arguments: str) -> End:
    process = processes.spawn(
        namespace,
        [sys.executable, checked.__file__, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    end = End(title, namespace, stack.enter_context(process))
    stack.callback(process.kill)
    end.begin()
    return end


def finish(made: Sequence[Flow], deadline_s: float = 60) -> None:
    """Stop the senders of all flows; receivers end when all has arrived."""
    for flow in made:
        flow.near.stop()
        if flow.kind == "tcp":
            flow.far.stop()
    end = time.monotonic() + deadline_s
    for flow in made:
        for each in (flow.near, flow.far):
            each.finish(max(1.0, end - time.monotonic()))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict on one property; None is for information only."""

    good: bool | None
    what: str
    detail: str

    def __str__(self) -> str:
        word = {True: "PASS", False: "FAIL", None: "note"}[self.good]
        return f"{word}  {self.what}: {self.detail}"


def verdict(flow: Flow, corrupted: bool) -> Verdict:
    """Return the verdict on a flow by the results of its ends."""
    near, far = flow.near.result, flow.far.result
    for end in (flow.near, flow.far):
        if end.result is None:
            return Verdict(False, flow.name, f"{end.name} has no result: {end.complaint}")
    assert near is not None
    assert far is not None
    if flow.kind == "tcp":
        return _tcp(flow.name, near, far)
    if flow.kind == "udp":
        return _udp(flow.name, near, far, corrupted)
    good = not near["wrong"] and not near["error"] and near["asked"] == far["answered"]
    slowest = f"slowest {near['slowest_ns'] / 1e6:.0f} ms"
    detail = f"{near['asked']} asked, {far['answered']} answered, {near['wrong']} wrong, {slowest}"
    return Verdict(good, flow.name, f"{detail}; {near['error'] or 'no error'}")


def _tcp(name: str, near: dict[str, Any], far: dict[str, Any]) -> Verdict:
    problems = [
        f"{way}: {what}"
        for way, a, b in (("there", near, far), ("back", far, near))
        for what, wrong in (
            (f"sent {a['sent']} bytes, received {b['received']}", a["sent"] != b["received"]),
            ("SHA-256 differs", a["sent_sha"] != b["received_sha"]),
            (f"wrong blocks {b['wrong']}", bool(b["wrong"])),
            (f"error {b['error']}", bool(b["error"])),
            (f"error sending: {a.get('send_error')}", "send_error" in a),
        )
        if wrong
    ]
    moved = f"{near['sent'] / 1e6:.0f} MB there, {far['sent'] / 1e6:.0f} MB back, SHA-256 equal"
    return Verdict(not problems, name, "; ".join(problems) or moved)


def _udp(name: str, sent: dict[str, Any], got: dict[str, Any], corrupted: bool) -> Verdict:
    missing = sent["sent"] - sent["refused"] - got["arrived"]
    counts = f"missing {missing}, late {got['late']}, doubled {got['doubled']}"
    detail = f"{sent['sent']} sent, {counts}, wrong content {got['wrong']}"
    if got["wrong"]:
        return Verdict(False, name, detail)
    if got["late"] or got["doubled"]:
        # A bit flipped in a header of MRC can name another PSN: nothing protects it so far.
        return Verdict(None if corrupted else False, name, detail)
    return Verdict(None if missing else True, name, detail)
