# SPDX-License-Identifier: GPL-2.0-only
"""Test that hosts join by invitations, are peers of each other, and are out once revoked."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator

import pytest

from rigs.bare_hosts import STARTED_S
from rigs.invited_hosts import Invited, Trickle
from rigs.lab_hosts import eventually
from rigs.quick_hosts import Cluster, finished, inner
from rigs.traffic import Stream, transfer

pytestmark = pytest.mark.timeout(600)

SOON_S = 20.0
"""Far more than it takes, for busy machines; docs/operations.md has the times."""
OUT_S = 1.0


@pytest.fixture
def cluster() -> Iterator[Invited]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    made = Invited(f"i{os.getpid()}", 2)
    try:
        made.build()
        yield made
    finally:
        made.close()


@pytest.fixture
def three(cluster: Invited) -> Invited:
    """Host a has the secret; b and c were invited."""
    cluster.enter("b")
    cluster.enter("c")
    for host, others in (("a", "bc"), ("b", "ac"), ("c", "ab")):
        eventually(
            lambda host=host, others=others: cluster.established(host) == {*others},
            lambda host=host: f"{host} is complete: {cluster.warnings(host)}", SOON_S,
        )  # fmt: skip
    return cluster


def known_by(cluster: Cluster, host: str) -> dict[str, str]:
    return {name: peer["known_by"] for name, peer in cluster.peers(host).items()}


def refused(cluster: Invited, host: str, invitation: str, reason: str) -> None:
    """Assert that a host does not get in, and that it and `a` say why."""
    code, error = cluster.try_use(host, invitation, "--wait", "20")
    assert code == 1
    assert re.search(reason, error), error
    assert re.search(reason, cluster.warnings("a"))
    assert not cluster.quick(host).exists()


def test_invited_hosts_are_peers_of_each_other(three: Invited) -> None:
    """And they are without the host that has invited them, after a reboot, and under load."""
    cluster = three
    assert known_by(cluster, "a") == {"b": "invitation", "c": "invitation"}
    assert known_by(cluster, "b") == {"a": "secret", "c": "invitation"}
    for host in ("b", "c"):
        texts = [f.read_bytes() for f in cluster.quick(host).iterdir() if f.is_file()]
        assert not any(cluster.secret.encode() in text for text in texts)
        assert (cluster.quick(host) / "membership.json").stat().st_mode & 0o777 == 0o600
        assert "known by its invitation" in cluster.warnings(host)
    transfer(cluster, "b", "c", inner(cluster, "c"))
    before = cluster.peers("b")["c"]["endpoints"]
    cluster.kill("a")
    cluster.replug("c")
    eventually(lambda: cluster.status("c"), lambda: f"c is up: {cluster.journal('c')}", STARTED_S)
    eventually(lambda: "b" in cluster.established("c"), lambda: cluster.warnings("c"), SOON_S)
    transfer(cluster, "b", "c", inner(cluster, "c"))
    assert cluster.peers("b")["c"]["endpoints"] != before
    cluster.start_again("a")
    eventually(lambda: cluster.status("a"), lambda: f"a is up: {cluster.journal('a')}", STARTED_S)
    eventually(lambda: cluster.established("a") == {"b", "c"}, "a is back", SOON_S)
    assert known_by(cluster, "a") == {"b": "invitation", "c": "invitation"}
    cluster.plug("d")
    cluster.use("d", cluster.invite("d"))
    for host in ("a", "b", "c"):
        eventually(lambda host=host: "d" in cluster.established(host), f"{host} has d", SOON_S)
    stream = Stream(cluster, "b", "c", inner(cluster, "c")).start(64 << 20)
    transfer(cluster, "d", "b", inner(cluster, "b"))
    stream.finish()


def test_invitation_that_is_of_no_use_is_refused_on_both_sides(cluster: Invited) -> None:
    cluster.enter("b")
    used = cluster.invite("c")
    cluster.plug("c")
    cluster.use("c", used)
    cluster.plug("d")
    refused(cluster, "d", used, r"invitation for c was used \d+ (s|min) ago by another key; ask")
    made = cluster.mrcctl("a", "invite", "d", "--hours", "0.0006", "--json")
    code, out, error = finished(made)
    assert code == 0, error
    ended = json.loads(out)
    eventually(lambda: time.time() > ended["end_s"] + 1, "the invitation has ended")
    refused(
        cluster, "d", ended["invitation"],
        r"invitation for d ended \d+ s ago; ask for a new one by `mrcctl invite d`",
    )  # fmt: skip
    withdrawn = cluster.invite("d")
    code, said = cluster.revoke("d")
    assert (code, "invitations that were withdrawn: 1" in said) == (0, True), said
    refused(cluster, "d", withdrawn, "invitation for d was withdrawn")
    cluster.use("d", cluster.invite("d"))  # invited again
    eventually(lambda: cluster.established("d") == {"a", "b", "c"}, "d is in", SOON_S)


def test_bad_use_of_an_invitation_is_refused_at_once(cluster: Invited) -> None:
    cluster.plug("b")
    made = cluster.invite("b")
    for text, more, reason in (
        (made[:-5], (), "the invitation is damaged: copy the whole line again"),
        (cluster.secret, (), "the invitation is no invitation"),
        (made, ("--name", "x"), "--name x: the invitation is for b"),
        (made, ("--insecure",), "leave one of the two out"),
    ):
        code, error = cluster.try_use("b", text, *more)
        assert (code, reason in error) == (2, True), error
        assert text not in error
    exposed = cluster.folder / "exposed"
    exposed.write_text(made)
    exposed.chmod(0o644)
    code, error = cluster.try_use("b", "", "--invitation", str(exposed))
    assert (code, f"`chmod 600 {exposed}`" in error) == (2, True), error
    cluster.kill("a")
    code, error = cluster.try_use("b", made, "--wait", "4")
    assert code == 1
    assert "a, which has made the invitation, does not answer on eth1, eth2" in error
    cluster.start_again("a")
    eventually(lambda: cluster.status("a"), "a is up", STARTED_S)
    exposed.chmod(0o600)
    cluster.use("b", "", "--invitation", str(exposed))
    eventually(lambda: cluster.established("a") == {"b"}, "b is in", SOON_S)
    code, _out, error = finished(cluster.mrcctl("b", "invite", "c"))
    assert (code, "b was invited, and only a host with the secret invites hosts" in error) == (
        1,
        True,
    ), error
    code, said = cluster.revoke("a", on="b")
    assert (code, "only a host with the secret revokes hosts: run this on a" in said) == (1, True)


def test_revoked_host_is_out_at_once_and_stays_out(three: Invited) -> None:
    cluster = three
    trickles = [Trickle(cluster, "c", host) for host in ("a", "b")]
    others = Stream(cluster, "a", "b", inner(cluster, "b")).start()
    began = time.monotonic()
    with cluster.client("a") as client:  # without the start of a command, on a busy machine
        reply = client.revoke_peer("c", force=False)
    assert (reply["known_by"], reply["secret_known"]) == ("invitation", False)
    for host in ("a", "b"):
        eventually(lambda host=host: "c" not in cluster.peers(host), f"{host} lets c go", SOON_S)
    for trickle in trickles:
        trickle.close()
        assert trickle.last_s - began < OUT_S
    others.finish()
    eventually(lambda: "this host was revoked on a" in cluster.warnings("c"), "c says so", SOON_S)
    for host in ("a", "b"):
        assert "revoked: c" in cluster.warnings(host)
    cluster.kill("b")  # it has heard of it, and remembers
    cluster.kill("a")
    cluster.start_again("b")
    eventually(lambda: cluster.status("b"), "b is up", STARTED_S)
    stolen(cluster)
    cluster.start_again("a")
    eventually(lambda: cluster.status("a"), "a is up", STARTED_S)
    eventually(lambda: cluster.established("a") == {"b"}, "a and b are together", SOON_S)
    for host in ("a", "b"):
        assert "c" not in cluster.peers(host)
    cluster.kill("c")
    shutil.rmtree(cluster.quick("c"))
    cluster.use("c", cluster.invite("c"))  # while the stolen copy goes on
    eventually(lambda: cluster.established("b") == {"a", "c"}, "c is in again", SOON_S)
    transfer(cluster, "b", "c", inner(cluster, "c"))


def stolen(cluster: Invited) -> None:
    """Have another host start with the files of c; it gets nothing, and is told why."""
    cluster.plug("d")
    cluster.quick("d").parent.mkdir(exist_ok=True)
    shutil.copytree(cluster.quick("c"), cluster.quick("d"))
    (cluster.quick("d") / "revoked.json").unlink()
    (cluster.quick("d") / "revoked.json.copy").unlink()
    cluster.start_again("d")
    eventually(lambda: cluster.status("d"), "d is up", STARTED_S)
    eventually(
        lambda: "this host was revoked on a" in cluster.warnings("d"),
        lambda: f"the copy is told: {cluster.warnings('d')}", SOON_S,
    )  # fmt: skip
    assert not cluster.established("d")
    assert "c" not in cluster.peers("b")


def test_host_that_was_away_hears_of_a_revocation(three: Invited) -> None:
    cluster = three
    cluster.kill("b")
    code, _said = cluster.revoke("c")
    assert code == 0
    cluster.start_again("b")
    eventually(lambda: cluster.status("b"), "b is up", STARTED_S)
    eventually(
        lambda: "c" not in cluster.peers("b") and "revoked: c" in cluster.warnings("b"),
        lambda: f"b lets c go: {cluster.warnings('b')}", SOON_S,
    )  # fmt: skip
    eventually(lambda: cluster.established("b") == {"a"}, "b has a", SOON_S)


def test_new_invitation_ends_the_key_of_before(three: Invited) -> None:
    """As for a host that has lost its files: the name is its, the old key is of no use."""
    cluster = three
    former = cluster.peers("b")["c"]["public_key"]
    cluster.power_off("c")
    cluster.plug("c")
    process = cluster.mrcctl("a", "invite", "c")
    code, made, error = finished(process)
    assert (code, "its present key ends when" in error) == (0, True), error
    cluster.use("c", made)
    for host in ("a", "b"):
        eventually(lambda host=host: "c" in cluster.established(host), f"{host} has c", SOON_S)
    assert cluster.peers("b")["c"]["public_key"] != former
    transfer(cluster, "c", "b", inner(cluster, "b"))


def test_service_joins_by_a_file(cluster: Invited) -> None:
    """Without `quick`: the configuration names an invitation, which may come to an end."""
    cluster.plug("b")
    place = cluster.config("b")
    place.parent.mkdir(exist_ok=True)
    place.write_text(
        '[host]\nname = "b"\n[mrc0]\naddresses = ["10.99.255.2/16", "fd99::b/64"]\n[keys]\n'
        'invitation_file = "invitation"\ndiscover = true\n[service]\non_stop = "detach"\n'
        '[[plane]]\ninterface = "eth1"\n[[plane]]\ninterface = "eth2"\n'
    )
    invitation = place.parent / "invitation"
    invitation.write_text(cluster.invite("b") + "\n")
    invitation.chmod(0o600)
    cluster.start("b")
    eventually(
        lambda: "b" in cluster.established("a"),
        lambda: cluster.warnings("a") + cluster.warnings("b") + cluster.log("b"), STARTED_S,
    )  # fmt: skip
    transfer(cluster, "a", "b", "10.99.255.2")
    cluster.stop("b")
    invitation.unlink()
    eventually(lambda: not cluster.peers("a"), "b has left", SOON_S)
    cluster.start("b")
    eventually(lambda: "b" in cluster.established("a"), "b is back", STARTED_S)
    cluster.stop("b")
    invitation.write_text(cluster.invite("b") + "\n")  # a new one gets another key
    invitation.chmod(0o600)
    cluster.start("b")
    eventually(
        lambda: "b" in cluster.established("a") and "revoked: b" in cluster.warnings("a"),
        lambda: cluster.warnings("a") + cluster.warnings("b"), STARTED_S,
    )  # fmt: skip
    transfer(cluster, "b", "a", inner(cluster, "a"))


def test_another_secret_and_new_invitations(three: Invited) -> None:
    """What is to be done once a host with the secret is lost: nobody of before gets anything."""
    cluster = three
    secret = cluster.quick("a") / "fabric.secret"
    secret.write_bytes(base64.b64encode(os.urandom(32)) + b"\n")
    os.kill(cluster.pids("a")[0], signal.SIGHUP)
    eventually(lambda: not cluster.peers("a"), lambda: cluster.warnings("a"), SOON_S)
    for host in ("b", "c"):
        invitation = cluster.quick(host) / "invitation"
        invitation.write_text(cluster.invite(host) + "\n")
        invitation.chmod(0o600)
        os.kill(cluster.pids(host)[0], signal.SIGHUP)
        eventually(
            lambda host=host: host in cluster.established("a"),
            lambda host=host: cluster.warnings(host) + cluster.warnings("a"), SOON_S,
        )  # fmt: skip
    for host, others in (("a", "bc"), ("b", "ac"), ("c", "ab")):
        eventually(
            lambda host=host, others=others: cluster.established(host) == {*others},
            lambda host=host: f"{host} is complete: {cluster.warnings(host)}", SOON_S,
        )  # fmt: skip
    transfer(cluster, "b", "c", inner(cluster, "c"))
    transfer(cluster, "c", "a", inner(cluster, "a"))


def test_host_with_the_secret_that_is_revoked() -> None:
    """The name stays out, and it is said that the secret has to be changed."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    cluster = Invited(f"s{os.getpid()}", 2)
    try:
        cluster.build()
        cluster.plug("b")
        cluster.join("b")
        code, said = cluster.revoke("b")
        assert code == 0
        assert "b may know the secret, by which it can come back under another name" in said
        eventually(lambda: not cluster.peers("a"), "a lets b go", SOON_S)
        eventually(lambda: "this host was revoked" in cluster.warnings("b"), "b says so", SOON_S)
        cluster.down("b")
        code, _out, error = finished(cluster.up("b", "eth1", "eth2", secret=cluster.secret))
        assert (code, "b was revoked on a" in error) == (1, True), error
        assert not cluster.peers("a")
        cluster.use("b", cluster.invite("b"))  # as one that was invited, it may come back
        eventually(lambda: cluster.established("a") == {"b"}, "b is in", SOON_S)
        assert known_by(cluster, "a") == {"b": "invitation"}
    finally:
        cluster.close()
