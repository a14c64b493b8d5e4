# SPDX-License-Identifier: GPL-2.0-only
"""Test what the authority of a cluster says: certificates and revocations, and what is none."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from mrcd.handshake import certificate, revocation
from mrcd.handshake.authority import (
    STATEMENT_MAX,
    Authority,
    Signer,
    Unsigned,
    message_of,
    read,
)
from mrcd.handshake.certificate import BadCertificate, Certificate
from mrcd.handshake.datagram import MAX_BYTES, DatagramError
from mrcd.handshake.identity import Secret, host_key, public_key, shared_psk
from mrcd.handshake.revocation import EACH, REVOKED_MAX, BadRevocation, Full, Revocations

SECRET = Secret(bytes(range(32)))
AUTHORITY = Authority(SECRET)
OTHER = Authority(Secret(bytes(32)))


def issued(name: str = "c", number: int = 0, by: Authority = AUTHORITY) -> Certificate:
    return certificate.issue(by, name, b"x" * 32, b"s" * 32, number=number, serial=b"12345678")


def damaged(statement: bytes) -> list[bytes]:
    """Return the statement with each byte changed, and cut at each place."""
    flipped = [
        statement[:at] + bytes([statement[at] ^ 1]) + statement[at + 1 :]
        for at in range(len(statement))
    ]
    return [*flipped, *(statement[:at] for at in range(len(statement)))]


def test_authority_follows_from_the_secret() -> None:
    again = Authority(Secret(bytes(range(32))))
    assert (again.public, again.exchange.public) == (AUTHORITY.public, AUTHORITY.exchange.public)
    assert again.hello_key == AUTHORITY.hello_key != OTHER.hello_key
    assert again.psk == shared_psk(SECRET)
    assert again.exchange_of("a") == public_key(host_key(SECRET, "a"))
    keys = {
        AUTHORITY.public, AUTHORITY.exchange.public, AUTHORITY.hello_key.reveal(),
        AUTHORITY.psk.reveal(), AUTHORITY.signer_of("a").reveal(),
        AUTHORITY.signer_of("b").reveal(), SECRET.reveal(),
    }  # fmt: skip
    assert len(keys) == 7


def test_statement_is_for_one_context() -> None:
    statement = Signer(Secret(bytes(32))).sign(b"one", b"body")
    public = Signer(Secret(bytes(32))).public
    assert read(public, b"one", statement) == b"body"
    for key, context in ((public, b"two"), (AUTHORITY.public, b"one"), (b"no key", b"one")):
        with pytest.raises(Unsigned):
            read(key, context, statement)


def test_message_of_a_statement_has_its_version_and_length() -> None:
    class Body(msgspec.Struct, array_like=True):
        version: int
        text: bytes = b""

    def said(body: Body) -> bytes:
        return AUTHORITY.sign(b"one", msgspec.msgpack.encode(body))

    assert message_of(AUTHORITY.public, b"one", said(Body(3)), Body, 3) == Body(3)
    longest = Body(3, bytes(STATEMENT_MAX - len(said(Body(3, bytes(32)))) + 32))
    assert message_of(AUTHORITY.public, b"one", said(longest), Body, 3) == longest
    for body, why in (
        (Body(2), "version 2, this daemon reads 3"),
        (Body(3, longest.text + b"x"), "257 bytes, more than 256"),
    ):
        with pytest.raises(Unsigned, match=why):
            message_of(AUTHORITY.public, b"one", said(body), Body, 3)


def test_certificate_is_read_again() -> None:
    made = issued(number=7)
    assert certificate.read(AUTHORITY.public, made.statement) == made
    assert len(issued("n" * 64, certificate.NUMBER_MAX).statement) <= certificate.CERTIFICATE_MAX


def test_damaged_certificate_is_refused() -> None:
    for each in damaged(issued().statement):
        with pytest.raises(BadCertificate):
            certificate.read(AUTHORITY.public, each)


@pytest.mark.parametrize("wrong", [b"", b"x" * 4096, issued(by=OTHER).statement])
def test_certificate_of_nobody_is_refused(wrong: bytes) -> None:
    with pytest.raises(BadCertificate):
        certificate.read(AUTHORITY.public, wrong)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc0", b"\x97" * 40, b"\x91" * 5000, b"\x97\x01\xa0\xc4\x00\xc4\x00\x00\xc4\x00"],
)
def test_signed_nonsense_is_refused(body: bytes) -> None:
    """An authority of another version, or gone astray, breaks nothing."""
    for context, reads, error in (
        (b"mrcd 1 certificate\0", certificate.read, BadCertificate),
        (b"mrcd 1 revocation\0", revocation.read, BadRevocation),
    ):
        with pytest.raises(error):
            reads(AUTHORITY.public, AUTHORITY.sign(context, body))  # type: ignore[operator]


def test_member_by_secret_has_the_keys_that_others_derive() -> None:
    member = certificate.member_by_secret(AUTHORITY, "a")
    shown = certificate.read(member.authority, member.certificate)
    assert (shown.name, shown.how, shown.number) == ("a", "secret", 0)
    assert shown.exchange == public_key(host_key(SECRET, "a"))
    assert shown.signing == Signer(member.signer).public
    assert "hidden" in repr(member)


# ---- revocations


def revoke(known: Revocations, name: str, by: str = "a") -> bytes:
    return known.revoke(AUTHORITY, name, now_s=1000, by=by).statement


def test_revocation_ends_what_was_issued_before() -> None:
    known = Revocations()
    first = issued(number=known.number)
    assert known.of(first) is None
    revoke(known, "b")
    revoke(known, "c")
    found = known.of(first)
    assert found is not None
    assert (found.name, found.number, found.by, found.told) == ("c", 2, "a", "was revoked on a")
    again = issued(number=known.number)
    assert known.of(again) is None
    revoke(known, "c")
    assert known.of(again) is not None
    assert len(known) == 2


def test_certificate_of_one_who_did_not_know_is_ended() -> None:
    """Two hosts with the secret that do not hear each other: the revocation wins."""
    here, there = Revocations(), Revocations()
    statement = revoke(here, "c")
    made = issued(number=there.number)
    there.merge(AUTHORITY.public, [statement])
    assert there.of(made) is not None


def test_lists_become_one_in_any_order() -> None:
    rng = random.Random(1)
    lists = [Revocations() for _ in range(3)]
    statements = [revoke(each, name) for each in lists for name in rng.sample("bcdefg", 4)]
    ends = set()
    for _ in range(20):
        rng.shuffle(statements)
        merged = Revocations()
        for statement in statements:
            merged.merge(AUTHORITY.public, [statement])
        ends.add((merged.digest, merged.number))
    assert len(ends) == 1
    assert merged.merge(AUTHORITY.public, statements) == []


def test_digest_tells_lists_apart() -> None:
    one, other = Revocations(), Revocations()
    assert one.digest == other.digest
    statement = revoke(one, "c")
    assert one.digest != other.digest
    (news,) = other.merge(AUTHORITY.public, [statement, statement])
    assert (news.name, one.digest) == ("c", other.digest)


def test_damaged_and_foreign_revocations_are_no_news() -> None:
    statement = revoke(Revocations(), "c")
    foreign = Revocations().revoke(OTHER, "c", now_s=1, by="a").statement
    known = Revocations()
    assert known.merge(AUTHORITY.public, [*damaged(statement), foreign, b"x" * 4096]) == []
    assert len(known) == 0


def test_as_many_as_can_be() -> None:
    known = Revocations()
    for number in range(REVOKED_MAX):
        revoke(known, f"h{number}")
    with pytest.raises(Full, match="change the secret"):
        revoke(known, "one-more")
    revoke(known, "h3")  # a name that is there already
    another = Revocations()
    one_more = revoke(another, "one-more")
    assert known.merge(AUTHORITY.public, [one_more]) == []


def test_list_travels_in_messages() -> None:
    known = Revocations()
    for number in range(2 * EACH + 1):
        revoke(known, f"{number}" + "h" * 60, by="b" * 64)
    messages = known.messages()
    assert len(messages) == 3
    assert all(len(each) <= MAX_BYTES for each in messages)
    other = Revocations()
    for message in messages:
        other.merge(AUTHORITY.public, revocation.statements_of(message))
    assert other.digest == known.digest


def test_message_that_is_none_is_refused() -> None:
    known = Revocations()
    revoke(known, "c")
    (message,) = known.messages()
    for wrong in (b"", message[:-1], message + b"x", b"MRCx" + message[4:], b"\x91" * 600):
        with pytest.raises(DatagramError):
            revocation.statements_of(wrong)


def test_replaced_key_is_told_otherwise() -> None:
    made = Revocations().revoke(AUTHORITY, "c", now_s=1, by="a", why=revocation.REPLACED)
    assert made.told == "was invited again on a, which has ended its former key"
    assert replace(made, why="revoked").told == "was revoked on a"
