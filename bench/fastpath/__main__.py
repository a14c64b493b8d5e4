# SPDX-License-Identifier: GPL-2.0-only
"""Measure the cost of a packet in the data path, by program and against the machine's limits.

    python -m bench.fastpath [--quick] [--only programs parts traffic large account]
                             [--mtu 1500 9000]

`programs`: nanoseconds of each program for each kind of packet, by PROG_TEST_RUN. `parts`: the
nanoseconds saved when a part of a fast-path program is removed. `traffic`: nanoseconds of each
program while TCP flows in a lab, as counted by the kernel; packets and goodput of a core, compared
with a copy in memory, a veth pair and the kernel's seg6. `large`: what the programs take of a run,
an skb and a packet while mrc0 carries TCP's large segments, if its framing does. `account`: who
pays for a cell, by variants of mrc0 that lack a part; it needs minutes, and runs only if named.
docs/performance.md explains the figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bench.fastpath import account, large, parts, runs, traffic
from bench.instruments import entry
from bench.instruments.flow import FRAMINGS
from bench.instruments.result import Line

PARTS = ("programs", "parts", "traffic", "large", "account")
USUAL = PARTS[:-1]


def main() -> None:
    """Measure, print and save the figures."""
    parser = entry.parser(__doc__, name="fastpath")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(USUAL), metavar="PART")
    parser.add_argument("--mtu", nargs="+", type=int, default=[1500, 9000])
    parser.add_argument("--rounds", type=int, help="repetitions of everything")
    parser.add_argument("--quick", action="store_true", help="run fewer and shorter rounds")
    parser.add_argument("--framing", choices=FRAMINGS, help="framing of mrcd's data in `large`")
    about = "longest cells in `large`, bytes; 0: single packets"
    parser.add_argument("--cell-max", nargs="+", type=int, metavar="BYTES", help=about)
    args = parser.parse_args()
    entry.begin("fastpath")
    results = _all(
        args.name, args.only, args.mtu, args.rounds, args.quick, args.framing, args.cell_max
    )
    _, failed = entry.gather(results, lambda lines: entry.save(args.json, entry.report(lines)))
    sys.exit(failed)


def _all(
    name: str,
    wanted: list[str],
    mtus: list[int],
    rounds: int | None,
    quick: bool,
    framing: str | None,
    cell_max: list[int] | None,
) -> Iterator[list[Line] | str]:
    if "programs" in wanted:
        print("\n== programs, by PROG_TEST_RUN", flush=True)
        times, packets = (rounds or 3, 64) if quick else (rounds or 9, 256)
        yield entry.take("programs", runs.programs(f"{name}-runs", mtus, times, packets))
    if "parts" in wanted:
        print("\n== parts, by PROG_TEST_RUN", flush=True)
        times, packets = (rounds or 3, 64) if quick else (rounds or 9, 256)
        yield entry.take("parts", parts.parts(f"{name}-parts", mtus, times, packets))
    if "traffic" in wanted:
        for mtu in mtus:
            print(f"\n== traffic, MTU {mtu}", flush=True)
            times, seconds = (rounds or 2, 2.0) if quick else (rounds or 5, 4.0)
            measuring = traffic.traffic(name, mtu, times, seconds)
            yield entry.take(f"traffic, MTU {mtu}", measuring)
    if "account" in wanted:
        for mtu in mtus:
            print(f"\n== account of a cell, MTU {mtu}", flush=True)
            times, seconds = (rounds or 2, 1.0) if quick else (rounds or 5, 2.0)
            yield entry.take(f"account, MTU {mtu}", account.account(name, mtu, times, seconds))
    if "large" in wanted:
        for mtu in mtus:
            print(f"\n== large segments, MTU {mtu}", flush=True)
            times, seconds = (rounds or 2, 2.0) if quick else (rounds or 5, 4.0)
            for most in cell_max or [None]:
                measuring = large.large(name, mtu, times, seconds, framing, most)
                yield entry.take(f"large, MTU {mtu}, cell_max {most}", measuring)


if __name__ == "__main__":
    main()
