# SPDX-License-Identifier: GPL-2.0-only
"""Test how hosts agree on planes: several hosts in memory, and cables between their NICs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from cli.quick import files
from cli.quick.discovery import ALONE_S, SETTLE_S, Discovery, Plan
from mrcd.config import admission, config
from mrcd.handshake import hello as hellos
from mrcd.handshake import identity
from mrcd.handshake.hello import HOSTS_MAX, BadHello, Hello, Said, decode, encode, fitting

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
    """Require that each host's plans lead to the other's NIC on the same network, and it back."""
    for name, plan in plans.items():
        assert sorted(peer.name for peer in plan.peers) == sorted(plans.keys() - {name})
        for peer in plan.peers:
            for plane, endpoint in enumerate(peer.endpoints):
                ours = plan.planes[plane]
                back = next(each for each in plans[peer.name].peers if each.name == name)
                if not endpoint:
                    assert address_of(name, ours) not in back.endpoints
                    continue
                theirs = int(endpoint.rpartition(":")[2])
                assert any(
                    {(name, ours), (peer.name, theirs)} <= network for network in room.networks
                )
                there = plans[peer.name].planes.index(theirs)
                assert back.endpoints[there] == address_of(name, ours)


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


def test_nic_that_hears_two() -> None:
    """NIC 0 of b hears both NICs of a, NIC 1 only the first: one way is left out."""
    room = Room([{("a", 0), ("b", 0), ("b", 1)}, {("a", 1), ("b", 0)}])
    plans = room.settle()
    check(room, plans)


TRIANGLE: Cables = [{("a", 0), ("b", 0)}, {("b", 1), ("c", 0)}, {("c", 1), ("a", 1)}]


def test_triangle_of_cables() -> None:
    room = Room(TRIANGLE)
    plans = room.settle()
    check(room, plans)
    b, c = plans["a"].peers
    assert (b.endpoints, c.endpoints) == (("fe80::b:0", ""), ("", "fe80::c:1"))


@pytest.mark.parametrize("host", ["a", "b"])
def test_hosts_with_unequal_numbers_of_nics(host: str) -> None:
    room = Room([{("a", 0), ("b", 0)}, {("a", 1), ("b", 1)}, {("a", 2)}])
    plans = room.settle()
    check(room, plans)
    assert room.hosts["a"].quiet_nics == ["eth3"]
    assert [*plans[host].peers[0].endpoints].count("") == (1 if host == "a" else 0)


def test_nothing_is_settled_before_all_is_quiet() -> None:
    room = Room([{("a", 0), ("b", 0)}])
    while room.now < SETTLE_S:
        room.turn()
        assert not any(one.settled(now_s=room.now) for one in room.hosts.values())


def test_hosts_that_are_missing_may_be_behind_others() -> None:
    """They are waited for a little longer, and come to be known when mrcd runs."""
    room = Room([{("a", 0), ("b", 0)}])
    room.settle()
    one = room.hosts["a"]
    assert not one.settled(now_s=room.now, hosts=3)
    assert one.missing(3) == "2 of 3 hosts are here: a, b"
    assert one.settled(now_s=room.now + ALONE_S, hosts=3)


def test_hosts_behind_others_are_known() -> None:
    room = Room([{("a", 0), ("b", 0)}, {("b", 1), ("c", 0)}])
    room.settle()
    assert room.hosts["a"].known == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("networks", "why"),
    [
        ([{("a", 0)}], "no other host is heard on eth1"),
        ([{("a", 0)}, {("a", 1)}, {("a", 2)}], "no other host is heard on eth1, eth2 or eth3"),
    ],
)
def test_missing(networks: Cables, why: str) -> None:
    room = Room(networks)
    for _ in range(20):
        room.turn()
    assert not room.hosts["a"].settled(now_s=room.now)
    assert room.hosts["a"].missing() == why


def test_missing__host_that_does_not_hear_us() -> None:
    one, other = (Discovery(n, n, ["eth1"], (host_ip(n),)) for n in "ab")
    one.hear(0, "fe80::b:0", other.hello(0), now_s=0.0)
    assert not one.settled(now_s=9.0)
    assert one.missing() == "b does not hear this host"


def test_hello_of_a_large_cluster_fits_a_datagram() -> None:
    """64 hosts with 8 NICs on one network: each hears each other one on all pairs of NICs."""
    one = Discovery("a" * 31, "0" * 16, [f"eth{k}" for k in range(8)], ("10.99.0.1",))
    for number in range(63):
        name, inner = f"host-{number:02}-with-a-name-of-31-b", (f"10.99.1.{number}",)
        for theirs in range(8):
            said = Said(name, f"{number}", 0, 0, 8, inner)
            for ours in range(8):
                one.hear(ours, f"fe80::{number}:{theirs}", Hello(said, theirs), now_s=0.0)
    assert one.clash is None
    assert len(encode(one.hello(7), KEY)) < 4_000
    separate = Said("b", "1", 0, 0, 8, ("10.99.0.2",), heard={
        f"host-{number:02}-with-a-name-of-31-b": tuple((nic, 7 - nic) for nic in range(8))
        for number in range(64)
    })  # fmt: skip
    assert len(encode(Hello(separate, 0, told=fitting([separate] * 64, 0)), KEY)) < 65_000


def test_two_hosts_of_one_name() -> None:
    one = Discovery("a", "one", ["eth1"], ("10.99.0.1",))
    other = Discovery("a", "other", ["eth1"], ("10.99.0.2",))
    one.hear(0, "fe80::2", other.hello(0), now_s=1)
    assert one.clash == "another host at fe80::2 is called a, too: give --name"
    assert one.hosts == []
    one.forget("b")
    assert one.clash is not None
    one.forget("a")  # it was put out: the name is ours
    assert one.clash is None


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


HELLO = Discovery("a", "run", ["eth1", "eth2"], ("10.99.0.1", "fd99::1"), 7).hello(1)


def test_hello_is_read_back() -> None:
    said = replace(
        HELLO.said,
        addresses=("fe80::1", ""),
        rates=(25_000, 0),
        heard={"b": ((0, 1), (1, 0)), "c": ((0, 0), (0, 1), (1, 0), (1, 1))},
        forwards=True,
        mtu=9000,
        seq=8,
    )
    told = replace(said, name="b", addresses=(), leaving=True)
    hello = Hello(said, 1, True, True, {"b": "it may not"}, ("c",), (told,))
    assert decode(encode(hello, KEY), KEY) == hello


def test_what_is_told_fits_and_has_its_turn() -> None:
    every = [replace(HELLO.said, name=f"h{number}", run="x" * 20) for number in range(900)]
    first = fitting(every, 0)
    assert len(first) == HOSTS_MAX
    assert fitting(every, 890)[:12] == (*every[890:], *every[:2])
    assert fitting([], 7) == ()
    long = replace(HELLO.said, heard={f"h{k}": ((0, 0), (1, 1)) for k in range(HOSTS_MAX)})
    assert 0 < len(fitting([long] * HOSTS_MAX, 0)) < HOSTS_MAX


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
        {"said": {"name": ""}},
        {"said": {"name": "x" * 32}},
        {"nic": 2},
        {"said": {"nics": 9}},
        {"said": {"inner": []}},
        {"said": {"inner": ["nonsense"]}},
        {"said": {"addresses": ["fe80::1"]}},
        {"said": {"addresses": ["fe80::1", "anywhere"]}},
        {"said": {"rates": [1000]}},
        {"said": {"rates": [1000, -1]}},
        {"said": {"rates": [1000, 1 << 32]}},
        {"said": {"rates": 1000}},
        {"said": {"heard": {"b": [[1]]}}},
        {"said": {"heard": 7}},
        {"said": {"heard": {f"h{k}": [] for k in range(HOSTS_MAX + 1)}}},
        {"said": {"mtu": "much"}},
        {"told": [{"name": "b"}]},
        {"told": 7},
        {"refused": []},
    ],
    ids=str,
)
def test_hello_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    datagram = encode(HELLO, b"")
    data = json.loads(datagram[20:])
    said = wrong.get("said", {})
    assert isinstance(said, dict)
    forged = encode_raw({**data, **wrong, "said": {**data["said"], **said}})
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


@pytest.mark.parametrize("by", [files.SECRET, files.INVITATION, ""])
def test_configuration_is_valid(by: str) -> None:
    room = Room([{("a", 0), ("b", 1)}, {("a", 1), ("b", 0)}], {"b": "fd99::2"})
    plan = room.settle()["b"]
    text = files.configuration("b", OWN, ["eth1", "eth2"], plan, by=by)
    loaded = config.loads(text, Path("/run/mrcd/quick/mrcd.toml"))
    assert loaded.interfaces == ("eth2", "eth1"), "as the host has them that leads"
    assert loaded.keys.insecure is (by == "")
    if by:
        assert loaded.keys.discover
        assert loaded.peers == ()
        (host,) = files.admitted(OWN, plan, {})
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
