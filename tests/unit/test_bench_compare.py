# SPDX-License-Identifier: GPL-2.0-only
"""The comparison with other ways between hosts: what is configured, computed and reported."""

from __future__ import annotations

import ipaddress
import struct

import numpy as np
import pytest

from mrcd.fabric import description, topology, usid
from tests.bench.compare import __main__ as compare
from tests.bench.compare import faults, published, report, results, routes, traffic, training
from tests.bench.compare.arena import Arena
from tests.bench.compare.processor import share
from tests.bench.compare.report import Facts, Heading
from tests.bench.compare.results import Figure, Results
from tests.bench.flow import BenchFailed

FABRIC = description.generate(name="x", hosts=4, hosts_per_t0=2, planes=2, t1=2)
PLAN = topology.plan(FABRIC)
BY_KEY = {competitor.key: competitor for competitor in routes.EVERY}
WHERE = ("bulk", "1 connection", "mrc0")


def test_addresses__differ_between_hosts_and_competitors() -> None:
    apart = [each for each in routes.EVERY if each.key != "mptcp"]  # begins where TCP does
    found = [each.address(FABRIC, host) for each in apart for host in FABRIC.hosts]
    assert len(set(found)) == len(found)
    assert BY_KEY["mptcp"].address(FABRIC, FABRIC.hosts[0]) == "10.100.1.1"


def test_ecmp__a_hop_in_each_plane_and_every_switch_knows_every_host() -> None:
    lines = BY_KEY["ecmp"].lines(PLAN)
    assert (
        "ip route replace 10.98.0.3 src 10.98.0.1 nexthop via 10.100.1.254 dev plane0 onlink"
        " nexthop via 10.101.1.254 dev plane1 onlink"
    ) in lines["h1"]
    assert lines["p1t0-1"] == [
        "ip route replace 10.98.0.1 via 10.101.1.1 dev port1 onlink",
        "ip route replace 10.98.0.2 via 10.101.1.2 dev port2 onlink",
        *(
            f"ip route replace 10.98.0.{host} nexthop via inet6 fe80::2 dev t1-1"
            " nexthop via inet6 fe80::2 dev t1-2"
            for host in (3, 4)
        ),
    ]
    assert lines["p0t1-2"][3] == "ip route replace 10.98.0.4 via inet6 fe80::1 dev t0-2"


def test_seg6__one_list_for_each_path_in_a_block_of_its_own() -> None:
    lines = BY_KEY["seg6"].lines(PLAN)
    (route,) = (line for line in lines["h1"] if line.startswith("ip route replace 10.97.0.3 "))
    words = route.split()
    sids = [words[i + 1] for i, word in enumerate(words) if word == "segs"]
    own = ipaddress.IPv6Network("fcbc:bb00::/32")
    found = {tuple(usid.usids_of_da(own, ipaddress.IPv6Address(sid).packed)) for sid in sids}
    source, target = FABRIC.host("h1"), FABRIC.host("h3")
    assert found == {
        tuple(usid.path_usids(source, target, usid.ev(plane, t1)))
        for plane in (0, 1)
        for t1 in (1, 2)
    }
    near = next(line for line in lines["h1"] if line.startswith("ip route replace 10.97.0.2 "))
    assert near.count("nexthop") == 2  # on the same T0: a path in each plane, over no T1


def test_seg6__switches_shift_in_that_block() -> None:
    lines = BY_KEY["seg6"].lines(PLAN)["p1t1-2"]
    end = [line for line in lines if "End flavors next-csid" in line]
    assert end == [
        "ip route replace fcbc:bb00:2802::/48 encap seg6local action End flavors next-csid lblen 32"
        " nflen 16 dev sid0"
    ]
    assert "ip route replace fcbc:bb00:2002::/48 via fe80::1 dev t0-2" in lines


@pytest.mark.parametrize("key", ["ecmp", "seg6", "vxlan"])
def test_undo__names_every_route_and_link_that_was_made(key: str) -> None:
    made, gone = BY_KEY[key].lines(PLAN), BY_KEY[key].undo(PLAN)
    for node, lines in made.items():
        for line in lines:
            words = line.split()
            if words[:3] == ["ip", "route", "replace"]:
                assert f"ip route del {words[3]}" in gone[node]
            if words[:3] == ["ip", "link", "add"]:
                assert f"ip link del {words[3]}" in gone[node]


def test_mptcp__announces_the_other_planes() -> None:
    lines = BY_KEY["mptcp"].lines(PLAN)["h4"]
    assert "ip mptcp endpoint add 10.101.2.2 dev plane1 signal" in lines
    assert not any("10.100." in line for line in lines)
    assert BY_KEY["mptcp"].lines(PLAN).keys() == {host.name for host in FABRIC.hosts}


@pytest.mark.parametrize(
    ("count", "known"), [(1, []), (99, [50]), (100, [50, 99]), (10_000, [50, 99, 99.9, 99.99])]
)
def test_percentiles__need_a_sample_beyond(count: int, known: list[float]) -> None:
    found = results.percentiles(np.arange(count))
    assert [which for which, value in found.items() if value is not None] == known


def test_jain() -> None:
    assert results.jain([5, 5, 5]) == pytest.approx(1)
    assert results.jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert results.jain([0, 0]) == 0


def test_results__rounds_of_a_figure_and_those_without() -> None:
    found = Results()
    for value, busy in ((3.0, 0.5), (None, 0.95), (1.0, 0.95)):
        found.note(WHERE, "gap", "ms", value, busy)
    (figure,) = found.figures("bulk")
    assert (figure.values, figure.missing, figure.median) == ((3.0, 1.0), 1, 2.0)
    assert str(figure) == "2 (1 to 3), 1 without†"
    assert found.figures("faults") == []


@pytest.mark.parametrize(
    ("values", "busy", "words"),
    [((), 0.0, "-"), ((4.0,), 0.0, "4"), ((0.12345, 0.2), 0.0, "0.162 (0.123 to 0.2)"),
     ((1234.5, 1234.4), 0.95, "1234†")],
)  # fmt: skip
def test_figure__as_a_cell(values: tuple[float, ...], busy: float, words: str) -> None:
    assert str(Figure(*WHERE, "gap", "ms", values, busy=busy)) == words


def test_report__has_every_part() -> None:
    figures = [
        Figure("bulk", "4 connections", "MPTCP", "goodput", "Mb/s", (380.0,)),
        Figure("bulk", "4 connections", "mrc0", "goodput", "Mb/s", (370.0,)),
        Figure("bulk", "4 connections", "mrc0", "lost", "", (0.0,)),
    ]
    facts = Facts(
        (("kernel", "6.18"),),
        (("mrc0", "an interface"), ("MPTCP", "a protocol")),
        {"VXLAN, ECMP": "no vxlan"},
        ["bulk: it broke"],
    )
    headings = [Heading("bulk", "As fast as it goes.", {"Goodput": "g.png"}), Heading("x", "", {})]
    text = report.markdown(facts, headings, figures)
    assert "| kernel | 6.18 |" in text
    assert "VXLAN, ECMP took no part: no vxlan" in text
    assert "### 4 connections\n\n|  | goodput, Mb/s | lost |\n|---|---|---|\n" in text
    assert "| mrc0 | 370 | 0 |\n| MPTCP | 380 |  |" in text
    assert "![Goodput](g.png)" in text
    assert "* bulk: it broke" in text
    assert "\n## X" not in text  # nothing was measured of it
    of_bulk = [each for each in published.PUBLISHED if each.workload == "bulk"]
    assert all(each.figure in text and each.source in text for each in of_bulk)


def test_glance__first_case_that_fits_and_all_competitors() -> None:
    figures = [
        Figure("bulk", f"4 connections, MTU {mtu}", "mrc0", "goodput", "Mb/s", (value, 1 + value))
        for mtu, value in ((9000, 380.0), (1500, 300.0))
    ]
    figures.append(Figure("bulk", "1 connection, MTU 9000", "MPTCP", "goodput", "Mb/s", (1.0,)))
    assert list(report.glance(figures, ["mrc0", "MPTCP"]))[2:] == [
        "| bulk, 4 connections, MTU 9000: goodput, Mb/s | 380 |  |"
    ]


def test_processor__share_of_what_was_not_idle() -> None:
    before = [100, 0, 50, 1000, 10, 0, 0, 0]
    assert share(before, [130, 0, 70, 1045, 15, 0, 0, 0]) == pytest.approx(0.5)
    assert share(before, before) == 0


def test_records__are_given_to_their_connections() -> None:
    first, second = 0, (3 << 16) + 1  # flow and count
    one = struct.pack("6q", 10, second, 5, 30, second, 7)
    other = struct.pack("3q", 20, first, 9)
    records = [np.frombuffer(each, dtype=np.int64) for each in (one, other)]
    sent = {first: [first, 9, 0], second: [second, 13, 0], 7: [7, 1, 0]}
    received = {first: [first, 9, 0], second: [second, 12, 104]}
    found = list(traffic.connections(sent, received, records))
    assert [each.flow for each in found] == [0, 0, 3]
    assert [each.alive for each in found] == [True, False, False]  # 7 never came
    assert found[2].error == 104
    assert list(found[2].arrivals.times_ns) == [10, 30]
    assert list(found[2].arrivals.sizes) == [5, 7]


def test_faults__strike_where_most_has_passed() -> None:
    assert faults.most((5, 100, 0), (9, 101, 4)) == 0
    assert faults.most((5, 100, 0), (9, 101, 6)) == 2


def test_faults__leave_what_they_say() -> None:
    left = {fault.name: fault.left(FABRIC) for fault in faults.FAULTS}
    assert left["a plane dies silently"] == 0.5
    assert left["a slow plane"] == pytest.approx(0.55)
    assert left["1 % loss"] == 0.99


def test_steps__end_with_their_slowest_rank() -> None:
    one = np.array([[10, 20], [20, 35], [40, 41]])
    other = np.array([[12, 25], [19, 33]])  # has not done the third
    steps = training.joined([one, other])
    assert list(steps.began_ns) == [10, 19]
    assert list(steps.took_ns) == [13, 15]


def test_no_lab_is_built_twice() -> None:
    full = compare.labs(compare.WORKLOADS, False, None)
    quick = compare.labs(compare.WORKLOADS, True, None)
    assert [mtu for shape, mtu in full if shape == compare.PAIR] == [9000, 4200, 1500]
    assert len(quick) == 2
    assert sum(len(group) for group in quick.values()) == len(compare.WORKLOADS)
    told = compare.labs(compare.WORKLOADS, False, [1500])
    assert {mtu for _, mtu in told} == {1500}


class Stub(routes.Competitor):
    """A competitor that only has its turn."""

    def __init__(self, title: str) -> None:
        self.title = title  # type: ignore[misc]


def arena(found: Results, **more: float) -> Arena:
    three = tuple(map(Stub, "abc"))
    return Arena("x", compare.PAIR, 9000, three, 4, False, 1, found, **more)


def test_turns__all_in_every_round_in_the_order_of_the_seed() -> None:
    orders: list[list[str]] = [[], []]
    for order in orders:
        arena(Results()).take_turns("bulk", "it", lambda c, _, o=order: o.append(c.title))
    assert orders[0] == orders[1]
    rounds = ["".join(orders[0][i : i + 3]) for i in range(0, 12, 3)]
    assert [sorted(each) for each in rounds] == [["a", "b", "c"]] * 4
    assert len(set(rounds)) > 1


def test_turns__one_that_fails_does_not_end_the_rest() -> None:
    found, done = Results(), []

    def measure(competitor: routes.Competitor, where: tuple[str, str, str]) -> None:
        if competitor.title == "b":
            raise BenchFailed("no flow")
        done.append(where)

    arena(found).take_turns("bulk", "it", measure)
    assert len(done) == 8
    assert found.problems == [f"bulk, it, b, round {turn}: no flow" for turn in (1, 2, 3, 4)]


def test_turns__are_left_out_when_the_time_is_over() -> None:
    found = Results()
    arena(found, budget_s=-1.0).take_turns("bulk", "it", lambda *_: pytest.fail("it was measured"))
    assert list(found.absent) == ["bulk: it"]
