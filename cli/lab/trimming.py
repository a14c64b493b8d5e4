# SPDX-License-Identifier: GPL-2.0-only
"""Trim packets at switch ports that have a rate, instead of dropping them.

The program at the egress of a port (lab_trim in bpf/lab_port.c) simulates the queue behind it, and
decides what becomes of each packet. A packet for which there is no room is dropped, unless its DSCP
says that it may be trimmed. Then it is cut to TRIM_BYTES, gets the DSCP of trimmed packets, and
leaves anew by the same port. Trimmed and control packets take the first of two queues, which is
served first (htb, by skb->priority). The qdisc itself is longer than the simulated queue and should
never drop anything.

Outer lengths are corrected, because the next switch is a Linux host, too, and drops packets that
are shorter than they say. A large packet that the kernel has still to cut cannot be trimmed.
"""

from __future__ import annotations

from dataclasses import dataclass

from cli.lab import portprograms
from cli.lab.queues import CONTROL_PART, TRIM_BYTES, Queue, Thresholds, TrimQueue
from mrcd.fabric.classes import Classes
from mrcd.linux.netlink.queues import FIRST_QUEUE

_NEVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Counts:
    """What a port has done since its rate was set, in packets."""

    marked: int
    trimmed: int
    dropped: int


def load(ports: int, classes: Classes, *, ipv4: bool = False) -> int:
    """Load the program for this map of ports and return its file descriptor.

    `ipv4` is whether the planes speak it.
    """
    return portprograms.load(
        "lab_trim",
        ports,
        ipv4=int(ipv4),
        control=classes.control,
        trimmed=classes.trimmed,
        lasthop=classes.trimmed_lasthop,
        trimmable=classes.trimmable,
        again=classes.retransmit,
        trim_bytes=TRIM_BYTES,
        control_part=CONTROL_PART,
        first_queue=FIRST_QUEUE,
    )


def value(queue: Queue | None, cut_as: int, *, marks: bool) -> bytes:
    """Return the map value of a port; `cut_as` is the DSCP of what it trims.

    marks: whether it marks packets. None is a port without a rate.
    """
    if queue is None:
        return portprograms.entry()
    thresholds, both = Thresholds.of(queue), TrimQueue.of(queue)
    return portprograms.entry(
        ps_per_byte=thresholds.ps_per_byte,
        some=thresholds.some_ns if marks else _NEVER,
        all=thresholds.all_ns if marks else _NEVER,
        full=both.full_ns,
        first_full=both.first_ns,
        cut_as=cut_as,
    )


def counts(held: bytes) -> Counts:
    """Read the counters of a port's map value."""
    numbers = portprograms.read(held)
    return Counts(numbers["marked"], numbers["trimmed"], numbers["dropped"])
