# SPDX-License-Identifier: GPL-2.0-only
"""Test that a driver's answers on receive queues, hash and rules are read from their places."""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import Any

import pytest

from mrcd.linux import rss

RXFH, COUNT, RULE, ALL, CHANNELS = 0x29, 0x2E, 0x2F, 0x30, 0x3C
IP6_USER, TCP6 = 0x0E, 0x05
IP_SRC, IP_DST = 0x10, 0x20


class Driver:
    """A driver that answers the kernel's ioctl; the offsets are those of linux/ethtool.h."""

    def __init__(
        self, hashed: int | None = None, rules: dict[int, tuple[int, int, int]] | None = None
    ) -> None:
        """Begin with a hash, and rules by location: flow type, next header and its mask."""
        self.hashed, self.rules = hashed, rules or {}

    def ioctl(self, _sock: object, number: int, call: Any) -> int:
        """Answer a request in its place, as the kernel does."""
        assert number == 0x8946
        if not isinstance(call, bytes):
            call = bytes(call)
        name, at = struct.unpack_from("16sQ", call)
        assert name.rstrip(b"\0") == b"eth2"
        command, flow_type = struct.unpack("=II", ctypes.string_at(at, 8))
        if command == CHANNELS:  # struct ethtool_channels
            ctypes.memmove(at + 20, struct.pack("=IIII", 1, 0, 0, 3), 16)
        elif command == RXFH and flow_type == 0x11 and self.hashed is not None:
            ctypes.memmove(at + 8, struct.pack("=Q", self.hashed), 8)
        elif command == COUNT and self.rules:
            ctypes.memmove(at + 184, struct.pack("=I", len(self.rules)), 4)
        elif command == ALL:
            assert ctypes.string_at(at + 184, 4) == struct.pack("=I", len(self.rules))
            ctypes.memmove(at + 188, struct.pack(f"={len(self.rules)}I", *self.rules),
                           4 * len(self.rules))  # fmt: skip
        elif command == RULE:
            (location,) = struct.unpack("=I", ctypes.string_at(at + 176, 4))
            kind, header, mask = self.rules[location]
            ctypes.memmove(at + 16, struct.pack("=I", kind), 4)
            ctypes.memset(at + 57, header, 1)
            ctypes.memset(at + 129, mask, 1)
        else:
            raise OSError(errno.EOPNOTSUPP, "")
        return 0


def spreading(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> rss.Spreading:
    monkeypatch.setattr("fcntl.ioctl", driver.ioctl)
    return rss.of("eth2")


@pytest.mark.parametrize(
    ("hashed", "by_source"), [(IP_SRC | IP_DST, True), (IP_DST, False), (0, False), (None, None)]
)
def test_the_hash_is_read(
    monkeypatch: pytest.MonkeyPatch, hashed: int | None, by_source: bool | None
) -> None:
    assert spreading(monkeypatch, Driver(hashed)) == rss.Spreading(4, by_source)


def test_rules_for_a_next_header_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {
        3: (IP6_USER, 41, 0xFF),
        900: (IP6_USER, 4, 0xFF),
        901: (IP6_USER, 17, 0),  # any next header: a rule for an address
        902: (TCP6, 6, 0xFF),
    }
    found = spreading(monkeypatch, Driver(IP_SRC, rules))
    assert found == rss.Spreading(4, True, frozenset({4, 41}))


def test_without_an_interface_there_is_one_queue() -> None:
    assert rss.of("nosuch0") == rss.Spreading(1)
