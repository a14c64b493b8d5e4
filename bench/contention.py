# SPDX-License-Identifier: GPL-2.0-only
"""What the programs' shared state costs when CPUs meet there.

The programs cannot be repeated in the kernel without a system call between two packets, which
would keep two CPUs apart. So each kind of sharing they have is in a program of its own that leaves
its packet alone: a spin lock with a few words changed under it (struct mrc_tx, mrc_rx), a stack of
free slots, an atomic addition (a path's counts), a plain word (a peer's counts), a counter of each
CPU. It runs many times in one call, on one CPU or on two at once, which work on the same element or
each on its own.
"""

from __future__ import annotations

import os
import random
import struct
import threading
import warnings
from collections.abc import Iterator

from bench.flow import BenchFailed
from bench.result import Line
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
    """Nanoseconds of each kind: alone, beside another CPU at its own element, at the same one."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise BenchFailed("one CPU: there is nobody to meet")
    from bcc import BPF  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # bcc wants names as bytes
        module = BPF(text=_SHARED)
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
    """Nanoseconds of a run; `beside`: the element at which another CPU runs it, too."""
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
