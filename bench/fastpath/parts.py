# SPDX-License-Identifier: GPL-2.0-only
"""Measure where a program's time goes, by comparing it with variants that lack a part.

Each variant is the programs' source with one part removed so that the rest still runs. The time it
saves is the cost of the part, including cache misses. Parts overlap, so savings need not add up.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.fastpath.loaded import Harness, Loaded, Make, Timing, bench, mean_ns, spraying
from bench.fastpath.runs import Arrivals
from bench.instruments.flow import BenchFailed
from bench.instruments.result import Line
from mrcd.datapath import loader

_SLOTS = 2048
"""The number is small because every variant has its own rings."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part to remove from a program: pieces of its source, and their replacements."""

    program: str
    name: str
    swaps: tuple[tuple[str, str], ...]

    def of(self, source: str) -> str:
        """Return the source without the part; BenchFailed if the source has changed."""
        for old, new in self.swaps:
            if source.count(old) != 1:
                raise BenchFailed(f"{self.name}: the source has {source.count(old)} times {old!r}")
            source = source.replace(old, new)
        return source


_SPRAY, _DELIVER = "mrc_spray", "mrc_deliver"
_UNGUARDED = "why = number_packets(f, up, now, packets, len, price, psn, id);"
_LOCKED = f"bpf_spin_lock(&f->tx->lock);\n\t{_UNGUARDED}\n\tbpf_spin_unlock(&f->tx->lock);"
_CLONE = "put_link(skb, h, skb->protocol) || to_mrc0(skb, h, 0)"
PARTS = (
    Part(
        _SPRAY,
        "the copy into the ring",
        (("bpf_skb_load_bytes(skb, MRC_ETH_LEN, c->buf->data, len)", "0"),),
    ),
    Part(
        _SPRAY,
        "a slot off the stack",
        (
            (
                "if (tx_free.pop(&slot))\n\t\treturn MRC_C_DROP_RING;",
                "slot = skb->len & 511;",
            ),
        ),
    ),
    Part(
        _SPRAY,
        "the word over the headers",
        (("check = header_check(data, MRC_WRITE_LEN);", "check = 0;"),),
    ),
    Part(
        _SPRAY,
        "the lock",
        ((_LOCKED, _UNGUARDED),),
    ),
    Part(
        _SPRAY,
        "the choice of a path",
        (("pick_path(tx, up, up, f->b->turns, price)", "up & 0"),),
    ),
    Part(_DELIVER, "the clone that goes to mrc0", ((_CLONE, "put_link(skb, h, skb->protocol)"),)),
    Part(
        _DELIVER,
        "cutting the ICRC word",
        (
            (
                "bpf_skb_change_tail(skb, MRC_ETH_LEN + a->len, 0))\n\t\treturn MRC",
                "0)\n\t\treturn MRC",
            ),
        ),
    ),
)


@contextmanager
def _sourced(part: Part) -> Iterator[None]:
    """Make the loader compile the source without the part."""
    whole = loader.source
    loader.source = lambda: part.of(whole())
    try:
        yield
    finally:
        loader.source = whole


def parts(name: str, mtus: list[int], rounds: int, packets: int) -> Iterator[Line]:
    """Measure the cost of each part and of the whole program, for packets as large as the MTU."""
    for mtu in mtus:
        with bench(name) as (folder, ifindex, harness):
            yield from _parts_at(mtu, folder, ifindex, harness, rounds, packets)


def _parts_at(
    mtu: int,
    folder: Path,
    ifindex: dict[str, int],
    harness: Harness,
    rounds: int,
    packets: int,
) -> Iterator[Line]:
    make = Make(mtu=mtu, slots=_SLOTS, mpr=1024)
    whole = Loaded(make, folder / "whole", ifindex)
    sides = [(None, whole)]
    for number, part in enumerate(PARTS):
        with _sourced(part):
            sides.append((part, Loaded(make, folder / str(number), ifindex)))
    turns = [
        (part, program, _measure(side, harness, program, packets))
        for part, side in sides
        for program in (_SPRAY, _DELIVER)
        if part is None or part.program == program
    ]
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        for part, program, measure in random.sample(turns, len(turns)):
            gc.collect()
            took, floor = measure()
            if number:  # the first was for warming up
                key = (program, part.name if part else "whole")
                found.setdefault(key, []).append(mean_ns(took) - mean_ns(floor))
    where = f"MTU {mtu}"
    for (program, what), values in sorted(found.items(), key=lambda item: item[0][1] != "whole"):
        if what == "whole":
            yield Line("parts", where, program, "ns", tuple(values))
        else:
            saved = zip(found[program, "whole"], values, strict=True)
            less = tuple(whole_ns - without for whole_ns, without in saved)
            yield Line("parts", where, f"{program}: {what}", "ns", less)
    for _part, side in sides:
        side.close()


def _measure(side: Loaded, harness: Harness, program: str, packets: int) -> Timing:
    if program == _SPRAY:
        return spraying(side, harness, packets, side.mtu)
    return Arrivals(side, harness, packets).in_order
