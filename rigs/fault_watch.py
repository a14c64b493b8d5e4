# SPDX-License-Identifier: GPL-2.0-only
"""Watch the fault lists of a lab's hosts while faults come and go."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cli.console.client import Client
from cli.lab import lab, state
from mrcd.fabric.description import Fabric
from mrcd.fabric.loops import loops_of
from mrcd.model import FaultInfo, FaultsReply


def faults_of(name: str, host: str) -> FaultsReply:
    """Return a host's fault list."""
    with Client(str(state.places(name, host).socket)) as client:
        return client.faults()


def elements(fabric: Fabric) -> list[str]:
    """Return every link and switch that some loop crosses."""
    return sorted(
        {
            element.name
            for host in fabric.hosts
            for loop in loops_of(fabric, host)
            for element in loop.crossings
        }
    )


@dataclass(slots=True)
class Watched:
    """The result of watching a set of faults. Times are seconds since the faults took effect."""

    truth: frozenset[str]
    named_s: float | None = None  # when every host named all that can be known, and nothing else
    cleared_s: float | None = None
    exact: bool = False  # without any "cannot be told from"
    healthy: set[str] = field(default_factory=set)  # named by any host at any moment
    last: dict[str, list[str]] = field(default_factory=dict)


def explains(faults: Iterable[FaultInfo], truth: frozenset[str], hidden: frozenset[str]) -> bool:
    """Return whether the named faults are the true ones, or offer those as their alternatives.

    `hidden` holds true ones that leave no trace beside the others.
    """
    named = {fault.element: fault for fault in faults}
    known = set(named) & truth
    for name in set(named) - truth:
        sets = [set(names) for names in named[name].alternatives if set(names) <= truth]
        if not sets:
            return False
        known |= set.union(*sets)
    return truth - known <= hidden


def healthy_named(faults: Iterable[FaultInfo], truth: frozenset[str]) -> set[str]:
    """Return the named elements that are healthy and offer no true set as an alternative."""
    return {
        fault.element
        for fault in faults
        if fault.element not in truth
        and not any(set(names) <= truth for names in fault.alternatives)
    }


def hidden_by(actions: dict[str, str]) -> frozenset[str]:
    """Return the elements whose faults cannot show, behind a dead switch or a dead NIC link."""
    dead = {name for name, action in actions.items() if action in ("blackhole", "down")}
    return frozenset(
        name
        for name in actions
        for other in dead - {name}
        if other in name.split(":") or ("t0-" in other and name.startswith("h"))
    )


def watch(name: str, fabric: Fabric, actions: dict[str, str], within_s: float) -> Watched:
    """Apply faults, wait until all hosts name them, clear them, wait until all lists are empty."""
    result = Watched(frozenset(actions))
    hidden = hidden_by(actions)
    try:
        for element, action in actions.items():
            lab.fault(name, element, action)
        for seconds, lists in _lists(name, fabric, within_s):
            for faults in lists.values():
                result.healthy |= healthy_named(faults, result.truth)
            result.last = {
                host: [fault.element for fault in faults] for host, faults in lists.items()
            }
            if all(explains(faults, result.truth, hidden) for faults in lists.values()):
                result.named_s = seconds
                result.exact = all(set(n) == result.truth for n in result.last.values())
                break
    finally:
        for element in actions:
            lab.fault(name, element, "clear")
    for seconds, lists in _lists(name, fabric, within_s):
        for faults in lists.values():
            result.healthy |= healthy_named(faults, result.truth)
        if not any(lists.values()):
            result.cleared_s = seconds
            break
    return result


def _lists(
    name: str, fabric: Fabric, within_s: float
) -> Iterator[tuple[float, dict[str, list[FaultInfo]]]]:
    """Yield all hosts' lists repeatedly, with the time since the first."""
    began = time.monotonic()
    while (seconds := time.monotonic() - began) < within_s:
        yield seconds, {host.name: faults_of(name, host.name)["faults"] for host in fabric.hosts}
        time.sleep(0.1)
