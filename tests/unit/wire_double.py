# SPDX-License-Identifier: GPL-2.0-only
"""Two hosts with a gate each, and a wire between them that loses, delays and copies datagrams."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from mrcd.handshake import identity
from mrcd.handshake.channel import Channel, ChannelMemory, Rotation
from mrcd.handshake.commands import (
    ChannelCommand,
    Deliver,
    Forget,
    ReceiveKey,
    SendDatagram,
    SendKey,
)
from mrcd.handshake.gate import Gate
from mrcd.handshake.identity import Keyring, Secret

MS = 1_000_000
S = 1000 * MS
WALL_NS = 1_700_000_000 * S
SECRET = Secret(b"\x5a" * 32)


def keys_of(host: str, *peers: str) -> Keyring:
    return identity.simple_keys(SECRET, host, peers)


@dataclass
class Kernel:
    """The packet keys of one peer as a data path holds them: a slot for each phase."""

    receive: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    send: int | None = None
    installed: int = 0

    def carry_out(self, command: ChannelCommand) -> None:
        match command:
            case ReceiveKey():
                assert command.phase == command.epoch & 1
                assert len(command.secret) == 32
                there = self.receive.get(command.phase)
                assert there is None or there[0] == command.epoch, "not forgotten before"
                self.receive[command.phase] = command.epoch, command.secret
                self.installed += 1
            case SendKey():
                assert self.receive[command.phase][0] == command.epoch
                self.send = command.epoch
            case Forget():
                phase = command.epoch & 1
                assert self.receive.pop(phase)[0] == command.epoch

    @property
    def sends(self) -> tuple[int, bytes] | None:
        """Epoch and secret that packets are sent under."""
        if self.send is None:
            return None
        found = self.receive.get(self.send & 1)
        return found if found is not None and found[0] == self.send else None


class Host:
    """One daemon of a pair, with the data path that outlives it."""

    def __init__(
        self,
        name: str,
        peer: str,
        seed: int,
        keys: Keyring | None = None,
        rotation: Rotation | None = None,
    ) -> None:
        self.rotation = rotation
        self.name, self.peer = name, peer
        self.keys = keys_of(name, peer) if keys is None else keys
        self.kernel = Kernel()
        self.heard: list[bytes] = []
        self.sent: list[bytes] = []
        self.log: list[ChannelCommand] = []
        self._rng = random.Random(seed)
        self.wall_ns = WALL_NS
        self.start({})

    def start(self, memories: dict[str, ChannelMemory]) -> None:
        self.gate = Gate(
            self.keys, self._rng, self.wall_ns, memories=memories, rotation=self.rotation
        )

    def restart(self, *, remember: bool = True) -> None:
        """A new process: its channels are gone, the data path's keys are not."""
        self.start(self.gate.memories if remember else {})
        if not remember:
            self.kernel = Kernel()

    @property
    def channel(self) -> Channel:
        return self.gate.channels[self.peer]

    @property
    def dropped(self) -> Counter[str]:
        return Counter({why.name: count for why, count in self.gate.dropped.items()})

    def carry_out(self, commands: list[ChannelCommand]) -> list[bytes]:
        """Return the datagrams to send."""
        found = []
        for command in commands:
            self.log.append(command)
            match command:
                case SendDatagram():
                    found.append(command.datagram)
                case Deliver():
                    assert command.peer == self.peer
                    self.heard.append(command.plaintext)
                case _:
                    self.kernel.carry_out(command)
        self.sent += found
        return found


@dataclass(order=True)
class _Flying:
    at_ns: int
    number: int
    to: Host = field(compare=False)
    datagram: bytes = field(compare=False)


Fate = Callable[[bytes], list[int]]
"""Delays in nanoseconds of a datagram's copies; an empty list loses it."""


def prompt(datagram: bytes) -> list[int]:
    return [1 * MS]


class Wire:
    """Time, two hosts, and datagrams between them."""

    def __init__(self, a: Host, b: Host, fate: Fate = prompt) -> None:
        self.a, self.b = a, b
        self.fate = fate
        self.now_ns = 10 * S
        self.flying: list[_Flying] = []
        self.check: Callable[[], None] = lambda: None
        self._number = 0

    def other(self, host: Host) -> Host:
        return self.b if host is self.a else self.a

    def send(self, host: Host, datagrams: list[bytes]) -> None:
        for datagram in datagrams:
            for delay in self.fate(datagram):
                self._number += 1
                flying = _Flying(self.now_ns + delay, self._number, self.other(host), datagram)
                self.flying.append(flying)

    def say(self, host: Host, text: bytes) -> bool:
        """Seal and send a text; False if there are no keys."""
        sealed = host.channel.seal(text, now_ns=self.now_ns)
        if sealed is None:
            return False
        self.send(host, [sealed])
        return True

    def run(self, span_ns: int) -> None:
        """Let time pass."""
        end = self.now_ns + span_ns
        while True:
            due = [(host.channel.deadline_ns, host) for host in (self.a, self.b)]
            at = min([time for time, _ in due] + [one.at_ns for one in self.flying])
            if at > end:
                self.now_ns = end
                return
            self.now_ns = max(self.now_ns, at)
            for time, host in due:
                if time <= self.now_ns:
                    self.send(host, host.carry_out(host.channel.tick(now_ns=self.now_ns)))
            arrived = sorted(one for one in self.flying if one.at_ns <= self.now_ns)
            self.flying = [one for one in self.flying if one.at_ns > self.now_ns]
            for one in arrived:
                self.arrive(one.to, one.datagram)
            self.check()

    def arrive(self, host: Host, datagram: bytes) -> list[bytes]:
        """Hand a datagram to a host; return what it answers."""
        source = self.other(host).name
        answers = host.carry_out(host.gate.receive(datagram, source, now_ns=self.now_ns))
        self.send(host, answers)
        return answers

    def agreed(self) -> bool:
        """Return whether both hosts send under the same epoch and secret."""
        one, other = self.a.kernel.sends, self.b.kernel.sends
        return one is not None and one == other

    def accepted(self) -> bool:
        """Return whether each host has the receive key that the other sends under."""
        for host in (self.a, self.b):
            sends = host.kernel.sends
            if sends is not None:
                other = self.other(host).kernel.receive
                if other.get(sends[0] & 1) != sends:
                    return False
        return True


def pair(seed: int = 1, fate: Fate = prompt, rotation: Rotation | None = None) -> Wire:
    """Return two hosts that have said nothing yet."""
    one = Host("h1", "h2", seed, rotation=rotation)
    other = Host("h2", "h1", seed + 1, rotation=rotation)
    return Wire(one, other, fate)
