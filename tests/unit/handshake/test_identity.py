# SPDX-License-Identifier: GPL-2.0-only
"""Test keys as people write them, the simple profile, and the keys of packets."""

from __future__ import annotations

import copy
import pickle

import pytest

from mrcd.handshake import identity
from mrcd.handshake.identity import NO_PSK, BadKey, Secret

SECRET = Secret(bytes(range(32)))
PRIVATE = Secret(b"\x48" + bytes(range(1, 31)) + b"\x5f")


def test_key__is_written_as_wireguard_writes_it() -> None:
    text = identity.encode_key(bytes(32))
    assert text == "A" * 43 + "="
    assert identity.decode_key(f" {text}\n") == bytes(32)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        ("abc", "has 3 characters"),
        ("A" * 45, "has 45 characters"),
        ("!" + "A" * 42 + "=", "is not base64"),
        ("A" * 44, "32 bytes"),
        ("A" * 42 + "B=", "32 bytes"),  # bits beyond the 32 bytes
        ("é" * 44, "is not base64"),
    ],
)
def test_text_that_is_no_key__is_refused_and_not_repeated(text: str, wrong: str) -> None:
    with pytest.raises(BadKey, match=wrong) as error:
        identity.decode_key(text)
    assert not text.strip() or text.strip() not in str(error.value)


def test_public_key__that_nobody_has_is_refused() -> None:
    good = identity.encode_key(identity.public_key(PRIVATE))
    assert identity.encode_key(identity.decode_public(good)) == good
    with pytest.raises(BadKey, match="no private key"):
        identity.decode_public(identity.encode_key(bytes(32)))


def test_private_key__has_the_fixed_bits() -> None:
    key = identity.private_key(b"\xff" * 32).reveal()
    assert (key[0] & 7, key[31] >> 6) == (0, 1)
    with pytest.raises(BadKey, match="31 bytes"):
        identity.private_key(bytes(31))


def test_simple_profile__each_host_knows_the_public_keys_of_all() -> None:
    names = ["h1", "h2", "h10"]
    rings = {name: identity.simple_keys(SECRET, name, names) for name in names}
    for name in names:
        for other in names:
            assert rings[other].peers[name] == rings[name].public
    assert len({ring.public for ring in rings.values()}) == 3
    assert len({ring.psk for ring in rings.values()}) == 1
    assert rings["h1"].psk != NO_PSK
    other = identity.simple_keys(Secret(bytes(32)), "h1", names)
    assert other.public != rings["h1"].public
    assert other.psk != rings["h1"].psk


def test_simple_profile__derives_the_same_keys_for_ever() -> None:
    """A change would part hosts of different versions."""
    ring = identity.simple_keys(SECRET, "h1", ["h2"])
    assert identity.encode_key(ring.public) == PUBLIC_OF_H1
    assert identity.encode_key(ring.peers["h2"]) == PUBLIC_OF_H2


def test_own_keys__without_a_psk_have_zeros() -> None:
    ring = identity.own_keys(PRIVATE, {"h2": identity.public_key(SECRET)})
    assert (ring.psk, ring.simple) == (NO_PSK, False)
    assert ring.public == identity.public_key(PRIVATE)


def test_secret__is_shown_nowhere() -> None:
    ring = identity.own_keys(PRIVATE, {}, SECRET)
    hidden = [PRIVATE.reveal(), SECRET.reveal()]
    for text in (repr(ring), str(ring), repr(SECRET), f"{SECRET}", f"{SECRET!r:>40}"):
        for key in hidden:
            assert identity.encode_key(key) not in text
            assert key.hex() not in text
            assert repr(key) not in text
    assert "hidden" in repr(ring)
    for way in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="not written"):
            way(SECRET)


def test_secrets__compare_by_value() -> None:
    assert Secret(b"a") == Secret(b"a") != Secret(b"b")
    assert len({Secret(b"a"), Secret(b"a")}) == 1
    assert Secret(b"a") != b"a"


PUBLIC_OF_H1 = "DW5kW0zL+5uhrsO1Qn1qv/T+u/XIR9sN9zoKvFEqVAQ="
PUBLIC_OF_H2 = "+IULJUqdR6Orqhq2qEaDwXr12wBh/lw9k0QeDfmBQx8="
