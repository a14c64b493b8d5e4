# SPDX-License-Identifier: GPL-2.0-only
"""Test that grey failures between hosts without a fabric are named, by mrcd and by `watch`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rigs.bare_hosts import nic
from rigs.grey_hosts import KINDS, Grey, Kind, building
from rigs.lab_hosts import eventually

pytestmark = pytest.mark.timeout(600)

CLEARED_S = 90.0
"""A NIC that flapped is named for a minute."""
BUSY = 6.0
"""How many times longer it may take on a busy machine; docs/operations.md has the times."""
DAEMONS = ("5 % of what", "a pair hears nothing", "only long packets")


def by(words: str) -> Kind:
    return next(kind for kind in KINDS if kind.name.startswith(words))


@pytest.fixture(scope="module")
def watching() -> Iterator[Grey]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    for made in building("gw", 2, 3):
        made.watch_all()
        yield made


@pytest.fixture(scope="module")
def daemons() -> Iterator[Grey]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    for made in building("gd", 2, 3):
        made.configure_all()
        made.begin_all()
        yield made


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_watch_names_it(watching: Grey, kind: Kind) -> None:
    kind.begin(watching)
    try:
        for host in watching.hosts:
            eventually(
                lambda host=host: set(watching.watched(host)) == set(kind.expected),
                lambda host=host: f"{host} names {kind.expected}: {watching.watched(host)}",
                BUSY * kind.within_s,
            )
    finally:
        kind.end(watching)
    for host in watching.hosts:
        eventually(lambda host=host: not watching.watched(host), "all is well again", CLEARED_S)


@pytest.mark.parametrize("words", DAEMONS)
def test_mrcd_names_it(daemons: Grey, words: str) -> None:
    kind = by(words)
    kind.begin(daemons)
    try:
        for host in daemons.hosts:
            eventually(
                lambda host=host: daemons.named(host) == kind.expected,
                lambda host=host: f"{host} names {kind.expected}: {daemons.named(host)}",
                BUSY * kind.within_s,
            )
    finally:
        kind.end(daemons)
    for host in daemons.hosts:
        eventually(lambda host=host: not daemons.named(host), "all is well again", CLEARED_S)


def test_mrcds_map_has_the_nics_of_all_hosts(daemons: Grey) -> None:
    with daemons.client("a") as client:
        found = client.fabric_map()
    assert [host.name for host in found["hosts"]] == [*daemons.hosts]
    nics = {each.name: each.state for each in found["elements"]}
    assert nics == {f"{host}:{nic(k)}": "ok" for host in daemons.hosts for k in range(2)}
    assert len(found["ways"]) == 12
    assert all(way.sent and not way.lost for way in found["ways"])


def test_hosts_that_end_their_watch_leave_nothing() -> None:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    for made in building("ge", 1, 2):
        before = {host: made.ip(host, "-br address") for host in made.hosts}
        made.watch_all()
        made.stop("b")
        eventually(lambda made=made: "b has ended its watch" in made.told("a"), "a says so")
        made.stop("a")
        assert "no faults" in made.told("a")
        assert {host: made.ip(host, "-br address") for host in made.hosts} == before
        assert made.run("a", "ss", "-Huan") == ""
