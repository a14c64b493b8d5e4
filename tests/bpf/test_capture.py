# SPDX-License-Identifier: GPL-2.0-only
"""The programs of a capture: they record each packet and otherwise act as the ordinary ones."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from cli.capture.packets import Packet, comment, line
from mrcd.datapath import loader
from mrcd.datapath.capture import HEADERS_BYTES, Wanted
from mrcd.datapath.clock import CARRIER
from mrcd.fabric.loops import loops_of
from mrcd.linux import bpf
from mrcd.model import CapturedPacket
from mrcd.survey.survey import write_loops
from mrcd.wire.abi import CAPTURE
from mrcd.wire.packet import WIRE
from rigs.packets import (
    EV,
    QPN,
    TAG,
    Far,
    cell,
    destination,
    ev_of,
    ip4,
    ip6,
    numbered,
    offer_frame,
    redirected,
    trimmed,
)
from rigs.rig import DROPPED, MPR, Rig, code_of
from tests.bpf.capturing import CapturingRig
from tests.bpf.cells import IN_EACH_ENVELOPE, CellRig
from tests.bpf.conftest import ROUTINGS
from tests.bpf.test_programs import VERIFIER_MAX, falls_into_loops
from tests.bpf.test_survey import returned, survey

FIRST_TX, FIRST_RX = 1000, 5000
OUT = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")


@pytest.fixture(params=[False, True], ids=["tc", "xdp"])
def at_xdp(request: pytest.FixtureRequest) -> bool:
    """Run everything with mrc_receive at either hook."""
    return bool(request.param)


def told(packet: Packet) -> tuple[str, str, str]:
    """Return the direction, kind and verdict of a packet."""
    return packet.about.direction, packet.about.kind, packet.about.verdict


def only(packets: list[Packet]) -> Packet:
    (packet,) = packets
    return packet


# ---- packets that leave


def test_data_that_leaves(each_capture_rig: CapturingRig) -> None:
    rig = each_capture_rig.rig
    before = time.monotonic_ns()
    frame = rig.spray(OUT).frame
    packet = only(each_capture_rig.seen())
    assert packet.data == frame
    about = packet.about
    assert before < about.time_ns < time.monotonic_ns()
    plane = about.plane
    assert packet.data[6:12].endswith(bytes([plane]))  # our address on that plane
    assert about == CapturedPacket(
        time_ns=about.time_ns, direction="tx", plane=plane, interface=f"plane{plane}",
        length=len(frame), kind="data", peer="h2", qp=0, ev=about.ev, t1=about.t1, psn=FIRST_TX,
        retransmit=False, verdict="sent",
    )  # fmt: skip
    assert about.ev is not None
    assert about.ev >> WIRE.MRC_EV_PLANE_SHIFT == plane
    path = rig.path(about.ev)
    assert path["sent"] == 1


def test_what_is_sent_again(each_capture_rig: CapturingRig, each_far: Far) -> None:
    rig = each_capture_rig.rig
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    first, *_ = (rig.spray(OUT).frame for _ in range(3))
    lost, *_ = each_capture_rig.seen()
    rig.arrive(each_far.sack(FIRST_TX - 1, 0b10))
    sack, again = each_capture_rig.seen()
    assert told(sack) == ("rx", "sack", "sack_rx")
    ((plane, frame),) = rig.sent()
    assert again.data == frame != first
    assert told(again) == ("tx", "data", "rtx_guard")
    assert (again.about.psn, again.about.plane, again.about.retransmit) == (FIRST_TX, plane, True)
    assert again.about.ev != lost.about.ev
    assert comment(again.about).endswith(f"peer h2 qp 0 psn {FIRST_TX} retransmit by rtx_guard")


def test_what_the_clock_sends(capture_rig: CapturingRig, far: Far) -> None:
    rig = capture_rig.rig
    rig.arrive(far.data(FIRST_RX, numbered(1)))
    rig.spray(OUT)
    capture_rig.seen()
    rig.tune(rto_min_ns=1)
    rig.tick(4)
    packets = capture_rig.seen()
    assert sorted(packet.data for packet in packets) == sorted(f for _, f in rig.sent())
    kinds = {told(packet) for packet in packets}
    assert {("tx", "sack", "sack_tx"), ("tx", "data", "rtx_timeout")} <= kinds
    assert ("tx", "probe", "probe_tx") in kinds or not rig.counted().get("probe_tx")


def test_probes_of_paths_that_are_away(capture_rig: CapturingRig) -> None:
    rig = capture_rig.rig
    rig.spray(OUT)
    capture_rig.seen()
    rig.tune(probe_interval_ns=0)
    rig.withdraw(EV)
    rig.tick(4)
    probes = [packet for packet in capture_rig.seen() if packet.about.kind == "probe"]
    assert [packet.data for packet in probes] == [
        frame for _plane, frame in rig.sent() if len(frame) == len(probes[0].data)
    ]
    assert EV in {packet.about.ev for packet in probes}
    assert {packet.about.plane for packet in probes} == {EV >> WIRE.MRC_EV_PLANE_SHIFT}
    assert {(packet.about.peer, packet.about.qp) for packet in probes} == {("h2", 0)}


# ---- packets that arrive


def test_data_that_arrives_in_order(each_capture_rig: CapturingRig, each_far: Far) -> None:
    frame = each_far.data(FIRST_RX, numbered(1))
    each_capture_rig.rig.arrive(frame)
    packet = only(each_capture_rig.seen())
    assert packet.data == frame
    plane = EV >> WIRE.MRC_EV_PLANE_SHIFT
    assert packet.about == CapturedPacket(
        time_ns=packet.about.time_ns, direction="rx", plane=plane, interface=f"plane{plane}",
        length=len(frame), kind="data", peer="h2", qp=0, ev=EV, t1=packet.about.t1, psn=FIRST_RX,
        retransmit=False, verdict="in order",
    )  # fmt: skip


def test_data_ahead_and_twice(capture_rig: CapturingRig, far: Far) -> None:
    rig = capture_rig.rig
    rig.arrive(far.data(FIRST_RX + 1, numbered(2)))
    rig.arrive(far.data(FIRST_RX, numbered(1), rtx=True))
    rig.arrive(far.data(FIRST_RX, numbered(1), rtx=True))
    packets = capture_rig.seen()
    data = [packet for packet in packets if packet.about.direction == "rx"]
    assert [packet.about.verdict for packet in data] == ["reordered", "in order", "duplicate"]
    assert [packet.about.retransmit for packet in data] == [False, True, True]
    sacks = [packet for packet in packets if packet.about.direction == "tx"]
    assert {packet.about.kind for packet in sacks} == {"sack"}
    assert [packet.about.psn for packet in sacks] == [FIRST_RX + 1] * 2
    assert "retransmit verdict duplicate" in comment(data[-1].about)


@pytest.mark.parametrize(
    ("spoil", "verdict"),
    [
        (lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]), "drop_icrc"),
        (lambda frame: frame[:-1], "drop_length"),
        (lambda frame: frame[:60], "drop_short"),
        (lambda frame: b"\xff" * 6 + b"\x01" + frame[7:], "drop_mark"),
    ],
)
def test_what_is_dropped_is_there_as_it_came(
    capture_rig: CapturingRig, far: Far, spoil: Callable[[bytes], bytes], verdict: str
) -> None:
    frame = spoil(far.data(FIRST_RX, numbered(1)))
    ran = capture_rig.rig.receive(frame)
    assert ran.verdict == DROPPED
    packet = only(capture_rig.seen())
    assert (packet.data, packet.about.verdict, packet.about.plane) == (frame, verdict, 1)
    assert capture_rig.rig.counted() == {verdict: 1}


def test_data_that_tc_drops(capture_rig: CapturingRig, far: Far) -> None:
    frame = far.data(FIRST_RX + 4000, numbered(1))
    capture_rig.rig.arrive(frame)
    came, left = capture_rig.seen()
    assert (came.data, told(came)) == (frame, ("rx", "data", "drop_psn"))
    assert told(left) == ("tx", "nack", "nack_tx_window")


def test_answers_that_xdp_gives(each_capture_rig: CapturingRig, each_far: Far) -> None:
    rig, far = each_capture_rig.rig, each_far
    request = far.endpoint_request(WIRE.MRC_ENDPOINT_EV_PROBE, 7)
    cut = trimmed(far.data(FIRST_RX + 5, numbered(6, 1000)))
    for frame, asked, answer in (
        (far.probe(0x1234), ("probe", "probe_rx"), "sack"),
        (cut, ("data", "nack_tx"), "nack"),
        (request, ("request", "ev_probe_rx"), "response"),
    ):
        ran = rig.receive(frame)
        came, left = each_capture_rig.seen()
        assert (came.data, told(came)) == (frame, ("rx", *asked))
        assert (left.data, left.about.direction, left.about.kind) == (ran.frame, "tx", answer)
        assert left.about.peer == came.about.peer == "h2"


def test_answers_that_arrive(capture_rig: CapturingRig, far: Far) -> None:
    rig = capture_rig.rig
    rig.spray(OUT)
    capture_rig.seen()
    rig.receive(far.probe_reply(rig.path(EV)["slot"] << 9 | 3))
    rig.arrive(far.sack(FIRST_TX + 500))
    rig.arrive(far.nack(FIRST_TX + 3))
    assert [told(packet) for packet in capture_rig.seen()] == [
        ("rx", "sack", "probe_stale"),
        ("rx", "sack", "drop_sack"),
        ("rx", "nack", "nack_rx"),
    ]


@IN_EACH_ENVELOPE
def test_a_cell_is_tied_to_its_outcomes_by_its_check_word(
    capture_rig: CapturingRig, far: Far
) -> None:
    frame = cell(far, EV, numbered(1))
    capture_rig.rig.receive(frame)
    head, kept = capture_rig.record()
    assert (head["key"], head["length"], kept) == (
        int.from_bytes(TAG, "little"), len(frame), frame,
    )  # fmt: skip
    assert (head["why"], head["plane"]) == (CAPTURE.MRC_CAPTURE_PASSED, 1)
    assert head["peer"] == capture_rig.rig.table.peers.indices["h2"]


@IN_EACH_ENVELOPE
def test_verdicts_on_cells(capture_rig: CapturingRig, cells: CellRig) -> None:
    rig = capture_rig.rig
    first = cells.far.cell(FIRST_RX, numbered(1))
    there = destination(first)
    for frame, verdict in (
        (first, "in order"),
        (cells.far.cell(FIRST_RX + 2, numbered(3)), "reordered"),
        (first, "duplicate"),
        (cells.far.cell(FIRST_RX + MPR * 4, numbered(4)), "drop_psn"),
        (cells.far.cell(FIRST_RX + 1, numbered(2), qpn=QPN + (1 << 16)), "drop_cell"),
        (cells.far.cell(FIRST_RX + 1, numbered(2)[:-1]), "drop_inner"),
        (redirected(first, there[:-1] + b"\x77"), for_others(cells)),
    ):
        rig.receive(frame)
        cells.arrive(frame)
        (told_of,) = [one for one in capture_rig.seen() if one.about.direction == "rx"]
        assert told(told_of) == ("rx", "cell", verdict)
        assert told_of.data == frame


def for_others(cells: CellRig) -> str:
    """Return the verdict on a cell for another host: UDP is left to the stack."""
    routed = cells.far.cell_udp and cells.rig.fabric.routing.mode == "ecmp"
    return "passed" if routed else "drop_sid"


@IN_EACH_ENVELOPE
def test_a_cell_that_goes_round_is_recorded_once(
    capture_rig: CapturingRig, cells: CellRig, at_xdp: bool
) -> None:
    """A program at XDP does not see the later rounds."""
    frame = cells.far.cell(FIRST_RX, numbered(1))
    for mark, found in ((0, 1), (77, int(at_xdp))):
        if at_xdp:
            capture_rig.rig.receive(frame)
        else:  # struct __sk_buff up to ifindex
            context = struct.pack("=8xI28xI", mark, capture_rig.rig.ifindex["plane1"])
            bpf.TestRun(capture_rig.rig.dp.programs["mrc_receive"], frame, context=context).run()
        assert len(capture_rig.seen()) == found


def test_the_stacks_packets(capture_rig: CapturingRig, far: Far) -> None:
    offer, _seen = offer_frame(far, EV)
    capture_rig.rig.receive(offer)
    packet = only(capture_rig.seen())
    assert packet.data == offer
    assert told(packet) == ("rx", "hand-shake", "control_rx")
    assert packet.about.peer == "h2"
    capture_rig.rig.receive(bytes(12) + b"\x08\x06" + bytes(46))  # ARP is left to tcpdump
    assert capture_rig.seen() == []


def test_survey_probes(capture_rig: CapturingRig) -> None:
    rig = capture_rig.rig
    write_loops(rig.dp, rig.config, loops_of(rig.fabric, rig.config.host))
    ((plane, frame),) = survey(rig)
    back = returned(rig, plane, frame)
    rig.receive(back, f"plane{plane}")
    left, came = capture_rig.seen()
    assert (left.data, told(left), left.about.peer) == (frame, ("tx", "survey", "survey_tx"), None)
    assert (came.data, told(came), came.about.peer) == (back, ("rx", "survey", "survey_rx"), None)
    capture_rig.want(Wanted())
    ((plane, frame),) = survey(rig)
    rig.receive(returned(rig, plane, frame), f"plane{plane}")
    assert capture_rig.seen() == []


def test_a_verdict_that_never_comes(capture_rig: CapturingRig, far: Far) -> None:
    """A packet may be lost between XDP and tc, and an identical one may arrive later."""
    frame = far.data(FIRST_RX, numbered(1))
    capture_rig.rig.receive(frame)
    assert only(capture_rig.seen()).about.verdict == "passed"
    capture_rig.rig.arrive(frame)
    assert only(capture_rig.seen()).about.verdict == "in order"


# ---- filters


def test_filters(capture_rig: CapturingRig, far: Far) -> None:
    rig = capture_rig.rig
    rig.connect("h3", rig.table.peers.base("h3"), remote_qpn=0x990010)
    h3 = ip4(b"out", src="10.99.0.1", dst="10.99.0.3")

    def run(wanted: Wanted) -> list[tuple[str, int, str | None]]:
        capture_rig.want(wanted)
        for _ in range(8):
            rig.spray(OUT)
            rig.spray(h3)
        rig.receive(far.probe(0x1234, ev_of(1, 2)))
        rig.receive(far.probe(0x1234, ev_of(2, 2)), "plane2")
        packets = [packet.about for packet in capture_rig.seen()]
        return [(about.direction, about.plane, about.peer) for about in packets]

    every = run(Wanted())
    assert len(every) == 16 + 4
    assert {peer for _, _, peer in every} == {"h2", "h3"}
    one = run(Wanted(plane=2))
    assert {plane for _, plane, _ in one} == {2}
    assert len(one) == 4 + 2
    assert len(run(Wanted(peer="h3"))) == 8
    assert len(run(Wanted(direction="rx"))) == 2
    assert len(run(Wanted(direction="tx"))) == 16 + 2
    capture_rig.close()


def test_so_much_of_each_packet_is_kept(capture_rig: CapturingRig, far: Far) -> None:
    frame = far.data(FIRST_RX, numbered(1, 1000))
    for asked, kept in ((0, HEADERS_BYTES), (500, 500), (1 << 18, len(frame))):
        capture_rig.want(Wanted(asked))
        capture_rig.rig.receive(frame)
        packet = only(capture_rig.seen())
        assert packet.data == frame[:kept]
        assert packet.about.length == len(frame)
        assert "10.99.0.2.40000 > 10.99.0.1.7 udp" in line(packet)


def test_lines_of_ipv6(capture_rig: CapturingRig, far: Far) -> None:
    capture_rig.want(Wanted(0))
    capture_rig.rig.arrive(far.data(FIRST_RX, ip6(b"x")))
    text = line(only(capture_rig.seen()))
    assert re.match(
        r"\d\d:\d\d:\d\d\.\d{6} plane1 rx h2 qp 0 data psn 5000 t1 2 ev 0x10020000 length \d+ "
        r"fd99::2\.40000 > fd99::1\.7 udp verdict in order$", text
    ), text  # fmt: skip


def test_what_finds_no_room_is_counted(capture_rig: CapturingRig, far: Far) -> None:
    frame = far.data(FIRST_RX, numbered(1, 1000))
    spoilt = frame[:-1] + bytes([frame[-1] ^ 1])
    times = 3 * (8 << 20) // len(frame) // 2
    for _ in range(times):
        capture_rig.rig.receive(spoilt)
    lost = capture_rig.lost()
    assert lost[1] > times // 4
    assert sum(lost) == lost[1]
    assert len(capture_rig.seen()) == times - lost[1]


# ---- no other effects


def test_they_do_what_the_ordinary_ones_do(
    capture_rig: CapturingRig, built_rig: Rig, far: Far
) -> None:
    """Run the same packets through both builds: frames and counters must be the same."""
    rig = capture_rig.rig

    def session() -> tuple[list[int], list[bytes], dict[str, int]]:
        rig.reset()
        rig.connect()
        rig.counted()
        rig.tune(reo_min_ns=0, reo_max_ns=0, sack_packets=2, rto_min_ns=1)
        ran = [rig.spray(OUT) for _ in range(6)]
        ran += [rig.arrive(far.sack(FIRST_TX - 1, 0b101110, received=6))]
        ran += [rig.arrive(far.data(FIRST_RX + step, numbered(step))) for step in (0, 2, 1, 1, 9)]
        ran += [rig.receive(far.probe(0x1234)), rig.receive(far.nack(FIRST_TX + 3))]
        ran += [rig.receive(trimmed(far.data(FIRST_RX + 5, numbered(6, 1000))))]
        rig.tick(3)
        sizes = sorted(len(frame).to_bytes(2, "big") for _plane, frame in rig.sent())
        return [each.verdict for each in ran], sizes, rig.counted()

    recorded = session()
    programs, rig.dp.programs = rig.dp.programs, capture_rig.ordinary
    rig.point_tails()
    capture_rig.seen()
    try:
        assert session() == recorded
        assert capture_rig.seen() == []
    finally:
        rig.dp.programs = programs
        rig.point_tails()


def test_verifier_has_room_for_the_capture(each_capture_rig: CapturingRig) -> None:
    report = each_capture_rig.rig.capture_report
    assert {each.name for each in report} == set(loader.PROGRAMS)
    for each in report:
        found = re.search(r"processed (\d+) insns", each.verifier)
        assert found, each.verifier
        assert int(found[1]) < VERIFIER_MAX * 3 / 4, f"{each.name}: {each.verifier}"


@pytest.mark.parametrize("routing", ROUTINGS, ids=lambda routing: routing.shown)
def test_no_instruction_of_a_capture_falls_into_a_loop(built_rig: Rig) -> None:
    code = code_of(replace(built_rig.dp.sizes, capture=True))
    for name in loader.PROGRAMS:
        assert not falls_into_loops(code.programs[name]), name


def test_the_carrier_of_the_clock_is_not_recorded(capture_rig: CapturingRig) -> None:
    capture_rig.rig.tick(4)
    assert capture_rig.seen() == []
    assert len(CARRIER) > WIRE.MRC_ETH_LEN
