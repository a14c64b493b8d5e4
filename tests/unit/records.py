# SPDX-License-Identifier: GPL-2.0-only
"""Make records of a capture, as the programs write them, from packets of the golden vectors."""

from __future__ import annotations

import itertools
import time

from mrcd.wire.abi import ABI, CAPTURE
from rigs.oracle import CELL_PORT, vector

RECORD = CAPTURE.structs["mrc_capture"]
NONE = CAPTURE.MRC_CAPTURE_NONE
PASSED = CAPTURE.MRC_CAPTURE_PASSED
DATA = vector("data-v4")
AGAIN = vector("data-rtx-ackreq")
_times = itertools.count(time.monotonic_ns() // 2, 1000)


def record(kind: int, why: int, data: bytes = b"", **members: int) -> bytes:
    """Return a record; each is later than the one before."""
    given = {"time_ns": next(_times), "length": len(data), "peer": 0, "qp": NONE, "plane": 1}
    return RECORD.pack(kind=kind, why=why, **{**given, **members}) + data


def key_of(data: bytes) -> int:
    """Return the tag of a cell, the ICRC word of any other packet."""
    at = len(data) - 4
    if len(data) > 54 and data[20] in (4, 41) and data[26] >= 0xC0:
        at = 34
    for udp in (34, 54):
        if data[udp + 2 : udp + 4] == CELL_PORT.to_bytes(2, "big"):
            at = udp + 24
    return int.from_bytes(data[at : at + 4], "little")


def sent(data: bytes = DATA, why: int = ABI.MRC_C_TX_PACKETS, **members: int) -> bytes:
    """Return the record of a packet sent on QP 1 of h2."""
    return record(CAPTURE.MRC_CAPTURE_TX, why, data, **{"qp": 1, **members})


def arrived(data: bytes = DATA, why: int = PASSED, **members: int) -> bytes:
    """Return the record of a packet that arrived."""
    return record(CAPTURE.MRC_CAPTURE_RX, why, data, **{"key": key_of(data), **members})


def verdict(data: bytes, why: int, **members: int) -> bytes:
    """Return the record of the verdict on a packet."""
    return record(CAPTURE.MRC_CAPTURE_OUTCOME, why, length=0, key=key_of(data), **members)
