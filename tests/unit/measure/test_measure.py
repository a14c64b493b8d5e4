# SPDX-License-Identifier: GPL-2.0-only
"""Test how two daemons measure together, over the loopback interface and a double of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import IPv4Address, ip_address
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrcd.measure import measure, messages
from mrcd.measure.load import Load, LoadError
from mrcd.measure.measure import CannotMeasure, Measuring
from mrcd.measure.messages import Ask, Body, End, Message, Ready, Refuse, Send, Sent, Tell, Told
from mrcd.model import PlaneRate

Handler = Callable[[str | None, bytes, int], None]
ADDRESSES = {"a": "127.0.0.1", "b": "127.0.0.2"}


class Sessions:
    """The sessions of a host with the other one; what it says is handed over at once, or lost."""

    def __init__(self, name: str, peer: str) -> None:
        self.name, self.peer = name, peer
        self.established = [peer]
        self.planes = [0]
        self.other: Sessions | None = None
        self.handler: Handler | None = None
        self.said: list[Message] = []

    def on_message(self, _magic: bytes, handler: Handler) -> None:
        self.handler = handler

    def usable_planes(self, _peer: str) -> list[int]:
        return self.planes

    def send(self, peer: str, plane: int, message: bytes) -> None:
        assert peer == self.peer
        self.said.append(messages.decode(message))
        if self.other is not None and self.other.handler is not None:
            loop = asyncio.get_running_loop()
            loop.call_soon(self.other.handler, self.name, message, plane)

    def bodies(self, kind: type[Body]) -> list[Body]:
        return [each.body for each in self.said if isinstance(each.body, kind)]


class Host:
    """One of two hosts with one plane, which is the loopback interface."""

    def __init__(self, name: str, peer: str, mode: str = "ecmp") -> None:
        def host(which: str) -> Any:
            return SimpleNamespace(name=which, endpoints=(ip_address(ADDRESSES[which]),))

        routing = SimpleNamespace(mode=mode)
        other = SimpleNamespace(name=peer, host=host(peer))
        config = SimpleNamespace(
            host=host(name),
            fabric=SimpleNamespace(routing=routing, rate_mbps=0, described=False),
            peers=[other],
            by_name={peer: other},
        )
        self.fabric = config.fabric
        self.plane = SimpleNamespace(usable=True, link=SimpleNamespace(name="lo", mtu=1500))
        self.sessions = Sessions(name, peer)
        self.measuring = Measuring(
            lambda: cast(Any, config), lambda: cast(Any, [self.plane]), cast(Any, self.sessions)
        )

    def hear(self, body: Body, nonce: int = 1, number: int = 1) -> None:
        """Have the peer say something."""
        assert self.sessions.handler is not None
        peer = self.sessions.peer
        self.sessions.handler(peer, messages.encode(peer, nonce, number, body), 0)

    def refusal(self) -> str:
        said = self.sessions.said[-1].body
        assert isinstance(said, Refuse)
        return said.reason


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and waits are short."""
    for name, seconds in (("FULL_S", 0.1), ("EASED_S", 0.1), ("AGAIN_S", 0.05)):
        monkeypatch.setattr(measure, name, seconds)
    monkeypatch.setattr("mrcd.measure.load.HEARD_S", 0.3)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is not waited for long; a busy machine may take longer for one that comes."""
    monkeypatch.setattr(measure, "ANSWER_S", 1.0)


@pytest.fixture
def hosts() -> tuple[Host, Host]:
    a, b = Host("a", "b"), Host("b", "a")
    a.sessions.other, b.sessions.other = b.sessions, a.sessions
    return a, b


def measured(a: Host, b: Host | None = None, plane: int = 0) -> list[PlaneRate]:
    async def both() -> list[PlaneRate]:
        try:
            return await a.measuring.measure(a.sessions.peer, plane)
        finally:
            await a.measuring.close()
            if b is not None:
                await b.measuring.close()

    return asyncio.run(both())


class TestTwoHosts:
    def test_both_ways_are_measured(self, hosts: tuple[Host, Host]) -> None:
        a, b = hosts
        out, back = measured(a, b)
        assert (out.direction, back.direction) == ("tx", "rx")
        for rate in (out, back):
            assert (rate.peer, rate.plane, rate.interface) == ("b", 0, "lo")
            assert rate.mbps > 10
            assert rate.largest == 1500
            assert rate.rtt_us is not None
        assert b.sessions.bodies(Sent)
        assert len(a.sessions.bodies(Ask)) >= 1
        assert a.sessions.bodies(End)

    def test_a_plane_that_falls_short_is_remembered(
        self, hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, b = hosts
        assert a.measuring.short == {}
        monkeypatch.setattr(measure, "limited_by_host", lambda **_: False)
        for mbps, short in ((10_000_000, [0]), (1, [])):
            monkeypatch.setattr(Measuring, "_nic_mbps", lambda *_, mbps=mbps: mbps)
            measured(a, b)
            assert list(a.measuring.short) == short
        monkeypatch.setattr(Measuring, "_nic_mbps", lambda *_: 10_000_000)
        measured(a, b)
        assert a.measuring.short[0].startswith("lo says 10000000 Mb/s, ")
        a.fabric.rate_mbps = 1  # the fabric file says so
        assert a.measuring.short == {}

    def test_afterwards_either_may_measure_again(self, hosts: tuple[Host, Host]) -> None:
        a, b = hosts
        measured(a, b)
        assert measured(b, a)[0].peer == "a"

    def test_a_message_that_is_lost_is_said_again(
        self, hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, b = hosts
        lost: set[type[Body]] = set()
        for host in hosts:
            send = host.sessions.send

            def lossy(peer: str, plane: int, message: bytes, send: Any = send) -> None:
                kind = type(messages.decode(message).body)
                if kind in lost:
                    send(peer, plane, message)
                lost.add(kind)

            monkeypatch.setattr(host.sessions, "send", lossy)
        assert len(measured(a, b)) == 2
        assert {Ask, Ready, Send, Sent, Tell, Told} <= lost

    def test_both_at_once_is_refused(self, hosts: tuple[Host, Host]) -> None:
        a, b = hosts

        async def crossed() -> list[list[PlaneRate] | BaseException]:
            found = await asyncio.gather(
                a.measuring.measure("b", 0), b.measuring.measure("a", 0), return_exceptions=True
            )
            for host in hosts:
                await host.measuring.close()
            return found

        found = asyncio.run(crossed())
        refused = [each for each in found if isinstance(each, CannotMeasure)]
        assert refused
        assert all("being measured" in str(each) for each in refused)

    def test_a_second_one_of_the_same_host_is_refused(self, hosts: tuple[Host, Host]) -> None:
        a, b = hosts

        async def twice() -> list[PlaneRate]:
            first = asyncio.create_task(a.measuring.measure("b", 0))
            await asyncio.sleep(0)
            with pytest.raises(CannotMeasure, match="plane 0 is being measured with b already"):
                await a.measuring.measure("b", 0)
            rates = await first
            await b.measuring.close()
            return rates

        assert len(asyncio.run(twice())) == 2

    @pytest.mark.usefixtures("impatient")
    def test_a_daemon_that_stops_ends_it(self, hosts: tuple[Host, Host]) -> None:
        a, b = hosts

        async def stopped() -> None:
            measuring = asyncio.create_task(a.measuring.measure("b", 0))
            async with asyncio.timeout(5):
                while not b.sessions.bodies(Ready):
                    await asyncio.sleep(0)
            await a.measuring.close()
            with pytest.raises(CannotMeasure):
                await measuring
            await b.measuring.close()

        asyncio.run(stopped())


class TestRefusals:
    @pytest.mark.usefixtures("impatient")
    def test_a_peer_that_does_not_know_the_message(self) -> None:
        with pytest.raises(CannotMeasure, match="b does not answer; its mrcd may be older"):
            measured(Host("a", "b"))

    def test_no_session(self) -> None:
        host = Host("a", "b")
        host.sessions.established = []
        with pytest.raises(CannotMeasure, match="there is no session with b"):
            measured(host)

    def test_a_plane_that_is_down_here_or_there(self, hosts: tuple[Host, Host]) -> None:
        a, b = hosts
        b.plane.usable = False
        with pytest.raises(CannotMeasure, match=r"b refuses: plane 0 \(lo\) is not usable"):
            measured(a, b)
        a.plane.usable = False
        with pytest.raises(CannotMeasure, match=r"^plane 0 \(lo\) is not usable"):
            measured(a, b)
        a.plane.usable, a.sessions.planes = True, []
        with pytest.raises(CannotMeasure, match="plane 0 is not usable at b"):
            measured(a, b)

    def test_no_such_plane(self, hosts: tuple[Host, Host]) -> None:
        with pytest.raises(CannotMeasure, match="there is no plane 5"):
            measured(*hosts, plane=5)

    def test_a_fabric_of_usids(self) -> None:
        with pytest.raises(CannotMeasure, match="uSIDs"):
            measured(Host("a", "b", "srv6"))

    def test_nothing_arrives_names_the_ports(
        self, hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Load, "_ping", lambda _self: 0)
        with pytest.raises(CannotMeasure, match=r"UDP port \d+ of this host and UDP port \d+ of b"):
            measured(*hosts)


def serve(talk: Callable[[Host], None]) -> Host:
    """Return a host after a talk with it, on a running loop."""
    host = Host("b", "a")

    async def run() -> None:
        talk(host)
        await host.measuring.close()

    asyncio.run(run())
    return host


class TestServing:
    def test_nothing_is_sent_before_something_has_arrived_on_the_plane(self) -> None:
        def talk(host: Host) -> None:
            host.hear(Ask(0, 40000))
            assert host.sessions.bodies(Ready)
            host.hear(Send(3, 0.0, 1000), number=2)

        host = serve(talk)
        assert host.refusal() == "nothing of what you sent on the plane has arrived"

    def test_nothing_is_sent_without_a_measurement(self) -> None:
        host = serve(lambda host: host.hear(Send(3, 0.0, 1000)))
        assert host.refusal() == "it is over"

    def test_nothing_is_said_to_a_host_without_a_session(self) -> None:
        def talk(host: Host) -> None:
            host.sessions.established = []
            host.hear(Ask(0, 40000))

        assert serve(talk).sessions.said == []

    def test_a_name_that_is_not_the_senders_is_not_believed(self) -> None:
        def talk(host: Host) -> None:
            assert host.sessions.handler is not None
            said = messages.encode("c", 1, 1, Ask(0, 40000))
            host.sessions.handler("a", said, 0)
            host.sessions.handler("a", b"MRCm\0\1\xff", 0)

        assert serve(talk).sessions.said == []

    def test_without_keys_the_name_in_the_message_counts(self) -> None:
        def talk(host: Host) -> None:
            assert host.sessions.handler is not None
            for name in ("a", "c"):
                host.sessions.handler(None, messages.encode(name, 1, 1, Ask(0, 40000)), 0)

        assert len(serve(talk).sessions.bodies(Ready)) == 1

    def test_another_nonce_is_another_measurement(self) -> None:
        def talk(host: Host) -> None:
            host.hear(Ask(0, 40000), nonce=1)
            host.hear(Ask(0, 40000), nonce=2)

        assert "being measured with a already" in serve(talk).refusal()

    def test_it_ends_by_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(measure, "LIMIT_S", 0.05)
        host = Host("b", "a")

        async def run() -> None:
            host.hear(Ask(0, 40000), nonce=1)
            async with asyncio.timeout(5):
                while host.measuring._part is not None:
                    await asyncio.sleep(0)
            host.hear(Ask(0, 40000), nonce=2)
            await host.measuring.close()

        asyncio.run(run())
        assert len(host.sessions.bodies(Ready)) == 2


class TestLoad:
    @pytest.mark.usefixtures("impatient")
    def test_without_a_way_nothing_is_sent(self) -> None:
        load = Load(1, "lo", IPv4Address("127.0.0.1"), 1500)
        load.connect(IPv4Address("127.0.0.1"), 9)
        try:
            with pytest.raises(LoadError, match="no packet of 576 bytes gets through"):
                load.send(1, 0.0, 0.1)
        finally:
            load.close()

    def test_other_nonces_are_not_counted(self) -> None:
        one, two = (Load(nonce, "lo", IPv4Address("127.0.0.1"), 1500) for nonce in (1, 2))
        one.connect(IPv4Address("127.0.0.1"), two.port)
        two.connect(IPv4Address("127.0.0.1"), one.port)
        try:
            assert not one.meet()
            assert not two.heard.is_set()
        finally:
            one.close()
            two.close()
