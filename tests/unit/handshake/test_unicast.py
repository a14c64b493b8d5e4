# SPDX-License-Identifier: GPL-2.0-only
"""Test what hosts behind routers send each other, and that strangers get short answers."""

from __future__ import annotations

import pytest

from mrcd.handshake import hello, unicast
from mrcd.handshake.hello import CONTACT_BYTES, HOSTS_MAX, BadHello, Hello, Said
from mrcd.handshake.identity import Secret
from mrcd.handshake.unicast import (
    NO_COOKIE,
    OTHER_SECRET,
    PARCEL_MAX,
    SHORT_BYTES,
    Cookies,
    Parcel,
    Short,
)
from tests.unit.handshake.test_voice import by_secret

OURS, THEIRS = b"ourours1", b"theirs12"


@pytest.mark.parametrize(
    "parcel", [Parcel(NO_COOKIE, OURS, b"x"), Parcel(THEIRS, OURS, b"MRCh" + bytes(1000))]
)
def test_parcel_is_read_as_it_was_packed(parcel: Parcel) -> None:
    assert unicast.read(parcel.pack()) == parcel


def test_short_answers_are_shorter_than_any_parcel_with_a_message() -> None:
    parcel = Parcel(NO_COOKIE, OURS, b"MRCh" + bytes(80))
    for answer in (unicast.cookie(parcel, THEIRS), unicast.refused(parcel, OTHER_SECRET)):
        assert len(answer) == SHORT_BYTES < len(parcel.pack())
    assert unicast.read(unicast.cookie(parcel, THEIRS)) == Short(b"MRCc", OURS, THEIRS)
    assert unicast.read(unicast.refused(parcel, 1)) == Short(b"MRCx", OURS, bytes(7) + b"\1")


@pytest.mark.parametrize(
    "datagram",
    [b"", b"MRCu", b"MRCu" + bytes(16), b"MRCc" + bytes(15), b"MRCv" + bytes(17),
     b"MRCx" + bytes(300), b"MRCh" + bytes(300), bytes(20)],
)  # fmt: skip
def test_what_is_nothing_of_the_kind_is_not_read(datagram: bytes) -> None:
    assert unicast.read(datagram) is None


def test_cookie_is_of_one_address_plane_and_run() -> None:
    cookies = Cookies(bytes(32))
    given = cookies.of(0, "10.0.0.1")
    assert cookies.is_of(given, 0, "10.0.0.1")
    assert not cookies.is_of(given, 1, "10.0.0.1")
    assert not cookies.is_of(given, 0, "10.0.0.2")
    assert not Cookies(b"\1" * 32).is_of(given, 0, "10.0.0.1")
    assert not cookies.is_of(NO_COOKIE, 0, "10.0.0.1")


def test_who_knows_the_key_of_tags_is_told_before_anything_is_read() -> None:
    voice = by_secret("a")
    said = voice.say(speaking("a"))
    assert voice.is_ours(said)
    assert not voice.is_ours(said[:-1] + bytes([said[-1] ^ 1]))
    assert not by_secret("a", Secret(b"\1" * 32)).is_ours(said)
    assert not voice.is_ours(b"MRCh")
    assert not voice.is_ours(b"")


# ---- addresses of others


def speaking(name: str, contacts: dict[str, tuple[str, ...]] | None = None) -> Hello:
    addresses = tuple(f"fd00:1234:5678:{k + 1:x}::2" for k in range(8))
    heard = {"b" * 31: tuple((k, k) for k in range(8))}
    said = Said(name, "f" * 16, 1 << 60, 1 << 30, 8, ("10.255.255.255", addresses[0]),
                addresses, (25_000,) * 8, heard)  # fmt: skip
    return Hello(said, 7, seeks=("b" * 31,), contacts=contacts or {})


def test_contacts_are_read_as_they_were_said_and_left_out_without_any() -> None:
    there = {"c": ("10.0.0.3", "10.1.0.3"), "d": ("fd00::4", "")}
    assert hello.decode(hello.encode(speaking("a", {"c": there["c"]}), b""), b"") == speaking(
        "a", {"c": there["c"]}
    )
    assert b"contacts" not in hello.encode(speaking("a"), b"")
    without = {"c": there["c"], "d": ("fd00::4",)}
    assert hello.decode(hello.encode(speaking("a", there), b""), b"").contacts == without


@pytest.mark.parametrize(
    "wrong",
    [
        {f"h{k}": ("10.0.0.1",) for k in range(HOSTS_MAX + 1)},
        {"c": ("10.0.0.300",)},
        {"c": ("nowhere",)},
    ],
    ids=["many", "number", "text"],
)
def test_contacts_have_bounds(wrong: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(BadHello, match="cannot be read"):
        hello.decode(hello.encode(speaking("a", wrong), b""), b"")


@pytest.mark.parametrize("nics", [1, 2, 8])
def test_each_hello_fits_into_one_datagram(nics: int) -> None:
    """A long one: eight planes of IPv6, the longest names, and as many contacts as fit."""
    addresses = tuple(f"fd00:1234:5678:{k + 1:x}::2" for k in range(nics))
    contacts = {f"h{k:030}": addresses for k in range(HOSTS_MAX)}
    parts = hello.in_parts(contacts)
    assert {name: at for part in parts for name, at in part.items()} == contacts
    assert all(len(str(part)) <= CONTACT_BYTES + 80 for part in parts)
    name = "a" * 31
    longest = max(len(by_secret(name).say(speaking(name, part))) for part in parts)
    assert SHORT_BYTES + longest <= PARCEL_MAX
