# SPDX-License-Identifier: GPL-2.0-only
"""Test cells in UDP: codec, golden packets and scapy oracle agree, and VXLAN's own readers do.

Which PSNs a piece has, and what does not depend on the envelope, is in test_cell.py.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from ipaddress import IPv6Address
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.layers.vxlan import VXLAN

from mrcd.wire.cell import (
    Cell,
    CellInUdp,
    decode_cell_in_udp,
    encode_cell,
    piece_psns,
    tcp_of,
    udp_around,
)
from mrcd.wire.envelope import Envelope, Ip4, Ip6, cell_overhead, checksum16
from mrcd.wire.packet import WIRE, DecodeError
from mrcd.wire.tag import NO_KEY
from rigs import oracle
from tests.unit.wire.test_cell import FIRST, IPV4, IPV6, MSS, damaged, payloads, segment, u8, u24
from tests.unit.wire.test_envelope import ECMP_EV, H1_V4, H2_V4
from tests.unit.wire.test_packet import (
    AT_H2,
    ECT0,
    EV,
    H1,
    H2,
    QPN_H2,
    STUB4,
    TO_H2,
    VECTORS,
    ip,
    key_of,
    keys,
)

ONE = Cell(0, QPN_H2, 0x00F00D, ECMP_EV)
BY_T1 = replace(ONE, ev=EV)
THREE = Cell(0, QPN_H2, 0xFFFFFE, ECMP_EV, mss=MSS, seq=FIRST >> 8 & 0xFF)
V4, V6 = Ip4(H1_V4, H2_V4, ECT0), Ip6(H1, H2, traffic_class=ECT0)
WHICH = ("first", "middle", "last")


def sent(cell: Cell, outer: Ip4 | Ip6, payload: bytes, first: int = 0) -> CellInUdp:
    return CellInUdp(cell, udp_around(outer, cell.ev, first=first), payload)


GOLDEN: dict[str, CellInUdp] = {
    "cell-in-udp4": sent(ONE, V4, IPV4),
    "cell-in-udp4-v6": sent(replace(ONE, psn=0xFFFFFF), V4, IPV6),
    "cell-in-udp4-rtx-ackreq": sent(
        replace(ONE, psn=0xFFFFFF, attempt=2, ackreq=True), V4, segment(MSS)
    ),
    "cell-in-udp4-translated": CellInUdp(
        ONE, Envelope(None, replace(V4, ttl=61), 10000, 4974), IPV4
    ),
    "cell-in-udp4-stub": sent(replace(ONE, mss=WIRE.MRC_CELL_STUB), V4, STUB4),
    "cell-in-udp6": sent(ONE, V6, IPV4),
    "cell-in-udp6-keyed": sent(replace(ONE, phase=1), V6, IPV4),
    "cell-in-udp-usids": sent(BY_T1, replace(V6, dst=TO_H2), IPV4),
    "cell-in-udp-usids-arrived-ce": sent(
        BY_T1, replace(V6, dst=AT_H2, traffic_class=3, hop_limit=61), IPV4
    ),
}
for number, which in enumerate(WHICH):
    part = segment(number * MSS)
    GOLDEN[f"cell-in-udp4-of-three-{which}"] = sent(THREE, V4, part, number)
    GOLDEN[f"cell-in-udp6-of-three-{which}"] = sent(THREE, V6, part)


def encap_of(name: str) -> int:
    if name.startswith("cell-in-udp4"):
        return WIRE.MRC_ENCAP_ECMP4
    return WIRE.MRC_ENCAP_ECMP6 if name.startswith("cell-in-udp6") else WIRE.MRC_ENCAP_FULL


def body(name: str) -> bytes:
    """Return a golden packet from its outer IP header on."""
    return oracle.vector(name)[WIRE.MRC_ETH_LEN :]


# ---- the oracle's view ---------------------------------------------------------------------


def to_oracle(packet: CellInUdp, key: bytes = NO_KEY, psn_high: int = 0) -> Any:
    cell, around, version = packet.cell, packet.around, packet.payload[0] >> 4
    head = oracle.CellVxlan(
        attempt=cell.attempt, ackreq=cell.ackreq, phase=cell.phase, ev_hi=cell.ev >> 16,
        mss=cell.mss, psn=cell.psn, seq=cell.seq, qp=cell.qpn % 2**16,
        ethertype=0x0800 if version == 4 else 0x86DD,
    )  # fmt: skip
    udp = UDP(sport=around.src_port, dport=around.dst_port, chksum=around.udp_checksum)
    inner = (IP if version == 4 else IPv6)(packet.payload)
    return ip(around.inner, 17) / udp / oracle.cell_in_udp(head, cell.qpn, key, psn_high) / inner


def read_by_oracle(data: bytes, qpn: int, key: bytes = NO_KEY, psn_high: int = 0) -> CellInUdp:
    """Return what the oracle reads in a packet; its tag must be right."""
    outer = oracle.dissect(data)
    head = outer[oracle.CellVxlan]
    found = head.tag
    assert oracle.cell_in_udp(head.copy(), qpn, key, psn_high).tag == found
    assert (head.flags, head.reserved, head.zero, head.reserved2, head.mark) == (8, 0, 0, 0, 3)
    cell = Cell(
        0, qpn & 0xFF0000 | head.qp, head.psn, head.ev_hi << 16, head.mss, head.seq, head.attempt,
        bool(head.ackreq), head.phase,
    )  # fmt: skip
    ends = type(H1_V4 if isinstance(outer, IP) else H1)
    around: Ip4 | Ip6 = (
        Ip4(ends(outer.src), ends(outer.dst), outer.tos, outer.ttl, outer.id, bool(outer.flags.DF))
        if isinstance(outer, IP)
        else Ip6(ends(outer.src), ends(outer.dst), outer.fl, outer.tc, outer.hlim)
    )
    udp = outer[UDP]
    envelope = Envelope(None, around, udp.sport, udp.dport, udp.chksum or 0)
    return CellInUdp(cell, envelope, bytes(head.payload))


# ---- golden packets ------------------------------------------------------------------------


def test_vectors__every_file_is_tested() -> None:
    assert {path.stem for path in VECTORS.glob("cell-in-udp*.hex")} == GOLDEN.keys()


@pytest.mark.parametrize("name", GOLDEN)
def test_codec__golden(name: str) -> None:
    assert encode_cell(GOLDEN[name], *key_of(name)) == body(name)
    assert decode_cell_in_udp(body(name), QPN_H2, *key_of(name)) == GOLDEN[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_oracle__golden(name: str) -> None:
    ether = oracle.dissect_frame(oracle.vector(name))
    assert isinstance(ether, Ether)
    assert ether.type == (0x0800 if encap_of(name) == WIRE.MRC_ENCAP_ECMP4 else 0x86DD)
    assert bytes(to_oracle(GOLDEN[name], *key_of(name))) == body(name)
    assert read_by_oracle(body(name), QPN_H2, *key_of(name)) == GOLDEN[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden__is_vxlan_to_others(name: str) -> None:
    """What knows RFC 7348 only finds a VNI, no flag but that, and the packet inside."""
    frame = VXLAN(bytes(oracle.dissect(body(name))[UDP].payload))
    assert (int(frame.flags), frame.vni, frame.reserved2) == (8, GOLDEN[name].cell.label, 0)
    ether = frame[Ether]
    assert bytes(ether.payload) == GOLDEN[name].payload
    assert int(ether.dst[:2], 16) >> 6 == 3  # the mark


@pytest.mark.parametrize("name", GOLDEN)
def test_golden__adds_what_cell_overhead_says(name: str) -> None:
    added = len(body(name)) - len(GOLDEN[name].payload)
    assert added == cell_overhead(encap_of(name), WIRE.MRC_CELL_UDP)
    assert added == (50 if encap_of(name) == WIRE.MRC_ENCAP_ECMP4 else 70)


@pytest.mark.parametrize("version", [4, 6])
def test_golden__three_packets_share_their_headers_and_have_a_psn_each(version: int) -> None:
    """Only lengths, IPv4's identification and its checksum differ, as the kernel cuts a cell."""
    names = [f"cell-in-udp{version}-of-three-{which}" for which in WHICH]
    at = 20 if version == 4 else 40
    heads = [bytearray(body(name)[: at + WIRE.MRC_CELL_TAIL]) for name in names]
    differs = {2, 3, 4, 5, 10, 11} if version == 4 else {4, 5}
    for head in heads:
        for place in (*differs, at + 4, at + 5):
            head[place] = 0
    assert heads[0] == heads[1] == heads[2]
    if version == 4:
        assert [oracle.dissect(body(name)).id for name in names] == [0, 1, 2]
    assert [piece_psns(THREE, *tcp_of(GOLDEN[name].payload)) for name in names] == [
        (0xFFFFFE, 1), (0xFFFFFF, 1), (0, 1),
    ]  # fmt: skip


def test_udp_around__source_port_and_label_are_those_of_the_path() -> None:
    for ev in (0, ECMP_EV, 0x3FFF_0000, 0xFFFF_0000):
        around = udp_around(V6, ev)
        assert around.src_port == 0xC000 | ev >> 16 & 0x3FFF
        assert isinstance(around.inner, Ip6)
        assert around.inner.flow_label == ev >> 16
        assert around.dst_port == WIRE.MRC_CELL_PORT_DEFAULT == oracle.CELL_PORT
        assert udp_around(V4, ev).src_port == around.src_port


# ---- any packet ----------------------------------------------------------------------------

u16 = st.integers(0, 0xFFFF)
singles = st.builds(
    Cell, st.just(0), u24, u24, u16.map(lambda high: high << 16), st.just(0), st.just(0),
    st.integers(0, 3), st.booleans(), st.integers(0, 1),
)  # fmt: skip
ip4s = st.builds(Ip4, st.ip_addresses(v=4), st.ip_addresses(v=4), u8, u8, u16, st.booleans())
ip6s = st.builds(
    Ip6, st.ip_addresses(v=6), st.ip_addresses(v=6), st.integers(0, 0xFFFFF), u8, u8
)  # fmt: skip
around = st.builds(
    Envelope, st.none(), ip4s | ip6s, u16.filter(lambda port: port != oracle.UDP_PORT),
    st.just(oracle.CELL_PORT), u16,
)  # fmt: skip
packets = st.builds(CellInUdp, singles, around, payloads)


@given(packets, keys, u8)
def test_codec_and_oracle__agree_on_any_packet(
    packet: CellInUdp, key: bytes, psn_high: int
) -> None:
    data = encode_cell(packet, key, psn_high)
    qpn = packet.cell.qpn
    assert decode_cell_in_udp(data, qpn, key, psn_high) == packet
    assert bytes(to_oracle(packet, key, psn_high)) == data
    assert read_by_oracle(data, qpn, key, psn_high) == packet


@given(st.integers(1, 0xFFFF))
def test_codec__on_any_port(port: int) -> None:
    packet = CellInUdp(ONE, udp_around(V4, ONE.ev, port), IPV4)
    data = encode_cell(packet)
    assert decode_cell_in_udp(data, QPN_H2, port=port) == packet
    with pytest.raises(DecodeError, match=f"UDP port {port}, not {port ^ 1}"):
        decode_cell_in_udp(data, QPN_H2, port=port ^ 1)


@given(st.binary(max_size=200))
@example(bytes.fromhex("60000000 0008 1140") + 32 * b"\xff" + bytes.fromhex("d005136e00080000"))
def test_decode__random_bytes_raise_nothing_else(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_cell_in_udp(data, QPN_H2)


def lengthened(data: bytes) -> bytes:
    """Return a packet whose IP and UDP headers name the length that it has."""
    made = bytearray(data)
    if data[0] >> 4 == 4:
        made[2:4] = len(data).to_bytes(2, "big")
        made[10:12] = bytes(2)
        made[10:12] = struct.pack("!H", checksum16(bytes(made[:20])))
        made[24:26] = (len(data) - 20).to_bytes(2, "big")
    else:
        made[4:6] = made[44:46] = (len(data) - 40).to_bytes(2, "big")
    return bytes(made)


@pytest.mark.parametrize("name", GOLDEN)
def test_decode__every_truncation_is_refused(name: str) -> None:
    data, headers = body(name), 28 if name.startswith("cell-in-udp4") else 48
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            decode_cell_in_udp(data[:length], QPN_H2, *key_of(name))
        if length >= headers:
            with pytest.raises(DecodeError):
                decode_cell_in_udp(lengthened(data[:length]), QPN_H2, *key_of(name))


# ---- damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_decode__every_single_bit_of_vxlan_and_inner_ethernet_is_checked(name: str) -> None:
    data, at = body(name), 28 if name.startswith("cell-in-udp4") else 48
    for bit in range(8 * at, 8 * (at + 22)):
        with pytest.raises(DecodeError):
            decode_cell_in_udp(damaged(data, bit), QPN_H2, *key_of(name))


def test_decode__every_single_bit_of_ipv4_and_udp_is_checked_or_steers() -> None:
    """The source port and the checksum of UDP do not matter; IPv4's checksum covers the rest."""
    data = body("cell-in-udp4")
    free = {*range(20 * 8, 22 * 8), *range(26 * 8, 28 * 8)}
    for bit in range(28 * 8):
        if bit in free:
            assert decode_cell_in_udp(damaged(data, bit), QPN_H2).cell == ONE
            continue
        with pytest.raises(DecodeError):
            decode_cell_in_udp(damaged(data, bit), QPN_H2)


@pytest.mark.parametrize("bit", range(24))
def test_decode__every_single_bit_of_the_qpn_is_checked(bit: int) -> None:
    with pytest.raises(DecodeError, match="QP 0x0013" if bit < 16 else "another generation"):
        decode_cell_in_udp(body("cell-in-udp6"), QPN_H2 ^ 1 << bit)


def test_tag__is_that_of_the_same_cell_in_ipv6() -> None:
    """It covers the state and the label, wherever these are."""
    tag = oracle.vector("cell-v4-udp")[WIRE.MRC_ETH_LEN + 20 :][:4]
    assert body("cell-in-udp-usids")[40 + 16 + 8 :][:4] == tag


# ---- bad input -----------------------------------------------------------------------------


def patched(name: str, at: int, *values: int) -> bytes:
    """Return a golden packet with other bytes from `at` on, and a matching IPv4 checksum."""
    data = bytearray(body(name))
    data[at : at + len(values)] = bytes(values)
    if data[0] >> 4 == 4:
        data[10:12] = bytes(2)
        data[10:12] = struct.pack("!H", checksum16(bytes(data[:20])))
    return bytes(data)


def sealed(name: str, payload: bytes | None = None, **changes: int) -> bytes:
    """Return a golden packet with other values of the cell, or another payload, and its tag."""
    golden = GOLDEN[name]
    inside = golden.payload if payload is None else payload
    return encode_cell(replace(golden, cell=replace(golden.cell, **changes), payload=inside))


TWO_HEADERS = encode_cell(GOLDEN["cell-in-udp6"])
TWO_HEADERS = bytes.fromhex("60000000") + struct.pack("!HBB", len(TWO_HEADERS), 41, 64) + (
    TWO_HEADERS[8:40] + TWO_HEADERS
)  # fmt: skip


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated: 0 of 40 bytes of IPv6"),
        (patched("cell-in-udp4", 0, 0x46), "IPv4 header of 24 bytes"),
        (patched("cell-in-udp4", 3, 0x51), "IPv4 says 81 bytes"),
        (patched("cell-in-udp4", 6, 0x20), "a fragment"),
        (patched("cell-in-udp4", 9, 6), "next header 6, not UDP"),
        (body("cell-in-udp4")[:10] + b"\0\0" + body("cell-in-udp4")[12:], "IPv4 header checksum"),
        (patched("cell-in-udp6", 5, 0), "IPv6 says 0 bytes"),
        (patched("cell-in-udp6", 6, 4), "next header 4, not UDP"),
        (TWO_HEADERS, "two IP headers around UDP"),
        (patched("cell-in-udp4", 23, 0x6B), "UDP port 4971, not 4974"),
        (patched("cell-in-udp4", 25, 0x3D), "UDP says 61 bytes, 60 follow"),
        (lengthened(body("cell-in-udp4")[:49]),
         "truncated: 21 of 22 bytes of VXLAN and inner Ethernet"),
        (patched("cell-in-udp4", 28, 0), "VXLAN flags 0x00000000, not 0x08000000"),
        (patched("cell-in-udp4", 28, 0x88), "VXLAN flags 0x88000000"),  # group policy
        (patched("cell-in-udp4", 28, 0x0C), "VXLAN flags 0x0c000000"),  # another protocol inside
        (patched("cell-in-udp4", 31, 1), "VXLAN flags 0x08000001"),
        (patched("cell-in-udp4", 32, 0x10), "VNI and reserved byte 0x10100500"),
        (patched("cell-in-udp4", 35, 1), "VNI and reserved byte 0x00100501"),
        (patched("cell-in-udp4", 36, 0x80), "mss 0x8000 without the mark of a cell"),
        (patched("cell-in-udp4", 48, 8, 6), "inner EtherType 0x0806, neither IPv4 nor IPv6"),
        (patched("cell-in-udp4", 48, 0x86, 0xDD), "inner IP version 4, not 6"),
        (patched("cell-in-udp4-v6", 48, 8, 0), "inner IP version 6, not 4"),
        (patched("cell-in-udp4", 43, 0x14), "QP 0x0014, not 0x0013"),
        (patched("cell-in-udp4", 40, 0), "tag 0x[0-9a-f]{8}, not 0x[0-9a-f]{8}: damaged"),
        (patched("cell-in-udp6", 48 + 6, 6), "damaged state or label"),
        (patched("cell-in-udp4", 53, 0x1F), "inner IP says 31 bytes, there are 30"),
        (sealed("cell-in-udp4", b"\x45"), "truncated: 1 bytes of inner IP"),
        (sealed("cell-in-udp4", seq=0x12), "seq 0x12 in a cell of one packet, not 0"),
        (sealed("cell-in-udp4-of-three-first", IPV4), "truncated: 30 of 40 bytes of inner IP"),
        (sealed("cell-in-udp6-of-three-first", mss=511), "mss 511, below 512"),
    ],
)  # fmt: skip
def test_decode__says_which_field_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_cell_in_udp(data, QPN_H2)


def within(envelope: Envelope) -> CellInUdp:
    return replace(GOLDEN["cell-in-udp6"], around=envelope)


@pytest.mark.parametrize(
    "packet",
    [
        *(
            replace(GOLDEN["cell-in-udp4"], cell=replace(ONE, **changes))
            for changes in (
                {"block": 1}, {"qpn": 1 << 24}, {"psn": -1}, {"mss": 1 << 14}, {"attempt": 4},
                {"ev": 1}, {"ev": 1 << 32},
            )
        ),
        replace(GOLDEN["cell-in-udp4"], payload=b""),
        replace(GOLDEN["cell-in-udp4"], payload=b"\x50"),
        replace(GOLDEN["cell-in-udp4"], payload=b"\x45" * 65_510),
        within(udp_around(replace(V6, traffic_class=256), ECMP_EV)),
        within(udp_around(replace(V4, ttl=256), ECMP_EV)),
        within(udp_around(V6, ECMP_EV, 1 << 16)),
        within(replace(udp_around(V6, ECMP_EV), outer=Ip6(H1, IPv6Address("::")))),
    ],
)  # fmt: skip
def test_encode__refuses_what_does_not_fit(packet: CellInUdp) -> None:
    with pytest.raises(ValueError, match="fit"):
        encode_cell(packet)
