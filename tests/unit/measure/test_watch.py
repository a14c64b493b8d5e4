# SPDX-License-Identifier: GPL-2.0-only
"""Test how a daemon follows what planes carry, with doubles of the kernel and of a peer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrcd.datapath.view import Balance, Trip
from mrcd.linux.interfaces import Traffic
from mrcd.measure import question, watch
from mrcd.measure.estimate import SPAN
from mrcd.measure.question import Arrived, Arrives, Message
from mrcd.measure.watch import Watch

MS = 1_000_000
MBPS = 125_000


class Sessions:
    """The sessions of a host, all established."""

    def __init__(self, *names: str) -> None:
        self.established = list(names)
        self.said: list[tuple[str, int, Arrives | Arrived]] = []

    def on_message(self, magic: bytes, handler: Any) -> None:
        assert magic == question.MAGIC
        self.hear = handler

    def send(self, peer: str, plane: int, datagram: bytes) -> None:
        self.said.append((peer, plane, question.decode(datagram).body))


class Host:
    """A host with two planes, of which time passes at the test's command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *peers: str) -> None:
        self.fabric = SimpleNamespace(rate_mbps=0)
        self.config = SimpleNamespace(
            host=SimpleNamespace(name="a"),
            fabric=self.fabric,
            standby=0,
            nics=(),
            interfaces=("eth0", "eth1"),
            by_name={name: SimpleNamespace(name=name) for name in peers},
        )
        self.planes = [
            SimpleNamespace(index=k, link=SimpleNamespace(name=f"eth{k}")) for k in range(2)
        ]
        self.sessions = Sessions(*peers)
        self.rates: list[tuple[int, ...] | None] = []
        self.held = 0
        self.pressed = False
        self.shares = (1.0, 1.0)
        self.srtt_ns = [200_000, 200_000]
        self.says = {"eth0": 10_000, "eth1": 10_000}
        self.real: dict[str, str] = {}
        self.looked: list[str] = []
        self.now = 1000.0
        self.sent = {"eth0": 0, "eth1": 0}
        self.came = {"eth0": 0, "eth1": 0}
        monkeypatch.setattr(watch, "time", self)
        monkeypatch.setattr(watch.carried.ethtool, "link_mbps", lambda name: self.says[name])
        monkeypatch.setattr(watch.interfaces, "traffic", self._traffic)
        monkeypatch.setattr(watch.interfaces, "real", lambda: self.real)
        monkeypatch.setattr(watch.cputime, "read", dict)
        self.watch = Watch(
            lambda: cast(Any, self.config),
            lambda: cast(Any, self.planes),
            cast(Any, self.sessions),
            self._balance,
            lambda: self.held,
            self._carry,
        )
        self.watch._before = self.now, self._traffic(), {}

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)

    def _traffic(self) -> dict[str, Traffic]:
        return {
            name: Traffic(rx_bytes=self.came[name], tx_bytes=self.sent[name]) for name in self.sent
        }

    def _balance(self, peer: str) -> Balance:
        self.looked.append(peer)
        trips = tuple(Trip(srtt_ns, self.monotonic_ns()) for srtt_ns in self.srtt_ns)
        return Balance(self.shares, trips, 3, 200_000)

    async def _carry(self, rates: tuple[int, ...] | None) -> None:
        self.rates.append(rates)

    def passes(self, seconds: int, **mbps: float) -> None:
        """Let time pass, in which NICs send so much."""
        for _ in range(seconds):
            self.now += 1
            self.held += self.pressed
            for name, rate in mbps.items():
                self.sent[name] += round(rate * MBPS)
            asyncio.run(self.watch._look())

    def hear(self, peer: str, body: Arrives | Arrived, *, sender: str | None = None) -> None:
        self.sessions.hear(sender, question.encode(peer, body), 1)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch, "b")


def full(host: Host) -> None:
    """Have 95 Mb/s on plane 0, and a queue there, until the peer is asked, and answers."""
    host.srtt_ns, host.pressed = [8 * MS, 200_000], True
    host.passes(SPAN, eth0=95)
    assert host.sessions.said == [("b", 0, Arrives(0))]
    host.hear("b", Arrived(0, 94.0, 99.0, 10_000, 0.1))


def test_a_slow_network_is_found_named_and_followed(host: Host) -> None:
    full(host)
    assert host.watch.short == {0: "eth0 says 10000 Mb/s, 95 get through to b"}
    host.passes(1, eth0=95)
    assert host.rates == [(95, 10_000)]
    host.passes(1, eth0=9_000)
    assert host.rates == [(95, 10_000), None]


def test_a_rate_that_is_written_down_is_what_is_said(host: Host) -> None:
    host.fabric.rate_mbps = 250
    full(host)
    assert host.watch.short == {0: "the configuration says 250 Mb/s, 95 get through to b by eth0"}
    host.passes(1, eth0=95)
    assert host.rates == []


def test_a_nic_without_a_link_is_left_out(host: Host) -> None:
    host.says["eth1"] = 0
    full(host)
    host.passes(1, eth0=95)
    assert host.rates == [(95, 0)]


def test_vlans_share_their_nic(host: Host) -> None:
    host.planes[0].link.name = "eth0.5"
    host.says["eth0.5"] = 10_000
    host.real = {"eth0.5": "eth0"}
    host.srtt_ns, host.pressed = [8 * MS, 200_000], True
    host.passes(SPAN, eth0=9_000)
    assert host.sessions.said == []
    host.passes(SPAN, eth0=95)
    assert host.sessions.said == [("b", 0, Arrives(0))]


def test_a_queue_before_which_nobody_waits_says_nothing(host: Host) -> None:
    host.srtt_ns = [8 * MS, 8 * MS]
    host.passes(2 * SPAN, eth0=95, eth1=95)
    assert host.sessions.said == []


def test_a_plane_that_got_a_smaller_share_is_full(host: Host) -> None:
    host.srtt_ns, host.shares = [8 * MS, 8 * MS], (0.25, 1.0)
    host.passes(SPAN, eth0=95, eth1=400)
    assert host.sessions.said == [("b", 0, Arrives(0))]


def test_without_traffic_no_round_trips_are_read(host: Host) -> None:
    host.passes(5, eth0=0.5)
    assert host.looked == []
    host.passes(5, eth0=9_000)
    assert host.looked == []


def test_peers_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = [f"p{number:03}" for number in range(100)]
    host = Host(monkeypatch, *peers)
    host.passes(1, eth0=95)
    assert len(host.looked) == watch.LOOKED_AT
    host.passes(1, eth0=95)
    assert set(host.looked) == set(peers)
    host.srtt_ns, host.pressed = [8 * MS, 200_000], True
    host.looked.clear()
    host.passes(2, eth0=95)
    assert set(host.looked) == set(peers)
    host.looked.clear()
    host.passes(1, eth0=95)  # to all of them packets wait
    assert len(host.looked) == len(peers)


def test_windows_may_have_been_full_a_while_ago(host: Host) -> None:
    """TCP that was told of a queue may leave it at what gets through."""
    host.srtt_ns, host.pressed = [8 * MS, 200_000], True
    host.passes(1, eth0=50)
    host.pressed = False
    host.passes(SPAN, eth0=95)
    assert host.sessions.said == [("b", 0, Arrives(0))]


class TestQuestions:
    @pytest.fixture(autouse=True)
    def time_passes(self, monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
        """While somebody sleeps, bytes arrive at the rates of `self.rates`, Mb/s, in turn."""
        others, self.now_at = asyncio.sleep, host
        self.rates: Iterator[float] = itertools.repeat(0.0)

        async def sleep(seconds: float) -> None:
            self.now_at.now += seconds
            self.now_at.came["eth1"] += round(next(self.rates) * MBPS * seconds)
            await others(0)

        monkeypatch.setattr(watch.asyncio, "sleep", sleep)

    def answered(self, host: Host, plane: int, *rates: float) -> None:
        """Have the peers of a host ask about a plane, on which so much arrives in turn."""
        self.now_at, self.rates = host, itertools.cycle(rates)

        async def asked() -> None:
            for peer in host.sessions.established:
                host.hear(peer, Arrives(plane))
            await asyncio.gather(*(task for _asked, task in host.watch._sampling.values()))

        asyncio.run(asked())

    def test_a_question_is_answered_with_what_arrives(self, host: Host) -> None:
        self.answered(host, 1, 300.0)
        assert host.sessions.said == [("b", 1, Arrived(1, 300.0, 300.0, 10_000, 0.0))]

    def test_bursts_are_told(self, host: Host) -> None:
        self.answered(host, 1, 1000.0, 0.0, 0.0, 0.0, 0.0)
        assert host.sessions.said == [("b", 1, Arrived(1, 200.0, 1000.0, 10_000, 0.0))]

    def test_all_who_ask_meanwhile_are_answered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(monkeypatch, "b", "c")
        self.answered(host, 1, 300.0)
        assert sorted(peer for peer, _plane, _body in host.sessions.said) == ["b", "c"]

    @pytest.mark.parametrize("plane", [2, 63])
    def test_a_plane_that_is_not_there_is_not_answered(self, host: Host, plane: int) -> None:
        self.answered(host, plane, 300.0)
        assert host.sessions.said == []

    def test_strangers_get_no_answer(self, host: Host) -> None:
        host.hear("c", Arrives(1))
        host.hear("c", Arrives(1), sender="b")  # sealed by b, in the name of c
        host.sessions.hear(None, b"MRCa", 0)
        message = question.frames.encode(question.MAGIC, Message(9, "b", Arrives(1)))
        host.sessions.hear(None, message, 0)
        assert not host.watch._sampling
        assert host.sessions.said == []
        assert host.watch._rejections.count == 4
