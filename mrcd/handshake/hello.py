# SPDX-License-Identifier: GPL-2.0-only
"""What hosts of a network say by each of their NICs to find each other (pure).

A Hello goes to a multicast group of the link, with a tag by the secret that all hosts have. A host
that looks for others (`mrcctl quick up`) and one whose mrcd runs (`discover = true`, a member) say
the same. Whoever can send on the network may repeat what was said there: a Hello makes a host a
peer, with which nothing can be agreed on without the secret.

A Hello reaches the hosts that share a network with its sender. Those that hand packets on
(`forward = true`) also tell what they have heard, so that hosts beyond them are known. Where there
are routers in between (`seeds`), a Hello goes to the address of one host, and has addresses of
others in it.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from typing import Any, Final

import msgspec

from mrcd.handshake.datagram import NO_MESSAGE

MAGIC: Final = b"MRCr"
TAG_BYTES: Final = 16
NICS_MAX: Final = 8
_NAME_MAX, _INNER_MAX, _WHY_MAX = 31, 8, 300
_SHOWN_MAX = 1024
_WORD_MAX = (1 << 64) - 1
HOSTS_MAX: Final = 64
"""The most hosts that one Hello speaks of, and the most that one tells of."""
TOLD_BYTES: Final = 24_000
"""So long is what one Hello tells of other hosts, at most, without their certificates."""
CONTACT_BYTES: Final = 300
"""So long is what one Hello says of the addresses of others, at most."""
_PER_S = 200
"""Hellos that all hosts together send on a network, about; where they are many, each says fewer."""
RATE_MAX: Final = (1 << 32) - 1
"""The highest rate of a NIC, Mb/s; the kernel's number for it has 32 bits, too."""
_CONTEXT = b"mrcd quick discovery"
Pair = tuple[int, int]
"""A NIC of the host that speaks, and one of another host that it hears there."""


class BadHello(Exception):
    """The bytes are no Hello of a host that has our secret; the message says why."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one host says of itself, and others may tell of it.

    `run` is a random number that tells two hosts of one name apart, `born_ns` the time of its
    start, and `seq` grows with each Hello. `addresses` are those of its NICs, empty where there is
    none or none is known. `rates` are what these carry, in Mb/s, 0 where that is unknown; there are
    none before mrcd runs. `heard` lists, for each other host, the pairs of NICs, its own first, on
    which it hears it: if it is `whole` every host, and otherwise only who needs to know.
    `forwards`: it hands packets on. `mtu` is that of its planes, bytes. `leaving`: it goes.
    `shown` is its certificate in base64, where others tell of it.
    """

    name: str
    run: str
    born_ns: int
    seq: int
    nics: int
    inner: tuple[str, ...]
    addresses: tuple[str, ...] = ()
    rates: tuple[int, ...] = ()
    heard: Mapping[str, tuple[Pair, ...]] = field(default_factory=dict)
    whole: bool = False
    forwards: bool = False
    mtu: int = 0
    leaving: bool = False
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a host says by one of its NICs.

    `nic` is the place of the NIC among the host's, from 0. `done` is set once the host has found
    everybody. `member`: its mrcd runs, and its NICs are its planes in their order; it lists in
    `seeks` who is not its peer yet, or on more NICs than its peer is, and in `refused` why some
    cannot be. `told` is what others have said. `contacts` are addresses of other members, to which
    a Hello can be sent where there are routers in between.
    """

    said: Said
    nic: int
    done: bool = False
    member: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    seeks: tuple[str, ...] = ()
    told: tuple[Said, ...] = ()
    contacts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the host."""
        return self.said.name

    @property
    def run(self) -> str:
        """What tells two hosts of this name apart."""
        return self.said.run


_FIELDS: Final = tuple(each.name for each in fields(Said))


def spaced_s(period_s: float, hosts: int, nics: int) -> float:
    """Return the time between two Hellos: `period_s`, or more where there are many hosts."""
    return max(period_s, hosts * nics / _PER_S)


def fitting(told: Iterable[Said], start: int) -> tuple[Said, ...]:
    """Return as much of what others have said as one Hello takes, from a place on, in a circle."""
    every = list(told)
    if not every:
        return ()
    first = start % len(every)
    left = TOLD_BYTES
    found: list[Said] = []
    for said in (*every[first:], *every[:first]):
        left -= len(_json(_plain(said)))
        if left < 0 or len(found) == HOSTS_MAX:
            break
        found.append(said)
    return tuple(found)


def in_parts(contacts: Mapping[str, tuple[str, ...]]) -> list[dict[str, tuple[str, ...]]]:
    """Return addresses of hosts in parts of which each fits into one datagram on any network."""
    parts: list[dict[str, tuple[str, ...]]] = []
    left = 0
    for name, addresses in contacts.items():
        size = len(_json({name: addresses}))
        if not parts or size > left or len(parts[-1]) == HOSTS_MAX:
            parts.append({})
            left = CONTACT_BYTES
        parts[-1][name] = addresses
        left -= size
    return parts


def encode(hello: Hello, key: bytes) -> bytes:
    """Return a Hello as a datagram, with a tag by the key that all hosts have."""
    body = {
        "said": _plain(hello.said),
        "nic": hello.nic,
        "done": hello.done,
        "member": hello.member,
        "refused": dict(hello.refused),
        "seeks": hello.seeks,
        "told": [_plain(said) for said in hello.told],
    }
    if hello.contacts:
        body["contacts"] = hello.contacts
    text = _json(body)
    return MAGIC + _tag(key, text) + text


def _json(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _plain(said: Said) -> dict[str, Any]:
    """Return what JSON has of it: pairs of NICs as pairs of masks, which are few in any network."""
    plain = {name: getattr(said, name) for name in _FIELDS}
    plain["heard"] = {name: _masks(pairs) for name, pairs in said.heard.items()}
    return plain


def _masks(pairs: Iterable[Pair]) -> list[Pair]:
    """Return pairs of NICs as masks: each NIC of the one mask with each of the other."""
    theirs: dict[int, int] = {}
    for own, other in pairs:
        theirs[own] = theirs.get(own, 0) | 1 << other
    ours: dict[int, int] = {}
    for own, mask in theirs.items():
        ours[mask] = ours.get(mask, 0) | 1 << own
    return [(own, other) for other, own in sorted(ours.items())]


def _pairs(masks: Iterable[Pair]) -> tuple[Pair, ...]:
    return tuple(sorted({
        (own, other)
        for owns, others in masks
        for own in _bits(int(owns))
        for other in _bits(int(others))
    }))  # fmt: skip


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(NICS_MAX) if mask >> bit & 1]


def decode(datagram: bytes, key: bytes) -> Hello:
    """Return the Hello in a datagram. Raises BadHello."""
    if not datagram.startswith(MAGIC):
        raise BadHello("it is no Hello of mrcd, or one of another version")
    tag, body = datagram[len(MAGIC) : len(MAGIC) + TAG_BYTES], datagram[len(MAGIC) + TAG_BYTES :]
    if not hmac.compare_digest(tag, _tag(key, body)):
        raise BadHello("its host has another secret, or none")
    try:
        # Unlike json, msgspec reads neither infinity nor half a character (a lone surrogate).
        return _hello(msgspec.json.decode(body))
    except (*NO_MESSAGE, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadHello(f"it cannot be read: {error}") from None


def _tag(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key or _CONTEXT, _CONTEXT + body, "blake2s")[:TAG_BYTES]


def _hello(data: Any) -> Hello:
    hello = Hello(
        said=_said(data["said"]),
        nic=int(data["nic"]),
        done=data["done"] is True,
        member=data["member"] is True,
        refused={str(name): str(why)[:_WHY_MAX] for name, why in data["refused"].items()},
        seeks=tuple(map(str, data["seeks"][:HOSTS_MAX])),
        told=tuple(_said(each) for each in data["told"][:HOSTS_MAX]),
        contacts=_contacts(data.get("contacts", {})),
    )
    if not 0 <= hello.nic < hello.said.nics:
        raise ValueError("its NIC is none of its NICs")
    return hello


def _contacts(data: Any) -> dict[str, tuple[str, ...]]:
    if len(data) > HOSTS_MAX:
        raise ValueError("it tells of too many hosts")
    return {
        str(name)[:_NAME_MAX]: tuple(str(ip_address(each)) for each in known[:NICS_MAX] if each)
        for name, known in data.items()
    }


def _word(number: Any) -> int:
    if not 0 <= int(number) <= _WORD_MAX:
        raise ValueError(f"{str(number)[:20]} is not 64 bits unsigned")
    return int(number)


def _said(data: Any) -> Said:
    said = Said(
        name=str(data["name"]),
        run=str(data["run"])[:_NAME_MAX],
        born_ns=_word(data["born_ns"]),
        seq=_word(data["seq"]),
        nics=int(data["nics"]),
        inner=tuple(str(ip_address(text)) for text in data["inner"]),
        addresses=tuple(text and str(ip_address(text)) for text in data["addresses"]),
        rates=tuple(map(int, data["rates"])),
        heard={str(name): _pairs(masks) for name, masks in data["heard"].items()},
        whole=data["whole"] is True,
        forwards=data["forwards"] is True,
        mtu=_word(data["mtu"]),
        leaving=data["leaving"] is True,
        shown=str(data["shown"])[:_SHOWN_MAX],
    )
    if not 0 < len(said.name) <= _NAME_MAX or not 0 < len(said.inner) <= _INNER_MAX:
        raise ValueError("its name or its addresses are too long")
    if not 0 < said.nics <= NICS_MAX or len(said.heard) > HOSTS_MAX:
        raise ValueError("its NICs are too many")
    if len(said.addresses) not in (0, said.nics):
        raise ValueError("it has not an address for each NIC")
    if len(said.rates) not in (0, said.nics) or not all(0 <= r <= RATE_MAX for r in said.rates):
        raise ValueError("it has not a rate for each NIC, or no such rate")
    return said
