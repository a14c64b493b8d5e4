# SPDX-License-Identifier: GPL-2.0-only
"""Cells for the rig: TCP packets, cells as they arrive and as they should leave, and large packets.

A test run cannot make a packet that segmentation offload would take as one: its kind is missing,
and the helpers that change headers refuse it. So large packets really pass the rig's interfaces,
with the programs attached to them: `CellRig.send` sends one from mrc0, and `CellRig.bring` has a
piece of a cell arrive at a plane.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import warnings
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

import pytest

from mrcd.fabric import usid
from mrcd.fabric.routing import SRV6, Routing
from mrcd.linux import bpf, bpfmap, ethtool
from mrcd.wire.abi import ABI
from mrcd.wire.cell import (
    Cell,
    CellInUdp,
    CellPacket,
    decode_cell,
    decode_cell_in_udp,
    encode_cell,
    udp_around,
)
from mrcd.wire.envelope import checksum16
from mrcd.wire.packet import WIRE, Bth, CcState, Envelope, Ip4, Ip6, Sack, Seth
from rigs.packets import EV, QPN, REMOTE_QPN, Far, around, ev_in, is_cell, places_of
from rigs.rig import LINK_MAC, WINDOW, Rig, gateway_mac_of, mac_of, settle

AnyCell = CellPacket | CellInUdp
FIN, PSH, ACK, CWR = 0x01, 0x08, 0x10, 0x80
TCP_LEN = 20
IN_EACH_ENVELOPE = pytest.mark.parametrize(
    ("routing", "cell_udp"),
    [
        (SRV6, False),
        (Routing("ecmp", underlay=6), False),
        (SRV6, True),
        (Routing("ecmp", underlay=6), True),
        (Routing("ecmp", underlay=4), True),
    ],
    ids=["ipv6-usids", "ipv6", "udp-usids", "udp6", "udp4"],
)
"""Cells in IPv6 and in UDP, with uSIDs and without."""
COPY_TAG, COPY_DATA = 0, 32
"""Offsets in a slot of a cell (struct mrc_big in bpf/maps.c)."""
MSS = 900

_SENDER_MAC = bytes.fromhex("020000000077")  # tells what a test sends from what programs deliver
_PACKET_VNET_HDR, _SOL_PACKET = 15, 263
_NEEDS_CSUM, _GSO_TCP4, _GSO_TCP6 = 1, 1, 4
_VNET = struct.Struct("=BBHHHH")
_CONTEXT = 192
_AT_MARK, _AT_IFINDEX, _AT_GSO_SIZE = 8, 40, 176
_DRESS = r"""
#include <uapi/linux/bpf.h>
#include <uapi/linux/pkt_cls.h>

struct dress {
    u64 flags;
    u32 ifindex;
    u16 room;
    u16 undress;
    u8 head[88];
};
BPF_ARRAY(dresses, struct dress, 1);

/* Make room for headers. The kernel remembers those around a large packet. */
static __always_inline long make_room(struct __sk_buff *skb, struct dress *d)
{
    if (!skb->gso_size)
        return bpf_skb_change_head(skb, d->room, 0);
    return bpf_skb_adjust_room(skb, d->room, BPF_ADJ_ROOM_MAC, d->flags);
}

/* Put the headers in front of a packet; take the outer ones off again if it says so. */
int dress(struct __sk_buff *skb)
{
    u16 ip4 = bpf_htons(0x0800);
    u32 zero = 0;
    struct dress *d = dresses.lookup(&zero);

    if (!d || make_room(skb, d))
        return TC_ACT_SHOT;
    if (d->room == 40 && bpf_skb_store_bytes(skb, 0, d->head, 54, 0))
        return TC_ACT_SHOT;
    if (d->room == 50 && bpf_skb_store_bytes(skb, 0, d->head, 64, 0))
        return TC_ACT_SHOT;
    if (d->room == 70 && bpf_skb_store_bytes(skb, 0, d->head, 84, 0))
        return TC_ACT_SHOT;
    if (d->undress &&
        bpf_skb_adjust_room(skb, -40, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO | 1 << 7))
        return TC_ACT_SHOT;
    if (d->undress && bpf_skb_store_bytes(skb, 12, &ip4, sizeof(ip4), 0))
        return TC_ACT_SHOT;
    return bpf_redirect(d->ifindex, 0);
}
"""
_FIXED_GSO, _OVER_IP4, _OVER_IP6, _IN_UDP, _WITH_ETHERNET = 1, 2, 4, 16, 64 | 14 << 56
_DRESSES = {
    40: _FIXED_GSO | _OVER_IP6,
    50: _FIXED_GSO | _OVER_IP4 | _IN_UDP | _WITH_ETHERNET,
    70: _FIXED_GSO | _OVER_IP6 | _IN_UDP | _WITH_ETHERNET,
}
"""Flags of bpf_skb_adjust_room, by the length of the headers around a cell."""


# ---- packets of applications


def pseudo_sum(src: bytes, dst: bytes, protocol: int, length: int) -> int:
    """Return what the checksum field holds while a NIC has still to add the rest."""
    return ~checksum16(src + dst + struct.pack("!II", length, protocol)) & 0xFFFF


def transport(
    head: bytes, body: bytes, at: int, ends: tuple[bytes, bytes], protocol: int, partial: bool
) -> bytes:
    """Return a transport header and its payload with the checksum, whole or partial, at `at`."""
    start = pseudo_sum(*ends, protocol, len(head) + len(body))
    whole = head + body
    even = whole + bytes(len(whole) % 2)
    total = start if partial else checksum16(struct.pack("!H", start) + even)
    if protocol == 17 and not total:
        total = 0xFFFF
    return whole[:at] + struct.pack("!H", total) + whole[at + 2 :]


def network(
    body: bytes, protocol: int, ends: tuple[bytes, bytes], *, ident: int, tos: int, options: bytes,
    fragment: int = 0x4000,
) -> bytes:  # fmt: skip
    """Return an IPv4 or IPv6 packet, by the length of the addresses."""
    if len(ends[0]) == 16:
        return struct.pack("!IHBB", 6 << 28 | tos << 20, len(body), protocol, 64) + b"".join(
            ends
        ) + body  # fmt: skip
    head = struct.pack(
        "!BBHHHBBH", 0x45 + len(options) // 4, tos, 20 + len(options) + len(body), ident, fragment,
        64, protocol, 0,
    ) + b"".join(ends) + options  # fmt: skip
    return head[:10] + struct.pack("!H", checksum16(head)) + head[12:] + body


def ends_of(version: int, inward: bool) -> tuple[bytes, bytes]:
    """Return the addresses of a packet from the peer (`inward`) or to it."""
    kind, near, far = (
        (IPv4Address, "10.99.0.1", "10.99.0.2")
        if version == 4
        else (IPv6Address, "fd99::1", "fd99::2")
    )
    there, here = kind(far).packed, kind(near).packed
    return (there, here) if inward else (here, there)


def tcp(
    body: bytes, *, seq: int = 1, flags: int = ACK, version: int = 4, options: bytes = b"",
    ip_options: bytes = b"", ident: int = 1, tos: int = 0, inward: bool = False,
    partial: bool = False, port: int = 40000, ace: int = 0,
) -> bytes:  # fmt: skip
    """Return an IP packet with TCP in it, whose checksums are right or left to a NIC.

    `ace` is the number that AccECN has in the flags AE, CWR and ECE.
    """
    ends = ends_of(version, inward)
    offset = (TCP_LEN + len(options)) // 4 << 4 | ace >> 2
    flags |= (ace & 3) << 6
    head = struct.pack("!HHIIBBHHH", port, 7, seq, 99, offset, flags, 500, 0, 0) + options
    segment = transport(head, body, 16, ends, 6, partial)
    return network(segment, 6, ends, ident=ident, tos=tos, options=ip_options)


def udp(
    body: bytes, *, version: int = 4, partial: bool = False, summed: bool = True,
    fragment: int = 0x4000, inward: bool = False,
) -> bytes:  # fmt: skip
    """Return an IP packet with UDP in it; its checksum is 0 unless it is `summed`."""
    ends = ends_of(version, inward)
    head = struct.pack("!HHHH", 40000, 7, 8 + len(body), 0)
    datagram = transport(head, body, 6, ends, 17, partial) if summed else head + body
    return network(datagram, 17, ends, ident=7, tos=0, options=b"", fragment=fragment)


_NOISE = bytes((7 * i + (i >> 8) * 3) & 0xFF for i in range(1 << 19))


def noise(length: int, first: int = 0) -> bytes:
    """Return bytes that differ from place to place: `length` of them from place `first` on."""
    return _NOISE[first : first + length]


def body_of(packet: bytes) -> bytes:
    """Return the TCP payload of an IP packet."""
    at = (packet[0] & 15) * 4 if packet[0] >> 4 == 4 else WIRE.MRC_IP6_LEN
    return packet[at + (packet[at + 12] >> 4) * 4 :]


def seq_of(packet: bytes) -> int:
    """Return the TCP sequence number of an IP packet."""
    at = (packet[0] & 15) * 4 if packet[0] >> 4 == 4 else WIRE.MRC_IP6_LEN
    return int.from_bytes(packet[at + 4 : at + 8], "big")


# ---- cells


class CellFar(Far):
    """A maker of the cells that `peer` sends to `us`, and of those that should leave."""

    def cell(
        self, psn: int, packet: bytes, ev: int = EV, *, mss: int = 0, first: int | None = None,
        attempt: int = 0, ackreq: bool = False, ce: bool = False, qpn: int = QPN,
    ) -> bytes:  # fmt: skip
        """Return a piece of the cell that begins with PSN `psn`.

        `first` is the TCP sequence number of the cell, by default that of the piece.
        """
        begin = (seq_of(packet) if first is None else first) if mss else 0
        state = Cell(
            self.block, qpn, psn & 0xFFFFFF, ev, mss, begin >> 8 & 0xFF, attempt, ackreq, self.phase
        )
        plane = usid.ev_plane(ev)
        tclass = WIRE.MRC_ECN_CE if ce else WIRE.MRC_ECN_ECT0
        made = self._within(state, self.envelope(ev, traffic_class=tclass), packet)
        macs = mac_of(plane) + gateway_mac_of(plane)
        return macs + self._encoded(made, self.key(qpn), psn)

    @property
    def block(self) -> int:
        """The block in the state of a cell."""
        if self.cell_udp:
            return 0
        return int.from_bytes(self.fabric.underlay6.network_address.packed[:4], "big")

    def _within(self, state: Cell, envelope: Envelope, packet: bytes) -> AnyCell:
        """Return a cell behind the IP header that switches see of MRC's own packets."""
        ip = around(envelope)
        if self.cell_udp:
            return CellInUdp(state, udp_around(ip, state.ev), packet)
        assert isinstance(ip, Ip6)
        return CellPacket(state, ip.dst, packet, ip.traffic_class, ip.hop_limit)

    def _encoded(self, made: AnyCell, key: bytes, psn: int) -> bytes:
        data = encode_cell(made, key, psn >> 24 & 0xFF)
        return (b"\x08\x00" if data[0] >> 4 == 4 else b"\x86\xdd") + data

    def our_cell(
        self, psn: int, packet: bytes, ev: int, *, mss: int = 0, attempt: int = 0,
        ackreq: bool = False, qpn: int = REMOTE_QPN,
    ) -> bytes:  # fmt: skip
        """Return the frame in which a cell of ours should leave."""
        seq = seq_of(packet) >> 8 & 0xFF if mss else 0
        state = Cell(self.block, qpn, psn & 0xFFFFFF, ev, mss, seq, attempt, ackreq, self.phase)
        plane = usid.ev_plane(ev)
        made = self._within(state, self.our_envelope(ev, WIRE.MRC_ECN_ECT0), packet)
        macs = gateway_mac_of(plane) + mac_of(plane)
        return macs + self._encoded(made, self.our_key(qpn), psn)

    def answer(
        self, cack: int, bitmap: int = 0, *, offset: int = 1, trigger: int | None = None,
        ev: int = EV, about: int | None = None, ts: int = 0, received: int = 0,
        flags: int = WIRE.MRC_CC_FLAG_DELAYED,
        verdict: int = 0,
    ) -> bytes:  # fmt: skip
        """Return a SACK as Far.sack; by default the clock's, which tells no round trip."""
        seth = Seth(
            cack & 0xFFFFFF, ev if about is None else about,
            ack_psn_offset=0 if trigger is None else trigger - cack,
            sack_offset=offset, bitmap=bitmap, mpr=2, cc_flags=flags, verdict=verdict,
        )  # fmt: skip
        cc = CcState(tx_timestamp=ts, received=received)
        return self.frame(Sack(self.envelope(ev), Bth(WIRE.MRC_OP_SACK, QPN), seth, cc))


def traffic_class(cell: AnyCell) -> int:
    """Return the traffic class of the header that switches see."""
    if isinstance(cell, CellPacket):
        return cell.traffic_class
    ip = cell.around.inner
    return ip.tos if isinstance(ip, Ip4) else ip.traffic_class


def piece(
    packet: bytes, mss: int, first: int, end: int, *, partial: bool = False, accurate: bool = False
) -> bytes:
    """Return packets [first, end) of a large TCP packet as one, as a NIC would cut it.

    Of one of AccECN (`accurate`) all packets have the same flags of ECN.
    """
    version = packet[0] >> 4
    l4 = (packet[0] & 15) * 4 if version == 4 else WIRE.MRC_IP6_LEN
    head = l4 + (packet[l4 + 12] >> 4) * 4
    body = packet[head:]
    flags = packet[l4 + 13]
    if end * mss < len(body):
        flags &= ~(FIN | PSH)
    if first and not accurate:
        flags &= ~CWR
    seq = (seq_of(packet) + first * mss) & 0xFFFFFFFF
    tcp_head = bytearray(packet[l4:head])
    tcp_head[4:8] = seq.to_bytes(4, "big")
    tcp_head[13] = flags
    tcp_head[16:18] = bytes(2)
    ends = (packet[12:16], packet[16:20]) if version == 4 else (packet[8:24], packet[24:40])
    part = body[first * mss : end * mss]
    segment = transport(bytes(tcp_head), part, 16, ends, 6, partial)
    if version == 6:
        return packet[:4] + struct.pack("!H", len(segment)) + packet[6:40] + segment
    ident = int.from_bytes(packet[4:6], "big") + first & 0xFFFF
    return network(
        segment, 6, ends, ident=ident, tos=packet[1], options=packet[20:l4],
        fragment=int.from_bytes(packet[6:8], "big"),
    )  # fmt: skip


def pieces(packet: bytes, mss: int, *, accurate: bool = False) -> list[bytes]:
    """Return every packet of a large TCP packet, whole and with its checksum."""
    count = -(-len(body_of(packet)) // mss)
    return [piece(packet, mss, i, i + 1, accurate=accurate) for i in range(count)]


# ---- the rig


@dataclass(frozen=True, slots=True)
class CellRan:
    """The verdict of mrc_cell, the packet as it left it, and the packet's mark."""

    verdict: int
    frame: bytes
    mark: int


class Door:
    """Interfaces of a rig by which large packets come in; made once, used by many tests."""

    def __init__(self) -> None:
        from bcc import BPF  # type: ignore[import-untyped]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # bcc wants names as bytes
            self._module = BPF(text=_DRESS)
            dress = self._module.load_func("dress", BPF.SCHED_CLS)
            self._dresses = self._module["dresses"].get_fd()
        lines = [
            "link add door mtu 1500 type veth peer name inside mtu 1500",
            "link set door arp off up",
            "link set inside arp off up",
        ]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
        self._link = bpf.create_link(
            dress.fd, socket.if_nametoindex("inside"), bpf.ATTACH_TCX_INGRESS
        )
        self._sockets = {name: self._open(name) for name in ("door", "mrc0")}

    def _open(self, name: str) -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        made.bind((name, 0))
        return made

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()
        os.close(self._link)
        self._module.cleanup()

    def send(self, name: str, packet: bytes, gso: int, priority: int = 0) -> None:
        """Send an IP packet with TCP, to be cut into segments of `gso` bytes unless that is 0.

        Its checksum is left to a NIC.
        """
        version = packet[0] >> 4
        l4 = (packet[0] & 15) * 4 if version == 4 else WIRE.MRC_IP6_LEN
        start = WIRE.MRC_ETH_LEN + l4
        head = start + (packet[l4 + 12] >> 4) * 4
        kind = (_GSO_TCP4 if version == 4 else _GSO_TCP6) if gso else 0
        vnet = _VNET.pack(_NEEDS_CSUM, kind, head, gso, start, 16)
        proto = b"\x08\x00" if version == 4 else b"\x86\xdd"
        self._sockets[name].setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
        self._sockets[name].send(vnet + LINK_MAC + _SENDER_MAC + proto + packet)

    def send_unfinished(self, name: str, packet: bytes, start: int, field: int) -> None:
        """Send an IP packet whose bytes from `start` on the NIC is to sum up into `field`."""
        at = WIRE.MRC_ETH_LEN + start
        vnet = _VNET.pack(_NEEDS_CSUM, 0, at, 0, at, field - start)
        proto = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
        self._sockets[name].send(vnet + LINK_MAC + _SENDER_MAC + proto + packet)

    def dress(self, head: bytes, ifindex: int, *, undress: bool = False) -> None:
        """Say what to put in front of what comes in, and where to send it."""
        room = len(head) - WIRE.MRC_ETH_LEN
        value = struct.pack("=QIHH88s", _DRESSES[room], ifindex, room, undress, head)
        bpf.update(self._dresses, struct.pack("=I", 0), value)


class CellRig:
    """A rig whose QP 0 has the framing of cells; `rig` stays usable beside it."""

    def __init__(self, rig: Rig, door: Door, links: contextlib.ExitStack) -> None:
        self.rig = rig
        cell_udp = rig.dp.sizes.cell_udp
        self.far = CellFar(
            rig.fabric, rig.fabric.host("h1"), rig.fabric.host("h2"), cell_udp=cell_udp
        )
        self.places = places_of(rig.fabric.routing, cell_udp=cell_udp)
        self._door = door
        self._links = links
        self._attached: set[str] = set()
        self.speak_cells()

    @property
    def known(self) -> frozenset[int]:
        """The bytes of a frame by which mrc_receive knows a cell, but for the EtherType."""
        if self.rig.fabric.routing.code == WIRE.MRC_ENCAP_ECMP4:
            return frozenset({14, 20, 21, 23, 36, 37})
        block = range(38, 42)
        if not self.far.cell_udp:
            return frozenset({20, *range(22, 27), *block})
        usids = self.rig.fabric.routing.mode == "srv6"
        return frozenset({20, *(block if usids else ()), 56, 57})

    def speak_cells(self, index: int = 0) -> None:
        """Give a QP the framing of cells."""
        self.rig.edit("qps", index, "mrc_qp", framing=ABI.MRC_FRAMING_CELL)

    def _attach(self, program: str, name: str, to: int = bpf.ATTACH_TCX_INGRESS) -> None:
        if name not in self._attached:
            self._attached.add(name)
            index = self.rig.ifindex[name]
            link = bpf.create_link(self.rig.dp.programs[program], index, to)
            self._links.callback(os.close, link)

    # ---- packets in

    def send(self, packet: bytes, mss: int, *, priority: int = 0) -> None:
        """Send a large TCP packet out of mrc0, through mrc_spray; a single one if `mss` is 0."""
        self._attach("mrc_spray", "mrc0", bpf.ATTACH_TCX_EGRESS)
        self._door.send("mrc0", packet, mss, priority)

    def send_unfinished(self, packet: bytes, start: int, field: int, *, back: bool = True) -> None:
        """Send a single packet out of mrc0, whose sum from `start` on is left to a NIC.

        The interfaces that cut and complete are as mrcd sets them up; without `back`, what they
        complete goes no further.
        """
        self._attach("mrc_spray", "mrc0", bpf.ATTACH_TCX_EGRESS)
        if back:
            self._attach("mrc_spray", "back")
        if "cut" not in self._attached:
            self._attached.add("cut")
            ethtool.set_features("cut", tx_checksum=False)
            self._links.callback(ethtool.set_features, "cut", tx_checksum=True)
        self._door.send_unfinished("mrc0", packet, start, field)
        settle()

    def send_tunnelled(self, packet: bytes, mss: int) -> None:
        """Do the same with a packet that has been inside another, which the kernel remembers."""
        self._attach("mrc_spray", "mrc0", bpf.ATTACH_TCX_EGRESS)
        head = LINK_MAC + _SENDER_MAC + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, 0, 4, 64)
        self._door.dress(head + bytes(32), self.rig.ifindex["mrc0"], undress=True)
        self._door.send("door", packet, mss)

    def bring(self, frame: bytes, mss: int) -> None:
        """Have a cell, or a piece of one, arrive at its plane through mrc_cell, partly summed."""
        plane = usid.ev_plane(ev_in(frame))
        self._attach("mrc_cell", f"plane{plane}")
        inner = self.places.inner
        self._door.dress(frame[:inner], self.rig.ifindex[f"wire{plane}"])
        self._door.send("door", frame[inner:], mss)

    def arrive(
        self, frame: bytes, *, mss: int = 0, mark: int = 0, interface: str | None = None
    ) -> CellRan:
        """Run mrc_cell on one frame; with `mss` it cannot be delivered, but all else may happen."""
        context = bytearray(_CONTEXT)
        name = interface or f"plane{(frame[self.places.label + 1] >> 4) % len(self.rig.wires)}"
        struct.pack_into("=I", context, _AT_IFINDEX, self.rig.ifindex[name])
        struct.pack_into("=I", context, _AT_MARK, mark)
        struct.pack_into("=I", context, _AT_GSO_SIZE, mss)
        run = bpf.TestRun(
            self.rig.dp.programs["mrc_cell"], frame, out_size=4096, context=bytes(context),
            context_out_size=_CONTEXT,
        )  # fmt: skip
        verdict = run.run()
        return CellRan(
            verdict, run.output, struct.unpack_from("=I", run.context_output, _AT_MARK)[0]
        )

    def spray_on(self, packet: bytes, mss: int, interface: str = "mrc0") -> int:
        """Return the verdict of mrc_spray on what it does not send as a cell of several."""
        context = bytearray(_CONTEXT)
        struct.pack_into("=I", context, _AT_IFINDEX, self.rig.ifindex[interface])
        struct.pack_into("=I", context, _AT_GSO_SIZE, mss)
        proto = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
        run = bpf.TestRun(
            self.rig.dp.programs["mrc_spray"], LINK_MAC * 2 + proto + packet,
            context=bytes(context),
        )  # fmt: skip
        return run.run()

    def take(self, psn: int, packet: bytes, mss: int, first: int, end: int, **wishes: int) -> None:
        """Have packets [first, end) of a cell arrive as one piece."""
        part = piece(packet, mss, first, end, partial=end - first > 1)
        frame = self.far.cell(psn, part, mss=mss, first=seq_of(packet), **wishes)
        if end - first > 1:
            self.bring(frame, mss)
        else:
            self.arrive(frame)

    # ---- packets out

    def delivered(self) -> list[bytes]:
        """Return the IP packets that reached mrc0 since the last call, in order."""
        return [frame[14:] for frame in self.rig.mrc0.take() if frame[:12] == LINK_MAC * 2]

    def sent(self) -> list[tuple[int, bytes]]:
        """Return (plane, frame) for all frames of ours since the last call, plane by plane."""
        return [(k, frame) for k, frame in self.rig.sent() if frame[6:12] == mac_of(k)]

    def cells_sent(self, qpn: int = REMOTE_QPN) -> list[tuple[AnyCell, bytes]]:
        """Return the cells among them, decoded and as frames, by PSN."""
        found = []
        for plane, frame in self.sent():
            if is_cell(frame):
                decoded = self.decoded(frame, qpn)
                assert usid.ev_plane(decoded.cell.ev) == plane
                found.append((decoded, frame))
        return sorted(found, key=lambda one: one[0].cell.psn)

    def decoded(self, frame: bytes, qpn: int = REMOTE_QPN) -> AnyCell:
        """Decode the frame of a cell to a QP."""
        psn_at, data = self.places.state + 2, frame[WIRE.MRC_ETH_LEN :]
        high = self.full(int.from_bytes(frame[psn_at : psn_at + 3], "big")) >> 24 & 0xFF
        if self.far.cell_udp:
            return decode_cell_in_udp(data, qpn, psn_high=high)
        return decode_cell(data, self.far.block, qpn, psn_high=high)

    def full(self, psn: int, index: int = 0) -> int:
        """Return the 32 bits of a PSN that a QP has sent, of which a packet holds 24."""
        near = self.rig.tx(index)["next"]
        return near + ((psn - near + 0x800000 & 0xFFFFFF) - 0x800000) & 0xFFFFFFFF

    def slots(self) -> tuple[int, int, int, int]:
        """Return the free slots: of single packets and of cells, to send and to deliver."""
        names = ("tx_free", "tx_cells_free", "rx_free", "rx_cells_free")
        return tuple(self.rig.free_slots(name) for name in names)  # type: ignore[return-value]

    def edit_copy(self, slot: int, at: int, data: bytes) -> None:
        """Overwrite a part of the copy of a cell that was sent."""
        fd, key = self.rig.dp.maps["tx_cells"], struct.pack("=I", slot & ABI.MRC_SLOT_INDEX)
        size = bpfmap.described(fd).value_size
        raw = bpf.lookup(fd, key, size)
        assert raw is not None
        bpf.update(fd, key, raw[:at] + data + raw[at + len(data) :])

    def entry(self, psn: int) -> dict[str, int]:
        """Return what is noted of a packet that was sent."""
        return self.rig.dp.read("tx_entries", psn % WINDOW, ABI.structs["mrc_tx_entry"])
