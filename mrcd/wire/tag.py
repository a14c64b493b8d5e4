# SPDX-License-Identifier: GPL-2.0-only
"""Tags: SipHash-2-4 over what the transport acts on (bpf/mrc_wire.h, bpf/tag.h)."""

from __future__ import annotations

import struct

from mrcd.wire.layout import WIRE

KEY_BYTES = 16
NO_KEY = bytes(KEY_BYTES)
"""The key of everything where the configuration says `insecure = true`."""
_KEY = struct.Struct("<QQ")
_MASK = (1 << 64) - 1
_COUNTED_SEVEN = 56


def siphash(key: bytes, data: bytes) -> int:
    """Return SipHash-2-4 of `data` under a key of 16 bytes, as a number of 64 bits.

    Source: J.-P. Aumasson and D. J. Bernstein, SipHash: a fast short-input PRF, 2012.
    """
    k0, k1 = _KEY.unpack(key)
    v0, v1 = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    v2, v3 = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    whole = len(data) & ~7
    last = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << _COUNTED_SEVEN
    for word in (*struct.unpack_from(f"<{whole // 8}Q", data), last):
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3 ^ word, 2)
        v0 ^= word
    v0, v1, v2, v3 = _rounds(v0, v1, v2 ^ 0xFF, v3, 4)
    return v0 ^ v1 ^ v2 ^ v3


def _rounds(v0: int, v1: int, v2: int, v3: int, count: int) -> tuple[int, int, int, int]:
    for _ in range(count):
        v0, v2 = v0 + v1 & _MASK, v2 + v3 & _MASK
        v1, v3 = _left(v1, 13) ^ v0, _left(v3, 16) ^ v2
        v2, v0 = v2 + v1 & _MASK, _left(v0, 32) + v3 & _MASK
        v1, v3 = _left(v1, 17) ^ v2, _left(v3, 21) ^ v0
        v2 = _left(v2, 32)
    return v0, v1, v2, v3


def _left(word: int, by: int) -> int:
    return (word << by | word >> 64 - by) & _MASK


def padded(covered: bytes) -> bytes:
    """Return the bytes with zeroes behind them, up to a multiple of eight."""
    return covered + bytes(-len(covered) % 8)


def as_written(tag: int) -> int:
    """Return a tag as the number that its bytes are in network order."""
    return int.from_bytes(tag.to_bytes(8, "little"), "big")


def data_tag(key: bytes, udp: bytes, headers: bytes, psn: int) -> int:
    """Return the tag of data as RETH's address.

    `udp` is the UDP header, `headers` is everything from the BTH to the payload. `psn` counts in 32
    bits.
    """
    reth = len(headers) - WIRE.MRC_RETH_LEN
    covered = udp + headers[:reth] + psn.to_bytes(4, "big") + headers[reth + 8 :]
    return as_written(siphash(key, padded(covered)))


def control_tag(key: bytes, udp: bytes, headers: bytes) -> int:
    """Return the tag of a packet that ends with its headers.

    `headers` is everything from the BTH up to the count of struct mrc_auth, which it includes.
    """
    return as_written(siphash(key, padded(udp + headers)))


def cell_tag(key: bytes, covered: bytes, label: int, psn: int, qpn: int) -> int:
    """Return the tag of a cell, 32 bits.

    `covered` are the eight bytes of struct mrc_cell from .mss on; `psn` counts in 32 bits, `qpn` is
    the receiver's.
    """
    last = psn & 0xFF000000 | qpn & WIRE.MRC_QPN_MASK
    data = covered + label.to_bytes(4, "big") + last.to_bytes(4, "big")
    return as_written(siphash(key, data)) >> 32
