# SPDX-License-Identifier: GPL-2.0-only
"""Compare the fault map with ground truth: all single faults and a sample of double ones, in a lab.

    python -m bench.faults.faultmap [--hosts-per-t0 1] [--doubles 40] [--seed 1] [--name faultmap]

The fault list of every host is read all the time. A case is right when every host names exactly the
true fault, or reports that it cannot be told from what it names. Every healthy element that a host
names at any time is counted.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
import sys
import time

import click

from cli.lab import lab, state
from mrcd.fabric import description
from rigs.fault_watch import Watched, elements, faults_of, watch

_SETTLE_S = 60.0
KINDS = ("blackhole", "loss=4%", "loss=20%")


def kind_of(element: str) -> str:
    """Return the kind of an element, for the table."""
    if element.startswith("h"):
        return "NIC link"
    if ":" in element:
        return "link"
    return "T0" if "t0-" in element else "T1"


def cases(names: list[str], doubles: int, seed: int) -> list[dict[str, str]]:
    """Return every single fault of each kind, and a sample of all pairs of them."""
    single = [{name: action} for name in names for action in KINDS]
    pairs = [
        {a: x, b: y} for a, b in itertools.combinations(names, 2) for x in KINDS for y in KINDS
    ]
    return single + random.Random(seed).sample(pairs, min(doubles, len(pairs)))


def label(actions: dict[str, str]) -> str:
    """Return the row of the table that a case belongs to."""
    if len(actions) > 1:
        return "two at once"
    ((element, action),) = actions.items()
    return f"{kind_of(element)} {action}"


def row(title: str, results: list[Watched]) -> str:
    """Return one row of the table."""
    named = sorted(r.named_s for r in results if r.named_s is not None)
    cleared = sorted(r.cleared_s for r in results if r.cleared_s is not None)
    exact = sum(r.exact for r in results if r.named_s is not None)

    def times(values: list[float]) -> str:
        if not values:
            return "-"
        p95 = values[min(len(values) - 1, round(0.95 * (len(values) - 1)))]
        return f"{statistics.median(values):.1f} / {p95:.1f}"

    missed = len(results) - len(named)
    healthy = sum(bool(r.healthy) for r in results)
    return (
        f"{title:<22}{len(results):>6}{len(named):>7}{exact:>7}{missed:>8}{healthy:>9}"
        f"{times(named):>15}{times(cleared):>15}"
    )


@click.command()
@click.option("--name", default="faultmap", show_default=True)
@click.option("--planes", default=3, show_default=True)
@click.option("--t1", default=2, show_default=True)
@click.option("--t0", default=2, show_default=True)
@click.option("--hosts-per-t0", default=1, show_default=True)
@click.option("--doubles", default=40, show_default=True, help="Pairs of faults to sample.")
@click.option("--singles/--no-singles", default=True)
@click.option("--within", default=60.0, show_default=True, help="Seconds to name or clear.")
@click.option("--budget", default=3600.0, show_default=True, help="Seconds for everything.")
@click.option("--seed", default=1, show_default=True)
def main(
    name: str,
    planes: int,
    t1: int,
    t0: int,
    hosts_per_t0: int,
    doubles: int,
    singles: bool,
    within: float,
    budget: float,
    seed: int,
) -> None:
    """Compare the fault map with ground truth in a lab."""
    fabric = description.generate(
        name=name, hosts=t0 * hosts_per_t0, planes=planes, t1=t1, hosts_per_t0=hosts_per_t0
    )
    with contextlib.suppress(state.NoSuchElement):
        lab.down(name)
    lab.up(fabric)
    results: dict[str, list[Watched]] = {}
    began = time.monotonic()
    try:
        while any(
            faults_of(name, host.name)["survey"].hosts_heard < len(fabric.hosts) - 1
            for host in fabric.hosts
        ):
            if time.monotonic() - began > _SETTLE_S:
                sys.exit("faultmap: the hosts do not receive each other's survey")
            time.sleep(0.2)
        todo = cases(elements(fabric), doubles, seed)
        random.Random(seed).shuffle(todo)
        for actions in todo:
            if len(actions) == 1 and not singles:
                continue
            if time.monotonic() - began > budget:
                click.echo("out of time: the rest is left out")
                break
            result = watch(name, fabric, actions, within)
            results.setdefault(label(actions), []).append(result)
            if result.named_s is None or result.cleared_s is None or result.healthy:
                click.echo(
                    f"{actions}: named {result.named_s}, cleared {result.cleared_s},"
                    f" healthy {sorted(result.healthy)}, last {result.last}"
                )
    finally:
        lab.down(name)
    click.echo(
        f"\n{planes} planes x {t1} T1s x {t0} T0s x {hosts_per_t0} hosts, seed {seed},"
        f" {time.monotonic() - began:.0f} s\n"
        f"{'fault':<22}{'cases':>6}{'right':>7}{'exact':>7}{'missed':>8}{'healthy':>9}"
        f"{'named, s':>15}{'cleared, s':>15}\n"
        f"{'':<59}{'median / p95':>15}{'median / p95':>15}"
    )
    for title in sorted(results):
        click.echo(row(title, results[title]))
    click.echo(row("all", [result for each in results.values() for result in each]))


if __name__ == "__main__":
    main()
