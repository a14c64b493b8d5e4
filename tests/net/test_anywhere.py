# SPDX-License-Identifier: GPL-2.0-only
"""Test hosts without a fabric: cables, a bridge and a router between NICs with their own addresses.

Each test has hosts of its own: their addresses change in most of them.
"""

from __future__ import annotations

import json
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mrcd.fabric.shape import MTU_MAX
from mrcd.linux import netns
from mrcd.planes.nexthops import VERIFY_S
from rigs.bare_hosts import (
    BUILDERS,
    HOSTS,
    INNER,
    MIDDLE,
    Bare,
    Make,
    bridge,
    building,
    flat,
    nic,
    router4,
    router6,
    subnet,
    subnet4,
)
from rigs.lab_hosts import ROOT, eventually, powerless
from rigs.traffic import Arrivals, Stream, transfer, udp_sequence

pytestmark = pytest.mark.timeout(600)

PLANES = 2
MS = 1_000_000
GAP_NS = 20 * MS
"""The longest pause of TCP when a plane is cut, beyond those that the machine makes anyway."""
NAMED_NS = 4000 * MS
"""How long `mrcctl status` may take to name a dead plane; 1.5 s on a quiet machine."""
_ETH_IP = {4: 0x0800, 6: 0x86DD}


@pytest.fixture
def make() -> Iterator[Make]:
    """Build hosts by one of BUILDERS, and remove them at the end."""
    yield from building("y", PLANES)


def both_ways(bare: Bare, size: int = 4 << 20) -> None:
    """Send by TCP in both directions; every byte is compared."""
    transfer(bare, "a", "b", INNER["b"], size)
    transfer(bare, "b", "a", INNER["a"], size)


# ---- traffic


@pytest.mark.parametrize("how", BUILDERS.values(), ids=BUILDERS)
def test_every_byte_arrives_over_all_planes(make: Make, how: Callable[[Bare], None]) -> None:
    bare = make(how)
    bare.begin()
    before = bare.sent("a")
    both_ways(bare, 8 << 20)
    assert all(now > then + (1 << 18) for now, then in zip(bare.sent("a"), before, strict=True))
    assert udp_sequence(bare, "a", "b", INNER["b"], count=500) == list(range(500))
    for host in HOSTS:
        assert bare.peer(host).framing == "cell"
        assert bare.counters(host)["drop_sid"] == 0
        assert powerless(bare.processes[host].pid)


def test_permanent_neighbour_stays_permanent(make: Make) -> None:
    """The kernel is asked to verify neighbours, but not those that the operator has named."""
    bare = make(subnet4)
    bare.begin()
    shown = bare.ip("b", "-br link show dev eth1").split()
    bare.ip("a", f"neigh replace 192.168.0.2 lladdr {shown[2]} nud permanent dev eth1")
    time.sleep(2.5 * VERIFY_S)
    assert "PERMANENT" in bare.ip("a", "neigh show 192.168.0.2 dev eth1")
    assert "PERMANENT" not in bare.ip("a", "neigh show 192.168.1.2 dev eth2")
    both_ways(bare, 1 << 16)


def test_nics_on_one_network_are_told_from_planes_that_are_apart(make: Make) -> None:
    """Linux answers for all of its addresses by any NIC; two sysctls keep them apart."""
    bare = make(flat)
    bare.begin()
    one = "planes 0, 1 lead to peer b by one link-layer address"

    def named() -> bool:
        return any(line.startswith(one) for line in bare.said("a") or ())

    bare.ip("a", "neigh flush all")
    eventually(named, "status names it", 20)
    for key in ("arp_ignore=1", "arp_announce=2"):
        bare.run("b", "sysctl", "-qw", f"net.ipv4.conf.all.{key}")
    bare.ip("a", "neigh flush all")
    eventually(lambda: not named(), "they are apart", 20)
    both_ways(bare, 1 << 16)


def test_nothing_is_added_to_the_planes(make: Make) -> None:
    bare = make(subnet4)

    def machine() -> list[str]:
        shown = ("address show dev eth1", "-4 route show dev eth1", "-6 route show dev eth1")
        return [bare.ip("a", words) for words in shown]

    bare.link_local("a", "eth1")  # until it is there, the address is shown in another way
    before = machine()
    bare.begin()
    both_ways(bare, 1 << 16)
    assert machine() == before
    for host in HOSTS:
        bare.stop(host)
    assert "mrc0" not in bare.ip("a", "-br link")
    assert machine() == before


def test_cells_of_ip_in_ipv6_cross_routers_that_take_them(make: Make) -> None:
    bare = make(router6, '[transport]\ncell_envelope = "ipv6"\n')
    bare.begin()
    both_ways(bare)
    assert bare.peer("a").framing == "cell"
    assert bare.counters("b")["rx_cells"] > 0


def test_several_paths_of_a_plane(make: Make) -> None:
    bare = make(router4, "[planes]\npaths = 4\n")
    bare.begin()
    both_ways(bare)
    with bare.client("a") as client:
        paths = client.paths("b")["paths"]
    assert len({path.ev for path in paths}) == 4 * PLANES
    assert {path.t1 for path in paths} == {0}, "nobody knows by which way they go"


def test_nics_are_on_the_map(make: Make) -> None:
    bare = make(router4)
    bare.begin()
    with bare.client("a") as client:
        found = eventually(
            lambda: (reply := client.fabric_map())["ways"] and reply, "ways are probed"
        )
    assert found["survey"].enabled
    assert {element.state for element in found["elements"]} == {"ok"}
    assert [element.name for element in found["elements"]] == [
        f"{host}:{nic(plane)}" for host in HOSTS for plane in range(PLANES)
    ]


# ---- faults


def cut_bridge(bare: Bare, plane: int, dead: bool = True) -> None:
    """Have a switch drop everything, while its ports stay up."""
    for host in HOSTS:
        state = "0" if dead else "3"
        bare.run(MIDDLE, "bridge", "link", "set", "dev", f"{host}{plane}", "state", state)


def cut_router(bare: Bare, plane: int, dead: bool = True) -> None:
    """Have a router drop everything, while its ports stay up."""
    for host in HOSTS:
        word = "add" if dead else "del"
        bare.ip(MIDDLE, f"route {word} blackhole {subnet(host, plane)}.2/32")


def reasons(bare: Bare, host: str) -> list[str]:
    status = bare.status(host)
    assert status is not None
    return status.reasons


def named_after_ns(bare: Bare, plane: int, since_ns: int) -> int:
    """Wait until both hosts' status names a plane; return the time since then."""

    def named(host: str, peer: str) -> bool:
        start = f"plane {plane}: no path gets through to peer {peer}, for "
        return [line.startswith(start) for line in reasons(bare, host)] == [True]

    for host, peer in (("a", "b"), ("b", "a")):
        eventually(
            lambda host=host, peer=peer: named(host, peer), f"{host} names plane {plane}", 10
        )
    return time.monotonic_ns() - since_ns


CUTS = pytest.mark.parametrize(
    ("how", "cut"), [(bridge, cut_bridge), (router4, cut_router)], ids=["bridge", "router4"]
)


@CUTS
@pytest.mark.alone
def test_plane_that_is_cut_silently(
    make: Make, how: Callable[[Bare], None], cut: Callable[..., None]
) -> None:
    bare = make(how)
    bare.begin()
    arrivals = Arrivals(bare, "a", "b", INNER["b"])
    gaps_ns, names_ns = [], []  # of five cuts, since the machine itself may stand still in one
    for _ in range(5):
        began = time.monotonic_ns()
        arrivals.stream.progress(64 << 20, 30)
        quiet_ns = arrivals.longest_ns(began)
        cut(bare, 1)
        cut_ns = time.monotonic_ns()
        names_ns.append(named_after_ns(bare, 1, cut_ns))
        arrivals.stream.progress(64 << 20, 30)
        gap_ns = arrivals.longest_ns(cut_ns - 100 * MS)
        gaps_ns.append(gap_ns - quiet_ns)
        print(f"longest gap {gap_ns / MS:.1f} ms, before {quiet_ns / MS:.1f} ms; "
              f"named after {names_ns[-1] / MS:.0f} ms")  # fmt: skip
        cut(bare, 1, dead=False)
        bare.settle()
    arrivals.stream.finish()
    assert statistics.median(gaps_ns) < GAP_NS
    assert statistics.median(names_ns) < NAMED_NS


@CUTS
@pytest.mark.alone
def test_plane_that_is_cut_while_nothing_is_sent(
    make: Make, how: Callable[[Bare], None], cut: Callable[..., None]
) -> None:
    bare = make(how)
    bare.begin()
    cut(bare, 1)
    named_ns = named_after_ns(bare, 1, time.monotonic_ns())
    print(f"named after {named_ns / MS:.0f} ms")
    assert named_ns < NAMED_NS
    cut(bare, 1, dead=False)
    bare.settle()


# ---- changes


def destinations(bare: Bare, host: str, interface: str, within_s: float = 5.0) -> str:
    """Return the MAC address that the next frame of MRC on an interface of a host is for."""
    with netns.entered(bare.namespace(host)):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    with sock:
        sock.bind((interface, 3))
        sock.settimeout(within_s)
        while True:
            frame = sock.recv(2048)
            (kind,) = struct.unpack_from("!H", frame, 12)
            if kind in _ETH_IP.values() and not frame[0] & 1:
                return frame[:6].hex(":")


def mac_of(bare: Bare, host: str, interface: str) -> str:
    return bare.ip(host, f"-br link show dev {interface}").split()[2]


@pytest.mark.parametrize("how", [bridge, subnet4], ids=["bridge", "subnet4"])
def test_mac_of_a_neighbour_changes_under_traffic(make: Make, how: Callable[[Bare], None]) -> None:
    bare = make(how)
    bare.begin()
    stream = Stream(bare, "a", "b", INNER["b"]).start()
    stream.progress(4 << 20)
    bare.ip("b", "link set eth1 address 02:00:00:00:be:ef")

    def followed() -> bool:
        return bool(bare.peer("a").next_hops[0] == "02:00:00:00:be:ef")

    eventually(followed, "a sends to the new address", 2)
    stream.progress(8 << 20, 20)
    stream.finish(30)
    assert bare.peer("a").next_hops[1] == mac_of(bare, "b", "eth2")


def test_mac_of_a_gateway_changes_without_a_word(make: Make) -> None:
    """A router that is replaced does not announce itself, if it is unlucky."""
    bare = make(router4)
    bare.begin()
    stream = Stream(bare, "a", "b", INNER["b"]).start()
    stream.progress(4 << 20)
    bare.ip(MIDDLE, "link set a0 address 02:00:00:00:ca:fe")
    eventually(lambda: bare.peer("a").next_hops[0] == "02:00:00:00:ca:fe", "a has verified it", 20)
    stream.progress(8 << 20, 20)
    stream.finish(30)


def test_other_gateway(make: Make) -> None:
    """The route to a peer leads over another router from now on."""
    bare = make(router4)
    bare.begin()
    bare.ip(MIDDLE, "address add 10.0.0.9/24 dev a0")
    bare.ip(MIDDLE, "link add other type veth peer name other2")  # has another MAC address
    stream = Stream(bare, "a", "b", INNER["b"]).start()
    stream.progress(4 << 20)
    bare.ip("a", "neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev eth1")
    bare.ip("a", "route replace 10.0.1.0/24 via 10.0.0.9 dev eth1")
    eventually(lambda: bare.peer("a").next_hops[0] == "02:00:00:00:00:09", "the new gateway", 5)
    stream.progress(4 << 20)
    stream.finish(30)


def test_own_address_changes_and_the_peer_follows(make: Make) -> None:
    """The peer learns the new address from what is said under the session's keys."""
    bare = make(subnet4)
    bare.begin()
    stream = Stream(bare, "a", "b", INNER["b"]).start()
    stream.progress(4 << 20)
    bare.ip("b", "address del 192.168.0.2/24 dev eth1")
    bare.ip("b", "address add 192.168.0.77/24 dev eth1")
    eventually(lambda: bare.peer("a").endpoints == ["192.168.0.77", "192.168.1.2"], "a follows", 10)
    before = bare.sent("a")

    def both_carry() -> bool:
        return all(now > then for now, then in zip(bare.sent("a"), before, strict=True))

    eventually(both_carry, "both planes carry again", 20)
    stream.finish(30)
    bare.settle()
    both_ways(bare, 1 << 20)


def test_endpoint_changes_in_the_configuration(make: Make) -> None:
    """The peer's daemon is told, too, from which of its addresses it sends."""
    bare = make(subnet4)
    bare.begin()
    stream = Stream(bare, "a", "b", INNER["b"]).start()
    stream.progress(1 << 20)
    before = [(qp.qpn, qp.remote_qpn) for qp in connections(bare)]
    bare.ip("b", "address add 192.168.0.78/24 dev eth1")
    bare.configure("a", ["192.168.0.78", "192.168.1.2"])
    bare.reload("a")
    eventually(lambda: "config.changed" in bare.log("a"), "a has reread it", 20)
    # It is still heard from its former address, so a follows it back there, perhaps at once.
    eventually(lambda: "peer.moved" in bare.log("a"), "a has followed b", 20)
    stream.finish(60)
    assert bare.peer("a").endpoints == ["192.168.0.2", "192.168.1.2"]
    assert [(qp.qpn, qp.remote_qpn) for qp in connections(bare)] == before, "the QPs are the same"
    text = bare.config("b").read_text().replace('"eth1"\n', '"eth1"\naddress = "192.168.0.78"\n')
    bare.config("b").write_text(text)
    bare.reload("b")
    eventually(lambda: "config.changed" in bare.log("b"), "b has reread it", 240)
    eventually(lambda: bare.peer("a").endpoints[0] == "192.168.0.78", "a follows it again", 20)
    bare.settle()
    both_ways(bare, 1 << 20)


def connections(bare: Bare) -> list[Any]:
    with bare.client("a") as client:
        return list(client.connections("b")["connections"])


def test_smaller_path_mtu_is_found(make: Make) -> None:
    """A router says what is too long for it, and the kernel believes it because of our probes."""
    bare = make(router4)
    for plane in range(PLANES):
        there = f"{subnet('b', plane)}.2/32"
        bare.ip(MIDDLE, f"route add {there} dev b{plane} mtu lock {1450 - 10 * plane}")
    bare.begin()
    eventually(lambda: bare.peer("a").mtu == 1450 - 60, "the smaller of both planes", 10)
    eventually(lambda: "mtu 1390" in bare.ip("a", f"route show {INNER['b']}"), "the route", 10)
    assert bare.peer("b").mtu == 1450
    tried = bare.counters("a")["trial_tx"]
    too_long = refused(bare)
    transfer(bare, "a", "b", INNER["b"])
    too_long = refused(bare) - too_long
    # Longer packets are tried from time to time.
    assert too_long <= bare.counters("a")["trial_tx"] - tried, (
        "nothing but what is tried is too long"
    )


def test_nics_may_have_a_larger_mtu_than_mrcd_can_use(make: Make) -> None:
    """It is the usual one of virtual NICs, and nobody has asked for it here."""

    def wide(bare: Bare) -> None:
        for plane in range(PLANES):
            bare.cable("a", nic(plane), "b", nic(plane), mtu=60_000)

    bare = make(wide)
    bare.begin()
    status = bare.status("a")
    assert status is not None
    assert status.mrc0.mtu == bare.peer("a").mtu == MTU_MAX - 70
    size = str(status.mrc0.mtu - 28)
    said = bare.run("a", "ping", "-q", "-M", "do", "-c", "50", "-i", "0.01", "-s", size, INNER["b"])
    assert " 0% packet loss" in said
    both_ways(bare, 32 << 20)
    assert "mtu 60000" in bare.ip("a", "link show eth1"), "the NIC's is its owner's"


def test_ipv6_is_not_needed_where_addresses_are_ipv4(make: Make) -> None:
    """Neither by mrcd nor by `mrcctl doctor`, before mrcd starts and while it runs."""

    def without(bare: Bare) -> None:
        router4(bare)
        for host in HOSTS:
            for plane in range(PLANES):
                name = f"net.ipv6.conf.{nic(plane)}.disable_ipv6=1"
                bare.run(host, "sysctl", "-qw", name)

    bare = make(without)
    said = doctor(bare, "a")
    assert said["IPv6"] == "ok", said
    bare.begin()
    both_ways(bare, 1 << 20)
    said = doctor(bare, "a")
    assert said["mrcd"] == "ok"
    assert "wrong" not in said.values(), said


def doctor(bare: Bare, host: str) -> dict[str, str]:
    """Return the state of each check of `mrcctl doctor` on a host."""
    home = bare.folder / host
    done = subprocess.run(
        [
            "nsenter", f"--net=/run/netns/{bare.namespace(host)}", sys.executable, "-m", "cli",
            "--socket", str(home / "mrcd.sock"), "doctor", "--json",
            "--config", str(bare.config(host)), "--bpffs", str(bare.folder / "bpf" / host),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return {each["check"]: each["state"] for each in json.loads(done.stdout)["findings"]}


def refused(bare: Bare) -> int:
    """Return how many packets the router has refused because they were too long."""
    names, values = (
        line.split() for line in bare.run(MIDDLE, "cat", "/proc/net/snmp").splitlines()[:2]
    )
    return int(values[names.index("FragFails")])


def test_restart_takes_the_data_path_over(make: Make) -> None:
    bare = make(bridge, "")
    for host in HOSTS:
        text = bare.config(host).read_text().replace('"detach"', '"keep"')
        bare.config(host).write_text(text)
    bare.begin()
    stream = Stream(bare, "a", "b", INNER["b"]).start()
    stream.progress(4 << 20)
    bare.stop("a")
    stream.progress(4 << 20)
    bare.start("a")
    eventually(lambda: bare.ok("a"), "a is ok", 60)
    stream.progress(4 << 20)
    stream.finish(30)
    assert "datapath.adopted" in bare.log("a")
    for host in HOSTS:
        text = bare.config(host).read_text().replace('"keep"', '"detach"')
        bare.config(host).write_text(text)
        bare.reload(host)
        eventually(lambda host=host: "config.changed" in bare.log(host), "reread", 10)


# ---- what others do to the NICs


def said(bare: Bare, host: str, words: str) -> bool:
    """Return whether a host's status says this."""
    return any(words in reason for reason in reasons(bare, host))


def test_nic_that_goes_and_another_that_comes(make: Make) -> None:
    """The new one has another MAC address, and so another link-local one; the peer follows."""
    bare = make(bridge)
    bare.begin()
    stream = Stream(bare, "a", "b", INNER["b"]).start()
    stream.progress(4 << 20)
    before = bare.link_local("b", "eth1")
    bare.ip("b", "link delete eth1")
    eventually(lambda: said(bare, "b", "eth1 is missing"), "b misses its NIC", 5)
    stream.progress(4 << 20)
    bare.cable("b", "eth1", MIDDLE, "b0")
    bare.ip(MIDDLE, "link set b0 master br0")
    bare.settle()
    now = bare.link_local("b", "eth1")
    assert before != now
    eventually(lambda: bare.peer("a").endpoints[0] == now, "a follows", 10)
    there = bare.sent("a")

    def carried() -> bool:
        stream.progress(4 << 20, 20)
        return all(now > then + (1 << 18) for now, then in zip(bare.sent("a"), there, strict=True))

    eventually(carried, "the plane carries its share again", 20)
    stream.finish(30)
    both_ways(bare)


def test_nic_that_gets_another_name(make: Make) -> None:
    bare = make(bridge)
    bare.begin()
    for words in ("down", "name other", "up"):
        name = "other" if words == "up" else "eth1"
        bare.ip("b", f"link set {name} {words}")

    def only_the_name() -> bool:
        known = "plane 0: eth1 is now called other; it is still used"
        return [reason.partition("; remedy")[0] for reason in reasons(bare, "b")] == [known]

    eventually(only_the_name, "nothing else is wrong", 10)
    both_ways(bare)
    bare.ip("b", "link set other down")
    bare.ip("b", "link set other name eth1")
    bare.ip("b", "link set eth1 up")
    bare.settle()
    both_ways(bare)


def test_address_that_is_configured_and_lost(make: Make) -> None:
    """It is not mrcd's to add, so it is named."""
    bare = make(subnet4)
    text = bare.config("b").read_text().replace('"eth1"\n', '"eth1"\naddress = "192.168.0.2"\n')
    bare.config("b").write_text(text)
    bare.begin()
    bare.ip("b", "address del 192.168.0.2/24 dev eth1")
    eventually(lambda: said(bare, "b", "eth1 has lost its address 192.168.0.2"), "it is named", 5)
    assert "192.168.0.2" not in bare.ip("b", "address show dev eth1")
    bare.ip("b", "address add 192.168.0.2/24 dev eth1")
    bare.settle()
