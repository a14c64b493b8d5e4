# SPDX-License-Identifier: GPL-2.0-only
"""The clock of the data path: a thread that has mrc_tick run while a QP is active.

The thread sees no packets. The programs set a bit for each active QP in a map that is mapped into
this process. While any bit is set, one system call a tick runs mrc_kick once for each active QP,
which has mrc_tick run on a packet of its own if the QP needs it. With no bit set, the thread
announces in the map that it is asleep, looks at the bits once more, and waits for the wake-up event
that the next packet sends through the ring buffer.

The clock is a thread and not a task because a tick must not wait for the daemon's other work, and
because its system call drops the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import threading
import time
from collections.abc import Callable, Mapping

from mrcd.datapath import tuning
from mrcd.datapath.datapath import Datapath
from mrcd.linux import bpf, bpfmap
from mrcd.linux.ringbuf import RingBuffer
from mrcd.wire.abi import ABI

CARRIER = bytes(12) + b"\x86\xdd" + bytes(114)
"""The skb that carries the packets of a tick. Its addresses are zero, by which it is known."""

IDLE_TICKS = 100
"""The clock stays awake for this many idle ticks, because a wake-up costs more than a few looks."""
SAFETY_S = 0.2
"""A sleeping clock looks at the bits at this interval, because a wake-up event may be lost."""
CREDIT_S = 0.1
"""Up to this time's worth of unsent probes may go out at once, because paths fail together."""
LEISURE_S = 0.02
"""Probes of idle paths are sent in bundles, no closer together than this."""


class Clock(threading.Thread):
    """The clock thread of one data path. Start it once programs are loaded; stop() ends it."""

    def __init__(
        self,
        datapath: Datapath,
        planes: int,
        tick_ns: int,
        probe_pps: int,
        on_event: Callable[[dict[str, int]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        super().__init__(name="mrcd-clock", daemon=True)
        self._on_event = on_event
        self._on_failure = on_failure
        words = -(-max(1, datapath.sizes.qps) // 64)
        page = mmap.PAGESIZE
        self._bits = mmap.mmap(
            datapath.maps["active"], -(-words * 8 // page) * page, mmap.MAP_SHARED, mmap.PROT_READ
        )
        self._words = words
        self._clock = mmap.mmap(datapath.maps["clock"], page)
        # A cast view stores a field at once. struct.pack_into writes zeros first, which a program
        # would see.
        self._fields = memoryview(self._clock).cast("Q")
        self._asleep_at = ABI.structs["mrc_clock"].fields["asleep"].offset // 8
        self._credit_at = ABI.structs["mrc_clock"].fields["probe_credit"].offset // 8
        self._ring = RingBuffer(
            datapath.maps["events"], bpfmap.described(datapath.maps["events"]).entries
        )
        self.use(datapath.programs)
        self._judge_s = tuning.JUDGE_NS / 1e9
        # Each plane of each QP is probed once in PROBE_IDLE_NS, if the budget allows.
        self._turns = datapath.sizes.qps * planes / (tuning.PROBE_IDLE_NS / 1e9)
        self._credit = 0.0
        self.retune(tick_ns, probe_pps)
        self._asleep(0)  # an earlier clock may have died while asleep
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.running = False

    def use(self, programs: Mapping[str, int]) -> None:
        """Run these programs (name to descriptor) from now on, also while the clock runs."""
        self._run = bpf.TestRun(programs["mrc_kick"], CARRIER)
        self._judge = bpf.TestRun(programs["mrc_judge"], CARRIER)
        self._idle = bpf.TestRun(programs["mrc_idle"], CARRIER)

    def retune(self, tick_ns: int, probe_pps: int) -> None:
        """Change the period and the budget of probes, also while the clock runs."""
        self._tick_s = tick_ns / 1e9
        self._idle_rate = min(probe_pps / 2, self._turns)
        self._credit_max = max(1.0, probe_pps * CREDIT_S)
        self._probe_pps = probe_pps

    def beats(self) -> int:
        """Return a number that only the programs advance, several times a second even if idle."""
        read = ABI.structs["mrc_clock"].unpack(self._clock[: ABI.structs["mrc_clock"].size])
        return read["ticks"] + read["idle_cursor"] + read["judge_cursor"]

    def stop(self) -> None:
        """End the thread and wait for it."""
        os.write(self._stop_write, b"x")
        self.join()
        os.close(self._stop_read)
        os.close(self._stop_write)
        self._asleep(0)  # there is no thread left to wake
        self._ring.close()
        self._bits.close()
        self._fields.release()
        self._clock.close()

    def _active(self) -> int:
        """Return the number of active QPs."""
        return int.from_bytes(self._bits[: self._words * 8], "little").bit_count()

    def _pay(self, since_s: float) -> None:
        """Grant the probes that the budget allows for a time; save up CREDIT_S of it at most."""
        self._credit = min(self._credit_max, self._credit + self._probe_pps * since_s)
        left = self._fields[self._credit_at]
        whole = int(self._credit)
        if whole and left < self._credit_max:
            self._credit -= whole
            self._fields[self._credit_at] = left + whole

    def _asleep(self, value: int) -> None:
        self._fields[self._asleep_at] = value

    def run(self) -> None:
        """Tick until stop()."""
        with contextlib.suppress(OSError):  # better on time; works without the right to it
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        poll = select.poll()
        poll.register(self._ring.fd, select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        idle = 0
        judged = leisure = paid = time.monotonic()
        try:
            while True:
                active = self._active()
                now = time.monotonic()
                self._pay(now - paid)
                paid = now
                if active and now - judged >= self._judge_s:
                    judged = now
                    self._judge.run(active)
                due = int((now - leisure) * self._idle_rate)
                if due and now - leisure >= LEISURE_S:
                    leisure = now
                    self._idle.run(due)
                if active:
                    idle = 0
                    self.running = True
                    time.sleep(self._tick_s)
                    self._run.run(active)
                    ready = poll.poll(0)
                elif idle < IDLE_TICKS:
                    idle += 1
                    ready = poll.poll(self._tick_s * 1000)
                else:
                    self._asleep(1)
                    if self._active():
                        self._asleep(0)
                        continue
                    self.running = False
                    ready = poll.poll(SAFETY_S * 1000)
                    self._asleep(0)
                for fd, _event in ready:
                    if fd == self._stop_read:
                        return
                for raw in self._ring.take():
                    event = ABI.structs["mrc_event"].unpack(raw)
                    if event["kind"] != ABI.MRC_EVENT_WAKE:
                        self._on_event(event)
        except Exception as error:  # a dead clock must not be a silent one
            self._on_failure(error)
        finally:
            self.running = False
