# SPDX-License-Identifier: GPL-2.0-only
"""Measure each program for each kind of packet by PROG_TEST_RUN (bench/fastpath/loaded.py)."""

from __future__ import annotations

import gc
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from bench.fastpath.loaded import (
    TX_ENTRY,
    USUAL_SACKS,
    Harness,
    Loaded,
    Make,
    Timing,
    bench,
    mean_ns,
    spraying,
    timed,
)
from bench.instruments import progstats
from bench.instruments.result import Line
from mrcd.fabric import usid
from mrcd.linux import bpf
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE
from rigs.packets import ip4, wire_time
from rigs.rig import HANDED_OVER, TC_REDIRECT, TC_SHOT, beat_of

PLANE = 0  # every shape has it
EV = usid.ev(PLANE, 2)
_OUT = 16384
_HEAD = 128
"""Bytes of a packet passed to a tc program, where the packet is grown to its length."""
_ETHERNET, _SHORT = 14, 1000
_HELD = 16
"""The number of packets held behind a gap."""


@dataclass(frozen=True, slots=True)
class Case:
    """A program and a kind of packet; `per` is the number of packets that one run handles."""

    program: str
    kind: str
    measure: Timing
    per: int = 1


def cases(side: Loaded, harness: Harness, packets: int) -> Iterator[Case]:
    """Yield all cases to time, with packets as large as mrc0's MTU."""
    full, here = side.mtu, Arrivals(side, harness, packets)
    sack = min(USUAL_SACKS["sack_packets"], -(-USUAL_SACKS["sack_bytes"] // full))
    yield Case("mrc_spray", "data", spraying(side, harness, packets, full))
    yield Case("mrc_receive", "data", here.receive_data)
    yield Case("mrc_deliver", "data, in order", here.in_order)
    yield Case("mrc_deliver", "data, answered by a SACK", here.answered)
    yield Case("mrc_deliver", "data, ahead of a gap", here.ahead)
    yield Case("mrc_deliver", f"data that fills a gap, each of {_HELD} behind", here.fills, _HELD)
    yield Case("mrc_receive", "SACK", Sacks(side, harness, packets, sack).receive)
    yield Case("mrc_deliver", f"SACK of {sack}", Sacks(side, harness, packets, sack).deliver)
    yield Case("mrc_deliver", "SACK of 64", Sacks(side, harness, packets, 64).deliver)
    yield Case("mrc_deliver", "NACK, sent again", Sacks(side, harness, packets, 1).nack)
    yield Case("mrc_receive", "probe", Probes(side, harness, packets).probe)
    yield Case("mrc_receive", "answer to a probe", Probes(side, harness, packets).reply)
    yield Case("mrc_beat", "nothing to watch", clock(side, "mrc_beat", packets))
    yield Case("mrc_judge", "nothing to judge", clock(side, "mrc_judge", packets))


class Arrivals:
    """Data from the peer."""

    def __init__(
        self, side: Loaded, harness: Harness, packets: int, size: int | None = None
    ) -> None:
        self._side, self._harness, self._packets = side, harness, packets
        self._payload = ip4(bytes((size or side.mtu) - 28), src="10.99.0.2", dst="10.99.0.1")

    def _short_frame(self, psn: int, *, ackreq: bool = False) -> bytes:
        """Return a packet that a test run takes: mrc_receive does not touch the payload."""
        packet = ip4(bytes(_SHORT), src="10.99.0.2", dst="10.99.0.1")
        return self._side.far.data(psn, packet, EV, ackreq=ackreq)

    def receive_data(self) -> tuple[list[int], list[int]]:
        """Time mrc_receive. It changes no window, so the same packet can be repeated."""
        frame = self._short_frame(self._side.next_psn())
        run, floor = self._side.arriving(frame, PLANE), self._harness.arrival_floor(frame)
        return (
            timed([run] * self._packets, HANDED_OVER),
            timed([floor] * self._packets, TC_SHOT),
        )

    def _stripped(self, psn: int, *, ackreq: bool = False) -> bytes:
        """Return a packet as mrc_receive passes it on."""
        run = self._side.arriving(self._short_frame(psn, ackreq=ackreq), PLANE, out=_OUT)
        assert run.run() == HANDED_OVER
        return run.output[:_ETHERNET] + self._payload + bytes(WIRE.MRC_ICRC_LEN)

    def _deliver(self, psns: list[int], *, ackreq: bool = False) -> list[bpf.TestRun]:
        pattern = bytearray(self._stripped(psns[0], ackreq=ackreq))
        self._harness.aim(self._side.program("mrc_deliver"), len(pattern))
        mark = ABI.structs["mrc_mark"].fields
        runs = []
        for psn in psns:
            pattern[mark["psn_hi"].offset] = psn >> 16 & 0xFF
            struct.pack_into("=H", pattern, mark["psn_lo"].offset, psn & 0xFFFF)
            runs.append(self._harness.tc(bytes(pattern[:_HEAD])))
        self._floor = [self._harness.tc_floor(bytes(pattern[:_HEAD]))]
        return runs

    def in_order(self) -> tuple[list[int], list[int]]:
        """Time packets that arrive in order."""
        first = self._side.next_psn()
        took = timed(self._deliver(list(range(first, first + self._packets))), TC_SHOT)
        assert self._side.next_psn() == first + self._packets
        return took, timed(self._floor * self._packets, TC_SHOT)

    def answered(self) -> tuple[list[int], list[int]]:
        """Time packets that arrive in order, each answered by a SACK."""
        first = self._side.next_psn()
        runs = self._deliver(list(range(first, first + self._packets)), ackreq=True)
        return timed(runs, TC_REDIRECT), timed(self._floor * self._packets, TC_SHOT)

    def ahead(self) -> tuple[list[int], list[int]]:
        """Time packets that are stored behind a gap; filling the gap is not timed."""
        took: list[int] = []
        for runs, last in self._gaps():
            took += timed(runs, TC_SHOT)
            timed([last], TC_SHOT)
        return took, timed(self._floor * len(took), TC_SHOT)

    def fills(self) -> tuple[list[int], list[int]]:
        """Time the packet that fills a gap and delivers all packets behind it."""
        took: list[int] = []
        for runs, last in self._gaps():
            timed(runs, TC_SHOT)
            took += timed([last], TC_SHOT)
        return took, timed(self._floor * len(took), TC_SHOT)

    def _gaps(self) -> Iterator[tuple[list[bpf.TestRun], bpf.TestRun]]:
        for _ in range(max(4, self._packets // _HELD)):
            gap = self._side.next_psn()
            last, *runs = self._deliver(list(range(gap, gap + _HELD + 1)))
            yield runs, last
            assert self._side.next_psn() == gap + _HELD + 1, "not everything was delivered"


class Sacks:
    """SACKs and NACKs of the peer's; each SACK acknowledges `of` packets."""

    def __init__(
        self, side: Loaded, harness: Harness, packets: int, of: int, size: int | None = None
    ) -> None:
        self._side, self._harness, self._of = side, harness, of
        self._size = size or side.mtu
        self._times = max(8, min(packets, side.make.mpr // 2 // of))

    def _send(self) -> range:
        """Send `of` packets for each SACK; return their PSNs."""
        side, packets = self._side, self._of * self._times
        self._harness.aim(side.program("mrc_spray"), 14 + self._size)
        timed([self._harness.tc(side.frame_to_spray())] * packets, TC_REDIRECT)
        following = side.dp.read("txs", 0, ABI.structs["mrc_tx"])["next"]
        return range(following - packets, following)

    def _sacks(self) -> list[bytes]:
        """Return SACKs that each acknowledge `of` more packets and reflect the last one's time."""
        frames, mpr = [], self._side.make.mpr // WIRE.MRC_MPR_UNIT
        for psn in self._send()[self._of - 1 :: self._of]:
            entry = self._side.dp.read("tx_entries", psn % self._side.dp.sizes.window, TX_ENTRY)
            stamp = wire_time(entry["sent_ns"])
            sack = self._side.far.sack(psn, trigger=psn, ev=EV, ts=stamp, received=psn, mpr=mpr)
            frames.append(sack)
        return frames

    def receive(self) -> tuple[list[int], list[int]]:
        """Time mrc_receive, which passes SACKs on."""
        frames, side = self._sacks(), self._side
        side.acknowledge()
        floor = self._harness.arrival_floor(frames[0])
        took = timed([side.arriving(frame, PLANE) for frame in frames], HANDED_OVER)
        return took, timed([floor] * len(frames), TC_SHOT)

    def _through(self, frames: list[bytes]) -> tuple[list[int], list[int]]:
        runs = [self._side.arriving(frame, PLANE, out=_OUT) for frame in frames]
        timed(runs, HANDED_OVER)
        self._harness.aim(self._side.program("mrc_deliver"), 0)
        took = timed([self._harness.tc(run.output) for run in runs], TC_SHOT)
        return took, timed([self._harness.tc_floor(runs[0].output)] * len(runs), TC_SHOT)

    def deliver(self) -> tuple[list[int], list[int]]:
        """Time mrc_deliver and mrc_learn, which process SACKs."""
        both = self._through(self._sacks())
        tx = self._side.dp.read("txs", 0, ABI.structs["mrc_tx"])
        # One SACK does a bounded number of steps, and the next one does the rest.
        assert tx["next"] - tx["una"] <= self._of // 32, "not everything was acknowledged"
        self._side.acknowledge()
        return both

    def nack(self) -> tuple[list[int], list[int]]:
        """Time mrc_deliver and mrc_resend, which retransmit packets after NACKs."""
        far, before = self._side.far, self._side.dp.counters()["rtx_nack"]
        frames = [far.nack(psn, EV, about=self._side.ev_of(psn)) for psn in self._send()]
        both = self._through(frames)
        assert self._side.dp.counters()["rtx_nack"] == before + self._times
        self._side.acknowledge()
        return both


class Probes:
    """The peer's probes, and its answers to ours."""

    def __init__(self, side: Loaded, harness: Harness, packets: int) -> None:
        self._side, self._harness, self._packets = side, harness, packets

    def probe(self) -> tuple[list[int], list[int]]:
        """Time a probe that is turned round on its path."""
        return self._both(self._side.far.probe(77, EV), TC_REDIRECT)

    def reply(self) -> tuple[list[int], list[int]]:
        """Time answers to probes of ours."""
        side, took, floor = self._side, [], []
        path = side.path_in_use()
        for number in range(self._packets // 4):
            probe_id = path.slot << 9 | number & 0x1FF
            side.asked(path, probe_id)
            frame = side.far.probe_reply(probe_id, path.ev)
            took += timed([side.arriving(frame, path.plane)], TC_SHOT)
            floor += timed([self._harness.arrival_floor(frame)], TC_SHOT)
        return took, floor

    def _both(self, frame: bytes, verdict: int) -> tuple[list[int], list[int]]:
        floor = self._harness.arrival_floor(frame)
        return (
            timed([self._side.arriving(frame, PLANE)] * self._packets, verdict),
            timed([floor] * self._packets, TC_SHOT),
        )


def clock(side: Loaded, program: str, packets: int) -> Timing:
    """Time a program of the clock; it leaves its packet unchanged, so one call can repeat it."""

    def measure() -> tuple[list[int], list[int]]:
        run = bpf.TestRun(side.program(program), beat_of(0))
        took = []
        for _ in range(20):
            run.run(50 * packets)
            took.append(run.duration_ns)
        return took, [0]

    return measure


def programs(name: str, mtus: list[int], rounds: int, packets: int) -> Iterator[Line]:
    """Yield a line for each program, kind of packet and MTU; the data paths take turns."""
    with bench(name) as (folder, ifindex, harness):
        sides = [Loaded(Make(mtu=mtu), folder / str(mtu), ifindex) for mtu in mtus]
        yield from _lengths(sides[0])
        yield from _rounds(sides, harness, rounds, packets)
        for side in sides:
            side.close()


def _lengths(side: Loaded) -> Iterator[Line]:
    """Yield the lengths of the programs as the kernel runs them."""
    for program, fd in side.dp.programs.items():
        instructions, native = progstats.lengths(fd)
        yield Line("programs", "length", program, "instructions", (instructions,))
        yield Line("programs", "length", program, "bytes of native code", (native,))


def _rounds(sides: list[Loaded], harness: Harness, rounds: int, packets: int) -> Iterator[Line]:
    every = [(side, case) for side in sides for case in cases(side, harness, packets)]
    values: dict[tuple[int, str, str], list[float]] = {}
    rng = random.Random(1)
    gc.disable()
    try:
        for number in range(rounds + 1):
            for side, case in rng.sample(every, len(every)):
                took, floor = case.measure()
                gc.collect()
                if number:  # the first was for warming up
                    ns = (mean_ns(took) - mean_ns(floor)) / case.per
                    key = (side.make.mtu, case.program, case.kind)
                    values.setdefault(key, []).append(ns)
    finally:
        gc.enable()
    for side, case in every:
        found = values[side.make.mtu, case.program, case.kind]
        where = f"MTU {side.make.mtu}"
        yield Line("programs", where, f"{case.program}: {case.kind}", "ns", tuple(found))
