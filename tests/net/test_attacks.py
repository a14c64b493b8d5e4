# SPDX-License-Identifier: GPL-2.0-only
"""Test that a host without a key gets nothing in, out or in the way, while two others talk.

The stranger is the third host of a lab: real packets on the planes, in the name of one of the other
two. docs/security.md has the attacks as a table.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab
from mrcd.fabric import underlay
from mrcd.handshake import identity, sealing
from mrcd.linux import bpf, netns
from mrcd.wire.abi import ABI
from rigs import lab_hosts
from rigs.besieged import SETTLED_S, VICTIMS, hide_from, return_s, settle
from rigs.daemons import Traffic, connections, events, log_of
from rigs.fault_watch import faults_of
from rigs.lab_hosts import eventually
from rigs.stranger import (
    COUNTERS,
    KINDS,
    OTHER_COUNTERS,
    Flood,
    Held,
    Insider,
    Stranger,
    frames,
    send,
)
from rigs.traffic import open_in

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
PPS = int(os.environ.get("MRC_ATTACK_PPS", "20000"))
"""Forged packets a second, of one kind. bench/faults/attacks.py sends more, on a quiet machine."""
FRAMES = 2000
ENOUGH = 4000  # packets that must have reached a victim
RETURN_LATER_S = 1.0

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def besieged(module_labs: MakeLab) -> Lab:
    """Return a lab of three hosts, of which two have keys for each other, and one has none."""
    running = module_labs(daemons=False, hosts=3, planes=2, t1=2, on_stop="detach")
    hide_from(running)
    return running


@pytest.fixture
def running(besieged: Lab) -> Iterator[Lab]:
    """Return that lab, with both daemons well before and after."""
    settle(besieged)
    yield besieged
    settle(besieged)


@dataclass(frozen=True)
class Sessions:
    """What a reset, a new session or a named fault would change on the two victims."""

    qpns: tuple[tuple[int, int], ...]
    events: tuple[int, ...]
    faults: tuple[str, ...]

    @classmethod
    def of(cls, running: Lab) -> Sessions:
        told = ("peer.restarted", "peer.out_of_step", "qp.failed", "peer.silent", "fault.named",
                "peer.ports_changed", "peer.established")  # fmt: skip
        return cls(
            tuple((q["qpn"], q["remote_qpn"]) for h in VICTIMS for q in connections(running, h)),
            tuple(events(running, host).count(name) for host in VICTIMS for name in told),
            tuple(f.element for h in VICTIMS for f in faults_of(running.name, h)["faults"]),
        )


def strangers(running: Lab) -> list[Stranger]:
    """Return a stranger for each victim, which poses as the other one."""
    h1, h2, h3 = (running.fabric.host(name) for name in ("h1", "h2", "h3"))
    return [Stranger(running, h3, h1, h2, 1), Stranger(running, h3, h2, h1, 2)]


@contextlib.contextmanager
def flooded(running: Lab, *kinds: str) -> Iterator[Flood]:
    """Send forged packets of these kinds to both victims."""
    each = FRAMES // len(kinds) // 2
    made = [f for s in strangers(running) for kind in kinds for f in frames(s, kind, each)]
    strangers(running)[0].rng.shuffle(made)
    flood = Flood(running.namespace("h3"), made, running.fabric.planes).start(PPS)
    try:
        yield flood
    finally:
        flood.stop()


def dropped(running: Lab, names: frozenset[str]) -> int:
    return sum(lab_hosts.counters(running.name, "h1")[name] for name in names)


class Silence:
    """What comes to the stranger's NICs from the victims, which should be nothing."""

    def __init__(self, running: Lab) -> None:
        fabric = running.fabric
        self._theirs = {
            underlay.of(fabric).address(fabric.host(host), plane).packed
            for host in VICTIMS
            for plane in range(fabric.planes)
        }
        self._taps = []
        for plane in range(fabric.planes):
            with netns.entered(running.namespace("h3")):
                tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x86DD))
            tap.bind((f"plane{plane}", 0x86DD))
            tap.setblocking(False)
            self._taps.append(tap)

    def broken(self) -> list[bytes]:
        """Return what has come so far; what the stranger sent itself does not count."""
        found = []
        for tap in self._taps:
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet, address = tap.recvfrom(2048)
                    if address[2] != socket.PACKET_OUTGOING and packet[8:24] in self._theirs:
                        found.append(packet)
        return found

    def close(self) -> None:
        for tap in self._taps:
            tap.close()


@pytest.fixture
def silence(running: Lab) -> Iterator[Silence]:
    listening = Silence(running)
    yield listening
    listening.close()


# ---- floods


@pytest.mark.parametrize("kind", KINDS)
def test_flood_disturbs_nothing(running: Lab, silence: Silence, kind: str) -> None:
    names = COUNTERS.get(kind, OTHER_COUNTERS)
    before, refused = Sessions.of(running), dropped(running, names)
    traffic = Traffic(running)
    with flooded(running, kind):
        eventually(lambda: dropped(running, names) >= refused + ENOUGH, f"{kind} arrive", 60)
        traffic.there.progress(4 << 20, 60)
        traffic.back.progress(1 << 20, 60)
        during = Sessions.of(running)
    traffic.finish()
    assert during == before
    assert Sessions.of(running) == before
    assert silence.broken() == []


def test_everything_at_once_disturbs_nothing(running: Lab, silence: Silence) -> None:
    before = Sessions.of(running)
    traffic = Traffic(running)
    with flooded(running, *KINDS) as flood:
        eventually(lambda: flood.sent >= 2 * ENOUGH, "enough is sent", 60)
        traffic.there.progress(4 << 20, 60)
    traffic.finish()
    assert Sessions.of(running) == before
    assert silence.broken() == []


# ---- a peer's return


@pytest.mark.alone
def test_peer_returns_as_soon_under_a_flood(running: Lab) -> None:
    """The stranger knows no public key, and speaks for both hosts in every message there is."""
    calm = min(return_s(running) for _ in range(2))
    with flooded(running, "inits", "indexed", "offers", "survey totals"):
        besieged = min(return_s(running) for _ in range(2))
    assert besieged < calm + RETURN_LATER_S, (besieged, calm)


# ---- a scan


def test_scan_finds_nothing(running: Lab, silence: Silence) -> None:
    """Every opcode, many QPNs and ports, and every protocol behind a uSID: no answer to any."""
    stranger = strangers(running)[0]
    before = Sessions.of(running)
    data = frames(stranger, "data", 1)[0]
    udp = 14 + 40 + 40
    scan = []
    for number in range(256):
        opcode = bytearray(data)
        opcode[udp + 8] = number
        protocol = bytearray(data)
        protocol[14 + 40 + 6] = number
        outer = bytearray(data)
        outer[14 + 6] = number
        scan += [bytes(opcode), bytes(protocol), bytes(outer)]
    for port in (*range(1, 1024), *range(4960, 4990), *range(40000, 40100)):
        scan.append(stranger.message(b"hello" * 4, port=port))
    flood = Flood(running.namespace("h3"), scan, running.fabric.planes).start(PPS)
    eventually(lambda: flood.sent >= 2 * len(scan), "all is sent", 60)
    flood.stop()
    traffic = Traffic(running)
    traffic.finish()
    assert silence.broken() == []
    assert Sessions.of(running) == before


def test_ports_on_the_bare_address_are_silent(running: Lab) -> None:
    """What goes past the uSIDs reaches neither the daemon nor its answers."""
    fabric = running.fabric
    target = str(underlay.of(fabric).address(fabric.host("h1"), 0))
    source = str(underlay.of(fabric).address(fabric.host("h3"), 0))
    before = lab_hosts.mrcctl_json(running.name, "h1", "stats")
    with open_in(running.namespace("h3"), source, socket.SOCK_DGRAM) as sender:
        sender.bind((source, 0))
        sender.settimeout(1)
        for port in (4971, 4972):
            sender.connect((target, port))
            for message in (b"x" * 20, sealing.SEALED + bytes(60), b"MRCh\0\1\x90"):
                sender.send(message)
            with pytest.raises(TimeoutError):  # an ICMP error would be a refused connection
                sender.recv(2048)
    after = lab_hosts.mrcctl_json(running.name, "h1", "stats")
    told = {c["name"]: c["value"] for c in after["counters"] if c["name"].startswith("channel_")}
    assert told == {c["name"]: c["value"] for c in before["counters"] if c["name"] in told}


def test_message_from_outside_the_fabric_is_refused(running: Lab) -> None:
    """It would be taken but for its hop limit: the mac1 is right."""
    stranger = strangers(running)[0]
    status = lab_hosts.status(running.name, "h1")
    assert status is not None
    public = identity.decode_key(str(status.public_key))
    body = sealing.INIT + bytes(sealing.INIT_BYTES - 4 - sealing.MAC1_BYTES - sealing.MAC_BYTES)
    knowing = stranger.message(body + sealing.mac1(public, body) + bytes(sealing.MAC_BYTES))
    far = bytearray(knowing)
    far[14 + 7] = 254
    before = lab_hosts.counters(running.name, "h1")
    for frame in (knowing, bytes(far)):
        send(running.namespace("h3"), frame)

    def rose(name: str) -> bool:
        return lab_hosts.counters(running.name, "h1")[name] > before[name]

    eventually(lambda: rose("drop_hops"), "the far one is refused")
    eventually(lambda: rose("channel_handshake"), "the near one is taken apart")


def test_log_names_no_secret_and_stays_short(running: Lab) -> None:
    """A flood writes some lines a second at most."""
    lines = len(log_of(running, "h1"))
    began = time.monotonic()
    with flooded(running, "inits", "indexed"):
        eventually(lambda: time.monotonic() > began + 2, "two seconds")
    assert len(log_of(running, "h1")) < lines + 20
    json.dumps(log_of(running, "h1"))


# ---- a peer that was taken over


HOSTILE = ("port status", "absurd sacks", "heard sacks", "nacks", "probes", "data", "trimmed",
           "cells", "answers")  # fmt: skip


@pytest.fixture(scope="module")
def allied(module_labs: MakeLab) -> Lab:
    """Return a lab of three hosts that trust each other."""
    return module_labs(daemons=False, hosts=3, planes=2, t1=2, on_stop="detach")


def held_by(running: Lab, host: str, target: str) -> tuple[list[Held], Held]:
    """Return a host's QPs to another with their keys, and the key of its endpoint packets."""
    maps, qps, endpoint = lab_hosts.maps_of(running.name, host), [], None
    qp_kind, keys_kind = ABI.structs["mrc_qp"], ABI.structs["mrc_keys"]
    for qp in connections(running, host):
        if qp["peer"] != target:
            continue
        index = qp["qpn"] & 0xFFFF
        there = qp_kind.unpack(entry(maps / "qps", index, qp_kind.size))
        qps.append(held(entry(maps / "keys", index, keys_kind.size), qp["remote_qpn"],
                        qp["next_psn"]))  # fmt: skip
        endpoint = held(entry(maps / "peer_keys", there["peer"], keys_kind.size), 2, 0)
    assert endpoint is not None
    return qps, endpoint


def entry(path: Path, index: int, size: int) -> bytes:
    handle = bpf.get(path)
    try:
        raw = bpf.lookup(handle, struct.pack("=I", index), size)
    finally:
        os.close(handle)
    assert raw is not None
    return raw


def held(raw: bytes, qpn: int, psn: int) -> Held:
    kind = ABI.structs["mrc_keys"]
    phase = kind.unpack(raw)["state"] & ABI.MRC_KEYS_TX_PHASE
    words = kind.unpack_array(raw, "tx")
    return Held(qpn, psn, struct.pack("=QQ", *words[2 * phase : 2 * phase + 2]), phase)


def between_victims(running: Lab) -> list[tuple[int, int]]:
    return [
        (qp["qpn"], qp["remote_qpn"])
        for host, peer in zip(VICTIMS, reversed(VICTIMS), strict=True)
        for qp in connections(running, host)
        if qp["peer"] == peer
    ]


def test_hostile_peer_harms_only_itself(allied: Lab) -> None:
    """Its keys are right and its fields are not; h1 and h2 talk on, whatever becomes of h3."""
    for host in ("h1", "h2", "h3"):
        lab.start_daemon(allied.name, host)
    for host in ("h1", "h2", "h3"):
        lab_hosts.until_ok(allied.name, host, SETTLED_S)
    h1, h3 = (allied.fabric.host(name) for name in ("h1", "h3"))
    insider = Insider(allied, h3, h1, *held_by(allied, "h3", "h1"))
    before, sessions = lab_hosts.counters(allied.name, "h1"), between_victims(allied)
    traffic = Traffic(allied)
    made = [frame for kind in HOSTILE for frame in frames(insider, kind, FRAMES // len(HOSTILE))]
    insider.rng.shuffle(made)
    flood = Flood(allied.namespace("h3"), made, allied.fabric.planes).start(PPS // 4)
    eventually(lambda: flood.sent >= 2 * len(made), "all is sent", 60)
    flood.stop()
    traffic.there.progress(4 << 20, 60)
    traffic.finish()
    after = lab_hosts.counters(allied.name, "h1")
    assert after["ports_rx"] > before["ports_rx"]  # what it sends is authentic
    assert after["drop_foreign"] + after["drop_not_here"] > before["drop_foreign"]
    assert between_victims(allied) == sessions
    assert "fault.named" not in events(allied, "h1") + events(allied, "h2")
    gone = [each for each in log_of(allied, "h1") if each["event"] in ("qp.failed", "peer.silent")]
    assert all(each["peer"] == "h3" for each in gone)
