# SPDX-License-Identifier: GPL-2.0-only
"""Several faults of a lab in one moment: links that flap together, half of a host's NIC links.

`lab.fault` takes some 20 ms for each element, most of it preparation; here all elements are
prepared first and change within a few milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mrcd.fabric import faults as lab_faults
from mrcd.fabric import injection, lab, state, topology
from mrcd.fabric.injection import Applied
from mrcd.fabric.state import Lab, LabFailed


def faults(name: str, changes: Mapping[str, str]) -> Applied:
    """Do the action of each element at once; returns when all are in effect."""
    plan = topology.plan(state.read_fabric(name))
    with state.locked(state.folder(name)):
        before = state.read(name)
        after, ports = before.faults, set()
        for given, action in changes.items():
            element = lab_faults.canonical(plan, given)
            kind, value = lab_faults.parse_action(action)
            after = lab_faults.changed(after, element, kind, value)
            ports.update(lab_faults.ports(plan, element))
        # Recorded first: a crash half-way leaves something `clear` can undo.
        state.write(Lab(before.name, before.namespaces, before.daemons, after))
        try:
            return asyncio.run(injection.apply(plan, ports, lab_faults.effects(plan, after)))
        except OSError as error:
            raise LabFailed(f"faults {dict(changes)}: {error}") from error


def clear_all(name: str) -> None:
    """Clear every fault there is."""
    elements = {fault.element for fault in state.read(name).faults}
    for element in sorted(elements):
        lab.fault(name, element, "clear")
