# SPDX-License-Identifier: GPL-2.0-only
"""Measure the cost of contention between CPUs for the state that the programs share.

The programs cannot be repeated in the kernel without a system call between two packets, which
would keep two CPUs apart. So there is a small program for each kind of shared state, which leaves
its packet unchanged: a spin lock with a few words changed under it (struct mrc_tx, mrc_rx), a stack
of free slots, an atomic addition (a path's counts), a plain word (a peer's counts), a per-CPU
counter. It runs many times in one call, on one CPU or on two at once, which use the same element
or one each.
"""

from __future__ import annotations

import os
import random
import struct
import threading
import warnings
from collections.abc import Iterator

from bench.instruments.flow import BenchFailed
from bench.instruments.result import Line
from mrcd.linux import bpf

_RUNS = 300_000
_SHARED = r"""
#include <uapi/linux/bpf.h>
#include <uapi/linux/pkt_cls.h>
struct locked {
	struct bpf_spin_lock lock;
	u32 next;
	u32 una;
	u32 pad;
	u64 packets;
	u64 pad2[13];
};
struct plain {
	u64 value;
	u64 pad[15];
};
BPF_ARRAY(locks, struct locked, 2);
BPF_ARRAY(words, struct plain, 2);
BPF_PERCPU_ARRAY(own, u64, 1);
BPF_STACK(one, u32, 4096);
BPF_STACK(other, u32, 4096);

/* Which element: the first byte of the packet says it. */
static inline u32 which(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	return data + 14 <= end ? *(__u8 *)data & 1 : 0;
}

int nothing(struct __sk_buff *skb)
{
	return which(skb);
}

int lock(struct __sk_buff *skb)
{
	u32 at = which(skb);
	struct locked *l = locks.lookup(&at);

	if (!l)
		return 0;
	bpf_spin_lock(&l->lock);
	l->next++;
	l->una = l->next;
	l->packets++;
	bpf_spin_unlock(&l->lock);
	return 0;
}

int stack(struct __sk_buff *skb)
{
	u32 slot;

	if (which(skb)) {
		if (!other.pop(&slot))
			other.push(&slot, 0);
	} else if (!one.pop(&slot)) {
		one.push(&slot, 0);
	}
	return 0;
}

int atomic(struct __sk_buff *skb)
{
	u32 at = which(skb);
	struct plain *w = words.lookup(&at);

	if (w)
		__sync_fetch_and_add(&w->value, 1);
	return 0;
}

int plain(struct __sk_buff *skb)
{
	u32 at = which(skb);
	struct plain *w = words.lookup(&at);

	if (w)
		w->value++;
	return 0;
}

int percpu(struct __sk_buff *skb)
{
	u32 zero = which(skb) & 2;
	u64 *w = own.lookup(&zero);

	if (w)
		*w += 1;
	return 0;
}
"""
KINDS = {
    "lock": "spin lock, four words changed",
    "stack": "stack of free slots, taken and given back",
    "atomic": "atomic addition",
    "plain": "plain addition",
    "percpu": "addition, each CPU its own",
}


def contention(rounds: int) -> Iterator[Line]:
    """Measure the ns of each kind: alone, and with a second CPU at its own or the same element."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise BenchFailed("measuring contention needs at least two CPUs")
    from bcc import BPF  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # bcc prefers names as bytes
        module = BPF(text=_SHARED.encode())
    programs = {
        name: bpf.load_program(
            bpf.PROG_TYPE_SCHED_CLS, bytes(module.dump_func(name.encode())), name=name
        )[0]
        for name in ("nothing", *KINDS)
    }
    for stack in ("one", "other"):
        for slot in range(64):
            bpf.update(int(module[stack].map_fd), None, struct.pack("=I", slot))
    how = {"alone": None, "two CPUs, apart": 1, "two CPUs, at one": 0}
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        cases = [(kind, case) for kind in KINDS for case in how]
        for kind, case in random.sample(cases, len(cases)):
            floor = _ns(programs["nothing"], cpus, None)
            took = _ns(programs[kind], cpus, how[case])
            found.setdefault((kind, case), []).append(took - floor)
    for kind, title in KINDS.items():
        for case in how:
            yield Line("contention", title, case, "ns", tuple(found[kind, case]))
    for fd in programs.values():
        os.close(fd)


def _ns(program: int, cpus: list[int], beside: int | None) -> float:
    """Return the ns of a run; `beside` is the element that a second CPU uses meanwhile."""
    if beside is None:
        return _repeated(program, cpus[0], 0)
    stop, running = threading.Event(), threading.Event()

    def disturb() -> None:
        os.sched_setaffinity(0, {cpus[1]})
        run = bpf.TestRun(program, bytes([beside]) + bytes(63))
        while not stop.is_set():
            running.set()
            run.run(_RUNS)

    thread = threading.Thread(target=disturb)
    thread.start()
    running.wait(10)
    try:
        return _repeated(program, cpus[0], 0)
    finally:
        stop.set()
        thread.join()


def _repeated(program: int, cpu: int, element: int) -> float:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        run = bpf.TestRun(program, bytes([element]) + bytes(63))
        run.run(_RUNS)
        return float(run.duration_ns)
    finally:
        os.sched_setaffinity(0, before)
