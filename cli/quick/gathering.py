# SPDX-License-Identifier: GPL-2.0-only
"""Seal and open what the hosts of `mrcctl watch` say to all others (pure).

Each run of a host has a key of its own, made of the secret that all have and a random number, and
numbers what it says. So nobody without the secret can read or make anything, and what was said
once counts once.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from mrcd.handshake.noise import Cipher, NoiseError, hash_of

MAGIC: Final = b"MRCg"
_HEAD = struct.Struct("!4sQQ")  # magic, run, counter
_CONTEXT: Final = b"mrcctl watch"
RUNS_MAX: Final = 1024


class NotOurs(Exception):
    """A datagram is from no host that has our secret; the message says why."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a host has said by its NIC of a plane; nothing means that it leaves."""

    run: int
    plane: int
    datagram: bytes


class Gathering:
    """What this host says under its `run`, and what others were heard to say."""

    def __init__(self, secret: bytes, run: int) -> None:
        self._secret = secret
        self._run = run
        self._counter = 0
        self._own = self._cipher(run)
        self._others: dict[int, Cipher] = {}
        self._heard: dict[int, dict[int, int]] = {}  # by run and plane: networks differ in speed

    def _cipher(self, run: int) -> Cipher:
        return Cipher(hash_of(_CONTEXT, self._secret, run.to_bytes(8, "big")))

    def seal(self, plane: int, datagram: bytes) -> bytes:
        """Return what to send by the NIC of a plane; an empty datagram says that we leave."""
        self._counter += 1
        head = _HEAD.pack(MAGIC, self._run, self._counter)
        return head + self._own.seal(self._counter, bytes([plane]) + datagram, head)

    def open(self, sealed: bytes) -> Said | None:
        """Return what another host has said; None for our own, and for copies. Raises NotOurs."""
        if len(sealed) < _HEAD.size or not sealed.startswith(MAGIC):
            raise NotOurs("is not of `mrcctl watch`")
        _magic, run, counter = _HEAD.unpack_from(sealed)
        if run == self._run:
            return None
        cipher = self._others.get(run) or self._cipher(run)
        try:
            plain = cipher.open(counter, sealed[_HEAD.size :], sealed[: _HEAD.size])
        except NoiseError:
            raise NotOurs("has another secret, or none") from None
        if run not in self._others and len(self._others) >= RUNS_MAX:
            self._forget()
        self._others[run] = cipher
        latest = self._heard.setdefault(run, {})
        if counter <= latest.get(plain[0], 0):
            return None
        latest[plain[0]] = counter
        return Said(run, plain[0], plain[1:])

    def _forget(self) -> None:
        """Make room for a run; what the oldest one has said may be said again."""
        oldest = next(iter(self._others))
        del self._others[oldest], self._heard[oldest]
