# SPDX-License-Identifier: GPL-2.0-only
"""mrc_receive: which packets pass, in which form, and why all others are dropped."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from mrcd.linux import bpf
from mrcd.peers.offersockets import udp6
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Control, Data, Neth, Sack, decode_frame
from rigs import oracle
from rigs.oracle import vector
from rigs.packets import (
    BODY,
    BTH,
    EV,
    INNER,
    OUTER,
    PAYLOAD,
    REMOTE_QPN,
    RETH,
    UDP,
    Far,
    cell,
    ev_of,
    ip4,
    ip6,
    sealed,
    trimmed,
)
from rigs.rig import (
    CELL,
    DROPPED,
    HANDED_CELL,
    PASSED,
    SENT,
    TC_SHOT,
    TC_UNSPEC,
    Ran,
    Rig,
)

MARK = ABI.structs["mrc_mark"]
MAGIC = bytes([ABI.MRC_MARK_MAGIC0, ABI.MRC_MARK_MAGIC1])
PACKET = ip4(b"some bytes of an application")


@pytest.fixture(params=[False, True], ids=["tc", "xdp"])
def at_xdp(request: pytest.FixtureRequest) -> bool:
    """Run everything with mrc_receive at either hook."""
    return bool(request.param)


def mark_of(frame: bytes) -> dict[str, int]:
    """Return the mark over a frame's Ethernet addresses."""
    mark = MARK.unpack(frame)
    assert (mark["magic0"], mark["magic1"]) == (ABI.MRC_MARK_MAGIC0, ABI.MRC_MARK_MAGIC1)
    return mark


def as_arrived(name: str) -> bytes:
    """Return a golden frame with its uSID list shifted by the switches to the host's own uSID."""
    frame = bytearray(vector(name))
    at = OUTER + 24
    last = frame[at + 10 : at + 12] if frame[at + 6 : at + 8] != b"\0\0" else frame[at + 4 : at + 6]
    frame[at + 4 : at + 16] = last.ljust(12, b"\0")
    return bytes(frame)


# ---- passed


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("data-v4", 0),
        ("data-v6", 0),
        ("data-timestamp", 0),
        ("data-rtx-ackreq", WIRE.MRC_BTH_RTX | WIRE.MRC_BTH_ACKREQ),
        ("data-arrived-ce", ABI.MRC_MARK_CE),
    ],
)
def test_golden_data_is_stripped_and_marked(rig: Rig, name: str, flags: int) -> None:
    rig.reset("h2")
    frame = as_arrived(name)
    packet = decode_frame(frame)
    assert isinstance(packet, Data)
    rig.connect("h1", 0x13, qpn=0x510013, rx_psn=packet.bth.psn)
    rig.counted()
    plane = packet.envelope.ev >> WIRE.MRC_EV_PLANE_SHIFT
    ran = rig.receive(frame, f"plane{plane}")
    assert ran.verdict == PASSED
    proto = 0x0800 if packet.payload[0] >> 4 == 4 else 0x86DD
    assert ran.frame[12:] == struct.pack("!H", proto) + packet.payload + frame[-4:]
    mark = mark_of(ran.frame)
    assert mark["psn_hi"] << 16 | mark["psn_lo"] == packet.bth.psn
    assert (mark["qp"], mark["ev_hi"] << 16, mark["flags"]) == (0x13, packet.envelope.ev, flags)
    assert mark["ts"] == 0xBEEF
    assert rig.counted() == {}


@pytest.mark.parametrize("name", ["sack", "sack-skip"])
def test_golden_sack_is_marked_and_otherwise_untouched(rig: Rig, name: str) -> None:
    rig.connect("h2", 0x10, qpn=0x2A0010)
    frame = as_arrived(name)
    ran = rig.receive(frame)
    assert ran.verdict == PASSED
    assert ran.frame[12:] == frame[12:]
    assert mark_of(ran.frame)["flags"] & ABI.MRC_MARK_SACK
    assert mark_of(ran.frame)["qp"] == 0x10


def test_golden_nack_is_marked_and_otherwise_untouched(rig: Rig) -> None:
    rig.connect("h2", 0x10, qpn=0x2A0010)
    frame = as_arrived("nack")
    ran = rig.receive(frame)
    assert ran.verdict == PASSED
    assert ran.frame[12:] == frame[12:]
    mark = mark_of(ran.frame)
    assert (mark["flags"], mark["qp"], mark["ts"]) == (ABI.MRC_MARK_NACK, 0x10, 0x0B)
    assert (mark["psn_hi"] << 16 | mark["psn_lo"], mark["ev_hi"] << 16) == (0x00F00D, EV)
    assert rig.counted() == {}


def test_golden_trimmed_data_is_turned_round(rig: Rig) -> None:
    rig.reset("h2")
    rig.connect("h1", 0x13, qpn=0x510013, remote_qpn=0x2A0010, rx_psn=0xF000)
    before = rig.state()
    ran = rig.receive(vector("data-trimmed"))
    assert (ran.verdict, ran.frame[14:]) == (SENT, vector("nack-trimmed")[14:])
    assert rig.counted() == {"nack_tx": 1, "trim_rx": 1}
    assert rig.state() == before


@pytest.mark.parametrize("length", [PAYLOAD, PAYLOAD + 1, PAYLOAD + 40, 200])
@pytest.mark.parametrize("corrected", [False, True])
def test_trimmed_to_any_length(rig: Rig, far: Far, length: int, corrected: bool) -> None:
    """Switches cut at any length; some correct the length in the header that they read."""
    frame = bytearray(trimmed(far.data(5007, ip4(bytes(1000)), sent=0x1234), length))
    if corrected:
        struct.pack_into("!H", frame, OUTER + 4, length - INNER)
    ran = rig.receive(bytes(frame))
    assert ran.verdict == SENT
    assert len(ran.frame) == BODY + WIRE.MRC_NETH_LEN + WIRE.MRC_AUTH_LEN + WIRE.MRC_ICRC_LEN
    nack = decode_frame(ran.frame)
    assert isinstance(nack, Control)
    assert nack.envelope == far.our_envelope(EV)
    assert nack.body == Neth(WIRE.MRC_NACK_TRIMMED, 5007, EV, tx_timestamp=0x1234)
    assert (nack.bth.psn, nack.bth.dqpn) == (0, REMOTE_QPN)


@pytest.mark.parametrize("length", [RETH, RETH + 8, PAYLOAD - 1])
def test_trimmed_too_short_for_its_tag(rig: Rig, far: Far, length: int) -> None:
    frame = trimmed(far.data(5007, ip4(bytes(1000))), length)
    assert rig.receive(frame).verdict == DROPPED
    assert rig.counted() == {"drop_short": 1}


def test_trimmed_copy_of_what_waits_behind_a_gap_is_not_asked_for(rig: Rig, far: Far) -> None:
    rig.arrive(far.data(5003, PACKET))
    rig.counted()
    assert rig.receive(trimmed(far.data(5003, PACKET))).verdict == DROPPED
    assert rig.counted() == {"rx_duplicate": 1}
    assert rig.receive(trimmed(far.data(5002, PACKET))).verdict == SENT
    assert rig.receive(trimmed(far.data(5000, PACKET))).verdict == SENT


def test_whole_packet_with_the_trimmed_codepoint_is_data(rig: Rig, far: Far) -> None:
    """It was small enough to need no trimming."""
    frame = trimmed(far.data(5000, PACKET), 4096)
    rig.arrive(frame)
    assert rig.delivered() == [PACKET]


def test_golden_probe_is_turned_round(rig: Rig) -> None:
    rig.reset("h2")
    rig.connect("h1", 0x13, qpn=0x510013, remote_qpn=0x2A0010, rx_psn=0xF00D)
    rig.counted()
    before = rig.state()
    ran = rig.receive(as_arrived("probe"))
    assert ran.verdict == SENT
    fabric = rig.fabric
    far = Far(fabric, fabric.host("h2"), fabric.host("h1"))
    answer, golden = decode_frame(ran.frame), decode_frame(vector("sack-pr"))
    assert isinstance(answer, Sack)
    assert isinstance(golden, Sack)
    assert answer.envelope == far.our_envelope(EV) == golden.envelope
    assert answer.body == replace(
        golden.body, mpr=answer.body.mpr, cc_flags=WIRE.MRC_CC_FLAG_DELAYED
    )
    assert answer.cc_state.tx_timestamp == golden.cc_state.tx_timestamp == 0xBEEF
    assert answer.bth.dqpn == 0x2A0010
    assert rig.counted() == {"probe_rx": 1}
    assert rig.state() == before


def test_probe_reply_says_what_has_arrived(rig: Rig, far: Far) -> None:
    for psn in (5000, 5001, 5003, 5010):
        rig.arrive(far.data(psn, PACKET))
    answer = decode_frame(rig.receive(far.probe(7)).frame)
    assert isinstance(answer, Sack)
    assert (answer.body.probe_reply, answer.body.probe_id) == (True, 7)
    assert answer.body.cack == 5001
    first = answer.body.cack + answer.body.sack_offset
    arrived = {first + i for i in range(64) if answer.body.bitmap >> i & 1}
    assert arrived == {5003, 5010}
    assert answer.cc_state.ooo == 2


def test_handshake_loses_its_outer_header_and_passes(rig: Rig, far: Far) -> None:
    around = far.envelope(EV, port=4972)
    assert around.outer is not None
    inner = udp6(around.inner.src, around.inner.dst, 4972, 4972, b"an offer")
    outer = struct.pack("!IHBB", 6 << 28, len(inner), 41, 61)
    outer += around.outer.src.packed + around.outer.dst.packed
    ethernet = far.data(5000, PACKET)[:14]
    ran = rig.receive(ethernet + outer + inner)
    assert (ran.verdict, ran.frame) == (PASSED, rig.admitted(ethernet + inner))
    assert rig.counted() == {"control_rx": 1}


FOREIGN = {
    "arp": bytes(12) + b"\x08\x06" + bytes(46),
    "ipv4": bytes(12) + b"\x08\x00" + ip4(b"plain traffic of this NIC" * 4),
    "ipv6": bytes(12) + b"\x86\xdd" + ip6(b"plain traffic of this NIC" * 4),
    "no more than a header": bytes(14),
    "short ipv6": bytes(12) + b"\x86\xdd" + bytes(30),
    "ipv6 to another uSID block": bytes(12) + b"\x86\xdd" + ip6(b"x" * 99, dst="fcbb:bb01:3001::"),
    "data without an outer header": vector("data-ecmp6"),
}


@pytest.mark.parametrize("frame", FOREIGN.values(), ids=FOREIGN)
def test_foreign_traffic_passes_untouched(rig: Rig, frame: bytes) -> None:
    if rig.refuses(frame):
        pytest.skip("no test run at tc takes an IP packet that is shorter than its header")
    before = rig.state()
    ran = rig.receive(frame)
    assert (ran.verdict, ran.frame) == (PASSED, frame)
    assert rig.counted() == {}
    assert rig.state() == before


# ---- cells, and questions for a SACK


@pytest.mark.parametrize("packet", [PACKET, ip6(b"six")], ids=["ipv4", "ipv6"])
def test_cell_ends_in_its_program_untouched(rig: Rig, far: Far, packet: bytes) -> None:
    frame = cell(far, EV, packet)
    ran = rig.receive(frame)
    if rig.dp.sizes.xdp:  # the program at tc is the next one
        assert (ran.verdict, ran.frame) == (PASSED, frame)
        assert rig.tc("mrc_deliver", frame) == Ran(HANDED_CELL, frame)
    else:
        assert (ran.verdict, ran.frame) == (CELL, frame)
    assert rig.counted() == {}


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (OUTER + 6, b"\x3b"),  # no next header
        (OUTER + 8, b"\xfe"),  # another block's source
        (OUTER + 12, b"\x80"),  # half of the mark
        (OUTER + 24, b"\xfe"),  # another block's destination
    ],
)
def test_nearly_a_cell_is_none(rig: Rig, far: Far, at: int, value: bytes) -> None:
    frame = poke(at, value)(cell(far, EV, PACKET))
    assert rig.receive(frame).verdict == (PASSED if at == OUTER + 24 else DROPPED)
    assert rig.tc("mrc_deliver", frame).verdict == TC_UNSPEC


def test_cell_without_its_program_is_dropped(rig: Rig, far: Far) -> None:
    bpf.delete(rig.dp.maps["tails"], struct.pack("=I", 4))
    try:
        frame = cell(far, EV, PACKET)
        if rig.dp.sizes.xdp:
            assert rig.tc("mrc_deliver", frame).verdict == TC_SHOT
        else:
            assert rig.receive(frame).verdict == DROPPED
    finally:
        rig.point_tails()
    assert rig.counted() == {"drop_framing": 1}


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "trimmed"])
def test_single_packets_of_a_qp_with_cells_are_dropped(rig: Rig, far: Far, cut: bool) -> None:
    rig.edit("qps", 0, "mrc_qp", framing=ABI.MRC_FRAMING_CELL)
    frame = far.data(5000, PACKET)
    assert rig.receive(trimmed(frame) if cut else frame).verdict == DROPPED
    assert rig.counted() == {"drop_framing": 1}
    assert rig.receive(far.sack(999)).verdict == PASSED


def test_question_for_a_sack_is_marked_and_otherwise_untouched(rig: Rig, far: Far) -> None:
    frame = far.probe(0, sent=0xBEEF, vendor=WIRE.MRC_PETH_SOLICIT)
    before = rig.state()
    ran = rig.receive(frame)
    assert (ran.verdict, ran.frame[12:]) == (PASSED, frame[12:])
    mark = mark_of(ran.frame)
    assert (mark["flags"], mark["qp"]) == (ABI.MRC_MARK_SOLICIT, 0)
    assert (mark["ts"], mark["ev_hi"] << 16) == (0xBEEF, EV)
    assert (rig.counted(), rig.state()) == ({}, before)


def test_mrc_deliver_is_next(rig: Rig, far: Far) -> None:
    if rig.dp.sizes.xdp:
        pytest.skip("the kernel runs it behind native XDP: tests/net has that")
    rig.point_tails(stubs=False)
    try:
        for number, packet in enumerate((PACKET, ip6(b"six"))):
            assert rig.receive(far.data(5000 + number, packet)).verdict == DROPPED
    finally:
        rig.point_tails()
    assert rig.delivered() == [PACKET, ip6(b"six")]
    assert rig.counted()["rx_packets"] == 2


# ---- dropped


def with_icrc(mutate: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a mutation after which the ICRC word is right, and the tag is not."""

    def both_of(frame: bytes) -> bytes:
        bad = mutate(frame)
        return bad[:-4] + struct.pack("!I", oracle.icrc_of(bad, UDP))

    return both_of


def tagged(mutate: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a mutation after which the tag is right."""
    return lambda frame: oracle.tagged(mutate(frame), UDP)


def poke(at: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda frame: frame[:at] + value + frame[at + len(value) :]


def resized(change: int, at: int | None = None) -> Callable[[bytes], bytes]:
    """Insert (or cut) bytes before the ICRC word, with every length adjusted."""

    def do(frame: bytes) -> bytes:
        where = len(frame) - 4 if at is None else at
        rest = frame[where:]
        out = frame[:where] + bytes(change) + rest if change > 0 else frame[: where + change] + rest
        for offset in (OUTER + 4, INNER + 4, UDP + 4):
            (length,) = struct.unpack_from("!H", out, offset)
            out = poke(offset, struct.pack("!H", length + change))(out)
        return out

    return do


def cut(length: int) -> Callable[[bytes], bytes]:
    return lambda frame: frame[:length]


def both(*steps: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def do(frame: bytes) -> bytes:
        for step in steps:
            frame = step(frame)
        return frame

    return do


# kind of packet, description of the change, change, counter
DROPS = [
    ("data", "group address as source", poke(6, b"\x03"), "drop_mark"),
    ("data", "forged mark", poke(6, MAGIC), "drop_mark"),
    ("data", "uSID of another port", poke(OUTER + 28, b"\x30\x02"), "drop_sid"),
    ("data", "uSID list not used up", poke(OUTER + 30, b"\x30\x02"), "drop_sid"),
    ("data", "uSID of another plane", poke(OUTER + 28, b"\x50\x01"), "drop_sid"),
    ("data", "outer next header not IPv6", poke(OUTER + 6, b"\x11"), "drop_sid"),
    ("data", "outer next header ICMPv6: a ping of our SID", poke(OUTER + 6, b"\x3a"), "drop_sid"),
    ("data", "outer next header of segment routing", poke(OUTER + 6, b"\x2b"), "drop_sid"),
    ("data", "inner version 4", poke(INNER, b"\x45"), "drop_sid"),
    ("data", "inner next header TCP", poke(INNER + 6, b"\x06"), "drop_sid"),
    ("data", "inner destination not ours", poke(INNER + 39, b"\x07"), "drop_sid"),
    ("data", "UDP port not ours", poke(UDP + 2, b"\x12\xb7"), "drop_sid"),
    ("data", "cut in the inner header", cut(INNER + 20), "drop_short"),
    ("data", "cut in the UDP header", cut(UDP + 7), "drop_short"),
    ("data", "cut behind the BTH", cut(BODY), "drop_length"),
    ("data", "last byte missing", lambda frame: frame[:-1], "drop_length"),
    ("data", "a byte too many", lambda frame: frame + b"\0", "drop_length"),
    ("data", "UDP length", poke(UDP + 4, b"\0\x20"), "drop_length"),
    ("data", "inner payload length", poke(INNER + 4, b"\0\x20"), "drop_length"),
    ("data", "outer payload length", poke(OUTER + 4, b"\0\x20"), "drop_length"),
    ("data", "outer payload length 0", poke(OUTER + 4, b"\0\0"), "drop_length"),
    ("data", "transport version 1", poke(BTH + 1, b"\x01"), "drop_version"),
    ("data", "pad count 1", poke(BTH + 1, b"\x10"), "drop_version"),
    ("data", "no time stamp announced", poke(BTH + 8, b"\0"), "drop_version"),
    ("data", "EV of another plane", poke(UDP, b"\x20"), "drop_entropy"),
    ("data", "EV with something in its low half", poke(INNER + 3, b"\x01"), "drop_entropy"),
    ("sack", "EV with something in its low half", poke(INNER + 2, b"\x80"), "drop_entropy"),
    ("data", "QP index out of range", poke(BTH + 6, b"\xff\xff"), "drop_qpn"),
    ("data", "QP not set up", poke(BTH + 7, b"\x05"), "drop_qpn"),
    ("data", "QPN of an earlier boot", poke(BTH + 5, b"\x78"), "drop_qpn"),
    ("data", "sender of another plane", poke(INNER + 8 + 5, b"\x09"), "drop_source"),
    ("data", "sender is not the peer", poke(INNER + 8 + 7, b"\x03"), "drop_source"),
    ("data", "unknown R_Key", poke(RETH + 8, b"NET1"), "drop_rkey"),
    ("data", "wrong tag", with_icrc(poke(RETH + 7, b"\x01")), "drop_tag"),
    ("data", "wrong tag, high", with_icrc(poke(RETH, b"\x80")), "drop_tag"),
    ("trimmed", "wrong tag", poke(RETH + 7, b"\x01"), "drop_tag"),
    ("sack", "wrong tag", with_icrc(poke(-12, b"\x01")), "drop_tag"),
    ("probe", "wrong tag", with_icrc(poke(-5, b"\x01")), "drop_tag"),
    ("nack", "wrong tag", with_icrc(poke(-5, b"\x01")), "drop_tag"),
    ("data", "RETH length", poke(RETH + 15, b"\x01"), "drop_length"),
    ("data", "RETH length, high", poke(RETH + 12, b"\x01"), "drop_length"),
    ("data", "damaged PSN", poke(BTH + 11, b"\xff"), "drop_icrc"),
    ("sack", "damaged bitmap", poke(BODY + 27, b"\x55"), "drop_icrc"),
    ("sack", "damaged ICRC word", lambda frame: frame[:-1] + b"\0", "drop_icrc"),
    ("data", "ICRC word of 0", lambda frame: frame[:-4] + bytes(4), "drop_icrc"),
    ("data", "no payload", resized(-len(PACKET)), "drop_short"),
    ("data", "19 bytes of payload", resized(19 - len(PACKET)), "drop_short"),
    ("data", "payload of IP version 5", poke(PAYLOAD, b"\x55"), "drop_inner"),
    ("data", "payload of IP version 0", poke(PAYLOAD, b"\x05"), "drop_inner"),
    ("data", "IPv4 header of 16 bytes", poke(PAYLOAD, b"\x44"), "drop_inner"),
    ("data", "IPv4 total length too long", poke(PAYLOAD + 2, b"\x05"), "drop_inner"),
    ("data", "IPv4 total length too short", poke(PAYLOAD + 2, b"\0\x14"), "drop_inner"),
    ("data6", "IPv6 payload length", poke(PAYLOAD + 4, b"\xff"), "drop_inner"),
    ("data6", "IPv6 in 39 bytes",
     both(resized(39 - len(ip6(b"six"))), poke(RETH + 12, struct.pack("!I", 39))), "drop_inner"),
    ("sack", "4 bytes too long", resized(4), "drop_length"),
    ("sack", "4 bytes too short", resized(-4), "drop_length"),
    ("sack", "QPN of an earlier boot", poke(BTH + 5, b"\x78"), "drop_qpn"),
    ("sack", "sender is not the peer", poke(INNER + 8 + 7, b"\x03"), "drop_source"),
    ("probe", "4 bytes too long", resized(4), "drop_length"),
    ("probe", "4 bytes too short", resized(-4), "drop_length"),
    ("probe", "EV with something in its low half", poke(INNER + 3, b"\x01"), "drop_entropy"),
    ("nack", "4 bytes too long", resized(4), "drop_length"),
    ("nack", "4 bytes too short", resized(-4), "drop_length"),
    ("nack", "QPN of an earlier boot", poke(BTH + 5, b"\x78"), "drop_qpn"),
    ("nack", "sender is not the peer", poke(INNER + 8 + 7, b"\x03"), "drop_source"),
    ("nack", "about an EV that is none of ours", poke(BODY + 7, b"\x01"), "drop_entropy"),
    ("trimmed", "cut in the inner header", cut(INNER + 20), "drop_short"),
    ("trimmed", "cut in the BTH", cut(BTH + 11), "drop_short"),
    ("trimmed", "cut in the TSETH", cut(RETH - 1), "drop_short"),
    ("trimmed", "DSCP of something else", poke(OUTER, b"\x6a\x80"), "drop_length"),
    ("trimmed", "inner payload length", poke(INNER + 5, b"\xff"), "drop_length"),
    ("trimmed", "no time stamp", poke(BTH + 8, b"\0"), "drop_version"),
    ("trimmed", "EV of another plane", poke(UDP, b"\x20"), "drop_entropy"),
    ("trimmed", "QPN of an earlier boot", poke(BTH + 5, b"\x78"), "drop_qpn"),
    ("trimmed", "sender is not the peer", poke(INNER + 8 + 7, b"\x03"), "drop_source"),
    ("trimmed", "not data", poke(BTH, b"\xdc"), "drop_length"),
    ("trimmed", "a hand-shake", poke(UDP + 2, b"\x13\x6c"), "drop_length"),
    ("trimmed", "PSN beyond the window", tagged(poke(BTH + 9, b"\x01")), "drop_psn"),
    ("trimmed", "PSN that has been delivered", tagged(poke(BTH + 10, b"\x13\x87")),
     "rx_duplicate"),
    ("reply", "nobody waits for it", lambda frame: frame, "probe_stale"),
    ("reply", "EV of no path", poke(BODY + 4, struct.pack("!I", ev_of(1, 9))), "drop_entropy"),
    ("reply", "EV of no plane", poke(BODY + 4, b"\xf0"), "drop_entropy"),
    *(
        ("data", f"opcode {opcode:#04x}", poke(BTH, bytes([opcode])), "drop_opcode")
        for opcode in (0x00, 0x0A, 0xC5, 0xCC, 0xD0, 0xFF)
    ),
    *(
        ("data", f"opcode {opcode:#04x}", poke(BTH, bytes([opcode])), "drop_multi_packet")
        for opcode in (0xC6, 0xC7, 0xC8, 0xC9)
    ),
    ("data", "opcode of a write with immediate", poke(BTH, b"\xcb"), "drop_immediate"),
    ("data", "opcode of a Transport ACK", poke(BTH, b"\xd1"), "drop_transport_ack"),
    ("data", "opcode of an endpoint response", poke(BTH, b"\xd9"), "drop_length"),
    ("probe", "opcode of an endpoint request", poke(BTH, b"\xd8"), "drop_opcode"),
]  # fmt: skip


def good_packets(far: Far) -> dict[str, bytes]:
    return {
        "data": far.data(5000, PACKET),
        "data6": far.data(5000, ip6(b"six")),
        "sack": far.sack(999),
        "probe": far.probe(1),
        "reply": far.probe_reply(1),
        "nack": far.nack(1000),
        "trimmed": trimmed(far.data(5000, PACKET)),
    }


@pytest.mark.parametrize(
    ("kind", "mutate", "counter"),
    [(kind, mutate, counter) for kind, _what, mutate, counter in DROPS],
    ids=[f"{kind}: {what}" for kind, what, _mutate, _counter in DROPS],
)
def test_bad_packet_is_dropped_for_its_reason(
    rig: Rig, far: Far, kind: str, mutate: Callable[[bytes], bytes], counter: str
) -> None:
    good = good_packets(far)[kind]
    if kind != "reply":
        assert rig.receive(good).verdict in (PASSED, SENT)
        rig.counted()
    before = rig.state()
    as_it_is = counter in ("drop_icrc", "drop_tag") or kind == "trimmed"
    bad = mutate(good) if as_it_is else sealed(mutate(good))
    if counter in ("drop_multi_packet", "drop_immediate"):
        assert rig.receive(bad).verdict == SENT  # tests/bpf/test_refuse.py looks at the answer
        assert rig.counted() == {counter: 1, "nack_tx_event": 1}
        return
    assert rig.receive(bad).verdict == DROPPED
    assert rig.counted() == {counter: 1}
    assert rig.state() == before


@pytest.mark.parametrize("kind", ["data", "data6", "sack", "probe", "reply", "nack", "request"])
def test_every_damaged_bit_of_the_headers_is_noticed(rig: Rig, far: Far, kind: str) -> None:
    """This includes damage that turns the headers into other valid ones."""
    packets = good_packets(far)
    packets["request"] = far.endpoint_request(WIRE.MRC_ENDPOINT_EV_PROBE, 3)
    good = packets[kind]
    end = PAYLOAD if kind.startswith("data") else len(good) - WIRE.MRC_ICRC_LEN
    before = rig.state()
    seen: Counter[str] = Counter()
    for at in [UDP, UDP + 1, *range(BTH, end), *range(len(good) - 4, len(good))]:
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            assert rig.receive(bytes(bad)).verdict == DROPPED, (at, bit)
            seen.update(rig.counted())
    assert seen["drop_icrc"] > 0.8 * seen.total()
    assert rig.state() == before


def test_udp_length_without_room_for_a_bth_is_short(rig: Rig, far: Far) -> None:
    whole = far.data(5000, PACKET)
    frame = whole[: UDP + WIRE.MRC_UDP_LEN + 20]
    for offset, length in ((OUTER + 4, 68), (INNER + 4, 28), (UDP + 4, 28)):
        frame = poke(offset, struct.pack("!H", length))(frame)
    # BTH and ICRC with nothing in between.
    assert rig.receive(frame).verdict == DROPPED
    assert rig.counted() == {"drop_short": 1}
    frame = frame[:-9]
    for offset, length in ((OUTER + 4, 59), (INNER + 4, 19), (UDP + 4, 19)):
        frame = poke(offset, struct.pack("!H", length))(frame)
    assert rig.receive(frame).verdict == DROPPED
    assert rig.counted() == {"drop_short": 1}


def test_payload_beyond_the_mtu_is_dropped(rig: Rig, far: Far) -> None:
    room = rig.mtu - len(ip4())
    assert rig.receive(far.data(5000, ip4(bytes(room)))).verdict == PASSED
    assert rig.receive(far.data(5000, ip4(bytes(room + 1)))).verdict == DROPPED
    assert rig.counted() == {"drop_length": 1}


def test_packet_of_one_plane_that_comes_in_by_another_is_dropped(rig: Rig, far: Far) -> None:
    frame = far.data(5000, PACKET, ev_of(2, 1))
    assert rig.receive(frame, "plane2").verdict == PASSED
    assert rig.receive(frame, "plane1").verdict == DROPPED
    assert rig.counted() == {"drop_sid": 1}


def test_packet_for_a_qp_that_is_down_is_dropped(rig: Rig, far: Far) -> None:
    rig.set_state(ABI.MRC_QP_DOWN)
    before = rig.state()
    for frame in good_packets(far).values():
        assert rig.receive(frame).verdict == DROPPED
    assert rig.counted() == {"drop_qpn": len(good_packets(far))}
    assert rig.state() == before


def test_qp_that_may_not_send_yet_receives(rig: Rig, far: Far) -> None:
    rig.set_state(ABI.MRC_QP_RECEIVE)
    rig.arrive(far.data(5000, PACKET))
    assert rig.delivered() == [PACKET]


def test_every_drop_reason_of_the_receiver_has_a_case() -> None:
    """Require a row in the table for every counter that mrc_receive can raise."""
    source = (ABI.path.parent / "receive.c").read_text()
    raised = {
        name.removeprefix("MRC_C_").lower()
        for name in ABI.constants
        if re.search(rf"\b{name}\b", source) and name.startswith("MRC_C_DROP_")
    }
    # Only a lack of memory makes the kernel refuse to move a packet's head or tail (drop_skb);
    # test_encap.py has the case of IPv4 (drop_checksum), a test above drop_framing, and
    # test_tags.py drop_replay, and test_planes_in_common.py drop_relay.
    elsewhere = {"drop_skb", "drop_checksum", "drop_framing", "drop_replay", "drop_relay"}
    assert raised - elsewhere <= {row[3] for row in DROPS}
