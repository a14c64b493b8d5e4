# SPDX-License-Identifier: GPL-2.0-only
"""Measure how packet cost and memory grow with planes, EVs, QPs, packets and their size.

    python -m bench.fastpath.growth [--quick] [--only cost memory contention] [--rounds N]

`cost`: nanoseconds of mrc_spray and mrc_deliver in data paths of other shapes, as ratios to one of
4 planes, 128 EVs and 4 QPs; all take turns in one process. `memory`: the size of the maps for a
peer, for a QP, and for the windows that a rate needs, from the kernel's own figures. `contention`:
state shared by CPUs, used by one and by two of them. `bench.scale` measures the growth with peers.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench.fastpath import contention
from bench.fastpath.loaded import Harness, Loaded, Make, bench, mean_ns, spraying
from bench.fastpath.runs import Arrivals, Sacks
from bench.instruments import entry
from bench.instruments.result import Line
from mrcd.linux import bpfmap

PARTS = ("cost", "memory", "contention")
USUAL = Make(mtu=9000)
_SIZE = 1000
"""The size of a packet in bytes; copying a larger one would hide the other costs."""
SHAPES: dict[str, Sequence[Make]] = {
    "planes": [replace(USUAL, planes=n) for n in (1, 2, 8)],
    "EVs": [replace(USUAL, evs=n) for n in (16, 64, 256)],
    "QPs": [replace(USUAL, qps=n) for n in (1, 16)],
    "congestion control": [replace(USUAL, control=False)],
}
SIZES = (100, 500, 2000, 4000, 8800)


def main() -> None:
    """Measure, print and save the figures."""
    parser = entry.parser(__doc__, name="growth")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--rounds", type=int, help="repetitions of everything")
    parser.add_argument("--quick", action="store_true", help="run fewer and shorter rounds")
    args = parser.parse_args()
    entry.begin("growth")
    rounds, packets = args.rounds or (3 if args.quick else 9), 128 if args.quick else 256
    parts: dict[str, Callable[[], Iterator[Line]]] = {
        "cost": lambda: cost(args.name, rounds, packets),
        "memory": lambda: memory(args.name),
        "contention": lambda: contention.contention(rounds),
    }
    results = (entry.take(part, parts[part]()) for part in args.only)
    _, failed = entry.gather(results, lambda lines: entry.save(args.json, entry.report(lines)))
    sys.exit(failed)


# ---- nanoseconds


def cost(name: str, rounds: int, packets: int) -> Iterator[Line]:
    """Measure the ratio of each shape to the usual one, which is measured alongside each time."""
    with bench(name) as (folder, ifindex, harness):
        usual = Loaded(USUAL, folder / "usual", ifindex)
        for what, makes in SHAPES.items():
            for number, make in enumerate(makes):
                side = Loaded(make, folder / f"{what}{number}", ifindex)
                where = f"{what} {_number_of(what, make)}"
                yield from _compared(usual, side, where, harness, rounds, packets)
                side.close()
        yield from _sizes(usual, harness, rounds, packets)
        usual.close()


def _number_of(what: str, make: Make) -> int:
    return {
        "planes": make.planes, "EVs": make.evs, "QPs": make.qps,
        "congestion control": int(make.control),
    }[what]  # fmt: skip


def _measures(
    side: Loaded, harness: Harness, packets: int
) -> dict[str, Callable[[], tuple[list[int], list[int]]]]:
    return {
        "mrc_spray": spraying(side, harness, packets, _SIZE, qps=side.make.qps),
        "mrc_deliver, in order": Arrivals(side, harness, packets, _SIZE).in_order,
        "mrc_deliver, SACK of 8": Sacks(side, harness, packets, 8, _SIZE).deliver,
    }


def _compared(
    usual: Loaded, side: Loaded, where: str, harness: Harness, rounds: int, packets: int
) -> Iterator[Line]:
    ours, theirs = (_measures(one, harness, packets) for one in (side, usual))
    for program in ours:
        values: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds + 1):
            turns = [(0, ours[program]), (1, theirs[program])]
            random.shuffle(turns)
            for place, measure in turns:
                gc.collect()
                took, floor = measure()
                if number:  # the first was for warming up
                    values[place].append(mean_ns(took) - mean_ns(floor))
        ratios = tuple(a / b for a, b in zip(*values, strict=True))
        yield Line("growth", where, f"{program}, to {USUAL.planes} planes, 128 EVs, 4 QPs", "",
                   ratios)  # fmt: skip
        yield Line("growth", where, program, "ns", tuple(values[0]))


def _sizes(side: Loaded, harness: Harness, rounds: int, packets: int) -> Iterator[Line]:
    values: dict[tuple[int, str], list[float]] = {}
    for number in range(rounds + 1):
        for size in random.sample(SIZES, len(SIZES)):
            for program, measure in (
                ("mrc_spray", spraying(side, harness, packets, size)),
                ("mrc_deliver, in order", Arrivals(side, harness, packets, size).in_order),
            ):
                gc.collect()
                took, floor = measure()
                if number:
                    values.setdefault((size, program), []).append(mean_ns(took) - mean_ns(floor))
    for (size, program), some in sorted(values.items()):
        yield Line("growth", f"{size} bytes", program, "ns", tuple(some))


# ---- memory


def memory(name: str) -> Iterator[Line]:
    """Measure the size of the maps in three data paths, which differ in one number each."""
    with bench(name) as (folder, ifindex, _harness):
        base = _bytes_of(Make(qps=1), folder / "base", ifindex)
        more = _bytes_of(Make(qps=16), folder / "qps", ifindex)
        longer = _bytes_of(Make(qps=1, mpr=4096), folder / "mpr", ifindex)
        small = _bytes_of(Make(qps=1, evs=16), folder / "evs", ifindex)
    per_qp = {key: (more[key] - base[key]) / 15 for key in base}
    yield Line("memory", "a QP, 128 EVs, MPR 2048", "all maps", "KB", (sum(per_qp.values()) / 1e3,))
    for key, value in sorted(per_qp.items(), key=lambda pair: -pair[1]):
        if value > 1000:
            yield Line("memory", "a QP, 128 EVs, MPR 2048", f"map {key}", "KB", (value / 1e3,))
    entries = sum(longer.values()) - sum(base.values())
    yield Line("memory", "a QP", "each PSN of its window", "bytes", (entries / (2 * 2048),))
    fewer = sum(base.values()) - sum(small.values())
    yield Line("memory", "a QP", "each EV in use and its backup", "bytes", (fewer / (128 - 16),))
    own = sum(base.values()) - sum(per_qp.values()) - base["tx_ring"] - base["rx_ring"]
    yield Line("memory", "the host", "all maps but the rings, one peer, no QP", "KB", (own / 1e3,))
    slots = sum(base[name] for name in ("tx_ring", "rx_ring", "tx_free", "rx_free"))
    yield Line("memory", "the host", "both rings, 8192 slots each, MTU 9000", "MB", (slots / 1e6,))
    for rtt_us in (20, 100, 1000):
        bytes_out = 1e9 / 8 * rtt_us / 1e6
        packets = bytes_out / (9000 - 128)
        needed = packets * 2 * slots / (2 * 8192) / 1e3  # a copy here, a held packet there
        yield Line("memory", f"a Gb/s, round trip {rtt_us} us, MTU 9000",
                   "slots of both rings for what is under way", "KB", (needed,))  # fmt: skip


def _bytes_of(make: Make, folder: Path, ifindex: dict[str, int]) -> dict[str, int]:
    side = Loaded(make, folder, ifindex)
    found = {name: bpfmap.memory(fd) for name, fd in side.dp.maps.items()}
    side.close()
    return found


if __name__ == "__main__":
    main()
