# SPDX-License-Identifier: GPL-2.0-only
"""Test that records become packets: each verdict joins its packet, and time orders the packets."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.capture.packets import Packets, comment, line
from mrcd.model import CaptureInfo, CapturePeer
from mrcd.wire.abi import ABI, CAPTURE
from mrcd.wire.envelope import overhead
from mrcd.wire.packet import WIRE, Data, decode_frame
from rigs.oracle import vector
from tests.unit.records import AGAIN, DATA, NONE, PASSED, RECORD, arrived, record, sent, verdict

HELD, DELIVERED, DUPLICATE = ABI.MRC_C_RX_HELD, ABI.MRC_C_RX_PACKETS, ABI.MRC_C_RX_DUPLICATE
BPF = Path(__file__).parents[3] / "bpf"


def info(encap: int = WIRE.MRC_ENCAP_FULL, cell_port: int | None = None) -> CaptureInfo:
    return CaptureInfo(
        host="h1",
        encap=encap,
        udp_port=4971,
        cell_port=cell_port,
        interfaces=["plane0", "plane1"],
        peers=[CapturePeer(index=0, name="h2"), CapturePeer(index=1, name="h3")],
        qps_per_peer=16,
    )


@pytest.fixture
def packets() -> Packets:
    return Packets(info(), 10)


def verdicts(packets: Packets, before_ns: int | None = None) -> list[str]:
    return [packet.about.verdict for packet in packets.release(before_ns)]


def test_a_packet_that_left(packets: Packets) -> None:
    packets.add([sent(time_ns=1000)])
    (packet,) = packets.release()
    about, wire = packet.about, decode_frame(DATA)
    assert isinstance(wire, Data)
    assert packet.data == DATA
    assert (about.time_ns, about.direction, about.length) == (1010, "tx", len(DATA))
    assert (about.plane, about.interface, about.kind) == (1, "plane1", "data")
    assert (about.peer, about.qp, about.verdict) == ("h2", 1, "sent")
    assert (about.ev, about.psn, about.retransmit) == (wire.envelope.ev, wire.bth.psn, False)


def test_a_verdict_finds_its_packet(packets: Packets) -> None:
    packets.add([arrived(DATA), arrived(AGAIN), verdict(AGAIN, HELD), verdict(DATA, DELIVERED)])
    assert verdicts(packets) == ["in order", "reordered"]


def test_verdicts_of_copies_go_by_order(packets: Packets) -> None:
    packets.add([arrived(), verdict(DATA, DELIVERED), arrived(), verdict(DATA, DUPLICATE)])
    packets.add([arrived(), arrived(), verdict(DATA, HELD), verdict(DATA, DUPLICATE)])
    assert verdicts(packets) == ["in order", "duplicate", "reordered", "duplicate"]


def test_a_verdict_may_come_later_but_not_too_late(packets: Packets) -> None:
    packets.add([arrived(time_ns=100), arrived(AGAIN, time_ns=200)])
    assert verdicts(packets, 150) == ["passed"]
    packets.add([verdict(DATA, DELIVERED), verdict(AGAIN, HELD)])
    assert verdicts(packets) == ["reordered"]
    packets.add([arrived(), verdict(DATA, DELIVERED)])  # the late verdict was dropped
    assert verdicts(packets) == ["in order"]


def test_packets_come_in_order_of_time_and_once(packets: Packets) -> None:
    packets.add([sent(time_ns=300), sent(time_ns=100)])
    packets.add([sent(time_ns=200)])
    assert [packet.about.time_ns for packet in packets.release(250)] == [110, 210]
    assert [packet.about.time_ns for packet in packets.release()] == [310]
    assert list(packets.release()) == []


def test_retransmissions(packets: Packets) -> None:
    packets.add([sent(AGAIN, ABI.MRC_C_RTX_GUARD), arrived(AGAIN), verdict(AGAIN, DUPLICATE)])
    left, came = (packet.about for packet in packets.release())
    assert left.retransmit
    assert came.retransmit
    assert " retransmit by rtx_guard" in comment(left)
    assert comment(came).endswith("retransmit verdict duplicate")


def test_comment(packets: Packets) -> None:
    packets.add([sent(), arrived(why=ABI.MRC_C_DROP_ICRC)])
    left, came = (packet.about for packet in packets.release())
    path = f"path plane 1 t1 {left.t1} ev 0x{left.ev:08x} peer h2"
    assert comment(left) == f"{path} qp 1 psn {left.psn}"
    assert comment(came) == f"{path} psn {left.psn} verdict drop_icrc"


def test_whose_psn_it_is(packets: Packets) -> None:
    packets.add([sent(vector("sack")), sent(vector("nack")), sent(vector("probe"))])
    sack, nack, probe = (packet.about for packet in packets.release())
    assert (sack.kind, nack.kind, probe.kind) == ("sack", "nack", "probe")
    assert f" up to psn {sack.psn}" in comment(sack)
    assert f" about psn {0x00F00D}" in comment(nack)
    assert "psn" not in comment(probe)


def test_a_probe_that_asks_for_a_sack(packets: Packets) -> None:
    packets.add([sent(vector("probe-solicit")), sent(vector("probe"))])
    asked, probed = packets.release()
    assert (asked.about.kind, probed.about.kind) == ("solicit", "probe")
    assert " h2 qp 1 solicit t1 2 ev 0x10020000 length 146" in line(asked)


# ---- cells


@pytest.mark.parametrize("encap", [WIRE.MRC_ENCAP_FULL, WIRE.MRC_ENCAP_REDUCED])
def test_a_cell_that_left(encap: int) -> None:
    packets = Packets(info(encap), 0)
    packets.add([sent(vector("cell-v4-udp")), sent(vector("cell-v6-tcp"))])
    one, other = packets.release()
    about = one.about
    assert (about.kind, about.peer, about.qp, about.verdict) == ("cell", "h2", 1, "sent")
    assert (about.ev, about.t1, about.psn, about.psn_last) == (0x10020000, 2, 0xF00D, 0xF00D)
    assert (about.attempt, about.retransmit, about.length) == (0, False, 84)
    said = " plane1 tx h2 qp 1 cell psn 61453 t1 2 ev 0x10020000 length 84 "
    assert line(one).endswith(f"{said}10.99.0.1.54321 > 10.99.0.2.7 udp")
    assert line(other).endswith("fd99::1.54321 > fd99::2.80 tcp")


def test_pieces_of_a_cell_have_their_own_psns(packets: Packets) -> None:
    """Their keys are the same: verdicts go by order."""
    names = [f"cell-of-three-{which}" for which in ("first", "middle", "last")]
    outcomes = (DELIVERED, HELD, ABI.MRC_C_RX_OVERLAP)
    packets.add([arrived(vector(name), peer=1) for name in names])
    packets.add([verdict(vector(n), why) for n, why in zip(names, outcomes, strict=True)])
    found = [packet.about for packet in packets.release()]
    assert [about.psn for about in found] == [0xFFFFFE, 0xFFFFFF, 0]
    assert [about.psn_last for about in found] == [0xFFFFFE, 0xFFFFFF, 0]
    assert [about.verdict for about in found] == ["in order", "reordered", "rx_overlap"]
    assert [(about.peer, about.qp) for about in found] == [("h3", 3)] * 3


def test_a_whole_cell_shows_a_range(packets: Packets) -> None:
    """It leaves as one segment, of which the first bytes are recorded."""
    whole = bytearray(vector("cell-of-three-first")[:192])
    inner = WIRE.MRC_ETH_LEN + WIRE.MRC_IP6_LEN
    whole[inner + 2 : inner + 4] = (20 + 32 + 2 * 512 + 100).to_bytes(2)
    packets.add([sent(bytes(whole), length=14 + 40 + 52 + 1124)])
    (packet,) = packets.release()
    assert (packet.about.psn, packet.about.psn_last) == (0xFFFFFE, 0)
    said = "cell psn 16777214-0 t1 2 ev 0x10020000 length 1230 10.99.0.1.54321 > 10.99.0.2.80 tcp"
    assert line(packet).endswith(said)
    assert comment(packet.about).endswith(" psn 16777214-0")


def test_a_cell_that_is_sent_again(packets: Packets) -> None:
    packets.add([sent(vector("cell-rtx-ackreq"), ABI.MRC_C_RTX_FIFO)])
    packets.add([arrived(vector("cell-rtx-ackreq"), ABI.MRC_C_RX_DUPLICATE, peer=1)])
    left, came = packets.release()
    assert (left.about.attempt, left.about.retransmit, left.about.psn) == (2, True, 0xFFFFFF)
    assert line(left).endswith("tcp retransmit attempt 2 by rtx_fifo")
    assert comment(came.about).endswith(
        "t1 1 ev 0x10010000 peer h3 qp 3 psn 16777215 retransmit attempt 2 verdict duplicate"
    )


def test_a_cell_within_one_t0_crosses_no_t1(packets: Packets) -> None:
    packets.add([sent(vector("cell-same-t0"))])
    (packet,) = packets.release()
    assert (packet.about.t1, packet.about.ev) == (0, 0x10000000)


@pytest.mark.parametrize("size", [54, 55, 93])
def test_a_cell_cut_short_has_no_psn(packets: Packets, size: int) -> None:
    packets.add([sent(vector("cell-of-three-first")[:size], length=618)])
    (packet,) = packets.release()
    assert (packet.about.kind, packet.about.psn, packet.about.psn_last) == ("cell", None, None)
    assert packet.about.ev == 0x10020000
    assert " cell t1 2 ev " in line(packet)


@pytest.mark.parametrize(
    ("encap", "kind"), [(WIRE.MRC_ENCAP_ECMP6, "cell"), (WIRE.MRC_ENCAP_ECMP4, "other")]
)
def test_cells_need_ipv6_not_usids(encap: int, kind: str) -> None:
    packets = Packets(info(encap), 0)
    packets.add([sent(vector("cell-v4-udp"))])
    assert [packet.about.kind for packet in packets.release()] == [kind]


# ---- cells in UDP


IN_UDP = {
    "cell-in-udp4": WIRE.MRC_ENCAP_ECMP4,
    "cell-in-udp6": WIRE.MRC_ENCAP_ECMP6,
    "cell-in-udp-usids": WIRE.MRC_ENCAP_FULL,
}


@pytest.mark.parametrize("name", IN_UDP)
def test_a_cell_in_udp_that_left(name: str) -> None:
    packets, frame = Packets(info(IN_UDP[name], 4974), 0), vector(name)
    packets.add([sent(frame)])
    (packet,) = packets.release()
    about, usids = packet.about, name.endswith("usids")
    assert (about.kind, about.peer, about.qp, about.verdict) == ("cell", "h2", 1, "sent")
    assert (about.psn, about.psn_last, about.attempt) == (0xF00D, 0xF00D, 0)
    assert (about.ev, about.t1) == ((0x10020000, 2) if usids else (0x10050000, 0))
    path = "t1 2 ev 0x10020000" if usids else "ev 0x10050000"
    said = f" plane1 tx h2 qp 1 cell psn 61453 {path} length {len(frame)} "
    assert line(packet).endswith(f"{said}10.99.0.1.54321 > 10.99.0.2.7 udp")


@pytest.mark.parametrize("version", [4, 6])
def test_pieces_of_a_cell_in_udp(version: int) -> None:
    packets = Packets(info(IN_UDP[f"cell-in-udp{version}"], 4974), 0)
    names = [f"cell-in-udp{version}-of-three-{which}" for which in ("first", "middle", "last")]
    outcomes = (DELIVERED, HELD, ABI.MRC_C_RX_OVERLAP)
    packets.add([arrived(vector(name), peer=1) for name in names])
    packets.add([verdict(vector(n), why) for n, why in zip(names, outcomes, strict=True)])
    found = [packet.about for packet in packets.release()]
    assert [about.psn for about in found] == [0xFFFFFE, 0xFFFFFF, 0]
    assert [about.verdict for about in found] == ["in order", "reordered", "rx_overlap"]


def test_a_damaged_cell_in_udp_is_known_by_its_port() -> None:
    packets = Packets(info(WIRE.MRC_ENCAP_ECMP4, 4974), 0)
    frame = vector("cell-in-udp4")
    packets.add([arrived(frame[:42] + b"\0" + frame[43:], ABI.MRC_C_DROP_CELL)])
    packets.add([arrived(frame[:60], ABI.MRC_C_DROP_SHORT)])
    for packet, why in zip(packets.release(), ("drop_cell", "drop_short"), strict=True):
        assert (packet.about.kind, packet.about.qp, packet.about.psn) == ("cell", None, None)
        assert line(packet).endswith(f" cell length {len(packet.data)} verdict {why}")


@pytest.mark.parametrize(
    ("encap", "port", "name"),
    [
        (WIRE.MRC_ENCAP_ECMP4, None, "cell-in-udp4"),  # cells are IP in IPv6 here
        (WIRE.MRC_ENCAP_ECMP4, 4975, "cell-in-udp4"),
        (WIRE.MRC_ENCAP_ECMP6, 4974, "cell-v4-udp"),
        (WIRE.MRC_ENCAP_FULL, 4974, "cell-v4-udp"),
    ],
)
def test_cells_of_the_other_envelope_are_none(encap: int, port: int | None, name: str) -> None:
    packets = Packets(info(encap, port), 0)
    packets.add([sent(vector(name))])
    assert [packet.about.kind for packet in packets.release()] == ["other"]


@pytest.mark.parametrize("name", ["", "-reduced", "-ecmp6", "-ecmp4"])
def test_mrcs_own_packets_are_told_from_cells_in_udp(name: str) -> None:
    encap = {"": 0, "-reduced": 1, "-ecmp6": 2, "-ecmp4": 3}[name]
    packets = Packets(info(encap, 4974), 0)
    packets.add([sent(vector(f"data{name}" if name else "data-v4"))])
    assert [packet.about.kind for packet in packets.release()] == ["data"]


@pytest.mark.parametrize("data", [b"", DATA[:14], DATA[:100], b"\xff" * 60, b"\xff" * 300])
def test_what_cannot_be_read_is_not_known(packets: Packets, data: bytes) -> None:
    packets.add([arrived(data.ljust(4, b"\0"), ABI.MRC_C_DROP_SHORT, peer=NONE, plane=8)])
    (packet,) = packets.release()
    assert (packet.about.kind, packet.about.psn, packet.about.peer) == ("other", None, None)
    assert packet.about.interface == ""
    assert "verdict drop_short" in line(packet)


@pytest.mark.parametrize("name", ["", "-reduced", "-ecmp6", "-ecmp4"])
def test_each_way_across_a_fabric(name: str) -> None:
    frame = vector(f"data{name}" if name else "data-v4")
    wire = decode_frame(frame)
    assert isinstance(wire, Data)
    encap = {"": 0, "-reduced": 1, "-ecmp6": 2, "-ecmp4": 3}[name]
    assert len(frame) - len(wire.payload) - 14 == overhead(encap)
    found = Packets(info(encap), 0)
    found.add([sent(frame)])
    (packet,) = found.release()
    ev = wire.envelope.ev if encap < 2 else wire.envelope.ev & ~0xFFFF  # ports hold the high half
    assert (packet.about.ev, packet.about.psn) == (ev, wire.bth.psn)
    assert bool(packet.about.t1) == (encap < 2)
    assert " > " in line(packet)


def test_a_qp_of_another_peer_is_not_believed(packets: Packets) -> None:
    """A damaged QP number must not name a QP."""
    packets.add([arrived(why=ABI.MRC_C_DROP_ICRC, peer=1), arrived(why=ABI.MRC_C_DROP_ICRC)])
    index = decode_frame(DATA).bth.dqpn & 0xFFFF
    assert index // 16 == 1
    assert [packet.about.qp for packet in packets.release()] == [index % 16, None]


def test_the_numbers_of_a_record_fit() -> None:
    """The layout has no padding between members, and room for every counter."""
    sizes = [field.size for field in RECORD.fields.values()]
    assert sum(sizes) == RECORD.size
    assert ABI.MRC_C_COUNT < PASSED < 1 << 16
    assert record(CAPTURE.MRC_CAPTURE_TX, 1) != record(CAPTURE.MRC_CAPTURE_TX, 1)
