# SPDX-License-Identifier: GPL-2.0-only
"""The daemon's part of the data path's clock: it makes the first beat, and another if one is lost.

The clock itself needs no process: a packet circles in the kernel, and mrc_beat runs whenever it
arrives (bpf/beat.c). Something else on the host may drop that packet, or set one of its interfaces
down. The daemon therefore looks at the count of beats now and then. It also reads what the programs
report through the ring buffer.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
from collections.abc import Callable, Mapping
from typing import Final

from mrcd.datapath.datapath import Datapath
from mrcd.linux import bpf, bpfmap
from mrcd.linux.ringbuf import RingBuffer
from mrcd.model import TickState
from mrcd.service.findings import Findings
from mrcd.service.log import get_logger
from mrcd.wire.abi import ABI

log = get_logger()

CARRIER = bytes(12) + b"\x86\xdd" + bytes(114)
"""The packet of a test run that sends packets."""

LOOK_S: Final = 0.1
"""Time between two looks at the count of beats: several beats, also while they are slow."""
LOOK_TICKS: Final = 3
"""... and this number of ticks at least."""
LOST_LOOKS: Final = 10
"""Number of looks in a row at which a new beat did not help, after which status names the clock."""
SOURCE: Final = "clock"

_CLOCK = ABI.structs["mrc_clock"]


class Clock:
    """The supervision of one data path's clock, in the event loop: `start` first, `stop` last."""

    def __init__(
        self,
        datapath: Datapath,
        tick_ns: int,
        on_event: Callable[[dict[str, int]], None],
        on_failure: Callable[[Exception], None],
        findings: Findings,
    ) -> None:
        self._on_event = on_event
        self._on_failure = on_failure
        self._findings = findings
        self._loop = asyncio.get_running_loop()
        self._clock = mmap.mmap(
            datapath.maps["clock"], mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ
        )
        self._ring = RingBuffer(
            datapath.maps["events"], bpfmap.described(datapath.maps["events"]).entries
        )
        self._next: asyncio.TimerHandle | None = None
        self._before = -1  # the count of beats at the last look
        self._lost = 0  # looks in a row that found no beat
        self.use(datapath.programs)
        self.retune(tick_ns)

    def use(self, programs: Mapping[str, int]) -> None:
        """Make beats with these programs (name to descriptor) from now on."""
        context = struct.pack("=III", 0, 0, ABI.MRC_WAKE_MARK)  # __sk_buff: len, pkt_type, mark
        self._wake = bpf.TestRun(programs["mrc_beat"], CARRIER, context=context)

    def retune(self, tick_ns: int) -> None:
        """Expect beats at this interval, while anything is outstanding."""
        self._look_s = max(LOOK_S, LOOK_TICKS * tick_ns / 1e9)

    def start(self) -> None:
        """Make a beat, which ends the one before, and begin to look after it."""
        self.make_beat()
        self._loop.add_reader(self._ring.fd, self._read_events)
        self._next = self._loop.call_later(self._look_s, self._look)

    def stop(self) -> None:
        """Let the clock go on alone."""
        if self._next is None:
            return
        self._next.cancel()
        self._next = None
        self._loop.remove_reader(self._ring.fd)
        self._ring.close()
        self._clock.close()

    def make_beat(self) -> None:
        """Make a beat. The one before ends, wherever it is."""
        try:
            self._wake.run()
        except OSError as error:
            log.error("clock.failed", error=str(error))
            self._on_failure(error)

    def beats(self) -> int:
        """Return the number of beats so far, which advances several times a second even if idle."""
        return self._read()["beats"]

    @property
    def state(self) -> TickState:
        """Whether QPs are looked after, no QP needs that, or the clock stands still."""
        clock = self._read()
        if self._lost and clock["beats"] == self._before:
            return "stopped"
        return "idle" if clock["resting"] else "running"

    def _read(self) -> dict[str, int]:
        return _CLOCK.unpack(self._clock[: _CLOCK.size])

    def _look(self) -> None:
        """Make another beat if there was none since the last look."""
        self._next = self._loop.call_later(self._look_s, self._look)
        beats = self.beats()
        if beats != self._before:
            self._before = beats
            if self._lost:
                log.warning("clock.goes_on", seconds=round(self._lost * self._look_s, 1))
                self._lost = 0
                self._findings.replace(SOURCE, {})
            return
        self._lost += 1
        if self._lost == LOST_LOOKS:
            text = (
                "the clock of the data path stands still: nothing finds lost tails or probes paths."
                " Something else on this host drops the packet that circles in the interfaces"
                " beside mrc0 whose names end in b and bp; remedy: `tc filter show dev NAME"
                " ingress` and `nft list ruleset` show what does"
            )
            self._findings.replace(SOURCE, {SOURCE: text})
        self.make_beat()

    def _read_events(self) -> None:
        """Pass on what the programs report."""
        for raw in self._ring.take():
            event = ABI.structs["mrc_event"].unpack(raw)
            if event["kind"] == ABI.MRC_EVENT_WAKE:
                self.make_beat()
            else:
                self._on_event(event)
