# SPDX-License-Identifier: GPL-2.0-only
"""Test the Noise exchange against published vectors, and against everything that is not genuine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrcd.handshake import noise
from mrcd.handshake.noise import Cipher, Initiator, KeyPair, NoiseError, Responder

VECTOR = Path(__file__).parents[2] / "vectors" / "noise-ikpsk2.json"
LOW_ORDER = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]
"""Every point of low order, as curve25519's page of requirements lists them."""
A, B, MALLORY = (KeyPair(bytes([number]) * 32) for number in (1, 2, 3))
PSK = bytes(32)


def initiator(static: KeyPair = A, remote: bytes = B.public, psk: bytes = PSK) -> Initiator:
    return Initiator(static, remote, psk, b"\x11" * 32, b"hello")


def first() -> bytes:
    return initiator().write(b"first")


def pair() -> tuple[Initiator, bytes]:
    """Return an initiator and the answer to it."""
    one = initiator()
    responder = Responder(B, one.write(b"first"), b"hello")
    return one, responder.write(PSK, b"\x22" * 32, b"second")[0]


def vectors() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(VECTOR.read_text())["vectors"]
    assert {each["protocol_name"] for each in found} == {noise.PROTOCOL.decode()}
    return found


def unhex(holder: dict[str, str], key: str) -> bytes:
    return bytes.fromhex(holder[key])


@pytest.mark.parametrize("given_", vectors(), ids=lambda given_: given_["origin"][:32])
def test_vector__both_sides_say_what_others_say(given_: dict[str, Any]) -> None:
    one, two, *later = given_["messages"]
    responder_key = KeyPair(unhex(given_, "resp_static"))
    prologue, psk = unhex(given_, "prologue"), unhex(given_, "psk")
    asks = Initiator(
        KeyPair(unhex(given_, "init_static")),
        responder_key.public,
        psk,
        unhex(given_, "init_ephemeral"),
        prologue,
    )
    assert asks.write(unhex(one, "payload")) == unhex(one, "ciphertext")
    answers = Responder(responder_key, unhex(one, "ciphertext"), prologue)
    assert answers.payload == unhex(one, "payload")
    message, theirs = answers.write(psk, unhex(given_, "resp_ephemeral"), unhex(two, "payload"))
    assert message == unhex(two, "ciphertext")
    payload, ours = asks.read(message)
    assert payload == unhex(two, "payload")
    assert ours.digest == theirs.digest
    assert given_.get("handshake_hash") in (None, ours.digest.hex())
    for number, said in enumerate(later):
        sender, receiver = (ours, theirs) if number % 2 == 0 else (theirs, ours)
        sealed = sender.send.seal(number // 2, unhex(said, "payload"))
        assert sealed == unhex(said, "ciphertext")
        assert receiver.receive.open(number // 2, sealed) == unhex(said, "payload")


def test_exchange__both_sides_have_the_same_secrets() -> None:
    one = initiator()
    responder = Responder(B, one.write(b""), b"hello")
    assert (responder.remote, responder.payload) == (A.public, b"")
    message, theirs = responder.write(PSK, b"\x22" * 32, b"")
    _, ours = one.read(message)
    assert ours.digest == theirs.digest
    assert ours.export(b"keys") == theirs.export(b"keys") != ours.export(b"other")
    assert len(ours.export(b"keys")) == 32


@pytest.mark.parametrize("point", LOW_ORDER)
def test_low_order__is_refused_everywhere(point: str) -> None:
    key = bytes.fromhex(point)
    with pytest.raises(NoiseError, match="public key"):
        initiator(remote=key).write(b"")
    with pytest.raises(NoiseError):
        Responder(B, key + first()[32:], b"hello")
    one, answer = pair()
    with pytest.raises(NoiseError):
        one.read(key + answer[32:])
    assert one.read(answer)[0] == b"second"


def test_responder__refuses_another_prologue() -> None:
    with pytest.raises(NoiseError):
        Responder(B, first(), b"other")


def test_responder__refuses_a_message_for_another_host() -> None:
    with pytest.raises(NoiseError):
        Responder(MALLORY, first(), b"hello")


def test_initiator__refuses_an_answer_under_another_psk() -> None:
    one = initiator()
    answer, _ = Responder(B, one.write(b""), b"hello").write(b"\x07" * 32, b"\x22" * 32, b"")
    with pytest.raises(NoiseError):
        one.read(answer)


def test_initiator__refuses_the_answer_to_another_question() -> None:
    other = Initiator(A, B.public, PSK, b"\x33" * 32, b"hello")
    answer, _ = Responder(B, other.write(b""), b"hello").write(PSK, b"\x22" * 32, b"")
    one = initiator()
    one.write(b"")
    with pytest.raises(NoiseError):
        one.read(answer)


def test_stolen_public_key__makes_no_message() -> None:
    """Who knows A's public key but not its private one cannot speak for A."""
    forged = Initiator(MALLORY, B.public, PSK, b"\x11" * 32, b"hello")
    forged._static = _Claims(MALLORY, A.public)  # type: ignore[assignment]
    with pytest.raises(NoiseError):
        Responder(B, forged.write(b""), b"hello")


class _Claims:
    """A key pair whose owner claims another's public key."""

    def __init__(self, own: KeyPair, public: bytes) -> None:
        self.public = public
        self.shared = own.shared


@settings(max_examples=60)
@given(st.data())
def test_responder__refuses_what_was_changed_or_cut(data: st.DataObject) -> None:
    message = first()
    with pytest.raises(NoiseError):
        Responder(B, _damaged(data, message), b"hello")


@settings(max_examples=60)
@given(st.data())
def test_initiator__refuses_what_was_changed_or_cut_and_takes_the_genuine_answer(
    data: st.DataObject,
) -> None:
    one, answer = pair()
    with pytest.raises(NoiseError):
        one.read(_damaged(data, answer))
    assert one.read(answer)[0] == b"second"


def _damaged(data: st.DataObject, message: bytes) -> bytes:
    if data.draw(st.booleans()):
        return message[: data.draw(st.integers(0, len(message) - 1))]
    at = data.draw(st.integers(0, len(message) - 1))
    # The highest bit of a public key means nothing to X25519, but it is part of the transcript.
    mask = 1 << data.draw(st.integers(0, 7))
    return message[:at] + bytes([message[at] ^ mask]) + message[at + 1 :]


def test_cipher__is_bound_to_its_counter_and_to_what_is_said_with_it() -> None:
    cipher = Cipher(b"\x05" * 32)
    sealed = cipher.seal(7, b"text", b"with")
    assert cipher.open(7, sealed, b"with") == b"text"
    for counter, bound in ((8, b"with"), (7, b"without")):
        with pytest.raises(NoiseError):
            cipher.open(counter, sealed, bound)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_key_pair__has_32_bytes(length: int) -> None:
    with pytest.raises(ValueError, match="32"):
        KeyPair(bytes(length))
    with pytest.raises(NoiseError):
        A.shared(bytes(length))


def test_nothing_secret_is_shown() -> None:
    one = initiator()
    message, theirs = Responder(B, one.write(b""), b"hello").write(PSK, b"\x22" * 32, b"")
    for holder in (A, one, theirs, theirs.send, one._state):
        assert "0x" in repr(holder)  # the representation of every object
        assert (b"\x01" * 32).hex() not in repr(holder)
    assert len(message) == noise.MESSAGE_2_BYTES
