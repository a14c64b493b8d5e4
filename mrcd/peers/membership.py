# SPDX-License-Identifier: GPL-2.0-only
"""Keep what an invited host is a member by: its own keys, and what it got for the invitation.

The file has mode 0600, since a private key is in it. A new invitation gets new keys beside those in
use, which are replaced when a host with the secret has accepted it.
"""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mrcd.config import keyfiles
from mrcd.config.config import ConfigError
from mrcd.handshake import certificate as certificates
from mrcd.handshake import identity, invitation
from mrcd.handshake.authority import Signer
from mrcd.handshake.certificate import BadCertificate
from mrcd.handshake.identity import Keyring, Member, Secret
from mrcd.handshake.invitation import Asking, Grant, Invitation
from mrcd.handshake.noise import KeyPair

NAME: Final = "membership.json"
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Joining:
    """This host's keys for one invitation; `grant` is what it got, None before."""

    invited: Invitation
    private: Secret
    signer: Secret
    grant: Grant | None = None

    def asking(self) -> Asking:
        """Return a new question for the host that has made the invitation."""
        pair = KeyPair(self.private.reveal())
        ephemeral = secrets.token_bytes(identity.KEY_BYTES)
        return Asking(self.invited, pair, Signer(self.signer).public, ephemeral)

    def granted(self, grant: Grant) -> Joining:
        """Return this with what it got; raise BadCertificate if it is not for these keys."""
        found = certificates.read(self.invited.authority, grant.certificate)
        ours = (
            self.invited.name,
            KeyPair(self.private.reveal()).public,
            Signer(self.signer).public,
        )
        if (found.name, found.exchange, found.signing) != ours:
            raise BadCertificate("its certificate is for another host")
        return replace(self, grant=grant)

    def ring(self, text: Secret | None) -> Keyring:
        """Return the key ring of this host; `text` is the invitation's."""
        if self.grant is None:
            return identity.invited_keys(self.private, text)
        member = Member(
            self.signer,
            self.grant.certificate,
            self.invited.authority,
            Secret(self.grant.hello_key),
        )
        return identity.invited_keys(self.private, text, Secret(self.grant.psk), member)


def begin(invited: Invitation) -> Joining:
    """Return new keys for an invitation."""
    private = identity.private_key(secrets.token_bytes(identity.KEY_BYTES))
    return Joining(invited, private, Secret(secrets.token_bytes(identity.KEY_BYTES)))


class Membership:
    """The file of one invited host. `member` is in use; `pending` waits for an answer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.member: Joining | None = None
        self.pending: Joining | None = None

    def load(self, other: Path | None = None) -> None:
        """Read the file, or `other` if that is newer; raise ConfigError if it cannot be used.

        `other` is where `mrcctl quick save` puts it, beside the configuration.
        """
        there = [path for path in (self._path, other) if path is not None and path.exists()]
        if not there:
            return
        path = max(there, key=lambda each: each.stat().st_mtime_ns)
        try:
            content = json.loads(keyfiles.read_text(path))
            self.member = _taken(content["member"])
            self.pending = _taken(content["pending"])
        except keyfiles.KeyFileError as error:
            raise ConfigError([f"{path}: {error}"]) from None
        except (ValueError, KeyError, TypeError, invitation.BadInvitation):
            wrong = f"{path}: is damaged: restore it, or remove it and get a new invitation"
            raise ConfigError([wrong]) from None

    def take(self, invited: Invitation | None) -> None:
        """Make keys for an invitation that is news."""
        if invited is None:
            return
        known = [each.invited.ident for each in (self.member, self.pending) if each is not None]
        if invited.ident not in known:
            self.pending = begin(invited)
            self.save()

    def granted(self, joining: Joining) -> None:
        """Use what was granted from now on."""
        self.member, self.pending = joining, None
        self.save()

    def save(self) -> None:
        """Write the file, for this user. Raises OSError."""
        content = {"member": _entry(self.member), "pending": _entry(self.pending)}
        data = (json.dumps(content, indent=1) + "\n").encode()
        keyfiles.place(self._path, data, _MODE, replace=True, service=False)

    def ring(self, text: Secret | None) -> Keyring | None:
        """Return the key ring; None if there was never an invitation."""
        found = self.member or self.pending
        return None if found is None else found.ring(text)


def _entry(joining: Joining | None) -> dict[str, str] | None:
    if joining is None:
        return None
    found = {
        "invitation": joining.invited.text,
        "private": _text(joining.private.reveal()),
        "signer": _text(joining.signer.reveal()),
    }
    if joining.grant is not None:
        found["certificate"] = _text(joining.grant.certificate)
        found["hello_key"] = _text(joining.grant.hello_key)
        found["psk"] = _text(joining.grant.psk)
    return found


def _taken(entry: Any) -> Joining | None:
    if entry is None:
        return None
    made = Joining(
        invitation.read(entry["invitation"]),
        Secret(identity.decode_key(entry["private"])),
        Secret(identity.decode_key(entry["signer"])),
    )
    if "certificate" not in entry:
        return made
    grant = Grant(
        base64.b64decode(entry["certificate"], validate=True),
        identity.decode_key(entry["hello_key"]),
        identity.decode_key(entry["psk"]),
    )
    try:
        return made.granted(grant)
    except BadCertificate as error:
        raise ValueError(str(error)) from None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
