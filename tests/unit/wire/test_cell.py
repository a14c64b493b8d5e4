# SPDX-License-Identifier: GPL-2.0-only
"""Test that the codec of cells, the golden packets and the scapy oracle agree.

Cells in UDP are in test_cell_in_udp.py.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv6Address
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from mrcd.wire.cell import (
    Cell,
    CellPacket,
    decode_cell,
    encode_cell,
    piece_psns,
    tcp_of,
)
from mrcd.wire.envelope import cell_overhead
from mrcd.wire.packet import WIRE, DecodeError
from mrcd.wire.tag import NO_KEY, cell_tag
from rigs import oracle
from tests.unit.wire.test_packet import (
    AT_H2,
    EV,
    QPN_H2,
    STUB4,
    STUB6,
    TO_H2,
    VECTORS,
    key_of,
    keys,
)

BLOCK = 0xFDCB0000
IPV4 = bytes.fromhex(
    "4500001e00014000401126060a6300010a630002"  # IPv4, UDP, 10.99.0.1 > 10.99.0.2
    "d431000700 0a0000 6869"  # 54321 > 7, no checksum: "hi"
)
IPV6 = bytes.fromhex(
    "60000000 00140640 fd990000000000000000000000000001 fd990000000000000000000000000002"
    "d4310050 10000000 20000000 501001f4 ae280000"  # 54321 > 80: an acknowledgement
)
FIRST = 0xFFFFFE80  # TCP sequence number of the cell of three packets
MSS, LAST = 512, 100  # its TCP payloads


def segment(at: int) -> bytes:
    """Return the packet that begins `at` bytes behind the first of the cell of three."""
    last = at == 2 * MSS
    payload = bytes((at + i) * 7 % 256 for i in range(LAST if last else MSS))
    packet = IP(src="10.99.0.1", dst="10.99.0.2", id=(0xFFFF + at // MSS) % 2**16, flags="DF")
    packet /= TCP(
        sport=54321, dport=80, seq=(FIRST + at) % 2**32, ack=0x20000000, window=500,
        flags="PA" if last else "A",
        options=[("NOP", None), ("NOP", None), ("Timestamp", (1, 2))],
    )  # fmt: skip
    return bytes(packet / payload)


ONE = Cell(BLOCK, QPN_H2, 0x00F00D, EV)
STUB = replace(ONE, mss=WIRE.MRC_CELL_STUB)
THREE = Cell(BLOCK, QPN_H2, 0xFFFFFE, EV, mss=MSS, seq=FIRST >> 8 & 0xFF)

GOLDEN: dict[str, CellPacket] = {
    "cell-v4-udp": CellPacket(ONE, TO_H2, IPV4),
    "cell-v6-tcp": CellPacket(replace(ONE, psn=0xFFFFFF), TO_H2, IPV6),
    "cell-of-three-first": CellPacket(THREE, TO_H2, segment(0)),
    "cell-of-three-middle": CellPacket(THREE, TO_H2, segment(MSS)),
    "cell-of-three-last": CellPacket(THREE, TO_H2, segment(2 * MSS)),
    "cell-rtx-ackreq": CellPacket(
        replace(ONE, psn=0xFFFFFF, ev=0x1001_0000, attempt=2, ackreq=True),
        IPv6Address("fcbb:bb00:2001:2801:2002:3001::"),
        segment(MSS),
    ),
    "cell-arrived-ce": CellPacket(ONE, AT_H2, IPV4, traffic_class=3, hop_limit=61),
    "cell-same-t0": CellPacket(
        replace(ONE, ev=0x1000_0000), IPv6Address("fcbb:bb00:2001:3002::"), IPV4
    ),
    "cell-keyed": CellPacket(replace(ONE, phase=1), TO_H2, IPV4),
    "cell-stub-v4": CellPacket(STUB, TO_H2, STUB4),
    "cell-stub-v6": CellPacket(replace(STUB, attempt=1), TO_H2, STUB6),
}


# ---- the oracle's view ---------------------------------------------------------------------


def to_oracle(packet: CellPacket, key: bytes = NO_KEY, psn_high: int = 0) -> Any:
    cell = packet.cell
    label = oracle.CellLabel(
        attempt=cell.attempt, ackreq=cell.ackreq, phase=cell.phase, ev_hi=cell.ev >> 16
    )
    state = oracle.CellState(
        block=cell.block, mss=cell.mss, psn=cell.psn, seq=cell.seq, qp=cell.qpn % 2**16
    )
    inner = (IP if packet.payload[0] >> 4 == 4 else IPv6)(packet.payload)
    return oracle.cell(
        oracle.checked(state, label, cell.qpn, key, psn_high), label, inner,
        dst=str(packet.dst), tc=packet.traffic_class, hlim=packet.hop_limit,
    )  # fmt: skip


def read_by_oracle(data: bytes, qpn: int, key: bytes = NO_KEY, psn_high: int = 0) -> CellPacket:
    """Return what the oracle reads in a packet; its tag must be right."""
    outer = oracle.dissect(data)
    state = oracle.CellState(IPv6Address(outer.src).packed)
    label = oracle.CellLabel(outer.fl.to_bytes(4, "big"))
    found = state.tag
    assert oracle.checked(state, label, qpn, key, psn_high).tag == found
    assert (state.mark, label.zero) == (3, 0)
    cell = Cell(
        state.block, qpn & 0xFF0000 | state.qp, state.psn, label.ev_hi << 16, state.mss,
        state.seq, label.attempt, bool(label.ackreq), label.phase,
    )  # fmt: skip
    inner = {4: IP, 41: IPv6}[outer.nh]
    assert isinstance(outer.payload, inner)
    return CellPacket(cell, IPv6Address(outer.dst), bytes(outer.payload), outer.tc, outer.hlim)


# ---- golden packets ------------------------------------------------------------------------


def test_vectors__every_file_is_tested() -> None:
    files = {path.stem for path in VECTORS.glob("cell-*.hex")}
    assert {name for name in files if not name.startswith("cell-in-udp")} == GOLDEN.keys()


@pytest.mark.parametrize("name", GOLDEN)
def test_codec__golden(name: str) -> None:
    data = oracle.vector(name)[WIRE.MRC_ETH_LEN :]
    assert encode_cell(GOLDEN[name], *key_of(name)) == data
    assert decode_cell(data, BLOCK, QPN_H2, *key_of(name)) == GOLDEN[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_oracle__golden(name: str) -> None:
    frame = oracle.vector(name)
    ether = oracle.dissect_frame(frame)
    assert isinstance(ether, Ether)
    assert ether.type == 0x86DD
    assert bytes(to_oracle(GOLDEN[name], *key_of(name))) == frame[WIRE.MRC_ETH_LEN :]
    assert read_by_oracle(frame[WIRE.MRC_ETH_LEN :], QPN_H2, *key_of(name)) == GOLDEN[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden__adds_forty_bytes(name: str) -> None:
    added = len(oracle.vector(name)) - WIRE.MRC_ETH_LEN - len(GOLDEN[name].payload)
    assert added == cell_overhead(WIRE.MRC_ENCAP_FULL, WIRE.MRC_CELL_IP6) == 40


def test_golden__three_packets_share_their_header_and_have_a_psn_each() -> None:
    names = [name for name in GOLDEN if name.startswith("cell-of-three")]
    frames = [oracle.vector(name) for name in names]
    lengths = slice(WIRE.MRC_ETH_LEN + 4, WIRE.MRC_ETH_LEN + 6)
    outer = [bytearray(frame[: WIRE.MRC_ETH_LEN + WIRE.MRC_IP6_LEN]) for frame in frames]
    for header in outer:
        header[lengths] = bytes(2)
    assert outer[0] == outer[1] == outer[2]
    # The oracle cuts the whole segment into these packets.
    whole = IP(segment(0))
    del whole.len, whole.chksum, whole[TCP].chksum
    whole[TCP].flags = "PA"
    payload = b"".join(bytes(IP(GOLDEN[name].payload)[TCP].payload) for name in names)
    whole[TCP].remove_payload()
    pieces = oracle.cut(IP(bytes(whole / payload)), MSS)
    assert [bytes(piece) for piece in pieces] == [GOLDEN[name].payload for name in names]
    assert [piece_psns(THREE, *tcp_of(GOLDEN[name].payload)) for name in names] == [
        (0xFFFFFE, 1), (0xFFFFFF, 1), (0, 1),
    ]  # fmt: skip


# ---- any packet ----------------------------------------------------------------------------

u8, u24, u32 = (st.integers(0, (1 << bits) - 1) for bits in (8, 24, 32))
evs = st.integers(0, 0xFFFF).map(lambda high: high << 16)
singles = st.builds(
    Cell, u32, u24, u24, evs, st.just(0), st.just(0), st.integers(0, 3), st.booleans(),
    st.integers(0, 1),
)  # fmt: skip
payloads = st.sampled_from([packet.payload for packet in GOLDEN.values()])
packets = st.builds(CellPacket, singles, st.ip_addresses(v=6), payloads, u8, u8)


@given(packets, keys, u8)
def test_codec_and_oracle__agree_on_any_packet(
    packet: CellPacket, key: bytes, psn_high: int
) -> None:
    data = encode_cell(packet, key, psn_high)
    cell = packet.cell
    assert decode_cell(data, cell.block, cell.qpn, key, psn_high) == packet
    assert bytes(to_oracle(packet, key, psn_high)) == data
    assert read_by_oracle(data, cell.qpn, key, psn_high) == packet


@given(st.binary(max_size=200))
@example(bytes.fromhex("60000000 0000 2940") + 32 * b"\xff")
@example(bytes.fromhex("60000000 0000 0440") + 32 * b"\xff")
def test_decode__random_bytes_raise_nothing_else(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_cell(data, BLOCK, QPN_H2)


@pytest.mark.parametrize("name", GOLDEN)
def test_decode__every_truncation_is_refused(name: str) -> None:
    data = oracle.vector(name)[WIRE.MRC_ETH_LEN :]
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            decode_cell(data[:length], BLOCK, QPN_H2)
        shorter = data[:4] + max(0, length - 40).to_bytes(2, "big") + data[6:length]
        with pytest.raises(DecodeError):
            decode_cell(shorter, BLOCK, QPN_H2)


# ---- damage --------------------------------------------------------------------------------


def damaged(data: bytes, bit: int) -> bytes:
    """Return the bytes with one bit flipped, counted from the most significant one."""
    made = bytearray(data)
    made[bit // 8] ^= 0x80 >> bit % 8
    return bytes(made)


@pytest.mark.parametrize("name", GOLDEN)
def test_decode__every_single_bit_of_state_and_flow_label_is_checked(name: str) -> None:
    data = oracle.vector(name)[WIRE.MRC_ETH_LEN :]
    for bit in [*range(12, 32), *range(8 * 8, 24 * 8)]:
        with pytest.raises(DecodeError):
            decode_cell(damaged(data, bit), BLOCK, QPN_H2)


@pytest.mark.parametrize("bit", range(24))
def test_decode__every_single_bit_of_the_qpn_is_checked(bit: int) -> None:
    data = oracle.vector("cell-v4-udp")[WIRE.MRC_ETH_LEN :]
    with pytest.raises(DecodeError, match="QP 0x0013" if bit < 16 else "another generation"):
        decode_cell(data, BLOCK, QPN_H2 ^ 1 << bit)


any_cell = st.builds(
    Cell, u32, u24, u24, evs, st.integers(0, WIRE.MRC_CELL_MSS), u8, st.integers(0, 3),
    st.booleans(), st.integers(0, 1),
)  # fmt: skip


@given(any_cell, keys, u8)
def test_tag__differs_for_every_single_bit(cell: Cell, key: bytes, psn_high: int) -> None:
    """Bits of the state, flow label, PSN as it counts in 32 bits, QPN with generation, and key."""

    def tag(covered: bytes, label: int = 0, psn: int = 0, qpn: int = 0, other: int = 0) -> int:
        made = (int.from_bytes(key) ^ other).to_bytes(16)
        high = psn_high << 24 ^ psn
        return cell_tag(made, covered, cell.label ^ label, high, cell.qpn ^ qpn)

    source = cell.source(key, psn_high).packed
    covered = source[4:12]
    right = tag(covered)
    assert int.from_bytes(source[12:]) == right
    others = [tag(damaged(covered, bit)) for bit in range(64)]
    others += [tag(covered, label=1 << bit) for bit in range(20)]
    others += [tag(covered, psn=1 << bit) for bit in range(24, 32)]
    others += [tag(covered, qpn=1 << bit) for bit in range(24)]
    others += [tag(covered, other=1 << bit) for bit in range(128)]
    # Any of these is the same with a probability of 2^-32.
    assert right not in others


# ---- pieces --------------------------------------------------------------------------------


@st.composite
def large_cells(draw: st.DrawFn) -> tuple[Cell, int, int]:
    """Return a cell, its first TCP sequence number, and the length of its TCP payload."""
    mss = draw(st.integers(WIRE.MRC_CELL_MSS_MIN, 9000))
    first = draw(u32 | st.integers(-0x10000, 0xFF).map(lambda number: number % 2**32))
    length = draw(st.integers(mss + 1, 65_000))
    psn = draw(u24 | st.integers(-128, 0).map(lambda number: number % 2**24))
    return Cell(BLOCK, QPN_H2, psn, EV, mss, first >> 8 & 0xFF), first, length


@given(large_cells())
def test_piece_psns__every_packet_has_its_own(large: tuple[Cell, int, int]) -> None:
    cell, first, length = large
    for index, at in enumerate(range(0, length, cell.mss)):
        size = min(cell.mss, length - at)
        assert piece_psns(cell, (first + at) % 2**32, size) == ((cell.psn + index) % 2**24, 1)


@given(large_cells(), st.data())
def test_piece_psns__a_merged_piece_has_those_of_its_packets(
    large: tuple[Cell, int, int], data: st.DataObject
) -> None:
    cell, first, length = large
    starts = range(0, length, cell.mss)
    begin = data.draw(st.integers(0, len(starts) - 1))
    end = data.draw(st.integers(begin + 1, len(starts)))
    size = min(length, end * cell.mss) - starts[begin]
    found = piece_psns(cell, (first + starts[begin]) % 2**32, size)
    assert found == ((cell.psn + begin) % 2**24, end - begin)


def test_piece_psns__smallest_mss_is_close_to_the_least_that_is_unique() -> None:
    def right(mss: int) -> bool:
        return all(
            ((((first + at >> 8) - (first >> 8)) & 0xFF) * 256 + 255) // mss == at // mss
            for first in range(256)
            for at in range(0, 65_000, mss)
        )

    assert right(WIRE.MRC_CELL_MSS_MIN)
    assert not right(509)


def test_piece_psns__of_a_cell_of_one_packet_is_its_own() -> None:
    assert piece_psns(ONE, 0x12345678, 1400) == piece_psns(ONE, 0, 0) == (0x00F00D, 1)


@pytest.mark.parametrize("header", [IP(dst="10.99.0.2"), IPv6(dst="fd99::2")])
@pytest.mark.parametrize("options", [[], [("Timestamp", (1, 2))]])
def test_tcp_of__reads_sequence_number_and_length(header: Any, options: Any) -> None:
    packet = bytes(header / TCP(seq=0xDEADBEEF, options=options) / bytes(1000))
    assert tcp_of(packet) == (0xDEADBEEF, 1000)
    assert tcp_of(packet[:100]) == (0xDEADBEEF, 1000)


# ---- bad input -----------------------------------------------------------------------------


def sealed(name: str, payload: bytes | None = None, **changes: int) -> bytes:
    """Return a golden packet with other values of the cell, or another payload, and its check."""
    golden = GOLDEN[name]
    inside = golden.payload if payload is None else payload
    return encode_cell(replace(golden, cell=replace(golden.cell, **changes), payload=inside))


def patched(name: str, at: int, *values: int) -> bytes:
    """Return a golden packet without Ethernet, with other bytes from `at` on."""
    data = bytearray(oracle.vector(name)[WIRE.MRC_ETH_LEN :])
    data[at : at + len(values)] = bytes(values)
    return bytes(data)


SHORT_TCP = segment(0)[:32] + b"\x40" + segment(0)[33:]  # data offset 4
MERGED = segment(0)[:2] + (len(segment(0)) + MSS).to_bytes(2) + segment(0)[4:] + bytes(MSS)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated: 0 of 40 bytes of IPv6"),
        (patched("cell-v4-udp", 0, 0x45), "IP version 4"),
        (patched("cell-v4-udp", 5, 0), "IPv6 says"),
        (patched("cell-v4-udp", 6, 17), "next header 17, neither IPv4 nor IPv6"),
        (patched("cell-v4-udp", 8, 0xFC), "block 0xfccb0000, not 0xfdcb0000"),
        (patched("cell-v4-udp", 12, 0x80), "mss 0x8000 without the mark of a cell"),
        (patched("cell-v4-udp", 19, 0x14), "QP 0x0014, not 0x0013"),
        (patched("cell-v4-udp", 16, 0), "tag 0x[0-9a-f]{8}, not 0x[0-9a-f]{8}: damaged"),
        (patched("cell-v4-udp", 23, 0), "tag 0x"),
        (patched("cell-v4-udp", 1, 0x21), "damaged state or label"),
        (patched("cell-v4-udp", 6, 41), "inner IP version 4, not 6"),
        (patched("cell-v6-tcp", 6, 4), "inner IP version 6, not 4"),
        (patched("cell-v4-udp", 43, 0x1F), "inner IP says 31 bytes, there are 30"),
        (patched("cell-v6-tcp", 45, 0x15), "inner IP says 61 bytes, there are 60"),
        (sealed("cell-v4-udp", b"\x45"), "truncated: 1 bytes of inner IP"),
        (sealed("cell-v4-udp", seq=0x12), "seq 0x12 in a cell of one packet, not 0"),
        (sealed("cell-of-three-first", mss=511), "mss 511, below 512"),
        (sealed("cell-of-three-first", IPV4), "truncated: 30 of 40 bytes of inner IP and TCP"),
        (sealed("cell-of-three-first", IPV4[:2] + b"\x00\x32" + IPV4[4:] + bytes(20)),
         "inner protocol 17, not TCP"),
        (sealed("cell-of-three-first", SHORT_TCP), "TCP header of 16 bytes"),
        (sealed("cell-of-three-first", IPV6, seq=0), "no TCP payload"),
        (sealed("cell-of-three-first", MERGED, seq=0), "packets 127 to 128 of"),
        (sealed("cell-of-three-first", MERGED, seq=0xFF), "at no packet's beginning"),
    ],
)  # fmt: skip
def test_decode__says_which_field_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_cell(data, BLOCK, QPN_H2)


@pytest.mark.parametrize(
    "packet",
    [
        *(
            replace(GOLDEN["cell-of-three-first"], cell=replace(THREE, **changes))
            for changes in (
                {"block": 1 << 32}, {"qpn": 1 << 24}, {"psn": 1 << 24}, {"psn": -1},
                {"mss": 1 << 14}, {"seq": 256}, {"attempt": 4}, {"ev": 1}, {"ev": 1 << 32},
            )
        ),
        replace(GOLDEN["cell-v4-udp"], payload=b""),
        replace(GOLDEN["cell-v4-udp"], payload=b"\x50"),
        replace(GOLDEN["cell-v4-udp"], traffic_class=256),
        replace(GOLDEN["cell-v4-udp"], hop_limit=256),
        replace(GOLDEN["cell-v4-udp"], payload=b"\x45" * 65_536),
    ],
)  # fmt: skip
def test_encode__refuses_what_does_not_fit(packet: CellPacket) -> None:
    with pytest.raises(ValueError, match="fit"):
        encode_cell(packet)
