# SPDX-License-Identifier: GPL-2.0-only
"""By what a host that `mrcctl quick up` brings up is known to the others, and they to it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import click

from cli.console.exits import CommandError
from cli.quick import files, joining
from cli.quick.discovery import Plan
from mrcd.config import keyfiles
from mrcd.handshake import identity, voice
from mrcd.handshake.certificate import Certificate
from mrcd.handshake.identity import Keyring, Secret
from mrcd.handshake.invitation import Invitation
from mrcd.handshake.revocation import Revocations
from mrcd.handshake.voice import Insecure, Voice
from mrcd.peers.admitted import Admitted
from mrcd.peers.membership import NAME, Membership
from mrcd.service import statefile

REVOKED = "revoked.json"


class Credentials:
    """A secret, an invitation, or neither of them.

    file: the one that the configuration names. voice: how the host says Hello. shown: the
    certificates of others by their names.
    """

    def __init__(self, name: str, secret: bytes | None, invited: Invitation | None) -> None:
        self._name = name
        self._secret = None if secret is None else Secret(secret)
        self._invited = invited
        self._membership: Membership | None = None
        self._kept: Path | None = None
        self._revocations = Revocations()
        self.shown: dict[str, Certificate] = {}
        self.file = ""
        self.voice: Voice = Insecure()
        if self._secret is not None:
            self.file = files.SECRET
            self._speak(identity.simple_keys(self._secret, name, ()))

    def _speak(self, ring: Keyring) -> None:
        found = voice.of(ring, self._name, self._revocations)
        assert found is not None, "there is a secret, or a certificate"
        self.voice = found

    def join(self, nics: Sequence[str], folder: Path, wait_s: float) -> None:
        """Use the invitation, if there is one. CommandError if that does not succeed.

        Its key is kept beside `folder` until all has succeeded: the invitation can be used once.
        """
        if self._invited is None:
            return
        self._kept = folder.with_name(f"{folder.name}-{self._invited.ident.hex()[:16]}.json")
        try:
            found = joining.join(
                self._invited,
                nics,
                self._kept,
                wait_s=wait_s,
                tell=lambda line: click.echo(line, err=True),
            )
        except (joining.NotJoined, OSError) as error:
            raise CommandError(str(error)) from error
        ring = found.ring(None)
        assert ring is not None, "it has joined"
        self._membership = found
        self.file = files.INVITATION
        self._speak(ring)

    def leave_joining(self, folder: Path) -> None:
        """Have mrcd show the invitation, if there is one, by the addresses of members."""
        if self._invited is not None:
            self.file = files.INVITATION
            line = f"{self._invited.text}\n".encode()
            keyfiles.place(folder / files.INVITATION, line, 0o600, service=False)

    def write(self, folder: Path, addresses: Sequence[str], plan: Plan) -> None:
        """Write the files by which this host, and those that it has found, are known."""
        if not self.file:
            return
        if self._secret is not None:
            keyfiles.write(folder / files.SECRET, self._secret, service=False)
        if self._kept is not None:
            self._kept.replace(folder / NAME)
        by_secret = self._secret is not None
        kept = {n: c for n, c in self.shown.items() if not (by_secret and c.how == "secret")}
        public = {name: identity.encode_key(each.exchange) for name, each in kept.items()}
        hosts = files.admitted(addresses, plan, public)
        Admitted(folder).add(hosts, {name: each.statement for name, each in kept.items()})
        if len(self._revocations):
            known = [base64.b64encode(each.statement).decode() for each in self._revocations]
            statefile.write(folder / REVOKED, {"revocations": known})
