# SPDX-License-Identifier: GPL-2.0-only
"""Test how hosts agree on planes: several hosts in memory, and cables between their NICs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from cli.quick import files
from cli.quick.discovery import SETTLE_S, Discovery, Plan
from mrcd.config import admission, config
from mrcd.handshake import hello as hellos
from mrcd.handshake import identity
from mrcd.handshake.hello import BadHello, Hello, decode, encode

KEY = bytes(range(32))
OWN = ["fd99::2/64", "10.99.0.2/16"]
Cables = list[set[tuple[str, int]]]


class Room:
    """Hosts whose NICs are on networks; each network is a set of (host, NIC)."""

    def __init__(self, networks: Cables, inner: dict[str, str] | None = None) -> None:
        self.networks = networks
        nics: dict[str, int] = {}
        for host, nic in {end for network in networks for end in network}:
            nics[host] = max(nics.get(host, 0), nic + 1)
        self.hosts = {
            host: Discovery(
                host,
                f"run of {host}",
                [f"eth{number + 1}" for number in range(count)],
                ((inner or {}).get(host, host_ip(host)),),
                len(nics),
            )
            for host, count in sorted(nics.items())
        }
        self.now = 0.0

    def turn(self) -> None:
        """Have every host say Hello by each NIC, and all others on that network hear it."""
        self.now += 0.25
        for network in self.networks:
            for host, nic in sorted(network):
                datagram = encode(self.hosts[host].hello(nic), KEY)
                for other, their in sorted(network - {(host, nic)}):
                    self.hosts[other].hear(
                        their, address_of(host, nic), decode(datagram, KEY), now_s=self.now
                    )
        for one in self.hosts.values():
            one.settled(now_s=self.now, hosts=len(self.hosts))

    def settle(self) -> dict[str, Plan]:
        """Have turns until every host knows that all are settled; return their plans."""
        for _ in range(40):
            self.turn()
            if all(one.settled(now_s=self.now) and one.all_done for one in self.hosts.values()):
                break
        else:
            pytest.fail(str({name: one.missing() for name, one in self.hosts.items()}))
        return {name: plan for name, one in self.hosts.items() if (plan := one.plan()) is not None}


def host_ip(host: str) -> str:
    return f"10.99.0.{ord(host) - 96}"


def address_of(host: str, nic: int) -> str:
    return f"fe80::{host}:{nic}"


def check(room: Room, plans: dict[str, Plan]) -> None:
    """Require that each host's plans lead to the other's NIC of the same plane, on one network."""
    for name, plan in plans.items():
        assert sorted(peer.name for peer in plan.peers) == sorted(plans.keys() - {name})
        for peer in plan.peers:
            for plane, endpoint in enumerate(peer.endpoints):
                ours, theirs = plan.planes[plane], plans[peer.name].planes[plane]
                assert endpoint == address_of(peer.name, theirs)
                assert any(
                    {(name, ours), (peer.name, theirs)} <= network for network in room.networks
                )


@pytest.mark.parametrize("crossed", list(permutations(range(3))), ids=str)
def test_cables_may_cross(crossed: tuple[int, ...]) -> None:
    room = Room([{("a", nic), ("b", other)} for nic, other in enumerate(crossed)])
    plans = room.settle()
    check(room, plans)
    assert plans["a"].planes == (0, 1, 2), "the first one leads"
    assert plans["b"].planes == crossed


def test_one_network_for_all_nics() -> None:
    room = Room([{(host, nic) for host in "abc" for nic in range(2)}])
    plans = room.settle()
    check(room, plans)
    assert {plan.planes for plan in plans.values()} == {(0, 1)}


def test_several_hosts_on_switches() -> None:
    room = Room([{("a", 0), ("b", 1), ("c", 0)}, {("a", 1), ("b", 0), ("c", 1)}])
    plans = room.settle()
    check(room, plans)
    assert plans["b"].planes == (1, 0)


def test_nic_that_two_planes_could_have() -> None:
    """NIC 0 of b hears both NICs of a, NIC 1 only the first."""
    room = Room([{("a", 0), ("b", 0), ("b", 1)}, {("a", 1), ("b", 0)}])
    plans = room.settle()
    check(room, plans)
    assert plans["b"].planes == (1, 0)


def test_nothing_is_settled_before_all_is_quiet() -> None:
    room = Room([{("a", 0), ("b", 0)}])
    while room.now < SETTLE_S:
        room.turn()
        assert not any(one.settled(now_s=room.now) for one in room.hosts.values())


def test_more_hosts_are_waited_for() -> None:
    room = Room([{("a", 0), ("b", 0)}])
    room.settle()
    assert not room.hosts["a"].settled(now_s=room.now, hosts=3)


TRIANGLE: Cables = [{("a", 0), ("b", 0)}, {("b", 1), ("c", 0)}, {("c", 1), ("a", 1)}]
PLANE = "each plane has to be one network of all hosts, such as a switch, or with two hosts a cable"


@pytest.mark.parametrize(
    ("networks", "host", "why"),
    [
        ([{("a", 0)}], "a", "no other host is heard on eth1"),
        ([{("a", 0)}, {("a", 1)}, {("a", 2)}], "a", "no other host is heard on eth1, eth2 or eth3"),
        ([{("a", 0), ("b", 0)}, {("a", 1)}, {("b", 1)}], "a", "b is not heard on eth2"),
        ([{("a", 0), ("b", 0)}, {("a", 1)}, {("b", 1)}], "b", "a is not heard on eth2"),
        (TRIANGLE, "a", f"b is not heard on eth2, where c is: {PLANE}"),
        (TRIANGLE, "b", f"a is not heard on eth2, where c is: {PLANE}"),
        (TRIANGLE, "c", f"a is not heard on eth1, where b is: {PLANE}"),
    ],
)
def test_missing(networks: Cables, host: str, why: str) -> None:
    room = Room(networks)
    for _ in range(20):
        room.turn()
    assert not room.hosts[host].settled(now_s=room.now)
    assert room.hosts[host].missing() == why


def test_missing__host_that_has_not_come() -> None:
    room = Room([{("a", 0), ("b", 0)}])
    for name in ("a", "b"):
        room.hosts[name] = Discovery(name, name, ["eth1"], (host_ip(name),), 3)
    for _ in range(20):
        room.turn()
    assert room.hosts["a"].missing() == "2 of 3 hosts are here: a, b"


@pytest.mark.parametrize("host", ["a", "b"])
def test_hosts_with_unequal_numbers_of_nics_are_told_at_once(host: str) -> None:
    room = Room([{("a", 0), ("b", 0)}, {("a", 1), ("b", 1)}, {("a", 2)}])
    room.turn()
    clash = room.hosts[host].clash
    assert clash is not None
    assert "has 3 NICs" in clash or "this host 3 NICs (eth1, eth2, eth3)" in clash
    assert "give both as many" in clash


def test_hosts_that_wait_for_unequal_numbers_are_told_at_once() -> None:
    room = Room([{("a", 0), ("b", 0)}])
    room.hosts["b"] = Discovery("b", "b", ["eth1"], ("10.99.0.2",), 3)
    room.turn()
    assert room.hosts["a"].clash == (
        "b waits for 3 hosts in all and this one for 2: give both the same --hosts"
    )
    assert room.hosts["b"].clash is not None


def test_hello_of_a_large_cluster_fits_a_datagram() -> None:
    """64 hosts with 8 NICs on one network: each hears each other one on all pairs of NICs."""
    one = Discovery("a" * 31, "0" * 16, [f"eth{k}" for k in range(8)], ("10.99.0.1",), 64)
    for number in range(63):
        for theirs in range(8):
            said = Hello(f"host-{number:02}-with-a-name-of-31-b", f"{number}", theirs, 8,
                         (f"10.99.1.{number}",), hosts=64)  # fmt: skip
            for ours in range(8):
                one.hear(ours, f"fe80::{number}:{theirs}", said, now_s=0.0)
    assert one.clash is None
    assert 20_000 < len(encode(one.hello(7), KEY)) < 65_000


def test_two_hosts_of_one_name() -> None:
    one = Discovery("a", "one", ["eth1"], ("10.99.0.1",))
    other = Discovery("a", "other", ["eth1"], ("10.99.0.2",))
    one.hear(0, "fe80::2", other.hello(0), now_s=1)
    assert one.clash == "another host at fe80::2 is called a, too: give --name"
    assert one.hosts == []


def test_own_hello_by_another_nic_is_ignored() -> None:
    one = Discovery("a", "one", ["eth1", "eth2"], ("10.99.0.1",))
    one.hear(1, "fe80::1", one.hello(0), now_s=1)
    assert (one.clash, one.hosts) == (None, [])


def test_two_hosts_with_one_address() -> None:
    room = Room([{("a", 0), ("b", 0)}], inner={"a": "10.99.0.9", "b": "10.99.0.9"})
    room.turn()
    assert room.hosts["a"].clash == "b has the address 10.99.0.9 of our mrc0: give --address"


def test_host_that_begins_anew_is_heard_anew() -> None:
    room = Room([{("a", 0), ("b", 0)}, {("a", 1), ("b", 1)}])
    room.settle()
    room.networks = [{("a", 0), ("b", 1)}, {("a", 1), ("b", 0)}]  # cabled the other way
    room.hosts["b"] = Discovery("b", "another run", ["eth1", "eth2"], ("10.99.0.2",))
    plans = room.settle()
    assert plans["b"].planes == (1, 0)


# ---- datagrams


HELLO = Discovery("a", "run", ["eth1", "eth2"], ("10.99.0.1", "fd99::1")).hello(1)


def test_hello_is_read_back() -> None:
    hello = replace(HELLO, planes=(1, 0), heard={"b": ((0, 1), (1, 0))}, done=True)
    assert decode(encode(hello, KEY), KEY) == hello


@pytest.mark.parametrize("at", range(4, 40, 5))
def test_hello_that_was_changed_is_refused(at: int) -> None:
    datagram = bytearray(encode(HELLO, KEY))
    datagram[at] ^= 1
    with pytest.raises(BadHello, match="another secret"):
        decode(bytes(datagram), KEY)


@pytest.mark.parametrize("key", [b"", bytes(32)])
def test_hello_of_another_secret_is_refused(key: bytes) -> None:
    with pytest.raises(BadHello, match="another secret, or none"):
        decode(encode(HELLO, key), KEY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "x" * 32},
        {"nic": 2},
        {"nics": 9},
        {"inner": []},
        {"inner": ["nonsense"]},
        {"planes": [0, 0]},
        {"planes": [0, 2]},
        {"heard": {"b": [[1]]}},
        {"heard": 7},
    ],
    ids=str,
)
def test_hello_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    datagram = encode(HELLO, b"")
    data = json.loads(datagram[20:])
    forged = encode_raw({**data, **wrong})
    with pytest.raises(BadHello, match="cannot be read"):
        decode(forged, KEY)


def encode_raw(data: dict[str, object]) -> bytes:
    """Return a datagram with a right tag around anything."""
    body = json.dumps(data).encode()
    return hellos.MAGIC + hellos._tag(KEY, body) + body


def test_anything_else_is_no_hello() -> None:
    with pytest.raises(BadHello, match="no Hello"):
        decode(b"MRCh\x00", KEY)
    assert isinstance(HELLO, Hello)


# ---- files


@pytest.mark.parametrize("secret", [True, False])
def test_configuration_is_valid(secret: bool) -> None:
    room = Room([{("a", 0), ("b", 1)}, {("a", 1), ("b", 0)}], {"b": "fd99::2"})
    plan = room.settle()["b"]
    text = files.configuration("b", OWN, ["eth1", "eth2"], plan, secret=secret)
    loaded = config.loads(text, Path("/run/mrcd/quick/mrcd.toml"))
    assert loaded.interfaces == ("eth2", "eth1")
    assert loaded.keys.insecure is not secret
    if secret:
        assert loaded.keys.discover
        assert loaded.peers == ()
        (host,) = files.admitted(OWN, plan)
        ring = identity.simple_keys(identity.Secret(KEY), "b", [])
        loaded = admission.joined(replace(loaded, keyring=ring), [host]).config
    (peer,) = loaded.peers
    assert (peer.name, str(peer.allowed[0])) == ("a", "10.99.0.1/32")
    assert [str(each) for each in peer.host.endpoints] == ["fe80::a:0", "fe80::a:1"]


@pytest.mark.parametrize(
    ("hostname", "name"),
    [
        ("node7", "node7"),
        ("Node-7.example.com", "node-7"),
        ("7up", "h7up"),
        ("a_b", "a-b"),
        ("x" * 40, "x" * 31),
        ("", "h"),
    ],
)
def test_name_follows_from_the_system(hostname: str, name: str) -> None:
    assert files.name_of(hostname) == name


def test_addresses_follow_from_the_name() -> None:
    first, again, other = (files.addresses_of(name) for name in ("node1", "node1", "node2"))
    assert first == again
    assert not {each.partition("/")[0] for each in first} & {
        each.partition("/")[0] for each in other
    }
    assert [each.partition("/")[2] for each in first] == ["16", "64"]
