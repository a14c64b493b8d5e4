# SPDX-License-Identifier: GPL-2.0-only
"""The denylist over real EV sets: no packet takes a denied path."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mrcd.fabric import usid
from mrcd.paths.states import State
from mrcd.rules.denylist import Denials
from mrcd.service.findings import Findings
from rigs.packets import ip4
from rigs.rig import PLANES, T1S, Rig

PACKET = ip4(src="10.99.0.1", dst="10.99.0.2")


def states(rig: Rig) -> dict[int, State]:
    return {path.ev: path.state for path in rig.paths(0)}


def took(rig: Rig, packets: int) -> dict[int, int]:
    """Send `packets` packets; return how many of them each path took."""
    before = {path.ev: path.values["sent"] for path in rig.paths(0)}
    for _ in range(packets):
        rig.spray(PACKET)
    return {path.ev: path.values["sent"] - before[path.ev] for path in rig.paths(0)}


def test_denied_paths_carry_nothing_until_they_are_allowed(rig: Rig, tmp_path: Path) -> None:
    rig.connect()
    denials = Denials(lambda: rig.config, rig.table, tmp_path, Findings())
    plane = {usid.ev(1, t1) for t1 in range(1, T1S + 1)}
    asyncio.run(denials.deny("p1", "h2", force=False))
    asyncio.run(denials.deny("p0t1-1", None, force=False))
    gone = plane | {usid.ev(0, 1)}
    assert {ev for ev, state in states(rig).items() if state is State.DENIED} == gone
    assert sum(rule.paths for rule in denials.listed()) == len(gone)

    carried = took(rig, 3 * PLANES * T1S)
    assert {ev for ev, packets in carried.items() if packets} == set(states(rig)) - gone

    asyncio.run(denials.allow("p1", "h2"))
    assert {ev for ev, state in states(rig).items() if state is State.DENIED} == {usid.ev(0, 1)}
    carried = took(rig, 3 * PLANES * T1S)
    assert {ev for ev, packets in carried.items() if not packets} == {usid.ev(0, 1)}


def test_a_qp_that_is_set_up_later_gets_the_rules(rig: Rig, tmp_path: Path) -> None:
    denials = Denials(lambda: rig.config, rig.table, tmp_path, Findings())
    asyncio.run(denials.deny("p1t1-1", None, force=False))
    rig.connect()
    assert State.DENIED not in states(rig).values()
    denials.apply("h2")
    assert {ev for ev, state in states(rig).items() if state is State.DENIED} == {usid.ev(1, 1)}
