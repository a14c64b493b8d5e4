# SPDX-License-Identifier: GPL-2.0-only
"""Test invitations: the text, the exchange, and what becomes of each."""

from __future__ import annotations

import random

import pytest

from mrcd.handshake import certificate, invitation
from mrcd.handshake.authority import Authority, Signer
from mrcd.handshake.identity import KEY_BYTES, Secret
from mrcd.handshake.invitation import Asking, BadInvitation, BadRequest, Grant, Refusal, Request
from mrcd.handshake.issued import KEPT_S, OPEN_MAX, Issued, TooMany, certificate_for
from mrcd.handshake.noise import KeyPair

AUTHORITY = Authority(Secret(bytes(range(32))))
OTHER = Authority(Secret(bytes(32)))
NOW = 1_800_000_000
HOUR = 3600
RNG = random.Random(1)
GRANT = Grant(b"certificate", b"h" * 32, b"p" * 32)


def made(
    name: str = "c", end_s: int = NOW + HOUR, by: Authority = AUTHORITY
) -> invitation.Invitation:
    return invitation.make(by, name, "a", ident=RNG.randbytes(16), end_s=end_s)


def asking(invited: invitation.Invitation, seed: int = 1) -> Asking:
    rng = random.Random(seed)
    pair, signer = KeyPair(rng.randbytes(32)), Signer(Secret(rng.randbytes(32)))
    return Asking(invited, pair, signer.public, RNG.randbytes(KEY_BYTES))


def request(invited: invitation.Invitation, seed: int = 1) -> Request:
    return Request(AUTHORITY, asking(invited, seed).request)


# ---- the text


def test_text_is_one_line_and_read_again() -> None:
    one = made("n" * 31)
    assert "\n" not in one.text
    assert len(one.text) < 400
    assert invitation.read(f"  {one.text}\n") == one
    assert one.text.removeprefix(invitation.PREFIX)[:20] not in repr(one)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("hello", "is no invitation: one begins with mrcd-invitation-1:"),
        (invitation.PREFIX, "is damaged"),
        (invitation.PREFIX + "!!!", "is damaged"),
        (invitation.PREFIX + "A" * 5000, "is too long"),
        (invitation.PREFIX + "kQ" * 100, "is damaged"),
    ],
)
def test_what_is_no_invitation(text: str, reason: str) -> None:
    with pytest.raises(BadInvitation, match=reason):
        invitation.read(text)


def test_damaged_text_is_refused_and_not_repeated() -> None:
    text = made().text
    start = len(invitation.PREFIX)
    for at in range(start, len(text) - 1):  # the last character has bits of no meaning
        wrong = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        with pytest.raises(BadInvitation) as error:
            invitation.read(wrong)
        assert wrong[start : start + 10] not in str(error.value)
    for at in range(start, len(text) - 1):
        with pytest.raises(BadInvitation):
            invitation.read(text[:at])


@pytest.mark.parametrize(
    ("after_s", "said"),
    [(-1, None), (0, "ended 0 s ago"), (90, "ended 1 min ago"), (3 * HOUR + 5, "ended 3 h ago"),
     (50 * HOUR, "ended 2 d ago")],
)  # fmt: skip
def test_end(after_s: int, said: str | None) -> None:
    why = invitation.ended("b", NOW, NOW + after_s)
    if said is None:
        assert why is None
    else:
        assert why == f"the invitation for b {said}; ask for a new one by `mrcctl invite b`"


# ---- the exchange


def test_host_gets_its_grant() -> None:
    asks = asking(made())
    asked = Request(AUTHORITY, asks.request)
    assert asked.invitation.name == "c"
    rng = random.Random(1)
    assert asked.exchange == KeyPair(rng.randbytes(32)).public
    assert asked.signing == Signer(Secret(rng.randbytes(32))).public
    answer = asked.grant(GRANT, RNG.randbytes(32))
    assert asks.read(answer) == GRANT
    assert asks.read(answer) == GRANT  # it may come by each NIC
    assert len(asks.request) < 600
    biggest = asked.grant(Grant(b"c" * 256, b"h" * 32, b"p" * 32), RNG.randbytes(32))
    assert len(biggest) <= invitation.DATAGRAM_MAX


def test_request_and_answer_show_no_secret() -> None:
    invited = made()
    asks = asking(invited)
    answer = Request(AUTHORITY, asks.request).grant(GRANT, RNG.randbytes(32))
    for secret in (invited.ident, invited.statement[:64], b"h" * 16, b"p" * 16, GRANT.certificate):
        assert secret not in asks.request
        assert secret not in answer


def test_refusal_is_told_and_made_printable() -> None:
    asks = asking(made())
    asked = Request(AUTHORITY, asks.request)
    assert asks.read(asked.refuse("no\x1b[31m way", RNG.randbytes(32))) == Refusal("no?[31m way")
    assert isinstance(asks.read(asked.refuse("x" * 5000, RNG.randbytes(32))), Refusal)


def test_answer_to_another_host_is_none() -> None:
    invited = made()
    one, other = asking(invited), asking(invited, 2)
    answer = Request(AUTHORITY, one.request).grant(GRANT, RNG.randbytes(32))
    assert other.read(answer) is None
    swapped = answer[:4] + other.request[4:20] + answer[20:]
    assert other.read(swapped) is None


def test_damaged_answer_is_none() -> None:
    asks = asking(made())
    answer = Request(AUTHORITY, asks.request).grant(GRANT, RNG.randbytes(32))
    for at in range(len(answer)):
        assert asks.read(answer[:at] + bytes([answer[at] ^ 1]) + answer[at + 1 :]) is None
        assert asks.read(answer[:at]) is None
    assert asks.read(answer + bytes(2000)) is None
    assert asks.read(answer) == GRANT  # what was forged has spoilt nothing


def test_forged_answer_is_none() -> None:
    """Only the authority, and no host that has seen the request, can answer it."""
    asks = asking(made())
    tag = asks.request[4:20]
    for size in (0, 47, 48, 200):
        assert asks.read(invitation.ANSWER + tag + RNG.randbytes(size)) is None


def test_damaged_request_is_refused() -> None:
    datagram = asking(made()).request
    for at in range(len(datagram)):
        wrong = datagram[:at] + bytes([datagram[at] ^ 1]) + datagram[at + 1 :]
        assert not invitation.is_for(AUTHORITY.exchange.public, wrong)
        with pytest.raises(BadRequest):
            Request(AUTHORITY, wrong)
        with pytest.raises(BadRequest):
            Request(AUTHORITY, datagram[:at])
    with pytest.raises(BadRequest):
        Request(AUTHORITY, datagram + bytes(2000))


def test_request_for_another_authority_is_refused() -> None:
    datagram = asking(made(by=OTHER)).request
    with pytest.raises(BadRequest, match="another authority"):
        Request(AUTHORITY, datagram)


# ---- what becomes of them


def records(*invited: invitation.Invitation) -> Issued:
    found = Issued()
    for each in invited:
        found.add(each.ident, each.name, end_s=each.end_s, now_s=NOW)
    return found


def test_invitation_is_used_once_by_one_key() -> None:
    invited = made()
    known = records(invited)
    asked = request(invited)
    assert known.why_not(asked, now_s=NOW) is None
    known.use(asked, 5, now_s=NOW)
    assert known.why_not(asked, now_s=NOW + 2 * HOUR) is None  # the answer was lost
    assert known.why_not(request(invited), now_s=NOW) is None  # the same keys ask anew
    why = known.why_not(request(invited, 2), now_s=NOW + 300)
    assert why == (
        "the invitation for c was used 5 min ago by another key; ask for a new one by "
        "`mrcctl invite c`"
    )
    shown = certificate_for(AUTHORITY, known.record(asked))
    assert (shown.name, shown.number, shown.how) == ("c", 5, "invitation")
    assert (shown.exchange, shown.signing) == (asked.exchange, asked.signing)
    assert certificate.read(AUTHORITY.public, shown.statement) == shown
    assert known.has_joined("c")
    assert not known.has_joined("d")


def test_invitations_of_no_use() -> None:
    late, forgotten, withdrawn = made(end_s=NOW + 1), made(), made("d")
    known = records(late, withdrawn)
    assert "ended 1 h ago" in str(known.why_not(request(late), now_s=NOW + 1 + HOUR))
    assert "a does not remember" in str(known.why_not(request(forgotten), now_s=NOW))
    assert known.withdraw("d", now_s=NOW) == 1
    assert known.withdraw("d", now_s=NOW) == 0
    assert "was withdrawn, as d was revoked" in str(known.why_not(request(withdrawn), now_s=NOW))
    assert known.why_not(request(late), now_s=NOW) is None


def test_invitation_with_its_end_put_off_is_none() -> None:
    """The end is in what the authority has signed."""
    invited = made(end_s=NOW)
    body = invited.statement[64:]
    later = body.replace(NOW.to_bytes(4, "big"), (NOW + HOUR).to_bytes(4, "big"))
    assert later != body
    coded = invitation.Invitation(
        invited.ident, "c", "a", NOW + HOUR, AUTHORITY.public, AUTHORITY.exchange.public,
        invited.statement[:64] + later,
    )  # fmt: skip
    with pytest.raises(BadInvitation):
        invitation.read(coded.text)
    with pytest.raises(BadRequest):
        request(coded)


def test_there_are_not_too_many() -> None:
    known = Issued()
    for number in range(OPEN_MAX):
        known.add(RNG.randbytes(16), f"h{number}", end_s=NOW + HOUR, now_s=NOW)
    with pytest.raises(TooMany):
        known.add(RNG.randbytes(16), "one-more", end_s=NOW + HOUR, now_s=NOW)
    known.add(RNG.randbytes(16), "later", end_s=NOW + 2 * HOUR, now_s=NOW + HOUR)
    assert len([*known]) == OPEN_MAX + 1
    known.add(RNG.randbytes(16), "latest", end_s=NOW * 2, now_s=NOW + HOUR + KEPT_S)
    assert {each.name for each in known} == {"later", "latest"}
