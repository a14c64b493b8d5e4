# SPDX-License-Identifier: GPL-2.0-only
"""Two hosts of a lab that have keys for each other, and a third that has none."""

from __future__ import annotations

import signal
from datetime import datetime
from typing import Any

from cli.lab import lab, state
from rigs import lab_hosts
from rigs.daemons import end, events, log_of
from rigs.lab_hosts import eventually
from rigs.running_lab import RunningLab as Lab

VICTIMS = ("h1", "h2")
SETTLED_S = 180.0  # compiling takes seconds, and far longer on a busy machine


def hide_from(running: Lab) -> None:
    """Make the two victims each other's only peers, and start their daemons."""
    for host, peer in zip(VICTIMS, reversed(VICTIMS), strict=True):
        config = state.places(running.name, host).config
        config.write_text(config.read_text() + f'\n[[peer]]\nname = "{peer}"\n')
        lab.start_daemon(running.name, host)


def settle(running: Lab) -> None:
    for host in VICTIMS:
        if lab.daemon_pid(running.name, host) is None:
            lab.start_daemon(running.name, host)
    for host in VICTIMS:
        lab_hosts.until_ok(running.name, host, SETTLED_S)
        eventually(
            lambda host=host: not lab_hosts.bad_planes(running.name, host), "all paths", SETTLED_S
        )


def moment(entry: dict[str, Any]) -> float:
    return datetime.fromisoformat(entry["time"]).timestamp()


def return_s(running: Lab) -> float:
    """Restart h2's daemon; return the time from when it hears until both have a session."""
    established = events(running, "h1").count("peer.established")
    lines = len(log_of(running, "h2"))
    end(running, "h2", signal.SIGTERM)
    lab.start_daemon(running.name, "h2")
    eventually(
        lambda: events(running, "h1").count("peer.established") > established, "return", SETTLED_S
    )
    eventually(
        lambda: "peer.established" in [e["event"] for e in log_of(running, "h2")[lines:]],
        "return", SETTLED_S,
    )  # fmt: skip
    entries = log_of(running, "h2")[lines:]
    ready = next(moment(entry) for entry in entries if entry["event"] == "daemon.ready")
    back = next(moment(entry) for entry in entries if entry["event"] == "peer.established")
    settle(running)
    return max(0.0, back - ready)
