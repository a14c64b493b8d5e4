# SPDX-License-Identifier: GPL-2.0-only
"""Test that routes by a peer's address are followed, as host-gw, Calico and FRR make them.

Each host has a pod with an address of a prefix of its own, and `routed` covers all such prefixes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from rigs.bare_hosts import HOSTS, INNER, STARTED_S, Bare, Make, bridge, building
from rigs.lab_hosts import eventually
from rigs.traffic import Stream, transfer

CLUSTER = "10.244.0.0/16"
PODS = {"a": "10.244.1.2", "b": "10.244.2.2"}
BEHIND_B = "10.244.2.0/24"
SEEN_S = 10.0


@pytest.fixture(scope="module")
def make() -> Iterator[Make]:
    yield from building("v", 2)


@pytest.fixture(scope="module")
def bare(make: Make) -> Bare:
    """Return two hosts with a pod each, `pa` and `pb`, which no route over mrc0 reaches yet."""
    bare = make(bridge)
    for host, pod in PODS.items():
        routed(bare, host, [CLUSTER])
        node = f"p{host}"
        bare.add(node)
        bare.cable(host, "box", node, "eth0")
        gateway = pod.rpartition(".")[0] + ".1"
        bare.ip(host, f"address add {gateway}/24 dev box")
        bare.ip(node, f"address add {pod}/24 dev eth0")
        bare.ip(node, f"route add default via {gateway}")
        bare.run(host, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    bare.begin()
    return bare


def routed(bare: Bare, host: str, prefixes: list[str]) -> None:
    """Write into a host's configuration which prefixes may be behind it."""
    place = bare.config(host)
    kept = [each for each in place.read_text().splitlines() if not each.startswith("routed")]
    at = kept.index("[mrc0]") + 1
    kept.insert(at, "routed = [" + ", ".join(f'"{each}"' for each in prefixes) + "]")
    place.write_text("\n".join(kept) + "\n")


@pytest.fixture
def led(bare: Bare) -> Iterator[Bare]:
    """Return hosts that route to each other's pods by each other's address."""
    for host, other in (HOSTS, HOSTS[::-1]):
        prefix = PODS[other].rpartition(".")[0] + ".0/24"
        bare.ip(host, f"route replace {prefix} via {INNER[other]} dev mrc0 onlink")
    for host in HOSTS:
        eventually(lambda host=host: bare.peer(host).followed, f"{host} follows", SEEN_S)
    yield bare
    for host, other in (HOSTS, HOSTS[::-1]):
        prefix = PODS[other].rpartition(".")[0] + ".0/24"
        bare.run(host, "ip", "route", "del", prefix, check=False)


def test_pods_reach_each_other_by_next_hops(led: Bare) -> None:
    before = led.counters("a")["tx_bytes"]
    transfer(led, "pa", "pb", PODS["b"])
    transfer(led, "pb", "pa", PODS["a"])
    transfer(led, "pa", "b", INNER["b"])  # a host answers a pod of another one
    assert led.counters("a")["tx_bytes"] - before >= 4 << 20, "it went over mrc0"
    assert led.peer("a").followed == [BEHIND_B]
    for host in HOSTS:
        assert led.said(host) == []
        counted = led.counters(host)
        assert (counted["drop_foreign"], counted["drop_not_here"]) == (0, 0)


def test_segments_of_a_pod_cross_whole(led: Bare) -> None:
    """TCP in a pod builds segments for its own interface: more packets than mrc0's own."""
    before = led.counters("a")
    transfer(led, "pa", "pb", PODS["b"], 64 << 20)
    sent = {name: count - before[name] for name, count in led.counters("a").items()}
    assert sent["tx_packets"] > 64 << 20 >> 11
    assert sent["tx_cells"] > sent["tx_packets"] / 60, "few went as packets of their own"


def test_daemon_that_dies_leaves_what_was_followed(led: Bare) -> None:
    stream = Stream(led, "pa", "pb", PODS["b"]).start(24 << 20)
    led.stop("b", signal.SIGKILL)
    led.start("b")
    stream.finish()
    eventually(lambda: led.ok("b") and led.ok("a"), "both are ok", STARTED_S)
    assert led.peer("b").followed == ["10.244.1.0/24"]
    assert led.counters("b")["drop_foreign"] == 0


def test_route_that_goes_is_not_followed_any_more(led: Bare) -> None:
    led.ip("a", f"route del {BEHIND_B}")
    eventually(lambda: led.peer("a").followed is None, "nothing is followed", SEEN_S)
    assert led.said("a") == []


def test_next_hop_that_no_peer_has_is_named(led: Bare) -> None:
    led.ip("a", f"route replace {BEHIND_B} via 10.99.0.9 dev mrc0 onlink")
    eventually(
        lambda: f"{BEHIND_B} over mrc0 by 10.99.0.9, and no peer" in str(led.said("a")),
        "it is named",
        SEEN_S,
    )
    assert led.peer("a").followed is None


def test_outside_of_routed_nothing_is_followed(led: Bare) -> None:
    routed(led, "a", ["10.245.0.0/16"])
    led.reload("a")
    eventually(
        lambda: "into `routed` of [mrc0] here and at b" in str(led.said("a")), "it is named", SEEN_S
    )
    assert led.peer("a").followed is None
    routed(led, "a", [CLUSTER])
    led.reload("a")
    eventually(lambda: led.peer("a").followed == [BEHIND_B], "it is followed", SEEN_S)
    assert led.said("a") == []


def test_prefix_that_the_configuration_names_by_now_stays_the_peers(led: Bare) -> None:
    place = led.config("a")
    before = place.read_text()
    place.write_text(before.replace('"10.99.0.2/32"]', f'"10.99.0.2/32", "{BEHIND_B}"]'))
    led.reload("a")
    eventually(lambda: led.peer("a").followed is None, "a file says whose it is", SEEN_S)
    assert BEHIND_B in led.peer("a").addresses
    transfer(led, "pa", "pb", PODS["b"])
    place.write_text(before)
    led.reload("a")
    eventually(lambda: BEHIND_B not in led.peer("a").addresses, "no file does", SEEN_S)
    led.ip("a", f"route replace {BEHIND_B} via {INNER['b']} dev mrc0 onlink")
    eventually(lambda: led.peer("a").followed == [BEHIND_B], "it is followed again", SEEN_S)
    transfer(led, "pa", "pb", PODS["b"])


def test_level_of_the_log_changes_while_mrcd_runs(bare: Bare) -> None:
    with bare.client("a") as client:
        assert client.set_log_level("debug", 600)["before"] == "info"
        assert client.status().log_level == "debug"
    for event in ("message.sent", "message.received", "control.called"):
        eventually(lambda event=event: event in bare.log("a"), f"{event} is logged", SEEN_S)
    with bare.client("a") as client:
        client.set_log_level("info", None)
    size = len(bare.log("a"))
    heard = bare.peer("a").last_heard_s
    eventually(lambda: bare.peer("a").last_heard_s < heard, "more was said", SEEN_S)
    assert "message." not in bare.log("a")[size:]
