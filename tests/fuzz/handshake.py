# SPDX-License-Identifier: GPL-2.0-only
"""What arrives from other hosts: the channel's datagrams, and every message inside and outside it.

The first byte says which reader an input is for. Tags and signatures are made here, as a host of
the cluster could, so that what is behind them is reached.
"""

from __future__ import annotations

import contextlib
import math
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from ipaddress import IPv6Address
from typing import Any

import msgspec

from mrcd.handshake import (
    certificate,
    hello,
    identity,
    introduction,
    invitation,
    offer,
    revocation,
    sealing,
    unicast,
    voice,
)
from mrcd.handshake import datagram as frames
from mrcd.handshake.authority import Authority, Signer
from mrcd.handshake.datagram import DatagramError
from mrcd.handshake.identity import Keyring, Secret
from mrcd.handshake.noise import KeyPair
from mrcd.handshake.revocation import Revocations
from mrcd.measure import messages as measures
from mrcd.survey import messages as surveys
from mrcd.survey import shots, told
from mrcd.wire import cell, packet
from mrcd.wire.headers import DecodeError
from rigs.oracle import vector
from tests.unit.wire_double import MS, Wire, pair

KEY = bytes(range(32))
AUTHORITY = Authority(Secret(KEY))
SIGNER = Signer(Secret(bytes(32)))
BLOCK, QPN = 0xFDCB0000, 0x880003
U64 = 1 << 64
WORDS = (
    "Infinity",
    "NaN",
    "-1",
    "1e400",
    "1e300",
    '"\\ud800"',
    "null",
    "[]",
    "{}",
    "9" * 30,
    "true",
)
"""What fuzzers are to try in place of anything."""


def _ring(name: str) -> Keyring:
    return identity.simple_keys(Secret(KEY), name, ())


def _voice() -> voice.Trusted:
    found = voice.of(_ring("h1"), "h1", Revocations())
    assert found is not None
    return found


def _offer(data: bytes) -> None:
    try:
        found = offer.decode(data)
    except offer.HandshakeError:
        return
    assert offer.decode(offer.encode(found)) == found


def _introduction(data: bytes) -> None:
    try:
        found = introduction.read_introduction(data)
        same = introduction.introduction(
            found.name, found.t0, found.port, found.addresses, found.frame
        )
        assert introduction.read_introduction(same) == found
    except offer.HandshakeError:
        pass
    with contextlib.suppress(offer.HandshakeError):
        assert introduction.read_refusal(data).isprintable()


def _revocations(data: bytes) -> None:
    try:
        statements = revocation.statements_of(data)
    except DatagramError:
        return
    ours = Revocations()
    assert ours.merge(AUTHORITY.public, statements) == []  # nobody here can sign
    assert len(ours) == 0


def _values(node: Any) -> Iterator[Any]:
    """Yield each text and number of what was read."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield key
            yield from _values(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _values(value)
    else:
        yield node


def _good_hello(found: hello.Hello, key: bytes) -> None:
    assert hello.decode(hello.encode(found, key), key) == found
    for value in _values(asdict(found)):
        if isinstance(value, str):
            value.encode()  # it gets into logs and answers
        assert not isinstance(value, int) or -U64 < value < U64


def _hello(data: bytes) -> None:
    tag = hello._tag(KEY, data)
    try:
        found = hello.decode(hello.MAGIC + tag + data, KEY)
    except hello.BadHello:
        return
    _good_hello(found, KEY)


def _said(data: bytes) -> None:
    """A Hello in the body that its host has signed, by a host that has a certificate."""
    ours = _voice()
    key = ours._key
    inner = hello.MAGIC + hello._tag(key, data) + data
    said = voice._Body(ours.own.statement, ours.revocations.digest, (), inner)
    _heard(ours, msgspec.msgpack.encode(said))


def _signed(data: bytes) -> None:
    """Any body, signed by a host that has a certificate."""
    _heard(_voice(), data)


def _heard(ours: voice.Trusted, body: bytes) -> None:
    statement = ours._signer.sign(voice._CONTEXT, body)
    try:
        found = ours.hear(voice.MAGIC + ours._tag(statement) + statement)
    except hello.BadHello:
        assert ours.news() == []
        return
    assert found.certificate == ours.own
    _good_hello(found.hello, ours._key)


def _certificate(data: bytes) -> None:
    statement = AUTHORITY.sign(certificate._CONTEXT, data)
    try:
        found = certificate.read(AUTHORITY.public, statement)
    except certificate.BadCertificate:
        return
    assert certificate.read(AUTHORITY.public, found.statement) == found


def _parcel(data: bytes) -> None:
    found = unicast.read(data)
    assert found is None or found.pack() == data


def _invitation(data: bytes) -> None:
    try:
        found = invitation.read(data.decode("utf-8", "surrogateescape"))
    except invitation.BadInvitation:
        return
    assert invitation.read(found.text) == found


def _request(data: bytes) -> None:
    """A request to join as a host makes it that has seen an invitation."""
    exchange = AUTHORITY.exchange.public
    asking = invitation.Initiator(
        KeyPair(KEY), exchange, identity.NO_PSK.reveal(), KEY, invitation._PROLOGUE
    )
    message = asking.write(data)
    datagram = invitation.REQUEST + invitation._mac(exchange, message) + message
    try:
        invitation.Request(AUTHORITY, datagram)
    except invitation.BadRequest:
        return
    assert len(datagram) <= invitation.DATAGRAM_MAX


def _survey(data: bytes) -> None:
    with contextlib.suppress(surveys.EvidenceError):
        surveys.decode(data)


def _told(data: bytes) -> None:
    try:
        found = told.decode(data)
    except surveys.EvidenceError:
        return
    own = told.Self(found.host, found.run, found.token, found.nics, found.refused)
    same = told.message_of(own, found.ways)
    assert told.decode(frames.encode(told.MAGIC, same)) == same
    for ways in found.ways.values():
        for way in ways:
            assert way.took_us is None or math.isfinite(way.took_us)
            told.kinds_of(way.kinds)


def _shot(data: bytes) -> None:
    whole = shots.MAGIC + zlib.crc32(data[8:]).to_bytes(4) + data[8:]
    try:
        found = shots.decode(whole)
    except shots.NoProbe:
        return
    assert found is not None
    assert shots.decode(shots.encode(found, len(whole))) == found


def _measure(data: bytes) -> None:
    try:
        found = measures.decode(data)
    except measures.MeasureError:
        return
    for name in ("mbps", "median_us", "p99_us"):
        assert math.isfinite(getattr(found.body, name, 0.0))
    same = measures.encode(found.host, found.nonce, found.number, found.body)
    assert measures.decode(same) == found


def _packet(data: bytes) -> None:
    try:
        found = packet.decode_frame(data)
    except DecodeError:
        return
    again = packet.encode_frame(found, data[:6], data[6:12])
    assert packet.decode_frame(again) == found


def _cell(data: bytes) -> None:
    try:
        found = cell.decode_cell(data, BLOCK, QPN)
    except DecodeError:
        return
    assert cell.decode_cell(cell.encode_cell(found), BLOCK, QPN) == found


_wire: list[Wire] = []


def _up() -> Wire:
    """Return two hosts that have keys; they are made once."""
    if not _wire:
        wire = pair(1)
        wire.run(200 * MS)
        assert wire.agreed()
        _wire.append(wire)
    return _wire[0]


def _channel(data: bytes) -> None:
    """A datagram of a stranger who knows the public key of the host, and its indices."""
    wire = _up()
    gate = wire.b.gate
    if len(data) < 2:
        return
    kinds = (sealing.INIT, sealing.RESPONSE, sealing.COOKIE, sealing.SEALED)
    kind, known, body = kinds[data[0] & 3], sorted(gate._indices), data[2:]
    index = known[data[1] % len(known)].to_bytes(4, "big") if data[0] & 4 else data[1:5].ljust(4)
    low, high = sealing.LENGTHS[kind]
    datagram = (kind + index + body)[:high].ljust(low, b"\0")
    if data[0] & 8 and kind in (sealing.INIT, sealing.RESPONSE):
        macs = sealing.MAC1_BYTES + (sealing.MAC_BYTES if kind == sealing.INIT else 0)
        text = datagram[:-macs]
        datagram = text + sealing.mac1(wire.b.keys.public, text)
        datagram += bytes(sealing.MAC_BYTES) if kind == sealing.INIT else b""
    source = (wire.a.name, None)[data[0] >> 4 & 1]
    before = gate.memories, sorted(gate._indices), wire.b.channel.deadline_ns
    gate._taken.clear()
    gate._loaded_until_ns = gate._inits = 0
    commands = gate.receive(datagram, source, now_ns=wire.now_ns)
    assert commands == [], f"a stranger has had this done: {commands}"
    assert (gate.memories, sorted(gate._indices), wire.b.channel.deadline_ns) == before


READERS: tuple[Callable[[bytes], None], ...] = (
    _offer, _introduction, _revocations, _hello, _said, _signed, _certificate, _parcel,
    _invitation, _request, _survey, _measure, _packet, _cell, _channel, _told,
    _shot,
)  # fmt: skip


def check(data: bytes) -> None:
    """Have one of the readers read an input."""
    if data:
        READERS[data[0] % len(READERS)](data[1:])


def _for(reader: Callable[[bytes], None], data: bytes) -> bytes:
    return bytes([READERS.index(reader)]) + data


def seeds() -> Iterator[bytes]:
    """Yield good messages, and for each the reader that it is for."""
    rng = random.Random(1)
    said = hello.Said(
        "h1", "1", 1, 2, 2, ("fd99::1", "10.99.0.1"), ("fe80::1", "192.0.2.1"), (1000, 0),
        {"h2": ((0, 0), (1, 1))}, whole=True, forwards=True, mtu=1500,
    )  # fmt: skip
    full = hello.Hello(
        said, 1, done=True, member=True, refused={"h3": "why"}, seeks=("h4",), told=(said,),
        contacts={"h2": ("fe80::2", "")},
    )  # fmt: skip
    for each in (full, hello.Hello(said, 0)):
        text = hello.encode(each, KEY)[len(hello.MAGIC) + hello.TAG_BYTES :]
        yield _for(_hello, text)
        yield _for(_said, text)
    ours = _voice()
    for notices in ((), (b"x" * 80,)):
        inner = hello.encode(full, ours._key)
        body = voice._Body(ours.own.statement, ours.revocations.digest, notices, inner)
        yield _for(_signed, msgspec.msgpack.encode(body))
    yield _for(_certificate, ours.own.statement[64:])
    made = offer.Offer(
        3, "h1", "h2", 1, 2, 3, 4, True, False, 1500, 128, 3, ("cell", "trim"),
        ((0x770000, 1000), (0x770001, 5)), 1000, 1, 7, 8, (b"\0" * 4, b"\1" * 16), (1000, 0),
    )  # fmt: skip
    yield _for(_offer, offer.encode(made))
    yield _for(_offer, offer.encode(msgspec.structs.replace(made, version=4, oldest=4)))
    yield _for(_introduction, introduction.question())
    yield _for(_introduction, introduction.introduction("h9", 1, 2, ("10.0.0.1/24",), 5))
    yield _for(_introduction, introduction.refusal("no"))
    for message in revocation.messages([b"s" * 90, b"t" * 70]):
        yield _for(_revocations, message)
    for kind in (unicast.PARCEL, unicast.COOKIE, unicast.REFUSED):
        yield _for(_parcel, kind + bytes(16) + b"x" * (kind == unicast.PARCEL))
    invited = invitation.make(AUTHORITY, "c", "a", ident=rng.randbytes(16), end_s=1 << 31)
    yield _for(_invitation, invited.text.encode())
    request = invitation._Request(invitation.VERSION, invited.statement, SIGNER.public)
    yield _for(_request, msgspec.msgpack.encode(request))
    totals = {0: surveys.Total(5, 4, 12.0), 3: surveys.Total(9, 9, None)}
    for message in surveys.encode("h1", 1, 2, totals):
        yield _for(_survey, message)
    nic = told.Nic("eth1", 1500, True, 0, 0)
    for took, kinds in ((None, ()), (12.5, (1,) * (2 * (told.PORTS + 2) + 3)), (math.inf, ())):
        way = told.Way(1, 2, 3, -1, 5, 6, 7, took, kinds, 0)
        own = told.Self("h1", 1, 2, (nic,), ("h9",))
        for message in told.encode(own, {"h2": (way,)}):
            yield _for(_told, message)
    yield _for(_shot, shots.encode(shots.Probe(1, 2, 3, 4, 5), 64))
    for body in (
        measures.Refuse("no"), measures.End(), measures.Send(1, 2.5, 100), measures.Tell(1),
        measures.Told(1, 2, 3.5, 1.0, 2.0, False), measures.Told(1, 2, math.nan, 1.0, 2.0, False),
        measures.Told(1, 2, math.inf, math.inf, 2.0, False),
    ):  # fmt: skip
        yield _for(_measure, measures.encode("h1", 7, 1, body))
    for name in ("data-v4", "data-ecmp4", "sack-pr", "nack", "probe", "eeth-ev-probe"):
        yield _for(_packet, vector(name))
    inner = b"\x45" + bytes(1) + (28).to_bytes(2, "big") + bytes(24)
    for mss in (0, 1000):
        shown = cell.Cell(BLOCK, QPN, 5, 1 << 16, mss, 0, 0, False, 0)
        yield _for(_cell, cell.encode_cell(cell.CellPacket(shown, IPv6Address("fcbb::1"), inner)))
    for first in range(32):
        yield _for(_channel, bytes([first, 0]) + bytes(140))
    for text in hostile(full):
        yield _for(_hello, text)
        yield _for(_said, text)


def hostile(full: hello.Hello) -> Iterator[bytes]:
    """Yield Hellos with what JSON may have and nobody expects."""
    yield b"[" * 1800
    plain = hello.encode(full, KEY)[len(hello.MAGIC) + hello.TAG_BYTES :].decode()
    for word in WORDS:
        yield plain.replace('"nic":1', f'"nic":{word}').encode()
        yield plain.replace('"h1"', word).encode()
        yield plain.replace('"born_ns":1', f'"born_ns":{word}').encode()
        yield plain.replace("[[1,1],[2,2]]", f"[[{word},{word}]]").encode()
