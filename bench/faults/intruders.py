# SPDX-License-Identifier: GPL-2.0-only
"""Measure how soon status names what others do to a host, while traffic goes on.

    python -m bench.faults.intruders [--minutes 20]     (as root)

In a lab of two hosts and four planes, checked flows of TCP, UDP and requests go both ways all the
time, and systemd-networkd runs on h1 with the project's example files. Every few seconds something
comes to h1 that belongs to somebody else: an agent that attaches its program before mrcd's, rules
of another tunnel, a firewall that is loaded anew, one that drops hand-shakes, IPv6 switched off on
a plane, a route past mrc0. Each stays for a while and leaves. "seen" is the time until mrcd has put
it right, or until status names it; "over" the time from its end until status names nothing. What
status says meanwhile and has nothing to do with it is listed; so is what it says in between.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.instruments import entry
from bench.instruments.running import running
from bench.soak import traffic
from rigs import lab_hosts, mistakes
from rigs.mistakes import HOST, OTHER, Do, command, commands, put_ahead, take_away
from rigs.networkd import EXAMPLES, networkd
from rigs.running_lab import RunningLab

NAME: Final = "intruders"
STAY_S: Final = 6.0
"""Each intruder stays for this time at least."""
REST_S: Final = 3.0
"""... and after its end nothing may be named for this time."""
WITHIN_S: Final = 20.0
LOOK_S: Final = 0.02
MTU: Final = 8900

_RULESET: Final = """
flush ruleset
table inet filter {
 chain input { type filter hook input priority 0; policy drop;
  ct state established,related accept
  iifname { lo, mrc0 } accept
  meta l4proto { icmp, ipv6-icmp } accept
  udp dport { 4971, 4972, 4974 } accept
 }
}
"""
_DROP: Final = (
    "table inet f { chain i { type filter hook input priority -1; udp dport 4972 drop; }; }"
)


@dataclass(frozen=True, slots=True)
class Intruder:
    """Something that comes and leaves.

    named: a part of what status says of it; empty if nothing is to be said. repaired: what the log
    calls its repair; empty if there is none. follows: what status may say besides, as it is so.
    """

    name: str
    come: Do
    leave: Do
    named: str = ""
    repaired: str = ""
    follows: str = ""

    def explains(self, line: str) -> bool:
        """Return whether what status says is about this one, or follows from it."""
        return any(text and text in line for text in (self.named, self.repaired, self.follows))


def _ruleset(lab: RunningLab) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".nft") as file:
        file.write(_RULESET)
        file.flush()
        lab.run(HOST, "nft", "-f", file.name)


def _ipv6(off: int) -> Do:
    return command("sysctl", "-qw", f"net.ipv6.conf.plane2.disable_ipv6={off}")


INTRUDERS: Final = (
    Intruder(
        "an agent's program ahead", put_ahead("plane1"), take_away, repaired="programs of plane1"
    ),
    Intruder(
        "another tunnel's rules",
        commands(
            "ip route add 10.96.0.0/12 dev plane0 table 52", "ip rule add pref 5270 lookup 52"
        ),
        commands("ip rule del pref 5270", "ip route flush table 52"),
        named="leave by plane0 and not by mrc0",
    ),
    Intruder(
        "a firewall loaded anew, which lets mrcd pass",
        _ruleset,
        command("nft", "flush", "ruleset"),
    ),
    Intruder(
        "a firewall that drops hand-shakes",
        command("nft", _DROP),
        command("nft", "delete", "table", "inet", "f"),
        named="a firewall of this host drops UDP port",
        follows="peer h2 has not been heard",
    ),
    Intruder(
        "IPv6 switched off on a plane",
        _ipv6(1),
        _ipv6(0),
        named="plane 2",
        repaired="plane 2 address",
    ),
    Intruder(
        "a route past mrc0",
        command(
            "ip", "route", "add", "10.99.0.2/32", "dev", "plane3", "metric", "1", "table", "local"
        ),
        command("ip", "route", "del", "10.99.0.2/32", "dev", "plane3", "table", "local"),
        named="leave by plane3 and not by mrc0",
    ),
)


@dataclass(slots=True)
class Figures:
    """Of one kind of intruder, in seconds."""

    seen: list[float] = field(default_factory=list)
    over: list[float] = field(default_factory=list)
    missed: int = 0
    stayed: int = 0


def said(lab: RunningLab, host: str) -> list[str]:
    """Return all that a host's status names; nothing if it does not answer just then."""
    found = lab_hosts.status(lab.name, host)
    return [] if found is None else [*found.reasons, *found.warnings]


class Visits:
    """Has intruders come and leave, and notes what status says."""

    def __init__(self, lab: RunningLab) -> None:
        self._lab = lab
        self.figures = {each.name: Figures() for each in INTRUDERS}
        self.strange: list[str] = []

    def one(self, intruder: Intruder) -> None:
        """Have one come, and leave again."""
        figures, lab = self.figures[intruder.name], self._lab
        logged = mistakes.repairs(lab, intruder.repaired) if intruder.repaired else 0
        began = time.monotonic()
        intruder.come(lab)

        def seen() -> bool:
            if intruder.named and any(intruder.named in line for line in said(lab, HOST)):
                return True
            return bool(intruder.repaired) and mistakes.repairs(lab, intruder.repaired) > logged

        if intruder.named or intruder.repaired:
            after = self._until(seen)
            if after is None:
                figures.missed += 1
            else:
                figures.seen.append(after - began)
        self._watch(max(0.0, began + STAY_S - time.monotonic()), intruder)
        ended = time.monotonic()
        intruder.leave(lab)
        quiet = self._until(lambda: not said(lab, HOST))
        if quiet is None:
            figures.stayed += 1
        else:
            figures.over.append(quiet - ended)
        self._watch(REST_S, None)

    def _until(self, condition: Callable[[], bool]) -> float | None:
        end = time.monotonic() + WITHIN_S
        while not condition():
            if time.monotonic() > end:
                return None
            time.sleep(LOOK_S)
        return time.monotonic()

    def _watch(self, seconds: float, intruder: Intruder | None) -> None:
        """Note what status says that is not of this intruder."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for host in (HOST, OTHER):
                for line in said(self._lab, host):
                    if intruder is None or not intruder.explains(line):
                        name = "nothing" if intruder is None else intruder.name
                        self._note(f"{host}, while there is {name}: {line}")
            time.sleep(10 * LOOK_S)

    def _note(self, text: str) -> None:
        if text not in self.strange:
            self.strange.append(text)
            print(f"strange: {text}", flush=True)

    def table(self) -> None:
        """Print a row for each kind."""

        def of(values: list[float]) -> str:
            if not values:
                return "-"
            return f"{statistics.median(values):.2f} / {max(values):.2f}"

        print(
            "| what comes | times | seen after, s (median / most) | over after, s | not seen "
            "| not over |"
        )
        print("|---|---|---|---|---|---|")
        for name, each in self.figures.items():
            times = len(each.over) + each.stayed
            print(
                f"| {name} | {times} | {of(each.seen)} | {of(each.over)} | {each.missed} "
                f"| {each.stayed} |"
            )


def visit(lab: RunningLab, minutes: float, seed: int) -> Visits:
    """Have intruders come, in a random order, for so many minutes."""
    visits, rng = Visits(lab), random.Random(seed)
    end = time.monotonic() + 60 * minutes
    for _ in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):
        for intruder in rng.sample(INTRUDERS, len(INTRUDERS)):
            if time.monotonic() < end:
                visits.one(intruder)
    return visits


def main() -> int:
    """Run it all, and print what was seen; return 1 if anything was wrong."""
    parser = entry.parser(__doc__, seed=1, figures=False)
    parser.add_argument("--minutes", type=float, default=20, help="%(default)s")
    parser.add_argument("--rate", type=int, default=100, help="of each link, Mb/s")
    options = parser.parse_args()
    entry.begin(NAME)
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(running(NAME, options.rate))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "networkd"
        shutil.copytree(EXAMPLES, folder)
        stack.enter_context(networkd(lab, HOST, folder))
        for host in (HOST, OTHER):
            lab_hosts.until_ok(lab.name, host)
        made = stack.enter_context(traffic.flows(NAME, options.seed, 40, 5, MTU))
        visits = visit(lab, options.minutes, options.seed)
        traffic.finish(made)
        verdicts: list[Any] = [traffic.verdict(flow, corrupted=False) for flow in made]
    visits.table()
    for verdict in verdicts:
        print(verdict)
    bad = any(verdict.good is False for verdict in verdicts)
    wrong = bad or visits.strange or any(f.missed or f.stayed for f in visits.figures.values())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
