# SPDX-License-Identifier: GPL-2.0-only
"""Interrupt the clock's program with packets on its own CPU, and count what it did wrong.

Run as root: `python -m tests.bpf.interrupted [--seconds 5]`. It needs two CPUs, prints its figures
as JSON and returns 1 if an invariant was broken.

One CPU runs mrc_tick in long test runs. QP A has lost all its packets, and each tick sends a fixed
number of them again. At the same time another CPU sends SACKs and NACKs for QP B, and receive
packet steering hands them to the CPU of the ticks, where mrc_receive, mrc_deliver, mrc_learn and
mrc_resend process them in softirq. The clock never visits B, so B sends exactly one packet again
for each NACK. Two invariants follow, and only programs that overwrite each other's memory break
them:

  A  retransmits as many packets as its ticks should have sent again;
  B  retransmits as many packets as it has received NACKs.

From Linux 6.8 on, bpf_test_run() disables softirqs and no packet can interrupt a tick: both
invariants hold on such a kernel even if the programs share memory. Linux 6.1 (Debian 12) leaves
softirqs enabled. The virtual machines' check runs this file with the package's Python, so nothing
but the standard library and mrcd may be imported at the top of it or of what it imports.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mrcd.linux import bpf, bpfbatch, netns
from mrcd.linux.netlink import Netlink
from mrcd.wire.abi import ABI, COUNTERS
from mrcd.wire.layout import WIRE
from rigs.packets import QPN, Far, ip4
from rigs.rig import Rig

QP_A, QP_B = 0, 1
FIRST_PSN = 1000  # of both QPs, so that B's window would also find a PSN of A
OUTSTANDING = 64
PER_TICK = 16  # RESEND_MAX in the programs; OUTSTANDING is a multiple of it
TICKS = 100  # in one system call
SECONDS = 5.0
PLANE = 1  # the answers for B arrive by it
SENDER_PAUSE_S = 0.0002  # leaves the ticks a part of their CPU
PACKET = ip4(b"lost", src="10.99.0.1", dst="10.99.0.2")


def prepare(rig: Rig) -> None:
    """Give both QPs packets that never arrive, and the clock only A to look after."""
    rig.reset()
    for qp in (QP_A, QP_B):
        rig.connect(index=qp, tx_psn=FIRST_PSN)
        rig.spread("h2", qp, 1)
        for _ in range(OUTSTANDING):
            rig.spray(PACKET)
    bpf.update(rig.dp.maps["active"], struct.pack("=I", 0), struct.pack("=Q", 1 << QP_A))
    for tap in rig.wires:
        tap.close()  # retransmissions are not read
    rig.tune(rto_min_ns=1)  # every packet is overdue in every tick


def attach(rig: Rig, cpu: int) -> None:
    """Attach the packet programs to the plane, and steer its packets to a CPU."""
    name = f"plane{PLANE}"
    rig.point_tails(stubs=False)

    async def receive() -> None:
        async with Netlink(rig.namespace) as nl:
            await nl.replace_qdisc_clsact(name)
            program = rig.dp.programs["mrc_receive"]
            await nl.attach_clsact(name, program, prog_name="mrc_receive", prio=1)

    asyncio.run(receive())
    # `ip netns exec` mounts the namespace's own /sys.
    steering = f"/sys/class/net/{name}/queues/rx-0/rps_cpus"
    subprocess.run(
        ["ip", "netns", "exec", rig.namespace, "sh", "-c", f"echo {1 << cpu:x} >{steering}"],
        check=True,
    )


@contextlib.contextmanager
def answers(rig: Rig, cpu: int) -> Iterator[None]:
    """Have a process on `cpu` send B SACKs that report nothing new and NACKs, in turn."""
    far = Far(rig.fabric, rig.fabric.host("h1"), rig.fabric.host("h2"))
    qpn = QPN | QP_B
    # "Trimmed at the last hop" causes a retransmission and does not blame the path, if it names the
    # path of the latest sending: so there is one NACK for each path.
    frames = [
        far.sack(FIRST_PSN - 1, qpn=qpn),
        *(
            far.nack(FIRST_PSN, about=path.ev, qpn=qpn, reason=WIRE.MRC_NACK_TRIMMED_LASTHOP)
            for path in rig.paths(QP_B)
        ),
    ]
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            os.sched_setaffinity(0, {cpu})
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as wire:
                wire.bind((f"wire{PLANE}", 0))
                while os.getppid() == parent:
                    for frame in frames:
                        with contextlib.suppress(OSError):  # the socket's buffer is full
                            wire.send(frame)
                    time.sleep(SENDER_PAUSE_S)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def counted_on(rig: Rig, cpu: int) -> dict[str, int]:
    """Return the counters of one CPU."""
    cpus = bpf.possible_cpus()
    rows = bpfbatch.lookup(rig.dp.maps["counters"], 0, ABI.MRC_C_COUNT, 8 * cpus)
    return {name: struct.unpack_from("=Q", rows[i], 8 * cpu)[0] for i, name, _help in COUNTERS}


def two_cpus() -> tuple[int, int]:
    """Return the CPUs of the sender and of the ticks; RuntimeError if there is only one."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the kernel drops forbidden ones
        cpus = sorted(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, before)
    if len(cpus) < 2:
        raise RuntimeError("two CPUs are needed: one ticks while the other sends")
    return cpus[0], cpus[1]


def measure(rig: Rig, seconds: float) -> dict[str, float]:
    """Tick for some seconds while answers arrive; return how far each QP broke its invariant."""
    sender, ticker = two_cpus()
    allowed = os.sched_getaffinity(0)
    with netns.entered(rig.namespace):
        prepare(rig)
        attach(rig, ticker)
        os.sched_setaffinity(0, {ticker})
        before, ticks = rig.dp.counters(), 0
        here = counted_on(rig, ticker)
        began = time.monotonic()
        try:
            with answers(rig, sender):
                while time.monotonic() - began < seconds:
                    rig.tick_of(QP_A, TICKS)
                    ticks += TICKS
            took = time.monotonic() - began
            time.sleep(0.2)  # a backlog may still hold some answers
            after = rig.dp.counters()
        finally:
            os.sched_setaffinity(0, allowed)
        on_cpu = counted_on(rig, ticker)
        grown = {name: after[name] - before[name] for name in ("nack_rx", "nack_stale")}
        nacks = grown["nack_rx"] - grown["nack_stale"]
        due = PER_TICK * ticks
        sent_a, sent_b = (rig.tx(qp)["retransmits"] for qp in (QP_A, QP_B))
    return {
        "seconds": round(took, 1),
        "ticks": ticks,
        "sacks": on_cpu["sack_rx"] - here["sack_rx"],
        "nacks": nacks,
        "a_due": due,
        "a_missing": due - sent_a,
        "b_foreign": sent_b - nacks,
    }


def violations(found: dict[str, float]) -> list[str]:
    """Describe the invariants that figures of `measure` break."""
    wrong = []
    if not found["sacks"] or not found["nacks"] or not found["ticks"]:
        wrong.append("nothing was measured: no tick ran, or no answer arrived on its CPU")
    if found["a_missing"]:
        wrong.append(f"ticks did not resend {found['a_missing']} of {found['a_due']} due packets")
    if found["b_foreign"]:
        wrong.append(f"QP B retransmitted {found['b_foreign']} packets more than NACKs asked for")
    return wrong


@contextlib.contextmanager
def made_rig(folder: Path) -> Iterator[Rig]:
    """Make a rig and delete it at the end."""
    namespace = f"interrupted{os.getpid()}"
    try:
        rig = Rig(namespace, folder)
    except BaseException:
        netns.delete(namespace)
        raise
    with contextlib.closing(rig):
        yield rig


def main() -> int:
    """Measure once; return 1 if an invariant was broken."""
    parser = argparse.ArgumentParser(description="Interrupt the clock's program with packets.")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, made_rig(Path(folder)) as rig:
        found = measure(rig, options.seconds)
    wrong = violations(found)
    print(json.dumps({**found, "wrong": wrong}))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
