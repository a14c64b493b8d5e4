# SPDX-License-Identifier: GPL-2.0-only
"""A stranger on the planes of a lab: it knows the published addressing, and has no key.

It sends from the NICs of a host of the lab, in whatever name it likes. `KINDS` are the packets that
it makes, and a `Flood` sends some of them over and over, as fast as it is told to.
"""

from __future__ import annotations

import array
import errno
import itertools
import mmap
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from mrcd.fabric import underlay, usid
from mrcd.fabric.description import Fabric, Host
from mrcd.handshake import sealing
from mrcd.linux import netns
from mrcd.peers.offersockets import udp6
from mrcd.wire import tag
from mrcd.wire.packet import (
    WIRE,
    Auth,
    Bth,
    CcState,
    Control,
    Data,
    Eeth,
    Envelope,
    Erth,
    Ip6,
    Neth,
    Packet,
    Peth,
    Sack,
    Seth,
    Timestamp,
    Write,
    encode_frame,
)

Lab = Any  # conftest.RunningLab
CONTROL_PORT: Final = 4972
QPS: Final = 4
_HOPS = 255

_SOL_PACKET, _PACKET_TX_RING, _PACKET_QDISC_BYPASS = 263, 13, 20
_SEND_REQUEST = 1
_FRAME_BYTES = 512
_FRAME_HEAD = 32  # struct tpacket_hdr, aligned
_BLOCK_BYTES = 1 << 16


def _gateway(running: Lab, host: Host, plane: int) -> bytes:
    """Return the link-layer address of the T0's port to a host."""
    text = running.run(f"p{plane}t0-{host.t0}", "cat", f"/sys/class/net/port{host.port}/address")
    return bytes.fromhex(text.strip().replace(":", ""))


class Stranger:
    """A maker of frames from one host's NICs to another host, in the name of a third."""

    def __init__(self, running: Lab, here: Host, target: Host, posing: Host, seed: int = 0) -> None:
        """Send from `here` to `target` as if from `posing`; what is guessed follows from `seed`."""
        self.fabric: Fabric = running.fabric
        self.here, self.target, self.posing = here, target, posing
        self._gateways = [_gateway(running, here, plane) for plane in range(self.fabric.planes)]
        self.rng = random.Random(seed)

    def ev(self) -> int:
        """Return an EV from here to the target."""
        plane = self.rng.randrange(self.fabric.planes)
        return self.rng.choice(underlay.of(self.fabric).evs(self.here, self.target, plane))

    def qpn(self) -> int:
        """Guess a QPN: generation and index."""
        return self.rng.randrange(256) << 16 | self.rng.randrange(QPS)

    def psn(self) -> int:
        """Guess a PSN."""
        return self.rng.getrandbits(24)

    def labelled(self, label: int) -> int:
        """Return a cell's flow label with a phase."""
        return label | self.rng.randrange(2) << 16

    def cell_tag(self, covered: bytes, label: int, psn: int, qp: int) -> int:
        """Guess the tag of a cell."""
        del covered, label, psn, qp
        return self.rng.getrandbits(32)

    def macs(self, plane: int) -> bytes:
        """Return both addresses of the Ethernet header."""
        return self._gateways[plane] + bytes.fromhex("0600000000") + bytes([plane])

    def envelope(
        self, ev: int, *, posing: Host | None = None, label: int | None = None
    ) -> Envelope:
        """Return the headers around a packet on an EV."""
        plane = usid.ev_plane(ev)
        src = underlay.of(self.fabric).address(posing or self.posing, plane)
        dst = underlay.of(self.fabric).address(self.target, plane)
        assert isinstance(src, IPv6Address)
        assert isinstance(dst, IPv6Address)
        path = usid.da_bytes(self.fabric.block, usid.path_usids(self.here, self.target, ev))
        low = ev & 0xFFFF if label is None else label
        outer = Ip6(src, IPv6Address(path), low, 0, _HOPS)
        return Envelope(outer, Ip6(src, dst, low), ev >> 16, WIRE.MRC_UDP_PORT_DEFAULT)

    def frame(self, packet: Packet) -> bytes:
        """Return a frame whose tag is a guess."""
        plane = usid.ev_plane(packet.envelope.ev)
        if not isinstance(packet, Data):
            packet = replace(packet, auth=Auth(self.rng.getrandbits(32)))
        macs = self.macs(plane)
        return encode_frame(packet, macs[:6], macs[6:], self.rng.randbytes(16))

    def message(
        self, body: bytes, source: IPv6Address | None = None, port: int = CONTROL_PORT
    ) -> bytes:
        """Return a frame with a datagram for the target's daemon."""
        around = self.envelope(self.ev())
        plane = usid.ev_plane(around.ev)
        assert isinstance(around.inner, Ip6)
        assert around.outer is not None
        assert isinstance(around.outer, Ip6)
        src = around.inner.src if source is None else source
        inner = udp6(src, around.inner.dst, port, port, body)
        outer = struct.pack("!IHBB", 6 << 28, len(inner), 41, _HOPS)
        outer += around.inner.src.packed + around.outer.dst.packed
        return self.macs(plane) + b"\x86\xdd" + outer + inner


@dataclass(frozen=True, slots=True)
class Held:
    """A QP as its host's maps have it: the QPN and the next PSN there, and the key to there."""

    qpn: int
    psn: int
    key: bytes
    phase: int


class Insider(Stranger):
    """A host that has the keys of its own QPs with the target, and does with them what it likes."""

    def __init__(
        self, running: Lab, here: Host, target: Host, qps: Sequence[Held], endpoint: Held
    ) -> None:
        """Send to `target` with the keys of `qps`; `endpoint` holds that of endpoint packets."""
        super().__init__(running, here, target, here, seed=3)
        self._qps, self._endpoint = list(qps), endpoint
        self._now, self._count = self._qps[0], 1 << 20

    def qpn(self) -> int:
        """Choose a QP of ours."""
        self._now = self.rng.choice(self._qps)
        return self._now.qpn

    def psn(self) -> int:
        """Return a PSN that is in the window, or near it, or anywhere."""
        near = self._now.psn + self.rng.choice((-1, 0, 1, 2, 30, 100, 400, 5000, 1 << 22))
        return near & 0xFFFFFF if self.rng.random() < 0.9 else self.rng.getrandbits(24)

    def frame(self, packet: Packet) -> bytes:
        """Return a frame with a right tag."""
        plane = usid.ev_plane(packet.envelope.ev)
        at_endpoint = packet.bth.dqpn == WIRE.MRC_QPN_ENDPOINT
        held = self._endpoint if at_endpoint else self._by_qpn(packet.bth.dqpn)
        packet = replace(packet, bth=replace(packet.bth, phase=held.phase))
        if not isinstance(packet, Data):
            self._count += not at_endpoint
            packet = replace(packet, auth=Auth(0 if at_endpoint else self._count))
        macs = self.macs(plane)
        return encode_frame(packet, macs[:6], macs[6:], held.key, held.psn >> 24)

    def labelled(self, label: int) -> int:
        """Return a cell's flow label with the phase that is in use."""
        return label | self._qps[0].phase << 16

    def cell_tag(self, covered: bytes, label: int, psn: int, qp: int) -> int:
        """Return the right tag of a cell."""
        held = next(each for each in self._qps if each.qpn & 0xFFFF == qp)
        return tag.cell_tag(held.key, covered, label, held.psn & 0xFF000000 | psn, held.qpn)

    def _by_qpn(self, qpn: int) -> Held:
        return next(each for each in self._qps if each.qpn == qpn)


Make = Callable[[Stranger], bytes]


def _ports(s: Stranger) -> bytes:
    bth = Bth(WIRE.MRC_OP_ENDPOINT_REQ, WIRE.MRC_QPN_ENDPOINT, s.rng.getrandbits(16))
    return s.frame(Control(s.envelope(s.ev()), bth, Erth(WIRE.MRC_ENDPOINT_PORT_STATUS, 0)))


def _sack(s: Stranger, seth: Seth, received: int = 0) -> bytes:
    cc = CcState(tx_timestamp=s.rng.getrandbits(16), received=received)
    return s.frame(Sack(s.envelope(s.ev()), Bth(WIRE.MRC_OP_SACK, s.qpn()), seth, cc))


def _absurd(s: Stranger) -> bytes:
    return _sack(s, Seth(s.psn(), s.ev(), bitmap=s.rng.getrandbits(64)))


def _heard(s: Stranger) -> bytes:
    seth = Seth(s.psn(), s.ev(), down=0xFF, mpr=1)
    return _sack(s, seth, s.rng.getrandbits(24))


def _nack(s: Stranger) -> bytes:
    neth = Neth(s.rng.choice((WIRE.MRC_NACK_TRIMMED, WIRE.MRC_NACK_UNEXP_EVENT)),
                s.psn(), s.ev())  # fmt: skip
    return s.frame(Control(s.envelope(s.ev()), Bth(WIRE.MRC_OP_NACK, s.qpn()), neth))


def _probe(s: Stranger) -> bytes:
    peth = Peth(s.rng.getrandbits(16), Timestamp(s.rng.getrandbits(16)), s.rng.randrange(2))
    return s.frame(Control(s.envelope(s.ev()), Bth(WIRE.MRC_OP_PROBE, s.qpn()), peth))


def inner(src: str, dst: str, body: bytes = b"forged" * 8) -> bytes:
    """Return an IPv4 packet with UDP in it, as an application's."""
    udp = struct.pack("!HHHH", 40000, 7, 8 + len(body), 0) + body
    ends = IPv4Address(src).packed + IPv4Address(dst).packed
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0x4000, 64, 17, 0) + ends + udp


def _data(s: Stranger) -> bytes:
    payload = inner("192.0.2.7", "127.0.0.1")
    bth = Bth(WIRE.MRC_OP_WRITE_ONLY, s.qpn(), s.psn(), ts=True)
    write = Write(msn=0, length=len(payload), timestamp=Timestamp(s.rng.getrandbits(16)))
    return s.frame(Data(s.envelope(s.ev()), bth, write, payload))


def _trimmed(s: Stranger) -> bytes:
    whole = bytearray(_data(s)[: WIRE.MRC_ETH_LEN + 2 * WIRE.MRC_IP6_LEN + 8 + 12 + 24])
    at = WIRE.MRC_ETH_LEN
    word = int.from_bytes(whole[at : at + 4], "big") | WIRE.MRC_DSCP_TRIMMED << 22
    whole[at : at + 4] = word.to_bytes(4, "big")
    # The switches of a lab are Linux hosts, which drop what is shorter than its header says.
    whole[at + 4 : at + 6] = (len(whole) - at - WIRE.MRC_IP6_LEN).to_bytes(2, "big")
    return bytes(whole)


def _cell(s: Stranger) -> bytes:
    ev, payload, qp = s.ev(), inner("192.0.2.7", "127.0.0.1"), s.qpn() & 0xFFFF
    psn = s.psn()
    around = s.envelope(ev)
    assert isinstance(around.outer, Ip6)
    label = s.rng.randrange(2) << 17 | ev >> 16
    covered = struct.pack("!HHBBH", WIRE.MRC_CELL_MARK, psn >> 8, psn & 0xFF, 0, qp)
    label = s.labelled(label)
    made = s.cell_tag(covered, label, psn, qp)
    state = s.fabric.underlay6.network_address.packed[:4] + covered + struct.pack("!I", made)
    outer = struct.pack("!IHBB", 6 << 28 | label, len(payload), 4, _HOPS)
    outer += state + around.outer.dst.packed
    return s.macs(usid.ev_plane(ev)) + b"\x86\xdd" + outer + payload


def _offer(s: Stranger) -> bytes:
    body = bytes.fromhex("9c04") + s.rng.randbytes(80)
    return s.message(b"MRCh" + struct.pack("!H", len(body)) + body)


def _survey_totals(s: Stranger) -> bytes:
    body = bytes.fromhex("95019268") + s.rng.randbytes(60)
    return s.message(b"MRCf" + struct.pack("!H", len(body)) + body)


def _init(s: Stranger) -> bytes:
    return s.message(sealing.INIT + s.rng.randbytes(sealing.INIT_BYTES - 4))


def _indexed(s: Stranger) -> bytes:
    kind = s.rng.choice((sealing.RESPONSE, sealing.COOKIE, sealing.SEALED))
    low, high = sealing.LENGTHS[kind]
    return s.message(kind + s.rng.randbytes(s.rng.randint(low, min(high, 200)) - 4))


def _survey_probe(s: Stranger) -> bytes:
    """Return a survey probe of the target that seems to come back."""
    ev, loop = s.ev(), s.rng.randrange(8)
    around = s.envelope(ev, posing=s.target, label=loop)
    around = replace(around, src_port=(ev & 0xF0000000) >> 16)
    bth = Bth(WIRE.MRC_OP_ENDPOINT_REQ, WIRE.MRC_QPN_ENDPOINT, s.rng.getrandbits(10))
    return s.frame(Control(around, bth, Erth(WIRE.MRC_ENDPOINT_EV_PROBE, 0, vendor=loop)))


def _answer(s: Stranger) -> bytes:
    bth = Bth(WIRE.MRC_OP_ENDPOINT_RSP, WIRE.MRC_QPN_ENDPOINT, s.rng.getrandbits(16))
    return s.frame(Control(s.envelope(s.ev()), bth, Eeth(WIRE.MRC_ENDPOINT_PORT_STATUS, 0)))


KINDS: Final[dict[str, Make]] = {
    "port status": _ports,
    "absurd sacks": _absurd,
    "heard sacks": _heard,
    "nacks": _nack,
    "probes": _probe,
    "data": _data,
    "trimmed": _trimmed,
    "cells": _cell,
    "offers": _offer,
    "survey totals": _survey_totals,
    "inits": _init,
    "indexed": _indexed,
    "survey probes": _survey_probe,
    "answers": _answer,
}
COUNTERS: Final[dict[str, frozenset[str]]] = {
    "cells": frozenset({"drop_cell", "drop_qpn", "drop_framing"}),
    "offers": frozenset({"drop_budget_peer"}),
    "survey totals": frozenset({"drop_message"}),
    "inits": frozenset({"drop_mac1"}),
    "indexed": frozenset({"drop_index"}),
}
"""The counters that tell of a kind at a host with keys; of the others, those below do."""
OTHER_COUNTERS: Final = frozenset({"drop_tag", "drop_qpn", "drop_survey"})


def send(namespace: str, frame: bytes) -> None:
    """Send one frame from the NIC of its plane."""
    with netns.entered(namespace):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with sock:
        sock.bind((f"plane{frame[11]}", 0))
        sock.send(frame)


class Flood:
    """Frames that are sent over and over from the NICs of a host, by their planes."""

    def __init__(self, namespace: str, frames: Sequence[bytes], planes: int) -> None:
        """Prepare to send `frames`, whose last byte of the source address names the plane."""
        by_plane = [[f for f in frames if f[11] == plane] for plane in range(planes)]
        self._rings = [
            _Ring(namespace, f"plane{plane}", found)
            for plane, found in enumerate(by_plane)
            if found
        ]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.sent = 0

    def start(self, pps: int) -> Flood:
        """Send so many frames a second until `stop`."""
        self._thread = threading.Thread(target=self._run, args=(pps,), daemon=True)
        self._thread.start()
        return self

    def _run(self, pps: int) -> None:
        began = time.monotonic()
        while not self._stop.is_set():
            for ring in self._rings:
                self.sent += ring.send()
            ahead = self.sent / pps - (time.monotonic() - began)
            if ahead > 0:
                self._stop.wait(ahead)

    def stop(self) -> int:
        """Stop sending, and return how many frames were sent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)
        for ring in self._rings:
            ring.close()
        return self.sent


class _Ring:
    """A ring of frames that the kernel sends from memory (PACKET_TX_RING)."""

    CHUNK = 256

    def __init__(self, namespace: str, interface: str, frames: Sequence[bytes]) -> None:
        per_block = _BLOCK_BYTES // _FRAME_BYTES
        blocks = max(1, len(frames) // per_block)
        # The kernel goes through all places in turn, and waits at one that is never filled.
        self._total = blocks * per_block
        filled = itertools.islice(itertools.cycle(frames), self._total)
        with netns.entered(namespace):
            self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self._sock.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
            ring = struct.pack("=4I", _BLOCK_BYTES, blocks, _FRAME_BYTES, blocks * per_block)
            self._sock.setsockopt(_SOL_PACKET, _PACKET_TX_RING, ring)
            self._sock.bind((interface, 0))
        self._memory = mmap.mmap(self._sock.fileno(), blocks * _BLOCK_BYTES)
        for place, frame in enumerate(filled):
            at = place * _FRAME_BYTES
            struct.pack_into("=QI", self._memory, at, 0, len(frame))
            self._memory[at + _FRAME_HEAD : at + _FRAME_HEAD + len(frame)] = frame
        self._words = memoryview(self._memory).cast("L")
        self._at = 0

    def send(self) -> int:
        """Send the next frames of the ring; return their number. A NIC that is down drops them."""
        step = _FRAME_BYTES // 8
        first, last = self._at, min(self._at + self.CHUNK, self._total)
        asked = array.array("L", [_SEND_REQUEST]) * (last - first)
        self._words[first * step : last * step : step] = memoryview(asked)
        try:
            self._sock.send(b"")
        except OSError as error:
            if error.errno not in (errno.ENETDOWN, errno.ENOBUFS):
                raise
        self._at = last % self._total
        return last - first

    def close(self) -> None:
        self._words.release()
        self._memory.close()
        self._sock.close()


def frames(stranger: Stranger, kind: str, count: int) -> list[bytes]:
    """Return that many different frames of a kind."""
    return [KINDS[kind](stranger) for _ in range(count)]
