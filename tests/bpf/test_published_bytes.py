# SPDX-License-Identifier: GPL-2.0-only
"""The programs read and write each header at its published byte positions.

Every byte here is written out by hand. Neither the codec nor a constant of bpf/mrc_wire.h has a
part in it, so that a field at a wrong place cannot agree with itself.
"""

from __future__ import annotations

import pytest

from mrcd.wire.envelope import put_envelope
from rigs.oracle import siphash
from rigs.packets import BODY, BTH, EV, UDP, Far, ip4, numbered, sealed, trimmed
from rigs.rig import DROPPED, SENT, Rig, gateway_mac_of, mac_of

ALL = 0xFF
FIRST = 1000  # the first PSN that we send
OUT = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")
SIX_WORDS = " 00 00 00 00" * 6
RETH = " 00 00 7f 00 12 34 50 00  11 22 33 44  00 00 00 24  "


def packet(far: Far, opcode: int, aux: int, qpn: str, psn: str, headers: str) -> bytes:
    """Return a packet of the peer on plane 1, T1 2, with these bytes from the BTH on."""
    bth = bytes([opcode, 0, 0xFF, 0xFF, 0]) + bytes.fromhex(qpn) + bytes([aux]) + bytes.fromhex(psn)
    ends = bytes(12) if opcode in (0xD8, 0xD9, 0xDC, 0xDD, 0xDE) else b""  # count and tag
    body = put_envelope(far.envelope(EV), bth + bytes.fromhex(headers) + ends + bytes(4))
    return sealed(mac_of(1) + gateway_mac_of(1) + b"\x86\xdd" + body)


def request(far: Far, headers: str) -> bytes:
    return packet(far, 0xD8, 0, "00 00 02", "00 12 34", headers)


def behind_bth(frame: bytes) -> str:
    """Return the headers behind the BTH of a packet without payload, up to count and tag."""
    return frame[BODY:-16].hex(" ")


def words(text: str) -> str:
    return bytes.fromhex(text).hex(" ")


def ports(rig: Rig) -> int:
    return rig.table.peers.balance("h2").ports


EV_PROBES = [
    "00 01 00 00  00 00 00 00  00 00 00 00  be ef 00 01",
    "00 01 00 2a  00 00 00 00  00 00 00 00  be ef 00 01",  # vendor_info
    "00 01 00 00  00 00 00 0f  00 00 00 00  be ef 80 01",  # a mask, resolution
    "f0 01 00 00  00 00 00 00  00 00 00 00  be ef 00 01",  # type
    "0f 81 00 00  00 00 00 00  00 00 00 00  be ef 00 01",  # nxt
    "00 7d ff 00  00 00 00 00  ff ff ff ff  be ef 7f f1",  # every reserved bit
    "00 01 00 00  00 00 00 00  10 02 00 00  be ef 00 01",  # the EV in a reserved word
]


@pytest.mark.parametrize("headers", EV_PROBES)
def test_ev_probe_is_one_and_no_port_status_update(rig: Rig, far: Far, headers: str) -> None:
    ran = rig.receive(request(far, headers))
    assert ran.verdict == SENT
    assert ran.frame[BTH : BTH + 12].hex(" ") == "d9 00 ff ff 00 00 00 02 00 00 12 34"
    assert behind_bth(ran.frame) == words("00 10 00 00" + SIX_WORDS + " be ef 00 00 00 00 00 00")
    assert rig.counted() == {"ev_probe_rx": 1}
    assert ports(rig) == ALL


def test_port_status_update_is_one(rig: Rig, far: Far) -> None:
    ran = rig.receive(request(far, "00 00 00 00  00 00 00 0d  00 00 00 00  be ef 00 01"))
    assert ran.verdict == SENT
    assert behind_bth(ran.frame) == words("00 00 00 00" + SIX_WORDS + " be ef 00 00 00 00 00 00")
    assert rig.counted() == {"ports_rx": 1}
    assert ports(rig) == 0x0D


@pytest.mark.parametrize("byte", ["02", "03"])
def test_unknown_operation_is_refused(rig: Rig, far: Far, byte: str) -> None:
    ran = rig.receive(request(far, f"00 {byte} 00 00  00 00 00 0d  00 00 00 00  be ef 00 01"))
    assert ran.verdict == DROPPED
    assert rig.counted() == {"drop_opcode": 1}
    assert ports(rig) == ALL


def test_data_leaves_at_its_bytes(rig: Rig) -> None:
    frame = rig.spray(OUT).frame
    assert frame[BTH : BTH + 12].hex(" ") == "ca 00 ff ff 00 88 00 03 10 00 03 e8"
    assert frame[BODY : BODY + 4].hex(" ") == "00 00 03 e8"
    assert frame[BODY + 6 : BODY + 8].hex(" ") == "00 01"
    covered = frame[UDP : BODY + 8] + bytes.fromhex("00 00 03 e8 4e 45 54 30 00 00 00 1f")
    assert frame[BODY + 8 : BODY + 16] == siphash(bytes(16), covered)
    assert frame[BODY + 16 : BODY + 24].hex(" ") == words("4e 45 54 30  00 00 00 1f")
    assert frame[BODY + 24 : -4] == OUT


def test_sack_leaves_at_its_bytes(rig: Rig, far: Far) -> None:
    ran = rig.arrive(far.data(5002, numbered(2), sent=0xBEEF, ackreq=True))
    seth = (
        "00 00 00 03  10 02 00 00  00 00 00 00  00 00 13 87  00 01 00 01  00 00 00 00 00 00 00 04"
    )
    assert behind_bth(ran.frame) == words(seth + " be ef 00 01  00 00 00 01")
    assert ran.frame[-16:-12].hex(" ") == "00 00 00 01"  # the first on this plane
    assert ran.frame[-12:-4] == siphash(bytes(16), ran.frame[UDP:-12] + bytes(4))  # whole words


def test_penalty_leaves_at_its_bytes(rig: Rig, far: Far) -> None:
    """Bit 31 of CC_STATE's last word is restore_cwnd, and bits 30 to 24 are rcv_cwnd_pen."""
    rig.arrive(far.data(5002, numbered(2)))
    told = []
    for free in (25, 0, 200):  # of 200
        rig.set_room(free, 16)
        ran = rig.arrive(far.data(5002, numbered(2)))  # a copy is answered
        told.append(ran.frame[-20:-16].hex(" "))
    assert told == ["20 00 00 01", "40 00 00 01", "80 00 00 01"]


@pytest.mark.parametrize(("word", "counter"), [("7f", "penalty_rx"), ("80", "penalty_over")])
def test_penalty_is_read_at_its_bytes(rig: Rig, far: Far, word: str, counter: str) -> None:
    rig.tune(cc_target_ns=1_000_000, cc_rate=25_000)
    rig.spray(OUT)
    rig.edit("txs", 0, "mrc_tx", cwnd=50_000, inflight=50_000, saved=60_000)
    rig.counted()
    headers = (
        "00 00 00 00  10 02 00 00  00 00 00 00  00 00 03 e8  01 02 00 01" + " 00" * 8 +
        f" 00 00 00 00 {word} 00 00 01"
    )  # fmt: skip
    rig.arrive(packet(far, 0xDC, 0, "77 00 00", "00 00 00", headers))
    assert rig.counted() == {"sack_rx": 1, counter: 1}
    assert rig.tx()["cwnd"] == (60_000 if word == "80" else 50_000 - len(OUT) * 127 // 128)


REFUSED = [  # opcode, headers behind the BTH and payload, counter
    (0xC6, "00 00 00 05  be ef 00 01" + RETH + "73 69 78 74", "drop_multi_packet"),
    (0xC7, "00 00 00 05  be ef 00 01" + RETH + "73 69 78 74", "drop_multi_packet"),
    (0xC8, "00 00 00 05  be ef 00 01" + RETH + "65 6e 64 2e", "drop_multi_packet"),
    (0xC9, "00 03 00 05  be ef 00 01" + RETH + "ca fe f0 0d  65 6e", "drop_multi_packet"),
    (0xCB, "00 03 00 05  be ef 00 01" + RETH + "ca fe f0 0d  6f 6e", "drop_immediate"),
    (0xD1, "1f 00 00 05", "drop_transport_ack"),
]


@pytest.mark.parametrize(("opcode", "behind", "counter"), REFUSED)
def test_what_mrc0_has_no_use_for_is_refused_by_its_name(
    rig: Rig, far: Far, opcode: int, behind: str, counter: str
) -> None:
    ran = rig.receive(packet(far, opcode, 0x10, "77 00 00", "00 13 88", behind))
    if counter == "drop_transport_ack":  # it answers requests and is none
        assert ran.verdict == DROPPED
        assert rig.counted() == {counter: 1}
        return
    assert ran.verdict == SENT
    assert behind_bth(ran.frame) == words(
        "00 00 19 00  10 02 00 00  00 00 00 00  00 00 13 88  20 00 be ef"
    )
    assert rig.counted() == {counter: 1, "nack_tx_event": 1}


def test_refusals_leave_at_their_bytes(rig: Rig, far: Far) -> None:
    rig.take_slots("rx_free")
    for psn, reason in ((5002, "07"), (5128, "0b")):
        ran = rig.arrive(far.data(psn, numbered(2), sent=0xBEEF))
        assert ran.frame[BTH : BTH + 12].hex(" ") == "dd 00 ff ff 00 88 00 03 00 00 00 00"
        number = psn.to_bytes(3, "big").hex(" ")
        assert behind_bth(ran.frame) == words(
            f"00 00 {reason} 00  10 02 00 00  00 00 00 00  00 {number}  20 00 be ef"
        )


def test_probe_is_answered(rig: Rig, far: Far) -> None:
    headers = "00 00 00 00  c0 de 00 00  00 00 00 00  be ef 00 01"
    ran = rig.receive(packet(far, 0xDE, 0, "77 00 00", "00 00 00", headers))
    assert ran.verdict == SENT
    seth = "00 02 c0 de  10 02 00 00  00 00 00 00  00 00 13 87  01 01 00 01" + " 00" * 8
    assert behind_bth(ran.frame) == words(seth + " be ef 00 00  00 00 00 00")
    assert rig.counted() == {"probe_rx": 1}


def test_received_bytes_are_nominal_sizes_rounded_up(rig: Rig, far: Far) -> None:
    """The nominal size of a packet is its UDP length and 40."""
    told, total = [], 0
    for number, size in enumerate((100, 1000, 3, 1300)):
        frame = far.data(5000 + number, numbered(number, size), ackreq=True)
        ran = rig.arrive(frame)
        total += int.from_bytes(frame[BTH - 4 : BTH - 2], "big") + 40
        told.append(((total + 255) >> 8).to_bytes(4, "big"))
        assert ran.frame[-20:-16] == told[-1]
    assert [each.hex() for each in told] == ["00000001", "00000006", "00000006", "0000000c"]


def test_probe_leaves_at_its_bytes(rig: Rig, far: Far) -> None:
    rig.tune(reo_min_ns=0, reo_max_ns=0, probe_interval_ns=1)
    for _ in range(4):
        rig.spray(OUT)
    rig.arrive(far.sack(FIRST - 1, 0b1110))  # the path of the first one is withdrawn
    rig.sent()
    rig.tick(8)
    probes = [frame for _plane, frame in rig.sent() if frame[BTH] == 0xDE]
    assert probes
    for frame in probes:
        head = frame[BODY:-16]
        assert len(head) == 16
        assert head[:4].hex(" ") == "00 00 00 00"
        assert head[6:12] == bytes(6)
        assert head[14:16].hex(" ") == "00 01"
        slot, source = int.from_bytes(head[4:6], "big") >> 9, frame[BTH - 8 : BTH - 6]
        assert rig.path(int.from_bytes(source, "big") << 16)["slot"] == slot


def test_answer_to_a_probe_is_one(rig: Rig, far: Far) -> None:
    headers = "00 02 00 01  10 02 00 00  00 00 00 00  00 00 03 e7  01 02 00 01" + " 00" * 16
    ran = rig.receive(packet(far, 0xDC, 0, "77 00 00", "00 00 00", headers))
    assert ran.verdict == DROPPED  # nobody waits for it
    assert rig.counted() == {"probe_stale": 1}


def test_sack_is_none(rig: Rig, far: Far) -> None:
    """Whatever stands in the reserved bits of byte 1, only bit 1 makes it an answer to a probe."""
    rig.spray(OUT)
    rig.counted()
    headers = "00 1d 00 01  10 02 00 00  00 00 00 00  00 00 03 e8  00 02 00 01" + " 00" * 16
    rig.arrive(packet(far, 0xDC, 0, "77 00 00", "00 00 00", headers))
    assert rig.counted() == {"sack_rx": 1}
    assert rig.tx()["una"] == FIRST + 1


def test_trimmed_packet_is_refused(rig: Rig, far: Far) -> None:
    ran = rig.receive(trimmed(far.data(5007, numbered(7, 1000), sent=0xBEEF)))
    assert ran.verdict == SENT
    assert behind_bth(ran.frame) == words(
        "00 00 01 00  10 02 00 00  00 00 00 00  00 00 13 8f  20 00 be ef"
    )


@pytest.mark.parametrize(
    ("reason", "again"), [("01", True), ("02", True), ("07", False), ("0b", False), ("19", False)]
)
def test_nack_is_followed(rig: Rig, far: Far, reason: str, again: bool) -> None:
    about = int.from_bytes(rig.spray(OUT).frame[UDP : UDP + 2], "big")
    rig.sent()
    headers = f"00 00 {reason} 55  {about:04x} 00 00  00 00 00 00  00 00 03 e8  20 00 00 00"
    rig.arrive(packet(far, 0xDD, 0, "77 00 00", "00 00 00", headers))
    frames = [frame for _plane, frame in rig.sent()]
    assert len(frames) == again
    assert all(frame[BTH] == 0xCA and frame[BTH + 8] & 0x20 for frame in frames)
