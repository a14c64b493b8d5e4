# SPDX-License-Identifier: GPL-2.0-only
"""Test the ways that are found through cables, switches and hosts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mrcd.fabric.cabling import RELAYS_MAX, Cabling, Handed, Node, Way


def graph(
    networks: Iterable[Iterable[tuple[str, int]]], *, forwards: str | None = None, **mtu: int
) -> Cabling:
    """Return the graph of NICs that are on the same networks; `forwards` has the hosts that do."""
    near: dict[str, set[tuple[int, str, int]]] = {}
    nics: dict[str, int] = {}
    for network in networks:
        ends = list(network)
        for name, nic in ends:
            nics[name] = max(nics.get(name, 0), nic + 1)
            near.setdefault(name, set()).update((nic, o, n) for o, n in ends if o != name)
    return Cabling({
        name: Node(
            name,
            tuple(f"{name}{nic}" for nic in range(count)),
            frozenset(near[name]),
            forwards is None or name in forwards,
            mtu.get(name, 1500),
        )
        for name, count in nics.items()
    })  # fmt: skip


def ring(names: str) -> list[list[tuple[str, int]]]:
    """Return the cables of a ring: NIC 1 of each host leads to NIC 0 of the next one."""
    return [[(one, 1), (other, 0)] for one, other in zip(names, names[1:] + names[0], strict=True)]


def shown(way: Way) -> str:
    return "-".join(name for name, _come, _leave in way.stops)


def test_ring_has_two_ways_to_each_host() -> None:
    found = graph(ring("abcde"))
    assert [shown(way) for way in found.ways("a", "c")] == ["a-b-c", "a-e-d-c"]
    assert [shown(way) for way in found.ways("a", "b")] == ["a-b", "a-e-d-c-b"]
    assert [way.ends for way in found.ways("a", "c")] == [(1, 0), (0, 1)]


def test_both_ends_find_the_same_ways() -> None:
    found = graph([*ring("abcde"), [("a", 2), ("c", 2), ("d", 2)]])
    for one in "abcde":
        for other in "abcde":
            if one != other:
                assert found.ways(one, other) == tuple(w.reversed for w in found.ways(other, one))


def test_nobody_forwards_who_was_not_asked() -> None:
    found = graph(ring("abcd"), forwards="b")
    assert [shown(way) for way in found.ways("a", "c")] == ["a-b-c"]
    assert [shown(way) for way in found.ways("b", "d")] == []
    assert found.handed_on("d") == ()


def test_what_a_host_hands_on_leads_to_the_end() -> None:
    """Following it from host to host, packets of each pair arrive, and come back the same way."""
    found = graph([*ring("abcdef"), [("a", 2), ("d", 2)]])
    table = {
        name: {(each.source, each.target): each for each in found.handed_on(name)}
        for name in "abcdef"
    }
    for one in "abcdef":
        for other in "abcdef":
            for way in found.ways(one, other) if one != other else ():
                key = f"{one}{way.ends[0]}", f"{other}{way.ends[1]}"
                at, seen = found.next_address(way), [one]
                while at != key[1]:
                    seen.append(at[0])
                    at = table[at[0]][key].via
                assert "-".join([*seen, other]) == shown(way)


def test_hosts_on_a_switch_reach_each_other_nic_by_nic() -> None:
    found = graph([[("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]])
    assert [way.ends for way in found.ways("a", "b")] == [(0, 0), (1, 1)]
    assert [way.ends for way in found.ways("b", "a")] == [(0, 0), (1, 1)]


def test_networks_count_not_places() -> None:
    found = graph([[("a", 0), ("b", 2)], [("a", 1), ("b", 0), ("c", 0)], [("b", 1), ("c", 1)]])
    assert {way.ends for way in found.ways("a", "b") if not way.relays} == {(0, 2), (1, 0)}
    assert [way.ends for way in found.ways("a", "c")] == [(1, 0), (0, 1)]


def test_one_that_is_not_heard_back_joins_nothing() -> None:
    nodes = graph([[("a", 0), ("b", 0)]]).nodes
    nodes["b"] = Node("b", ("b0",), frozenset())
    assert Cabling(nodes).ways("a", "b") == ()


@pytest.mark.parametrize(("hosts", "ways"), [(RELAYS_MAX + 2, 1), (RELAYS_MAX + 3, 0)])
def test_chains_are_bounded(hosts: int, ways: int) -> None:
    names = "abcdefghijklmn"[:hosts]
    found = graph(ring(names)[:-1])
    assert len(found.ways(names[0], names[-1])) == ways


def test_host_with_a_smaller_mtu_forwards_nothing_longer() -> None:
    found = graph(ring("abc"), b=1280)
    assert [shown(way) for way in found.ways("a", "c")] == ["a-c"]
    assert [shown(way) for way in found.ways("b", "c")] == ["b-c", "b-a-c"]


def test_no_packet_goes_in_a_circle() -> None:
    found = graph([*ring("abcdef"), [("a", 2), ("c", 2), ("e", 2)]])
    for one in "abcdef":
        for other in "abcdef":
            for way in found.ways(one, other) if one != other else ():
                names = [name for name, _come, _leave in way.stops]
                assert len({*names}) == len(names)


def test_handed_on_both_ways() -> None:
    found = graph(ring("abc")[:-1])
    assert found.handed_on("b") == (Handed("a1", "c0", 1, "c0"), Handed("c0", "a1", 0, "a1"))
