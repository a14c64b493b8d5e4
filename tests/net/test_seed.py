# SPDX-License-Identifier: GPL-2.0-only
"""Test that hosts in subnets of their own, behind routers, find each other by any member."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address

import pytest

from mrcd.handshake import identity, unicast
from mrcd.handshake.unicast import NO_COOKIE, Parcel
from mrcd.linux import netns
from mrcd.linux.groupsocket import PORT
from mrcd.linux.unicastsocket import open_at
from rigs.bare_hosts import STARTED_S
from rigs.lab_hosts import eventually
from rigs.quick_hosts import finished, inner
from rigs.routed_hosts import RoutedCluster
from rigs.traffic import Stream, transfer

pytestmark = pytest.mark.timeout(600)

JOINED_S = 20.0
"""Far more than it takes, for busy machines; docs/operations.md has the times."""
HOSTS = "abc"

Make = Callable[..., RoutedCluster]


@pytest.fixture
def make() -> Iterator[Make]:
    """Build hosts a, b and c, and remove them at the end."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    made: list[RoutedCluster] = []

    def build(*, version: int = 4, one: bool = False) -> RoutedCluster:
        cluster = RoutedCluster(f"s{os.getpid()}{len(made)}", 2)
        cluster.version, cluster.one = version, one
        made.append(cluster)
        cluster.build()
        for host in HOSTS:
            cluster.plug(host)
        return cluster

    try:
        yield build
    finally:
        for cluster in made:
            cluster.close()


def complete(cluster: RoutedCluster, hosts: str = HOSTS) -> None:
    """Wait until these hosts are peers of each other, on both planes, and of nobody else."""
    for host in hosts:

        def there(host: str = host) -> bool:
            peers = cluster.peers(host)
            good = [p for p in peers.values() if p["state"] == "established"]
            planes = [p["planes_usable"] for p in good]
            return {*peers} == {*hosts} - {host} and planes == [[0, 1]] * (len(hosts) - 1)

        eventually(
            there,
            lambda host=host: f"{host}: {cluster.peers(host)} {cluster.warnings(host)}", JOINED_S,
        )  # fmt: skip


def joined(cluster: RoutedCluster) -> None:
    """Have b join by a, and c by b."""
    cluster.first("a")
    cluster.seed("b", "a")
    cluster.seed("c", "b")
    complete(cluster)


@pytest.mark.parametrize(
    ("version", "one"), [(4, False), (6, False), (4, True), (6, True)],
    ids=["ipv4", "ipv6", "one-ipv4", "one-ipv6"],
)  # fmt: skip
def test_hosts_join_by_any_member_and_leave(make: Make, version: int, one: bool) -> None:
    """The planes are networks of their own, or all of them one network."""
    cluster = make(version=version, one=one)
    joined(cluster)
    for host in HOSTS:
        for name, peer in cluster.peers(host).items():
            assert peer["endpoints"] == [cluster.address(name, 0), cluster.address(name, 1)]
        assert "ok" in cluster.warnings(host).splitlines()[0]
    stream = Stream(cluster, "a", "b", inner(cluster, "b")).start(64 << 20)
    transfer(cluster, "a", "c", inner(cluster, "c"))
    transfer(cluster, "c", "b", inner(cluster, "b"))
    cluster.down("c")
    for host in ("a", "b"):
        eventually(lambda host=host: "c" not in cluster.peers(host), f"{host} lets c go", JOINED_S)
    stream.finish()
    complete(cluster, "ab")


def test_who_forgets_the_seed_is_told(make: Make) -> None:
    cluster = make()
    code, _out, error = finished(cluster.up("a", "eth1", "eth2", more=("--wait", "4")))
    assert code == 1
    assert "no other host is heard on eth1 or eth2; if routers are in between" in error
    assert error.rstrip().endswith("--seed")


def test_planes_are_matched_by_what_is_heard(make: Make) -> None:
    """One host names its NICs in the other order."""
    cluster = make()
    cluster.first("a")
    process = cluster.up("b", "eth2", "eth1", secret=cluster.secret,
                         more=("--seed", cluster.address("a", 0)))  # fmt: skip
    assert finished(process)[0] == 0
    complete(cluster, "ab")
    assert cluster.peers("b")["a"]["endpoints"] == [cluster.address("a", k) for k in (1, 0)]
    assert cluster.peers("a")["b"]["endpoints"] == [cluster.address("b", k) for k in (0, 1)]
    transfer(cluster, "a", "b", inner(cluster, "b"))
    transfer(cluster, "b", "a", inner(cluster, "a"))


def test_seed_is_started_last(make: Make) -> None:
    cluster = make()
    cluster.first("a")
    secret = cluster.secret
    cluster.down("a")
    waiting = {host: cluster.seeded(host, "a") for host in "bc"}
    for host in waiting:
        eventually(
            lambda host=host: re.search(
                f"seed {cluster.address('a', 0)} has nothing at UDP port {PORT}",
                cluster.warnings(host),
            ),
            lambda host=host: cluster.warnings(host), STARTED_S,
        )  # fmt: skip
    cluster.secret = secret
    cluster.first("a")
    for process in waiting.values():
        code, _out, error = finished(process)
        assert code == 0, error
        assert "waiting: seed" in error
    complete(cluster)
    transfer(cluster, "b", "c", inner(cluster, "c"))


def test_rebooted_host_is_back_with_other_addresses(make: Make) -> None:
    cluster = make()
    joined(cluster)
    before = cluster.peers("a")["c"]["endpoints"]
    cluster.power_off("c")
    cluster.plug("c")
    cluster.seed("c", "a")
    complete(cluster)
    assert cluster.peers("a")["c"]["endpoints"] != before
    transfer(cluster, "b", "c", inner(cluster, "c"))
    transfer(cluster, "c", "a", inner(cluster, "a"))


def test_seed_that_was_rebooted_is_back(make: Make) -> None:
    """It knows nobody, and those that know it find it again; nobody is told anything."""
    cluster = make()
    joined(cluster)
    number = cluster.subnets["a"]
    cluster.power_off("a")
    del cluster.subnets["a"]
    cluster.plug("a", number)
    cluster.first("a")
    complete(cluster)
    transfer(cluster, "a", "c", inner(cluster, "c"))
    transfer(cluster, "b", "a", inner(cluster, "a"))


def test_host_that_gets_other_addresses_while_it_runs_stays(make: Make) -> None:
    cluster = make()
    joined(cluster)
    cluster.readdress("c")
    wanted = [cluster.address("c", plane) for plane in (0, 1)]
    for host in "ab":
        eventually(
            lambda host=host: cluster.peers(host)["c"]["endpoints"] == wanted,
            lambda host=host: f"{cluster.peers(host)['c']['endpoints']}", JOINED_S,
        )  # fmt: skip
    complete(cluster)
    transfer(cluster, "a", "c", inner(cluster, "c"))
    transfer(cluster, "c", "b", inner(cluster, "b"))


# ---- why not


SAID_S = 5.0
"""Until it is said why a seed does not answer: 1.5 s, and more on busy machines."""


def refused(cluster: RoutedCluster, host: str, reason: str, **options: str) -> None:
    """Assert that a host that does not get in says why, in time, and so does its status."""
    process = cluster.seeded(host, "a", **options)
    eventually(lambda: cluster.status(host), f"mrcd of {host} answers", STARTED_S)
    began = time.monotonic()
    assert process.stderr is not None
    said = ""
    while not re.search(f"waiting: .*{reason}", said):
        assert time.monotonic() - began < SAID_S, said
        said += process.stderr.readline()
    now = cluster.status(host)
    assert now is not None
    assert any(re.search(reason, text) for text in now.warnings), now.warnings
    process.terminate()
    finished(process)
    cluster.down(host)


def test_what_keeps_a_host_from_its_seed_is_said(make: Make) -> None:
    cluster = make()
    cluster.first("a")
    other = identity.encode_key(os.urandom(identity.KEY_BYTES))
    refused(cluster, "b", "refuses this host: it has another secret", secret=other)
    cluster.filter(0, f"udp dport {PORT} drop")
    refused(cluster, "b", f"is up, and nothing comes back from UDP port {PORT}")
    cluster.filter_no_more(0)
    router = cluster.address("b", 0, 1)
    cluster.filter(0, f"udp dport {PORT} reject")
    refused(cluster, "b", f"is not reached: {router} refuses")
    cluster.filter_no_more(0)
    cluster.ip("b", "route del 10.0.0.0/16 dev eth1")
    refused(cluster, "b", "this host has no route to it by eth1, eth2")
    cluster.ip("b", f"route add 10.0.0.0/16 via {router} dev eth1")
    cluster.ip("r0", "link set a0 down")
    refused(cluster, "b", f"is not reached: {router} says that there is no way to it")


def test_host_whose_name_is_taken_is_told(make: Make) -> None:
    cluster = make()
    cluster.first("a")
    cluster.seed("b", "a")
    code, _out, error = finished(cluster.seeded("c", "a", more=("--name", "b", "--wait", "60")))
    assert code == 1
    assert re.search("two hosts are called b|b does not take this host", error), error
    assert not cluster.quick("c").exists()
    code, _out, error = finished(cluster.seeded("c", "a", more=("--name", "a", "--wait", "60")))
    assert code == 1
    assert "two hosts are called a: this host and one at" in error
    assert not cluster.quick("c").exists()
    complete(cluster, "ab")


def test_strangers_get_no_more_than_they_send(make: Make) -> None:
    """What is none of ours gets nothing, and a Hello from elsewhere 20 bytes."""
    cluster = make()
    cluster.first("a")
    cluster.seed("b", "a")
    heard = cluster.hello("b", "a")
    assert len(heard) > 300
    cluster.down("b")
    there = cluster.address("a", 0)
    with netns.entered(cluster.namespace("c")):
        sock = open_at("eth1", ip_address(cluster.address("c", 0)), PORT)
    try:
        sock.setblocking(True)
        sock.settimeout(2)
        content = unicast.read(heard)
        assert isinstance(content, Parcel)
        own = b"12345678"
        for said in (b"\0" * 400, b"MRCh" + b"\0" * 400, b"MRCc" + b"\0" * 16, content.content):
            sock.sendto(said, (there, PORT))
        for given in (NO_COOKIE, content.given, own):
            sock.sendto(Parcel(given, own, content.content).pack(), (there, PORT))
            answer = unicast.read(sock.recv(2048))
            assert answer == unicast.Short(unicast.COOKIE, own, answer.value)
        sock.sendto(Parcel(answer.value, own, content.content).pack(), (there, PORT))
        moved = unicast.read(sock.recv(2048))
        assert moved == unicast.Short(unicast.REFUSED, own, (2).to_bytes(8, "big"))
        wrong = content.content[:-1] + bytes([content.content[-1] ^ 1])
        sock.sendto(Parcel(answer.value, own, wrong).pack(), (there, PORT))
        secret = unicast.read(sock.recv(2048))
        assert secret == unicast.Short(unicast.REFUSED, own, (1).to_bytes(8, "big"))
        sock.settimeout(1)
        with pytest.raises(TimeoutError):
            sock.recv(2048)
    finally:
        sock.close()
    assert not cluster.peers("a")


# ---- invitations, and their end


def test_invited_host_joins_by_a_seed_and_is_out_once_revoked(make: Make) -> None:
    cluster = make()
    cluster.first("a")
    cluster.seed("b", "a")
    invitation = cluster.invite("a", "c")
    code, _out, error = finished(cluster.invited("c", invitation, "a"))
    assert code == 0, error
    complete(cluster)
    assert cluster.peers("b")["c"]["known_by"] == "invitation"
    transfer(cluster, "b", "c", inner(cluster, "c"))
    code, _out, error = finished(cluster.mrcctl("a", "peer", "revoke", "c"))
    assert code == 0, error
    for host in "ab":
        eventually(lambda host=host: "c" not in cluster.peers(host), f"{host}: c is out", JOINED_S)
    eventually(
        lambda: "this host was revoked" in cluster.warnings("c"),
        lambda: cluster.warnings("c"), JOINED_S,
    )  # fmt: skip
    complete(cluster, "ab")
