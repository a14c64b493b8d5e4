# SPDX-License-Identifier: GPL-2.0-only
"""The invitations that a host has made, and what becomes of each (pure).

An invitation is used up by the first host that shows it. The same host, which has the same keys,
may ask again: the answer may have been lost.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from mrcd.handshake import certificate as certificates
from mrcd.handshake.authority import Authority
from mrcd.handshake.certificate import SERIAL_BYTES, Certificate
from mrcd.handshake.invitation import Request, ago, ended, remedy

OPEN_MAX: Final = 256
"""Invitations that may be open at once."""
KEPT_S: Final = 30 * 86_400
"""An invitation is remembered for this time after its end, with the host that has used it."""


class TooMany(Exception):
    """As many invitations are open as may be."""


@dataclass(frozen=True, slots=True)
class Record:
    """One invitation. `exchange` and `signing` are the keys of the host that has used it."""

    ident: bytes
    name: str
    end_s: int
    withdrawn: bool = False
    used_s: int = 0
    exchange: bytes = b""
    signing: bytes = b""
    number: int = 0

    @property
    def used(self) -> bool:
        """Whether a host has used it."""
        return self.used_s != 0

    def is_by(self, request: Request) -> bool:
        """Return whether the host that asks is the one that has used it."""
        return hmac.compare_digest(self.exchange + self.signing, request.exchange + request.signing)


class Issued:
    """All invitations of one host."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._records = {each.ident: each for each in records}

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def add(self, ident: bytes, name: str, *, end_s: int, now_s: int) -> None:
        """Note a new invitation; raise TooMany if there are too many."""
        for known, each in list(self._records.items()):
            if now_s >= each.end_s + KEPT_S:
                del self._records[known]
        if sum(not each.used and now_s < each.end_s for each in self) >= OPEN_MAX:
            raise TooMany(
                f"{OPEN_MAX} invitations are open, as many as may be; wait until some end"
            )
        self._records[ident] = Record(ident, name, end_s)

    def withdraw(self, name: str, *, now_s: int) -> int:
        """Have the open invitations for a host end now; return how many there were."""
        unused = [e for e in self if e.name == name and not e.used and not e.withdrawn]
        found = [each for each in unused if now_s < each.end_s]
        for each in found:
            self._records[each.ident] = replace(each, withdrawn=True)
        return len(found)

    def has_joined(self, name: str) -> bool:
        """Return whether a host of a name has used an invitation."""
        return any(each.name == name and each.used for each in self)

    def why_not(self, request: Request, *, now_s: int) -> str | None:
        """Return why a host that asks may not join; None if it may."""
        name = request.invitation.name
        known = self._records.get(request.invitation.ident)
        if known is not None and known.used:
            if known.is_by(request):
                return None
            when = ago(now_s - known.used_s)
            return f"the invitation for {name} was used {when} ago by another key; {remedy(name)}"
        if why := ended(name, request.invitation.end_s, now_s):
            return why
        if known is None:
            return (
                f"{request.invitation.issuer} does not remember the invitation for {name}; "
                f"{remedy(name)}"
            )
        if known.withdrawn:
            return f"the invitation for {name} was withdrawn, as {name} was revoked; {remedy(name)}"
        return None

    def record(self, request: Request) -> Record:
        """Return the record of an invitation, for which `why_not` found nothing."""
        return self._records[request.invitation.ident]

    def use(self, request: Request, number: int, *, now_s: int) -> None:
        """Note that a host uses an invitation; `number` is that of its certificate."""
        found = self.record(request)
        self._records[found.ident] = replace(
            found,
            used_s=max(1, now_s),
            exchange=request.exchange,
            signing=request.signing,
            number=number,
        )


def certificate_for(authority: Authority, record: Record) -> Certificate:
    """Return the certificate of the host that has used an invitation."""
    return certificates.issue(
        authority,
        record.name,
        record.exchange,
        record.signing,
        number=record.number,
        serial=record.ident[:SERIAL_BYTES],
    )
