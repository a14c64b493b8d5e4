# SPDX-License-Identifier: GPL-2.0-only
"""Which hosts count: invitations and revocations, of this host and of all, kept and passed on.

What they mean is in mrcd/handshake/: invitation.py, issued.py, certificate.py, revocation.py.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mrcd.config.config import Config, ConfigError, Current
from mrcd.config.diff import CannotApply
from mrcd.config.network import bad_name
from mrcd.fabric.hosts import Host
from mrcd.handshake import certificate as certificates
from mrcd.handshake import invitation, issued, revocation, voice
from mrcd.handshake.authority import Authority
from mrcd.handshake.certificate import BadCertificate, Certificate, How
from mrcd.handshake.datagram import DatagramError
from mrcd.handshake.hello import Hello, Said
from mrcd.handshake.identity import KEY_BYTES, Secret
from mrcd.handshake.invitation import Asking, BadRequest, Grant, Refusal, Request
from mrcd.handshake.issued import Issued, Record
from mrcd.handshake.ratelimit import Allowance
from mrcd.handshake.revocation import REPLACED, REVOKED, Revocation, Revocations
from mrcd.handshake.voice import Heard, Trusted
from mrcd.peers.heard import KNOWN_MAX
from mrcd.peers.membership import NAME as MEMBERSHIP
from mrcd.peers.membership import Membership
from mrcd.service.findings import Findings
from mrcd.service.keptfile import KeptFile
from mrcd.service.log import get_logger
from mrcd.service.ratelog import Rejections

log = get_logger()

SECOND: Final = 1_000_000_000
LISTS: Final = "revoked.json"
INVITATIONS: Final = "invitations.json"
AGAIN_NS: Final = SECOND
"""The least time between two copies of the list of revocations to one peer."""
REFUSED_NS: Final = 60 * SECOND
"""A host that was refused asks again after this time."""
ASKED_PER_S: Final = 20
"""Requests of hosts that want to join, of all together, that are computed."""
_HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Ties:
    """What Trust needs of the daemon.

    certificates: those of the hosts that were admitted. send: a message to a peer. peers: those
    with a session. changed: is called when this host has other keys. out: with the names of hosts
    whose sessions have to end. hurry: Hellos are to be said soon. refused: with a host and why it
    may not join.
    """

    certificates: Callable[[], Mapping[str, bytes]]
    send: Callable[[str, bytes], None]
    peers: Callable[[], list[str]]
    changed: Callable[[], object]
    out: Callable[[list[str]], object]
    hurry: Callable[[], object]
    refused: Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Revoked:
    """What a revocation has come to.

    known_by: how the host was known, or may become known by an invitation of this host; None if it
    was not. withdrawn: open invitations that were withdrawn.
    """

    name: str
    known_by: How | None
    withdrawn: int


class Trust:
    """The part of one daemon that knows which hosts count."""

    def __init__(self, folder: Path, config: Current, ties: Ties, findings: Findings) -> None:
        """Keep files in a state folder; what is wrong with them becomes a finding."""
        self._revocations = Revocations()
        self._config = config
        self._ties = ties
        self._membership = Membership(folder / MEMBERSHIP)
        self._list = KeptFile(folder / LISTS, "the revocations", findings)
        self._kept: tuple[bytes, ...] = ()
        self._invitations = KeptFile(folder / INVITATIONS, "the invitations", findings)
        self._issued = Issued()
        self._voice: tuple[object, Trusted | None] = (), None
        self._authority: tuple[Secret, Authority] | None = None
        self._shown: dict[str, Certificate] = {}
        self._sent_ns: dict[str, int] = {}
        self._asking: tuple[Secret, Asking | None] | None = None
        self._refused: tuple[str, int] | None = None  # why, and when
        self._pace = Allowance(SECOND // ASKED_PER_S, ASKED_PER_S)
        self._rejections = Rejections("handshake.rejected")
        self._out_told = False
        self._own_loaded = False

    # ---- files

    def load(self) -> None:
        """Read what an earlier daemon has kept."""
        self._kept = self._list.load(_statements) or ()
        self._issued = Issued(self._invitations.load(_records) or ())

    def save_again(self) -> None:
        """Try again to write what could not be written."""
        self._list.save_again()
        self._invitations.save_again()

    def completed(self, config: Config) -> Config:
        """Return a configuration with this host's own keys, if it was invited.

        ConfigError if these cannot be read.
        """
        ring = config.keyring
        if ring is None or not ring.invited:
            return config
        if not self._own_loaded:
            self._membership.load(config.path.parent / MEMBERSHIP)
            self._own_loaded = True
        found = self._membership.ring(ring.invitation)
        if found is None and ring.invitation is None:
            name = config.keys.invitation_file
            raise ConfigError(
                [
                    f'{config.path}: keys.invitation_file: "{name}": there is no such file, and '
                    "this host has not joined before; write what `mrcctl invite "
                    f"{config.host.name}` prints into it"
                ]
            )
        return config if found is None else replace(config, keyring=found)

    def counted(self, config: Config, hosts: Iterable[Host]) -> list[Host]:
        """Return which admitted hosts are still known by the keys of a configuration.

        After a change of the secret those are not which had certificates of before.
        """
        ring, shown = config.keyring, self._ties.certificates()
        authority = None if ring is None else voice.authority_of(ring)
        if authority is None:
            return [*hosts]

        def is_good(statement: bytes) -> bool:
            try:
                certificates.read(authority, statement)
            except BadCertificate:
                return False
            return True

        return [h for h in hosts if h.name not in shown or is_good(shown[h.name])]

    # ---- Hellos

    def voice(self) -> Trusted | None:
        """Return how this host says and hears Hellos; None if it cannot."""
        config = self._config()
        ring = config.keyring
        if not config.keys.discover or ring is None:
            return None
        by = (ring.secret, ring.member, config.host.name)
        if self._voice[0] != by:
            former = self._voice[1]
            found = voice.of(ring, config.host.name, self._revocations)
            self._voice = by, found
            if found is not None and (former is None or former.authority != found.authority):
                found.revocations = self._revocations = Revocations()
                self._revocations.merge(found.authority, self._kept)
        return self._voice[1]

    @property
    def revocations(self) -> Revocations:
        """The list of revocations, those of an earlier daemon included."""
        self.voice()
        return self._revocations

    def heard(self, heard: Heard) -> None:
        """Take notice of a Hello, and of whether its host has the same revocations."""
        name = heard.hello.name
        if heard.certificate is not None:
            if len(self._shown) >= KNOWN_MAX:
                self._shown.clear()
            self._shown[name] = heard.certificate
        if heard.digest != self.revocations.digest:
            self._send_all(name)
        self.look_for_news()

    def vouched(self, told: Iterable[Said]) -> tuple[Said, ...]:
        """Return what is told of others with the certificates that they have shown."""
        found = ((said, self._shown.get(said.name)) for said in told)
        return tuple(
            said
            if shown is None
            else replace(said, shown=base64.b64encode(shown.statement).decode())
            for said, shown in found
        )

    def believed(self, hello: Hello) -> Hello:
        """Return a Hello without what it tells of hosts that show no good certificate.

        Those that do are remembered as if they had shown it here.
        """
        voice = self.voice()
        if not hello.told:
            return hello
        if voice is None:
            return replace(hello, told=())
        kept = []
        for said in hello.told:
            with contextlib.suppress(BadCertificate, ValueError):
                shown = voice.checked(base64.b64decode(said.shown, validate=True))
                if shown.name == said.name and self.revocations.of(shown) is None:
                    self._shown[said.name] = shown
                    kept.append(replace(said, shown=""))
        return replace(hello, told=tuple(kept))

    def look_for_news(self) -> None:
        """Act on the revocations that Hellos have told of."""
        found = self._voice[1]
        if found is not None and (news := found.news()):
            self._act(news)

    def _send_all(self, name: str) -> None:
        now = time.monotonic_ns()
        if not len(self.revocations) or name not in self._ties.peers():
            return
        if now - self._sent_ns.get(name, -AGAIN_NS) < AGAIN_NS:
            return
        if len(self._sent_ns) >= KNOWN_MAX:
            self._sent_ns.clear()
        self._sent_ns[name] = now
        for message in self.revocations.messages():
            self._ties.send(name, message)

    def certificate_of(self, name: str) -> Certificate | None:
        """Return the certificate that a host has shown last, unless it does not count any more.

        One that was shown before this host got another authority is nobody's.
        """
        found, voice = self._shown.get(name), self.voice()
        if found is None or voice is None or self.revocations.of(found) is not None:
            return None
        try:
            return voice.checked(found.statement)
        except BadCertificate:
            return None

    def known_by(self, name: str) -> Certificate | None:
        """Return the certificate by which an admitted host is known; None for other hosts."""
        found, statement = self.voice(), self._ties.certificates().get(name)
        if found is None or statement is None:
            return None
        try:
            return found.checked(statement)
        except BadCertificate:
            return None

    # ---- revocations

    def receive(self, sender: str | None, message: bytes, plane: int) -> None:
        """Take the revocations that a peer knows of."""
        found = self.voice()
        if found is None or sender is None:
            return
        try:
            statements = revocation.statements_of(message)
        except DatagramError as error:
            said = f"{sender}: revocations: {error}"
            self._rejections.add(plane, said, now_ns=time.monotonic_ns())
            return
        if news := self.revocations.merge(found.authority, statements):
            self._act(news, sender)

    def _act(self, news: list[Revocation], sender: str | None = None) -> None:
        """End the sessions of hosts that are out, pass the news on, and keep them."""
        for each in news:
            log.warning("host.revoked", host=each.name, by=each.by, reason=each.why)
        if names := self.outsiders([each.name for each in news]):
            self._ties.out(names)
        messages = revocation.messages([each.statement for each in news])
        for peer in self._ties.peers():
            if peer != sender and peer not in names:
                for message in messages:
                    self._ties.send(peer, message)
        self._ties.hurry()
        self._keep()
        self._tell_if_out()

    def _keep(self) -> None:
        self._kept = tuple(each.statement for each in self.revocations)
        self._list.save({"revocations": [_text(each) for each in self._kept]})

    def outsiders(self, names: Iterable[str]) -> list[str]:
        """Return which hosts, as they were admitted, do not count any more."""
        out = []
        for name in names:
            found, shown = self.revocations.named(name), self.known_by(name)
            if found is not None and (shown is None or found.ends(shown)):
                out.append(name)
        return out

    def _tell_if_out(self) -> None:
        found = self.out
        if found is not None and not self._out_told:
            self._out_told = True
            log.warning("membership.revoked", by=found.by, reason=found.why)

    @property
    def out(self) -> Revocation | None:
        """What says that this host is out; None if it counts."""
        found = self.voice()
        return None if found is None else found.out

    def revoke(self, name: str, *, force: bool = False) -> Revoked:
        """Revoke a host, or the invitations for it. CannotApply, with the reason, if not."""
        config, authority = self._config(), self._own_authority("revokes")
        if name == config.host.name:
            raise CannotApply(f"{name} is this host; revoke it on another host with the secret")
        self._refuse_listed(name, "revoke it")
        known_by = self.how_known(name)
        if known_by is None and any(each.name == name for each in self._issued):
            known_by = "invitation"
        if known_by is None and not force and self.revocations.named(name) is None:
            raise CannotApply(
                f"no host {name} is known here, and no invitation for it was made here; --force "
                "revokes the name all the same"
            )
        withdrawn = self._issued.withdraw(name, now_s=int(time.time()))
        if withdrawn:
            self._save_issued()
        self._revoke(authority, name, REVOKED)
        return Revoked(name, known_by, withdrawn)

    def how_known(self, name: str) -> How | None:
        """Return by what a host is known that was admitted, or has been heard; None if neither."""
        if name in self._config().admitted:
            found = self.known_by(name)
            return "secret" if found is None else found.how
        shown = self._shown.get(name)
        return None if shown is None else shown.how

    def _revoke(self, authority: Authority, name: str, why: str) -> Revocation:
        by, now = self._config().host.name, int(time.time())
        try:
            made = self.revocations.revoke(authority, name, now_s=now, by=by, why=why)
        except revocation.Full as error:
            raise CannotApply(str(error)) from None
        self._act([made])
        return made

    def _refuse_listed(self, name: str, then: str) -> None:
        config = self._config()
        if name in config.by_name and name not in config.admitted:
            raise CannotApply(
                f"{name} is in the files of this host: remove its [[peer]], reload, and {then}"
            )

    def _own_authority(self, does: str) -> Authority:
        """Return the authority; CannotApply if this host has none."""
        config = self._config()
        ring = config.keyring
        if not config.keys.discover:
            raise CannotApply(
                f"only a host that finds others {does} hosts ([keys] discover = true); elsewhere a "
                "host is in the fabric file, or in a [[peer]]: take it out there"
            )
        if ring is None or ring.secret is None:
            holders = sorted(
                name for name in config.by_name if self.how_known(name) in (None, "secret")
            )
            where = f": run this on {' or '.join(holders)}" if holders else ""
            raise CannotApply(
                f"{config.host.name} was invited, and only a host with the secret {does} hosts"
                f"{where}"
            )
        return self._authority_of(ring.secret)

    def _authority_of(self, secret: Secret) -> Authority:
        if self._authority is None or self._authority[0] != secret:
            self._authority = secret, Authority(secret)
        return self._authority[1]

    # ---- hosts that want to join

    def invite(self, name: str, hours: float) -> invitation.Invitation:
        """Make an invitation. CannotApply, with the reason, if not."""
        config, authority = self._config(), self._own_authority("invites")
        if wrong := bad_name(name):
            raise CannotApply(f"{name!r} {wrong}")
        if name == config.host.name:
            raise CannotApply(f"{name} is this host; invite another one")
        self._refuse_listed(name, "invite it")
        now, ident = int(time.time()), secrets.token_bytes(invitation.IDENT_BYTES)
        end = now + int(hours * _HOUR_S)
        try:
            self._issued.add(ident, name, end_s=end, now_s=now)
        except issued.TooMany as error:
            raise CannotApply(str(error)) from None
        self._save_issued()
        log.info("invitation.made", host=name, seconds=end - now)
        return invitation.make(authority, name, config.host.name, ident=ident, end_s=end)

    def asked(self, datagram: bytes) -> bytes | None:
        """Return the answer to a host that wants to join; None if it is not for this host."""
        config = self._config()
        ring, now = config.keyring, time.monotonic_ns()
        if ring is None or ring.secret is None or not config.keys.discover:
            return None
        authority = self._authority_of(ring.secret)
        if not invitation.is_for(authority.exchange.public, datagram) or not self._pace.take(now):
            return None
        try:
            request = Request(authority, datagram)
        except BadRequest:
            return None
        if request.invitation.issuer != config.host.name:
            return None
        ephemeral, name = secrets.token_bytes(KEY_BYTES), request.invitation.name
        try:
            granted = self._judged(authority, request)
        except CannotApply as error:
            self._ties.refused(name, str(error))
            return request.refuse(str(error), ephemeral)
        return request.grant(granted, ephemeral)

    def _judged(self, authority: Authority, request: Request) -> Grant:
        """Return what a host gets; CannotApply, with the reason, if it may not join."""
        name, now = request.invitation.name, int(time.time())
        if why := self._issued.why_not(request, now_s=now):
            raise CannotApply(why)
        self._refuse_listed(name, "use the invitation again")
        if not self._issued.record(request).used:
            if name in self._config().admitted or self._issued.has_joined(name):
                self._revoke(authority, name, REPLACED)
            self._issued.use(request, self.revocations.number, now_s=now)
            self._save_issued()
            log.info("invitation.used", host=name)
        made = issued.certificate_for(authority, self._issued.record(request))
        if (found := self.revocations.of(made)) is not None:
            raise CannotApply(f"{name} {found.told}; {invitation.remedy(name)}")
        return Grant(made.statement, authority.hello_key.reveal(), authority.psk.reveal())

    def _save_issued(self) -> None:
        self._invitations.save({"invitations": [_entry(each) for each in self._issued]})

    # ---- this host, if it wants to join

    def request(self) -> bytes | None:
        """Return what to say to join; None if there is nothing to ask."""
        ring, now = self._config().keyring, time.monotonic_ns()
        if ring is None or not ring.invited or ring.invitation is None:
            return None
        if self._asking is None or self._asking[0] != ring.invitation:
            self._asking, self._refused = (ring.invitation, self._begun(ring.invitation)), None
        if self._refused is not None and now - self._refused[1] < REFUSED_NS:
            return None
        asking = self._asking[1]
        return None if asking is None else asking.request

    def _begun(self, text: Secret) -> Asking | None:
        """Return the question for an invitation; None if this host has its answer already."""
        try:
            self._membership.take(invitation.read(text.reveal().decode()))
        except OSError as error:  # they are written again with the answer
            log.warning("membership.unsaved", error=str(error))
        pending = self._membership.pending
        return None if pending is None else pending.asking()

    def answered(self, datagram: bytes) -> None:
        """Take what a host with the secret says to a request of this host."""
        asking, pending = self._asking, self._membership.pending
        if asking is None or asking[1] is None or pending is None:
            return
        answer = asking[1].read(datagram)
        if isinstance(answer, Refusal):
            if self._refused is None or self._refused[0] != answer.reason:
                log.warning("membership.refused", reason=answer.reason)
            self._refused = answer.reason, time.monotonic_ns()
        elif answer is not None:
            try:
                self._membership.granted(pending.granted(answer))
            except BadCertificate as error:
                log.warning("membership.refused", reason=str(error))
                return
            except OSError as error:  # it is in force, and lost with this daemon
                log.warning("membership.unsaved", error=str(error))
            self._asking = asking[0], None
            self._refused, self._out_told = None, False
            log.info("membership.granted", by=pending.invited.issuer)
            self._ties.changed()

    # ---- what is to be told

    def reasons(self) -> list[str]:
        """Return why this host is no member, if it is none."""
        name, found = self._config().host.name, self.out
        if found is not None:
            days = invitation.ago(int(time.time()) - found.when_s)
            how = f"this host {found.told}, {days} ago"
            if found.why == REPLACED:
                return [f"{how}; if that was not meant, {invitation.remedy(name)}"]
            return [f"{how}: no host takes it as a peer; {invitation.remedy(name)}"]
        pending = self._membership.pending
        if pending is None:
            return []
        if self._refused is not None:
            return [f"this host may not join: {self._refused[0]}"]
        issuer, invited = pending.invited.issuer, pending.invited
        late = invitation.ended(invited.name, invited.end_s, int(time.time()))
        seeds = self._config().keys.seeds
        where = (
            "and a seed has to be its address" if seeds else "and to be on a network of this host"
        )
        return [
            f"this host waits for {issuer}, which made its invitation, to answer: it has to run, "
            f"{where}" + (f"; and {late}" if late else "")
        ]


def _statements(content: Any) -> tuple[bytes, ...]:
    return tuple(base64.b64decode(text, validate=True) for text in content["revocations"])


def _records(content: Any) -> list[Record]:
    return [
        Record(
            ident=bytes.fromhex(each["ident"]),
            name=str(each["name"]),
            end_s=int(each["end_s"]),
            withdrawn=bool(each["withdrawn"]),
            used_s=int(each["used_s"]),
            exchange=bytes.fromhex(each["exchange"]),
            signing=bytes.fromhex(each["signing"]),
            number=int(each["number"]),
        )
        for each in content["invitations"]
    ]


def _entry(record: Record) -> dict[str, Any]:
    return {
        "ident": record.ident.hex(),
        "name": record.name,
        "end_s": record.end_s,
        "withdrawn": record.withdrawn,
        "used_s": record.used_s,
        "exchange": record.exchange.hex(),
        "signing": record.signing.hex(),
        "number": record.number,
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
