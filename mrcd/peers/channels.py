# SPDX-License-Identifier: GPL-2.0-only
"""The sealed channels with all peers: carry their commands out on sockets and the data path.

mrcd/handshake/channel.py decides; this module has the clock, the timer and the keys of packets.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_interface
from typing import Final, Protocol

from mrcd.config.config import Config
from mrcd.fabric import underlay
from mrcd.fabric.hosts import Host
from mrcd.fabric.shape import PORT_MAX, T0_MAX
from mrcd.handshake import (
    MAGIC,
    HandshakeError,
    NoCommonVersion,
    Pace,
    decode,
    introduction,
    versions,
)
from mrcd.handshake.channel import HEARD_NS, SECOND, ChannelMemory, Drop, Party, Rotation
from mrcd.handshake.commands import (
    ChannelCommand,
    Deliver,
    Elsewhere,
    Forget,
    Introduced,
    OfGuest,
    OfPeer,
    ReceiveKey,
    Reply,
    Seek,
    SendDatagram,
    SendKey,
    Stranger,
    Twice,
)
from mrcd.handshake.gate import Gate
from mrcd.handshake.guests import Place
from mrcd.handshake.identity import Keyring, encode_key
from mrcd.handshake.sealing import INIT
from mrcd.peers.schedule import Agenda
from mrcd.service.alarm import Alarm
from mrcd.service.log import get_logger
from mrcd.service.ratelog import Rejections

log = get_logger()

SPOTS: Final = 1 << 13
"""Size of the cache of peers by their addresses."""
TWICE_NS: Final = 30 * SECOND
"""A second host with the key of a peer is shown for this time after it has asked."""
SOUGHT_NS: Final = 15 * SECOND
"""A peer is looked for at an address for this time after an INIT of its key has come from there."""
_ORDINARY: Final = {Drop.COPY, Drop.CROSSED, Drop.UNKNOWN_INDEX, Drop.EXPIRED, Drop.TWICE}
"""What also happens between hosts that trust each other, and is not worth a line in the log, and
what has a line of its own."""
_MISMATCH: Final = {
    Drop.MAC1: "its messages were made for another key than this host's",
    Drop.UNKNOWN_KEY: "it has another key than the one that this host knows",
    Drop.HANDSHAKE: "it has another pre-shared key, or another key than this host knows",
    Drop.VERSION: "it speaks no version of the channel that this host speaks",
}
"""What tells an operator why no keys were agreed with a peer."""
_IN_CLEAR: Final = "it speaks without keys (`insecure = true`), and this host has some"


def _not_trusted(peer: str, why: Drop) -> str:
    return f"peer {peer} is not trusted: {_MISMATCH[why]}"


class PacketKeys(Protocol):
    """The keys of packets in the data path. It holds those of two epochs of a peer, by phase."""

    def adopt(self, peer: str, installed: tuple[int, ...], epoch: int) -> None:
        """Note which epochs an earlier daemon has left keys of, and under which it sent.

        Their secrets are not known any more, but they can be sent under, and forgotten.
        """

    def receive_key(self, peer: str, epoch: int, phase: int, secret: bytes) -> None:
        """Accept packets of a peer under an epoch, too; a key of the same phase is replaced."""

    def send_key(self, peer: str, epoch: int) -> None:
        """Tag packets to a peer under an epoch whose key is there from now on."""

    def forget(self, peer: str, epoch: int) -> None:
        """Accept nothing of a peer under an epoch any more."""

    def expect(self, index: int) -> None:
        """Let messages to the daemon through that name this exchange or epoch."""

    def expect_no_more(self, index: int) -> None:
        """Stop doing so."""

    def misaddressed(self, peer: str) -> int:
        """Return how many INITs from a peer were made for another host's key."""

    def expect_none(self) -> None:
        """Forget what an earlier daemon expected: none of its exchanges and epochs live on."""


OnMoved = Callable[[str, int, str], None]
"""Is called with a peer, a plane, and an address there that is nobody's, but the peer has used."""

TransmitAt = Callable[[int, str, bytes], None]
"""Send a datagram on a plane to an address."""

Transmit = Callable[[str, int | None, bytes], None]
"""Send a datagram to a peer: on one plane, or on every usable one for None."""


TransmitTo = Callable[[Place, int, bytes], None]
"""Send a datagram to a place (T0 and port) on a plane, where no peer is."""


class Admission(Protocol):
    """Decides about strangers that know the secret. The methods must not block."""

    def introduced(self, host: Host, frame: int, refuse: Callable[[str], None]) -> None:
        """Take a stranger as a peer, or call `refuse` with the reason, now or later.

        It has proved to know the secret and to be at the place of the host that it says to be.
        `frame` is the digest of its fabric file's frame.
        """

    def elsewhere(self, peer: str, place: Place) -> None:
        """Note that the owner of a peer's key asks from a place that is nobody's."""


@dataclass(slots=True)
class _Second:
    """A host that asks from `address` with the key of a peer, which is heard at `peers`."""

    address: str
    peers: str
    first_ns: int
    last_ns: int
    told: bool = False  # logged

    @property
    def lasts(self) -> bool:
        """Whether it asks for longer than a peer that has moved would have been heard."""
        return self.last_ns - self.first_ns > HEARD_NS

    def says(self, peer: str) -> str:
        """Return a sentence about the peer and this host."""
        return (
            f"two hosts use the key of peer {peer}: one is heard at {self.peers}, another asks "
            f"from {self.address} and is not answered"
        )


class _Expected(dict[int, Party]):
    """Who is behind each index of this host; the data path knows the indices, too."""

    def __init__(self, packets: PacketKeys) -> None:
        super().__init__()
        self._packets = packets
        packets.expect_none()

    def __setitem__(self, index: int, party: Party) -> None:
        self._packets.expect(index)
        super().__setitem__(index, party)

    def pop(self, index: int, *default: Party | None) -> Party | None:  # type: ignore[override]
        if index in self:
            self._packets.expect_no_more(index)
        return super().pop(index, *default)

    def clear(self) -> None:
        for index in self:
            self._packets.expect_no_more(index)
        super().clear()


class Channels:
    """One channel with each configured peer."""

    def __init__(
        self,
        config: Config,
        ring: Keyring,
        pace: Pace,
        memories: Mapping[str, ChannelMemory],
        packets: PacketKeys | None,
        transmit: Transmit,
        deliver: Callable[[str, bytes, int], None],
        on_keys: Callable[[str], None],
        on_change: Callable[[], None],
        on_moved: OnMoved = lambda _peer, _plane, _address: None,
        admission: Admission | None = None,
        transmit_to: TransmitTo = lambda _place, _plane, _datagram: None,
        transmit_at: TransmitAt = lambda _plane, _address, _datagram: None,
    ) -> None:
        """Create the channels; `start` begins to ask for keys.

        `memories` are those of an earlier daemon with this data path. `deliver` is called with the
        peer, what it said and the plane by which it came. `on_keys` is called when something can
        be said to a peer to which nothing could be said before, and `on_change` when `memories`
        changed. `packets` is None where the data path takes no keys. Without an `admission`, no
        stranger is heard.
        """
        self._admission = admission
        self._transmit_to = transmit_to
        self._transmit_at = transmit_at
        self._packets = packets
        self._transmit = transmit
        self._deliver = deliver
        self._on_keys = on_keys
        self._on_change = on_change
        self._on_moved = on_moved
        self._rng = random.SystemRandom()
        self._gate = Gate(
            ring,
            self._rng,
            time.time_ns() - time.monotonic_ns(),
            pace,
            memories,
            Rotation(config.keys.rotate_s * 1_000_000_000),
            self._dropped,
            None if packets is None else _Expected(packets),
        )
        self._agenda = Agenda(now_ns=time.monotonic_ns())
        self._alarm = Alarm(self._due)
        self._started = False
        self._rejections = Rejections("handshake.rejected")
        self._plane = 0  # by which the datagram came that is being processed ...
        self._source = ""  # ... and its address
        self._seconds: dict[str, _Second] = {}
        self._sought: dict[str, tuple[int, str, int]] = {}  # plane and address, and since when
        self._keyed_ns: dict[str, int] = {}  # when a peer's keys were last renewed
        self._misaddressed: dict[str, int] = {}  # INITs of a peer for another host's key
        self.mismatches: dict[str, str] = {}  # why there are no keys with a peer, as far as known
        self._peer_of = lru_cache(maxsize=SPOTS)(self._find_peer)
        self._set_places(config, ring)
        for name in ring.peers.keys() & memories.keys():
            if packets is not None and memories[name].installed:
                packets.adopt(name, memories[name].installed, memories[name].epoch)

    def _set_places(self, config: Config, ring: Keyring) -> None:
        self._fabric = config.fabric
        self._ours = underlay.of(config.fabric).place(config.host)
        self._at = {underlay.of(config.fabric).place(peer.host): peer.name for peer in config.peers}
        self._hosts = {peer.name: peer.host for peer in config.peers}
        self._peer_of.cache_clear()
        self._gate.admits_strangers = underlay.of(config.fabric).roaming
        self._gate.takes_guests = (
            config.keys.admit and ring.secret is not None and self._admission is not None
        )

    def _find_peer(self, source: str, plane: int) -> str | None:
        """Return the peer that has an address on a plane."""
        spot = underlay.of(self._fabric).spot(source, plane)
        return None if spot is None else self._at.get(spot)

    # ---- up and down

    def start(self) -> None:
        """Begin to ask peers for keys."""
        self._started = True
        self._arm(self._gate.channels)

    def close(self) -> None:
        """Stop the timer. The data path keeps the keys of packets."""
        self._started = False
        self._alarm.cancel()

    def reconfigure(self, config: Config, ring: Keyring) -> None:
        """Use this configuration and key ring from now on; peers are added and removed separately.

        If this host's own keys changed, new epochs are agreed with all peers. Packets continue
        under the old ones meanwhile.
        """
        self._set_places(config, ring)
        if self._gate.reconfigure(ring, Rotation(config.keys.rotate_s * 1_000_000_000)):
            self._keyed_ns.clear()
            self._arm(self._gate.channels)

    def add(self, peer: str) -> None:
        """Begin to ask a peer of the key ring for keys."""
        self._gate.add(peer)
        self._arm([peer])

    def remove(self, peer: str) -> None:
        """Forget every key of a peer at once."""
        self._agenda.drop(peer)
        self._keyed_ns.pop(peer, None)
        for known in (self._misaddressed, self.mismatches, self._seconds, self._sought):
            known.pop(peer, None)
        self._carry_out(self._gate.remove(peer))

    # ---- what others may know

    @property
    def memories(self) -> dict[str, ChannelMemory]:
        """What the channels of the next daemon need to know, by peer; nothing of it is secret."""
        return self._gate.memories

    @property
    def dropped(self) -> Counter[Drop]:
        """The datagrams of no use, by reason."""
        return self._gate.dropped

    def key_age_s(self, peer: str) -> float | None:
        """Return the age of the keys with a peer; None if there are none."""
        age_ns = self._gate.channels[peer].key_age_ns(time.monotonic_ns())
        return None if age_ns is None else age_ns / 1e9

    def epoch(self, peer: str) -> int:
        """Return the number of the epoch that packets to a peer are sent under; 0: none."""
        return self._gate.channels[peer].memory.epoch

    def public_key(self, peer: str) -> str:
        """Return a peer's public key as people write it."""
        return encode_key(self._gate.channels[peer].remote)

    # ---- out

    def seal(self, peer: str, plaintext: bytes) -> bytes | None:
        """Return a datagram that only the peer can read; None while there are no keys."""
        return self._gate.channels[peer].seal(plaintext, now_ns=time.monotonic_ns())

    def renew(self, peers: Iterable[str]) -> None:
        """Ask these peers for new keys now."""
        now, names = time.monotonic_ns(), list(peers)
        for name in names:
            self._gate.channels[name].renew(now_ns=now)
        self._arm(names)

    def ask_again(self) -> None:
        """Ask every peer without keys now, because there is another way on which it may hear us."""
        now = time.monotonic_ns()
        channels = self._gate.channels.items()
        self.renew([name for name, channel in channels if channel.key_age_ns(now) is None])

    def doubt(self, peer: str) -> None:
        """Ask for new keys if the peer says nothing under those that there are."""
        channel, now = self._gate.channels[peer], time.monotonic_ns()
        before = channel.deadline_ns
        channel.doubt(now_ns=now)
        if channel.deadline_ns != before:
            self._arm([peer])

    # ---- in

    def receive(self, datagram: bytes, source: str, plane: int) -> None:
        """Process a datagram that arrived on a plane from an address."""
        self._plane, self._source = plane, source.partition("%")[0]
        peer = self._peer_of(source, plane)
        place = self._place(source, plane) if peer is None else None
        commands = self._gate.receive(datagram, peer, now_ns=time.monotonic_ns(), place=place)
        if peer is None:
            proved = (each.peer for each in commands if isinstance(each, Deliver | SendDatagram))
            for name in set(proved):
                self._on_moved(name, plane, self._source)
        if commands:
            self._carry_out(commands)
        elif peer is not None and datagram.startswith(MAGIC):
            self._heard_in_clear(peer, datagram)

    def _dropped(self, why: Drop, source: str | None) -> None:
        now = time.monotonic_ns()
        if why not in _ORDINARY:
            said = "" if source is None else f"{source}: "
            self._rejections.add(self._plane, f"{said}a message {why.value}", now_ns=now)
        if source is None or why not in _MISMATCH:
            return
        channel = self._gate.channels.get(source)
        if channel is not None and channel.key_age_ns(now) is None:
            other = _not_trusted(source, why)
            self.mismatches[source] = (why is Drop.VERSION and channel.apart) or other

    def _heard_in_clear(self, peer: str, datagram: bytes) -> None:
        """Note what an Offer that is not sealed tells an operator; nobody vouches for it."""
        channel = self._gate.channels.get(peer)
        if channel is None or channel.key_age_ns(time.monotonic_ns()) is not None:
            return
        try:
            decode(datagram)
        except NoCommonVersion as error:
            self.mismatches[peer] = versions.apart(peer, error.versions)
        except HandshakeError:
            pass  # the gate has counted it
        else:
            self.mismatches[peer] = f"peer {peer} is not trusted: {_IN_CLEAR}"

    def _look_for_misaddressed(self, peer: str) -> None:
        """Note INITs of a peer without keys that were not for us: the data path drops them."""
        if self._packets is None:
            return
        count, now = self._packets.misaddressed(peer), time.monotonic_ns()
        if count > self._misaddressed.setdefault(peer, count):
            self._misaddressed[peer] = count
            self._rejections.add(0, f"{peer}: a message {Drop.MAC1.value}", now_ns=now)
            self.mismatches.setdefault(peer, _not_trusted(peer, Drop.MAC1))

    # ---- strangers

    def _place(self, source: str, plane: int) -> Place | None:
        """Return the place of an address where no peer is; None if it is no stranger's either."""
        if not self._gate.takes_guests:
            return None
        spot = underlay.of(self._fabric).spot(source, plane)
        if not isinstance(spot, tuple) or spot == self._ours:
            return None
        return spot if 1 <= spot[0] <= T0_MAX and 1 <= spot[1] <= PORT_MAX else None

    def _attend(self, command: OfGuest) -> None:
        """Carry out what concerns a stranger."""
        match command:
            case Reply():
                self._transmit_to(command.place, self._plane, command.datagram)
            case Introduced():
                self._judge(command.guest, command.plaintext)
            case Elsewhere() if self._admission is not None:
                self._admission.elsewhere(command.peer, command.place)
            case Twice():
                self._note_second(command.peer)
            case Seek():
                self._seek(command.peer)

    def _note_second(self, peer: str) -> None:
        """Note that a host has asked with the key of a peer that is heard; log it if it lasts."""
        now, known = time.monotonic_ns(), self._seconds.get(peer)
        if peer not in self._hosts:
            return  # it is about to be removed
        if known is None or now - known.last_ns > TWICE_NS:
            own = str(underlay.of(self._fabric).address(self._hosts[peer], self._plane))
            self._seconds[peer] = _Second(self._source, own, now, now)
            return
        known.last_ns = now
        if known.lasts and not known.told:
            known.told = True
            log.warning("peer.key_used_twice", peer=peer, heard=known.peers, other=known.address)

    @property
    def used_twice(self) -> dict[str, str]:
        """Which peers' keys a second host uses, and where the two are."""
        oldest = time.monotonic_ns() - TWICE_NS
        found = self._seconds.items()
        return {n: each.says(n) for n, each in found if each.lasts and each.last_ns > oldest}

    def _seek(self, peer: str) -> None:
        """Ask for a peer that is not heard also where an old INIT of its key has come from."""
        now, known = time.monotonic_ns(), self._sought.get(peer)
        self._sought[peer] = self._plane, self._source, now
        if known is None or now - known[2] > SOUGHT_NS:
            self.renew([peer])

    def _ask_there(self, peer: str, datagram: bytes) -> None:
        """Send an INIT to where a peer is looked for."""
        if peer in self._sought and datagram.startswith(INIT):
            plane, address, since_ns = self._sought[peer]
            if time.monotonic_ns() - since_ns < SOUGHT_NS:
                self._transmit_at(plane, address, datagram)

    def _judge(self, guest: Stranger, plaintext: bytes) -> None:
        """Pass on what a stranger says of itself, if its key and its place agree with it."""
        plane, now = self._plane, time.monotonic_ns()

        def refuse(reason: str) -> None:
            self._plane = plane
            for command in guest.refuse(reason, now_ns=time.monotonic_ns()):
                if isinstance(command, Reply):
                    self._attend(command)

        try:
            said = introduction.read_introduction(plaintext)
            addresses = tuple(map(ip_interface, said.addresses))
        except (HandshakeError, ValueError) as error:
            self._rejections.add(plane, f"a stranger's introduction: {error}", now_ns=now)
            return
        ring = self._gate.keys
        if (
            self._admission is None
            or ring.secret is None
            or ring.derived(said.name) != guest.remote
        ):
            self._rejections.add(plane, "a stranger speaks for another host", now_ns=now)
            return
        if (said.t0, said.port) != guest.place:
            t0, port = guest.place
            refuse(
                f"{said.name} says to be at port {said.port} of T0 {said.t0}, and asks from "
                f"port {port} of T0 {t0}"
            )
            return
        host = Host(said.name, said.t0, said.port, addresses)
        self._admission.introduced(host, said.frame, refuse)

    def _carry_out(self, given: list[ChannelCommand]) -> None:
        commands: list[OfPeer] = []
        for each in given:
            if isinstance(each, OfGuest):
                self._attend(each)
            else:
                commands.append(each)
        names = {command.peer for command in commands}
        for command in commands:
            match command:
                case SendDatagram():
                    plane = self._plane if command.back else None
                    self._transmit(command.peer, plane, command.datagram)
                    self._ask_there(command.peer, command.datagram)
                case Deliver():
                    self._deliver(command.peer, command.plaintext, self._plane)
                case ReceiveKey() if self._packets is not None:
                    self._packets.receive_key(
                        command.peer, command.epoch, command.phase, command.secret
                    )
                case SendKey():
                    if self._packets is not None:
                        self._packets.send_key(command.peer, command.epoch)
                    self._has_keys(command.peer)
                case Forget() if self._packets is not None:
                    self._packets.forget(command.peer, command.epoch)
        if any(isinstance(command, ReceiveKey | SendKey | Forget) for command in commands):
            self._on_change()
        self._arm(name for name in names if name in self._gate.channels)

    def _has_keys(self, peer: str) -> None:
        """Note that a peer's keys are new; tell the owner if there were none before."""
        now, channel = time.monotonic_ns(), self._gate.channels[peer]
        if channel.key_age_ns(now) is None:
            return  # only the data path has keys
        self.mismatches.pop(peer, None)
        self._sought.pop(peer, None)
        before = self._keyed_ns.get(peer)
        self._keyed_ns[peer] = now
        if before is None or now - before >= self._gate.rotation.reject_ns:
            log.info("keys.agreed", peer=peer, public_key=encode_key(channel.remote))
            self._on_keys(peer)

    # ---- the timer

    def _arm(self, names: Iterable[str]) -> None:
        """Set the time of these peers' next turns, and the alarm."""
        if not self._started:
            return
        now = time.monotonic_ns()
        for name in names:
            channel = self._gate.channels[name]
            prompt = channel.key_age_ns(now) is not None
            self._agenda.put(name, channel.deadline_ns, prompt=prompt)
        self._alarm.set(self._agenda.deadline_ns(now_ns=now))

    def _due(self) -> None:
        now = time.monotonic_ns()
        names = self._agenda.take(now_ns=now)
        for name in names:
            channel = self._gate.channels[name]
            commands = channel.tick(now_ns=now)
            if channel.key_age_ns(now) is None:
                self._agenda.spend(sum(isinstance(each, SendDatagram) for each in commands))
                self._look_for_misaddressed(name)
            self._carry_out(commands)
        self._arm(names)
