# SPDX-License-Identifier: GPL-2.0-only
"""mrc_beat: the packet that circles, and what it does at each beat."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from mrcd.datapath import clock as clock_of_daemon
from mrcd.datapath.clock import Clock
from mrcd.linux import bpf, ethtool
from mrcd.linux.rtnl import buckets
from mrcd.service.findings import Findings
from mrcd.wire.abi import ABI
from mrcd.wire.packet import Control, Data, Peth, Sack, decode_frame
from rigs.circle import DEADLINE_S, FAST, LENGTH, SLOW, Circle, until
from rigs.packets import Far, ip4, numbered
from rigs.rig import PLANES, TC_REDIRECT, TC_SHOT, Rig, clock_passes

FIRST_TX, FIRST_RX = 1000, 5000
SECOND_NS = 1_000_000_000
PACKET = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")
CALM = 100  # CALM_BEATS of bpf/beat.c
_SO_MARK, _PACKET_VNET_HDR, _SOL_PACKET = 36, 15, 263


def clones(rig: Rig) -> list[bytes]:
    """Return the clones of the beat that were sent since the last call."""
    return [frame for frame in rig.rest.take() if len(frame) == LENGTH]


def sent(rig: Rig) -> list[Data | Sack | Control]:
    return [decode_frame(frame) for _plane, frame in rig.sent()]


# ---- one beat


def test_beat_goes_on_and_is_counted(rig: Rig) -> None:
    before = time.monotonic_ns()
    assert rig.beat() == TC_REDIRECT
    assert rig.beat() == TC_REDIRECT
    clock = rig.clock()
    assert clock["beats"] == 2
    assert before < clock["beat_ns"] < time.monotonic_ns()
    assert clock["ticks"] == 0
    assert clones(rig) == []


def test_beat_of_another_generation_ends(rig: Rig) -> None:
    rig.dp.write("clock", 0, ABI.structs["mrc_clock"], generation=7)
    assert rig.beat(generation=6) == TC_SHOT
    assert rig.beat(generation=8) == TC_SHOT
    assert rig.clock()["beats"] == 0
    assert rig.beat(generation=7) == TC_REDIRECT


@pytest.mark.parametrize("frame", [bytes(60), b"\x01" * LENGTH, bytes(LENGTH)])
def test_other_packets_do_not_pass(rig: Rig, frame: bytes) -> None:
    context = struct.pack("=40xI", rig.ifindex["rest"])
    run = bpf.TestRun(rig.dp.programs["mrc_beat"], frame, context=context)
    assert run.run() == TC_SHOT
    assert rig.clock()["beats"] == 0


def test_every_active_qp_is_looked_at(rig: Rig, far: Far) -> None:
    """Whichever word of the bitmap it is in, and only what needs a tick gets a packet."""
    last = rig.dp.sizes.qps - 1
    rig.spray(PACKET)  # QP 0 needs nothing yet
    for index in (1, 7, last):
        rig.connect("h2", index, qpn=0x100000, remote_qpn=0x200000 | index)
        rig.arrive(far.data(FIRST_RX, numbered(index), qpn=0x100000 | index))
    rig.beat()
    assert rig.clock()["ticks"] == 4
    assert len(clones(rig)) == 3
    assert rig.active() == [0, 1, 7, last]


def test_more_qps_than_one_run_takes_are_looked_at(rig: Rig) -> None:
    qps = rig.dp.sizes.qps
    for index in range(qps):
        rig.connect("h2", index, qpn=0x100000, remote_qpn=0x200000 | index)
    everything = struct.pack("=Q", (1 << qps) - 1)
    bpf.update(rig.dp.maps["active"], struct.pack("=I", 0), everything)
    rig.beat()
    assert rig.clock()["ticks"] == qps
    assert rig.active() == []  # none has anything to do


def test_qp_with_nothing_left_rests(rig: Rig, far: Far) -> None:
    rig.spray(PACKET)
    rig.arrive(far.sack(FIRST_TX))
    assert rig.active() == [0]
    rig.beat()
    assert clones(rig) == []
    assert rig.active() == []


def test_qp_that_does_not_get_on_is_ticked(rig: Rig) -> None:
    """Time-outs begin anew with each attempt; how long una has stood still does not."""
    rig.spray(PACKET)
    rig.tune(rto_min_ns=SECOND_NS)
    now = time.monotonic_ns()
    rig.edit("txs", 0, "mrc_tx", progress_ns=now, moved_ns=now - SECOND_NS)
    rig.beat()
    assert len(clones(rig)) == 1


def test_peers_that_are_due_are_judged(rig: Rig) -> None:
    rig.connect("h3", 16, qpn=0x100000, remote_qpn=0x200010)
    rig.spray(PACKET)
    rig.spray(ip4(b"out", src="10.99.0.1", dst="10.99.0.3"))
    rig.tune(judge_ns=SECOND_NS)
    before = time.monotonic_ns()
    rig.beat()
    peers = rig.table.peers.indices
    for name in ("h2", "h3"):
        balance = rig.dp.read("balances", peers[name], ABI.structs["mrc_balance"])
        assert balance["judge_at_ns"] > before + SECOND_NS


# ---- probes


def test_budget_of_probes_grows_with_time_up_to_its_bound(rig: Rig) -> None:
    rig.tune(probe_gap_ns=1_000_000, probe_most=5)
    rig.dp.write("clock", 0, ABI.structs["mrc_clock"], paid_ns=time.monotonic_ns())
    clock_passes(2_100_000)
    rig.beat()
    granted = rig.clock()["probe_credit"]
    assert granted >= 2
    clock_passes(20_000_000)
    rig.beat()
    assert rig.clock()["probe_credit"] == 5


def test_no_probe_is_granted_twice(rig: Rig) -> None:
    rig.tune(probe_gap_ns=SECOND_NS, probe_most=5)
    began = time.monotonic_ns()
    rig.dp.write("clock", 0, ABI.structs["mrc_clock"], paid_ns=began - SECOND_NS)
    for _ in range(50):
        rig.beat()
    assert rig.clock()["probe_credit"] == 1 + (rig.clock()["beat_ns"] - began) // SECOND_NS


def test_idle_paths_are_probed_in_bundles(rig: Rig) -> None:
    gap_ns = 1_000_000
    rig.tune(idle_gap_ns=gap_ns)
    rig.dp.write("clock", 0, ABI.structs["mrc_clock"], idle_ns=time.monotonic_ns())
    rig.beat()
    assert clones(rig) == []
    clock_passes(20 * gap_ns)
    rig.beat()
    assert len(clones(rig)) == 1
    rig.beat()
    assert clones(rig) == []


def test_a_bundle_asks_as_many_times_as_its_mark_says(rig: Rig) -> None:
    rig.tune(probe_idle_ns=0)
    rig.run_marked("mrc_idle", ABI.MRC_IDLE_MARK | PLANES)
    assert all(isinstance(packet.body, Peth) for packet in sent(rig))
    assert rig.clock()["idle_cursor"] == PLANES


# ---- the packet that circles


@pytest.fixture
def circle(rig: Rig) -> Iterator[Circle]:
    made = Circle(rig)
    try:
        yield made
    finally:
        made.stop()


def rested(circle: Circle) -> None:
    """Wait until the beat goes out by the slow end."""
    until(lambda: circle.rig.clock()["resting"] == 1)
    slow = circle.left("rest")
    until(lambda: circle.left("rest") >= slow + 2)


def test_beats_come_by_themselves_and_rest_without_work(circle: Circle) -> None:
    circle.wake()
    assert circle.goes_on(CALM)
    rested(circle)
    fast = circle.left("beat")
    assert circle.goes_on()
    assert circle.left("beat") == fast  # only slow ones


def test_fast_beats_are_a_tick_apart(circle: Circle) -> None:
    """No closer: the bucket holds them back. How late they are depends on the machine."""
    circle.wake()
    assert circle.goes_on(2)
    began, at = circle.rig.clock()["beat_ns"], circle.beats
    until(lambda: circle.beats >= at + 20)
    clock = circle.rig.clock()
    assert clock["beat_ns"] - began >= (clock["beats"] - at) * 900_000


def test_qp_that_becomes_active_wakes_the_clock(rig: Rig, circle: Circle) -> None:
    circle.wake()
    rested(circle)
    before = rig.clock()["generation"]
    rig.spray(PACKET)
    until(lambda: rig.clock()["resting"] == 0 and rig.clock()["generation"] == before + 1)
    assert circle.goes_on()
    ticks = rig.clock()["ticks"]
    until(lambda: rig.clock()["ticks"] > ticks + 5)


def test_any_packet_of_an_active_qp_wakes_a_clock_that_rests(rig: Rig, circle: Circle) -> None:
    """The packet that made the QP active may have been one that no beat can be made of."""
    circle.wake()
    rested(circle)
    circle.lose()  # or it would see the QP before the next packet comes
    before = rig.clock()
    bpf.update(rig.dp.maps["active"], struct.pack("=I", 0), struct.pack("=Q", 1))
    rig.dp.write("clock", 0, ABI.structs["mrc_clock"], **{**before, "resting": 1})
    rig.spray(PACKET)
    until(lambda: rig.clock()["generation"] == before["generation"] + 1)
    assert circle.goes_on()


def test_only_one_beat_is_left_after_a_wake(rig: Rig, circle: Circle) -> None:
    circle.wake()
    rested(circle)
    rig.spray(PACKET)
    until(lambda: rig.clock()["ticks"] > 40)  # longer than a slow beat
    slow, fast, beats = circle.left("rest"), circle.left("beat"), circle.beats
    until(lambda: circle.beats >= beats + 40)
    assert circle.left("rest") == slow
    assert circle.left("beat") - fast <= circle.beats - beats + 1


def test_packet_that_arrives_wakes_the_clock_and_gets_its_sack(
    rig: Rig, far: Far, circle: Circle
) -> None:
    circle.wake()
    rested(circle)
    rig.arrive(far.data(FIRST_RX, numbered(1)))
    found: list[Sack] = []

    def answered() -> bool:
        found.extend(packet for packet in sent(rig) if isinstance(packet, Sack))
        return bool(found)

    until(answered)
    assert found[0].body.cack == FIRST_RX
    rested(circle)  # again


def test_time_out_is_found_without_any_process(rig: Rig, circle: Circle) -> None:
    circle.wake()
    rig.tune(rto_min_ns=1_000_000)
    first = decode_frame(rig.spray(PACKET).frame)
    found: list[Data] = []

    def again() -> bool:
        found.extend(packet for packet in sent(rig) if isinstance(packet, Data))
        return bool(found)

    until(again)
    assert found[0].bth.psn == first.bth.psn
    assert found[0].payload == PACKET


def woken_by(rig: Rig, frame: bytes, csum_start: int, csum_offset: int) -> None:
    """Wake the clock by a packet whose checksum is left to the NIC."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, _SO_MARK, ABI.MRC_WAKE_MARK)
        sock.bind(("mrc0", 0))
        head = struct.pack("=BBHHHH", 1, 0, 0, 0, csum_start, csum_offset)
        sock.send(head + frame)


@pytest.fixture
def door(rig: Rig, circle: Circle) -> Iterator[Circle]:
    """Have what is sent out of mrc0 come to mrc_beat, on an interface that may leave checksums."""
    link = bpf.create_link(
        rig.dp.programs["mrc_beat"], rig.ifindex["mrc0p"], bpf.ATTACH_TCX_INGRESS
    )
    try:
        yield circle
    finally:
        os.close(link)


def test_beat_made_of_a_packet_without_its_checksum_is_clean(
    rig: Rig, far: Far, door: Circle
) -> None:
    """What is sent on clones of the beat would get a checksum somewhere in its headers."""
    before = rig.clock()["generation"]
    payload = bytes(range(256)) * 4
    woken_by(rig, bytes(12) + b"\x08\x00" + PACKET[:20] + payload, 34, 16)
    until(lambda: rig.clock()["generation"] == before + 1 and rig.clock()["beats"] > 5)
    for plane in range(PLANES):
        ethtool.set_features(f"plane{plane}", tx_checksum=False)
    try:
        rig.sent()
        rig.arrive(far.data(FIRST_RX, numbered(1)))
        frames: list[bytes] = []

        def answered() -> bool:
            frames.extend(frame for _plane, frame in rig.sent())
            return bool(frames)

        until(answered)
    finally:
        for plane in range(PLANES):
            ethtool.set_features(f"plane{plane}", tx_checksum=True)
    sack = decode_frame(frames[0])
    assert isinstance(sack, Sack)
    assert sack.body.cack == FIRST_RX
    assert payload[:32] not in frames[0]


@pytest.mark.parametrize("header", [34, 54, 94, 114])
def test_short_packet_is_made_of_a_beat_of_any_packet(
    rig: Rig, far: Far, door: Circle, header: int
) -> None:
    """The kernel makes no packet shorter than to where the transport header once was."""
    before = rig.clock()["generation"]
    woken_by(rig, bytes(12) + b"\x86\xdd" + bytes(1000), header, 16)
    until(lambda: rig.clock()["generation"] == before + 1 and rig.clock()["beats"] > 5)
    rig.delivered()  # the tap sees the waking packet, too
    short = ip4(src="10.99.0.2", dst="10.99.0.1")
    assert len(short) < 40
    rig.arrive(far.data(FIRST_RX + 1, short))
    rig.tune(hole_timeout_ns=1)  # so that a tick delivers what is held
    delivered: list[bytes] = []

    def there() -> bool:
        delivered.extend(rig.delivered())
        return bool(delivered)

    until(there)
    assert delivered == [short]
    assert "deliver_retry" not in rig.counted()


def test_packet_that_cannot_become_a_beat_asks_the_daemon(rig: Rig, door: Circle) -> None:
    door.wake()
    assert door.goes_on()
    before = rig.clock()["generation"]
    woken_by(rig, bytes(12) + b"\x08\x00" + bytes(1000), 500, 16)
    events: list[dict[str, int]] = []

    def told() -> bool:
        events.extend(ABI.structs["mrc_event"].unpack(raw) for raw in rig.events.take())
        return bool(events)

    until(told)
    assert [event["kind"] for event in events] == [ABI.MRC_EVENT_WAKE]
    assert rig.clock()["generation"] == before
    assert door.goes_on()  # the one before is not lost


def test_buckets_are_read_as_they_were_set(rig: Rig, circle: Circle) -> None:
    indices = [rig.ifindex[name] for name in ("beat", "rest", "cut")]
    assert buckets(indices) == {rig.ifindex["beat"]: FAST, rig.ifindex["rest"]: SLOW}


# ---- the daemon's part


async def eventually(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not what():
            await asyncio.sleep(0.001)


def test_daemon_makes_another_beat_when_one_is_lost(rig: Rig, circle: Circle) -> None:
    async def work() -> None:
        heard: list[dict[str, int]] = []
        clock = Clock(rig.dp, 1_000_000, heard.append, _fail, Findings())
        clock.start()
        try:
            await eventually(lambda: clock.beats() > 5)
            circle.lose()
            lost = clock.beats()
            await eventually(lambda: clock.beats() > lost + 5)
            assert clock.state in ("running", "idle")
        finally:
            clock.stop()

    asyncio.run(work())


def test_clock_that_stands_still_is_named_until_it_goes_on(
    rig: Rig, circle: Circle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_of_daemon, "LOST_LOOKS", 2)

    async def work() -> None:
        findings = Findings()
        clock = Clock(rig.dp, 1_000_000, lambda _event: None, _fail, findings)
        clock.start()
        try:
            await eventually(lambda: clock.beats() > 5)
            circle.detach()
            await eventually(lambda: bool(findings.lines))
            assert "stands still" in findings.lines[0]
            assert clock.state == "stopped"
            circle.attach()
            await eventually(lambda: not findings.lines)
            assert clock.state in ("running", "idle")
        finally:
            clock.stop()

    asyncio.run(work())


def test_daemon_helps_where_no_packet_can_wake_the_clock(rig: Rig, door: Circle) -> None:
    async def work() -> None:
        heard: list[dict[str, int]] = []
        clock = Clock(rig.dp, 1_000_000, heard.append, _fail, Findings())
        clock.start()
        try:
            await eventually(lambda: clock.beats() > 5)
            before = rig.clock()["generation"]
            woken_by(rig, bytes(12) + b"\x08\x00" + bytes(1000), 500, 16)
            await eventually(lambda: rig.clock()["generation"] > before)
            assert heard == []
        finally:
            clock.stop()

    asyncio.run(work())


def _fail(error: Exception) -> None:
    raise AssertionError(str(error)) from error
