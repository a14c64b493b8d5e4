# SPDX-License-Identifier: GPL-2.0-only
"""What hosts of a network say by each of their NICs to find each other (pure).

A Hello goes to a multicast group of the link, with a tag by the secret that all hosts have. A host
that looks for others (`mrcctl quick up`) and one whose mrcd runs (`discover = true`, a member) say
the same. Whoever can send on the network may repeat what was said there: a Hello makes a host a
peer, with which nothing can be agreed on without the secret.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from typing import Any, Final

MAGIC: Final = b"MRCq"
TAG_BYTES: Final = 16
NICS_MAX: Final = 8
_NAME_MAX, _INNER_MAX, _WHY_MAX = 31, 8, 300
HOSTS_MAX: Final = 64
"""The most hosts that one Hello speaks of."""
_PER_S = 200
"""Hellos that all hosts together send on a network, about; where they are many, each says fewer."""
_CONTEXT = b"mrcd quick discovery"


class BadHello(Exception):
    """The bytes are no Hello of a host that has our secret; the message says why."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a host says of itself by one of its NICs.

    `run` is a random number that tells two hosts of one name apart. `nic` is the place of the NIC
    among the host's `nics`, from 0. `planes` has the place of the NIC of each plane, and is empty
    while that is not known. `heard` lists, for each other host, the pairs of NICs, its own first,
    on which it was heard. `done` is set once the host is settled. `hosts` is for how many it waits,
    itself included. `member`: its mrcd runs, and its NICs are the planes in their order; it lists
    in `heard` only who needs to know, in `seeks` who is not its peer yet, and in `refused` why some
    cannot be. `leaving`: it goes.
    """

    name: str
    run: str
    nic: int
    nics: int
    inner: tuple[str, ...]
    planes: tuple[int, ...] = ()
    heard: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    done: bool = False
    hosts: int = 2
    member: bool = False
    leaving: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    seeks: tuple[str, ...] = ()


def spaced_s(period_s: float, hosts: int, nics: int) -> float:
    """Return the time between two Hellos: `period_s`, or more where there are many hosts."""
    return max(period_s, hosts * nics / _PER_S)


def encode(hello: Hello, key: bytes) -> bytes:
    """Return a Hello as a datagram, with a tag by the key that all hosts have."""
    body = json.dumps(asdict(hello), separators=(",", ":")).encode()
    return MAGIC + _tag(key, body) + body


def decode(datagram: bytes, key: bytes) -> Hello:
    """Return the Hello in a datagram. Raises BadHello."""
    if not datagram.startswith(MAGIC):
        raise BadHello("it is no Hello of mrcd")
    tag, body = datagram[len(MAGIC) : len(MAGIC) + TAG_BYTES], datagram[len(MAGIC) + TAG_BYTES :]
    if not hmac.compare_digest(tag, _tag(key, body)):
        raise BadHello("its host has another secret, or none")
    try:
        return _hello(json.loads(body))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadHello(f"it cannot be read: {error}") from None


def _tag(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key or _CONTEXT, _CONTEXT + body, "blake2s")[:TAG_BYTES]


def _hello(data: Any) -> Hello:
    hello = Hello(
        name=str(data["name"]),
        run=str(data["run"]),
        nic=int(data["nic"]),
        nics=int(data["nics"]),
        inner=tuple(str(ip_address(text)) for text in data["inner"]),
        planes=tuple(int(nic) for nic in data["planes"]),
        heard={
            str(name): tuple((int(one), int(other)) for one, other in pairs)
            for name, pairs in data["heard"].items()
        },
        done=data["done"] is True,
        hosts=int(data["hosts"]),
        member=data["member"] is True,
        leaving=data["leaving"] is True,
        refused={str(name): str(why)[:_WHY_MAX] for name, why in data["refused"].items()},
        seeks=tuple(map(str, data["seeks"][:HOSTS_MAX])),
    )
    if not 0 < len(hello.name) <= _NAME_MAX or not 0 < len(hello.inner) <= _INNER_MAX:
        raise ValueError("its name or its addresses are too long")
    if not 0 <= hello.nic < hello.nics <= NICS_MAX or len(hello.heard) > HOSTS_MAX:
        raise ValueError("its NICs are too many")
    if hello.planes and sorted(set(hello.planes)) != sorted(hello.planes):
        raise ValueError("two of its planes are one NIC")
    if any(not 0 <= nic < hello.nics for nic in hello.planes):
        raise ValueError("one of its planes is none of its NICs")
    return hello
