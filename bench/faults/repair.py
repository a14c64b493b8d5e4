# SPDX-License-Identifier: GPL-2.0-only
"""Measure how soon operators' mistakes are put right, or named in `mrcctl status`.

    python -m bench.faults.repair [--rounds 10]     (as root)

In a lab of two hosts and four planes, one host sends TCP to the other all the time. Each mistake of
tests/net/mistakes.py is made on the sender, in turn. Times start when the command that makes it
begins. "put right" is when the kernel has everything as before, looked at from outside every two
milliseconds; "named" is when the control socket answers with it. The pause is the longest time in
which the receiver's application got nothing, up to a second after the repair.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.instruments import entry
from bench.instruments.running import running
from rigs import lab_hosts, mistakes
from rigs.mistakes import HOST, NAMED, OTHER, REPAIRED, Mistake
from rigs.running_lab import RunningLab
from rigs.traffic import Stream

NAME = "repair"
TARGET = "10.99.0.2"
WITHIN_S = 20.0
LOOK_S = 0.002
AFTER_S = 1.0
MIB = 1 << 20


class Pauses(threading.Thread):
    """Notes the longest time in which a stream received nothing."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._over = threading.Event()
        self.longest_s = 0.0

    def run(self) -> None:
        """Look every millisecond."""
        before, since = self._stream.received, time.monotonic()
        while not self._over.wait(0.001):
            now, received = time.monotonic(), self._stream.received
            self.longest_s = max(self.longest_s, now - since)
            if received != before:
                before, since = received, now

    def end(self) -> float:
        """Stop looking; return the longest pause in seconds."""
        self._over.set()
        self.join()
        return self.longest_s


@dataclass(slots=True)
class Figures:
    """The times of one mistake, in seconds."""

    done: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)


def when(condition: Callable[[], bool], what: str) -> float:
    """Wait until a condition is true; return the time."""
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end, f"not within {WITHIN_S} s: {what}"
        time.sleep(LOOK_S)
    return time.monotonic()


def measure(made: RunningLab, mistake: Mistake, figures: Figures) -> None:
    """Make a mistake once, and note how long it took until it was put right or named."""
    when(lambda: lab_hosts.ok(made.name, HOST), f"{HOST} is ok before {mistake.name}")
    stream = Stream(made, HOST, OTHER, TARGET).start()
    stream.progress(4 * MIB, 30)
    before, logged = mistakes.seen(made), mistakes.repairs(made, mistake.about)
    pauses = Pauses(stream)
    pauses.start()
    began = time.monotonic()
    mistake.make(made)
    if mistake.named:
        done = when(lambda: mistakes.named(made, mistake.named), mistake.name)
    else:
        done = when(
            lambda: (
                mistakes.seen(made) == before and mistakes.repairs(made, mistake.about) > logged
            ),
            mistake.name,
        )
    figures.done.append(done - began)
    stop = done + AFTER_S
    when(lambda: time.monotonic() > stop, "a second passes")
    figures.pauses.append(pauses.end())
    if mistake.undo is not None:
        mistake.undo(made)
        # Not `seen`: the lab's rate does not come back with a NIC that was moved away.
        when(lambda: lab_hosts.ok(made.name, HOST), f"{mistake.name} is undone")
    stream.progress(4 * MIB, 30)
    stream.finish(30)


def show(mistake: Mistake, figures: Figures) -> None:
    """Print a row of the table."""

    def of(values: list[float]) -> str:
        return f"{statistics.median(values) * 1e3:.0f} / {max(values) * 1e3:.0f}"

    # Without mrc0 nothing flows until its name is free again.
    print(
        f"| {mistake.name} | {mistake.does} | {of(figures.done)} | {of(figures.pauses)} |",
        flush=True,
    )


def main() -> None:
    """Measure all mistakes and print a table."""
    parser = entry.parser(__doc__, rounds=10, figures=False)
    parser.add_argument("--rate", type=int, default=100, help="of each link, Mb/s")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="mistakes with one in its name")
    options = parser.parse_args()
    words = options.only or [""]
    every = [*REPAIRED, *NAMED]
    chosen = [each for each in every if any(word in each.name for word in words)]
    found = {mistake.name: Figures() for mistake in chosen}
    for _ in range(options.rounds):
        with running(NAME, options.rate) as made:  # a new one: some mistakes leave traces in a lab
            for mistake in chosen:
                measure(made, mistake, found[mistake.name])
    print("| mistake | what mrcd does | done, ms | longest pause of TCP, ms |")
    print("|---|---|---|---|")
    for mistake in chosen:
        show(mistake, found[mistake.name])


if __name__ == "__main__":
    main()
