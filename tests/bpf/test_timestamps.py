# SPDX-License-Identifier: GPL-2.0-only
"""Time stamps: packets carry the time of sending, and answers reflect stamps unchanged."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from mrcd.wire.packet import Control, Peth, Sack, Timestamp, decode_frame
from rigs.packets import Far, ip4, sent_at, wire_time
from rigs.rig import Rig, clock_passes

OUT = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")


def stamped_between(run: Callable[[], object], read: Callable[[], int]) -> bool:
    """Return whether the time stamp that `read` finds afterwards lies within the run."""
    before = wire_time(time.monotonic_ns())
    run()
    after = wire_time(time.monotonic_ns())
    return read() - before & 0xFFFF <= after - before & 0xFFFF


def test_data_says_when_it_was_sent(rig: Rig) -> None:
    frames: list[bytes] = []
    for _ in range(3):
        clock_passes(300_000)
        assert stamped_between(
            lambda: frames.append(rig.spray(OUT).frame), lambda: sent_at(frames[-1])
        )


def test_retransmission_says_when_it_was_sent_again(rig: Rig, far: Far) -> None:
    rig.spray(OUT)
    rig.spray(OUT)
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    clock_passes(300_000)
    assert stamped_between(
        lambda: rig.arrive(far.sack(999, 0b10)), lambda: sent_at(rig.sent()[0][1])
    )


def test_probe_says_when_it_was_sent(rig: Rig, far: Far) -> None:
    rig.spray(OUT)
    rig.spray(OUT)
    rig.tune(reo_min_ns=0, reo_max_ns=0, probe_interval_ns=1)
    rig.arrive(far.sack(999, 0b10))
    rig.sent()
    clock_passes(300_000)

    def stamp_of_probe() -> int:
        (probe,) = (
            packet
            for packet in map(decode_frame, (f for _p, f in rig.sent()))
            if isinstance(packet, Control)
        )
        assert isinstance(probe.body, Peth)
        assert probe.body.timestamp == Timestamp(probe.body.timestamp.tx_timestamp, ftype=1)
        return probe.body.timestamp.tx_timestamp

    assert stamped_between(rig.tick, stamp_of_probe)


@pytest.mark.parametrize("sent", [0, 0x1234, 0xFFFF])
def test_sack_reflects_the_stamp_of_what_caused_it(rig: Rig, far: Far, sent: int) -> None:
    rig.arrive(far.data(5000, ip4(), sent=0x5555))
    sack = decode_frame(rig.arrive(far.data(5001, ip4(), ackreq=True, sent=sent)).frame)
    assert isinstance(sack, Sack)
    assert sack.cc_state.tx_timestamp == sent
    duplicate = decode_frame(rig.arrive(far.data(5001, ip4(), sent=sent ^ 1)).frame)
    assert isinstance(duplicate, Sack)
    assert duplicate.cc_state.tx_timestamp == sent ^ 1


@pytest.mark.parametrize("sent", [0, 0x1234, 0xFFFF])
def test_answer_to_a_probe_reflects_its_stamp(rig: Rig, far: Far, sent: int) -> None:
    answer = decode_frame(rig.receive(far.probe(7, sent=sent)).frame)
    assert isinstance(answer, Sack)
    assert answer.cc_state.tx_timestamp == sent
