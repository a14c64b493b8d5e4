# SPDX-License-Identifier: GPL-2.0-only
"""Test netlink against the kernel, with new namespaces for each test."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from cli.lab import impair
from cli.lab.faults import PPM, Impairment
from mrcd.linux import ethtool, netns, rtnl
from mrcd.linux.interfaces import Bucket
from mrcd.linux.netlink import LinkChanged, NeighborChanged, Netlink, NetlinkFailed, Nexthop, Resync
from mrcd.linux.privileged.requests import SetBucket, VerifyNeighbor

T = TypeVar("T")
MAC = bytes.fromhex("020000000001")
PEER_MAC = bytes.fromhex("020000000002")


@pytest.fixture
def spaces(worker_name: str) -> Iterator[tuple[str, str]]:
    """Return two empty namespaces."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    names = (f"{worker_name}n1", f"{worker_name}n2")
    made = netns.prepare_run_dir()
    for name in names:
        netns.create(name)
    yield names
    for name in names:
        netns.delete(name)
    if made:
        netns.release_run_dir()


def inside(namespace: str, work: Callable[[Netlink], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Netlink(namespace) as nl, asyncio.timeout(20):
            return await work(nl)

    return asyncio.run(run())


async def cable(nl: Netlink, far: str) -> None:
    """Connect a (here) and b (far), both up, with link-local addresses ::1 and ::2."""
    await nl.create_veth("a", "b", mtu=1500, mac=MAC, peer_mac=PEER_MAC, peer_netns=far)
    await nl.set_link("a", up=True)
    await nl.add_address("a", "fe80::1/64")
    async with Netlink(far) as other:
        await other.set_link("b", up=True)
        await other.add_address("b", "fe80::2/64")


def test_link__is_created_changed_and_deleted(spaces: tuple[str, str]) -> None:
    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        await nl.set_link("a", mtu=4000)
        link = (await nl.links())["a"]
        assert (link.mac, link.mtu, link.up, link.carrier) == (MAC, 4000, True, True)
        await nl.set_link("a", up=False, mac=PEER_MAC)
        link = (await nl.links())["a"]
        assert (link.mac, link.up, link.carrier) == (PEER_MAC, False, False)
        await nl.delete_link("a")
        await nl.delete_link("a")
        assert set(await nl.links()) == {"lo"}

    inside(spaces[0], work)


def test_errors__say_what_was_tried_on_what(spaces: tuple[str, str]) -> None:
    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        cases = [
            (nl.set_link("nic9", up=True), f"no interface nic9 in {spaces[0]}", errno.ENODEV),
            (
                nl.create_veth("a", "c", mtu=1500),
                "create veth pair a, c: File exists",
                errno.EEXIST,
            ),
            (nl.set_link("a", mtu=70_000), "set mtu 70000 on link a", errno.EINVAL),
            (
                nl.replace_route("10.0.0.0/8", dev="a", via="192.0.2.1"),
                "install route 10.0.0.0/8 dev a via 192.0.2.1",
                errno.ENETUNREACH,
            ),
        ]
        for attempt, message, number in cases:
            with pytest.raises(NetlinkFailed, match=message) as caught:
                await attempt
            assert caught.value.errno == number

    inside(spaces[0], work)


def test_addresses__twice_is_once_and_deleting_twice_is_fine(spaces: tuple[str, str]) -> None:
    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        for _ in range(2):
            await nl.add_address("a", "10.0.0.1/24")
            await nl.add_address("a", "fd00::1/64", prefix_route=False)
        assert set(await nl.addresses("a")) >= {"fe80::1/64", "10.0.0.1/24", "fd00::1/64"}
        assert "fd00::/64" not in {route.dst for route in await nl.routes("a")}
        for _ in range(2):
            await nl.delete_address("a", "10.0.0.1/24")
        left = await nl.addresses("a")
        assert "10.0.0.1/24" not in left
        assert "fd00::1/64" in left

    inside(spaces[0], work)


def test_routes__replace_read_back_and_delete(spaces: tuple[str, str]) -> None:
    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        await nl.add_address("a", "10.0.0.1/32")
        await nl.replace_route("10.9.0.0/16", dev="a", src="10.0.0.1", mtu=1300)
        await nl.replace_route("10.9.0.0/16", dev="a", src="10.0.0.1", mtu=1400)
        await nl.replace_route("10.8.0.0/16", dev="a", via="fe80::2")
        await nl.replace_route("fd08::/16", dev="a", via="fe80::2")
        await nl.replace_route("fd09::/16", nexthops=(Nexthop("a", "fe80::2"),))
        found = {route.dst: route for route in await nl.routes("a")}
        direct = found["10.9.0.0/16"]
        assert (direct.dev, direct.via, direct.src, direct.mtu) == ("a", None, "10.0.0.1", 1400)
        assert found["10.8.0.0/16"].via == "fe80::2"
        assert found["fd08::/16"].via == "fe80::2"
        for dst in ("10.9.0.0/16", "10.8.0.0/16", "fd08::/16", "fd08::/16"):
            await nl.delete_route(dst, dev="a")
        await nl.delete_route("fd08::/16", dev="gone")
        left = {route.dst for route in await nl.routes()}
        assert left & {"10.9.0.0/16", "10.8.0.0/16", "fd08::/16"} == set()

    inside(spaces[0], work)


def test_usid_end__reads_the_flavour_back(
    spaces: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install = Netlink._install

    async def without_flavor(self: Netlink, what: str, message: Any) -> None:
        """Send the request as a library or kernel without NEXT-C-SID would treat it."""
        attributes = dict(message["attrs"])
        attributes["RTA_ENCAP"] = {"attrs": attributes["RTA_ENCAP"]["attrs"][:1]}
        message["attrs"] = list(attributes.items())
        await install(self, what, message)

    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        await nl.add_usid_end("fcbb:bb00:1::/48", dev="a")
        await nl.add_usid_end("fcbb:bb00:1::/48", dev="a")
        monkeypatch.setattr(Netlink, "_install", without_flavor)
        with pytest.raises(NetlinkFailed, match="without the NEXT-C-SID flavour"):
            await nl.add_usid_end("fcbb:bb00:2::/48", dev="a")

    inside(spaces[0], work)


def test_resolve_neighbor__asks_and_remembers(spaces: tuple[str, str]) -> None:
    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        assert await nl.neighbor("a", "fe80::2") is None
        assert await nl.resolve_neighbor("a", "fe80::2", 5) == PEER_MAC
        assert await nl.neighbor("a", "fe80::2") == PEER_MAC
        assert await nl.resolve_neighbor("a", "fe80::7", 0.2) is None

    inside(spaces[0], work)


def test_permanent_neighbor__needs_no_answer(spaces: tuple[str, str]) -> None:
    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        await nl.add_neighbor("a", "10.0.0.2", PEER_MAC)
        assert await nl.resolve_neighbor("a", "10.0.0.2", 0) == PEER_MAC

    inside(spaces[0], work)


def test_watch__sees_carrier_and_neighbours(spaces: tuple[str, str]) -> None:
    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        async with contextlib.aclosing(nl.watch()) as events, Netlink(spaces[1]) as far:
            await nl.resolve_neighbor("a", "fe80::2", 5)
            async for event in events:
                if isinstance(event, NeighborChanged) and event.mac == PEER_MAC:
                    assert event.ip == "fe80::2"
                    break
            await far.set_link("b", up=False)
            async for event in events:
                if isinstance(event, LinkChanged) and not event.link.carrier:
                    assert (event.link.name, event.link.up, event.gone) == ("a", True, False)
                    break
            await far.delete_link("b")
            async for event in events:
                if isinstance(event, LinkChanged) and event.gone:
                    assert event.link.name == "a"
                    break

    inside(spaces[0], work)


def test_watch__lost_events_become_a_resync(spaces: tuple[str, str]) -> None:
    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        async with contextlib.aclosing(nl.watch()) as events:
            events._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            for i in range(100):
                await nl.set_link("a", mtu=1500 + i % 2)
            async for event in events:
                if isinstance(event, Resync):
                    break
            # The watch continues afterwards.
            await nl.set_link("a", up=False)
            async for event in events:
                if isinstance(event, LinkChanged) and not event.link.up:
                    break

    inside(spaces[0], work)


def test_clsact__attached_program_drops_until_detached(spaces: tuple[str, str]) -> None:
    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        await nl.replace_qdisc_clsact("a")
        await nl.replace_qdisc_clsact("a")
        handle = impair.load(Impairment(drop_ppm=PPM))
        try:
            for _ in range(2):
                await nl.attach_clsact("a", handle, prog_name="drop", prio=7)
        finally:
            os.close(handle)
        assert await nl.resolve_neighbor("a", "fe80::2", 0.2) is None
        await nl.detach_clsact("a", prio=7)
        await nl.detach_clsact("a", prio=7)
        assert await nl.resolve_neighbor("a", "fe80::2", 5) == PEER_MAC
        await nl.delete_clsact("a")
        await nl.delete_clsact("a")

    inside(spaces[0], work)


@pytest.mark.parametrize("drop_ppm", [0, 1, 500_000, PPM - 1, PPM])
@pytest.mark.parametrize("corrupt_ppm", [0, 1, PPM])
@pytest.mark.parametrize("redirect_to", [0, 5])
def test_impairments__pass_the_verifier(drop_ppm: int, corrupt_ppm: int, redirect_to: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("loading programs needs root: run the tests as root")
    os.close(impair.load(Impairment(drop_ppm, corrupt_ppm), redirect_to))


def test_ethtool__features_are_set_and_read_by_name(spaces: tuple[str, str]) -> None:
    inside(spaces[0], lambda nl: cable(nl, spaces[1]))
    with netns.entered(spaces[0]):
        wanted = {"tx-udp-segmentation": False, "tx-ipxip6-segmentation": False, "rx-gro": True}
        before = ethtool.named_features("a")
        ethtool.set_named("a", {**wanted, "tx-of-a-later-kernel": True})
        after = ethtool.named_features("a")
        assert {name for name in after if after[name] != before[name]} == set(wanted)
        assert wanted.items() <= after.items()
        with pytest.raises(OSError, match="could not set tx-gso-robust of a: Operation not supp"):
            ethtool.set_named("a", {"tx-gso-robust": True})
        with pytest.raises(OSError, match="could not read features of nic9: No such device"):
            ethtool.named_features("nic9")


def test_set_link__bounds_what_tcp_builds(spaces: tuple[str, str]) -> None:
    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        await nl.set_link("a", gso_size=65000, gso_segs=5)

    inside(spaces[0], work)
    shown = subprocess.run(
        ["ip", "-n", spaces[0], "-d", "link", "show", "a"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "gso_max_size 65000 gso_max_segs 5 " in shown.stdout


def test_links__know_a_veth(spaces: tuple[str, str]) -> None:
    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        links = await nl.links()
        assert (links["a"].kind, links["lo"].kind) == ("veth", "")

    inside(spaces[0], work)


def test_ethtool__features_are_set_and_read(spaces: tuple[str, str]) -> None:
    inside(spaces[0], lambda nl: cable(nl, spaces[1]))
    with netns.entered(spaces[0]):
        ethtool.set_features("a", gro=True, tx_checksum=False)
        features = ethtool.get_features("a")
        assert (features.gro, features.tx_checksum, features.tso) == (True, False, False)
        ethtool.set_features("a", gro=False, tx_checksum=True, tso=True)
        features = ethtool.get_features("a")
        assert (features.gro, features.tx_checksum, features.tso) == (False, True, True)
        with pytest.raises(OSError, match="could not set gro of nic9: No such device"):
            ethtool.set_features("nic9", gro=True)


@pytest.mark.parametrize("rate", [6_600, 132_000, 250_000_000])
def test_set_bucket__keeps_the_depth_to_the_byte(spaces: tuple[str, str], rate: int) -> None:
    """As far as the kernel can tell: it keeps it as a number of ticks of 64 ns."""
    bucket = Bucket(rate, 132, 2112)

    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        await nl.change(SetBucket.of("a", bucket))
        with netns.entered(spaces[0]):
            (found,) = rtnl.buckets([nl.index("a")]).values()
        assert (found.rate, found.limit) == (bucket.rate, bucket.limit)
        assert abs(found.burst - bucket.burst) <= 1 + rate * 64 // 1_000_000_000

    inside(spaces[0], work)


def test_verify_neighbor__leaves_a_permanent_one_alone(spaces: tuple[str, str]) -> None:
    async def work(nl: Netlink) -> None:
        await cable(nl, spaces[1])
        await nl.add_neighbor("a", "192.0.2.2", MAC)
        await nl.change(VerifyNeighbor("a", "192.0.2.2"))
        await nl.change(VerifyNeighbor("nothing", "192.0.2.2"))  # it may have gone

    inside(spaces[0], work)
    shown = subprocess.run(
        ["ip", "-n", spaces[0], "neighbor"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split()[-1] == "PERMANENT"
