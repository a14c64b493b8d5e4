# SPDX-License-Identifier: GPL-2.0-only
"""Test the reasons for which a seed does not answer."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from mrcd.handshake.unicast import OTHER_SECRET, TRANSLATED
from mrcd.peers.lines import LOST_NS, MS, SECOND
from mrcd.peers.seeds import JUDGE_NS, PROBE_AGAIN_NS, PROBE_NS, RECENT_NS, Seeds, Sign

SEED, ROUTER = "10.1.0.7", "10.2.0.1"
NICS = {0: "eth1", 1: "eth2"}


def asked(*, routed: tuple[bool, ...] = (True, False)) -> Seeds:
    seeds = Seeds(4973)
    seeds.set([SEED], [])
    for plane, there in enumerate(routed):
        seeds.asked(SEED, plane, routed=there, now_ns=0)
    return seeds


def said(seeds: Seeds, now_ns: int = JUDGE_NS + MS) -> str:
    found = seeds.warnings(NICS, now_ns=now_ns)
    assert len(found) == 1
    return found[0]


def test_nothing_is_said_before_there_was_time_for_an_answer_or_after_one() -> None:
    seeds = asked()
    assert seeds.warnings(NICS, now_ns=JUDGE_NS) == []
    seeds.heard(SEED, JUDGE_NS)
    assert seeds.warnings(NICS, now_ns=JUDGE_NS + LOST_NS) == []
    assert "does not answer to eth1" in said(seeds, JUDGE_NS + LOST_NS + MS)


def test_reasons_are_said_within_two_seconds() -> None:
    assert JUDGE_NS < 2 * SECOND


@pytest.mark.parametrize(
    ("came", "reason"),
    [
        (lambda s: None, "does not answer to eth1: look whether it is up"),
        (lambda s: s.noted(SEED, Sign.THERE, SEED, 0), "is up, and nothing comes back from UDP"),
        (lambda s: s.noted(SEED, Sign.CLOSED, SEED, 0), "has nothing at UDP port 4973"),
        (lambda s: s.noted(SEED, Sign.FILTERED, ROUTER, 0), f"is not reached: {ROUTER} refuses"),
        (lambda s: s.noted(SEED, Sign.LOST, ROUTER, 0), f"{ROUTER} says that there is no way"),
        (lambda s: s.noted(SEED, Sign.SILENT, "eth1", 0), "is not reached from eth1: the neigh"),
        (lambda s: s.refused(SEED, OTHER_SECRET, 0), "refuses this host: it has another secret"),
        (lambda s: s.refused(SEED, TRANSLATED, 0), r"translated on the way \(NAT\)"),
        (lambda s: s.refused(SEED, 77, 0), "does not answer to eth1"),
    ],
)
def test_reason_is_what_came_back(came: Callable[[Seeds], None], reason: str) -> None:
    seeds = asked()
    came(seeds)
    found = said(seeds)
    assert found.startswith(f"seed {SEED} ")
    assert re.search(reason, found), found


def test_no_route_is_said_with_the_remedy() -> None:
    found = said(asked(routed=(False, False)))
    assert "no route to it by eth1, eth2" in found
    assert f"ip route add {SEED} via ROUTER" in found


def test_the_strongest_sign_counts_and_old_ones_do_not() -> None:
    seeds = asked()
    seeds.noted(SEED, Sign.THERE, SEED, 0)
    seeds.refused(SEED, OTHER_SECRET, 0)
    assert "another secret" in said(seeds)
    seeds.noted(SEED, Sign.THERE, SEED, RECENT_NS)
    assert "is up, and nothing" in said(seeds, RECENT_NS + MS)
    seeds.heard(SEED, RECENT_NS)
    assert "does not answer" in said(seeds, RECENT_NS + LOST_NS + MS)


def test_seed_is_asked_on_another_port_once_in_a_while() -> None:
    seeds = asked()
    assert seeds.probe(PROBE_NS) == []
    assert seeds.probe(PROBE_NS + MS) == [SEED]
    assert seeds.probe(2 * PROBE_NS) == []
    assert seeds.probe(PROBE_NS + PROBE_AGAIN_NS + 2 * MS) == [SEED]
    seeds.heard(SEED, PROBE_NS + PROBE_AGAIN_NS)
    assert seeds.probe(PROBE_NS + PROBE_AGAIN_NS + LOST_NS) == []


def test_this_host_is_no_seed_of_its_own() -> None:
    seeds = Seeds(4973)
    seeds.set([SEED, ROUTER], [SEED])
    assert seeds.addresses == [ROUTER]
    assert SEED not in seeds
    seeds.asked(SEED, 0, routed=True, now_ns=0)
    assert seeds.warnings(NICS, now_ns=10 * SECOND) == []
