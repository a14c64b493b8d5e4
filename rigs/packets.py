# SPDX-License-Identifier: GPL-2.0-only
"""Packets of the rig's tests: the peer's as they arrive, and ours as they should leave."""

from __future__ import annotations

import struct
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from mrcd.fabric import underlay, usid
from mrcd.fabric.description import Fabric, Host
from mrcd.fabric.routing import Routing
from mrcd.peers.offersockets import udp6
from mrcd.wire.cell import udp_around
from mrcd.wire.envelope import checksum16, put_envelope
from mrcd.wire.keys import endpoint_key, qp_key
from mrcd.wire.packet import (
    WIRE,
    Auth,
    Bth,
    CcState,
    Control,
    Data,
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
    encode_frame,
    overhead,
)
from mrcd.wire.tag import NO_KEY
from rigs.rig import gateway_mac_of, mac_of

QPN = 0x770000  # our number for QP 0
REMOTE_QPN = 0x880003

# Offsets of the headers in a frame that we send with SRv6.
OUTER = WIRE.MRC_ETH_LEN
INNER = OUTER + WIRE.MRC_IP6_LEN
UDP = INNER + WIRE.MRC_IP6_LEN
BTH = UDP + WIRE.MRC_UDP_LEN
BODY = BTH + WIRE.MRC_BTH_LEN
TSETH = BODY + WIRE.MRC_METH_LEN
RETH = TSETH + WIRE.MRC_TSETH_LEN
PAYLOAD = BODY + WIRE.MRC_WRITE_LEN


def ip4(
    body: bytes = b"", *, src: str = "10.99.0.2", dst: str = "10.99.0.1", port: int = 7
) -> bytes:
    """Return an IPv4 packet with UDP in it. Its checksums are 0: no program checks them."""
    udp = struct.pack("!HHHH", 40000, port, 8 + len(body), 0) + body
    ends = IPv4Address(src).packed + IPv4Address(dst).packed
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0x4000, 64, 17, 0) + ends + udp


def ip6(body: bytes = b"", *, src: str = "fd99::2", dst: str = "fd99::1", port: int = 7) -> bytes:
    """Return an IPv6 packet with UDP in it."""
    udp = struct.pack("!HHHH", 40000, port, 8 + len(body), 0) + body
    ends = IPv6Address(src).packed + IPv6Address(dst).packed
    return struct.pack("!IHBB", 6 << 28, len(udp), 17, 64) + ends + udp


def numbered(number: int, size: int = 100) -> bytes:
    """Return an IPv4 packet that carries a number and so differs from others."""
    return ip4(struct.pack("!I", number).ljust(size, bytes([number & 0xFF])))


def trimmed(frame: bytes, length: int = PAYLOAD, dscp: int = WIRE.MRC_DSCP_TRIMMED) -> bytes:
    """Return a frame as a switch forwards it after trimming its payload for lack of room."""
    out = bytearray(frame[:length])
    if out[OUTER] >> 4 == 4:
        out[OUTER + 1] = out[OUTER + 1] & 3 | dscp << 2
        return summed(bytes(out))
    word = int.from_bytes(out[OUTER : OUTER + 4], "big") & ~(0x3F << 22) | dscp << 22
    out[OUTER : OUTER + 4] = word.to_bytes(4, "big")
    return bytes(out)


def summed(frame: bytes) -> bytes:
    """Return the frame with the correct checksum in its IPv4 header."""
    header = frame[OUTER : OUTER + 10] + bytes(2) + frame[OUTER + 12 : OUTER + 20]
    return frame[: OUTER + 10] + struct.pack("!H", checksum16(header)) + frame[OUTER + 12 :]


def sealed(frame: bytes, udp: int = UDP) -> bytes:
    """Return the frame with the ICRC word that matches its headers."""
    from rigs import oracle  # needs scapy, which some users of this module lack

    return oracle.sealed(frame, udp)


def in_udp(routing: Routing) -> bool:
    """Return whether cells go in UDP, in a rig of which nothing else is said."""
    return routing.code != WIRE.MRC_ENCAP_FULL


def ip_length(routing: Routing) -> int:
    """Return the number of bytes of IP headers in front of UDP."""
    return overhead(routing.code) - (PAYLOAD - UDP) - WIRE.MRC_ICRC_LEN


def offer_frame(far: Far, ev: int, body: bytes = b"an offer") -> tuple[bytes, bytes]:
    """Return a hand-shake datagram of the peer as it arrives, and as the stack should see it."""
    plane = usid.ev_plane(ev)
    port = 4972
    src = underlay.of(far.fabric).address(far.peer, plane)
    dst = underlay.of(far.fabric).address(far.us, plane)
    macs = mac_of(plane) + gateway_mac_of(plane)
    if isinstance(src, IPv4Address) or isinstance(dst, IPv4Address):
        udp = struct.pack("!HHHH", 40000, port, 8 + len(body), 0) + body
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0, 61, 17, 0)
        frame = summed(macs + b"\x08\x00" + head + src.packed + dst.packed + udp)
        return frame, frame
    inner = udp6(src, dst, port, port, body)
    seen = macs + b"\x86\xdd" + inner
    around = far.envelope(ev)
    match far.fabric.routing.code:
        case WIRE.MRC_ENCAP_ECMP6:
            return seen, seen
        case WIRE.MRC_ENCAP_REDUCED:
            return seen[: OUTER + 24] + around.inner.dst.packed + seen[OUTER + 40 :], seen
    assert around.outer is not None
    outer = struct.pack("!IHBB", 6 << 28, len(inner), 41, 61)
    outer += around.outer.src.packed + around.outer.dst.packed
    return macs + b"\x86\xdd" + outer + inner, seen


# ---- cells


class Places(NamedTuple):
    """Offsets in the frame of a cell."""

    length: int  # of the length that is that of the packet inside and what is fixed
    label: int  # of the byte with attempt, ackreq and phase; the EV's upper half follows
    state: int  # of struct mrc_cell from .mss on
    inner: int  # of the application's packet


def _in_udp(udp: int) -> Places:
    return Places(udp + 4, udp + 8 + 4, udp + 8 + 8, udp + WIRE.MRC_CELL_TAIL)


IN_IP6 = Places(OUTER + 4, OUTER + 1, OUTER + 8 + 4, OUTER + WIRE.MRC_IP6_LEN)
IN_UDP4, IN_UDP6 = _in_udp(OUTER + WIRE.MRC_IP4_LEN), _in_udp(OUTER + WIRE.MRC_IP6_LEN)
CELL_PORT = struct.pack("!H", WIRE.MRC_CELL_PORT_DEFAULT)


def places_of(routing: Routing, *, cell_udp: bool) -> Places:
    """Return the offsets in the cells of a network."""
    if not cell_udp:
        return IN_IP6
    return IN_UDP4 if routing.code == WIRE.MRC_ENCAP_ECMP4 else IN_UDP6


def places_in(frame: bytes) -> Places | None:
    """Return the offsets in a frame of ours, None if it is no cell.

    The addresses of planes lack the mark of cells in IPv6.
    """
    if frame[12:14] == b"\x08\x00":
        return IN_UDP4 if frame[OUTER + 9] == 17 and frame[36:38] == CELL_PORT else None
    if frame[OUTER + 6] == 17:
        return IN_UDP6 if frame[56:58] == CELL_PORT else None
    return IN_IP6 if frame[IN_IP6.state] >> 6 == 3 else None


def is_cell(frame: bytes) -> bool:
    """Return whether a frame of ours is a cell."""
    return places_in(frame) is not None


def _ends(frame: bytes) -> slice:
    """Return where the destination of a frame's outer IP header is."""
    at = OUTER + (16 if frame[OUTER] >> 4 == 4 else 24)
    return slice(at, at + (4 if frame[OUTER] >> 4 == 4 else 16))


def destination(frame: bytes) -> bytes:
    """Return the destination of a frame's outer IP header."""
    return frame[_ends(frame)]


def redirected(frame: bytes, to: bytes) -> bytes:
    """Return a frame with another destination in its outer IP header, and the right checksum."""
    there = _ends(frame)
    out = frame[: there.start] + to + frame[there.stop :]
    return summed(out) if frame[OUTER] >> 4 == 4 else out


def ev_in(frame: bytes) -> int:
    """Return the EV of a cell's frame."""
    places = places_in(frame)
    assert places is not None
    return int.from_bytes(frame[places.label + 1 : places.label + 3], "big") << 16


TAG = b"\x12\x34\x56\x78"


def cell(far: Far, ev: int, packet: bytes, psn: int = 5000) -> bytes:
    """Return a cell of one packet as it arrives. Its tag is wrong."""
    plane, v6 = usid.ev_plane(ev), packet[0] >> 4 == 6
    macs = mac_of(plane) + gateway_mac_of(plane)
    state = WIRE.structs["mrc_cell"].pack(
        block=int.from_bytes(far.fabric.underlay6.network_address.packed[:4], "big"),
        mss=WIRE.MRC_CELL_MARK,
        psn_hi=psn >> 8,
        psn_lo=psn & 0xFF,
        tag=int.from_bytes(TAG, "big"),
    )
    ip = around(far.envelope(ev))
    if not far.cell_udp:
        start = struct.pack("!IHBB", 6 << 28 | ev >> 16, len(packet), 41 if v6 else 4, 61)
        return macs + b"\x86\xdd" + start + state + ip.dst.packed + packet
    vxlan = struct.pack("!II", 8 << 24, ev >> 16 << 8) + state[4:]
    vxlan += (b"\x86\xdd" if v6 else b"\x08\x00") + packet
    return macs + in_udp_frame(ip, ev, vxlan)


def around(envelope: Envelope) -> Ip4 | Ip6:
    """Return the IP header that switches see."""
    return envelope.inner if envelope.outer is None else envelope.outer


def in_udp_frame(ip: Ip4 | Ip6, ev: int, body: bytes) -> bytes:
    """Return EtherType, IP and UDP to the port of cells, and a body, whatever it is."""
    proto = b"\x08\x00" if isinstance(ip, Ip4) else b"\x86\xdd"
    return proto + put_envelope(udp_around(ip, ev), body)


def ev_of(plane: int, t1: int) -> int:
    """Return the EV of a path."""
    return usid.ev(plane, t1)


EV = ev_of(1, 2)


def stamp(sent: int) -> Timestamp:
    """Return the time stamp of a data packet or a probe; `sent` is in the unit of the wire."""
    return Timestamp(sent, ftype=WIRE.MRC_TS_FTYPE_TX)


def sent_at(frame: bytes) -> int:
    """Return the time stamp of a data frame."""
    return int.from_bytes(frame[TSETH : TSETH + 2], "big")


def wire_time(ns: int) -> int:
    """Convert a time of CLOCK_MONOTONIC to a time stamp."""
    return ns >> WIRE.MRC_TS_SHIFT & 0xFFFF


class Far:
    """A maker of frames as they arrive from `peer` at `us`."""

    def __init__(
        self, fabric: Fabric, us: Host, peer: Host, *, cell_udp: bool | None = None
    ) -> None:
        self.fabric, self.us, self.peer = fabric, us, peer
        self.cell_udp = in_udp(fabric.routing) if cell_udp is None else cell_udp
        self.secret: bytes | None = (
            None  # of the epoch whose keys make the tags; None: they are zero
        )
        self.phase = 0
        self.count: int | None = None  # of the last SACK, NACK or probe; None: all are 0

    def use(self, secret: bytes | None, phase: int = 0) -> None:
        """Make tags of the keys of an epoch from now on, and count SACKs, NACKs and probes."""
        self.secret, self.phase = secret, phase
        self.count = self.count or 0

    def key(self, qpn: int) -> bytes:
        """Return the key of packets from the peer to one of our QPNs, or to our endpoint."""
        if self.secret is None:
            return NO_KEY
        if qpn == WIRE.MRC_QPN_ENDPOINT:
            return endpoint_key(self.secret, self.peer.name)
        return qp_key(self.secret, qpn, self.us.name)

    def envelope(
        self,
        ev: int,
        *,
        traffic_class: int = 0,
        port: int = WIRE.MRC_UDP_PORT_DEFAULT,
    ) -> Envelope:
        last = usid.usid(usid.ev_plane(ev), usid.ROLE_HOST, self.us.port)
        return self._around(self.peer, self.us, [last], ev, traffic_class, port, 61)

    def _around(
        self,
        sender: Host,
        target: Host,
        usids: list[int],
        ev: int,
        tclass: int,
        port: int,
        hops: int,
    ) -> Envelope:
        """Return the headers around a packet with `usids` left to visit, or without a uSID list."""
        plane, label = usid.ev_plane(ev), ev & 0xFFFF
        src = underlay.of(self.fabric).address(sender, plane)
        dst = underlay.of(self.fabric).address(target, plane)
        if isinstance(src, IPv4Address) or isinstance(dst, IPv4Address):
            assert isinstance(src, IPv4Address)
            assert isinstance(dst, IPv4Address)
            return Envelope(None, Ip4(src, dst, tclass, hops), ev >> 16, port)
        path = IPv6Address(usid.da_bytes(self.fabric.block, usids))
        match self.fabric.routing.code:
            case WIRE.MRC_ENCAP_ECMP6:
                return Envelope(None, Ip6(src, dst, ev >> 16, tclass, hops), ev >> 16, port)
            case WIRE.MRC_ENCAP_REDUCED:
                return Envelope(None, Ip6(src, path, label, tclass, hops), ev >> 16, port)
        outer = Ip6(src, path, label, tclass, hops)
        return Envelope(outer, Ip6(src, dst, label), ev >> 16, port)

    def our_key(self, qpn: int) -> bytes:
        """Return the key of our packets to one of the peer's QPNs."""
        return NO_KEY if self.secret is None else qp_key(self.secret, qpn, self.peer.name)

    def frame(self, packet: Packet, psn: int = 0) -> bytes:
        """Return the frame; `psn` counts in 32 bits, of which the packet holds 24."""
        plane = usid.ev_plane(packet.envelope.ev)
        packet = replace(packet, bth=replace(packet.bth, phase=self.phase))
        if self.count is not None and not isinstance(packet, Data):
            self.count += 1
            packet = replace(packet, auth=Auth(self.count))
        key = self.key(packet.bth.dqpn)
        return encode_frame(packet, mac_of(plane), gateway_mac_of(plane), key, psn >> 24)

    def data(
        self,
        psn: int,
        payload: bytes,
        ev: int = EV,
        *,
        rtx: bool = False,
        ackreq: bool = False,
        ce: bool = False,
        qpn: int = QPN,
        sent: int = 0,
    ) -> bytes:
        bth = Bth(WIRE.MRC_OP_WRITE_ONLY, qpn, psn & 0xFFFFFF, rtx=rtx, ackreq=ackreq, ts=True)
        write = Write(msn=psn & 0xFFFF, length=len(payload), timestamp=stamp(sent))
        around = self.envelope(ev, traffic_class=WIRE.MRC_ECN_CE if ce else WIRE.MRC_ECN_ECT0)
        return self.frame(Data(around, bth, write, payload), psn & 0xFFFFFFFF)

    def sack(
        self,
        cack: int,
        bitmap: int = 0,
        *,
        offset: int = 1,
        trigger: int | None = None,
        ev: int = EV,
        delayed: bool = False,
        duplicate: bool = False,
        verdict: int = WIRE.MRC_SETH_M_NONE,
        about: int | None = None,
        down: int = 0,
        ts: int = 0,
        received: int = 0,
        mpr: int = 2,
        penalty: int = 0,
        restore: bool = False,
        qpn: int = QPN,
    ) -> bytes:
        """Return a SACK: all PSNs up to `cack` arrived, and cack + offset + i for each bit i.

        `about` is the EV that the SACK reports on, by default that of its own path. `ts` is the
        time stamp of the packet that caused it.
        """
        flags = WIRE.MRC_CC_FLAG_DELAYED if delayed else 0
        flags |= WIRE.MRC_CC_FLAG_DUPLICATE if duplicate else 0
        seth = Seth(
            cack & 0xFFFFFF, ev if about is None else about,
            ack_psn_offset=0 if trigger is None else trigger - cack,
            sack_offset=offset, bitmap=bitmap, mpr=mpr, cc_flags=flags, verdict=verdict, down=down,
        )  # fmt: skip
        cc = CcState(ts, restore_cwnd=restore, penalty=penalty, received=received)
        return self.frame(Sack(self.envelope(ev), Bth(WIRE.MRC_OP_SACK, qpn), seth, cc))

    def probe(
        self, probe_id: int, ev: int = EV, *, qpn: int = QPN, sent: int = 0, vendor: int = 0
    ) -> bytes:
        peth = Peth(probe_id, stamp(sent), vendor)
        return self.frame(Control(self.envelope(ev), Bth(WIRE.MRC_OP_PROBE, qpn), peth))

    def probe_reply(
        self,
        probe_id: int,
        ev: int = EV,
        *,
        cack: int = 999,
        verdict: int = WIRE.MRC_SETH_M_NONE,
        qpn: int = QPN,
    ) -> bytes:
        seth = Seth(
            cack, ev, probe_id=probe_id, probe_reply=True, verdict=verdict,
            cc_flags=WIRE.MRC_CC_FLAG_DELAYED,
        )  # fmt: skip
        return self.frame(Sack(self.envelope(ev), Bth(WIRE.MRC_OP_SACK, qpn), seth, CcState()))

    def nack(
        self,
        psn: int,
        ev: int = EV,
        *,
        about: int = EV,
        reason: int = WIRE.MRC_NACK_TRIMMED,
        qpn: int = QPN,
    ) -> bytes:
        """Return a NACK: packet `psn`, which we sent on path `about`, did not arrive."""
        neth = Neth(reason, psn & 0xFFFFFF, about)
        return self.frame(Control(self.envelope(ev), Bth(WIRE.MRC_OP_NACK, qpn), neth))

    def endpoint_request(self, op: int, request_id: int, mask: int = 0xF, ev: int = EV) -> bytes:
        """Return an EV probe or a Port Status Update."""
        bth = Bth(WIRE.MRC_OP_ENDPOINT_REQ, WIRE.MRC_QPN_ENDPOINT, request_id)
        erth = Erth(op, mask, Timestamp(0xBEEF, True, 1))
        return self.frame(Control(self.envelope(ev), bth, erth))

    # ---- packets that we send

    def our_envelope(self, ev: int, traffic_class: int = 0) -> Envelope:
        usids = []
        if self.fabric.routing.mode == "srv6":
            usids = usid.path_usids(self.us, self.peer, ev)
        port = WIRE.MRC_UDP_PORT_DEFAULT
        return self._around(self.us, self.peer, usids, ev, traffic_class, port, 64)

    def our_data(
        self, psn: int, payload: bytes, ev: int, sent: int, *,
        rtx: bool = False, ackreq: bool = False,
    ) -> bytes:  # fmt: skip
        """Return the frame in which `payload` should leave, stamped `sent`."""
        plane = usid.ev_plane(ev)
        packet = Data(
            self.our_envelope(ev, WIRE.MRC_ECN_ECT0),
            Bth(
                WIRE.MRC_OP_WRITE_ONLY, REMOTE_QPN, psn & 0xFFFFFF, rtx=rtx, ackreq=ackreq, ts=True
            ),
            Write(msn=psn & 0xFFFF, length=len(payload), timestamp=stamp(sent)),
            payload,
        )
        return encode_frame(packet, gateway_mac_of(plane), mac_of(plane))
