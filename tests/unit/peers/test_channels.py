# SPDX-License-Identifier: GPL-2.0-only
"""Test the channels of daemons on one event loop, with doubles of sockets and data path."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mrcd.config import config
from mrcd.config.config import Config
from mrcd.config.sections import Keys
from mrcd.fabric import description, underlay
from mrcd.fabric.hosts import Host
from mrcd.handshake import (
    MAGIC,
    Offer,
    Pace,
    channel,
    encode,
    identity,
    introduction,
    sealing,
)
from mrcd.handshake.channel import Drop
from mrcd.handshake.identity import Secret, encode_key
from mrcd.peers import channels
from mrcd.peers.channels import Channels

SECRET = Secret(b"\x21" * 32)
HOSTS = ("h1", "h2", "h3")


pytestmark = pytest.mark.usefixtures("logged")


class PacketKeys:
    """A double of the data path: the epochs whose packets it accepts and sends, by peer."""

    def __init__(self) -> None:
        self.receive: dict[str, dict[int, tuple[int, bytes]]] = {}
        self.send: dict[str, int] = {}
        self.calls: list[str] = []
        self.expected: set[int] = set()
        self.not_for_us: dict[str, int] = {}

    def adopt(self, peer: str, installed: tuple[int, ...], epoch: int) -> None:
        self.calls.append(f"adopt {installed} {epoch}")
        held = self.receive[peer]
        assert {number for number, _secret in held.values()} == set(installed)
        assert self.send[peer] == epoch

    def receive_key(self, peer: str, epoch: int, phase: int, secret: bytes) -> None:
        assert phase == epoch & 1
        self.calls.append(f"receive {epoch}")
        self.receive.setdefault(peer, {})[phase] = epoch, secret

    def send_key(self, peer: str, epoch: int) -> None:
        assert self.receive[peer][epoch & 1][0] == epoch
        self.calls.append(f"send {epoch}")
        self.send[peer] = epoch

    def forget(self, peer: str, epoch: int) -> None:
        self.calls.append(f"forget {epoch}")
        assert self.receive[peer].pop(epoch & 1)[0] == epoch

    def expect(self, index: int) -> None:
        self.expected.add(index)

    def expect_no_more(self, index: int) -> None:
        self.expected.remove(index)

    def misaddressed(self, peer: str) -> int:
        return self.not_for_us.get(peer, 0)

    def expect_none(self) -> None:
        self.expected.clear()


class Daemon:
    """The channels of one host, and what they do."""

    def __init__(self, net: Net, settings: Config) -> None:
        self.net, self.config = net, settings
        self.name = settings.host.name
        self.packets = PacketKeys()
        self.heard: list[tuple[str, bytes, int]] = []
        self.keyed: list[str] = []
        self.changes = 0
        self.start({})

    def start(self, memories: dict[str, object]) -> None:
        assert self.config.keyring is not None
        self.channels = Channels(
            self.config,
            self.config.keyring,
            Pace(),
            memories,  # type: ignore[arg-type]
            self.packets,
            self._transmit,
            lambda *said: self.heard.append(said),
            self.keyed.append,
            self._changed,
        )
        self.channels.start()

    def restart(self) -> None:
        memories = self.channels.memories
        self.channels.close()
        self.start(dict(memories))

    def _changed(self) -> None:
        self.changes += 1

    def _transmit(self, peer: str, plane: int | None, datagram: bytes) -> None:
        for each in range(2) if plane is None else (plane,):
            self.net.send(self.name, peer, each, datagram)

    def say(self, peer: str, text: bytes) -> bool:
        sealed = self.channels.seal(peer, text)
        if sealed is not None:
            self.net.send(self.name, peer, 1, sealed)
        return sealed is not None


class Net:
    """Two planes between daemons; an element of `cut` receives nothing."""

    def __init__(self) -> None:
        self.daemons: dict[str, Daemon] = {}
        self.cut: set[str] = set()
        self.sent: list[bytes] = []
        self.address_of: Callable[[Daemon, str, int], str] = _address_of

    def send(self, source: str, target: str, plane: int, datagram: bytes) -> None:
        self.sent.append(datagram)
        asyncio.get_running_loop().call_soon(self._arrive, source, target, plane, datagram)

    def _arrive(self, source: str, target: str, plane: int, datagram: bytes) -> None:
        to = self.daemons.get(target)
        if to is None or target in self.cut:
            return
        ring = to.config.keyring
        if datagram[:4] == sealing.INIT and not sealing.has_mac1(datagram, ring.public):
            to.packets.not_for_us[source] = to.packets.misaddressed(source) + 1
            return
        known = datagram[:4] in (sealing.INIT, MAGIC)
        if not known and sealing.index_of(datagram) not in to.packets.expected:
            return  # mrc_receive lets nothing else through (bpf/admit.c)
        to.channels.receive(datagram, self.address_of(to, source, plane), plane)


def settings_of(
    folder: Path, host: str, keys: Keys | None = None, secret: Secret = SECRET
) -> Config:
    fabric = description.generate(hosts=len(HOSTS), planes=2)
    (folder / "fabric.toml").write_text(description.dumps(fabric))
    text = f'[host]\nname = "{host}"\nfabric = "fabric.toml"\n'
    found = config.loads(text, folder / "mrcd.toml")
    ring = identity.simple_keys(secret, host, [peer.name for peer in found.peers])
    return replace(found, keyring=ring, keys=keys or Keys())


def _address_of(to: Daemon, source: str, plane: int) -> str:
    place = to.config.fabric.host(source)
    return str(underlay.of(to.config.fabric).address(place, plane))


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)
    assert condition(), what


def run(work: Callable[[Net], Awaitable[None]]) -> None:
    async def main() -> None:
        net = Net()
        try:
            await work(net)
        finally:
            for daemon in net.daemons.values():
                daemon.channels.close()

    asyncio.run(main())


async def two(net: Net, folder: Path, keys: Keys | None = None) -> tuple[Daemon, Daemon]:
    """Return h1 and h2 with keys; h3 does not run."""
    for name in ("h1", "h2"):
        net.daemons[name] = Daemon(net, settings_of(folder, name, keys))
    one, other = net.daemons["h1"], net.daemons["h2"]
    await until(lambda: agreed(one, other), "keys")
    return one, other


def agreed(one: Daemon, other: Daemon) -> bool:
    """Return whether both send under the same epoch and secret, and can talk."""
    ours, theirs = one.packets.send.get("h2"), other.packets.send.get("h1")
    if ours is None or ours != theirs:
        return False
    if one.channels.key_age_s("h2") is None or other.channels.key_age_s("h1") is None:
        return False
    return one.packets.receive["h2"][ours & 1] == other.packets.receive["h1"][ours & 1]


def test_keys_are_agreed_and_said_once(tmp_path: Path, logged: io.StringIO) -> None:
    async def work(net: Net) -> None:
        one, other = await two(net, tmp_path)
        assert (one.keyed, other.keyed) == (["h2"], ["h1"])
        assert one.changes > 0
        assert one.channels.epoch("h2") == 1
        assert one.channels.epoch("h3") == 0
        assert one.channels.key_age_s("h3") is None
        assert one.channels.public_key("h2") == encode_key(other.config.keyring.public)  # type: ignore[union-attr]
        assert one.say("h2", b"MRCh text")
        assert not one.say("h3", b"MRCh text")
        await until(lambda: bool(other.heard), "the message")
        assert other.heard == [("h1", b"MRCh text", 1)]
        assert not any(b"MRCh text" in datagram for datagram in net.sent)

    run(work)
    events = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert [event["event"] for event in events].count("keys.agreed") == 2


def test_what_the_data_path_expects__is_what_the_channels_know(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, other = await two(net, tmp_path, Keys(rotate_s=1))
        epoch = one.channels.epoch("h2")
        await until(lambda: one.channels.epoch("h2") > epoch + 1, "two rotations")
        for daemon in (one, other):
            assert daemon.packets.expected == set(daemon.channels._gate._indices)
            assert 1 <= len(daemon.packets.expected) <= 2 * 16
        one.channels.remove("h2")
        one.channels.remove("h3")
        assert one.packets.expected == set()

    run(work)


def test_rotation_renews_keys_without_telling_the_owner_again(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, other = await two(net, tmp_path, Keys(rotate_s=2))
        await until(lambda: one.channels.epoch("h2") >= 3 and agreed(one, other), "rotation")
        assert (one.keyed, other.keyed) == (["h2"], ["h1"])
        assert "forget 1" in one.packets.calls
        assert "forget 1" in other.packets.calls

    run(work)


def test_renew_asks_now(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, other = await two(net, tmp_path)
        await asyncio.sleep(0.6)  # an exchange that crosses another one is not answered
        one.channels.renew(["h2"])
        await until(lambda: one.channels.epoch("h2") == 2 and agreed(one, other), "renewal")

    run(work)


def test_removed_peer_has_no_keys_and_gets_no_answer(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, other = await two(net, tmp_path)
        one.channels.remove("h2")
        assert one.packets.receive["h2"] == {}
        other.say("h1", b"still here")
        other.channels.renew(["h1"])
        await until(lambda: one.channels.dropped[Drop.UNKNOWN_KEY] > 0, "the INIT")
        assert one.heard == []
        assert one.channels.dropped[Drop.UNKNOWN_INDEX] > 0

    run(work)


def test_restart_agrees_on_the_next_epoch_while_packets_keep_theirs(tmp_path: Path) -> None:
    async def work(net: Net) -> None:
        one, other = await two(net, tmp_path)
        await asyncio.sleep(0.6)
        one.packets.calls.clear()
        one.restart()
        await until(lambda: one.channels.epoch("h2") == 2 and agreed(one, other), "new keys")
        assert one.packets.calls[:3] == ["adopt (1,) 1", "receive 2", "send 2"]
        assert one.keyed == ["h2", "h2"]

    run(work)


def test_another_secret__is_said_with_its_reason(tmp_path: Path, logged: io.StringIO) -> None:
    async def work(net: Net) -> None:
        net.daemons["h1"] = one = Daemon(net, settings_of(tmp_path, "h1"))
        wrong = settings_of(tmp_path, "h2", secret=Secret(b"\x22" * 32))
        net.daemons["h2"] = Daemon(net, wrong)
        await until(lambda: "h2" in one.channels.mismatches, "the reason")
        assert one.channels.mismatches["h2"] == (
            "peer h2 is not trusted: its messages were made for another key than this host's"
        )
        net.daemons["h2"].channels.reconfigure(
            wrong,
            settings_of(tmp_path, "h2").keyring,  # type: ignore[arg-type]
        )
        net.daemons["h2"].channels.remove("h1")
        net.daemons["h2"].channels.add("h1")
        await until(lambda: not one.channels.mismatches, "keys")

    run(work)
    assert "handshake.rejected" in logged.getvalue()


def test_own_new_key__renews_with_all_peers(tmp_path: Path) -> None:
    """Both hosts get the new public key at the same time, as from one fabric file."""

    async def work(net: Net) -> None:
        one, other = await two(net, tmp_path)
        await asyncio.sleep(0.6)
        ours, theirs = one.config.keyring, other.config.keyring
        assert ours is not None
        assert theirs is not None
        private = identity.private_key(b"\x33" * 32)
        fresh = replace(ours, private=private, public=identity.public_key(private))
        known = replace(theirs, peers={**theirs.peers, "h1": fresh.public})
        epoch = one.packets.send["h2"]
        other.channels.remove("h1")
        other.channels.reconfigure(other.config, known)
        other.channels.add("h1")
        one.channels.reconfigure(one.config, fresh)
        assert one.packets.send["h2"] == epoch
        await until(lambda: one.packets.send["h2"] > epoch and agreed(one, other), "new keys")

    run(work)


def test_nothing_secret_is_logged(tmp_path: Path, logged: io.StringIO) -> None:
    async def work(net: Net) -> None:
        one, _other = await two(net, tmp_path)
        secrets = [SECRET.reveal(), one.packets.receive["h2"][1][1]]
        assert one.config.keyring is not None
        secrets += [one.config.keyring.private.reveal(), one.config.keyring.psk.reveal()]
        shown = logged.getvalue() + repr(vars(one.channels)) + repr(one.channels.memories)
        for secret in secrets:
            assert encode_key(secret) not in shown
            assert secret.hex() not in shown
            assert repr(secret) not in shown

    run(work)


def test_no_common_version_of_the_channel__is_said_with_who_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(net: Net) -> None:
        net.daemons["h2"] = Daemon(net, settings_of(tmp_path, "h2"))
        await until(lambda: bool(net.sent), "an INIT in version 1")
        older = list(net.sent)
        net.daemons.pop("h2").channels.close()
        monkeypatch.setattr(channel, "VERSIONS", (2, 3))
        net.daemons["h1"] = one = Daemon(net, settings_of(tmp_path, "h1"))
        assert one.config.keyring is not None
        for datagram in older:
            if sealing.has_mac1(datagram, one.config.keyring.public):  # others were for h3
                net.send("h2", "h1", 0, datagram)
        says = "peer h2 speaks channel version 1, this host 2 to 3: upgrade h2"
        await until(lambda: one.channels.mismatches.get("h2") == says, "the reason")

    run(work)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (3, "peer h2 speaks 3, this host 4: upgrade h2"),
        (
            4,
            "peer h2 is not trusted: it speaks without keys (`insecure = true`), and this host has",
        ),
    ],
)
def test_peer_that_speaks_in_clear__is_named_unless_there_are_keys(
    tmp_path: Path, version: int, says: str
) -> None:
    """As a host of version 3 does, which knows no keys."""
    offer = Offer(version, "h2", "h1", 3, 7, 0, 1, False, True, 8872, 2048, 3, (), ((0x010001, 5),))

    async def work(net: Net) -> None:
        net.daemons["h1"] = one = Daemon(net, settings_of(tmp_path, "h1"))
        net.send("h2", "h1", 0, encode(offer))
        await until(lambda: "h2" in one.channels.mismatches, "the reason")
        assert one.channels.mismatches["h2"].startswith(says)
        net.daemons["h2"] = Daemon(net, settings_of(tmp_path, "h2"))
        await until(lambda: agreed(one, net.daemons["h2"]), "keys")
        assert one.channels.mismatches == {}
        net.send("h2", "h1", 0, encode(offer))
        before = one.channels.dropped[Drop.MALFORMED]
        await until(lambda: one.channels.dropped[Drop.MALFORMED] > before, "the Offer")
        assert one.channels.mismatches == {}  # anybody could have said so

    run(work)


# ---- a key on two hosts


async def renewed(daemon: Daemon, peer: str, where: str, times: int = 1) -> None:
    """Have a daemon ask for new keys, and its INITs arrive as if from another host's place."""
    net, address_of = daemon.net, daemon.net.address_of
    for _ in range(times):
        await asyncio.sleep(0.05)
        net.address_of = lambda to, _source, plane: address_of(to, where, plane)
        asked = len(net.sent)
        daemon.channels.renew([peer])
        await until(lambda asked=asked: len(net.sent) > asked, "an INIT")  # type: ignore[misc]
        await asyncio.sleep(0)
        net.address_of = address_of


def test_second_host_with_a_key__is_named_while_the_peer_is_heard(
    tmp_path: Path, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(net: Net) -> None:
        one, other = await two(net, tmp_path)
        await asyncio.sleep(0.6)
        epoch = one.channels.epoch("h2")
        await renewed(other, "h1", "h3")
        await until(lambda: one.channels.dropped[Drop.TWICE] > 0, "the INIT")
        assert one.channels.used_twice == {}  # a peer that has moved looks like this, too
        monkeypatch.setattr(channels, "HEARD_NS", 20_000_000)
        other.say("h1", b"still here")
        await renewed(other, "h1", "h3", times=2)
        own, foreign = (
            str(underlay.of(one.config.fabric).address(one.config.fabric.host(name), 0))
            for name in ("h2", "h3")
        )
        await until(lambda: bool(one.channels.used_twice), "the name")
        assert one.channels.used_twice["h2"] == (
            f"two hosts use the key of peer h2: one is heard at {own}, another asks from "
            f"{foreign} and is not answered"
        )
        assert one.channels.epoch("h2") == epoch
        monkeypatch.setattr(channels, "TWICE_NS", 0)
        assert one.channels.used_twice == {}

    run(work)
    events = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert [event["event"] for event in events].count("peer.key_used_twice") == 1


def test_doubt__renews_keys_under_which_nothing_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(net: Net) -> None:
        one, other = await two(net, tmp_path)
        await asyncio.sleep(0.6)
        one.channels.doubt("h2")
        monkeypatch.setattr(channel, "DOUBT_NS", 0)
        epoch = one.channels.epoch("h2")
        assert epoch == 1
        one.channels.doubt("h2")
        await until(lambda: one.channels.epoch("h2") == 2 and agreed(one, other), "new keys")

    run(work)


# ---- strangers


class Hall:
    """An admission that notes what it is told, and refuses everybody."""

    def __init__(self) -> None:
        self.came: list[tuple[Host, int]] = []
        self.misplaced: list[tuple[str, tuple[int, int]]] = []

    def introduced(self, host: Host, frame: int, refuse: Callable[[str], None]) -> None:
        self.came.append((host, frame))
        refuse("not today")

    def elsewhere(self, peer: str, place: tuple[int, int]) -> None:
        self.misplaced.append((peer, place))


class Keeper(Daemon):
    """h1, which has only h2 as a peer, and hears strangers."""

    def start(self, memories: dict[str, object]) -> None:
        self.hall = Hall()
        config, ring = self.config, self.config.keyring
        assert ring is not None
        ring = replace(ring, peers={"h2": ring.peers["h2"]}, secret=SECRET)
        peers = tuple(peer for peer in config.peers if peer.name == "h2")
        self.config = replace(config, peers=peers, keyring=ring, keys=Keys(admit=True))
        self.channels = Channels(
            self.config, ring, Pace(), {}, self.packets, self._transmit,
            lambda *said: self.heard.append(said), self.keyed.append, self._changed,
            admission=self.hall, transmit_to=self._transmit_to,
        )  # fmt: skip
        self.channels.start()

    def _transmit_to(self, place: tuple[int, int], plane: int, datagram: bytes) -> None:
        hosts = self.config.fabric.hosts
        (name,) = (host.name for host in hosts if (host.t0, host.port) == place)
        self.net.send(self.name, name, plane, datagram)


def entry_of(daemon: Daemon, **changed: object) -> bytes:
    """Return how a host introduces itself, perhaps as another."""
    host = daemon.config.host
    said = {"name": host.name, "t0": host.t0, "port": host.port} | changed
    addresses = tuple(map(str, host.addresses))
    return introduction.introduction(**said, addresses=addresses, frame=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({}, "not today"),
        ({"port": 9}, "h3 says to be at port 9 of T0 3, and asks from port 1 of T0 3"),
        ({"name": "h4"}, None),
    ],
)
def test_stranger_is_heard_only_as_the_owner_of_his_key_at_his_place(
    tmp_path: Path, logged: io.StringIO, changed: dict[str, object], answer: str | None
) -> None:
    async def work(net: Net) -> None:
        net.daemons["h1"] = here = Keeper(net, settings_of(tmp_path, "h1"))
        net.daemons["h3"] = there = Daemon(net, settings_of(tmp_path, "h3"))
        asked = ("h1", introduction.question())
        await until(lambda: asked in [said[:2] for said in there.heard], "a question")
        assert there.say("h1", entry_of(there, **changed))
        if answer is None:
            await until(lambda: "a stranger speaks for another host" in logged.getvalue(), "a line")
            assert there.heard[1:] == []
        else:
            await until(lambda: len(there.heard) > 1, "an answer")
            assert introduction.read_refusal(there.heard[1][1]) == answer
        expected = [] if changed else [(replace(there.config.host), 7)]
        assert here.hall.came == expected
        assert set(here.packets.receive) <= {"h2"}, "no key of a stranger is for packets"

    run(work)
