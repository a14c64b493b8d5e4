# SPDX-License-Identifier: GPL-2.0-only
"""Record the headers of MRC packets on a namespace's interfaces, with the kernel's time stamps.

The kernel writes them into a ring that is read after the measurement, so that the capture costs
the measured programs almost nothing (packet(7), PACKET_RX_RING of TPACKET_V2).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bench.instruments.metrics import Ints
from mrcd.linux import netns
from mrcd.wire.packet import WIRE

_libc = ctypes.CDLL(None, use_errno=True)

_FRAME = 256
_SOL_PACKET = 263
_BLOCK = 1 << 20
_PACKET_VERSION, _PACKET_RX_RING, _PACKET_STATISTICS = 10, 5, 6
_TPACKET_V2 = 1
_ETH_P_ALL = 0x0003
_SO_ATTACH_FILTER = 26

# offsets in struct tpacket2_hdr, and in struct sockaddr_ll after it
_STATUS, _MAC, _SEC, _NSEC = 0, 12, 16, 20
_IFINDEX, _PKTTYPE = 32 + 4, 32 + 10

# The packet begins somewhere after these: Ethernet, outer and inner IPv6, UDP, BTH, SETH
_PACKET = 48
_HEAD = 14 + 40 + 40 + 8 + 12 + 24
_INNER_UDP = 14 + 40 + 40
_UDP = _PACKET + _INNER_UDP
_BTH = _UDP + 8
_SETH = _BTH + 12
_OUTGOING = 4

DATA = 0xCA
SACK = 0xDC


@dataclass(frozen=True, slots=True)
class Packets:
    """One entry for each packet, in time order; times are CLOCK_MONOTONIC.

    `lost` counts packets that found no room in the ring. `answers` is the PSN that caused a SACK;
    it is -1 if a clock caused it, or if the packet is not a SACK.
    """

    time_ns: Ints
    ifindex: Ints
    outgoing: NDArray[np.bool_]
    opcode: Ints
    ev: Ints
    qpn: Ints
    psn: Ints
    rtx: NDArray[np.bool_]
    answers: Ints
    lost: int

    def where(self, chosen: NDArray[np.bool_] | Ints) -> Packets:
        """Return some of the packets, or all in another order."""
        return Packets(
            time_ns=self.time_ns[chosen],
            ifindex=self.ifindex[chosen],
            outgoing=self.outgoing[chosen],
            opcode=self.opcode[chosen],
            ev=self.ev[chosen],
            qpn=self.qpn[chosen],
            psn=self.psn[chosen],
            rtx=self.rtx[chosen],
            answers=self.answers[chosen],
            lost=self.lost,
        )


class Capture:
    """A capture on a namespace's interfaces while the block runs; call `packets` afterwards."""

    def __init__(self, namespace: str, megabytes: int = 48) -> None:
        with netns.entered(namespace):  # a socket stays in the namespace where it was made
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self.ifindex = {name: index for index, name in socket.if_nameindex()}
        self._socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
        blocks = megabytes * (1 << 20) // _BLOCK
        frames = blocks * (_BLOCK // _FRAME)
        request = struct.pack("=4I", _BLOCK, blocks, _FRAME, frames)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
        self._ring = mmap.mmap(self._socket.fileno(), frames * _FRAME)
        _only_mrc(self._socket)

    def __enter__(self) -> Self:
        self._ahead_ns = time.time_ns() - time.monotonic_ns()
        _bind_everywhere(self._socket)
        return self

    def __exit__(self, *_: object) -> None:
        raw = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        rows = np.frombuffer(self._ring, dtype=np.uint8).reshape(-1, _FRAME)
        filled = rows[:, _STATUS] != 0  # TP_STATUS_USER
        self._rows = rows[filled].copy()
        del rows
        self._dropped = struct.unpack("=2I", raw)[1]
        self._socket.close()
        self._ring.close()

    def packets(self) -> Packets:
        """Return the packets that passed."""
        rows = _aligned(self._rows)
        stamps = _native(rows, _SEC, np.uint32) * 10**9 + _native(rows, _NSEC, np.uint32)
        found = Packets(
            time_ns=stamps - self._ahead_ns,
            ifindex=_native(rows, _IFINDEX, np.int32),
            outgoing=rows[:, _PKTTYPE] == _OUTGOING,
            opcode=_network(rows, _BTH, 1),
            ev=_network(rows, _UDP, 2) << 16,
            qpn=_network(rows, _BTH + 5, 3),
            psn=_network(rows, _BTH + 9, 3),
            rtx=(rows[:, _BTH + 8] & 0x20) != 0,
            answers=_answers(rows),
            lost=self._dropped,
        )
        order: Ints = np.argsort(found.time_ns, kind="stable").astype(np.int64)
        return found.where(order)


def _answers(rows: NDArray[np.uint8]) -> Ints:
    offset = _network(rows, _SETH + 2, 2)
    offset -= (offset & 0x8000) << 1
    psn = (_network(rows, _SETH + 13, 3) + offset) & 0xFFFFFF
    clock = rows[:, _SETH + 16] & WIRE.MRC_CC_FLAG_DELAYED != 0
    found: Ints = np.where((rows[:, _BTH] == SACK) & ~clock, psn, -1)
    return found


def _bind_everywhere(sock: socket.socket) -> None:
    """Bind to every interface, which Python's own bind() cannot do: it requires a name."""
    # struct sockaddr_ll
    address = struct.pack("=HHiHBB8x", socket.AF_PACKET, socket.htons(_ETH_P_ALL), 0, 0, 0, 0)
    if _libc.bind(sock.fileno(), address, len(address)):
        code = ctypes.get_errno()
        raise OSError(code, f"bind a packet socket: {os.strerror(code)}")


def _aligned(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the frames with their packets moved to _PACKET, wherever the kernel put them.

    The kernel places a packet by the offset of its network header, which BPF programs move.
    """
    starts = _native(rows, _MAC, np.uint16)
    parts = [rows[:0, : _PACKET + _HEAD]]
    for start in np.unique(starts):
        some = rows[starts == start]
        parts.append(np.hstack((some[:, :_PACKET], some[:, start : start + _HEAD])))
    return np.concatenate(parts)


def _native(rows: NDArray[np.uint8], offset: int, kind: Any) -> Ints:
    size = np.dtype(kind).itemsize
    column = np.ascontiguousarray(rows[:, offset : offset + size]).view(kind)[:, 0]
    wide: Ints = column.astype(np.int64)
    return wide


def _network(rows: NDArray[np.uint8], offset: int, size: int) -> Ints:
    value = np.zeros(len(rows), dtype=np.int64)
    for i in range(size):
        value = value << 8 | rows[:, offset + i]
    return value


def _only_mrc(sock: socket.socket) -> None:
    """Attach a classic BPF filter: IPv6 in IPv6, UDP to the port of MRC."""
    load_half, load_byte, equal, ret = 0x28, 0x30, 0x15, 0x06
    tests = ((load_half, 12, 0x86DD), (load_byte, 14 + 6, 41), (load_byte, 54 + 6, 17),
             (load_half, _INNER_UDP + 2, WIRE.MRC_UDP_PORT_DEFAULT))  # fmt: skip
    code = []
    for i, (load, offset, value) in enumerate(tests):
        code.append((load, 0, 0, offset))
        code.append((equal, 0, 2 * (len(tests) - i - 1) + 1, value))
    code += [(ret, 0, 0, 0xFFFF), (ret, 0, 0, 0)]
    program = b"".join(struct.pack("=HBBI", *line) for line in code)
    buffer = np.frombuffer(program, dtype=np.uint8)
    packed = struct.pack("@HP", len(code), buffer.ctypes.data)
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, packed)
