# SPDX-License-Identifier: GPL-2.0-only
"""QPs that give up: when they do, what they still take, and how the daemon learns of it."""

from __future__ import annotations

import time

import pytest

from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE
from rigs.packets import Far, numbered
from rigs.rig import DROPPED, RING_SLOTS, TC_REDIRECT, TC_SHOT, Rig
from tests.bpf.test_sack import FIRST as FIRST_TX
from tests.bpf.test_sack import outgoing, resent, spray
from tests.bpf.test_window import hold, narrow

LIMIT, SECONDS = 3, 2
SECOND_NS = 1_000_000_000
EVENT = ABI.structs["mrc_event"]


def bounded(rig: Rig, limit: int = LIMIT, seconds: int = SECONDS) -> None:
    """Bound retries; time-outs come at every tick."""
    rig.tune(rto_min_ns=1, retry_limit=limit, retry_s=seconds)


def retry(rig: Rig, times: int) -> None:
    """Have the oldest packets sent again by time-outs, without the wait for them."""
    for _ in range(times):
        rig.edit("txs", 0, "mrc_tx", progress_ns=0, backoff=0)
        rig.tick()


def age(rig: Rig, seconds: float) -> None:
    """Let so much time pass since the last acknowledgement."""
    rig.edit("txs", 0, "mrc_tx", moved_ns=time.monotonic_ns() - int(seconds * SECOND_NS))


def state(rig: Rig, index: int = 0) -> int:
    return rig.view(index).qp["state"]


def failures(rig: Rig) -> list[tuple[int, int]]:
    """Return QP and cause of the events that report a failure."""
    events = [EVENT.unpack(raw) for raw in rig.events.take()]
    return [
        (event["qp"], event["cause"]) for event in events if event["kind"] == ABI.MRC_EVENT_FAILED
    ]


def test_limits_are_passed_together(rig: Rig) -> None:
    bounded(rig)
    spray(rig, 2)
    retry(rig, LIMIT)
    age(rig, SECONDS + 1)
    retry(rig, 1)  # sends it again once more than the limit
    assert state(rig) == ABI.MRC_QP_READY
    age(rig, SECONDS + 1)
    retry(rig, 1)
    assert state(rig) == ABI.MRC_QP_ERROR
    counted = rig.counted()
    assert (counted["qp_failed"], counted["given_up"]) == (1, 2)
    assert rig.tx()["failed"] == ABI.MRC_FAILED_RETRIES
    assert failures(rig) == []  # the next visit of the clock reports it
    rig.tick()
    assert failures(rig) == [(0, ABI.MRC_FAILED_RETRIES)]
    rig.tick()
    assert failures(rig) == []
    assert not rig.active()


@pytest.mark.parametrize(
    ("limit", "seconds", "times", "aged"),
    [
        (LIMIT, SECONDS, 20, SECONDS / 2),  # often, but not for long
        (20, SECONDS, 4, SECONDS + 1),  # for long, but not often
        (0, SECONDS, 20, SECONDS + 1),  # no limit
        (LIMIT, 0, 20, SECONDS + 1),
        (LIMIT, 86_400, 20, 100),
    ],
)
def test_one_limit_alone_ends_no_qp(
    rig: Rig, limit: int, seconds: int, times: int, aged: float
) -> None:
    bounded(rig, limit, seconds)
    spray(rig, 1)
    age(rig, aged)
    retry(rig, times)
    assert state(rig) == ABI.MRC_QP_READY
    assert "qp_failed" not in rig.counted()


def test_defaults_outlast_an_outage_of_minutes(rig: Rig) -> None:
    transport = rig.config.transport
    assert transport.retry_s > 600
    bounded(rig, transport.retry_limit, transport.retry_s)
    spray(rig, 1)
    age(rig, 100)  # CLOCK_MONOTONIC of the machine may not be much older
    retry(rig, 300)
    assert state(rig) == ABI.MRC_QP_READY


def test_acknowledgement_begins_anew(rig: Rig, far: Far) -> None:
    bounded(rig)
    spray(rig, 2)
    retry(rig, LIMIT + 1)
    age(rig, SECONDS + 1)
    rig.arrive(far.sack(FIRST_TX))
    retry(rig, 1)
    assert state(rig) == ABI.MRC_QP_READY
    assert time.monotonic_ns() - rig.tx()["moved_ns"] < SECOND_NS


def test_first_packet_after_a_pause_has_all_its_time(rig: Rig, far: Far) -> None:
    bounded(rig, 1, 1)
    spray(rig, 1)
    rig.arrive(far.sack(FIRST_TX))
    age(rig, 100)
    spray(rig, 1)
    retry(rig, 3)
    assert state(rig) == ABI.MRC_QP_READY


def test_unexpected_event_ends_the_qp(rig: Rig, far: Far) -> None:
    spray(rig, 3)
    rig.arrive(far.nack(FIRST_TX + 1, reason=WIRE.MRC_NACK_UNEXP_EVENT))
    assert state(rig) == ABI.MRC_QP_ERROR
    assert resent(rig) == []
    counted = rig.counted()
    assert (counted["nack_rx_event"], counted["qp_failed"], counted["given_up"]) == (1, 1, 3)
    rig.tick()
    assert failures(rig) == [(0, ABI.MRC_FAILED_EVENT)]


def give_up(rig: Rig, far: Far) -> None:
    spray(rig, 2)
    rig.arrive(far.nack(FIRST_TX, reason=WIRE.MRC_NACK_UNEXP_EVENT))
    rig.counted()


def test_qp_in_error_takes_and_sends_nothing(rig: Rig, far: Far) -> None:
    bounded(rig, 0)
    give_up(rig, far)
    assert rig.spray(outgoing(0)).verdict == TC_SHOT
    assert rig.counted() == {"drop_qp_error": 1}
    for frame in (far.data(5000, numbered(1)), far.sack(FIRST_TX), far.probe(1)):
        assert rig.receive(frame).verdict == DROPPED
    assert rig.counted() == {"drop_qpn": 3}
    retry(rig, 2)
    assert rig.sent() == []


def test_what_waits_for_the_window_is_given_up_too(rig: Rig, far: Far) -> None:
    narrow(rig)
    spray(rig, 2)
    hold(rig, 3)
    rig.arrive(far.nack(FIRST_TX, reason=WIRE.MRC_NACK_UNEXP_EVENT))
    assert rig.counted()["given_up"] == 5


def test_reset_gives_back_what_it_held_and_keeps_the_state(rig: Rig, far: Far) -> None:
    give_up(rig, far)
    assert rig.table.has_failed(0)
    assert rig.free_slots("tx_free") == RING_SLOTS - 2
    for _ in range(2):
        rig.table.reset((0,))
        assert rig.free_slots("tx_free") == RING_SLOTS
        assert (state(rig), rig.view(0).qp["qpn"]) == (ABI.MRC_QP_ERROR, 0)
        assert not rig.table.has_failed(0)
    assert rig.table.quiet()
    assert rig.spray(outgoing(0)).verdict == TC_SHOT
    assert rig.counted() == {"drop_qp_error": 1}
    rig.connect()
    assert (state(rig), rig.tx()["failed"]) == (ABI.MRC_QP_READY, 0)
    assert rig.spray(outgoing(0)).verdict == TC_REDIRECT


def test_other_qps_go_on(rig: Rig, far: Far) -> None:
    rig.connect("h2", 1, qpn=0x550000, remote_qpn=0x660001)
    give_up(rig, far)
    rig.spread("h2", 1, 1)
    assert state(rig, 1) == ABI.MRC_QP_READY
    assert rig.spray(outgoing(0)).verdict == TC_REDIRECT
