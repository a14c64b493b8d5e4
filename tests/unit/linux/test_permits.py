# SPDX-License-Identifier: GPL-2.0-only
"""Test what the privileged process does for a daemon, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mrcd.linux.privileged import permits
from mrcd.linux.privileged.permits import Permits, Plane, Refused, Undone
from mrcd.linux.privileged.requests import (
    KINDS,
    AddAddress,
    AddClsact,
    AttachClsact,
    CreateLink,
    CreateMacvlan,
    CreateVeth,
    CreateVxlan,
    DeleteAddress,
    DeleteLink,
    DeleteRoute,
    DetachClsact,
    ForceBuffer,
    ForgetIpv4Routes,
    Load,
    NameProgram,
    PlaceNeighbor,
    QueryLine,
    RawSocket,
    RenameLink,
    ReplaceRoute,
    Request,
    SetBucket,
    SetFeatures,
    SetLink,
    SpreadReceiving,
    VerifyNeighbor,
    WriteSysctls,
)

FOLDER = "/sys/fs/bpf/mrcd"
HERE = Permits(
    mrc0="mrc0",
    planes={
        "plane0": Plane("fdcb:0:0:1::1/64", "fcbb:bb00::/35", "fe80::1"),
        "eth1": Plane(None, None, None),  # without a fabric
        "eth2": Plane("192.0.2.1", None, None),
    },
    prefixes=("0.0.0.0/0",),
    folder=FOLDER,
)
EARLIER = Undone(
    devices=frozenset({"old0"}),
    filters=frozenset({"plane7"}),
    addresses=frozenset({("plane7", "fdcb:0:7:1::1/64")}),
    routes=frozenset({("plane7", "fcbb:bb00:e000::/35")}),
)
M, N = "02:00:00:00:00:01", "fe:00:00:00:00:02"


def order(**changes: Any) -> Load:
    """Return an order for the loader."""
    given = {
        "folder": f"{FOLDER}/layout-0123456789abcdef",
        "code": "capture",
        "sizes": {"mtu": 9000, "xdp": False},
        "adopt": True,
    }
    return Load(json.dumps(given | changes))


ALLOWED: list[Request] = [
    CreateVeth("mrc0p", "mrc0d", 65535, M, N),
    CreateMacvlan("mrc0", "mrc0p", 9000, M),
    CreateVxlan("mrc0u", 4974, 1450, M),
    DeleteLink("mrc0c"),
    DeleteLink("old0"),
    SetLink("mrc0cp", up=True, arp=False, multicast=False),
    SetLink("mrc0", gso_size=65536, gso_segs=65535),
    SetLink("mrc0p", master=0),
    RenameLink(7, "mrc0"),
    AddAddress("mrc0", "10.99.0.1/24"),
    AddAddress("plane0", "fdcb:0:0:1::1/64"),
    DeleteAddress("mrc0", "10.99.0.1/24"),
    DeleteAddress("plane7", "fdcb:0:7:1::1/64"),
    ReplaceRoute("10.99.0.2/32", "mrc0", mtu=9000, ecn=True),
    ReplaceRoute("0.0.0.0/0", "mrc0"),
    ReplaceRoute("fcbb:bb00::/35", "plane0", via="fe80::1"),
    DeleteRoute("10.99.0.2/32", "mrc0"),
    DeleteRoute("fcbb:bb00:e000::/35", "plane7"),
    VerifyNeighbor("eth1", "fe80::2"),
    VerifyNeighbor("eth2", "192.0.2.2"),
    PlaceNeighbor("eth1", "fe80::2", "02:00:00:00:00:01"),
    SetBucket("mrc0b", 142_000, 142, 2272),
    SetBucket("mrc0bp", 7_100, 142, 2272),
    SetBucket("mrc0cp", 31_250_000, 9014, 4 << 20),
    AddClsact("mrc0b"),
    AddClsact("plane0"),
    AddClsact("eth1"),
    AttachClsact("mrc0p", "mrc_spray", "egress"),
    DetachClsact("plane7", "ingress"),
    CreateLink("plane0", 46, 0),
    CreateLink("plane0", 37, 1 << 2),
    CreateLink("plane0", 46, 1 << 3),
    QueryLine("plane0", 46),
    SetFeatures("mrc0c", tso=False),
    SpreadReceiving("mrc0p"),
    WriteSysctls("mrc0"),
    ForgetIpv4Routes(),
    RawSocket("plane0", 41, "fdcb:0:0:1::1"),
    RawSocket("eth1", 17, "fe80::3"),
    RawSocket("eth1", 17, "::"),
    RawSocket("eth2", 17, "192.0.2.1"),
    ForceBuffer(1 << 20),
    order(),
    NameProgram(17, 3),
]
REFUSED: list[Request] = [
    CreateVeth("eth0", "mrc0d", 1500, M, N),
    CreateVeth("mrc0p", "lan", 1500, M, N),
    CreateVeth("mrc0p", "mrc0d", 1500, "01:00:00:00:00:01", N),  # multicast
    CreateVeth("mrc0p", "mrc0d", 1 << 20, M, N),
    CreateMacvlan("mrc0", "plane0", 9000, M),
    DeleteLink("plane0"),
    DeleteLink("eth0"),
    QueryLine("eth0", 46),
    QueryLine("plane0", 1),
    SetLink("plane0", up=False),
    SetLink("mrc0", mac="not one"),
    SetLink("plane0", master=0),
    SetLink("mrc0", master=7),
    RenameLink(7, "plane0"),
    RenameLink(7, "eth0"),
    AddAddress("plane0", "10.0.0.1/24"),
    AddAddress("eth0", "10.99.0.1/24"),
    AddAddress("mrc0p", "10.99.0.1/24"),
    AddAddress("mrc0", "127.0.0.1/8"),
    AddAddress("mrc0", "ff02::1/64"),
    AddAddress("mrc0", "anything"),
    DeleteAddress("eth0", "192.168.0.2/24"),
    DeleteAddress("plane0", "192.168.0.2/24"),
    ReplaceRoute("10.99.0.2/32", "eth0"),
    ReplaceRoute("10.99.0.2/32", "mrc0", via="10.99.0.7"),
    ReplaceRoute("::/0", "mrc0"),
    ReplaceRoute("10.0.0.0/7", "mrc0"),
    ReplaceRoute("10.99.0.1/24", "mrc0"),
    ReplaceRoute("fcbb:bb00::/35", "plane0", via="fe80::666"),
    ReplaceRoute("10.0.0.0/8", "plane0"),
    DeleteRoute("0.0.0.0/0", "eth0"),
    CreateVxlan("vxlan0", 4974, 1450, M),
    CreateVxlan("mrc0", 4974, 1450, M),
    CreateVxlan("mrc0u", 53, 1450, M),
    CreateVxlan("mrc0u", 65536, 1450, M),
    CreateVxlan("mrc0u", 4974, 40, M),
    CreateVxlan("mrc0u", 4974, 1450, "01:00:5e:00:00:01"),
    AddAddress("eth1", "10.0.0.1/24"),
    AddAddress("eth2", "192.0.2.1"),
    DeleteAddress("eth1", "fe80::3/64"),
    DeleteAddress("eth2", "192.0.2.1"),
    SetLink("eth1", up=True),
    ReplaceRoute("10.0.0.0/8", "eth1"),
    ReplaceRoute("10.0.0.0/8", "eth1", via="10.0.0.1"),
    DeleteRoute("10.0.0.0/8", "eth1"),
    VerifyNeighbor("eth0", "fe80::2"),
    VerifyNeighbor("plane0", "fe80::1"),
    VerifyNeighbor("eth1", "ff02::1"),
    VerifyNeighbor("eth1", "anyone"),
    PlaceNeighbor("eth0", "fe80::2", "02:00:00:00:00:01"),
    PlaceNeighbor("plane0", "fe80::2", "02:00:00:00:00:01"),
    PlaceNeighbor("eth1", "192.0.2.2", "02:00:00:00:00:01"),
    PlaceNeighbor("eth1", "fe80::2", "01:00:5e:00:00:01"),
    PlaceNeighbor("eth1", "fe80::2", "nowhere"),
    SetBucket("plane0", 142_000, 142, 2272),
    SetBucket("mrc0", 142_000, 142, 2272),
    SetBucket("mrc0p", 142_000, 142, 2272),
    SetBucket("mrc0b", 0, 142, 2272),
    SetBucket("mrc0b", 1 << 32, 142, 2272),
    SetBucket("mrc0b", 142_000, 0, 2272),
    SetBucket("mrc0b", 142_000, 142, 141),
    SetBucket("mrc0cp", 31_250_000, 9014, (4 << 20) + 1),
    SetBucket("mrc0b", 142_000, 142, 1 << 20),
    AddClsact("eth0"),
    AttachClsact("eth0", "mrc_spray", "ingress"),
    AttachClsact("mrc0p", "other", "ingress"),
    AttachClsact("mrc0p", "mrc_spray", "sideways"),
    DetachClsact("eth0", "ingress"),
    CreateLink("lo", 46, 0),
    CreateLink("plane0", 0, 0),
    CreateLink("plane0", 37, 1 << 1),
    SetFeatures("plane0", tso=False),
    SpreadReceiving("plane0"),
    WriteSysctls("all"),
    WriteSysctls("../../ipv4/conf/all"),
    RawSocket("eth0", 41, "fdcb:0:0:1::1"),
    RawSocket("plane0", 255, "fdcb:0:0:1::1"),
    RawSocket("plane0", 41, "fdcb:0:0:1::2"),
    RawSocket("plane0", 41, "nothing"),
    RawSocket("eth1", 41, "ff02::1"),
    RawSocket("eth1", 17, "127.0.0.1"),
    RawSocket("eth2", 17, "192.0.2.2"),
    ForceBuffer(0),
    ForceBuffer(1 << 30),
    order(folder="/sys/fs/bpf/layout-00"),
    order(folder=f"{FOLDER}/../other/layout-00"),
    order(folder=f"{FOLDER}/other"),
    order(code="../../code"),
    order(adopt=1),
    order(sizes={"mtu": "1 -include /etc/shadow"}),
    order(sizes=[]),
    order(cache="/tmp"),
    Load("[]"),
    Load("no JSON"),
    Load("[" * 60_000),
]


@pytest.mark.parametrize("request_", ALLOWED, ids=str)
def test_what_the_configuration_calls_for_is_done(request_: Request) -> None:
    permits.check(request_, HERE, EARLIER)


@pytest.mark.parametrize("request_", REFUSED, ids=str)
def test_all_else_is_refused(request_: Request) -> None:
    with pytest.raises(Refused, match=r"refused to .*: the configuration"):
        permits.check(request_, HERE, EARLIER)


def test_every_request_is_in_both_lists_or_harmless() -> None:
    harmless = {ForgetIpv4Routes, NameProgram}
    assert {type(each) for each in ALLOWED} == set(KINDS.values())
    assert {type(each) for each in REFUSED} == set(KINDS.values()) - harmless


def test_what_is_undone_was_recorded() -> None:
    for request in (DeleteLink("old0"), DetachClsact("plane7", "ingress")):
        with pytest.raises(Refused):
            permits.check(request, HERE, Undone())


def test_permits_are_read_as_they_were_written() -> None:
    assert permits.loads(HERE.dumps()) == HERE
