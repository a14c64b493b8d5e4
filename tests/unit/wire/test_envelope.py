# SPDX-License-Identifier: GPL-2.0-only
"""Test packets with one IP header instead of two: codec, golden packets and oracle."""

from __future__ import annotations

import struct
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from mrcd.fabric import routing
from mrcd.wire.envelope import checksum16, overhead
from mrcd.wire.packet import (
    WIRE,
    Bth,
    CcState,
    Control,
    Data,
    DecodeError,
    Envelope,
    Ip4,
    Ip6,
    Neth,
    Packet,
    Peth,
    Sack,
    Seth,
    Write,
    decode,
    decode_frame,
    encode,
    encode_frame,
)
from rigs import oracle
from tests.unit.wire.test_packet import (
    AT_H2,
    ECT0,
    EV,
    H1,
    H2,
    IPV4,
    QPN_H1,
    QPN_H2,
    SENT,
    TO_H1,
    TO_H2,
    VECTORS,
    WRITE_ONLY,
    assert_oracle_reads,
    first_of_its_kind,
    to_oracle,
)

ECMP_EV = 0x1005_0000  # plane 1, entropy 5
H1_V4, H2_V4 = IPv4Address("10.101.1.1"), IPv4Address("10.101.2.1")
AT_H1 = IPv6Address("fcbb:bb00:3001::")
TRIMMED = WIRE.MRC_DSCP_TRIMMED << WIRE.MRC_DSCP_SHIFT
SHAPES = ("reduced", "ecmp6", "ecmp4")


def ev_of(shape: str) -> int:
    return EV if shape == "reduced" else ECMP_EV


def towards_h2(shape: str, tclass: int = 0, *, arrived: bool = False) -> Envelope:
    """Return h1's envelope as it leaves or, three hops later with its uSIDs consumed, arrives."""
    ev, hops = ev_of(shape), 61 if arrived else 64
    if shape == "ecmp4":
        return Envelope(None, Ip4(H1_V4, H2_V4, tclass, hops), ev >> 16)
    if shape == "ecmp6":
        return Envelope(None, Ip6(H1, H2, ev >> 16, tclass, hops), ev >> 16)
    return Envelope(None, Ip6(H1, AT_H2 if arrived else TO_H2, 0, tclass, hops), ev >> 16)


def towards_h1(shape: str) -> Envelope:
    """Return the envelope of the answer on the same EV, as it leaves h2."""
    ev = ev_of(shape)
    if shape == "ecmp4":
        return Envelope(None, Ip4(H2_V4, H1_V4), ev >> 16)
    if shape == "ecmp6":
        return Envelope(None, Ip6(H2, H1, ev >> 16), ev >> 16)
    return Envelope(None, Ip6(H2, TO_H1), ev >> 16)


def packets(shape: str) -> dict[str, Packet]:
    ev = ev_of(shape)
    write = Write(0xF00D, len(IPV4), timestamp=SENT)
    return {
        "data": Data(towards_h2(shape, ECT0), WRITE_ONLY, write, IPV4),
        "data-arrived-ce": Data(
            towards_h2(shape, WIRE.MRC_ECN_CE, arrived=True), WRITE_ONLY, write, IPV4
        ),
        "sack": Sack(
            towards_h1(shape),
            Bth(0xDC, QPN_H1),
            Seth(0x00F00C, ev, ack_psn_offset=5, bitmap=0x16, mpr=16),
            CcState(0xBEEF, ooo=4, received=7),
        ),
        "probe": Control(towards_h2(shape, arrived=True), Bth(0xDE, QPN_H2), Peth(0xC0DE, SENT)),
        "sack-pr": Sack(
            towards_h1(shape),
            Bth(0xDC, QPN_H1),
            Seth(0x00F00C, ev, probe_id=0xC0DE, probe_reply=True, mpr=2, cc_flags=1),
            CcState(0xBEEF),
        ),
        "nack-trimmed": Control(
            towards_h1(shape), Bth(0xDD, QPN_H1), Neth(0x01, 0x00F00D, ev, tx_timestamp=0xBEEF)
        ),
    }


GOLDEN = {
    f"{name}-{shape}": first_of_its_kind(packet)
    for shape in SHAPES
    for name, packet in packets(shape).items()
}


def test_vectors__every_file_is_tested() -> None:
    files = {path.stem for path in VECTORS.glob("*.hex") if path.stem.endswith(SHAPES)}
    assert files == GOLDEN.keys() | {f"data-trimmed-{shape}" for shape in SHAPES}


@pytest.mark.parametrize("name", GOLDEN)
def test_codec__golden(name: str) -> None:
    frame = oracle.vector(name)
    assert encode_frame(GOLDEN[name], frame[:6], frame[6:12]) == frame
    assert decode_frame(frame) == GOLDEN[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_oracle__golden(name: str) -> None:
    frame = oracle.vector(name)
    assert bytes(to_oracle(GOLDEN[name])) == frame[WIRE.MRC_ETH_LEN :]
    ether = oracle.dissect_frame(frame)
    assert isinstance(ether, Ether)
    assert ether.type == (0x0800 if name.endswith("ecmp4") else 0x86DD)
    assert_oracle_reads(frame[WIRE.MRC_ETH_LEN :], to_oracle(GOLDEN[name]))


@pytest.mark.parametrize("shape", SHAPES)
def test_golden__trimmed_data_is_data_cut_behind_its_headers(shape: str) -> None:
    golden = GOLDEN[f"data-{shape}"]
    assert isinstance(golden, Data)
    frame = oracle.vector(f"data-trimmed-{shape}")
    around = towards_h2(shape, TRIMMED | ECT0, arrived=True)
    whole = encode_frame(replace(golden, envelope=around), frame[:6], frame[6:12])
    assert frame == whole[: -len(IPV4) - WIRE.MRC_ICRC_LEN]
    ip = oracle.dissect_frame(frame).payload
    assert (ip.tos if isinstance(ip, IP) else ip[IPv6].tc) == TRIMMED | ECT0


def test_overhead__is_what_golden_data_carries() -> None:
    for code, name in enumerate(("data-v4", "data-reduced", "data-ecmp6", "data-ecmp4")):
        carried = len(oracle.vector(name)) - WIRE.MRC_ETH_LEN - len(IPV4)
        assert carried == overhead(code)
    assert overhead(WIRE.MRC_ENCAP_FULL) == WIRE.MRC_DATA_OVERHEAD == 128
    assert overhead(WIRE.MRC_ENCAP_ECMP4) == 68


def test_codes_are_the_headers() -> None:
    for name in ("FULL", "REDUCED", "ECMP6", "ECMP4"):
        assert getattr(routing, f"ENCAP_{name}") == WIRE.constants[f"MRC_ENCAP_{name}"]


def test_ev__without_a_flow_label_has_a_low_half_of_zero() -> None:
    assert towards_h2("ecmp4").ev == ECMP_EV
    assert towards_h2("ecmp6").ev == ECMP_EV | ECMP_EV >> 16


def changed(at: int, *values: int) -> bytes:
    """Return golden IPv4 data with other bytes from `at` on, and a matching checksum."""
    data = bytearray(oracle.vector("data-ecmp4")[WIRE.MRC_ETH_LEN :])
    data[at : at + len(values)] = bytes(values)
    data[10:12] = b"\0\0"
    data[10:12] = struct.pack("!H", checksum16(bytes(data[:20])))
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bytes.fromhex("45"), "truncated: 1 of 20 bytes of IPv4"),
        (changed(0, 0x46), "IPv4 header of 24 bytes"),
        (changed(3, 0xFF), "IPv4 says"),
        (changed(6, 0x20), "a fragment"),
        (changed(7, 0x01), "a fragment"),
        (changed(9, 6), "next header 6, not UDP"),
        (oracle.vector("data-ecmp4")[14:24] + bytes(90), "IPv4 header checksum"),
    ],
)
def test_decode__says_what_is_wrong_with_ipv4(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode(data)


def test_decode_frame__refuses_the_wrong_ethernet_type() -> None:
    frame = oracle.vector("data-ecmp4")
    with pytest.raises(DecodeError, match="IP version 4 in Ethernet type 0x86dd"):
        decode_frame(frame[:12] + b"\x86\xdd" + frame[14:])


def test_encode__ipv4_has_no_outer_header() -> None:
    packet = GOLDEN["sack-ecmp4"]
    around = replace(packet.envelope, outer=Ip6(H1, TO_H2))
    with pytest.raises(ValueError, match="fit"):
        encode(replace(packet, envelope=around))
