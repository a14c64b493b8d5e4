# SPDX-License-Identifier: GPL-2.0-only
"""Test that data takes the better way to a host: a slow cable, or a faster way through another."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from rigs.bare_hosts import STARTED_S
from rigs.cabled_hosts import Cable, Cabled, ring
from rigs.lab_hosts import eventually
from rigs.quick_hosts import finished
from rigs.traffic import Arrivals, transfer

pytestmark = pytest.mark.timeout(600)

MS = 1_000_000
SLOW, FAST = 10, 200
WHOLE_S = 60.0
FOLLOWED_S = 40.0
"""Far more than it takes, for busy machines: a NIC that says nothing is missed after 12 s."""
SIZE = 4 << 20
PROBES = SIZE // 8
"""More bytes than probes, Hellos and SACKs take while SIZE is sent; data is SIZE."""
GAP_NS = 200 * MS
"""The longest pause of TCP as the fast way dies: a window of it waits for the slow cable."""
SAMPLE_S = 0.1
BUSY = 64 << 10
"""More bytes than anything but data sends in SAMPLE_S; data is ten times as much."""


class Ranked(Cabled):
    """Hosts with cables of rates that their configurations have."""

    def begin(self, rates: dict[Cable, int]) -> None:
        """Lay the cables, and start mrcd on all hosts."""
        self.lay(list(rates))
        self.write_secret()
        self.rates = {
            name: [mbps for cable, mbps in rates.items() if name in cable] for name in self.nics
        }
        for name in self.nics:
            self.limit(name)
            place = self.config(name)
            place.parent.mkdir()
            planes = "".join(
                f'[[plane]]\ninterface = "{nic}"\nrate_mbps = {mbps}\n'
                for nic, mbps in zip(self.nics[name], self.rates[name], strict=True)
            )
            place.write_text(
                f'[host]\nname = "{name}"\n[mrc0]\naddresses = ["{self.inner(name)}/24"]\n'
                '[keys]\nsecret_file = "../secret"\ndiscover = true\nforward = true\n'
                f'[service]\non_stop = "detach"\n{planes}'
            )
            self.start(name)
        for name in self.nics:
            eventually(lambda name=name: self.status(name), f"{name} answers", STARTED_S)
        self.whole(WHOLE_S)

    def inner(self, name: str) -> str:
        return f"10.99.0.{1 + list(self.nics).index(name)}"

    def limit(self, name: str) -> None:
        for nic, mbps in zip(self.nics[name], self.rates[name], strict=True):
            self.run(name, *f"tc qdisc replace dev {nic} root tbf rate {mbps}mbit burst 64kb "
                     "latency 20ms".split())  # fmt: skip

    def mute(self, name: str) -> None:
        """Have a host's NICs lose all that they are to send, and say nothing of it."""
        for nic in self.nics[name]:
            self.run(name, *f"tc qdisc replace dev {nic} root pfifo limit 0".split())

    def spare(self, one: str, other: str) -> list[int]:
        """Return the planes of a host that carry data to another only in need."""
        with self.client(one) as client:
            return next(p.spare or [] for p in client.peers()["peers"] if p.name == other)

    def sent(self, name: str) -> list[int]:
        """Return the bytes that each NIC of a host has sent."""
        shown = (self.run(name, "cat", f"/sys/class/net/{nic}/statistics/tx_bytes")
                 for nic in self.nics[name])  # fmt: skip
        return [int(text) for text in shown]

    def carried(self, one: str, other: str, size: int = SIZE) -> list[int]:
        """Send by TCP from a host to another; return what each NIC of it sent meanwhile, bytes."""
        before = self.sent(one)
        transfer(self, one, other, self.inner(other), size)
        return [now - then for now, then in zip(self.sent(one), before, strict=True)]

    def ranked(self, planes: list[int]) -> None:
        """Wait until these planes are spare between a and b, both ways."""
        for one, other in ("ab", "ba"):
            eventually(
                lambda one=one, other=other: self.spare(one, other) == planes,
                lambda one=one, other=other: f"{one} to {other}: {self.spare(one, other)}",
                FOLLOWED_S,
            )  # fmt: skip


@pytest.fixture
def hosts() -> Iterator[Ranked]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    made = Ranked(f"w{os.getpid()}", 2)
    try:
        yield made
    finally:
        made.close()


def slow_cable(hosts: Ranked) -> None:
    """Have a and b be joined by a slow cable, and by fast ones to c."""
    hosts.begin({("a", "b"): SLOW, ("a", "c"): FAST, ("b", "c"): FAST})
    hosts.ranked([0])


def by_the_fast_way(hosts: Ranked) -> None:
    for one, other in ("ab", "ba"):
        cable, through = hosts.carried(one, other)
        assert cable < PROBES, f"{one} to {other}: {cable} bytes by the cable"
        assert through > SIZE


def power_off(hosts: Ranked) -> None:
    """Have c go without a word, and its neighbours' NICs lose their links."""
    hosts.processes.pop("c")
    hosts.kill_daemon("c")
    for nic in hosts.nics["c"]:
        hosts.ip("c", f"link set {nic} down")


def power_on(hosts: Ranked) -> None:
    for nic in hosts.nics["c"]:
        hosts.ip("c", f"link set {nic} up")
        hosts.link_local("c", nic)
    hosts.start("c")


@pytest.mark.alone
@pytest.mark.parametrize("silent", [True, False], ids=["silent", "power"])
def test_fast_way_through_a_host_carries_data(hosts: Ranked, silent: bool) -> None:
    """Not the cable of 10 Mb/s, but that carries it when the host in between dies, and no longer.

    The host goes silent, its NICs keeping their links, or loses its power and starts again.
    """
    slow_cable(hosts)
    by_the_fast_way(hosts)
    assert hosts.spare("a", "c") == [0], "the way by b is longer, and slow"
    _code, shown, _error = finished(hosts.mrcctl("a", "peer", "show", "b"))
    rows = [" ".join(line.split()[2:]) for line in shown.splitlines()[-2:]]
    assert rows == [f"none {SLOW} Mb/s yes spare", f"c {FAST} Mb/s yes data"]
    arrivals = Arrivals(hosts, "a", "b", hosts.inner("b"))
    began = time.monotonic_ns()
    arrivals.stream.progress(32 << 20, 30)
    quiet_ns = arrivals.longest_ns(began)
    before, gone_ns = hosts.sent("a"), time.monotonic_ns()
    hosts.mute("c") if silent else power_off(hosts)
    arrivals.stream.progress(2 << 20, 30)
    gap_ns = arrivals.longest_ns(gone_ns - 100 * MS)
    assert hosts.sent("a")[0] - before[0] > 2 << 20, "the cable has carried it"
    print(f"longest gap {gap_ns / MS:.1f} ms, before {quiet_ns / MS:.1f} ms")
    assert gap_ns < GAP_NS + quiet_ns
    hosts.ranked([1])
    hosts.limit("c") if silent else power_on(hosts)
    hosts.ranked([0])
    eventually(
        lambda: hosts.carried("a", "b", 1 << 20)[0] < BUSY, "the fast way carries it", FOLLOWED_S
    )
    arrivals.stream.progress(32 << 20, 30)
    arrivals.stream.finish(60)
    by_the_fast_way(hosts)


def test_cable_that_comes_back_does_not_share_with_the_longer_way(hosts: Ranked) -> None:
    """From its first packet on one of the two ways carries all data."""
    hosts.begin(dict.fromkeys(ring("abc"), FAST))
    hosts.ranked([1])
    stream = Arrivals(hosts, "a", "b", hosts.inner("b")).stream
    hosts.cut("a", "b")
    hosts.ranked([0])
    hosts.cut("a", "b", up=True)
    both: list[list[int]] = []
    before, deadline = hosts.sent("a"), time.monotonic() + FOLLOWED_S
    last = [False] * 5
    while not all(last):
        assert time.monotonic() < deadline, "the cable carries data again"
        time.sleep(SAMPLE_S)
        now = hosts.sent("a")
        cable, longer = (after - then for after, then in zip(now, before, strict=True))
        before = now
        last = [*last[1:], cable > 10 * BUSY and longer < BUSY]
        if min(cable, longer) > BUSY:
            both.append([cable, longer])
    assert len(both) <= 1, "but for the moment in which it changes"
    stream.finish(60)
