# SPDX-License-Identifier: GPL-2.0-only
"""Helpers for the hosts of a lab: ask their daemons, run mrcctl on them, and wait for either."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cli.console.client import Client
from cli.console.exits import CommandError
from cli.lab import lab, state
from mrcd.linux import rights
from mrcd.model import PathInfo, Status

ROOT = Path(__file__).resolve().parents[1]


def eventually(
    condition: Callable[[], Any], what: str | Callable[[], str], within_s: float = 10.0
) -> Any:
    """Wait until a condition is true, and return its value. A timeout names `what` was missing.

    A function of what is missing is called then.
    """
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        late = time.monotonic() >= deadline
        assert not late, f"not within {within_s} s: {what if isinstance(what, str) else what()}"
        time.sleep(0.01)
    return value


def powerless(pid: int) -> bool:
    """Return whether no thread of a process has a capability, or can ever have one."""
    tasks = Path(f"/proc/{pid}/task")
    held = [rights.held(f"{pid}/task/{task}") for task in os.listdir(tasks)]
    given_up = "\nNoNewPrivs:\t1\n" in Path(f"/proc/{pid}/status").read_text()
    return given_up and not any(number for each in held for number in each.values())


def socket_of(name: str, host: str) -> Path:
    """Return the control socket of a host's mrcd."""
    return state.places(name, host).socket


def maps_of(name: str, host: str) -> Path:
    """Return the folder in which the maps of a host's data path are pinned."""
    (layout,) = state.places(name, host).bpffs.glob("layout-*")
    return layout


def status(name: str, host: str) -> Status | None:
    """Return the status of a host's mrcd, or None if it does not answer."""
    try:
        with Client(str(socket_of(name, host))) as client:
            return client.status()
    except CommandError:
        return None


def paths(name: str, host: str) -> list[PathInfo]:
    """Return all paths of a host."""
    with Client(str(socket_of(name, host))) as client:
        return client.paths(None)["paths"]


def counters(name: str, host: str) -> dict[str, int]:
    """Return all counters of a host."""
    with Client(str(socket_of(name, host))) as client:
        return {counter.name: counter.value for counter in client.stats().counters}


def ok(name: str, host: str) -> bool:
    """Return whether the host's mrcd reports ok."""
    now = status(name, host)
    return now is not None and now.state == "ok"


def until_ok(name: str, host: str, within_s: float = 30.0) -> None:
    """Wait until a host's mrcd reports ok. A timeout says what it reports instead."""

    def missing() -> str:
        now = status(name, host)
        return f"{host} is ok, but " + (f"{now.state}: {now.reasons}" if now else "does not answer")

    eventually(lambda: ok(name, host), missing, within_s)


def bad_planes(name: str, host: str) -> set[int]:
    """Return the planes with a withdrawn path. A path in SKIP only waits for its turn."""
    away = ("ASSUMED_BAD", "DENIED")
    return {path.plane for path in paths(name, host) if path.state in away}


@contextlib.contextmanager
def cut_off(running: Any) -> Iterator[None]:
    """Have every plane swallow all packets."""
    for plane in range(running.fabric.planes):
        running.fault(f"p{plane}", "blackhole")
    try:
        yield
    finally:
        for plane in range(running.fabric.planes):
            running.fault(f"p{plane}", "clear")


def heal(running: Any) -> None:
    """Clear every fault, and wait until all hosts report ok and all paths are back."""
    for fault in lab.status(running.name).faults:
        running.fault(fault.element, "clear")
    for host in running.fabric.hosts:
        until_ok(running.name, host.name)
        eventually(
            lambda host=host: not bad_planes(running.name, host.name),
            f"all paths of {host.name} are back",
        )


def mrcctl(name: str, host: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run mrcctl inside a host, like `lab exec`."""
    line, environment = lab.command_in(name, host, [sys.executable, "-m", "cli", *arguments])
    return subprocess.run(
        line, env=dict(environment), cwd=ROOT, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip


def mrcctl_json(name: str, host: str, *arguments: str) -> Any:
    """Return the parsed output of `mrcctl ... --json`."""
    done = mrcctl(name, host, *arguments, "--json")
    assert done.returncode in (0, 6), done.stderr
    return json.loads(done.stdout)


def planes_towards(name: str, host: str, peer: str) -> list[int]:
    """Return the planes on which a host sends to a peer."""
    reply = mrcctl_json(name, host, "peer", "list")
    (found,) = (each for each in reply["peers"] if each["name"] == peer)
    return list(found["planes_usable"])
