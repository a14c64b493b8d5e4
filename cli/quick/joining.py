# SPDX-License-Identifier: GPL-2.0-only
"""Show an invitation on all NICs until the host that has made it answers."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mrcd.config.config import ConfigError
from mrcd.handshake.certificate import BadCertificate
from mrcd.handshake.invitation import Asking, Grant, Invitation, Refusal, ended
from mrcd.linux.groupsocket import DATAGRAM_MAX, GROUP, PORT, has_carrier, open_on
from mrcd.peers.membership import Membership

PERIOD_S = 0.25
TELL_S = 2.0
"""After this time without an answer it is said what is missing."""


class NotJoined(Exception):
    """This host did not get in; the message says why."""


def join(
    invited: Invitation,
    nics: Sequence[str],
    path: Path,
    *,
    wait_s: float,
    tell: Callable[[str], None],
) -> Membership:
    """Return the membership that an invitation gives, and keep it at `path`.

    What is there for this invitation is used again. Raises NotJoined, and OSError if a socket
    cannot be opened, or a file not be written.
    """
    membership = Membership(path)
    try:
        membership.load()
    except ConfigError as error:
        raise NotJoined(str(error)) from error
    membership.take(invited)
    pending = membership.pending
    if pending is None:
        return membership
    grant = _granted(pending.asking(), invited, nics, wait_s, tell)
    try:
        membership.granted(pending.granted(grant))
    except BadCertificate as error:
        raise NotJoined(f"{invited.issuer} has answered, but {error}") from error
    return membership


def _granted(
    asking: Asking,
    invited: Invitation,
    nics: Sequence[str],
    wait_s: float,
    tell: Callable[[str], None],
) -> Grant:
    with selectors.DefaultSelector() as selector:
        sockets = [open_on(nic) for nic in nics]
        try:
            for sock in sockets:
                selector.register(sock, selectors.EVENT_READ)
            began, told = time.monotonic(), False
            while (spent := time.monotonic() - began) <= wait_s:
                answer = _asked(asking, sockets, selector)
                if isinstance(answer, Grant):
                    return answer
                if answer is not None:
                    raise NotJoined(f"{invited.issuer} does not take this host: {answer.reason}")
                if spent > TELL_S and not told:
                    told = True
                    tell(f"waiting: {_why(invited, nics, sockets)}")
            raise NotJoined(f"not within {wait_s:.0f} s: {_why(invited, nics, sockets)}")
        finally:
            for sock in sockets:
                sock.close()


def _asked(
    asking: Asking, sockets: Sequence[socket.socket], selector: selectors.BaseSelector
) -> Grant | Refusal | None:
    """Ask once, and return what is answered within PERIOD_S."""
    for sock in sockets:
        try:
            sock.sendto(asking.request, (GROUP, PORT))
        except OSError:  # no address yet, or no link; it is asked again
            continue
    until = time.monotonic() + PERIOD_S
    while (left := until - time.monotonic()) > 0:
        for key, _events in selector.select(left):
            try:
                datagram = key.fileobj.recv(DATAGRAM_MAX)  # type: ignore[union-attr]
            except OSError:
                continue
            if (answer := asking.read(datagram)) is not None:
                return answer
    return None


def _why(invited: Invitation, nics: Sequence[str], sockets: Sequence[socket.socket]) -> str:
    """Return what is missing."""
    why = (
        f"{invited.issuer}, which has made the invitation, does not answer on {', '.join(nics)}: "
        "its mrcd has to run, and still to have the secret of then"
    )
    if late := ended(invited.name, invited.end_s, int(time.time())):
        why += f"; and by this host's clock {late}"
    both = zip(sockets, nics, strict=True)
    if dark := [nic for sock, nic in both if not has_carrier(sock, nic)]:
        why += f"; {', '.join(dark)}: no carrier, as without a cable or an end that is up"
    return why
