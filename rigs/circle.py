# SPDX-License-Identifier: GPL-2.0-only
"""A clock in a rig: a packet that circles, with mrc_beat at both ends of its way."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping

from mrcd.linux import bpf, ethtool
from mrcd.linux.interfaces import Bucket, traffic
from mrcd.linux.netlink import Netlink
from mrcd.linux.privileged.requests import SetBucket
from mrcd.wire.abi import ABI
from rigs.rig import Rig

LENGTH = ABI.MRC_BEAT_LEN
DEADLINE_S = 20.0


def bucket_of(period_ns: int) -> Bucket:
    """Return the bucket that lets one beat out each period."""
    return Bucket(LENGTH * 1_000_000_000 // period_ns, LENGTH, 16 * LENGTH)


FAST, SLOW = bucket_of(1_000_000), bucket_of(20_000_000)


def until(what: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.001)


async def _fill(buckets: Mapping[str, Bucket]) -> None:
    async with Netlink() as nl:
        for name, bucket in buckets.items():
            await nl.change(SetBucket.of(name, bucket))


class Circle:
    """The clock of a rig: mrc_beat on both ends of its pair, which have token buckets.

    Programs of packets are not attached.
    """

    def __init__(self, rig: Rig, *, tick_ns: int = 1_000_000) -> None:
        self.rig = rig
        for name in ("beat", "rest"):
            ethtool.set_features(name, tso=False, gso=False, sg=False, tx_checksum=False, gro=True)
        asyncio.run(_fill({"beat": bucket_of(tick_ns), "rest": SLOW}))
        self.links: list[int] = []
        self.attach()

    def attach(self) -> None:
        """Put mrc_beat on both ends."""
        program = self.rig.dp.programs["mrc_beat"]
        self.links = [
            bpf.create_link(program, self.rig.ifindex[name], bpf.ATTACH_TCX_INGRESS)
            for name in ("beat", "rest")
        ]

    def detach(self) -> None:
        """Take mrc_beat off both ends; the beat gets lost."""
        for link in self.links:
            os.close(link)
        self.links = []

    def lose(self) -> None:
        """Have the beat end when it arrives next."""
        clock = self.rig.clock()
        beaten = {**clock, "generation": clock["generation"] + (1 << 32)}
        self.rig.dp.write("clock", 0, ABI.structs["mrc_clock"], **beaten)

    def wake(self) -> None:
        """Make a beat as the daemon does."""
        self.rig.run_marked("mrc_beat", ABI.MRC_WAKE_MARK)

    def stop(self) -> None:
        """End the beat."""
        self.lose()
        self.detach()

    @property
    def beats(self) -> int:
        return self.rig.clock()["beats"]

    def left(self, name: str) -> int:
        """Return how many packets left an interface."""
        return traffic()[name].tx_packets

    def goes_on(self, beats: int = 5) -> bool:
        """Return True when more beats have come."""
        wanted = self.beats + beats
        until(lambda: self.beats >= wanted)
        return True
