# SPDX-License-Identifier: GPL-2.0-only
"""Tests of the comparison with other ways between hosts: configuration, computation, report."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import struct
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.compare import (
    beside,
    catalogue,
    direct,
    duplex,
    exchange,
    faults,
    peers,
    plots,
    published,
    record,
    report,
    results,
    routes,
    targets,
    traffic,
    training,
    ways,
)
from bench.compare.__main__ import COMPETITORS
from bench.compare.arena import Arena
from bench.compare.record import Piece, Record
from bench.compare.report import Heading
from bench.compare.results import Figure, Results
from bench.compare.steps import Steps, joined
from bench.compare.unlimited import judged, tcp_round_trips
from bench.instruments import flow
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import Arrivals, S
from bench.instruments.processor import share, stolen
from cli.lab import topology
from mrcd.fabric import description, usid

FABRIC = description.generate(name="x", hosts=4, hosts_per_t0=2, planes=2, t1=2)
PLAN = topology.plan(FABRIC)
BY_KEY = {competitor.key: competitor for competitor in routes.EVERY}
WHERE = ("bulk", "1 connection", "mrc0")


def test_addresses__differ_between_hosts_and_competitors() -> None:
    same = ("mptcp", "dctcp")  # begin where TCP does
    apart = [each for each in routes.EVERY if each.key not in same]
    found = [each.address(FABRIC, host) for each in apart for host in FABRIC.hosts]
    assert len(set(found)) == len(found)
    assert {BY_KEY[key].address(FABRIC, FABRIC.hosts[0]) for key in same} == {"10.100.1.1"}


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


@pytest.mark.parametrize("key", ["ecmp", "seg6", "vxlan", "dctcp-ecmp"])
def test_undo__names_every_route_and_link_that_was_made(key: str) -> None:
    made, gone = BY_KEY[key].lines(PLAN), BY_KEY[key].undo(PLAN)
    for node, lines in made.items():
        for line in lines:
            words = line.split()
            if words[:3] == ["ip", "route", "replace"]:
                assert f"ip route del {words[3]}" in gone[node]
            if words[:3] == ["ip", "link", "add"]:
                assert f"ip link del {words[3]}" in gone[node]


@pytest.mark.parametrize("key", ["dctcp", "dctcp-ecmp"])
def test_dctcp__takes_part_where_queues_grow_and_only_if_the_kernel_has_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dctcp = BY_KEY[key]
    assert [name for name in catalogue.NAMES if dctcp.takes_part(name)] == ["incast", "all-to-all"]
    monkeypatch.setattr(routes, "_has", lambda control: control != "dctcp")
    assert dctcp.missing() == ("this kernel has no DCTCP (CONFIG_TCP_CONG_DCTCP, module tcp_dctcp)")
    monkeypatch.setattr(routes, "_has", lambda _control: True)
    assert dctcp.missing() is None
    assert traffic._options(dctcp, "10.0.0.1") == ["control", "dctcp", "at", "10.0.0.1"]


def test_dctcp__the_kernel_is_asked() -> None:
    assert routes._has("cubic")
    assert not routes._has("no_such_control")


def test_competitors__all_others_take_part_everywhere() -> None:
    others = [each for each in routes.EVERY if each.control == "cubic"]
    assert len(others) == len(routes.EVERY) - 2
    assert all(each.takes_part(name) for each in others for name in catalogue.NAMES)
    assert traffic._options(BY_KEY["mptcp"]) == ["mptcp", "control", "cubic"]


def test_pictures__a_colour_for_each_competitor() -> None:
    assert len(set(plots.COLOURS)) == len(plots.COLOURS) == len(COMPETITORS)


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
    piece = Piece(
        {"kernel": "6.18"},
        (("mrc0", "an interface"), ("MPTCP", "a protocol")),
        (("bulk", "4 connections"),),
        {"VXLAN, ECMP": "no vxlan"},
        ("bulk: it broke",),
    )
    headings = [Heading("bulk", "As fast as it goes.", {"Goodput": "g.png"}), Heading("x", "", {})]
    text = report.markdown(Record((piece,), tuple(figures)), headings)
    assert "| kernel | 6.18 |" in text
    assert "VXLAN, ECMP took no part: no vxlan" in text
    assert "### 4 connections\n\n|  | goodput, Mb/s | lost |\n|---|---|---|\n" in text
    assert "| mrc0 | 370 | 0 |\n| MPTCP | 380 |  |" in text
    assert "![Goodput](g.png)" in text
    assert "* bulk: it broke" in text
    assert "\n## X" not in text  # nothing was measured of it
    of_bulk = [each for each in published.PUBLISHED if each.workload == "bulk"]
    assert all(each.figure in text and each.source in text for each in of_bulk)
    assert "runs, one after another" not in text
    assert "| bulk, 4 connections: goodput | 370 Mb/s | MPTCP 380 |" in text


def test_report__says_what_differs_between_runs() -> None:
    pieces = (
        Piece({"kernel": "6.18", "seed": "1"}, (("mrc0", ""),), (("bulk", "a"), ("bulk", "b"))),
        Piece({"kernel": "6.18", "seed": "2"}, (("mrc0", ""),), (("faults", "c"),)),
    )
    text = report.markdown(Record(pieces), [])
    assert "put together from 2 runs, one after another, each with labs and a beginning" in text
    assert "| run of | seed |\n|---|---|\n| bulk | 1 |\n| faults | 2 |" in text
    assert "| kernel | 6.18 |" in text


def noted(*cells: tuple[str, str, str, float]) -> Results:
    """Return results from cells of case, competitor, figure and value."""
    found = Results()
    for case, route, what, value in cells:
        found.note(("bulk", case, route), what, "ms", value)
    return found


def test_record__a_case_measured_anew_replaces_the_old_one() -> None:
    first = Piece({"seed": "1"}, (), (("bulk", "a"), ("bulk", "b")))
    again = Piece({"seed": "2"}, (), (("bulk", "b"),))
    last = Piece({"seed": "3"}, (), (("bulk", "a"),))
    old = noted(("a", "mrc0", "gap", 1.0), ("b", "mrc0", "gap", 2.0), ("b", "MPTCP", "gap", 3.0))
    old.curves["bulk", "b", "MPTCP"] = [1.0]
    found = Record().plus(first, old).plus(again, noted(("b", "mrc0", "gap", 9.0)))
    assert [(f.case, f.route, f.values) for f in found.figures] == [
        ("a", "mrc0", (1.0,)),
        ("b", "mrc0", (9.0,)),
    ]
    assert found.curves == {}
    assert [piece.done for piece in found.pieces] == [(("bulk", "a"),), (("bulk", "b"),)]
    assert found.done == {("bulk", "a"), ("bulk", "b")}
    left = found.plus(last, noted(("a", "mrc0", "gap", 8.0)))
    assert [piece.facts["seed"] for piece in left.pieces] == ["2", "3"]  # nothing of 1 is left


def test_record__is_read_as_it_was_written() -> None:
    piece = Piece({"kernel": "6.18"}, (("mrc0", "x"),), (("bulk", "a"),), {"gloo": "none"}, ("no",))
    found = noted(("a", "mrc0", "gap", 1.0))
    found.curves["bulk", "a", "mrc0"] = [1.0, 2.0]
    whole = Record().plus(piece, found)
    assert record.read(json.loads(json.dumps(whole.plain()))) == whole


def test_record__a_run_that_measured_nothing_leaves_no_trace() -> None:
    piece = Piece({}, (), (("bulk", "a"),))
    found = Record().plus(piece, noted(("a", "mrc0", "gap", 1.0)))
    assert found.plus(Piece({"seed": "2"}, (), ()), Results()) == found


def test_turns__only_wanted_cases_and_none_twice() -> None:
    found: list[str] = []
    where = replace(arena(Results()), words=("loss", "flap"), done=frozenset({("x", "1 % loss")}))
    for case in ("a plane dies", "1 % loss", "0.1 % loss", "a link flaps"):
        where.take_turns("x", case, lambda _, at: found.append(at[1]), where.competitors[:1])
    assert set(found) == {"0.1 % loss", "a link flaps"}
    assert where.results.done == [("x", "0.1 % loss"), ("x", "a link flaps")]


@pytest.mark.parametrize(
    ("bound", "values", "words"),
    [
        (targets.at_least(0.75), (0.8, 0.76, 0.9), "met"),
        (targets.at_least(0.75), (0.8, 0.7, 0.9), "met by the median, not by 1 of 3 rounds"),
        (targets.at_least(0.75), (0.6, 0.5, 0.9), "**missed by 0.15** (20%)"),
        (targets.at_most(2), (2.5,), "**missed by 0.5** (25%)"),
        (targets.at_most(0), (0.0,), "met"),
        (targets.at_most(0), (3.0,), "**missed by 3**"),
    ],
)
def test_targets__met_or_missed_by_how_much(
    bound: targets.Target, values: tuple[float, ...], words: str
) -> None:
    assert targets.verdict(bound, values) == words


def figure(where: tuple[str, str, str], what: str, *values: float) -> Figure:
    return Figure(*where, what, "", values)


def test_targets__ratios_are_of_the_same_round() -> None:
    one, other = figure(WHERE, "x", 3.0, 8.0, 5.0), figure(WHERE, "x", 4.0, 10.0, 5.0)
    assert targets.ratios(one, other) == (0.75, 0.8, 1.0)
    assert targets.ratios(one, figure(WHERE, "x", 4.0, 2.0)) == (5 / 3,)


def test_targets__speed_says_what_a_packet_took() -> None:
    case = ("speed", "1 connection, MTU 1500")
    figures = [
        figure((*case, "mrc0"), "goodput", 2.0),
        figure((*case, "TCP, no offload"), "goodput", 4.0),
    ]
    rows = {row[0]: row for row in targets.rows(figures)}
    name = targets.GOALS[0].about
    assert rows[name] == (name, ">= 0.75", "0.5", "**missed by 0.25** (33%)", "speed")
    why = dict(targets.reasons(figures))[name]
    payload = 1500 - targets.WIRE.MRC_DATA_OVERHEAD - 52
    assert f"takes mrc0 {payload * 8 / 2:.0f} ns" in why
    assert f"plain TCP {(1500 - 52) * 8 / 4:.0f};" in why
    assert f"leaves {payload * 8 / 3:.0f}." in why
    assert sum(row[3] == targets.NOT_MEASURED for row in rows.values()) == len(rows) - 1


def test_targets__one_percent_is_not_a_tenth_of_it() -> None:
    figures = [
        figure(("faults", "0.1 % loss", "mrc0"), "kept", 99.0),
        figure(("faults", "1 % loss", "mrc0"), "kept", 91.0),
    ]
    (row,) = (row for row in targets.rows(figures) if row[2])
    assert row[2:4] == ("91", "met")


def test_peers__who_is_ahead_and_whether_in_every_round() -> None:
    figures = [
        figure(WHERE, "goodput", 100.0, 104.0, 102.0),
        figure((*WHERE[:2], "MPTCP"), "goodput", 110.0, 105.0, 112.0),
        figure((*WHERE[:2], "TCP"), "goodput", 110.0, 90.0, 112.0),
        figure((*WHERE[:2], "VXLAN"), "goodput", 103.0, 103.0, 103.0),  # within 2 %
        figure((*WHERE[:2], "stateless, one plane"), "goodput", 150.0, 150.0, 150.0),  # a ceiling
        figure(WHERE, "p99", 5.0), figure((*WHERE[:2], "TCP"), "p99", 9.0),  # less is better
        figure(WHERE, "requests", 5.0), figure((*WHERE[:2], "TCP"), "requests", 9.0),
        figure(WHERE, training.PER_S, 5.0), figure((*WHERE[:2], "seg6"), training.PER_S, 9.0),
    ]  # fmt: skip
    assert [(win.figure.route, win.clear) for win in peers.wins(figures)] == [
        ("MPTCP", True),
        ("TCP", False),
        ("seg6", False),
    ]


def test_pictures__a_case_of_training_is_in_one() -> None:
    def shown(case: str, what: str) -> list[str]:
        of = figure(("training", case, "mrc0"), what, 1.0)
        return [bars.file for bars in plots._BARS if bars.shows(of)]

    assert shown("gloo all-reduce, 1 MiB, 8 hosts", "p50") == ["training-gloo-8"]
    assert shown("MPI all-reduce, 64 KiB, 4 hosts", "p50") == ["training-MPI-4"]
    assert shown("MPI all-reduce, 1 MiB, 8 hosts, a plane dies", "worst") == ["training-faults-8"]
    assert shown("gloo all-reduce, 1 MiB, 4 hosts, a T1 dies", "p50") == []


def test_death__what_was_lost_and_the_longest_gap() -> None:
    """Judge 8 Mb/s, a gap of 20 ms, then three quarters of the rate."""
    times = [*range(2500), *range(2520, 4000)]
    sizes = [1000 if at < 2500 else 750 for at in times]
    arrivals = Arrivals(np.array(times) * 1_000_000, np.array(sizes))
    found = traffic.Traffic(0, 4 * S, (traffic.Connection(0, 0, 0, 0, arrivals),), (), (), 0.0)
    lost_ns, gap_ns = judged(found, 2500 * 1_000_000)
    assert lost_ns == pytest.approx(20e6, rel=0.1)
    assert gap_ns == pytest.approx(21e6)
    lost_ns, gap_ns = judged(found, 1500 * 1_000_000, until_ns=2500 * 1_000_000)
    assert (lost_ns, gap_ns) == (0, 1_000_000)


def steady(flow: int, kilobytes: int) -> traffic.Connection:
    """Return a connection that receives so much in each millisecond of two seconds."""
    times = np.arange(2000) * 1_000_000
    return traffic.Connection(flow, 0, 0, 0, Arrivals(times, np.full(2000, 1000 * kilobytes)))


def test_duplex__each_direction_and_how_far_one_is_behind() -> None:
    seen = traffic.Traffic(0, 2 * S, (steady(0, 1), steady(0, 2), steady(1, 5)), (), (), 0.0)
    both = duplex.of(seen, 1e6)
    assert (both.there, both.back) == pytest.approx((24, 40))
    assert (both.total, both.slower, both.ratio) == pytest.approx((64, 24, 0.6))
    assert duplex.Both(0.0, 0.0).ratio == 0
    assert duplex.Both(0.0, 5.0).ratio == 0


def test_duplex__notes_both_directions_and_their_share_of_the_planes() -> None:
    found = Results()
    seen = traffic.Traffic(0, 2 * S, (steady(0, 1), steady(1, 4)), (), ((0, 7),), 0.5)
    duplex._note(arena(found), ("duplex", "it", "mrc0"), seen, 0.25)
    values = {each.what: (each.median, each.unit) for each in found.figures()}
    assert values == {
        "goodput": (40.0, "Mb/s"), "TCP retransmissions": (7.0, ""), "CPU busy": (50.0, "%"),
        "steal": (25.0, "%"), "h1 to h2": (8.0, "Mb/s"), "h2 to h1": (32.0, "Mb/s"),
        "slower direction": (8.0, "Mb/s"), "slower to faster": (0.25, ""),
        "of all planes, both ways": (5.0, "%"),  # of 4 x 100 Mb/s each way
    }  # fmt: skip
    unlimited = Results()
    where = replace(arena(unlimited), shape=catalogue.UNLIMITED)
    duplex._note(where, ("duplex", "it", "mrc0"), seen, 0.0)
    by_name = {each.what: each for each in unlimited.figures()}
    assert by_name["goodput"].values == pytest.approx((0.04,))
    assert by_name["goodput"].unit == "Gb/s"
    assert "of all planes, both ways" not in by_name


def test_requests__those_of_the_start_do_not_count() -> None:
    record = np.array([100, 7, 200, 8, 300, 9])
    assert list(traffic.answered(record, 200)) == [8, 9]
    assert list(traffic.answered(record, 0)) == [7, 8, 9]


def test_requests__rate_and_percentiles(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    measured_s: list[float] = []

    def requests(*arguments: Any, in_flight: int, warm_s: float) -> Any:
        asked.append((arguments[5], in_flight))
        measured_s.append(arguments[4] - warm_s)
        return np.arange(1, 1001) * 1000

    monkeypatch.setattr(traffic, "requests", requests)
    monkeypatch.setattr(exchange.wire, "lay", lambda *_: None)
    found = Results()
    where = ("requests", "it", "mrc0")
    exchange._measure(arena(found), ways.Way(Stub("a"), "x"), where, 1024, 16)
    values = {each.what: each.median for each in found.figures()}
    assert asked == [(1024, 16)]
    assert values["requests a second"] == pytest.approx(1000 / measured_s[0])
    assert (values["p50"], values["p99"]) == pytest.approx((500.5, 990), rel=0.001)
    assert {"CPU busy", "steal"} <= values.keys()
    exchange._measure(arena(found), ways.Way(Stub("a"), "x"), where, 1 << 16, 256)
    assert measured_s[1] == pytest.approx(3 * measured_s[0])  # else one wave of answers is all
    assert list(map(exchange.shown, exchange.SIZES)) == ["64 B", "1 KiB", "16 KiB", "64 KiB"]


def test_round_trip__of_the_connection_that_sends() -> None:
    listed = (
        "ESTAB 0 0 10.99.0.1:4000 10.99.0.2:5310 cubic rtt:0.05/0.01 bytes_sent:9 minrtt:0.01\n"
        "ESTAB 0 9 10.99.0.1:4001 10.99.0.2:5310 cubic rto:204 rtt:1.25/0.3 bytes_sent:70000\n"
    )
    assert tcp_round_trips(listed) == [1.25]
    assert tcp_round_trips("") == []


def test_direct__the_other_host_stands_at_the_switchs_address() -> None:
    fabric = description.generate(name="x", planes=2, t1=1)
    plan = topology.plan(fabric)
    lines = direct.cables(fabric, plan)
    assert lines[3].startswith("link add plane0 netns x-h1 address ")
    mac = lines[3].split("netns x-h2 address ")[1].split()[0]
    mine = direct.addresses(fabric, plan, "h1")
    assert f"neigh replace fe80::1 lladdr {mac} dev plane0 nud permanent" in mine
    assert "route replace 10.101.2.1/32 dev plane1" in mine
    assert "addr add 10.100.1.1/32 dev plane0" in mine


def test_glance__first_case_that_fits_and_all_competitors() -> None:
    figures = [
        Figure("bulk", f"4 connections, MTU {mtu}", "mrc0", "goodput", "Mb/s", (value, 1 + value))
        for mtu, value in ((9000, 380.0), (1500, 300.0))
    ]
    figures.append(Figure("bulk", "16 connections, MTU 9000", "MPTCP", "goodput", "Mb/s", (1.0,)))
    assert list(report.glance(figures, ["mrc0", "MPTCP"]))[2:] == [
        "| bulk, 4 connections, MTU 9000: goodput, Mb/s | 380 |  |"
    ]


def test_processor__share_of_what_was_not_idle() -> None:
    before = [100, 0, 50, 1000, 10, 0, 0, 0]
    assert share(before, [130, 0, 70, 1045, 15, 0, 0, 0]) == pytest.approx(0.5)
    assert share(before, before) == 0
    assert stolen(before, [130, 0, 70, 1045, 10, 0, 0, 5]) == pytest.approx(0.05)


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
    steps = joined([one, other])
    assert list(steps.began_ns) == [10, 19]
    assert list(steps.took_ns) == [13, 15]
    assert steps.per_s == pytest.approx(2 * S / (34 - 10))  # from the first begin to the last end
    assert Steps(np.array([]), np.array([])).per_s is None


def test_steps__the_faults_own_step_and_all_others() -> None:
    steps = Steps(np.array([0, 10, 20, 30]), np.array([10, 9, 8, 7]))
    assert list(steps.during(15)) == [9]
    assert list(steps.outside(15)) == [10, 8, 7]
    assert list(steps.during(19)) == []  # between two
    assert list(steps.between(10, 28)) == [9, 8]


def test_no_lab_is_built_twice() -> None:
    full = catalogue.labs(catalogue.WORKLOADS, False)
    quick = catalogue.labs(catalogue.WORKLOADS, True)
    assert [mtu for shape, mtu in full if shape == catalogue.PAIR] == [9000, 4200, 1500]
    assert len(quick) == 3
    left_out = [each.name for each in catalogue.WORKLOADS if not each.quick]
    assert left_out == [
        "direct", "gigabit", "many-hosts", "duplex", "requests", "requests-idle", "steps",
        "training-long",
    ]  # fmt: skip
    assert sum(map(len, quick.values())) == len(catalogue.WORKLOADS) - len(left_out)
    told = catalogue.labs(catalogue.WORKLOADS, False, [1500])
    assert {mtu for _, mtu in told} == {1500}
    four = catalogue.labs(catalogue.WORKLOADS, False, None, [4])
    assert four.keys() == {
        (catalogue.FOUR, 9000),
        (catalogue.UNLIMITED_FOUR, 9000),
        *((catalogue.GIGABIT_FOUR, mtu) for mtu in (9000, 4200, 1500)),
    }
    assert [each.name for each in four[catalogue.FOUR, 9000]] == [
        "training", "steps", "training-long",
    ]  # fmt: skip


def test_every_workload_has_its_words() -> None:
    assert {each.section for each in catalogue.WORKLOADS} == catalogue.ABOUT.keys()
    assert {goal.only for goal in targets.GOALS} <= set(catalogue.NAMES)


def test_competitors__have_titles_and_colours_of_their_own() -> None:
    titles = [each.title for each in COMPETITORS]
    assert len(set(titles)) == len(titles)
    assert len(set(plots.COLOURS)) == len(plots.COLOURS) >= len(titles)


def test_framings__each_has_a_lab_of_its_own() -> None:
    built: dict[str, str | None] = {}

    def build(name: str, framing: str | None) -> contextlib.AbstractContextManager[object]:
        built[name] = framing
        return contextlib.nullcontext()

    def found(*framings: str) -> list[tuple[str, str]]:
        built.clear()
        with contextlib.ExitStack() as stack:
            those = ways.with_mrcd(stack, arena(Results(), framings=framings), build)
        return [(way.competitor.title, way.lab) for way in those]

    assert found() == [("mrc0", "x")]
    assert built == {"x": None}
    assert found("auto", "mrc") == [("mrc0", "x"), ('mrc0, framing = "mrc"', "x-mrc")]
    assert built == {"x": "auto", "x-mrc": "mrc"}
    assert found("auto", "udp")[1] == ('mrc0, cell_envelope = "udp"', "x-udp")


@pytest.mark.parametrize(
    ("framing", "more", "wanted"),
    [
        (None, {}, {}),
        ("mrc", {}, {"transport": {"framing": "mrc"}}),
        (None, {"xdp": "native"}, {"transport": {"xdp": "native"}}),
        ("cell", {"xdp": "native"}, {"transport": {"framing": "cell", "xdp": "native"}}),
        ("udp", {}, {"transport": {"framing": "cell", "cell_envelope": "udp"}}),
    ],
)
def test_settings__of_the_daemons(
    framing: str | None, more: dict[str, str], wanted: dict[str, object]
) -> None:
    assert tomllib.loads(flow.framed(framing, **more)) == wanted


def test_beside__ratios_of_the_same_round_and_the_steal_of_all_turns() -> None:
    def turns(route: str, goodput: tuple[float, ...], steal: tuple[float, ...]) -> list[Figure]:
        where = ("speed", "4 connections", route)
        return [figure(where, "goodput", *goodput), figure(where, ways.STEAL, *steal)]

    tcp, packets = ways.Offloads.title, ways.Framed("mrc").title
    found = dict(
        beside.tables(
            [
                *turns("mrc0", (10.0, 30.0), (0.0, 1.0)),
                *turns(tcp, (20.0, 40.0), (0.0, 3.0)),
                *turns(packets, (5.0, 4.0), (0.0, 0.0)),
                figure(("speed", "idle", "mrc0"), "goodput", 1.0),  # nothing to hold it against
            ]
        )
    )
    (rows,) = found.values()
    assert rows == [
        ("", "mrc0", packets, tcp, "mrc0 to TCP", f"{packets} to TCP", "steal, %"),
        ("speed, 4 connections", "20 (10 to 30)", "4.5 (4 to 5)", "30 (20 to 40)",
         "0.625 (0.5 to 0.75)", "0.175 (0.1 to 0.25)", "0 to 3"),
    ]  # fmt: skip


def test_beside__how_far_mptcp_is_ahead() -> None:
    def mbps(route: str, *values: float) -> list[Figure]:
        where = ("gigabit", "1 connection", route)
        return [figure(where, "goodput", *values), figure(where, ways.STEAL, 2.0)]

    figures = [*mbps("mrc0", 800.0, 800.0), *mbps(ways.BareMptcp.title, 900.0, 760.0)]
    ((_, rows),) = beside.tables(figures)  # the other workloads have no figures
    assert rows[0][3] == "MPTCP ahead of mrc0 by, %"
    assert rows[1][3:] == ("3.75 (-5 to 12.5)", "2")
    assert list(beside.tables(mbps("mrc0", 800.0))) == []


class Stub(routes.Competitor):
    """A competitor without a configuration."""

    def __init__(self, title: str) -> None:
        self.title = title


def arena(found: Results, **more: Any) -> Arena:
    three = tuple(map(Stub, "abc"))
    return Arena("x", catalogue.PAIR, 9000, three, 4, False, 1, found, **more)


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


class Rare(Stub):
    """A competitor of one workload, which says when its turns are."""

    only = ("incast",)

    def __init__(self, title: str, said: list[str]) -> None:
        super().__init__(title)
        self.said = said

    @contextlib.contextmanager
    def turn(self, name: str) -> Iterator[None]:
        self.said.append(f"before, in {name}")
        yield
        self.said.append("after")


def test_turns__of_a_competitor_that_takes_part_in_few() -> None:
    said: list[str] = []
    where = replace(arena(Results()), competitors=(Rare("r", said),), rounds=1)
    for workload in ("bulk", "incast"):
        where.take_turns(workload, "it", lambda _, at: said.append(at[0]))
    assert said == ["before, in x", "incast", "after"]
