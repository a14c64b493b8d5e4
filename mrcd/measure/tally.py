# SPDX-License-Identifier: GPL-2.0-only
"""Count what arrives of a run, and judge what it says of the link (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SAMPLE_NS: Final = 500_000
"""The least time between two samples of the delay: a run has a few thousand at most."""
LOSSLESS: Final = 0.5
"""A sender that is at work all the time and loses less than this may be what limits the rate."""
AT_WORK: Final = 0.8
"""The share of its time at which a sender is at work and does not wait for the link."""
EASED: Final = 0.8
"""Loss and nothing else is measured at this part of the rate that gets through."""


@dataclass(slots=True)
class Tally:
    """What has arrived of one run. Times are those of two clocks: only differences are used."""

    packets: int = 0
    size: int = 0  # of each packet with its IP header, bytes
    first_ns: int = 0
    last_ns: int = 0
    behind: bool = False  # packets were dropped because they were not read in time
    _first: int = 0  # packets that arrived together with the first one
    _delays: list[int] = field(default_factory=list)
    _sampled_ns: int = 0

    def add(self, packets: int, size: int, sent_ns: int, arrived_ns: int) -> None:
        """Count packets of `size` bytes that arrived together; the first was sent at `sent_ns`."""
        if not self.packets:
            self.first_ns, self._first, self.size = arrived_ns, packets, size
        self.packets += packets
        self.last_ns = arrived_ns
        if not self._delays or arrived_ns - self._sampled_ns >= SAMPLE_NS:
            self._sampled_ns = arrived_ns
            self._delays.append(arrived_ns - sent_ns)

    @property
    def mbps(self) -> float:
        """The rate between the first and the last packet, Mb/s of IP packets; 0 if unknown."""
        took_ns = self.last_ns - self.first_ns
        return (self.packets - self._first) * self.size * 8e3 / took_ns if took_ns > 0 else 0.0

    def waited_us(self, share: float) -> float:
        """Return the time in queues that this share of packets stayed below, microseconds."""
        if not self._delays:
            return 0.0
        delays = sorted(self._delays)
        return (delays[min(int(share * len(delays)), len(delays) - 1)] - delays[0]) / 1e3


def lost(sent: int, arrived: int) -> float:
    """Return the share of packets that did not arrive."""
    return max(0.0, 1 - arrived / sent) if sent else 0.0


def limited_by_host(*, at_work: float, loss: float, behind: bool) -> bool:
    """Return whether a host may be what limits a run at full rate, and not the link.

    `at_work` is the share of time that the sender did not wait; `behind`: the receiver did not read
    all that arrived.
    """
    return behind or (at_work >= AT_WORK and loss < LOSSLESS)
