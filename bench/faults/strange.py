# SPDX-License-Identifier: GPL-2.0-only
"""Play networks that lose, change or delay some packets, and compare applications with status.

python -m bench.faults.strange [--seeds 0 40]

Each seed is a play: two hosts without a fabric, a rule of nftables or a slow link between them, on
some planes or on all, and an application over mrc0: a paced TCP stream each way, numbered datagrams
and requests. If the application lacks what it asks for from three seconds after the rule on, some
host's status has to have named something by then; where no packet is lost, status must name
nothing; and with the rule gone, both have to be as before. Every play is printed on two lines; a
failed one is a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import re
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bench.instruments import entry
from rigs import bare_hosts
from rigs.bare_hosts import HOSTS, INNER, MIDDLE, Bare
from rigs.traffic import Stream, open_in

PACE: Final = 4_000_000
"""What each TCP stream asks for, bytes a second."""
DATAGRAMS: Final = 200
REQUESTS: Final = 100
"""Datagrams, and requests at most, a second."""
GRACE_S: Final = 3.0
"""From then on the application has what it asks for, or status has named something."""
WATCHED_S: Final = 2.0
AGAIN_S: Final = 40.0
"""Both hosts are as before within this time from the end of the rule."""
LEAST: Final = 0.8
"""The part of its pace with which a stream is content."""
LOST: Final = 0.01
"""The part of its datagrams that the application does without."""
WAIT_S: Final = 1.0
"""The longest time that it waits for the answer to a request."""
_SO_MAX_PACING_RATE: Final = 47
_PORT: Final = 5777
_PLAYS: Final = 8
"""Plays of a pair of hosts."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is done to packets: an expression and a verdict of nftables, or a rate in Mb/s.

    harmless: no packet is lost. bridged: it makes sense on a bridge only.
    """

    text: str
    harmless: bool = False
    bridged: bool = False
    mbps: int = 0


RULES: Final = (
    Rule("udp dport 4971 drop"),
    Rule("udp dport 4972 drop"),
    Rule("udp dport 4974 drop"),
    Rule("ip6 saddr fdcb::/32 drop"),
    Rule("ip6 nexthdr { 4, 41 } drop"),
    Rule("meta length > 1400 drop"),
    Rule("meta length > 600 drop"),
    Rule("meta length < 120 drop"),
    Rule("drop"),
    Rule("ip dscp != cs0 drop; ip6 dscp != cs0 drop"),
    Rule("ip dscp cs0 drop; ip6 dscp cs0 drop"),
    Rule("numgen random mod 100 < 1 drop"),
    Rule("numgen random mod 100 < 5 drop"),
    Rule("numgen random mod 100 < 30 drop"),
    Rule("jhash udp sport mod 10 seed 1 0 drop"),
    Rule("ip ecn set not-ect; ip6 ecn set not-ect", harmless=True),
    Rule("ip dscp set cs0; ip6 dscp set cs0", harmless=True),
    Rule("ip ttl set 9; ip6 hoplimit set 9", harmless=True),
    Rule("dup to iif map {{ {twins} }}", harmless=True, bridged=True),
    Rule("ip6 flowlabel set 0"),  # cells in IPv6 have a part of their headers there
    Rule("slow", mbps=20),
    Rule("slow", mbps=100),
)


@dataclass(frozen=True, slots=True)
class Play:
    """A seed's play. `count`: how many planes there are. `ways`: whose packets the rule sees."""

    seed: int
    count: int
    how: str
    mtu: int
    envelope: str
    rule: Rule
    planes: tuple[int, ...]
    ways: tuple[str, ...]

    def __str__(self) -> str:
        """Return all of it on a line."""
        what = f"{self.rule.mbps} Mb/s" if self.rule.mbps else self.rule.text
        where = f"{len(self.planes)} of {self.count} planes"
        return (
            f"{self.seed}: {self.how}, MTU {self.mtu}, {self.envelope}: {what} on {where} "
            f"from {' and '.join(self.ways)}"
        )


def play(seed: int) -> Play:
    """Return the play of a seed; a pair of hosts lasts for _PLAYS of them."""
    place = random.Random(seed // _PLAYS)
    how = place.choice(("bridge", "router4"))
    mtu = place.choice((1500, 9000))
    envelope = place.choice(("auto", "ipv6")) if how == "bridge" else "auto"
    count = place.choice((2, 3))
    here = random.Random(seed * 7919 + 1)
    some = sorted(here.sample(range(count), here.choice((1, 1, count - 1, count))))
    ways = here.choice((("a",), ("b",), HOSTS, HOSTS))
    rules = [rule for rule in RULES if how == "bridge" or not rule.bridged]
    return Play(seed, count, how, mtu, envelope, here.choice(rules), tuple(some), ways)


# ---- the application


@dataclass(frozen=True, slots=True)
class Had:
    """What an application had: the part of the pace of its slowest stream, that of its datagrams
    which were lost, and the longest wait for an answer in seconds.
    """

    rate: float
    lost: float
    wait_s: float

    @property
    def suffers(self) -> bool:
        """Whether that is less than the application needs."""
        return self.rate < LEAST or self.lost > LOST or self.wait_s > WAIT_S

    def __str__(self) -> str:
        """Return it in words."""
        return (
            f"{self.rate:.2f} of its pace, {100 * self.lost:.1f} % lost, "
            f"answers after {1e3 * self.wait_s:.0f} ms at most"
        )


class Application:
    """A paced stream each way, and datagrams and requests from `a` to `b`; all begin at once."""

    def __init__(self, bare: Bare) -> None:
        self.streams = [self._stream(bare, one, other) for one, other in (HOSTS, HOSTS[::-1])]
        self._in, self._out = (
            open_in(bare.namespace(host), INNER["b"], socket.SOCK_DGRAM) for host in ("b", "a")
        )
        self._in.bind((INNER["b"], _PORT))
        self._in.settimeout(0.2)
        self._server, self._client = (
            open_in(bare.namespace(host), INNER["b"], socket.SOCK_STREAM) for host in ("b", "a")
        )
        self._server.bind((INNER["b"], _PORT))
        self._server.listen()
        self._arrived: list[
            tuple[float, list[int]]
        ] = []  # times, and the streams' bytes until then
        self._given: list[float] = []
        self._got: list[float] = []  # when those that arrived were given
        self._asked: list[float] = []
        self._answered: list[float] = []
        self._stop = threading.Event()
        works = (self._note, self._receive, self._send, self._ask, self._answer)
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]
        for stream in self.streams:
            stream.start()
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _stream(bare: Bare, source: str, target: str) -> Stream:
        stream = Stream(bare, source, target, INNER[target])
        stream._out.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, PACE)
        stream._out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACE // 8)
        return stream

    @property
    def received(self) -> int:
        """The bytes that have arrived of the slower stream."""
        return min(stream.received for stream in self.streams)

    def _note(self) -> None:
        while not self._stop.wait(0.02):
            self._arrived.append((time.monotonic(), [each.received for each in self.streams]))

    def _receive(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                (when,) = struct.unpack("=d", self._in.recv(64))
                self._got.append(when)

    def _send(self) -> None:
        while not self._stop.wait(1 / DATAGRAMS):
            now = time.monotonic()
            with contextlib.suppress(OSError):
                self._out.sendto(struct.pack("=d", now), (INNER["b"], _PORT))
            self._given.append(now)

    def _ask(self) -> None:
        with contextlib.suppress(OSError):  # the end closes the sockets
            self._client.connect((INNER["b"], _PORT))
            while not self._stop.wait(1 / REQUESTS):
                self._asked.append(time.monotonic())
                self._client.sendall(bytes(64))
                self._client.recv(64, socket.MSG_WAITALL)
                self._answered.append(time.monotonic())

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            served, _address = self._server.accept()
            with served:
                while asked := served.recv(64):
                    served.sendall(asked)

    def has(self, since: float, until: float) -> Had:
        """Return what the application had in a time."""
        times = [(when, sizes) for when, sizes in self._arrived if since <= when <= until]
        (first, low), (last, high) = times[0], times[-1]
        sent = sum(since <= when < until - 0.2 for when in self._given)
        came = sum(since <= when < until - 0.2 for when in self._got)
        slower = min(after - before for before, after in zip(low, high, strict=True))
        answered = [*self._answered, until]
        waits = (
            min(end, until) - max(begun, since)
            for begun, end in zip(self._asked, answered, strict=False)
        )
        return Had(slower / (last - first) / PACE, 1 - came / sent, max(waits, default=0.0))

    def close(self) -> None:
        """End everything."""
        self._stop.set()
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for end in (self._in, self._out, self._client, self._server, *self.streams):
            end.close()


# ---- a play


class Mute(Exception):
    """A daemon does not answer."""


def apply(bare: Bare, one: Play) -> None:
    """Put the rule between the hosts."""
    for port in slow_ports(one):
        words = f"qdisc add dev {port} root tbf rate {one.rule.mbps}mbit burst 64k latency 20ms"
        bare.run(MIDDLE, "tc", *words.split())
    if not one.rule.mbps:
        counted = one.rule.text.replace(" drop", " counter drop")
        if one.rule.bridged:
            counted = counted.format(twins=", ".join(map(_twin, one.planes)))
        bare_hosts.treat(bare, counted, one.planes, one.ways)


def _twin(plane: int) -> str:
    """Return by which port packets leave a bridge that come in by another one, as a map has it."""
    one, other = (f'"{host}{plane}"' for host in HOSTS)
    return f"{one} : {other}, {other} : {one}"


def slow_ports(one: Play) -> list[str]:
    """Return the ports of what is between the hosts that a rate slows down."""
    others = [HOSTS[1 - HOSTS.index(way)] for way in one.ways]
    return [f"{other}{plane}" for plane in one.planes for other in others if one.rule.mbps]


def dropped(bare: Bare, one: Play) -> bool:
    """Return whether the rule has dropped anything so far."""
    if one.rule.harmless:
        return False
    counted = re.findall(r"counter packets (\d+)", bare.run(MIDDLE, "nft", "list", "ruleset"))
    return bool(one.rule.mbps) or not counted or any(map(int, counted))


def undo(bare: Bare, one: Play) -> None:
    """Take the rule away."""
    for port in slow_ports(one):
        bare.run(MIDDLE, "tc", "qdisc", "del", "dev", port, "root")
    if not one.rule.mbps:
        bare_hosts.treat_no_more(bare)


def said(bare: Bare) -> list[str]:
    """Return all that the hosts' status names."""
    lines = []
    for host in HOSTS:
        found = bare.said(host)
        if found is None:
            raise Mute(f"mrcd of {host} does not answer")
        lines += [f"{host}: {line}" for line in found]
    return lines


def watch(bare: Bare, until: float, *, naming: bool) -> tuple[float, list[str]] | None:
    """Ask for status until it names something, or nothing any more; return when, and what."""
    while time.monotonic() < until:
        lines = said(bare)
        if bool(lines) == naming:
            return time.monotonic(), lines
        time.sleep(0.05)
    return None


def run(bare: Bare, one: Play) -> str | None:
    """Play; print what came of it, and return what is wrong."""
    application = Application(bare)
    try:
        deadline = time.monotonic() + 20
        while application.received < PACE // 2:
            if time.monotonic() > deadline:
                return "the application had nothing before the rule"
            time.sleep(0.02)
        began = time.monotonic()
        apply(bare, one)
        try:
            until = began + GRACE_S + WATCHED_S
            named = watch(bare, until, naming=True)
            time.sleep(max(0.0, until + 0.3 - time.monotonic()))
            had = application.has(began + GRACE_S, until)
            at_last, harmed = said(bare), dropped(bare, one)
        finally:
            undo(bare, one)
        ended = time.monotonic()
        again = watch(bare, ended + AGAIN_S, naming=False)
        back = time.monotonic()
        time.sleep(1.5)
        after = application.has(back, back + 1.4)
    finally:
        application.close()
    when = "nothing named" if named is None else f"named after {named[0] - began:.2f} s"
    what = "" if named is None else f" ({named[1][0]})"
    if named is not None and not at_last:
        what += ", and nothing any more"
    print(
        f"{one}\n    {had}; {when}{what}; as before "
        f"after {(again[0] if again else ended + AGAIN_S) - ended:.1f} s",
        flush=True,
    )
    if had.suffers and not at_last:
        return "the application suffers, and status names nothing"
    if had.suffers and named is not None and named[0] > began + GRACE_S:
        return "the application suffers, and status named it late"
    if not harmed and named is not None:
        return f"nothing is lost, and status says {named[1]}"
    if again is None:
        return f"afterwards status still says {said(bare)}"
    if after.rate < LEAST:
        return f"afterwards the application has {after}"
    return None


@contextlib.contextmanager
def hosts(one: Play) -> Iterator[Bare]:
    """Yield two hosts in the geometry of a play, both ok."""
    settings = f'[transport]\ncell_envelope = "{one.envelope}"\n'
    making = bare_hosts.building("s", one.count)
    try:
        bare = next(making)(bare_hosts.BUILDERS[one.how], settings, mtu=one.mtu)
        bare_hosts.set_offloads(bare, "tso off gso off")
        bare.begin()
        yield bare
    finally:
        making.close()  # type: ignore[attr-defined]


def main() -> None:
    """Play seeds; exit with 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 40), metavar=("FROM", "TO"))
    args = parser.parse_args()
    entry.begin("strange")
    wrong: Counter[str] = Counter()
    plays = map(play, range(*args.seeds))
    for _, some in itertools.groupby(plays, key=lambda one: one.seed // _PLAYS):
        here = list(some)
        with hosts(here[0]) as bare:
            for one in here:
                try:
                    problem = run(bare, one)
                except Mute as mute:
                    problem = str(mute)
                if problem is not None:
                    print(f"    WRONG: {problem}", flush=True)
                    wrong[problem.partition(":")[0]] += 1
    played = args.seeds[1] - args.seeds[0]
    print(
        f"{played} plays, {sum(wrong.values())} wrong: {dict(wrong)}; load {os.getloadavg()[0]:.1f}"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
