# SPDX-License-Identifier: GPL-2.0-only
"""Test that the codec, the golden packets, the scapy oracle and the C compiler agree."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import NoPayload

from mrcd.wire import packet as wire
from mrcd.wire.packet import (
    WIRE,
    Aeth,
    Auth,
    Bth,
    CcState,
    Control,
    Data,
    DecodeError,
    Eeth,
    Envelope,
    Erth,
    Ip4,
    Ip6,
    Neth,
    Packet,
    Peth,
    Sack,
    Seth,
    Timestamp,
    Write,
    decode,
    decode_frame,
    encode,
    encode_frame,
)
from mrcd.wire.tag import NO_KEY, siphash
from rigs import oracle

VECTORS = Path(__file__).resolve().parents[2] / "vectors"

# Two hosts in plane 1 of fabric fcbb:bb00::/32: h1 at port 1 of T0 1, h2 at port 1 of T0 2.
H1, H2 = IPv6Address("fdcb:0:1:1::1"), IPv6Address("fdcb:0:1:2::1")
EV = 0x1002_0000  # plane 1, T1 2
ECT0 = 2
TO_H2 = IPv6Address("fcbb:bb00:2001:2802:2002:3001::")  # T0 1, T1 2, T0 2, port 1
TO_H1 = IPv6Address("fcbb:bb00:2002:2802:2001:3001::")
AT_H2 = IPv6Address("fcbb:bb00:3001::")  # the rest of the list on arrival
GATEWAY_MAC, H1_MAC, H2_MAC = (bytes.fromhex(f"0200000000{last}") for last in ("fe", "01", "02"))

IPV4 = bytes.fromhex(
    "4500001e00014000401126060a6300010a630002"  # IPv4, UDP, 10.99.0.1 > 10.99.0.2
    "d431000700 0a0000 6869"  # 54321 > 7, no checksum: "hi"
)
IPV6 = bytes.fromhex(
    "6000000000 0c3a40 fd990000000000000000000000000001 fd990000000000000000000000000002"
    "8000 a5af 0001 0001 70696e67"  # echo request: "ping"
)
STUB4 = bytes.fromhex("4500001400010000 403b65e6 0a630001 0a630002")  # of IPV4
STUB6 = bytes.fromhex(
    "6000000000003b40 fd990000000000000000000000000001 fd990000000000000000000000000002"
)


def forward(ev: int = EV, **outer_changes: Any) -> Envelope:
    """Return the envelope of h1's data, which switches may mark."""
    around = Ip6(H1, TO_H2, ev & 0xFFFF, ECT0)
    inner = Ip6(H1, H2, ev & 0xFFFF)
    return Envelope(replace(around, **outer_changes), inner, ev >> 16)


def plain(ev: int = EV) -> Envelope:
    """Return the same envelope for packets that must not be marked."""
    return forward(ev, traffic_class=0)


def backward(ev: int = EV) -> Envelope:
    return Envelope(Ip6(H2, TO_H1, ev & 0xFFFF), Ip6(H2, H1, ev & 0xFFFF), ev >> 16)


QPN_H1, QPN_H2 = 0x2A0010, 0x510013
WRITE_ONLY = Bth(0xCA, QPN_H2, 0x00F00D, ts=True)
SENT = Timestamp(0xBEEF, False, 1)
VA = 0x7F00_1234_5000
TO_MEMORY = Write(5, 36, timestamp=SENT, va=VA, rkey=0x11223344)

GOLDEN: dict[str, Packet] = {
    "data-v4": Data(forward(), WRITE_ONLY, Write(0xF00D, len(IPV4), timestamp=SENT), IPV4),
    "data-v6": Data(
        forward(),
        replace(WRITE_ONLY, psn=0xFFFFFF),
        Write(0xFFFF, len(IPV6), timestamp=SENT),
        IPV6,
    ),
    "data-rtx-ackreq": Data(
        forward(ev=0x1001_0000, dst=IPv6Address("fcbb:bb00:2001:2801:2002:3001::")),
        replace(WRITE_ONLY, psn=7, rtx=True, ackreq=True),
        Write(7, len(IPV4), timestamp=SENT),
        IPV4,
    ),
    "data-arrived-ce": Data(
        forward(dst=AT_H2, traffic_class=3, hop_limit=61),
        WRITE_ONLY,
        Write(0xF00D, 30, timestamp=SENT),
        IPV4,
    ),
    "data-timestamp": Data(
        forward(),
        WRITE_ONLY,
        Write(0xF00D, len(IPV4), timestamp=Timestamp(0xBEEF, True, 2)),
        IPV4,
    ),
    "data-stub-v4": Data(
        forward(),
        replace(WRITE_ONLY, rtx=True),
        Write(0xF00D, 20, timestamp=SENT, rkey=WIRE.MRC_RKEY_STUB),
        STUB4,
    ),
    "data-stub-v6": Data(
        forward(),
        WRITE_ONLY,
        Write(0xF00D, 40, timestamp=SENT, rkey=WIRE.MRC_RKEY_STUB),
        STUB6,
    ),
    "data-unstamped": Data(
        forward(), replace(WRITE_ONLY, ts=False), Write(0xF00D, len(IPV4)), IPV4
    ),
    "write-first": Data(
        forward(), Bth(0xC6, QPN_H2, 0xF00D, ts=True), TO_MEMORY, b"sixteen bytes..."
    ),
    "write-middle": Data(
        forward(), Bth(0xC7, QPN_H2, 0xF00E, ts=True), replace(TO_MEMORY, va=VA + 16), bytes(16)
    ),
    "write-last": Data(
        forward(), Bth(0xC8, QPN_H2, 0xF00F, ts=True), replace(TO_MEMORY, va=VA + 32), b"end."
    ),
    "write-last-imm": Data(
        forward(),
        Bth(0xC9, QPN_H2, 0xF00F, ts=True),
        replace(TO_MEMORY, va=VA + 32, rqmsn=3, immediate=0xCAFEF00D),
        b"end.",
    ),
    "write-only-imm": Data(
        forward(),
        Bth(0xCB, QPN_H2, 0xF00D),
        replace(TO_MEMORY, length=4, timestamp=None, rqmsn=3, immediate=0xCAFEF00D),
        b"only",
    ),
    "transport-ack": Control(backward(), Bth(0xD1, QPN_H1), Aeth(5)),
    "sack": Sack(
        backward(),
        Bth(0xDC, QPN_H1),
        Seth(0x00F00C, EV, ack_psn_offset=5, bitmap=0x8000_0000_0000_0016, mpr=16),
        CcState(0xBEEF, ooo=4, received=0x01E240),
    ),
    "sack-skip": Sack(
        backward(),
        Bth(0xDC, QPN_H1),
        Seth(
            0xFFFFFE, EV, ack_psn_offset=-3, verdict=1, sack_offset=65, bitmap=0xFF, mpr=255,
            cc_flags=1, spdcid=0x1111, dpdcid=0x2222, down=0b1001,
        ),
        CcState(0xBEEF, 0x7FFF, True, 127, 0xFFFFFF),
    ),
    "sack-penalty": Sack(
        backward(),
        Bth(0xDC, QPN_H1),
        Seth(0x00F00C, EV, ack_psn_offset=5, bitmap=0x8000_0000_0000_0016, mpr=16),
        CcState(0xBEEF, ooo=4, penalty=0x41, received=0x01E240),
    ),
    "sack-restore": Sack(
        backward(),
        Bth(0xDC, QPN_H1),
        Seth(0x00F00C, EV, ack_psn_offset=5, bitmap=0x8000_0000_0000_0016, mpr=16),
        CcState(0xBEEF, ooo=4, restore_cwnd=True, received=0x01E240),
    ),
    "sack-pr": Sack(
        backward(),
        Bth(0xDC, QPN_H1),
        Seth(0x00F00C, EV, probe_id=0xC0DE, probe_reply=True, mpr=16, cc_flags=1),
        CcState(0xBEEF, received=1),
    ),
    "sack-solicited": Sack(
        backward(),
        Bth(0xDC, QPN_H1),
        Seth(0x00F00C, EV, bitmap=0b110, mpr=16, cc_flags=4),
        CcState(0xBEEF, ooo=2, received=0x01E240),
    ),
    "nack": Control(
        backward(),
        Bth(0xDD, QPN_H1),
        Neth(0x0B, 0x00F00D, EV, tx_timestamp=0xBEEF, cc_flags=1, spdcid=1, dpdcid=2),
    ),
    "nack-trimmed": Control(
        backward(), Bth(0xDD, QPN_H1), Neth(0x01, 0x00F00D, EV, tx_timestamp=0xBEEF)
    ),
    "nack-no-bitmap": Control(
        backward(), Bth(0xDD, QPN_H1), Neth(0x06, 0x00F00D, EV, tx_timestamp=0xBEEF)
    ),
    "nack-no-buffer": Control(
        backward(), Bth(0xDD, QPN_H1), Neth(0x07, 0x00F00D, EV, tx_timestamp=0xBEEF)
    ),
    "nack-no-resource": Control(
        backward(), Bth(0xDD, QPN_H1), Neth(0x0A, 0x00F00D, EV, tx_timestamp=0xBEEF)
    ),
    "nack-unexpected": Control(
        backward(), Bth(0xDD, QPN_H1), Neth(0x19, 0x00F00D, EV, tx_timestamp=0xBEEF)
    ),
    "probe": Control(plain(), Bth(0xDE, QPN_H2), Peth(0xC0DE, SENT)),
    "probe-solicit": Control(
        plain(), Bth(0xDE, QPN_H2), Peth(0xC0DE, SENT, vendor=WIRE.MRC_PETH_SOLICIT)
    ),
    "erth-port-status": Control(plain(), Bth(0xD8, 2, 0x1234), Erth(0, 0b1101, SENT)),
    "eeth-port-status": Control(backward(), Bth(0xD9, 2, 0x1234), Eeth(0, 0xBEEF)),
    "erth-ev-probe": Control(
        plain(), Bth(0xD8, 2, 0x1235), Erth(1, 0b1111, Timestamp(0xBEEF, True, 1), 0x42)
    ),
    "eeth-ev-probe": Control(backward(), Bth(0xD9, 2, 0x1235), Eeth(1, 0xBEEF)),
    "data-keyed": Data(
        forward(),
        replace(WRITE_ONLY, phase=1),
        Write(0xF00D, len(IPV4), timestamp=SENT),
        IPV4,
    ),
    "sack-keyed": Sack(
        backward(),
        Bth(0xDC, QPN_H1, phase=1),
        Seth(0x00F00C, EV, ack_psn_offset=5, bitmap=0x8000_0000_0000_0016, mpr=16),
        CcState(0xBEEF, ooo=4, received=0x01E240),
        Auth(0x1_0001),
    ),
    "nack-keyed": Control(
        backward(),
        Bth(0xDD, QPN_H1, phase=1),
        Neth(0x01, 0x00F00D, EV, tx_timestamp=0xBEEF),
        Auth(0x1_0002),
    ),
    "probe-keyed": Control(
        plain(), Bth(0xDE, QPN_H2, phase=1), Peth(0xC0DE, SENT), Auth(0xFFFF_FFFF)
    ),
    "erth-keyed": Control(plain(), Bth(0xD8, 2, 0x1234, phase=1), Erth(0, 0b1101, SENT)),
    "eeth-keyed": Control(backward(), Bth(0xD9, 2, 0x1234, phase=1), Eeth(0, 0xBEEF)),
}  # fmt: skip

KEY = bytes(range(16))
PSN_HIGH = 0x5A


def first_of_its_kind(packet: Packet) -> Packet:
    """Return a packet with the count 1 if it is a SACK, a NACK or a probe without another."""
    counted = packet.bth.opcode in (0xDC, 0xDD, 0xDE)
    if isinstance(packet, Data) or not counted or packet.auth.count:
        return packet
    return replace(packet, auth=Auth(1))


GOLDEN = {name: first_of_its_kind(packet) for name, packet in GOLDEN.items()}


def key_of(name: str) -> tuple[bytes, int]:
    """Return the key of a golden packet's tag, and the upper eight bits of its PSN."""
    return (KEY, PSN_HIGH) if name.endswith("-keyed") else (NO_KEY, 0)


# ---- the oracle's view of our dataclasses --------------------------------------------------


def ip(header: Ip6 | Ip4, following: int) -> Any:
    if isinstance(header, Ip4):
        return IP(
            src=str(header.src), dst=str(header.dst), tos=header.tos, ttl=header.ttl,
            id=header.ident, flags="DF" if header.dont_fragment else 0, proto=following,
        )  # fmt: skip
    return IPv6(
        src=str(header.src), dst=str(header.dst), fl=header.flow_label, tc=header.traffic_class,
        hlim=header.hop_limit, nh=following,
    )  # fmt: skip


def to_oracle(packet: Packet, key: bytes = NO_KEY, psn_high: int = 0) -> Any:
    """Return the oracle's layers of a packet, with the oracle's tag unless it has one."""
    around, bth = packet.envelope, packet.bth
    layers: Any = ip(around.inner, 17) / UDP(
        sport=around.src_port, dport=around.dst_port, chksum=around.udp_checksum
    )
    layers /= oracle.Bth(
        opcode=bth.opcode, dqpn=bth.dqpn, psn=bth.psn, ackreq=bth.ackreq, rtx=bth.rtx, ts=bth.ts,
        se=bth.solicited, m=bth.migration, pkey=bth.pkey, phase=bth.phase,
    )  # fmt: skip
    match packet:
        case Data(body=body):
            layers /= oracle.Meth(rqmsn=body.rqmsn, msn=body.msn)
            if body.timestamp:
                layers /= oracle.Tseth(**stamp(body.timestamp))
            layers /= oracle.Reth(va=body.va or 0, rkey=body.rkey, dma_length=body.length)
            if body.immediate is not None:
                layers /= oracle.Immdt(immediate=body.immediate)
            layers /= oracle.Written(data=packet.payload)
        case Sack(body=body, cc_state=state):
            low: dict[str, Any] = {"ack_psn_offset": body.ack_psn_offset}
            if body.probe_reply:
                low = {"probe_id": body.probe_id}
            layers /= oracle.Seth(
                type=body.type, nxt=body.nxt, m=body.verdict, pr=body.probe_reply,
                entropy=body.entropy, spdcid=body.spdcid, dpdcid=body.dpdcid, cack_psn=body.cack,
                cc_type=body.cc_type, cc_flags=body.cc_flags, mpr=body.mpr,
                sack_offset=body.sack_offset, sack_bitmap=body.bitmap, down=body.down,
                **low,
            )  # fmt: skip
            layers /= oracle.CcState(
                tx_timestamp=state.tx_timestamp, ooo_count=state.ooo,
                restore_cwnd=state.restore_cwnd, rcv_cwnd_pen=state.penalty,
                rcvd_bytes=state.received,
            )  # fmt: skip
            layers /= ending(packet.auth)
        case Control(body=Aeth() as body):
            layers /= control(body) / oracle.Icrc()
        case Control(body=body):
            layers /= control(body) / ending(packet.auth)
    if oracle.Reth in layers and packet.body.va is None:  # type: ignore[union-attr]
        layers[oracle.Reth].va = oracle.tag_of(bytes(layers[UDP]), 0, key, psn_high)
    if oracle.Auth in layers and packet.auth.tag is None:  # type: ignore[union-attr]
        layers[oracle.Auth].tag = oracle.tag_of(bytes(layers[UDP]), 0, key)
    layers.lastlayer().icrc = oracle.icrc_of(bytes(layers[UDP]), 0)
    return layers if around.outer is None else ip(around.outer, 41) / layers


def ending(auth: Auth) -> Any:
    return oracle.Auth(count=auth.count, tag=auth.tag or 0) / oracle.Icrc()


def stamp(timestamp: Timestamp) -> dict[str, Any]:
    return {
        "tx_timestamp": timestamp.tx_timestamp,
        "tsr": int(timestamp.tsr),
        "ftype": timestamp.ftype,
    }


def control(body: Aeth | Neth | Peth | Erth | Eeth) -> Any:
    match body:
        case Aeth():
            return oracle.Aeth(
                reserved=body.syndrome >> 7, kind=body.syndrome >> 5 & 3,
                credits=body.syndrome & 31, msn=body.msn,
            )  # fmt: skip
        case Neth():
            return oracle.Neth(
                type=body.type, nxt=body.nxt, nack_reason=body.reason, vendor_info=body.vendor,
                entropy=body.entropy, spdcid=body.spdcid, dpdcid=body.dpdcid, nack_psn=body.psn,
                cc_type=body.cc_type, cc_flags=body.cc_flags, tx_timestamp=body.tx_timestamp,
            )  # fmt: skip
        case Peth():
            return oracle.Peth(
                type=body.type, nxt=body.nxt, vendor_info=body.vendor, probe_id=body.probe_id,
                spdcid=body.spdcid, dpdcid=body.dpdcid, **stamp(body.timestamp),
            )  # fmt: skip
        case Erth():
            return oracle.Erth(
                type=body.type, nxt=body.nxt, op=body.op, vendor_info=body.vendor,
                port_status_mask=body.port_status_mask, **stamp(body.timestamp),
            )  # fmt: skip
        case Eeth():
            return oracle.Eeth(
                type=body.type, nxt=body.nxt, op=body.op, tx_timestamp=body.tx_timestamp,
            )  # fmt: skip


def assert_oracle_reads(data: bytes, built: Any) -> None:
    """Assert that dissecting `data` gives the layers of `built` with every field set there."""
    seen: Any = oracle.dissect(data)
    while not isinstance(built, NoPayload):
        assert type(seen) is type(built)
        for name, value in built.fields.items():
            assert getattr(seen, name) == value, f"{type(built).__name__}.{name}"
        seen, built = seen.payload, built.payload
    assert isinstance(seen, NoPayload)


# ---- golden packets ------------------------------------------------------------------------


def test_vectors__every_file_is_tested_and_says_what_it_is() -> None:
    files = {path.stem: path.read_text(encoding="ascii") for path in VECTORS.glob("*.hex")}
    # Packets with one IP header are in test_envelope.py, cells in test_cell.py.
    full = {name for name in files if not name.endswith(("-reduced", "-ecmp6", "-ecmp4"))}
    full = {name for name in full if not name.startswith("cell-")}
    assert full == GOLDEN.keys() | {"data-trimmed"}
    assert all(text.startswith("# SPDX-License-Identifier:") for text in files.values())


@pytest.mark.parametrize("name", GOLDEN)
def test_encode__golden(name: str) -> None:
    frame = oracle.vector(name)
    assert encode_frame(GOLDEN[name], frame[:6], frame[6:12], *key_of(name)) == frame


@pytest.mark.parametrize("name", GOLDEN)
def test_decode__golden(name: str) -> None:
    packet = decode_frame(oracle.vector(name))
    assert packet == GOLDEN[name]
    assert encode(packet) == oracle.vector(name)[WIRE.MRC_ETH_LEN :]  # with the tag that it has


@pytest.mark.parametrize("name", GOLDEN)
def test_oracle__builds_golden(name: str) -> None:
    frame = oracle.vector(name)
    assert bytes(to_oracle(GOLDEN[name], *key_of(name))) == frame[WIRE.MRC_ETH_LEN :]


@pytest.mark.parametrize("name", GOLDEN)
def test_oracle__reads_golden(name: str) -> None:
    frame = oracle.vector(name)
    ether = oracle.dissect_frame(frame)
    assert isinstance(ether, Ether)
    assert ether.type == 0x86DD
    assert_oracle_reads(frame[WIRE.MRC_ETH_LEN :], to_oracle(GOLDEN[name], *key_of(name)))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden__carries_its_ev(name: str) -> None:
    packet = GOLDEN[name]
    plane, t1 = packet.envelope.ev >> 28, packet.envelope.ev >> 16 & 0xFFF
    assert plane == 1
    assert t1 in (1, 2)


def test_golden__trimmed_data_is_data_cut_behind_its_headers() -> None:
    around = forward(dst=AT_H2, traffic_class=43 << 2 | ECT0, hop_limit=61)
    golden = GOLDEN["data-v4"]
    assert isinstance(golden, Data)
    frame = oracle.vector("data-trimmed")
    whole = encode_frame(replace(golden, envelope=around), frame[:6], frame[6:12])
    assert frame == whole[: -len(IPV4) - WIRE.MRC_ICRC_LEN]
    assert WIRE.MRC_DSCP_TRIMMED == 43
    with pytest.raises(DecodeError, match="IPv6 says"):
        decode_frame(frame)
    ether = oracle.dissect_frame(frame)
    assert ether[IPv6].tc >> 2 == 43
    assert (ether[oracle.Bth].psn, ether[oracle.Tseth].tx_timestamp) == (0x00F00D, 0xBEEF)


def test_golden__frame_lengths_are_the_headers() -> None:
    around = WIRE.MRC_ETH_LEN + 2 * WIRE.MRC_IP6_LEN + WIRE.MRC_UDP_LEN
    around += WIRE.MRC_BTH_LEN + WIRE.MRC_ICRC_LEN
    ends = around + WIRE.MRC_AUTH_LEN
    assert len(oracle.vector("sack")) == ends + WIRE.MRC_SETH_LEN + WIRE.MRC_CC_STATE_LEN == 166
    assert len(oracle.vector("probe")) == ends + WIRE.MRC_PETH_LEN == 146
    assert len(oracle.vector("nack")) == ends + WIRE.MRC_NETH_LEN == 150
    overhead = len(oracle.vector("data-v4")) - WIRE.MRC_ETH_LEN - len(IPV4)
    assert overhead == WIRE.MRC_DATA_OVERHEAD


# ---- any packet ----------------------------------------------------------------------------

u8, u16, u24, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 24, 32, 64))
s16 = st.integers(-0x8000, 0x7FFF)
nibble, nxt = st.integers(0, 15), st.integers(0, 31)
addresses = st.binary(min_size=16, max_size=16).map(IPv6Address)
headers = st.builds(Ip6, addresses, addresses, st.integers(0, 0xFFFFF), u8, u8)
addresses4 = st.integers(0, 0xFFFFFFFF).map(IPv4Address)
headers4 = st.builds(Ip4, addresses4, addresses4, u8, u8, u16, st.booleans())
port = st.just(WIRE.MRC_UDP_PORT_DEFAULT)
envelopes = st.one_of(
    st.builds(Envelope, st.none() | headers, headers, u16, port, u16),
    st.builds(Envelope, st.none(), headers4, u16, port, u16),
)
stamps = st.builds(Timestamp, u16, st.booleans(), nibble)


def bths(opcode: int, ts: st.SearchStrategy[bool] | None = None) -> st.SearchStrategy[Bth]:
    flag = st.booleans()
    stamped = flag if ts is None else ts
    phase = st.integers(0, 1)
    return st.builds(Bth, st.just(opcode), u24, u24, flag, flag, stamped, flag, flag, u16, phase)


@st.composite
def writes(draw: st.DrawFn) -> Data:
    payload = draw(st.binary(max_size=100))
    timestamp = draw(st.none() | stamps)
    opcode = draw(st.sampled_from(sorted(wire.WRITES)))
    length = len(payload) if opcode in (0xCA, 0xCB) else draw(u32)
    immediate = draw(u32) if opcode in (0xC9, 0xCB) else None
    to_mrc0 = (WIRE.MRC_RKEY_NETDEV, WIRE.MRC_RKEY_STUB)
    rkey = draw(u32 | st.sampled_from(to_mrc0))
    tagged = opcode == WIRE.MRC_OP_WRITE_ONLY and timestamp and rkey in to_mrc0
    va = None if tagged else draw(u64)
    body = Write(draw(u16), length, draw(u16), timestamp, va, rkey, immediate)
    bth = draw(bths(opcode, st.just(timestamp is not None)))
    return Data(draw(envelopes), bth, body, payload)


seths = st.booleans().flatmap(
    lambda reply: st.builds(
        Seth, u24, u32, st.just(0) if reply else s16, u16 if reply else st.just(0), st.just(reply),
        st.integers(0, 3), s16, u64, u8, nibble, nibble, u16, u16, nibble, nxt, u8,
    )
)  # fmt: skip
cc_states = st.builds(CcState, u16, st.integers(0, 0x7FFF), st.booleans(), st.integers(0, 127), u24)
bodies = {
    0xD1: st.builds(Aeth, u24, u8),
    0xDD: st.builds(Neth, u8, u24, u32, u8, nibble, nibble, u16, u16, u16, nibble, nxt),
    0xDE: st.builds(Peth, u16, stamps, u8, u16, u16, nibble, nxt),
    0xD8: st.builds(Erth, st.integers(0, 3), u32, stamps, u8, nibble, nxt),
    0xD9: st.builds(Eeth, st.integers(0, 3), u16, nibble, nxt),
}
auths = st.builds(Auth, u32)
packets: st.SearchStrategy[Packet] = st.one_of(
    writes(),
    st.builds(Sack, envelopes, bths(0xDC), seths, cc_states, auths),
    *(
        st.builds(Control, envelopes, bths(op), body, st.just(Auth()) if op == 0xD1 else auths)
        for op, body in bodies.items()
    ),
)
keys = st.binary(min_size=16, max_size=16)


@given(packets, keys, u8)
def test_codec_and_oracle__agree_on_any_packet(packet: Packet, key: bytes, psn_high: int) -> None:
    data = encode(packet, key, psn_high)
    assert decode(data) == packet
    assert encode(decode(data)) == data
    built = to_oracle(packet, key, psn_high)
    assert bytes(built) == data
    assert_oracle_reads(data, built)


# ---- tags


def test_siphash__gives_the_official_vectors() -> None:
    """The reference code's: the key 00 01 ... 0f, and the texts 00, 00 01 and so on."""
    official = oracle.official_siphash()
    assert len(official) == 64
    for length, expected in enumerate(official):
        assert siphash(KEY, bytes(range(length))).to_bytes(8, "little") == expected
        assert oracle.siphash(KEY, bytes(range(length))) == expected


def tag_in(data: bytes) -> bytes:
    """Return the tag of a golden packet's kind, without Ethernet, with two IPv6 headers."""
    at = 88 + 12 + 4 + 4 if data[88] == WIRE.MRC_OP_WRITE_ONLY else len(data) - 12
    return data[at : at + 8]


TAGGED = [
    name
    for name, packet in GOLDEN.items()
    if packet.bth.opcode != WIRE.MRC_OP_TRANSPORT_ACK
    and not (isinstance(packet, Data) and packet.body.va is not None)
    and name != "data-unstamped"
]


@pytest.mark.parametrize("name", TAGGED)
def test_tag__covers_every_field_that_switches_leave_alone(name: str) -> None:
    """Each bit of the UDP header and of MRC's headers changes the tag."""
    packet, (key, high) = GOLDEN[name], key_of(name)
    data = encode(packet, key, high)
    right = tag_in(data)
    assert oracle.tagged(data, 80, key, high) == data
    payload = len(packet.payload) if isinstance(packet, Data) else 0
    at = data.index(right, 88)
    covered = {*range(80, len(data) - 4 - payload)} - {*range(at, at + 8)}
    # The opcode and BTH.ts say where the tag is.
    covered -= {88, 96} if isinstance(packet, Data) else {88}
    for byte in covered:
        for bit in range(8):
            changed = bytearray(data)
            changed[byte] ^= 1 << bit
            assert tag_in(oracle.tagged(bytes(changed), 80, key, high)) != right, (byte, bit)


@pytest.mark.parametrize("name", [name for name in TAGGED if name.startswith("data")])
def test_tag__of_data_covers_all_32_bits_of_the_psn_and_no_payload(name: str) -> None:
    packet, (key, high) = GOLDEN[name], key_of(name)
    assert isinstance(packet, Data)
    right = tag_in(encode(packet, key, high))
    for bit in range(8):
        assert tag_in(encode(packet, key, high ^ 1 << bit)) != right
    other = replace(packet, payload=bytes(len(packet.payload)))
    assert tag_in(encode(other, key, high)) == right


@pytest.mark.parametrize("name", TAGGED)
def test_tag__depends_on_every_bit_of_the_key(name: str) -> None:
    packet, (key, high) = GOLDEN[name], key_of(name)
    made = {tag_in(encode(packet, key, high))}
    for bit in range(128):
        changed = bytearray(key)
        changed[bit // 8] ^= 1 << bit % 8
        made.add(tag_in(encode(packet, bytes(changed), high)))
    assert len(made) == 129


@given(st.binary(max_size=300))
def test_decode__random_bytes_raise_nothing_else(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


@given(packets, st.data())
def test_decode__damaged_packets_raise_nothing_else(packet: Packet, data: st.DataObject) -> None:
    raw = bytearray(encode(packet))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DecodeError):
        encode(decode(bytes(raw[: data.draw(st.integers(0, len(raw)))])))


def covered(packet: Packet) -> range:
    """Return where a packet's bytes from the UDP ports to the end of its headers are."""
    data = encode(packet)
    body = 40 if packet.envelope.outer is None else 80
    end = len(data) - WIRE.MRC_ICRC_LEN
    return range(body, end - len(packet.payload) if isinstance(packet, Data) else end)


@pytest.mark.parametrize("name", GOLDEN)
def test_decode__every_single_bit_of_the_headers_is_checked(name: str) -> None:
    packet = GOLDEN[name]
    data = encode(packet)
    for bit in range(8 * len(covered(packet))):
        at = covered(packet)[0] + bit // 8
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit % 8
        if at - covered(packet)[0] not in (6, 7):  # UDP's checksum is not covered
            with pytest.raises(DecodeError):
                decode(bytes(damaged))


@given(packets, st.integers(1, (1 << 64) - 1), st.data())
def test_header_check__sees_any_damage_within_eight_bytes(
    packet: Packet, damage: int, data: st.DataObject
) -> None:
    headers = packet.bth.pack() + packet.body.pack()
    at = 8 * data.draw(st.integers(0, len(headers) // 8 - 1)) + 4  # after the ports
    whole = headers + bytes(8)
    group = int.from_bytes(whole[at : at + 8], "big") ^ damage
    changed_to = whole[:at] + group.to_bytes(8, "big") + whole[at + 8 :]
    right = wire.header_check(packet.envelope, whole)
    assert wire.header_check(packet.envelope, changed_to) != right


def changed(name: str, **changes: Any) -> Packet:
    return replace(GOLDEN[name], **changes)


# ---- bad input -----------------------------------------------------------------------------


def patched(name: str, at: int, *values: int) -> bytes:
    """Return a golden packet without Ethernet, with other bytes from `at` on."""
    data = bytearray(oracle.vector(name)[WIRE.MRC_ETH_LEN :])
    data[at : at + len(values)] = bytes(values)
    return bytes(data)


def shortened(name: str, count: int) -> bytes:
    """Return a golden packet cut `count` bytes after UDP, with all lengths adjusted."""
    data = oracle.vector(name)[WIRE.MRC_ETH_LEN :]
    outer, inner, udp, body = data[:40], data[40:80], data[80:88], data[88:]
    body = (body + bytes(64))[:count]
    udp = udp[:4] + struct.pack("!H", count + 8) + udp[6:]
    inner = inner[:4] + struct.pack("!H", count + 8) + inner[6:]
    outer = outer[:4] + struct.pack("!H", count + 48) + outer[6:]
    return outer + inner + udp + body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated: 0 of 40 bytes of IPv6"),
        (patched("sack", 0, 0x55), "IP version 5"),
        (patched("sack", 5, 0), "IPv6 says"),
        (patched("sack", 6, 43), "next header 43, not UDP"),
        (patched("sack", 40, 0x45), "IP version 4"),
        (patched("sack", 46, 6), "next header 6, not UDP"),
        (patched("sack", 82, 0, 53), "UDP port 53, not 4971"),
        (patched("sack", 85, 0), "UDP says"),
        (patched("sack", 88, 0xD1), "44 bytes too many"),
        (patched("sack", 88, 0xCC), "opcode 0xcc"),
        (shortened("transport-ack", 19), "truncated: 3 of 4 bytes of mrc_aeth"),
        (shortened("write-last-imm", 43), "truncated: 3 of 4 bytes of mrc_immdt"),
        (patched("write-only-imm", 119, 5), "RETH says 5 bytes, 4 follow"),
        (patched("sack", 89, 0x01), "transport version 1"),
        (patched("sack", 89, 0x20), "pad count 2"),
        (patched("data-v4", 123, 0xFF), "RETH says 255 bytes, 30 follow"),
        (shortened("sack", 11), "truncated: 11 of 12 bytes of mrc_bth"),
        (shortened("sack", 15), "truncated: no ICRC"),
        (shortened("sack", 16), "truncated: 0 of 28 bytes of mrc_seth"),
        (shortened("sack", 51), "truncated: 7 of 8 bytes of mrc_cc_state"),
        (shortened("sack", 63), "truncated: 11 of 12 bytes of mrc_auth"),
        (shortened("sack", 65), "1 bytes too many"),
        (shortened("nack", 35), "truncated: 19 of 20 bytes of mrc_neth"),
        (shortened("probe", 31), "truncated: 15 of 16 bytes of mrc_peth"),
        (shortened("erth-ev-probe", 43), "truncated: 11 of 12 bytes of mrc_auth"),
        (shortened("erth-ev-probe", 45), "1 bytes too many"),
        (shortened("eeth-ev-probe", 51), "truncated: 35 of 36 bytes of mrc_eeth"),
        (shortened("data-v4", 19), "truncated: 3 of 4 bytes of mrc_meth"),
        (shortened("data-unstamped", 35), "truncated: 15 of 16 bytes of mrc_reth"),
        (shortened("data-v4", 40), "RETH says 30 bytes, 0 follow"),
        (shortened("data-v4", 23), "truncated: 3 of 4 bytes of mrc_tseth"),
        (patched("data-v4", 99, 0x0E), "ICRC word 0x[0-9a-f]{8}, not 0x[0-9a-f]{8}: damaged"),
        (patched("sack", 117, 0x0E), "damaged headers"),
        (patched("sack", 139, 2), "damaged headers"),
        (patched("sack", 140, 0), "damaged headers"),
    ],
)
def test_decode__says_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode(data)


@pytest.mark.parametrize("name", GOLDEN)
def test_decode__every_truncation_is_refused(name: str) -> None:
    data = oracle.vector(name)[WIRE.MRC_ETH_LEN :]
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            decode(data[:length])


def test_decode__port_is_configurable() -> None:
    packet = replace(GOLDEN["sack"], envelope=replace(backward(), dst_port=4791))
    assert decode(encode(packet), port=4791) == packet
    with pytest.raises(DecodeError, match="UDP port 4791"):
        decode(encode(packet))


@pytest.mark.parametrize(
    ("frame", "reason"), [(bytes(13), "no Ethernet"), (bytes(60), "type 0x0000")]
)
def test_decode_frame__refuses_what_is_not_ipv6(frame: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_frame(frame)


@pytest.mark.parametrize(
    "packet",
    [
        changed("sack", bth=Bth(0xDC, 1 << 24)),
        changed("sack", bth=Bth(0xDC, 1, 1 << 24)),
        changed("sack", bth=Bth(256, 1)),
        changed("sack", body=Seth(0, 0, verdict=4)),
        changed("sack", body=Seth(0, 0, sack_offset=0x8000)),
        changed("sack", body=Seth(0, 0, bitmap=1 << 64)),
        changed("sack", body=Seth(0, 0, probe_id=1 << 16, probe_reply=True)),
        changed("sack", cc_state=CcState(ooo=0x8000)),
        changed("sack", cc_state=CcState(penalty=-1)),
        changed("probe", body=Peth(1, Timestamp(0, False, 16))),
        changed("probe", bth=Bth(0xDE, 1, phase=2)),
        changed("probe", auth=Auth(1 << 32)),
        changed("probe", auth=Auth(1, 1 << 64)),
        changed("data-v4", body=Write(0, 30, timestamp=SENT, va=1 << 64)),
        changed("nack", envelope=replace(backward(), src_port=1 << 16)),
        changed("nack", envelope=forward(flow_label=1 << 20)),
        changed("nack", envelope=forward(hop_limit=256)),
        changed("data-unstamped", bth=WRITE_ONLY),
        changed("write-last-imm", bth=Bth(0xC8, 1, ts=True)),
        changed("write-last", bth=Bth(0xC9, 1, ts=True)),
        changed("transport-ack", body=Aeth(1 << 24)),
        changed("data-v4", bth=replace(WRITE_ONLY, ts=False)),
    ],
)  # fmt: skip
def test_encode__refuses_what_does_not_fit(packet: Packet) -> None:
    with pytest.raises(ValueError, match=r"fit|disagree|signed"):
        encode(packet)
