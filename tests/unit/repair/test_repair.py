# SPDX-License-Identifier: GPL-2.0-only
"""Test that each difference leads to its repair once, and that a failed repair is named."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from mrcd.config.overlap import Prefix
from mrcd.datapath.attachment import Hook
from mrcd.datapath.datapath import DatapathError
from mrcd.linux.interfaces import Ahead, LinkState
from mrcd.linux.privileged.requests import RenameLink, Request, SetLink
from mrcd.linux.rtnl import Changed
from mrcd.repair import reading, repair
from mrcd.repair.repair import Means, Repair
from mrcd.repair.repeats import MOST
from mrcd.repair.wanted import OurLink, OurPlane, Present, Wanted
from mrcd.service.findings import Findings

HOOK = Hook("tc", "mrc0p", "mrc_spray")
WANTED = Wanted(
    "mrc0",
    (OurLink("mrc0", 8, 8960, "macvlan", mac=b"\2" * 6, gso=(65000, 7)),),
    frozenset({"10.99.0.1/24"}),
    {"10.99.0.2/32": 8960, "10.99.0.3/32": 8960},
    (OurPlane(1, "plane1", 3, "plane1", "fdcb::1", "fcbb::/35"),),
    {HOOK.pin: (8, 70)},
)
GOOD = Present(
    links={
        3: LinkState(3, "plane1"),
        8: LinkState(8, "mrc0", b"\2" * 6, 8960, kind="macvlan", gso=(65000, 7)),
    },
    addresses={3: frozenset({"fdcb::1/64"}), 8: frozenset({"10.99.0.1/24"})},
    routes={3: {"fcbb::/35": 0}, 8: {"10.99.0.2/32": 8960, "10.99.0.3/32": 8960}},
    programs={HOOK.pin: (8, 70)},
)


class Host:
    """A host whose state is set by the test, and what was done to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.present = GOOD
        self.wanted: Wanted | None = WANTED
        self.error: Exception | None = None
        self.done: list[object] = []
        self.findings = Findings()
        self.unspread: dict[str, str | None] = {}
        self.followed: dict[Prefix, str] = {}
        self.replacing = False  # a capture replaces programs
        plane = SimpleNamespace(present=True, configured="plane1")
        self.planes = SimpleNamespace(planes=[plane], restore=self.restore, bind=self.bind)
        monkeypatch.setattr(reading, "kernel", lambda *_: (self.present, 0.0))
        means = Means(
            lambda: self.wanted,
            [HOOK],
            cast(Any, lambda: None if self.replacing else self),
            self.remake,
            self.reroute,
            cast(Any, self.planes),
            lambda: self.unspread,
            self.follow,
        )
        self.repair = Repair(cast(Any, self), means, self.findings)

    def follow(self, leads: Mapping[Prefix, str]) -> None:
        if leads != self.followed:
            self.followed = dict(leads)
            self.note(leads)

    def note(self, what: object) -> None:
        if self.error is not None:
            raise self.error
        self.done.append(what)

    async def remake(self) -> None:
        self.note("remake")

    async def reroute(self, prefixes: Sequence[str]) -> None:
        self.note(tuple(prefixes))

    async def restore(self, index: int) -> None:
        self.note(f"plane {index}")

    def bind(self, plane: object) -> None:
        self.note(plane)

    async def found(self, _hooks: Sequence[Hook]) -> object:
        return self.present.programs

    async def ahead(self, _hooks: Sequence[Hook]) -> object:
        return self.present.ahead

    async def attach(self, hooks: Sequence[Hook]) -> None:
        self.note([hook.pin for hook in hooks])

    async def change(self, request: Request) -> None:
        self.note(request)

    def mrc0(self, **change: object) -> None:
        link = replace(GOOD.links[8], **change)  # type: ignore[arg-type]
        self.present = replace(GOOD, links={**GOOD.links, 8: link})

    def look(self) -> list[object]:
        """Look once; return what was done."""
        self.done.clear()
        asyncio.run(self.repair._round())
        return list(self.done)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_nothing_is_done_where_nothing_differs(host: Host) -> None:
    assert host.look() == []
    assert host.findings.lines == []


@pytest.mark.parametrize(
    ("change", "done"),
    [
        ({"mtu": 1500}, ["remake"]),
        ({"mtu": 1500, "up": False, "arp": True}, ["remake"]),
        ({"mac": b"\4" * 6}, [SetLink("mrc0", mac="02:02:02:02:02:02")]),
        ({"gso": (1, 1)}, [SetLink("mrc0", gso_size=65000, gso_segs=7)]),
        ({"name": "foo"}, [RenameLink(8, "mrc0")]),
    ],
)
def test_property_of_mrc0_is_put_right_once(
    host: Host, change: dict[str, object], done: list[object]
) -> None:
    host.mrc0(**change)
    assert host.look() == done
    assert host.findings.lines == []


def test_all_routes_are_installed_together(host: Host) -> None:
    host.present = replace(GOOD, routes={3: {"fcbb::/35": 0}})
    assert host.look() == [("10.99.0.2/32", "10.99.0.3/32")]


def test_plane_and_program(host: Host) -> None:
    host.present = replace(GOOD, routes={8: GOOD.routes[8]}, programs={})
    assert host.look() == ["plane 1", [HOOK.pin]]


def test_kernel_is_asked_for_the_ways_to_peers_in_turn(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "ASKED", 1)
    ways = {"10.99.0.2": 8, "10.99.0.3": 3}
    asked: list[Sequence[str]] = []

    def kernel(_wanted: Wanted, some: Sequence[str]) -> tuple[Present, float]:
        asked.append(some)
        return replace(GOOD, ways={each: ways[each] for each in some}), 0.0

    monkeypatch.setattr(reading, "kernel", kernel)
    for _ in range(4):
        host.look()
    assert sorted(map(str, asked[:2])) == ["['10.99.0.2']", "['10.99.0.3']"]
    assert asked[:2] == asked[2:]
    (line,) = host.findings.lines
    assert line.startswith("packets to 10.99.0.3 leave by plane1 and not by mrc0: a routing rule")
    ways["10.99.0.3"] = 8
    for _ in range(2):
        host.look()
    assert host.findings.lines == []


def test_packets_that_are_not_spread_any_more(host: Host) -> None:
    host.unspread = {"mrc0p": None}
    with capture_logs() as logged:
        host.look()
    (event,) = logged
    assert (event["event"], event["about"]) == ("interface.repaired", "mrc0p steering")
    assert host.findings.lines == []
    host.unspread = {"mrc0p": "only root may write it"}
    host.look()
    (line,) = host.findings.lines
    assert "packets of mrc0p are not spread over CPUs any more" in line
    assert line.endswith("only root may write it")


def test_program_that_stands_before_ours_is_overtaken(host: Host) -> None:
    host.present = replace(GOOD, ahead={HOOK.pin: Ahead(("agent (number 7)",), movable=True)})
    assert host.look() == [[HOOK.pin]]
    assert host.findings.lines == []


def test_program_that_cannot_be_overtaken_is_named(host: Host) -> None:
    names = ("agent (filter of pref 1)", "flower (filter of pref 9)")
    host.present = replace(GOOD, ahead={HOOK.pin: Ahead(names, movable=False)})
    assert host.look() == []
    (line,) = host.findings.lines
    assert line.startswith(
        "the programs agent (filter of pref 1), flower (filter of pref 9) of others stand before "
        "mrcd's on "
    )
    assert "`tc filter show dev " in line


def test_programs_that_are_being_replaced_are_left_alone(host: Host) -> None:
    host.replacing = True
    host.present = replace(GOOD, programs={})
    assert host.look() == []


@pytest.mark.parametrize("error", [OSError("no right"), DatapathError("no right")])
def test_failure_is_named_until_all_is_well(host: Host, error: Exception) -> None:
    host.mrc0(mtu=1500)
    host.error = error
    host.look()
    assert host.findings.lines == [
        "mrc0 has MTU 1500 instead of 8960; it could not be put right: no right; "
        "remedy: `ip link set mrc0 mtu 8960`"
    ]
    host.error, host.present = None, GOOD
    host.look()
    assert host.findings.lines == []


def test_foreign_things_are_named_and_not_touched(host: Host) -> None:
    host.mrc0(qdisc="tbf")
    assert host.look() == []
    (line,) = host.findings.lines
    assert line.endswith("remedy: `tc qdisc del dev mrc0 root`")


def test_quarrel_is_named_while_the_repair_goes_on(host: Host) -> None:
    host.mrc0(mtu=1500)
    for _ in range(MOST):
        assert host.look() == ["remake"]
    assert host.findings.lines == []
    assert host.look() == ["remake"]
    assert "mrc0 MTU was put right 6 times within 60 s" in host.findings.lines[0]


def test_kernel_that_does_not_answer_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("could not read interfaces and routes: Operation not permitted")

    monkeypatch.setattr(reading, "kernel", refuse)
    assert host.look() == []
    assert "could not read interfaces" in host.findings.lines[0]


def test_nothing_is_looked_at_while_the_data_path_takes_leave(host: Host) -> None:
    host.wanted, host.present = None, replace(GOOD, links={})
    assert host.look() == []


def test_nic_that_is_back_is_bound(host: Host) -> None:
    (plane,) = host.planes.planes
    plane.present = False
    host.wanted = replace(WANTED, planes=())
    assert host.look() == [plane]


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        (None, True),
        (Changed(8), True),
        (Changed(3), True),
        (Changed(99), False),
        (Changed(8, "10.99.0.2/32", gone=True), True),
        (Changed(8, "10.99.0.2/32"), False),  # our own
        (Changed(99, "10.99.0.2/32"), True),  # another's, in place of ours
        (Changed(8, "10.7.0.0/16", gone=True), False),
    ],
)
def test_news_that_concern_us(host: Host, change: Changed | None, wakes: bool) -> None:
    host.look()
    host.repair._changed(change)
    assert host.repair._wake.is_set() == wakes


def test_routes_by_next_hops_are_followed(host: Host) -> None:
    route = "10.244.2.0/24"
    host.wanted = replace(
        WANTED,
        owned={"h2": (ip_network("10.99.0.2/32"),)},
        routed=(ip_network("10.244.0.0/16"),),
    )
    routes = {**GOOD.routes, 8: {**GOOD.routes[8], route: 0}}
    host.present = replace(GOOD, routes=routes, next_hops={route: "10.99.0.2"})
    host.look()
    assert host.done == [{ip_network(route): "h2"}]
    assert host.findings.lines == []
    host.error = OSError(7, "Argument list too long")
    host.followed = {}
    host.look()
    assert "routes by next hops over mrc0 do not fit (1: " in host.findings.lines[0]
