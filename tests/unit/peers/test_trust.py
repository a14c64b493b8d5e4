# SPDX-License-Identifier: GPL-2.0-only
"""Test which hosts count: several daemons' parts in memory, their files, and what they tell."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mrcd.config import admission, config
from mrcd.config.config import ConfigError
from mrcd.config.diff import CannotApply
from mrcd.config.keyfiles import with_keys
from mrcd.fabric import network
from mrcd.handshake import revocation
from mrcd.handshake.hello import Hello, Said
from mrcd.handshake.identity import encode_key
from mrcd.handshake.voice import Out
from mrcd.peers import trust as trusts
from mrcd.peers.trust import Ties, Trust
from mrcd.service.findings import Findings

pytestmark = pytest.mark.usefixtures("logged")

SECRET = encode_key(bytes(range(32)))


class Host:
    """One host's part, with those that it has admitted."""

    def __init__(self, folder: Path, name: str, invitation: str | None = None) -> None:
        self.name, self.home = name, folder / name
        self.home.mkdir(exist_ok=True)
        self._write("secret", SECRET)
        if invitation is not None:
            self._write("invitation", invitation)
        keys = 'secret_file = "secret"' if invitation is None else 'invitation_file = "invitation"'
        self.text = (
            f'[host]\nname = "{name}"\n[mrc0]\naddresses = ["10.9.0.{ord(name)}/24"]\n[keys]\n'
            f'{keys}\ndiscover = true\n[[plane]]\ninterface = "eth1"\n'
        )
        self.certificates: dict[str, bytes] = {}
        self.sent: list[tuple[str, bytes]] = []
        self.out: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.changed = self.hurried = 0
        self.start()

    def _write(self, name: str, text: str) -> None:
        (self.home / name).write_text(text + "\n")
        (self.home / name).chmod(0o600)

    def start(self) -> None:
        """Start as a daemon does, with the files of an earlier one."""
        self.config = with_keys(config.loads(self.text, self.home / "mrcd.toml"))
        ties = Ties(
            certificates=lambda: self.certificates,
            send=lambda peer, message: self.sent.append((peer, message)),
            peers=lambda: list(self.config.by_name),
            changed=self._changed,
            out=self.out.extend,
            hurry=self._hurried,
            refused=lambda name, why: self.refused.append((name, why)),
        )
        self.findings = Findings()
        self.ties = ties
        self.trust = Trust(self.home, lambda: self.config, ties, self.findings)
        self.trust.load()
        self.config = self.trust.completed(self.config)

    def _changed(self) -> None:
        self.changed += 1
        self.config = self.trust.completed(self.config)

    def _hurried(self) -> None:
        self.hurried += 1

    def hello(self) -> bytes:
        found = self.trust.voice()
        assert found is not None
        return found.say(Hello(Said(self.name, "1", 0, 0, 1, ("10.9.0.1",)), 0))

    def hear(self, other: Host) -> None:
        """Hear the Hello of another host, and admit it."""
        found = self.trust.voice()
        assert found is not None
        self.trust.heard(found.hear(other.hello()))
        shown = self.trust.certificate_of(other.name)
        assert shown is not None
        if other.name not in self.config.by_name:
            host = network.host(other.name, [], encode_key(shown.exchange))
            self.config = admission.with_host(self.config, host)
        self.certificates[other.name] = shown.statement

    def pass_on(self, others: dict[str, Host]) -> None:
        """Deliver what was sent to peers."""
        waiting, self.sent = self.sent, []
        for peer, message in waiting:
            others[peer].trust.receive(self.name, message, 0)


def joined(folder: Path, by: Host, name: str) -> Host:
    host = Host(folder, name, by.trust.invite(name, 1).text)
    answer = by.trust.asked(request_of(host))
    assert answer is not None
    host.trust.answered(answer)
    assert host.changed == 1
    return host


def request_of(host: Host) -> bytes:
    found = host.trust.request()
    assert found is not None
    return found


@pytest.fixture
def a(tmp_path: Path) -> Host:
    return Host(tmp_path, "a")


@pytest.fixture
def cluster(tmp_path: Path, a: Host) -> dict[str, Host]:
    """Return a, which has the secret, with b, c and d, which were invited, all peers."""
    hosts = {"a": a} | {name: joined(tmp_path, a, name) for name in "bcd"}
    for one in hosts.values():
        for other in hosts.values():
            if one is not other:
                one.hear(other)
    return hosts


def test_invited_host_keeps_what_it_got(tmp_path: Path, a: Host) -> None:
    host = Host(tmp_path, "c", a.trust.invite("c", 1).text)
    assert host.trust.voice() is None
    first = request_of(host)
    (reason,) = host.trust.reasons()
    assert "waits for a, which made its invitation" in reason
    assert first == request_of(host)
    host.start()  # before an answer came
    ring = host.config.keyring
    answer = a.trust.asked(request_of(host))
    assert answer is not None
    host.trust.answered(answer)
    assert host.trust.request() is None
    assert host.trust.reasons() == []
    after = host.config.keyring
    assert ring is not None
    assert after is not None
    assert (after.private, after.invited, after.secret) == (ring.private, True, None)
    a.hear(host)
    host.hear(a)
    (host.home / "invitation").unlink()
    host.start()
    assert host.config.keyring is not None
    assert host.config.keyring.private == ring.private
    a.hear(host)
    file = host.home / "membership.json"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="others may have read it"):
        host.start()
    file.chmod(0o600)
    file.write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        host.start()
    file.unlink()
    with pytest.raises(ConfigError, match="`mrcctl invite c` prints"):
        host.start()


def test_saved_membership_beside_the_configuration_counts_if_it_is_newer(
    tmp_path: Path, a: Host
) -> None:
    host = joined(tmp_path, a, "c")
    saved = tmp_path / "etc"
    saved.mkdir()
    (host.home / "membership.json").rename(saved / "membership.json")
    (host.home / "invitation").unlink()
    host.config = replace(with_keys(config.loads(host.text, saved / "mrcd.toml")))
    other = Trust(host.home, lambda: host.config, host.ties, Findings())
    other.load()
    completed = other.completed(host.config)
    assert completed.keyring is not None
    assert completed.keyring.member is not None


def test_used_invitation_is_refused_after_a_restart(tmp_path: Path, a: Host) -> None:
    text = a.trust.invite("c", 1).text
    first, second = Host(tmp_path, "c", text), Host(tmp_path / "..", "c", text)
    answer = a.trust.asked(request_of(first))
    assert answer is not None
    a.start()
    refusal = a.trust.asked(request_of(second))
    assert refusal is not None
    second.trust.answered(refusal)
    (reason,) = second.trust.reasons()
    assert "this host may not join: the invitation for c was used" in reason
    assert second.trust.request() is None  # for a while
    assert a.refused[0][0] == "c"
    again = a.trust.asked(request_of(first))
    assert again is not None
    first.trust.answered(again)
    assert first.changed == 1


def test_requests_have_a_budget(tmp_path: Path, a: Host) -> None:
    host = Host(tmp_path, "c", a.trust.invite("c", 1).text)
    request = request_of(host)
    for _ in range(5 * trusts.ASKED_PER_S):  # of no use, and free
        assert a.trust.asked(request[:-1]) is None
    answers = [a.trust.asked(request) for _ in range(3 * trusts.ASKED_PER_S)]
    assert 0 < sum(each is not None for each in answers) <= 2 * trusts.ASKED_PER_S


def test_another_host_with_the_secret_does_not_answer(tmp_path: Path, a: Host) -> None:
    host = Host(tmp_path, "c", a.trust.invite("c", 1).text)
    other = Host(tmp_path, "z")
    assert other.trust.asked(request_of(host)) is None
    assert host.trust.asked(request_of(host)) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [("a", "a is this host"), ("B!", "'B!'"), ("p0", "'p0'"), ("", "''")],
)
def test_who_cannot_be_invited(a: Host, name: str, reason: str) -> None:
    with pytest.raises(CannotApply, match=reason):
        a.trust.invite(name, 1)


def test_host_without_the_secret_has_no_authority(cluster: dict[str, Host]) -> None:
    for does in (
        lambda: cluster["b"].trust.invite("e", 1),
        lambda: cluster["b"].trust.revoke("c"),
    ):
        with pytest.raises(CannotApply, match=r"b was invited, .* hosts: run this on a$"):
            does()


def test_revocation_reaches_all_and_stays(cluster: dict[str, Host]) -> None:
    a, b, c, d = cluster.values()
    b.config = admission.without(b.config, ["d"])  # they do not hear each other
    done = a.trust.revoke("c")
    assert (done.known_by, done.withdrawn) == ("invitation", 0)
    assert a.out == ["c"]
    assert {peer for peer, _message in a.sent} == {"b", "d"}
    a.sent = [each for each in a.sent if each[0] == "b"]  # and a does not hear d now
    d_told = dict(cluster)
    a.pass_on(d_told)
    assert b.out == ["c"]
    assert b.hurried == 1
    assert d.out == []
    assert [peer for peer, _message in b.sent] == []
    d.hear(b)  # whose list is another one
    assert d.sent == []  # d has nothing to tell
    b.config = admission.with_host(b.config, network.host("d", [], encode_key(b"\x09" * 32)))
    b.hear(d)
    b.pass_on(cluster)
    assert d.out == ["c"]
    for host in (a, b, d):
        host.start()
        found = host.trust.voice()
        assert found is not None
        assert host.trust.outsiders(["a", "b", "c", "d"]) == ["c"]
        with pytest.raises(Out):
            found.hear(c.hello())
    c.trust.heard(c.trust.voice().hear(a.hello()))  # type: ignore[union-attr]
    (reason,) = c.trust.reasons()
    assert "this host was revoked on a" in reason
    assert "`mrcctl invite c`" in reason


def test_lists_are_not_sent_without_end(cluster: dict[str, Host]) -> None:
    a, b = cluster["a"], cluster["b"]
    a.trust.revoke("c")
    a.sent.clear()
    for _ in range(50):
        a.hear(b)
    assert len(a.sent) == 1
    b.sent.clear()
    a.pass_on(cluster)
    a.hear(b)
    assert a.sent == []


def test_nonsense_of_a_peer_is_no_revocation(cluster: dict[str, Host]) -> None:
    a, b = cluster["a"], cluster["b"]
    for message in (b"", revocation.MAGIC, revocation.MAGIC + b"\x00\x01\xc0", b"\x91" * 1000):
        a.trust.receive("b", message, 0)
    (forged,) = revocation.messages([bytes(64) + b"\x96\x01\xa1c\x01\x01\xa1a\xa0"])
    a.trust.receive("b", forged, 0)
    a.trust.receive(None, forged, 0)
    assert (a.out, len(a.trust.revocations), b.out) == ([], 0, [])


def test_who_cannot_be_revoked(a: Host, tmp_path: Path) -> None:
    with pytest.raises(CannotApply, match="a is this host"):
        a.trust.revoke("a")
    with pytest.raises(CannotApply, match="no host typo is known here"):
        a.trust.revoke("typo")
    assert len(a.trust.revocations) == 0
    assert a.trust.revoke("typo", force=True).known_by is None
    host = network.host("listed", [])
    a.config = replace(admission.with_host(a.config, host), admitted=())
    with pytest.raises(CannotApply, match=r"listed is in the files of this host: remove its \[\["):
        a.trust.revoke("listed")


def test_invitation_that_is_open_goes_with_the_name(tmp_path: Path, a: Host) -> None:
    host = Host(tmp_path, "c", a.trust.invite("c", 1).text)
    done = a.trust.revoke("c")
    assert (done.known_by, done.withdrawn) == ("invitation", 1)
    answer = a.trust.asked(request_of(host))
    assert answer is not None
    host.trust.answered(answer)
    assert "was withdrawn, as c was revoked" in host.trust.reasons()[0]


def test_new_invitation_ends_the_former_key(tmp_path: Path, cluster: dict[str, Host]) -> None:
    a, former = cluster["a"], cluster["c"]
    text = a.trust.invite("c", 1).text
    assert a.out == []  # not before it is used
    (tmp_path / "again").mkdir()
    again = Host(tmp_path / "again", "c", text)
    answer = a.trust.asked(request_of(again))
    assert answer is not None
    assert a.out == ["c"]
    again.trust.answered(answer)
    found = a.trust.voice()
    assert found is not None
    found.hear(again.hello())
    with pytest.raises(Out):
        found.hear(former.hello())
    a.hear(again)
    assert a.trust.outsiders(["c"]) == []
    refused = a.trust.asked(request_of(again)) if again.trust.request() else None
    assert refused is None


def test_revoked_host_gets_no_certificate_for_its_old_invitation(tmp_path: Path, a: Host) -> None:
    text = a.trust.invite("c", 1).text
    host = Host(tmp_path, "c", text)
    request = request_of(host)
    assert a.trust.asked(request) is not None  # and the answer is lost
    a.trust.revoke("c")
    answer = a.trust.asked(request)
    assert answer is not None
    host.trust.answered(answer)
    assert "c was revoked on a; ask for a new one" in host.trust.reasons()[0]


def test_new_invitation_in_the_file_leaves_the_old_keys_until_it_is_accepted(
    tmp_path: Path, a: Host
) -> None:
    host = joined(tmp_path, a, "c")
    before = host.config.keyring
    host._write("invitation", a.trust.invite("c", 1).text)
    host.start()
    assert before is not None
    assert host.config.keyring is not None
    assert host.config.keyring.private == before.private
    assert host.trust.voice() is not None
    answer = a.trust.asked(request_of(host))
    assert answer is not None
    host.trust.answered(answer)
    assert host.config.keyring.private != before.private
    a.hear(host)


def test_another_secret_begins_with_no_revocations(a: Host) -> None:
    a.trust.revoke("c", force=True)
    a._write("secret", encode_key(bytes(32)))
    a.start()
    assert a.trust.voice() is not None
    assert len(a.trust.revocations) == 0


def test_certificates_of_another_secret_are_no_keys(cluster: dict[str, Host]) -> None:
    a = cluster["a"]
    hosts = [peer.host for peer in a.config.peers]
    assert a.trust.counted(a.config, hosts) == hosts
    a._write("secret", encode_key(bytes(32)))
    files = with_keys(config.loads(a.text, a.home / "mrcd.toml"))
    assert a.trust.counted(files, [*hosts, network.host("by-secret", [])]) == [
        network.host("by-secret", [])
    ]
    assert a.trust.certificate_of("b") is not None
    a.config = files
    assert a.trust.certificate_of("b") is None, "it was shown before, and means nothing now"


def test_damaged_list_is_named_and_its_copy_used(a: Host) -> None:
    a.trust.revoke("c", force=True)
    (a.home / trusts.LISTS).write_text("{")
    a.start()
    assert a.trust.voice() is not None
    assert [each.name for each in a.trust.revocations] == ["c"]
    assert "is damaged" in a.findings.lines[0]


def test_full_disk_keeps_nobody_in(a: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("mrcd.service.statefile.write", full)
        a.trust.revoke("c", force=True)
        assert len(a.trust.revocations) == 1
        assert "the revocations are in force" in a.findings.lines[0]
    a.trust.save_again()
    assert "revocations" in json.loads((a.home / trusts.LISTS).read_text())


def test_full_disk_keeps_no_invited_host_out(
    tmp_path: Path, a: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    host = Host(tmp_path, "c", a.trust.invite("c", 1).text)
    monkeypatch.setattr("mrcd.config.keyfiles.place", full)
    answer = a.trust.asked(request_of(host))
    assert answer is not None
    host.trust.answered(answer)
    a.hear(host)


def test_end_is_told_by_the_clock_of_the_host_that_waits(
    tmp_path: Path, a: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path, "c", a.trust.invite("c", 1).text)
    request_of(host)
    later: Callable[[], float] = lambda: real() + 4 * 3600  # noqa: E731
    real = time.time
    monkeypatch.setattr(time, "time", later)
    (reason,) = host.trust.reasons()
    assert "the invitation for c ended 3 h ago" in reason or "ended 2 h ago" in reason
    answer = a.trust.asked(request_of(host))
    assert answer is not None
    host.trust.answered(answer)
    assert "this host may not join: the invitation for c ended" in host.trust.reasons()[0]


def test_no_file_of_the_issuer_holds_an_invitation(a: Host) -> None:
    made = a.trust.invite("c", 1)
    coded = made.text.split(":")[1]
    for name in os.listdir(a.home):
        content = (a.home / name).read_text()
        assert coded not in content
        assert made.statement[:64].hex() not in content


def test_certificates_are_told_of_hosts_behind_others(tmp_path: Path, a: Host) -> None:
    """A host that was never heard counts by what it has shown to another one, unless it is out."""
    b, c, d = (joined(tmp_path, a, name) for name in "bcd")
    b.hear(c)
    told = (Said("c", "1", 0, 0, 1, ("10.9.0.3",)), Said("x", "1", 0, 0, 1, ("10.9.0.9",)))
    hello = Hello(Said("b", "1", 0, 0, 1, ("10.9.0.2",)), 0, told=b.trust.vouched(told))
    assert d.trust.certificate_of("c") is None
    assert d.trust.believed(hello).told == told[:1], "nobody vouches for x"
    shown = d.trust.certificate_of("c")
    assert shown is not None
    assert shown.name == "c"
    forged = replace(hello, told=(replace(hello.told[0], name="y"),))
    assert d.trust.believed(forged).told == ()
    damaged = replace(hello, told=(replace(hello.told[0], shown="nonsense"),))
    assert d.trust.believed(damaged).told == ()
    a.trust.revoke("c")
    assert a.trust.believed(hello).told == ()
