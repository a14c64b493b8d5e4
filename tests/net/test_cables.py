# SPDX-License-Identifier: GPL-2.0-only
"""Test hosts as people cable them: no switch, unequal NICs, ways through other hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mrcd.linux import netns
from rigs.cabled_hosts import Cabled, mesh, ring
from rigs.lab_hosts import eventually
from rigs.quick_hosts import finished, inner
from rigs.traffic import Stream, transfer

pytestmark = pytest.mark.timeout(600)

WHOLE_S = 60.0
FOLLOWED_S = 30.0
"""Far more than it takes, for busy machines; docs/operations.md has the times."""


@pytest.fixture
def hosts() -> Iterator[Cabled]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    made = Cabled(f"x{os.getpid()}", 2)
    try:
        yield made
    finally:
        made.close()


def transfer_all(hosts: Cabled) -> None:
    for one in hosts.nics:
        for other in hosts.nics:
            if one != other:
                transfer(hosts, one, other, inner(hosts, other), 1 << 20)


def test_triangle(hosts: Cabled) -> None:
    """Three hosts with two NICs each, and three cables: each two share one."""
    hosts.lay(ring("abc"))
    hosts.raise_all()
    hosts.whole(WHOLE_S)
    transfer_all(hosts)
    for one in "abc":
        for peer in hosts.peers(one).values():
            assert len(peer["planes_usable"]) == 1
        assert ": ok" in hosts.warnings(one).splitlines()[0]
    hosts.down("c")
    for one in "ab":
        eventually(lambda one=one: set(hosts.peers(one)) == {*"ab"} - {one}, "c is gone", 20)
    for one in "ab":
        hosts.down(one)
        hosts.assert_nothing_left(one, hosts.state(one))


def test_ring_loses_no_connection_with_a_cable(hosts: Cabled) -> None:
    """Five hosts: what goes through others goes the other way when a cable is cut, and back."""
    hosts.lay(ring("abcde"))
    hosts.raise_all("--forward")
    hosts.whole(WHOLE_S)
    transfer_all(hosts)
    beyond = hosts.peers("a")["c"]
    assert sorted(beyond["through"]) == ["b", "e"]
    assert beyond["spare"] == [beyond["through"].index("e")], "the way by e and d is the longer one"
    near = Stream(hosts, "a", "b", inner(hosts, "b")).start()
    far = Stream(hosts, "a", "c", inner(hosts, "c")).start()
    hosts.cut("a", "b")
    for stream in (near, far):
        stream.progress(8 << 20, 30)
    hosts.cut("a", "b", up=True)
    eventually(
        lambda: hosts.peers("a")["b"]["planes_usable"] == [0, 1], "the cable is used again", 30
    )
    hosts.cut("b", "c")
    for stream in (near, far):
        stream.progress(8 << 20, 30)
        stream.finish(60)
    relayed = sum(hosts.counters(name)["relayed"] for name in "bcde")
    assert relayed > 1000
    transfer_all(hosts)


def test_host_without_a_way_around_hands_nothing_on(hosts: Cabled) -> None:
    """A chain of three, of which the middle one was not asked to forward."""
    hosts.lay([("a", "b"), ("b", "c")])
    hosts.raise_all(hosts=2)
    eventually(lambda: hosts.established("b") == {"a", "c"}, "b has both", WHOLE_S)
    assert hosts.established("a") == hosts.established("c") == {"b"}
    assert hosts.counters("b")["relayed"] == 0


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_unequal_numbers_of_nics(hosts: Cabled, first: str, second: str) -> None:
    """Three NICs and two, in either order of names; the third is on a network of its own."""
    hosts.lay([(first, second), (first, second), (first, "z")])
    hosts.nics.pop("z")
    hosts.raise_all()
    hosts.whole(WHOLE_S)
    transfer_all(hosts)
    assert len(hosts.peers(first)[second]["planes_usable"]) == 2
    assert hosts.peers(second)[first]["planes_usable"] == [0, 1]


def test_network_that_comes_later(hosts: Cabled) -> None:
    """A NIC without a cable is a plane that is down, and is used once there is one."""
    hosts.lay([("a", "b"), ("a", "b")])
    hosts.cut("a", "b")  # the second cable, which is the one that is found by name
    hosts.raise_all()
    hosts.whole(WHOLE_S)
    stream = Stream(hosts, "a", "b", inner(hosts, "b")).start()
    hosts.cut("a", "b", up=True)
    for one, other in ("ab", "ba"):
        eventually(
            lambda one=one, other=other: len(hosts.peers(one)[other]["planes_usable"]) == 2,
            lambda one=one: f"{one} uses both: {hosts.warnings(one)}", FOLLOWED_S,
        )  # fmt: skip
    stream.progress(8 << 20, 30)
    stream.finish(60)


def test_mesh_with_a_host_that_joins_and_one_that_vanishes(hosts: Cabled) -> None:
    hosts.lay(mesh("abcd"))
    late = hosts.nics.pop("d")
    hosts.raise_all("--forward")
    hosts.whole(WHOLE_S)
    stream = Stream(hosts, "a", "b", inner(hosts, "b")).start()
    hosts.nics["d"] = late
    code, _out, error = finished(
        hosts.up("d", *late, secret=hosts.secret, more=("--forward", "--hosts", "4"))
    )
    assert code == 0, error
    hosts.whole(WHOLE_S)
    transfer_all(hosts)
    hosts.kill_daemon("c")
    for nic in hosts.nics.pop("c"):
        with netns.entered(hosts.namespace("c")):
            hosts.ip("c", f"link del {nic}")
    stream.progress(8 << 20, 30)
    stream.finish(60)
    transfer_all(hosts)
