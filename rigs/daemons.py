# SPDX-License-Identifier: GPL-2.0-only
"""Daemons of a lab that end and start again, and traffic that must not notice."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cli.lab import lab, processes, state
from mrcd.linux import bpf
from rigs import lab_hosts
from rigs.lab_hosts import eventually
from rigs.running_lab import RunningLab as Lab
from rigs.traffic import Stream, udp_sequence

H1, H2, H3 = "10.99.0.1", "10.99.0.2", "10.99.0.3"
SETTLED_S = 120.0  # compiling takes seconds, and far longer on a busy machine


def settle(running: Lab) -> None:
    for host in running.fabric.hosts:
        if lab.daemon_pid(running.name, host.name) is None:
            lab.start_daemon(running.name, host.name)
    for host in running.fabric.hosts:
        content(running, host.name)


def content(running: Lab, host: str) -> None:
    lab_hosts.until_ok(running.name, host, SETTLED_S)


def end(running: Lab, host: str, number: signal.Signals) -> None:
    """Signal a host's mrcd, and wait for its end."""
    pid = lab.daemon_pid(running.name, host)
    assert pid is not None
    os.kill(pid, number)
    eventually(
        lambda: not processes.runs_in(pid, running.namespace(host)), f"mrcd of {host} has ended", 30
    )


def log_of(running: Lab, host: str) -> list[dict[str, Any]]:
    """Return the log of all daemons that ran on a host."""
    return [json.loads(line) for line in
            state.places(running.name, host).log.read_text().splitlines()]  # fmt: skip


def events(running: Lab, host: str) -> list[str]:
    return [entry["event"] for entry in log_of(running, host)]


@dataclass(frozen=True)
class Sessions:
    """The state on both sides that a reset of a QP or a new session would change."""

    qpns: tuple[tuple[int, int], ...]
    epochs: tuple[tuple[int, int], ...]
    begun: tuple[int, ...]

    @classmethod
    def of(cls, running: Lab) -> Sessions:
        hosts = [host.name for host in running.fabric.hosts]
        qps = [qp for host in hosts for qp in connections(running, host)]
        saved = [
            session
            for host in hosts
            for session in json.loads(
                (state.places(running.name, host).folder / "sessions.json").read_text()
            )["sessions"].values()
        ]
        restarts = [events(running, host).count("peer.restarted") for host in hosts]
        return cls(
            tuple((qp["qpn"], qp["remote_qpn"]) for qp in qps),
            tuple((session["epoch"], session["sid"]) for session in saved),
            tuple(restarts),
        )


def connections(running: Lab, host: str) -> list[dict[str, Any]]:
    return list(lab_hosts.mrcctl_json(running.name, host, "conn", "list")["connections"])


def psns(running: Lab, host: str) -> list[int]:
    return [qp["next_psn"] for qp in connections(running, host)]


class Traffic:
    """TCP in both directions and numbered UDP, all of which is compared on arrival."""

    def __init__(self, running: Lab) -> None:
        self._running = running
        self.there = Stream(running, "h1", "h2", H2).start()
        self.back = Stream(running, "h2", "h1", H1).start()
        self._numbers: list[int] = []
        self._stop = threading.Event()
        self._udp = threading.Thread(target=self._datagrams, daemon=True)
        self._rounds = 0
        self.there.progress(4 << 20)
        self._udp.start()

    def _datagrams(self) -> None:
        while not self._stop.is_set():
            count = 500
            self._numbers += [
                self._rounds * count + number
                for number in udp_sequence(
                    self._running, "h1", "h2", H2, count=count, ahead=20, within_s=60
                )
            ]
            self._rounds += 1

    def finish(self) -> None:
        """Check that everything arrived exactly once and in order."""
        self.there.progress(4 << 20, 30)
        self.back.progress(1 << 20, 30)
        self._stop.set()
        self._udp.join(90)
        assert not self._udp.is_alive()
        self.there.finish(30)
        self.back.finish(30)
        missing = sorted(set(range(500 * self._rounds)) - set(self._numbers))
        assert not missing, f"missing: {missing}; {self._counters()}"
        assert self._numbers == sorted(self._numbers), "out of order"
        assert len(self._numbers) == 500 * self._rounds, "doubled"

    def _counters(self) -> dict[str, dict[str, int]]:
        return {
            host.name: {
                name: value
                for name, value in lab_hosts.counters(self._running.name, host.name).items()
                if value
            }
            for host in self._running.fabric.hosts
            if lab.daemon_pid(self._running.name, host.name) is not None
        }


def undisturbed(running: Lab, during: Callable[[], None]) -> None:
    """Check that an action on h1 under traffic ends no session and loses or repeats no packet."""
    before, sent = Sessions.of(running), psns(running, "h1")
    traffic = Traffic(running)
    during()
    traffic.finish()
    assert Sessions.of(running) == before
    went_on = [(now - old) & 0xFFFFFF for old, now in zip(sent, psns(running, "h1"), strict=True)]
    assert all(step < 1 << 23 for step in went_on)
    assert any(went_on)


def programs(running: Lab, host: str) -> dict[str, int]:
    """Return the kernel's ids of the programs on a host's interfaces, by link."""
    found = {}
    for path in state.places(running.name, host).bpffs.glob("link_*"):
        fd = bpf.get(path)
        found[path.name] = bpf.link_info(fd).program
        os.close(fd)
    return found
