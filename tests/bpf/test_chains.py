# SPDX-License-Identifier: GPL-2.0-only
"""Each chain of programs has memory of its own: one for packets, one for the clock.

Linux before 6.8 lets a packet interrupt a test run anywhere, so neither chain may write to the
other's memory.
"""

from __future__ import annotations

import struct

from mrcd.linux import bpf, bpfmap
from rigs.packets import Far, ev_of, ip4
from rigs.rig import Rig

PACKETS, CLOCK = 0, 1  # CHAIN_PACKET and CHAIN_CLOCK of bpf/maps.c
FIRST_TX = 1000
PACKET = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")


def memory(rig: Rig, chain: int) -> bytes:
    """Return the memory of a chain on all CPUs."""
    fd = rig.dp.maps["chains"]
    size = -(-bpfmap.described(fd).value_size // 8) * 8 * bpf.possible_cpus()
    found = bpf.lookup(fd, struct.pack("=I", chain), size)
    assert found is not None
    return found


def test_clock_leaves_the_memory_of_packets_alone(rig: Rig) -> None:
    rig.spray(PACKET)
    rig.withdraw(ev_of(2, 1))
    rig.tune(rto_min_ns=1)
    packets, clock = memory(rig, PACKETS), memory(rig, CLOCK)
    rig.tick(3)  # mrc_tick, mrc_probe and mrc_resend
    counted = rig.counted()
    assert counted["rtx_timeout"] >= 1
    assert counted["probe_tx"] >= 1
    assert memory(rig, PACKETS) == packets
    assert memory(rig, CLOCK) != clock


def test_packets_leave_the_memory_of_the_clock_alone(rig: Rig, far: Far) -> None:
    for _ in range(3):
        rig.spray(PACKET)
    packets, clock = memory(rig, PACKETS), memory(rig, CLOCK)
    rig.arrive(far.sack(FIRST_TX))  # mrc_deliver and mrc_learn
    rig.arrive(far.nack(FIRST_TX + 1))  # mrc_deliver and mrc_resend
    counted = rig.counted()
    assert counted["sack_rx"] == 1
    assert counted["rtx_nack"] == 1
    assert memory(rig, CLOCK) == clock
    assert memory(rig, PACKETS) != packets
