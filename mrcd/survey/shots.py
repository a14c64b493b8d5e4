# SPDX-License-Identifier: GPL-2.0-only
"""Choose where the next probes go, and write and read probes (pure).

A shot is two probes, a short and a long one, that leave one after the other (see
mrcd/survey/arrivals.py). All ways take turns; while a fault is uncertain, every other shot goes by
the ways that tell most about it.

A probe proves that its sender was told the receiver's token, which travels sealed. It need not
prove more: what could forge one could lose one as well.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"MRCp"
_HEAD = struct.Struct("!4sIQQBxxxIq")  # magic, sum, token, run, plane, number, time
SHORT: Final = 64
"""Bytes of a short probe's payload."""
_WHOLE: Final = 8  # of the magic and the sum, which the sum does not cover

Target = tuple[str, int]
"""A peer and a plane."""


class NoProbe(Exception):
    """A datagram is no probe."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe says: whose it is (`run`), to whom (`token`), its plane, number and time."""

    token: int
    run: int
    plane: int
    number: int
    sent_ns: int


def encode(probe: Probe, length: int) -> bytes:
    """Return a probe with a payload of this length, of at least SHORT bytes."""
    head = _HEAD.pack(
        MAGIC, 0, probe.token, probe.run, probe.plane, probe.number & 0xFFFFFFFF, probe.sent_ns
    )
    whole = head + bytes(max(SHORT, length) - len(head))
    return MAGIC + struct.pack("!I", zlib.crc32(whole[_WHOLE:])) + whole[_WHOLE:]


def decode(datagram: bytes) -> Probe | None:
    """Return the probe of a datagram; None for one that was damaged. Raises NoProbe."""
    if len(datagram) < SHORT:
        raise NoProbe
    _magic, checksum, token, run, plane, number, sent_ns = _HEAD.unpack_from(datagram)
    if zlib.crc32(datagram[_WHOLE:]) != checksum:
        return None
    return Probe(token, run, plane, number, sent_ns)


class Shots:
    """The turns of the ways from this host, and the number of the next probe of each."""

    def __init__(self) -> None:
        self._numbers: dict[Target, int] = {}
        self._targets: Sequence[Target] = ()
        self._telling: Sequence[Target] = ()
        self._turn = self._next = 0

    def aim(self, targets: Sequence[Target], telling: Sequence[Target] = ()) -> None:
        """Probe these ways from now on, and every other time the telling ones among them."""
        self._targets = targets
        allowed = set(targets)
        self._telling = [each for each in telling if each in allowed]

    def next(self) -> Target | None:
        """Return where the next shot goes; None if there is nobody."""
        if not self._targets:
            return None
        self._turn += 1
        if self._telling and self._turn & 1:
            return self._telling[(self._turn >> 1) % len(self._telling)]
        self._next += 1
        return self._targets[self._next % len(self._targets)]

    def number(self, target: Target) -> int:
        """Return the number of the next probe of a way, which is that of all before it."""
        return self._numbers.get(target, 0)

    def sent(self, target: Target) -> None:
        """Count a shot that left."""
        self._numbers[target] = self.number(target) + 2
