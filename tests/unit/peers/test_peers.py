# SPDX-License-Identifier: GPL-2.0-only
"""Test the sessions of daemons on one event loop, with doubles of sockets and data path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from mrcd import __version__
from mrcd.config import config
from mrcd.config.config import Config
from mrcd.config.config import Peer as Configured
from mrcd.fabric import description, underlay
from mrcd.handshake import LocalQp, Memory, State
from mrcd.linux.planesocket import Address
from mrcd.peers import peers
from mrcd.peers.peers import Peers

BOTH, QPS = 0b11, 2
pytestmark = pytest.mark.usefixtures("logged", "sockets")


class Sockets:
    """A double of a host's sockets on two planes: the network takes what they send."""

    def __init__(self, arrived: Callable[[bytes, int, str], None]) -> None:
        self.read = 0
        self.arrived = arrived
        self.send: Callable[[int, bytes | None, Address, bytes], None] = lambda *_: None

    def open_planes(self, *_: object) -> list[str]:
        return []

    def close(self) -> None:
        self.arrived = lambda *_: None


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Joined(Sockets):
        def __init__(self, _port: int, arrived: Any, *_: object) -> None:
            super().__init__(arrived)
            net = Net.now
            assert net is not None
            self.send = net.send
            net.sockets.append(self)

    monkeypatch.setattr(peers, "OfferSockets", Joined)


class PeerTable:
    """A double of what the maps hold of peers."""

    def __init__(self, names: list[str]) -> None:
        self.per_peer = QPS
        self.names = names
        self.planes: dict[str, int] = {}
        self.ports: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.unheard: dict[str, int] = {}
        self.rates: tuple[int, ...] = ()
        self.their_rates: dict[str, tuple[int, ...]] = {}

    def base(self, peer: str) -> int:
        return self.names.index(peer) * QPS

    def set_planes(self, peer: str, mask: int) -> None:
        self.planes[peer] = mask

    def set_numbering(self, peer: str, word: int) -> None:
        self.numbers[peer] = word

    def set_their_rates(self, peer: str, rates: tuple[int, ...]) -> None:
        self.their_rates[peer] = rates

    def set_ports(self, peer: str, mask: int) -> None:
        self.ports[peer] = mask

    def every_ports(self) -> dict[str, int]:
        return self.ports

    def set_unheard(self, until_ns: Mapping[str, int]) -> None:
        self.unheard |= until_ns


class Table:
    """A double of the QPs: what was done with those of each peer, in order."""

    def __init__(self, settings: Config) -> None:
        self.peers = PeerTable([peer.name for peer in settings.peers])
        self.done: list[str] = []
        self.failed = False

    def qps_of(self, peer: str) -> range:
        base = self.peers.base(peer)
        return range(base, base + QPS)

    def configure(
        self, peer: str, qps: tuple[Any, ...], _mpr: int, *, cells: bool, trims: bool, timed: bool
    ) -> None:
        assert len(qps) == QPS
        assert timed == cells
        self.done.append(f"{peer} {'cells' if cells else 'packets'}{' trimmed' * trims}")

    def ready(self, peer: str) -> None:
        self.done.append(f"{peer} ready")

    def reset(self, indices: tuple[int, ...]) -> None:
        self.done.append(f"reset {[*indices]}")

    def has_failed(self, _qp: int) -> bool:
        return self.failed

    def holds(self, _peer: str, memory: Memory, *, cells: bool, trims: bool, timed: bool) -> bool:
        return isinstance(memory.qps[0], LocalQp) and cells and timed and not trims


class Endpoint:
    """A double of the endpoint: the peers that it takes to have a session."""

    def __init__(self) -> None:
        self.established: set[str] = set()

    def peer_established(self, peer: str) -> None:
        self.established.add(peer)

    def peer_gone(self, peer: str) -> None:
        self.established.discard(peer)


class Daemon:
    """The sessions of one host, and what they do."""

    def __init__(self, settings: Config, table: Table | None = None) -> None:
        self.config = settings
        self.table = Table(settings) if table is None else table
        self.endpoint = Endpoint()
        self.mtus: dict[str, int] = {}
        self.changes = 0
        self.peers = Peers(
            lambda: self.config,
            self.table,  # type: ignore[arg-type]
            1,
            self._on_mtu,
            self.endpoint,  # type: ignore[arg-type]
            self._changed,
            lambda _peer, plane: [plane << 27],
        )

    def start(self, mask: int = BOTH) -> Self:
        self.peers.start(mask)
        return self

    def _on_mtu(self, peer: Configured, mtu: int) -> None:
        self.mtus[peer.name] = mtu

    def _changed(self) -> None:
        self.changes += 1

    def state(self, peer: str) -> State:
        return self.peers.state(peer)


class Net:
    """Two planes between hosts; what is sent to an address in `cut` is lost."""

    now: Net | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sockets: list[Sockets] = []
        self.daemons: dict[str, Daemon] = {}
        self.cut: set[str] = set()

    def settings(self, host: str, more: str = "") -> Config:
        fabric = description.generate(hosts=3, planes=2)
        (self.folder / "fabric.toml").write_text(description.dumps(fabric))
        text = f'[host]\nname = "{host}"\nfabric = "fabric.toml"\n{more}'
        return config.loads(text, self.folder / "mrcd.toml")

    def daemon(self, host: str, more: str = "", table: Table | None = None) -> Daemon:
        made = self.daemons[host] = Daemon(self.settings(host, more), table)
        return made

    def send(self, plane: int, _path: bytes | None, target: Address, datagram: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._arrive, plane, target, datagram)

    def _arrive(self, plane: int, target: Address, datagram: bytes) -> None:
        for name, daemon in self.daemons.items():
            place = daemon.config.fabric.host(name)
            if underlay.of(daemon.config.fabric).address(place, plane) == target:
                if name not in self.cut:
                    daemon.peers._sockets.arrived(datagram, plane, "::1")  # type: ignore[attr-defined]
                return

    async def two(self, more: str = "") -> tuple[Daemon, Daemon]:
        """Return h1 and h2 with a session; h3 does not run."""
        one, other = self.daemon("h1", more).start(), self.daemon("h2", more).start()
        await until(lambda: both_up(one, other), "sessions")
        return one, other


def both_up(one: Daemon, other: Daemon) -> bool:
    return (one.state("h2"), other.state("h1")) == (State.ESTABLISHED, State.ESTABLISHED)


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)
    assert condition(), what


def run(folder: Path, work: Callable[[Net], Awaitable[None]]) -> None:
    async def main() -> None:
        net = Net.now = Net(folder)
        try:
            await work(net)
        finally:
            for daemon in net.daemons.values():
                daemon.peers.close()
            Net.now = None

    asyncio.run(main())


def test_two_hosts_set_up_their_qps_once(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, other = await net.two()
        assert one.table.done == ["h2 cells", "h2 ready"]
        assert other.table.done == ["h1 cells", "h1 ready"]
        assert one.table.peers.planes == one.table.peers.ports == {"h2": BOTH}
        assert one.mtus == {"h2": one.config.mtu}
        assert one.endpoint.established == {"h2"}
        assert one.peers.answering == one.peers.established == ["h2"]
        assert one.state("h3") is State.OFFERING
        assert [*one.peers.memories] == ["h2"]
        assert one.changes > 0

    run(tmp_path, work)


def test_framing_is_what_both_take(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one = net.daemon("h1").start()
        other = net.daemon("h2", '[transport]\nframing = "mrc"\n').start()
        await until(lambda: both_up(one, other), "sessions")
        assert one.table.done[0] == "h2 packets"
        assert one.peers.all["h2"].mtu == other.config.mtu < one.config.mtu

    run(tmp_path, work)


def test_host_that_insists_on_cells_says_why_there_is_no_session(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one = net.daemon("h1", '[transport]\nframing = "cell"\n').start()
        net.daemon("h2", '[transport]\nframing = "mrc"\n').start()
        await until(lambda: bool(one.peers.refusals), "a reason")
        assert "h2 lacks cell" in one.peers.refusals["h2"]
        assert one.state("h2") is State.OFFERING

    run(tmp_path, work)


def test_planes_of_a_host_reach_its_peers(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, other = await net.two()
        other.peers.set_planes(0b10)
        await until(lambda: one.table.peers.planes["h2"] == 0b10, "news of the plane")
        assert one.peers.usable_planes("h2") == [1]
        other.peers.set_planes(BOTH)
        await until(lambda: one.table.peers.planes["h2"] == BOTH, "news of the plane")

    run(tmp_path, work)


def test_builds_are_told_to_peers(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, _other = await net.two()
        remote = one.peers.all["h2"].session.remote
        assert remote is not None
        assert remote.build == __version__

    run(tmp_path, work)


def test_rates_of_planes_reach_peers(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        table = Table(net.settings("h2"))
        table.peers.rates = (25_000, 1_000)
        one, other = net.daemon("h1"), net.daemon("h2", table=table)
        one.start()
        other.start()
        await until(lambda: both_up(one, other), "sessions")
        assert one.table.peers.their_rates["h2"][:3] == (25_000, 1_000, 0)
        other.table.peers.rates = (25_000, 0)
        other.peers.set_rates()
        other.peers.set_planes(0b01)  # peers get an Offer
        await until(lambda: one.table.peers.their_rates["h2"][:2] == (25_000, 0), "the new ones")

    run(tmp_path, work)


def test_plane_that_carries_less_shortens_packets_to_a_peer(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, _other = await net.two()
        whole = one.mtus["h2"]
        one.peers.set_path_mtu("h2", 0, 1500)
        assert one.mtus["h2"] < 1500
        one.peers.set_path_mtu("h2", 0, 0)
        assert one.mtus["h2"] == whole
        one.peers.set_most("h2", 1, 4000)
        assert one.mtus["h2"] == 4000
        one.peers.set_most("nobody", 1, 4000)
        one.peers.set_path_mtu("nobody", 1, 4000)

    run(tmp_path, work)


def test_what_is_known_of_ways_ends_with_a_peer(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, _other = await net.two()
        configured = one.peers.all["h2"].configured
        one.peers.set_path_mtu("h2", 0, 1500)
        one.peers.remove("h2")
        assert "h2" not in one.endpoint.established
        assert one.peers.answering == []
        one.peers.add(configured)
        await until(lambda: one.state("h2") is State.ESTABLISHED, "a new session")
        assert one.mtus["h2"] == one.config.mtu

    run(tmp_path, work)


def test_failed_qp_gets_a_new_session_and_a_reason_until_then(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, other = await net.two()
        one.peers.replace_failed("h2", 1, "nothing was acknowledged")
        assert one.peers.failed == {}  # it was reset meanwhile
        one.table.failed = True
        one.peers.replace_failed("h2", 1, "nothing was acknowledged")
        assert one.peers.failed == {"h2": "QP 1 gave up: nothing was acknowledged"}
        assert one.table.done[-1] == "reset [0, 1]"
        await until(lambda: one.state("h2") is State.ESTABLISHED, "a new session")
        assert one.peers.failed == {}
        await until(lambda: other.state("h1") is State.ESTABLISHED, "the same there")
        assert other.table.done.count("h1 ready") == 2

    run(tmp_path, work)


def test_cells_that_are_lost_everywhere_change_the_framing_of_both(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, other = await net.two()
        one.peers.set_swallowed("h2", {0: True, 1: True})
        await until(lambda: both_up(one, other), "a new session")
        assert one.table.done[-2:] == ["h2 packets", "h2 ready"]
        await until(lambda: other.peers.all["h1"].loses_cells is False, "why, at the peer")
        assert one.peers.all["h2"].loses_cells is True

    run(tmp_path, work)


def test_session_goes_on_after_a_restart(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, other = await net.two()
        memories, table = one.peers.memories, one.table
        one.peers.close()
        table.done.clear()
        again = net.daemon("h1", table=table)
        assert again.peers.resume(memories, BOTH) == ["h2"]
        again.start()
        assert table.done == ["reset [2, 3]"]  # of h3, which was never heard
        assert again.state("h2") is State.ESTABLISHED
        assert again.mtus == one.mtus
        other.peers.set_planes(0b01)
        await until(lambda: table.peers.planes["h2"] == 0b01, "news in the resumed session")
        assert other.table.done == ["h1 cells", "h1 ready"]

    run(tmp_path, work)


def test_reload_keeps_what_is_known_of_a_peer(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, _other = await net.two()
        session, mtu = one.peers.all["h2"].session, one.mtus["h2"]
        one.config = net.settings("h1", "[transport]\nmpr = 512\n")
        one.peers.configured()
        assert one.peers.all["h2"].session is session
        one.peers.set_path_mtu("h2", 0, 0)
        assert one.mtus["h2"] == mtu

    run(tmp_path, work)


def test_peer_that_is_not_reached_is_told_to_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrcd.peers.unheard.GRACE_NS", 1)
    monkeypatch.setattr(peers, "LOOK_NS", 1)

    async def work(net: Net) -> None:
        one, _other = await net.two()
        await until(lambda: one.table.peers.unheard.get("h3", 0) > 0, "h3 unheard")
        assert not one.table.peers.unheard.get("h2")

    run(tmp_path, work)
