# SPDX-License-Identifier: GPL-2.0-only
"""Measure messages of UCX over TCP between two hosts (ucx_perftest)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.instruments import flow
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import MS, S
from bench.recipes.outcome import Interval, Outcome
from bench.recipes.stage import LASTS_S, Stage, program

UNIT = "Mb/s"
_PORT = 13337
_BYTES = 1 << 20
_FIRST_S = 15.0
_THREAD = "[thread 0]"
_COLUMNS = 8
_US = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """A row of ucx_perftest: messages there and back so far, and the slowest of them.

    It prints a row each second, but only when a message ends. `after_ns` counts from its start.
    """

    after_ns: int
    messages: int
    slowest_ns: int


def measure(stage: Stage) -> Outcome:
    """Send a message of 1 MiB from h1 to h2 and back, one after another."""
    name, port = program("ucx_perftest"), ("-p", str(_PORT))
    environment = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": stage.competitor.interface}
    test = ("-t", "tag_lat", "-s", str(_BYTES), "-n", "1000000", "-w", "1", "-R", "100")
    server_line = (*_inside(stage, "h2"), name, *port)
    client = (*_inside(stage, "h1"), "stdbuf", "-oL", name, stage.address("h2"), *port, *test)
    with stage.running("h2", server_line, environment, name="ucx_perftest") as server:
        flow.wait_listening(f"{stage.lab}-h2", _PORT)
        with stage.running("h1", client, environment, name="ucx_perftest") as running:

            def found() -> list[Row]:
                return rows(running.said.read_text(errors="replace"))

            running.until("the first row", lambda: bool(found()), _FIRST_S)
            began_ns = time.monotonic_ns() - found()[0].after_ns
            when = stage.strike(began_ns)
            flow.wait_until(began_ns + int(LASTS_S * S))
            errors = sum(each.process.poll() is not None for each in (running, server))
            return outcome(found(), began_ns, when, errors)


def _inside(stage: Stage, host: str) -> tuple[str, ...]:
    """Return what starts a program with the /sys of its host: UCX looks for interfaces there.

    It polls. So it steps back behind the kernel's threads, which are both hosts and all switches.
    """
    return "ip", "netns", "exec", f"{stage.lab}-{host}", "nice", "-n", "10"


def rows(said: str) -> list[Row]:
    """Return the rows of what ucx_perftest -t tag_lat -R 100 printed so far.

    Its latencies are half of the time there and back.
    """
    found = []
    for line in said.splitlines(keepends=True):
        words = line.removeprefix(_THREAD).split()
        if line.startswith(_THREAD) and line.endswith("\n") and len(words) == _COLUMNS:
            messages, slowest_us, mean_us = int(words[0]), float(words[1]), float(words[3])
            found.append(
                Row(round(messages * 2 * mean_us * _US), messages, round(2 * slowest_us * _US))
            )
    return found


def outcome(found: Sequence[Row], began_ns: int, when: Interval, errors: int) -> Outcome:
    """Return the outcome that rows tell; began_ns is the time of their start.

    A row's slowest message is that of the whole run so far, so the one since the fault is at least
    the one before.
    """
    early = [Row(0, 0, 0), *(row for row in found if began_ns + row.after_ns <= when.struck_ns)]
    late = [row for row in found if began_ns + row.after_ns > when.struck_ns]
    if len(early) < 2:
        raise BenchFailed("ucx_perftest printed too few rows before the fault")
    during = [row for row in late if began_ns + row.after_ns <= when.healed_ns]
    first, last = early[0], early[-1]
    return Outcome(
        _mbps(first, last),
        _mbps(last, during[-1]) if during else 0.0,
        last.slowest_ns / MS,
        late[-1].slowest_ns / MS if late else None,
        errors,
    )


def _mbps(first: Row, last: Row) -> float:
    """Return the payload that crossed, in both directions together."""
    return (last.messages - first.messages) * 2 * _BYTES * 8e3 / (last.after_ns - first.after_ns)
