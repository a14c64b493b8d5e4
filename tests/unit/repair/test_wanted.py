# SPDX-License-Identifier: GPL-2.0-only
"""Test what counts as a difference between wanted and present interfaces, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrcd.linux.interfaces import Bucket, LinkState
from mrcd.repair.wanted import Kind, OurLink, OurPlane, Present, Wanted, compare

MAC, OTHER = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
ON, OFF = {"tso": True, "gro": True}, {"tso": False, "gro": True}
LOWER = OurLink("mrc0p", 5, 65535, "veth", offloads=ON)
MRC0 = OurLink("mrc0", 8, 8960, "macvlan", mac=MAC, gso=(65000, 7), offloads=ON)
PLANE = OurPlane(1, "plane1", 3, "plane1", "fdcb:0:1:1::1", "fcbb:bb00:2000::/35")
WANTED = Wanted(
    "mrc0",
    (LOWER, MRC0),
    frozenset({"10.99.0.1/24", "fd99::1/64"}),
    {"10.99.0.2/32": 8960, "fd99::2/128": 8960},
    (PLANE,),
    {"link_tc_mrc0p": (5, 70), "link_tc_plane1": (3, 71)},
)
GOOD = Present(
    links={
        3: LinkState(3, "plane1", OTHER, 9000, arp=True, kind="veth", qdisc="fq_codel"),
        5: LinkState(5, "mrc0p", OTHER, 65535, kind="veth"),
        8: LinkState(8, "mrc0", MAC, 8960, kind="macvlan", lower=5, gso=(65000, 7)),
    },
    addresses={
        3: frozenset({"fdcb:0:1:1::1/64", "fe80::2/64"}),
        8: frozenset({"10.99.0.1/24", "fd99::1/64", "10.5.0.1/8"}),
    },
    routes={
        3: {"fcbb:bb00:2000::/35": 0, "fe80::/64": 0},
        8: {"10.99.0.2/32": 8960, "fd99::2/128": 8960, "10.99.0.0/24": 0},
    },
    offloads={"mrc0p": ON, "mrc0": ON},
    programs={"link_tc_mrc0p": (5, 70), "link_tc_plane1": (3, 71), "link_tc_other": (9, 9)},
)


def mrc0(**change: object) -> Present:
    """Return the good state with some properties of mrc0 changed."""
    link = replace(GOOD.links[8], **change)  # type: ignore[arg-type]
    return replace(GOOD, links={**GOOD.links, 8: link})


def without(index: int, *more: LinkState) -> Present:
    """Return the good state without an interface, and with others."""
    links = {key: link for key, link in GOOD.links.items() if key != index}
    return replace(GOOD, links={**links, **{link.index: link for link in more}})


def found(present: Present, wanted: Wanted = WANTED) -> list[tuple[Kind, str]]:
    """Return kind and object of each difference."""
    return [(finding.kind, finding.about) for finding in compare(wanted, present)]


def test_nothing_differs() -> None:
    assert found(GOOD) == []


@pytest.mark.parametrize(
    ("change", "kind", "about"),
    [
        ({"mtu": 1500}, Kind.SETTINGS, "mrc0 MTU"),
        ({"mtu": 9000}, Kind.SETTINGS, "mrc0 MTU"),
        ({"up": False}, Kind.SETTINGS, "mrc0 state"),
        ({"arp": True}, Kind.SETTINGS, "mrc0 ARP"),
        ({"mac": OTHER}, Kind.MAC, "mrc0 address"),
        ({"master": 3}, Kind.CAPTURED, "mrc0 master"),
        ({"gso": (65000, 8)}, Kind.GSO, "mrc0 GSO"),
        ({"qdisc": "tbf"}, Kind.FOREIGN, "mrc0 queue"),
        ({"xdp": True}, Kind.FOREIGN, "mrc0 XDP"),
    ],
)
def test_property_of_mrc0(change: dict[str, object], kind: Kind, about: str) -> None:
    assert found(mrc0(**change)) == [(kind, about)]


def test_offloads() -> None:
    present = replace(GOOD, offloads={"mrc0p": OFF, "mrc0": ON})
    (finding,) = compare(WANTED, present)
    assert (finding.kind, finding.item) == (Kind.OFFLOADS, "mrc0p")
    assert finding.text == "offloads of mrc0p were changed: tso off"


def test_offloads_that_cannot_be_read_are_no_difference() -> None:
    assert found(replace(GOOD, offloads={})) == []


BUCKET = Bucket(142_000, 142, 2272)
CLOCK = OurLink("mrc0b", 9, 128, "veth", bucket=BUCKET)


@pytest.mark.parametrize(
    ("there", "good"),
    [
        (BUCKET, True),
        (replace(BUCKET, burst=141), True),
        (replace(BUCKET, burst=138), True),
        (replace(BUCKET, burst=137), False),
        (replace(BUCKET, rate=142_001), False),
        (replace(BUCKET, limit=9999), False),
        (None, False),
    ],
)
def test_bucket_of_the_clock(there: Bucket | None, good: bool) -> None:
    link = LinkState(9, "mrc0b", OTHER, 128, kind="veth", qdisc="tbf")
    present = replace(
        GOOD, links={**GOOD.links, 9: link}, buckets={} if there is None else {9: there}
    )
    wanted = replace(WANTED, links=(*WANTED.links, CLOCK))
    assert found(present, wanted) == ([] if good else [(Kind.BUCKET, "mrc0b bucket")])


def test_depth_of_a_fast_bucket_is_as_exact_as_the_kernel_keeps_it() -> None:
    """In a tick of 64 ns, 128 bytes pass at 2 GB/s."""
    fast = Bucket(2_000_000_000, 8974, 4 << 20)
    link = replace(CLOCK, bucket=fast)
    there = LinkState(9, "mrc0b", OTHER, 128, kind="veth", qdisc="tbf")
    for burst, good in ((8960, True), (8847, True), (8800, False)):
        present = replace(
            GOOD, links={**GOOD.links, 9: there}, buckets={9: replace(fast, burst=burst)}
        )
        assert (found(present, replace(WANTED, links=(*WANTED.links, link))) == []) == good


def test_mrc0_that_is_missing_has_no_other_differences() -> None:
    """Its addresses and routes come back with it."""
    assert found(without(8)) == [(Kind.SETTINGS, "mrc0")]


def test_name_that_another_interface_has_taken() -> None:
    (finding,) = compare(WANTED, without(8, LinkState(9, "mrc0", kind="dummy")))
    assert "another interface (a dummy) has its name" in finding.text
    assert "ip link delete mrc0" in finding.remedy


def test_renamed_interface_is_known_by_its_index() -> None:
    (finding,) = compare(WANTED, mrc0(name="foo"))
    assert (finding.kind, finding.item) == (Kind.RENAMED, "mrc0")
    assert finding.text == "mrc0 was renamed to foo"


def test_interfaces_below_come_first() -> None:
    present = replace(mrc0(up=False), links={8: replace(GOOD.links[8], up=False)})
    assert found(present, replace(WANTED, planes=(), programs={})) == [
        (Kind.SETTINGS, "mrc0p"),
        (Kind.SETTINGS, "mrc0 state"),
    ]


def test_addresses_that_are_ours_are_missed_and_others_are_left() -> None:
    present = replace(GOOD, addresses={**GOOD.addresses, 8: frozenset({"fd99::1/64"})})
    assert found(present) == [(Kind.ADDRESS, "10.99.0.1/24")]


@pytest.mark.parametrize(
    ("routes", "text"),
    [
        ({"fd99::2/128": 8960}, "the route to 10.99.0.2/32 over mrc0 is missing"),
        (
            {"fd99::2/128": 8960, "10.99.0.2/32": 0},
            "the route to 10.99.0.2/32 over mrc0 has MTU 0 instead of 8960",
        ),
    ],
)
def test_route(routes: dict[str, int], text: str) -> None:
    (finding,) = compare(WANTED, replace(GOOD, routes={**GOOD.routes, 8: routes}))
    assert (finding.kind, finding.item, finding.text) == (Kind.ROUTE, "10.99.0.2/32", text)


def test_plane_that_has_another_name_is_named_only() -> None:
    wanted = replace(WANTED, planes=(replace(PLANE, name="foo"),))
    (finding,) = compare(wanted, GOOD)
    assert finding.kind is Kind.FOREIGN
    assert finding.remedy.startswith("`ip link set foo name plane1`")


def test_plane_without_address_and_route() -> None:
    present = replace(GOOD, addresses={8: GOOD.addresses[8]}, routes={8: GOOD.routes[8]})
    assert found(present) == [(Kind.PLANE, "plane 1 address"), (Kind.PLANE, "plane 1 route")]


def test_plane_nic_in_a_bridge() -> None:
    port = replace(GOOD.links[3], master=20)
    for kind, named in (("bridge", True), ("bond", True), ("vrf", False)):
        present = without(3, port, LinkState(20, "br0", kind=kind))
        findings = compare(WANTED, present)
        assert [each.about for each in findings] == ["plane 1 master"] * named
    assert findings == []
    (finding,) = compare(WANTED, without(3, port, LinkState(20, "br0", kind="bridge")))
    assert finding.kind is Kind.FOREIGN
    assert finding.text.startswith("plane 1: plane1 is a port of br0 (a bridge)")
    assert "name br0 in place of plane1" in finding.remedy


def test_packets_to_peers_that_leave_elsewhere() -> None:
    assert found(replace(GOOD, ways={"10.99.0.2": 8})) == []
    ways = {"10.99.0.2": 3, "fd99::2": 3, "10.7.7.7": 5}
    (finding,) = compare(WANTED, replace(GOOD, ways=ways))
    assert finding.kind is Kind.FOREIGN
    assert finding.text.startswith(
        "packets to 10.99.0.2 and 1 more address of a peer leave by plane1 and not by mrc0"
    )
    assert "`ip route get 10.99.0.2`" in finding.remedy


def test_way_that_is_not_ours_since_our_route_is_missing_is_not_named_twice() -> None:
    present = replace(GOOD, routes={**GOOD.routes, 8: {"fd99::2/128": 8960}}, ways={"10.99.0.2": 3})
    assert found(present) == [(Kind.ROUTE, "10.99.0.2/32")]


@pytest.mark.parametrize("there", [None, (0, 71), (3, 99), (4, 71)])
def test_program_that_is_not_in_its_place(there: tuple[int, int] | None) -> None:
    """It is detached (the link has no interface), or another, or elsewhere."""
    programs = {"link_tc_mrc0p": (5, 70)} | ({} if there is None else {"link_tc_plane1": there})
    (finding,) = compare(WANTED, replace(GOOD, programs=programs))
    assert (finding.kind, finding.item) == (Kind.PROGRAM, "link_tc_plane1")
    assert finding.text == "mrcd's program was taken off plane1"


def test_program_of_an_interface_that_is_missing_waits_for_it() -> None:
    programs = {"link_tc_mrc0p": (5, 70), "link_tc_plane1": (0, 71)}
    present = replace(without(3), programs=programs)
    assert found(present, replace(WANTED, planes=())) == []
