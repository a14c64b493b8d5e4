# SPDX-License-Identifier: GPL-2.0-only
"""Test Hellos that are signed: of hosts with the secret, invited ones, and those that are out."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mrcd.handshake import certificate, identity, voice
from mrcd.handshake.authority import Authority, Signer
from mrcd.handshake.hello import BadHello, Hello, Said, encode
from mrcd.handshake.identity import Keyring, Member, Secret
from mrcd.handshake.revocation import Revocations
from mrcd.handshake.voice import NOTICES_MAX, REPEATED, Insecure, Out, Trusted

SECRET = Secret(bytes(range(32)))
AUTHORITY = Authority(SECRET)


def hello(name: str) -> Hello:
    return Hello(Said(name, "1", 0, 0, 1, ("fd99::1",)), 0)


def by_secret(name: str, secret: Secret = SECRET) -> Trusted:
    found = voice.of(identity.simple_keys(secret, name, ()), name, Revocations())
    assert found is not None
    return found


def invited_ring(name: str, number: int = 0) -> Keyring:
    rng = random.Random(f"{name} {number}")
    private, signer = identity.private_key(rng.randbytes(32)), Secret(rng.randbytes(32))
    shown = certificate.issue(
        AUTHORITY, name, identity.public_key(private), Signer(signer).public,
        number=number, serial=rng.randbytes(8),
    )  # fmt: skip
    member = Member(signer, shown.statement, AUTHORITY.public, AUTHORITY.hello_key)
    return identity.invited_keys(private, None, AUTHORITY.psk, member)


def invited(name: str, number: int = 0) -> Trusted:
    found = voice.of(invited_ring(name, number), name, Revocations())
    assert found is not None
    return found


def test_hosts_hear_each_other_whatever_they_are_known_by() -> None:
    hosts = {"a": by_secret("a"), "b": by_secret("b"), "c": invited("c"), "d": invited("d")}
    for name, one in hosts.items():
        said = one.say(hello(name))
        for other in hosts.values():
            heard = other.hear(said)
            assert heard.hello == hello(name)
            assert heard.certificate == one.own
            assert heard.digest == Revocations().digest


def test_host_without_a_certificate_cannot_speak() -> None:
    private = identity.private_key(bytes(32))
    assert voice.of(identity.invited_keys(private), "c", Revocations()) is None
    assert voice.of(identity.own_keys(private, {}), "c", Revocations()) is None


def test_strangers_are_not_heard() -> None:
    one, other = by_secret("a"), by_secret("b", Secret(bytes(32)))
    with pytest.raises(BadHello, match="another secret, or none"):
        one.hear(other.say(hello("b")))
    with pytest.raises(BadHello, match="another secret, or none"):
        one.hear(Insecure().say(hello("b")))
    with pytest.raises(BadHello, match="no Hello of mrcd"):
        one.hear(b"x")
    with pytest.raises(BadHello, match="shows no certificate"):
        one.hear(encode(hello("b"), AUTHORITY.hello_key.reveal()))
    assert Insecure().hear(Insecure().say(hello("b"))).hello == hello("b")
    with pytest.raises(BadHello):
        Insecure().hear(one.say(hello("a")))


def test_host_speaks_for_itself_only() -> None:
    """Although it knows the key of the tags, as a host that was put out does."""
    a, c = by_secret("a"), invited("c")
    with pytest.raises(BadHello, match="its host is c, and says to be b"):
        a.hear(c.say(hello("b")))
    member = invited_ring("c").member
    assert member is not None
    posing = Trusted(replace(member, certificate=by_secret("b").own.statement), Revocations())
    with pytest.raises(BadHello, match="its signature is not good"):
        a.hear(posing.say(hello("b")))


def test_damaged_hello_is_refused() -> None:
    """Also by a host that can make a tag."""
    a, c = by_secret("a"), invited("c")
    said = c.say(hello("c"))
    for at in range(20, len(said)):
        wrong = said[20:at] + bytes([said[at] ^ 1]) + said[at + 1 :]
        with pytest.raises(BadHello):
            a.hear(voice.MAGIC + c._tag(wrong) + wrong)
    for at in range(len(said)):
        with pytest.raises(BadHello):
            a.hear(said[:at] + bytes([said[at] ^ 1]) + said[at + 1 :])
        with pytest.raises(BadHello):
            a.hear(said[:at])


@pytest.mark.parametrize(
    "body", [b"", b"\xc0", b"\x91" * 3000, b"\x94\xc4\x00\xc4\x00\x90\xc4\x00"]
)
def test_nonsense_is_refused(body: bytes) -> None:
    with pytest.raises(BadHello):
        by_secret("a").hear(voice.MAGIC + bytes(16 + 64) + body)
    invited_host = invited("c")  # which knows the key of the tags
    statement = invited_host._signer.sign(b"mrcd 1 hello\0", body)
    with pytest.raises(BadHello):
        by_secret("a").hear(voice.MAGIC + invited_host._tag(statement) + statement)


def test_host_that_is_out_is_not_heard_and_is_told() -> None:
    a, c, d = by_secret("a"), invited("c"), invited("d")
    a.revocations.revoke(AUTHORITY, "c", now_s=1, by="a")
    with pytest.raises(Out, match="c was revoked on a") as error:
        a.hear(c.say(hello("c")))
    assert (error.value.name, error.value.untold) == ("c", True)
    with pytest.raises(Out) as error:
        a.hear(c.say(hello("c")))
    assert not error.value.untold
    assert (c.out, d.out) == (None, None)
    said = a.say(hello("a"))
    c.hear(said)
    assert c.out is not None
    d.hear(said)  # which did not know it either
    assert [each.name for each in d.news()] == ["c"]
    assert d.news() == []
    with pytest.raises(Out):
        d.hear(c.say(hello("c")))
    assert d.state != invited("d").state


def test_notice_is_repeated_for_a_while() -> None:
    a, c = by_secret("a"), invited("c")
    a.revocations.revoke(AUTHORITY, "c", now_s=1, by="a")
    quiet = len(a.say(hello("a")))
    with pytest.raises(Out):
        a.hear(c.say(hello("c")))
    lengths = [len(a.say(hello("a"))) for _ in range(REPEATED + 1)]
    assert [length > quiet for length in lengths] == [True] * REPEATED + [False]


def test_notices_are_few() -> None:
    a = by_secret("a")
    for number in range(3 * NOTICES_MAX):
        a.revocations.revoke(AUTHORITY, f"h{number}", now_s=1, by="a")
        with pytest.raises(Out):
            a.hear(invited(f"h{number}").say(hello(f"h{number}")))
    b = by_secret("b")
    b.hear(a.say(hello("a")))
    assert len(b.news()) == NOTICES_MAX


def test_host_that_was_invited_again_is_heard() -> None:
    a, former = by_secret("a"), invited("c")
    made = a.revocations.revoke(AUTHORITY, "c", now_s=1, by="a")
    again = invited("c", made.number)
    assert a.hear(again.say(hello("c"))).certificate == again.own
    with pytest.raises(Out):
        a.hear(former.say(hello("c")))
    again.hear(a.say(hello("a")))
    former.hear(a.say(hello("a")))
    assert again.out is None
    assert former.out is not None


def test_forged_notice_is_no_news() -> None:
    a, c = by_secret("a"), invited("c")
    other = Authority(Secret(bytes(32)))
    c.revocations.revoke(other, "a", now_s=1, by="c")  # not by the authority of both
    with pytest.raises(Out):
        c.hear(a.say(hello("a")))
    heard = a.hear(c.say(hello("c")))
    assert heard.hello.name == "c"
    assert a.out is None
    assert a.news() == []
