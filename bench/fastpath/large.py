# SPDX-License-Identifier: GPL-2.0-only
"""Measure what mrcd's programs take of a large segment, of which PROG_TEST_RUN can make none.

A test run takes `gso_size` but no type of segmentation, so that bpf_skb_adjust_room refuses the
packet, and it takes less than a page. So TCP flows, and the kernel counts runs and their time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from bench.instruments import counters, flow, path_states, progstats, wire
from bench.instruments.processor import Processor
from bench.instruments.progstats import Runs
from bench.instruments.result import Line
from bench.instruments.wire import Wire

_TCP_IP = 20 + 32  # IPv4, and TCP with time stamps
_RARE = 50  # programs with fewer runs than one for this many skbs are left out
_WIRES = (Wire.WHOLE, Wire.CUT, Wire.MERGED)
_SIDES = {"sender": "h1", "receiver": "h2"}


@dataclass(frozen=True, slots=True)
class Turn:
    """A flow: skbs and packets of data, and the runs of a side's programs meanwhile."""

    skbs: int
    packets: float
    runs: dict[str, Runs]

    @property
    def ns(self) -> int:
        """Return the time of all programs."""
        return sum(added.ns for added in self.runs.values())

    def means(self) -> dict[str, float]:
        """Return the ns of a run of every program that runs often enough."""
        return {
            program: added.mean_ns
            for program, added in self.runs.items()
            if added.count * _RARE > self.skbs
        }


def large(
    name: str,
    mtu: int,
    rounds: int,
    seconds: float,
    framing: str | None,
    cell_max: int | None = None,
) -> Iterator[Line]:
    """Measure one MTU: large segments that cross the cables whole, and cut ones.

    `cell_max` bounds the length of a cell in bytes; None leaves what mrcd chooses.
    """
    bound: dict[str, int] = {} if cell_max is None else {"cell_max": cell_max}
    with flow.lab_up(name, mtu=mtu, rate_mbps=0, settings=flow.framed(framing, **bound)):
        segment = path_states.status(name, "h1").mrc0.mtu - _TCP_IP
        rates: dict[Wire, list[float]] = {each: [] for each in _WIRES}
        steal: dict[Wire, list[float]] = {each: [] for each in _WIRES}
        turns: dict[tuple[Wire, str], list[Turn]] = {}
        with contextlib.ExitStack() as stack:
            programs = {
                side: stack.enter_context(progstats.programs_of(name, host))
                for side, host in _SIDES.items()
            }
            stack.enter_context(progstats.counted())
            for _ in range(rounds):
                for each in _WIRES:
                    wire.lay(name, each)
                    processor = Processor()
                    rate, found = _flow(name, programs, seconds, segment)
                    rates[each].append(rate / 1e9)
                    steal[each].append(100 * processor.stolen())
                    for side, turn in found.items():
                        turns.setdefault((each, side), []).append(turn)
    for each in _WIRES:
        where = f"MTU {mtu}, {each.name.lower()}"
        if cell_max is not None:
            where += f", cells up to {cell_max}"
        yield Line("large", where, "goodput, counting on", "Gb/s", tuple(rates[each]))
        yield Line("large", where, "steal", "%", tuple(steal[each]))
        for side in _SIDES:
            yield from lines(where, side, turns[each, side])


def _flow(
    name: str, programs: dict[str, dict[str, int]], seconds: float, segment: int
) -> tuple[float, dict[str, Turn]]:
    """Run one TCP connection; return its goodput and what each side's programs did."""
    before = {side: progstats.snapshot(each) for side, each in programs.items()}
    skbs = {side: _skbs(name, side) for side in programs}
    rate = flow.iperf3(name, flow.mrc0_route(name), seconds, skip_s=0)
    packets = rate * seconds / 8 / segment
    return rate, {
        side: Turn(
            _skbs(name, side) - skbs[side],
            packets,
            {
                program: runs.since(before[side][program])
                for program, runs in progstats.snapshot(each).items()
            },
        )
        for side, each in programs.items()
    }


def _skbs(name: str, side: str) -> int:
    """Return the skbs that the sender's mrc0 has sent, or the receiver's has received."""
    namespace = f"{name}-{_SIDES[side]}"
    count = counters.sent_packets if side == "sender" else counters.received_packets
    (found,) = count(namespace, ("mrc0",))
    return found


def lines(where: str, side: str, turns: list[Turn]) -> Iterator[Line]:
    """Yield the figures of one side: of a run, an skb and a packet."""
    means = [turn.means() for turn in turns]
    for program in means[0]:
        values = tuple(each[program] for each in means if program in each)
        yield Line("large", where, f"{side}, {program}, a run", "ns", values)
    for what, unit, values in (
        ("packets in an skb", "", [turn.packets / turn.skbs for turn in turns]),
        ("all programs, an skb", "ns", [turn.ns / turn.skbs for turn in turns]),
        ("all programs, a packet", "ns", [turn.ns / turn.packets for turn in turns]),
    ):
        yield Line("large", where, f"{side}, {what}", unit, tuple(values))
