# SPDX-License-Identifier: GPL-2.0-only
"""Measure how a host's costs grow with its peers: start, changes, memory, idling, each packet.

    python -m bench.scale [--peers 2 100 1000 10000] [--only nobody crowd cost load]

`nobody`: a real mrcd with many configured peers, all absent, which is hardest for the hand-shake.
`crowd`: the same with all of them established, simulated by one process (rigs.crowd).
`cost`: the programs with many peers compared with two (`--few`), in turn.
`load`: the daemons of eight hosts, idle and while every host sends to every other.
Times and CPU depend on how busy this machine is; ratios, counts and memory do not.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.instruments import entry
from bench.instruments.result import Line
from bench.scale import cost, host, load

PARTS = ("nobody", "crowd", "cost", "load")
CROWD_MAX = 2000
"""The largest crowd: it is behind one T0, which has room for no more."""
SETTINGS = "[transport]\nmpr = {mpr}\n"


def main() -> None:
    """Measure, print and save the figures."""
    parser = entry.parser(__doc__, name="scale", rounds=30, seconds=30, seed=1, figures=False)
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 100, 1000, 10000])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--mpr", type=int, default=2048, help="up to 1,000 peers; 128 beyond")
    parser.add_argument("--few", type=int, default=2, help="number of peers to compare with")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", default=Path("build/results/scale.json")
    )
    args = parser.parse_args()
    entry.begin("bench")
    args.json.parent.mkdir(parents=True, exist_ok=True)
    _, failed = entry.gather(
        _all(args),
        lambda lines: entry.save(args.json, entry.report(lines, seed=args.seed)),
    )
    raise SystemExit(failed)


def _all(args: argparse.Namespace) -> Iterator[list[Line] | str]:
    for peers in args.peers:
        settings = SETTINGS.format(mpr=args.mpr if peers <= 1000 else 128)
        for part, crowd in (("nobody", False), ("crowd", True)):
            if part not in args.only or (crowd and peers > CROWD_MAX):
                continue
            print(f"\n== {part}, {peers} peers", flush=True)
            figures = host.measured(args.name, peers, args.seconds, settings, crowd=crowd)
            yield entry.take(f"{part}, {peers} peers", figures)
    many = [peers for peers in args.peers if peers > args.few]
    if "cost" in args.only and many:
        print("\n== cost of a packet", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            figures = cost.cost(args.name, args.few, many, args.rounds, args.seed, Path(folder))
            yield entry.take("cost", figures)
    if "load" in args.only:
        print("\n== daemons under load", flush=True)
        yield entry.take("load", load.measured(args.name, args.seconds))


if __name__ == "__main__":
    main()
