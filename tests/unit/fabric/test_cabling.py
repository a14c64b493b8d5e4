# SPDX-License-Identifier: GPL-2.0-only
"""Test the ways that are found through cables, switches and hosts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.fabric.cabling import RELAYS_MAX, Cabling, Handed, Node, Way
from mrcd.fabric.ranking import Rank


def graph(
    networks: Iterable[Iterable[tuple[str, int]]],
    *,
    forwards: str | None = None,
    rates: Sequence[int] = (),
    **mtu: int,
) -> Cabling:
    """Return the graph of NICs that are on the same networks; `forwards` has the hosts that do.

    `rates` are those of the networks, as the NICs there say.
    """
    said: dict[tuple[str, int], int] = {}
    near: dict[str, set[tuple[int, str, int]]] = {}
    nics: dict[str, int] = {}
    for number, network in enumerate(networks):
        ends = list(network)
        said |= dict.fromkeys(ends, rates[number] if rates else 0)
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
            tuple(said.get((name, nic), 0) for nic in range(count)),
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


# ---- rates


TRIANGLE = [[("a", 0), ("b", 0)], [("a", 1), ("c", 0)], [("b", 1), ("c", 1)]]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((10, 1000, 1000), [("a-c-b", 1000), ("a-b", 10)]),
        ((10, 1000, 10), [("a-b", 10), ("a-c-b", 10)]),  # no more than its slower cable
        ((25_000, 100_000, 100_000), [("a-b", 25_000), ("a-c-b", 100_000)]),
        ((10, 1000, 0), [("a-b", 10), ("a-c-b", 0)]),  # nobody knows what the second carries
        ((0, 1000, 1000), [("a-b", 0), ("a-c-b", 1000)]),
        ((0, 0, 0), [("a-b", 0), ("a-c-b", 0)]),
    ],
)
def test_way_through_a_host_is_better_if_it_is_clearly_faster(
    rates: tuple[int, ...], expected: list[tuple[str, int]]
) -> None:
    found = graph(TRIANGLE, rates=rates)
    assert [(shown(way), way.mbps) for way in found.ways("a", "b")] == expected
    assert [way.reversed for way in found.ways("b", "a")] == [*found.ways("a", "b")]


def test_of_ways_through_as_many_hosts_the_fastest_is_the_first() -> None:
    """Two ways from a to d, by b and by c, of which the second has the faster cables."""
    square = [
        [("a", 0), ("b", 0)],
        [("a", 1), ("c", 0)],
        [("b", 1), ("d", 0)],
        [("c", 1), ("d", 1)],
    ]
    for rates, first in (((10, 100, 100, 100), "a-c-d"), ((100, 100, 100, 10), "a-b-d")):
        assert shown(graph(square, rates=rates).ways("a", "d")[0]) == first
    assert shown(graph(square, rates=(100, 100, 0, 100)).ways("a", "d")[0]) == "a-b-d"


def test_rate_of_a_network_is_the_least_of_both_nics() -> None:
    nodes = graph([[("a", 0), ("b", 0)]], rates=[1000]).nodes
    for theirs, expected in ((100, 100), (2500, 1000), (0, 1000)):
        nodes["b"] = replace(nodes["b"], rates=(theirs,))
        assert Cabling(nodes).ways("a", "b")[0].mbps == expected


def chains(found: Cabling, one: str, other: str) -> Iterator[list[str]]:
    """Yield the hosts of each way between two hosts that have one cable with each other at most."""
    between = [name for name in found.nodes if name not in (one, other)]
    for count in range(len(between) + 1):
        for middle in itertools.permutations(between, count):
            hosts = [one, *middle, other]
            if all(_cable(found, *pair) is not None for pair in itertools.pairwise(hosts)):
                yield hosts


def _cable(found: Cabling, one: str, other: str) -> int | None:
    """Return the rate of the cable between two hosts; None without one."""
    near = found.nodes[one].near
    return next((found.nodes[one].mbps(nic) for nic, name, _ in near if name == other), None)


@given(st.lists(st.sampled_from([None, 0, 10, 40, 100, 1000, 2500]), min_size=10, max_size=10))
def test_first_way_is_that_of_a_search_through_all(rates: list[int | None]) -> None:
    """Five hosts, of which each pair has a cable of a rate, perhaps unknown, or has none."""
    nics: dict[str, int] = {}
    networks, known = [], []
    for pair, rate in zip(itertools.combinations("abcde", 2), rates, strict=True):
        if rate is not None:
            networks.append([(name, nics.get(name, 0)) for name in pair])
            known.append(rate)
            nics |= {name: nics.get(name, 0) + 1 for name in pair}
    found = graph(networks, rates=known)
    if not {"a", "b"} <= found.nodes.keys():
        return
    every = [
        (len(hosts) - 2, [_cable(found, *pair) or 0 for pair in itertools.pairwise(hosts)])
        for hosts in chains(found, "a", "b")
    ]
    ways = found.ways("a", "b")
    assert bool(every) == bool(ways)
    if not every:
        return
    fewest = min(relays for relays, _rates in every)
    short = max(min(r or 1 << 32 for r in cables) for relays, cables in every if relays == fewest)
    shortest = Rank(fewest, 0)
    for relays, cables in every:
        if relays == fewest and min(r or 1 << 32 for r in cables) == short:
            shortest = max(shortest, Rank(fewest, min(cables)), key=lambda rank: rank.mbps)
    ranks = [Rank(relays, min(cables)) for relays, cables in every]
    better = [rank for rank in ranks if rank.beats(shortest)]
    first = ways[0].rank
    if first.relays == fewest:
        assert not better or not first.mbps
        assert min(r or 1 << 32 for r in _rates_of(found, ways[0])) == short
    else:
        assert first.worth == max(rank.worth for rank in better)


def _rates_of(found: Cabling, way: Way) -> list[int]:
    hosts = [name for name, _come, _leave in way.stops]
    return [_cable(found, *pair) or 0 for pair in itertools.pairwise(hosts)]
