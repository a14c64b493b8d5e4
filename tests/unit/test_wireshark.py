# SPDX-License-Identifier: GPL-2.0-only
"""Test the Wireshark dissector against mrcd's codec: tshark runs it on the golden packets."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest

from mrcd.wire.cell import (
    CellInUdp,
    CellPacket,
    decode_cell,
    decode_cell_in_udp,
    encode_cell,
    piece_psns,
    tcp_of,
)
from mrcd.wire.packet import (
    WIRE,
    Aeth,
    Data,
    DecodeError,
    Eeth,
    Envelope,
    Erth,
    Ip4,
    Neth,
    Packet,
    Peth,
    Sack,
    Timestamp,
    decode_frame,
    encode_frame,
)
from rigs import oracle
from tests.tshark import EXPERTS, FIELDS, SOURCE, Row, tshark
from tests.unit.test_docs_reference import cells, section
from tests.unit.wire.test_packet import key_of

ROOT = Path(__file__).resolve().parents[2]
VECTORS = sorted(path.stem for path in (ROOT / "tests" / "vectors").glob("*.hex"))
TRIMMED = [name for name in VECTORS if name.startswith("data-trimmed")]
CELLS = [name for name in VECTORS if name.startswith("cell-")]
IN_UDP = [name for name in CELLS if name.startswith("cell-in-udp")]
QPN, NICS = 0x510013, 0xFDCB0000  # of the cells


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """Return tshark's fields of the golden packets."""
    frames = [oracle.vector(name) for name in VECTORS]
    rows = tshark(
        frames, tmp_path_factory.mktemp("golden"), fields=("ip.dst", "ipv6.dst", "udp.dstport")
    )
    return dict(zip(VECTORS, rows, strict=True))


# ---- the codec's results, in the dissector's words


def stamp(timestamp: Timestamp) -> dict[str, int]:
    return {
        "ts.time": timestamp.tx_timestamp,
        "ts.tsr": timestamp.tsr,
        "ts.ftype": timestamp.ftype,
    }


def of_envelope(around: Envelope, *, ecmp: bool) -> dict[str, int]:
    if isinstance(around.inner, Ip4):
        encap = WIRE.MRC_ENCAP_ECMP4
    elif around.outer is not None:
        encap = WIRE.MRC_ENCAP_FULL
    else:
        encap = WIRE.MRC_ENCAP_ECMP6 if ecmp else WIRE.MRC_ENCAP_REDUCED
    # Over IPv6 without uSIDs, the flow label repeats the upper half.
    ev = around.ev & 0xFFFF0000 if encap == WIRE.MRC_ENCAP_ECMP6 else around.ev
    choice = "ev.t1" if encap <= WIRE.MRC_ENCAP_REDUCED else "ev.entropy"
    return {
        "encap": encap, "ev": ev, "ev.plane": ev >> WIRE.MRC_EV_PLANE_SHIFT,
        choice: ev >> WIRE.MRC_EV_T1_SHIFT & WIRE.MRC_EV_T1_MASK, "ev.spare": ev & 0xFFFF,
    }  # fmt: skip


def of_body(packet: Packet) -> dict[str, int]:
    body = packet.body
    match body:
        case Aeth():
            return {
                "aeth.kind": body.syndrome >> 5, "aeth.credits": body.syndrome & 31,
                "aeth.msn": body.msn,
            }  # fmt: skip
        case Neth():
            return {
                "neth.type": body.type, "neth.nxt": body.nxt, "neth.reason": body.reason,
                "neth.vendor": body.vendor, "neth.entropy": body.entropy,
                "neth.spdcid": body.spdcid, "neth.dpdcid": body.dpdcid, "neth.psn": body.psn,
                "neth.cc_type": body.cc_type, "neth.time": body.tx_timestamp,
            }  # fmt: skip
        case Peth():
            return {
                "peth.type": body.type, "peth.nxt": body.nxt, "peth.vendor": body.vendor,
                "peth.probe_id": body.probe_id, "peth.spdcid": body.spdcid,
                "peth.dpdcid": body.dpdcid, **stamp(body.timestamp),
            }  # fmt: skip
        case Erth() | Eeth():
            found = {
                "endpoint.type": body.type, "endpoint.nxt": body.nxt,
                "endpoint.id": packet.bth.psn & 0xFFFF,
            }  # fmt: skip
            if isinstance(body, Eeth):
                return found | {"eeth.op": body.op, "endpoint.time": body.tx_timestamp}
            return found | {
                "erth.op": body.op, "endpoint.vendor": body.vendor,
                "endpoint.ports": body.port_status_mask, **stamp(body.timestamp),
            }  # fmt: skip
    if isinstance(packet, Data):
        write = packet.body
        found = {
            "meth.rqmsn": write.rqmsn, "meth.msn": write.msn, tag_or_va(packet): write.va,
            "reth.rkey": write.rkey, "reth.length": write.length,
        }  # fmt: skip
        if write.immediate is not None:
            found["imm"] = write.immediate
        if write.stub:
            found["stub"] = 1
        return found | (stamp(write.timestamp) if write.timestamp else {})
    assert isinstance(packet, Sack)
    seth, cc = packet.body, packet.cc_state
    caused = (
        {"seth.probe_id": seth.probe_id}
        if seth.probe_reply
        else {
            "seth.ack_psn_offset": seth.ack_psn_offset,
            "seth.ack_psn": seth.cack + seth.ack_psn_offset & WIRE.MRC_PSN_MASK,
        }
    )
    return caused | {
        "seth.type": seth.type, "seth.nxt": seth.nxt, "seth.m": seth.verdict,
        "seth.pr": seth.probe_reply, "seth.entropy": seth.entropy, "seth.spdcid": seth.spdcid,
        "seth.dpdcid": seth.dpdcid, "seth.down": seth.down, "seth.cack": seth.cack,
        "seth.cc_type": seth.cc_type, "seth.mpr": seth.mpr, "seth.sack_offset": seth.sack_offset,
        "seth.solicited": bool(seth.cc_flags & WIRE.MRC_CC_FLAG_SOLICITED),
        "seth.duplicate": bool(seth.cc_flags & WIRE.MRC_CC_FLAG_DUPLICATE),
        "seth.delayed": bool(seth.cc_flags & WIRE.MRC_CC_FLAG_DELAYED),
        "seth.bitmap": seth.bitmap, "cc.time": cc.tx_timestamp, "cc.ooo": cc.ooo,
        "cc.restore": cc.restore_cwnd, "cc.penalty": cc.penalty, "cc.bytes": cc.received,
    }  # fmt: skip


def expected(packet: Packet, *, ecmp: bool) -> dict[str, int]:
    bth = packet.bth
    return {
        **of_envelope(packet.envelope, ecmp=ecmp), "bth.opcode": bth.opcode,
        "bth.se": bth.solicited, "bth.m": bth.migration, "bth.pad": 0, "bth.tver": 0,
        "bth.pkey": bth.pkey, "bth.dqpn": bth.dqpn, "bth.ackreq": bth.ackreq, "bth.rtx": bth.rtx,
        "bth.ts": bth.ts, "bth.phase": bth.phase, "bth.psn": bth.psn, **of_body(packet),
        **of_auth(packet), "icrc.good": True,
    }  # fmt: skip


def tag_or_va(packet: Data) -> str:
    """Return the name of the first field of RETH: it is the tag where data goes to mrc0."""
    to_mrc0 = packet.body.rkey in (WIRE.MRC_RKEY_NETDEV, WIRE.MRC_RKEY_STUB) and packet.bth.ts
    return "reth.tag" if to_mrc0 and packet.bth.opcode == WIRE.MRC_OP_WRITE_ONLY else "reth.va"


def of_auth(packet: Packet) -> dict[str, int]:
    if isinstance(packet, Data) or isinstance(packet.body, Aeth):
        return {}
    assert packet.auth.tag is not None
    return {"auth.count": packet.auth.count, "auth.tag": packet.auth.tag}


SHOWN_BESIDE = {"payload", "usids", "ts.us", "seth.arrived", "icrc", "trimmed"}


def numbers(row: Row) -> dict[str, int]:
    """Return the dissector's numeric fields."""
    return {
        name.removeprefix("mrc."): int(value, 0)
        for name, value in row.items()
        if name in FIELDS and name.removeprefix("mrc.") not in SHOWN_BESIDE
    }


def psns(text: str) -> set[int]:
    """Return the PSNs of a text such as "0x00f00d-0x00f00e, 0x00f010"."""
    found: set[int] = set()
    for part in filter(None, text.split(", ")):
        low, _, high = part.partition("-")
        span = (int(high or low, 16) - int(low, 16)) & WIRE.MRC_PSN_MASK
        found |= {int(low, 16) + step & WIRE.MRC_PSN_MASK for step in range(span + 1)}
    return found


# ---- golden packets


@pytest.mark.parametrize("name", [name for name in VECTORS if name not in TRIMMED + CELLS])
def test_golden__dissected_as_the_codec_decodes_it(name: str, golden: dict[str, Row]) -> None:
    packet, row = decode_frame(oracle.vector(name)), golden[name]
    assert numbers(row) == expected(packet, ecmp="ecmp" in name)
    assert int(row["mrc.icrc"], 0) == int.from_bytes(oracle.vector(name)[-4:], "big")
    complaints = {expert for expert in EXPERTS if expert in row}
    wanted = {"mrc.retransmission"} if packet.bth.rtx else set()
    assert complaints == wanted | ({"mrc.refused"} if isinstance(packet.body, Neth) else set())


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("sack")])
def test_golden__bitmap_as_psns(name: str, golden: dict[str, Row]) -> None:
    seth = decode_frame(oracle.vector(name)).body
    bits = (bit for bit in range(64) if seth.bitmap >> bit & 1)
    wanted = {seth.cack + seth.sack_offset + bit & WIRE.MRC_PSN_MASK for bit in bits}
    assert psns(golden[name].get("mrc.seth.arrived", "")) == wanted
    assert wanted or name != "sack"


@pytest.mark.parametrize("name", TRIMMED)
def test_golden__trimmed(name: str, golden: dict[str, Row]) -> None:
    row, whole = golden[name], name.replace("data-trimmed", "data")
    reference = golden["data-v4" if whole == "data" else whole]
    same = {k: v for k, v in numbers(reference).items() if not k.startswith("icrc")}
    assert numbers(row) == same
    assert "mrc.cut" in row
    assert "mrc.icrc" not in row
    assert "trimmed" in row["_ws.col.Info"]


def test_golden__usid_lists(golden: dict[str, Row]) -> None:
    assert golden["data-v4"]["mrc.usids"] == "p1t0-1 p1t1-2 p1t0-2 p1:1"
    assert golden["data-arrived-ce"]["mrc.usids"] == "p1:1"
    assert golden["sack-reduced"]["mrc.usids"] == "p1t0-2 p1t1-2 p1t0-1 p1:1"
    assert not any("mrc.usids" in row for name, row in golden.items() if "ecmp" in name)


def test_golden__inner_packet_goes_to_the_ip_dissector(tmp_path: Path) -> None:
    frames = [oracle.vector(name) for name in ("data-v4", "data-v6", "data-ecmp4")]
    options = ("-E", "occurrence=l")
    rows = tshark(
        frames, tmp_path, *options, fields=("ip.dst", "ipv6.dst", "udp.dstport", "icmpv6.type")
    )
    assert [row.get("ip.dst") for row in rows] == ["10.99.0.2", None, "10.99.0.2"]
    assert rows[1]["ipv6.dst"] == str(IPv6Address("fd99::2"))
    assert (rows[0]["udp.dstport"], rows[1]["icmpv6.type"]) == ("7", "128")


def test_golden__columns_tell_of_both(golden: dict[str, Row]) -> None:
    info = golden["data-v6"]["_ws.col.Info"]
    assert info.startswith("Write Only, PSN 0xffffff, 52 bytes, EV 0x10020000 | Echo (ping)")
    for name, reason in (
        ("nack", "PSN_OOR_WINDOW"),
        ("nack-no-bitmap", "NO_BITMAP"),
        ("nack-no-buffer", "NO_PKT_BUFFER"),
        ("nack-no-resource", "NO_RESOURCE"),
        ("nack-unexpected", "UNEXP_EVENT"),
    ):
        assert golden[name]["_ws.col.Info"] == f"NACK, of 0x00f00d, {reason}, EV 0x10020000"


def test_golden__a_question_for_a_sack_and_its_answer(golden: dict[str, Row]) -> None:
    info = golden["probe-solicit"]["_ws.col.Info"]
    assert info == "Probe, 0xc0de, asks for a SACK, EV 0x10020000"
    assert golden["sack-solicited"]["mrc.cc.time"] == golden["probe-solicit"]["mrc.ts.time"]


# ---- cells


def of_cell(packet: CellPacket | CellInUdp, *, usids: bool = True) -> dict[str, int]:
    cell = packet.cell
    psn, count = (cell.psn, 1) if cell.single else piece_psns(cell, *tcp_of(packet.payload))
    found = {"stub": 1} if cell.stub else {}
    if isinstance(packet, CellPacket):
        found["cell.block"] = cell.block
    else:
        found |= {"cell.vxlan": WIRE.MRC_CELL_VXLAN, "cell.vni": cell.label}
        found["cell.inner"] = 0x0800 if packet.payload[0] >> 4 == 4 else 0x86DD
    return found | {
        "ev": cell.ev, "ev.plane": cell.ev >> WIRE.MRC_EV_PLANE_SHIFT,
        "ev.t1" if usids else "ev.entropy": cell.ev >> WIRE.MRC_EV_T1_SHIFT & WIRE.MRC_EV_T1_MASK,
        "ev.spare": 0,
        "cell.attempt": cell.attempt, "cell.ackreq": cell.ackreq, "cell.phase": cell.phase,
        "cell.mss": cell.mss, "cell.psn": cell.psn, "cell.seq": cell.seq,
        "cell.qp": cell.qpn & 0xFFFF,
        "cell.piece.index": psn - cell.psn & WIRE.MRC_PSN_MASK, "cell.piece.psn": psn,
        "cell.piece.packets": count,
    }  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_cells__dissected_as_the_codec_decodes_them(name: str, golden: dict[str, Row]) -> None:
    row = golden[name]
    if name in IN_UDP:
        at = (34 if name.startswith("cell-in-udp4") else 54) + 24
        packet = cell_in_udp_of(name)
        wanted = of_cell(packet, usids="usids" in name)
        assert ("mrc.usids" in row) == ("usids" in name)
    else:
        at, packet = WIRE.MRC_ETH_LEN + 20, cell_of(name)
        wanted = of_cell(packet)
    tag = int.from_bytes(oracle.vector(name)[at : at + 4])
    assert numbers(row) == wanted | {"cell.tag": tag}
    complaints = {expert for expert in EXPERTS if expert in row}
    assert complaints == ({"mrc.retransmission"} if packet.cell.attempt else set())


def test_golden__stubs_say_what_they_are(golden: dict[str, Row]) -> None:
    assert golden["data-stub-v4"]["_ws.col.Info"].startswith(
        "Write Only, PSN 0x00f00d, stub, EV 0x10020000, sent again"
    )
    assert golden["cell-stub-v6"]["_ws.col.Info"].startswith(
        "Stub, PSN 0x00f00d, EV 0x10020000, sent again"
    )


def cell_of(name: str) -> CellPacket:
    return decode_cell(oracle.vector(name)[WIRE.MRC_ETH_LEN :], NICS, QPN, *key_of(name))


def cell_in_udp_of(name: str) -> CellInUdp:
    return decode_cell_in_udp(oracle.vector(name)[WIRE.MRC_ETH_LEN :], QPN, *key_of(name))


def cell_frame(packet: CellPacket) -> bytes:
    return V4[: WIRE.MRC_ETH_LEN] + encode_cell(packet)


def test_cells__usid_lists_and_inner_packets(tmp_path: Path) -> None:
    names = ["cell-v4-udp", "cell-v6-tcp", "cell-arrived-ce", "cell-same-t0"]
    rows = tshark(
        [oracle.vector(name) for name in names], tmp_path, "-E", "occurrence=l",
        fields=("ip.dst", "ipv6.dst", "udp.dstport", "tcp.dstport"),
    )  # fmt: skip
    way = "p1t0-1 p1t1-2 p1t0-2 p1:1"
    assert [row["mrc.usids"] for row in rows] == [way, way, "p1:1", "p1t0-1 p1:2"]
    assert [row.get("ip.dst", row["ipv6.dst"]) for row in rows] == [
        "10.99.0.2", "fd99::2", "10.99.0.2", "10.99.0.2",
    ]  # fmt: skip
    assert (rows[0]["udp.dstport"], rows[1]["tcp.dstport"]) == ("7", "80")


def test_cells__columns_tell_of_both(tmp_path: Path) -> None:
    (row,) = tshark([oracle.vector("cell-of-three-last")], tmp_path)
    info = row["_ws.col.Info"]
    assert info.startswith("Cell, PSN 0x000000, EV 0x10020000 | 54321 → 80 [PSH, ACK]")
    (row,) = tshark([oracle.vector("cell-rtx-ackreq")], tmp_path)
    assert "EV 0x10010000, sent again | " in row["_ws.col.Info"]


def test_cells__a_merged_piece_has_several_psns(tmp_path: Path) -> None:
    """A capture behind GRO sees packets in one, as a capture before segmentation does."""
    first, middle = cell_of("cell-of-three-first"), cell_of("cell-of-three-middle")
    payload = first.payload + middle.payload[-first.cell.mss :]
    payload = payload[:2] + len(payload).to_bytes(2) + payload[4:]
    merged = replace(first, payload=payload)
    (row,) = tshark([cell_frame(merged)], tmp_path)
    tag = int.from_bytes(merged.cell.source().packed[12:])
    assert numbers(row) == of_cell(merged) | {"cell.tag": tag}
    assert row["mrc.cell.piece.packets"] == "2"
    assert row["_ws.col.Info"].startswith("Cell, PSN 0xfffffe-0xffffff, EV")


def test_cells__damage_is_complained_of(tmp_path: Path) -> None:
    good = oracle.vector("cell-of-three-last")
    at = WIRE.MRC_ETH_LEN
    frames = {  # byte of the frame, its value
        (at + 1, good[at + 1] | 8): {"mrc.retransmission"},  # attempt
        (at + 40 + 9, 17): {"mrc.cell.stray"},  # not TCP
        (at + 40, 0x55): {"mrc.cell.stray", "mrc.inner"},
        (at + 4, good[at + 4]): set(),
    }
    rows = tshark([changed(good, *change) for change in frames], tmp_path)
    for row, complaints in zip(rows, frames.values(), strict=True):
        assert {expert for expert in EXPERTS if expert in row} == complaints


@pytest.mark.parametrize(
    "change", [{"mss": 511}, {"seq": 0xFF, "mss": 2}, {"seq": 0xFF, "mss": 512}]
)
def test_cells__a_packet_without_a_place(change: dict[str, int], tmp_path: Path) -> None:
    packet = cell_of("cell-of-three-first")
    longer = packet.payload[:2] + (len(packet.payload) + 1).to_bytes(2) + packet.payload[4:] + b"x"
    moved = replace(packet, cell=replace(packet.cell, **change), payload=longer)
    (row,) = tshark([cell_frame(moved)], tmp_path)
    assert {expert for expert in EXPERTS if expert in row} == {"mrc.cell.stray"}


@pytest.mark.parametrize("dscp", [WIRE.MRC_DSCP_TRIMMED, WIRE.MRC_DSCP_LASTHOP])
@pytest.mark.parametrize("corrected", [False, True])
def test_cells__trimmed(dscp: int, corrected: bool, tmp_path: Path) -> None:
    """A trimmed packet tells its PSN; a whole one with that DSCP is nothing special."""
    whole = bytearray(oracle.vector("cell-of-three-middle"))
    at = WIRE.MRC_ETH_LEN
    word = int.from_bytes(whole[at : at + 4]) & ~(0x3F << 22) | dscp << 22
    whole[at : at + 4] = word.to_bytes(4)
    cut = whole[: at + WIRE.MRC_IP6_LEN + 48]
    if corrected:
        cut[at + 4 : at + 6] = (48).to_bytes(2)
    rows = tshark([bytes(cut), bytes(whole)], tmp_path)
    assert [row["mrc.cell.piece.psn"] for row in rows] == [rows[0]["mrc.cell.piece.psn"]] * 2
    assert ["mrc.cut" in row for row in rows] == [True, False]
    assert "trimmed" in rows[0]["_ws.col.Info"]


def test_cells__any_length_is_survived(tmp_path: Path) -> None:
    frames = []
    for name in ("cell-of-three-last", "cell-v6-tcp"):
        whole = oracle.vector(name)
        for size in range(1, len(whole) - WIRE.MRC_ETH_LEN - WIRE.MRC_IP6_LEN):
            cut = bytearray(whole[: WIRE.MRC_ETH_LEN + WIRE.MRC_IP6_LEN + size])
            cut[WIRE.MRC_ETH_LEN + 4 : WIRE.MRC_ETH_LEN + 6] = size.to_bytes(2)
            frames.append(bytes(cut))
    assert all("mrc.cell.psn" in row for row in tshark(frames, tmp_path))


def test_cells__other_tunnels_are_left_alone(tmp_path: Path) -> None:
    """Neither the mark without the uSID block nor the block without the mark makes a cell."""
    packet = cell_of("cell-v4-udp")
    elsewhere = cell_frame(replace(packet, dst=IPv6Address("2001:db8::1")))
    unmarked = bytearray(oracle.vector("cell-v4-udp"))
    unmarked[WIRE.MRC_ETH_LEN + 12] = 0x80
    frames = [elsewhere, bytes(unmarked), oracle.vector("cell-v4-udp")]
    rows = tshark(frames, tmp_path, fields=("ip.dst", "udp.dstport"))
    assert ["mrc.cell.psn" in row for row in rows] == [False, False, True]
    assert [(row["ip.dst"], row["udp.dstport"]) for row in rows] == [("10.99.0.2", "7")] * 3


# ---- cells in UDP


def test_cells_in_udp__columns_and_inner_packets(golden: dict[str, Row], tmp_path: Path) -> None:
    start = golden["cell-in-udp6-of-three-last"]["_ws.col.Info"]
    assert "Cell, PSN 0x000000, EV 0x10050000 | 54321 → 80 [PSH, ACK]" in start
    assert "EV 0x10050000, sent again | " in golden["cell-in-udp4-rtx-ackreq"]["_ws.col.Info"]
    assert "Stub, PSN 0x00f00d, EV" in golden["cell-in-udp4-stub"]["_ws.col.Info"]
    names = ["cell-in-udp4", "cell-in-udp4-v6", "cell-in-udp-usids", "cell-in-udp-usids-arrived-ce"]
    rows = tshark(
        [oracle.vector(name) for name in names], tmp_path, "-E", "occurrence=l",
        fields=("ip.dst", "ipv6.dst", "udp.dstport", "tcp.dstport"),
    )  # fmt: skip
    assert [row["udp.dstport"] for row in rows] == ["7", "4974", "7", "7"]
    assert (rows[1]["ipv6.dst"], rows[1]["tcp.dstport"]) == ("fd99::2", "80")
    way = "p1t0-1 p1t1-2 p1t0-2 p1:1"
    assert [row.get("mrc.usids") for row in rows] == [None, None, way, "p1:1"]


def poked(name: str, at: int, *values: int) -> bytes:
    """Return a golden frame with other bytes, counted from its UDP header on."""
    at += 34 if name.startswith("cell-in-udp4") else 54
    frame = oracle.vector(name)
    return frame[:at] + bytes(values) + frame[at + len(values) :]


def test_cells_in_udp__fixed_bits_are_complained_of(tmp_path: Path) -> None:
    frames = [
        poked("cell-in-udp4", 8, 0x88),
        poked("cell-in-udp4", 11, 1),
        poked("cell-in-udp6", 12, 0x10),
        poked("cell-in-udp6", 15, 1),
        poked("cell-in-udp6", 16, 0x80),  # half of the mark
        poked("cell-in-udp6", 28, 8, 6),
    ]
    for row in tshark(frames, tmp_path):
        assert {expert for expert in EXPERTS if expert in row} == {"mrc.cell.words"}
        assert row["_ws.col.Info"] == "No cell, on its port"


def test_cells_in_udp__port_is_a_preference(tmp_path: Path) -> None:
    frames = [oracle.vector("cell-in-udp4"), poked("cell-in-udp4", 2, *(4980).to_bytes(2))]
    assert ["mrc.cell.psn" in row for row in tshark(frames, tmp_path)] == [True, False]
    rows = tshark(frames, tmp_path, "-o", "mrc.cell_port:4980")
    assert ["mrc.cell.psn" in row for row in rows] == [False, True]


@pytest.mark.parametrize("name", ["cell-in-udp4-of-three-middle", "cell-in-udp6-of-three-middle"])
def test_cells_in_udp__trimmed(name: str, tmp_path: Path) -> None:
    whole, v4 = bytearray(oracle.vector(name)), name.startswith("cell-in-udp4")
    at = WIRE.MRC_ETH_LEN
    if v4:
        whole[at + 1] = WIRE.MRC_DSCP_TRIMMED << 2
    else:
        word = int.from_bytes(whole[at : at + 4]) & ~(0x3F << 22) | WIRE.MRC_DSCP_TRIMMED << 22
        whole[at : at + 4] = word.to_bytes(4)
    cut = whole[: at + (20 if v4 else 40) + WIRE.MRC_CELL_TAIL + 48]
    rows = tshark([bytes(cut), bytes(whole)], tmp_path)
    assert [row["mrc.cell.piece.psn"] for row in rows] == ["0xffffff"] * 2
    assert ["mrc.cut" in row for row in rows] == [True, False]
    assert "trimmed" in rows[0]["_ws.col.Info"]


def test_cells_in_udp__any_length_is_survived(tmp_path: Path) -> None:
    frames = []
    for name in ("cell-in-udp4-of-three-last", "cell-in-udp6", "cell-in-udp4-v6"):
        whole, v4 = oracle.vector(name), name.startswith("cell-in-udp4")
        udp = 34 if v4 else 54
        for size in range(8, len(whole) - udp):
            cut = bytearray(whole[: udp + size])
            length_at, extra = (16, 20) if v4 else (18, 0)
            cut[length_at : length_at + 2] = (size + extra).to_bytes(2)
            cut[udp + 4 : udp + 6] = size.to_bytes(2)
            frames.append(bytes(cut))
    rows = tshark(frames, tmp_path)
    for frame, row in zip(frames, rows, strict=True):
        behind_udp = len(frame) - (34 if frame[12] == 8 else 54) - 8
        if behind_udp:
            assert ("mrc.cell.psn" in row) == (behind_udp > 22)
            assert ("mrc.short" in row) == (behind_udp <= 22)


# ---- what is wrong with a packet

V4 = oracle.vector("data-v4")
BTH = WIRE.MRC_ETH_LEN + 2 * WIRE.MRC_IP6_LEN + WIRE.MRC_UDP_LEN
RETH = BTH + WIRE.MRC_BTH_LEN + WIRE.MRC_METH_LEN + WIRE.MRC_TSETH_LEN


def changed(frame: bytes, at: int, value: int) -> bytes:
    return frame[:at] + bytes([value]) + frame[at + 1 :]


def shortened(frame: bytes, size: int) -> bytes:
    """Return a frame whose UDP payload is `size` bytes long, with all lengths adjusted."""
    outer, inner, udp = WIRE.MRC_ETH_LEN + 4, WIRE.MRC_ETH_LEN + WIRE.MRC_IP6_LEN + 4, BTH - 4
    cut = bytearray(frame[: BTH + size].ljust(BTH + size, b"\0"))
    for at, length in ((outer, size + 48), (inner, size + 8), (udp, size + 8)):
        cut[at : at + 2] = length.to_bytes(2, "big")
    return bytes(cut)


def rebuilt(name: str, **changes: Any) -> bytes:
    """Return a golden packet with another body and a valid ICRC word."""
    frame = oracle.vector(name)
    packet = decode_frame(frame)
    return encode_frame(
        replace(packet, body=replace(packet.body, **changes)), frame[:6], frame[6:12]
    )


DAMAGED: list[tuple[bytes, set[str]]] = [
    (changed(V4, BTH + 11, 0x0E), {"mrc.icrc.bad"}),  # PSN
    (changed(V4, RETH + 11, 0x31), {"mrc.icrc.bad"}),  # R_Key, no longer mrc0's
    (changed(V4, len(V4) - 1, V4[-1] ^ 1), {"mrc.icrc.bad"}),
    (changed(V4, BTH, 0x17), {"mrc.opcode.unknown"}),
    (changed(V4, BTH, WIRE.MRC_OP_TRANSPORT_ACK), {"mrc.length", "mrc.icrc.bad"}),
    (rebuilt("write-only-imm", length=5), {"mrc.length"}),
    (shortened(oracle.vector("write-last-imm"), 43), {"mrc.short"}),
    (shortened(oracle.vector("transport-ack"), 19), {"mrc.short"}),
    (changed(V4, BTH + 1, 0x01), {"mrc.version", "mrc.icrc.bad"}),
    (changed(V4, BTH + 1, 0x20), {"mrc.version", "mrc.icrc.bad"}),
    (rebuilt("data-v4", length=31), {"mrc.length"}),
    (changed(V4, RETH + 16, 0x55), {"mrc.inner"}),
    (shortened(V4, 11), {"mrc.short"}),
    (shortened(V4, 0), set()),  # nothing to dissect
    (shortened(V4, 39), {"mrc.short"}),
    (shortened(oracle.vector("sack"), 51), {"mrc.short"}),
    (shortened(oracle.vector("sack"), 63), {"mrc.short"}),
    (shortened(oracle.vector("sack"), 68), {"mrc.length", "mrc.icrc.bad"}),
    (shortened(oracle.vector("probe"), 43), {"mrc.short"}),
    (shortened(oracle.vector("eeth-ev-probe"), 20), {"mrc.short"}),
    (shortened(oracle.vector("nack"), 12), {"mrc.short"}),
]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return tshark([frame for frame, _ in DAMAGED], tmp_path_factory.mktemp("damaged"))


def test_only_an_endpoint_request_may_have_any_ev(tmp_path: Path) -> None:
    frames = []
    for name in ("erth-ev-probe", "eeth-ev-probe", "probe"):
        packet = decode_frame(oracle.vector(name))
        inner = replace(packet.envelope.inner, flow_label=7)  # type: ignore[call-arg]
        around = replace(packet.envelope, inner=inner)
        frames.append(encode_frame(replace(packet, envelope=around), bytes(6), bytes(6)))
    rows = tshark(frames, tmp_path)
    assert [int(row["mrc.ev.spare"], 0) for row in rows] == [7, 7, 7]
    assert ["mrc.entropy" in row for row in rows] == [False, True, True]


@pytest.mark.parametrize("number", range(len(DAMAGED)))
def test_damaged_packets_are_complained_of(number: int, damaged: list[Row]) -> None:
    frame, complaints = DAMAGED[number]
    assert {expert for expert in EXPERTS if expert in damaged[number]} == complaints
    if complaints not in (set(), {"mrc.inner"}):  # the codec ignores the payload
        with pytest.raises(DecodeError):
            decode_frame(frame)


def test_any_length_of_any_packet_is_survived(tmp_path: Path) -> None:
    frames = [
        shortened(changed(oracle.vector(name), BTH, opcode), size)
        for name in ("data-v4", "sack")
        for opcode in (0xCA, 0xCB, 0xC6, 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE)
        for size in range(1, 72)
    ]
    assert all("mrc.encap" in row for row in tshark(frames, tmp_path))


# ---- which packets are taken


def on_ports(source: int, destination: int) -> bytes:
    packet = decode_frame(V4)
    around = replace(packet.envelope, src_port=source, dst_port=destination)
    return encode_frame(replace(packet, envelope=around), V4[:6], V4[6:12])


def test_port_is_a_preference(tmp_path: Path) -> None:
    frames = [on_ports(0x1002, 4971), on_ports(0x1002, 4791)]
    assert ["mrc.ev" in row for row in tshark(frames, tmp_path)] == [True, False]
    rows = tshark(frames, tmp_path, "-o", "mrc.port:4791")
    assert ["mrc.ev" in row for row in rows] == [False, True]
    assert rows[1]["mrc.icrc.good"] in ("1", "True")


def test_source_port_of_another_protocol_is_no_matter_with_heuristics_first(
    tmp_path: Path,
) -> None:
    # Plane 0, T1 53: DNS to the UDP dissector.
    (row,) = tshark([on_ports(53, 4971)], tmp_path, "-o", "udp.try_heuristic_first:TRUE")
    assert (row["mrc.ev.plane"], row["mrc.ev.t1"]) == ("0", "53")


def test_usid_block_is_a_preference(tmp_path: Path) -> None:
    frame = oracle.vector("data-reduced")
    (row,) = tshark([frame], tmp_path, "-o", "mrc.block:2001:db8::")
    assert "mrc.usids" not in row


# ---- numbers of the header


def test_troubleshooting__explains_every_complaint() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    rows = cells(section(text, "## Looking at packets"))
    assert {name for row in rows for name in re.findall(r"`(mrc[.\w]+)`", row[0])} == set(EXPERTS)


def test_dissector_knows_the_headers_constants() -> None:
    opcodes = {int(code, 16) for code in re.findall(r"\[(0x[C-D][0-9A-E])\] = \"", SOURCE)}
    assert opcodes == {v for k, v in WIRE.constants.items() if k.startswith("MRC_OP_")}
    reasons = re.findall(r"\[(0x[01][0-9A-F])\] = \"([A-Z_]+)\"", SOURCE)
    assert {f"MRC_NACK_{name}": int(code, 16) for code, name in reasons} == {
        k: v for k, v in WIRE.constants.items() if k.startswith("MRC_NACK_") and k != "MRC_NACK_CC"
    }
    for name in (
        "BTH", "METH", "TSETH", "RETH", "ICRC", "SETH", "CC_STATE", "NETH", "PETH", "ERTH", "EETH",
        "AETH", "AUTH",
    ):  # fmt: skip
        names, values = re.search(
            rf"^local ([A-Z_, ]*\b{name}_LEN\b[A-Z_, ]*) = ([\d, ]+)$", SOURCE, re.M
        ).groups()  # type: ignore[union-attr]
        sizes = dict(zip(names.split(", "), map(int, values.split(", ")), strict=True))
        assert sizes[f"{name}_LEN"] == WIRE.constants[f"MRC_{name}_LEN"]
    rkeys = f"0x{WIRE.MRC_RKEY_NETDEV:08x}, 0x{WIRE.MRC_RKEY_STUB:08x}"
    assert f"RKEY_NETDEV, RKEY_STUB = {rkeys}" in SOURCE
    dscps = f"{WIRE.MRC_DSCP_TRIMMED}, {WIRE.MRC_DSCP_LASTHOP}"
    assert f"DSCP_TRIMMED, DSCP_LASTHOP = {dscps}" in SOURCE
    factor = WIRE.MRC_CHECK_FACTOR
    assert f"UInt64.new(0x{factor & 0xFFFFFFFF:08x}, 0x{factor >> 32:08x})" in SOURCE
    assert f'{WIRE.MRC_UDP_PORT_DEFAULT}, "UDP destination' in SOURCE
    limits = WIRE.MRC_CELL_MSS_MIN, WIRE.MRC_CELL_PACKETS
    assert f"CELL_MSS_MIN, CELL_PACKETS = {limits[0]}, {limits[1]}" in SOURCE
    assert f"SOLICIT = {WIRE.MRC_PETH_SOLICIT}" in SOURCE
    assert f"CELL_STUB = {WIRE.MRC_CELL_STUB}" in SOURCE
    assert f'"UDP port of cells", {WIRE.MRC_CELL_PORT_DEFAULT}, ' in SOURCE
    assert f"VXLAN_FLAGS = 8, 0x{WIRE.MRC_CELL_VXLAN:08x}" in SOURCE
    assert f"ETHERNET_LEN = {WIRE.MRC_ETH_LEN}" in SOURCE
