# SPDX-License-Identifier: GPL-2.0-only
"""Ways between hosts that take turns in labs of their own: with mrcd, in each framing, and without.

A program of mrcd on a NIC changes the NIC for everybody: a generic XDP program copies every large
segment and switches GRO off. So the competitors run on hosts of the same kind without mrcd.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.compare import configuration, traffic
from bench.compare.arena import Arena, say
from bench.compare.routes import Competitor, Ecmp, Mptcp, Mrc0, Plane
from bench.compare.traffic import Flow, Traffic
from bench.instruments import flow, wire
from bench.instruments.processor import Processor
from bench.instruments.wire import Wire

WARM_S = 1.0
BUSY = "CPU busy"
STEAL = "steal"

Where = tuple[str, str, str]
Build = Callable[[str, str | None], contextlib.AbstractContextManager[object]]
"""Builds a lab with this name and this framing."""


class Framed(Mrc0):
    """mrcd with another framing of data than the first one, in a lab of its own."""

    def __init__(self, framing: str) -> None:
        key = "cell_envelope" if framing in flow.ENVELOPES else "framing"
        self.key = f"mrc0-{framing}"
        self.title = f'mrc0, {key} = "{framing}"'
        self.about = f'the same with `{key} = "{framing}"`, on other hosts'


class Offloads(Plane):
    """Plain TCP at its best, on hosts without mrcd."""

    key = "offloads"
    title = "TCP, all offloads, no mrcd"
    about = (
        "cubic TCP by plane 0, or by a cable, of hosts where no mrcd runs, with TSO, GSO, GRO and"
        " checksum offload; its large segments cross veths and switches whole unless the case says"
        " otherwise"
    )


class BareMptcp(Mptcp):
    """MPTCP at its best, on hosts without mrcd."""

    key = "bare-mptcp"
    title = "MPTCP, no mrcd"
    about = "MPTCP as above, with all offloads, on hosts where no mrcd runs"


class BareEcmp(Ecmp):
    """Plain TCP by ECMP at its best, on hosts without mrcd."""

    key = "bare-ecmp"
    title = "TCP, ECMP, no mrcd"
    about = "TCP, ECMP as above, with all offloads, on hosts where no mrcd runs"


FRAMINGS = (*flow.FRAMINGS, *flow.ENVELOPES)
"""What mrcd's data may go in: a framing, or cells in an envelope."""

EVERY: tuple[Competitor, ...] = (
    Offloads(), BareMptcp(), BareEcmp(), *map(Framed, FRAMINGS),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Way:
    """A competitor, the lab in which it runs, and what crosses the cables meanwhile."""

    competitor: Competitor
    lab: str
    wire: Wire = Wire.WHOLE

    def send(self, flows: Sequence[Flow], seconds: float) -> tuple[Traffic, float]:
        """Lay the wire, send for `seconds` after the start; return that and the stolen share."""
        wire.lay(self.lab, self.wire)
        processor = Processor()
        seen = traffic.run(self.lab, self.competitor, flows, WARM_S + seconds)
        return seen, processor.stolen()


Ways = Mapping[str, Way]
"""Ways by the titles of their competitors."""


def by_title(*ways: Way) -> dict[str, Way]:
    """Return ways by the titles of their competitors."""
    return {way.competitor.title: way for way in ways}


def competitors(ways: Ways) -> list[Competitor]:
    """Return the competitors, for their turns."""
    return [way.competitor for way in ways.values()]


def with_mrcd(stack: contextlib.ExitStack, arena: Arena, build: Build) -> list[Way]:
    """Build a lab with mrcd for each framing; the first is called mrc0."""
    found = []
    for number, framing in enumerate(arena.framings or (None,)):
        name = f"{arena.name}-{framing}" if number else arena.name
        stack.enter_context(build(name, framing))
        found.append(Way(Framed(str(framing)) if number else Mrc0(), name))
    return found


def without_mrcd(stack: contextlib.ExitStack, arena: Arena) -> str:
    """Build a lab of the arena's shape without mrcd; return its name."""
    name = f"{arena.name}-bare"
    fabric = arena.shape.fabric(name, arena.mtu)
    stack.enter_context(flow.fabric_up(fabric, daemons=False, host_nics=arena.nics))
    return name


def set_up(lab: str, *competitors: Competitor) -> tuple[list[Way], dict[str, str]]:
    """Set up competitors in a lab; return them, and why others take no part, by their titles."""
    found, refused = configuration.usable(lab, competitors)
    return [Way(each, lab) for each in found], refused


def with_and_without(stack: contextlib.ExitStack, arena: Arena, *competitors: Competitor) -> Ways:
    """Build labs with mrcd, and one without in which the competitors are set up."""
    mrcd = with_mrcd(stack, arena, fabric(arena))
    bare, absent = set_up(without_mrcd(stack, arena), *competitors)
    arena.results.absent |= absent
    return by_title(*mrcd, *bare)


def fabric(arena: Arena) -> Build:
    """Return how to build a lab of the arena's shape."""
    count = len(arena.framings or (None,))
    say(f"{count + 1} labs: {arena.shape}, MTU {arena.mtu}, one of them without mrcd")

    def build(name: str, framing: str | None) -> contextlib.AbstractContextManager[object]:
        lab = arena.shape.fabric(name, arena.mtu)
        return flow.fabric_up(lab, settings=flow.framed(framing), host_nics=arena.nics)

    return build


def note(
    arena: Arena, where: Where, what: str, unit: str, value: float, seen: Traffic, stolen: float
) -> None:
    """Note the figure that is compared, TCP's retransmissions, and the CPUs of the round."""
    arena.results.note(where, what, unit, value, seen.busy)
    resent = float(seen.retransmits[-1][1])
    arena.results.note(where, "TCP retransmissions", "", resent, seen.busy)
    note_cpus(arena, where, seen.busy, stolen)


def note_cpus(arena: Arena, where: Where, busy: float, stolen: float) -> None:
    """Note how busy the CPUs were in the round, and what was stolen of them, as shares."""
    arena.results.note(where, BUSY, "%", 100 * busy)
    arena.results.note(where, STEAL, "%", 100 * stolen)
