# SPDX-License-Identifier: GPL-2.0-only
"""A fabric without packets: compute the counts of loops for the losses that a test specifies."""

from __future__ import annotations

import random
from collections.abc import Mapping

from mrcd.fabric import description
from mrcd.fabric.description import Fabric
from mrcd.fabric.loops import Element, loops_of
from mrcd.survey.inference import Seen


def fabric_of(hosts: int, planes: int, t1: int, hosts_per_t0: int) -> Fabric:
    return description.generate(hosts=hosts, planes=planes, t1=t1, hosts_per_t0=hosts_per_t0)


def elements_of(fabric: Fabric) -> dict[str, Element]:
    """Return every element that some loop crosses, by name."""
    return {
        element.name: element
        for host in fabric.hosts
        for loop in loops_of(fabric, host)
        for element in loop.crossings
    }


def simulated(
    fabric: Fabric,
    losses: Mapping[str, float],
    rng: random.Random,
    *,
    sent: int = 400,
    noise: float = 0.0,
) -> list[Seen]:
    """Return the counts of `sent` probes over every loop.

    Each crossing loses with the element's probability in `losses`, or else with that of `noise`.
    """
    found = []
    for host in fabric.hosts:
        for loop in loops_of(fabric, host):
            back = 1.0
            for element, times in loop.crossings.items():
                back *= (1 - losses.get(element.name, noise)) ** times
            lost = sent if back <= 0 else sum(rng.random() >= back for _ in range(sent))
            found.append(Seen(loop, sent, lost, 100.0))
    return found
