# SPDX-License-Identifier: GPL-2.0-only
"""Test keys between real daemons: agreed, renewed under traffic, removed; strangers get none."""

from __future__ import annotations

import base64
import os
import signal
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab, state
from mrcd.config import keyfiles
from mrcd.fabric import description
from mrcd.handshake import identity, sealing
from mrcd.handshake.pace import DEAD_AFTER_NS, KEEPALIVE_NS
from rigs import lab_hosts
from rigs.daemons import Traffic, connections, end, events, settle
from rigs.lab_hosts import eventually, mrcctl, mrcctl_json
from rigs.stranger import Stranger, send

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
ROTATE_S = 4
SETTLED_S = 120.0  # compiling takes seconds, and far longer on a busy machine

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def quick(module_labs: MakeLab) -> Lab:
    """Return a lab of three hosts that renew their keys every few seconds."""
    settings = f"[keys]\nrotate_s = {ROTATE_S}\n"
    return module_labs(daemons=True, hosts=3, planes=2, t1=2, on_stop="keep", settings=settings)


@pytest.fixture
def running(quick: Lab) -> Iterator[Lab]:
    """Return that lab, with every daemon up and ok before and after."""
    before = state.places(quick.name, "h1").config.read_text()
    settle(quick)
    yield quick
    config = state.places(quick.name, "h1").config
    if config.read_text() != before:
        config.write_text(before)
        reload(quick, "h1")
    settle(quick)


def reload(running: Lab, host: str) -> None:
    pid = lab.daemon_pid(running.name, host)
    assert pid is not None
    os.kill(pid, signal.SIGHUP)


def peer(running: Lab, host: str, name: str) -> dict[str, Any] | None:
    """Return what a host says of a peer; None if it has no such peer."""
    peers = mrcctl_json(running.name, host, "peer", "list")["peers"]
    return next((each for each in peers if each["name"] == name), None)


def epoch(running: Lab, host: str, name: str) -> int:
    found = peer(running, host, name)
    assert found is not None
    return int(found["key_epoch"])


# ---- agreed


def test_hosts_are_secured(running: Lab) -> None:
    status = lab_hosts.status(running.name, "h1")
    assert status is not None
    assert status.secured
    other = lab_hosts.status(running.name, "h2")
    found = peer(running, "h1", "h2")
    assert other is not None
    assert found is not None
    assert found["public_key"] == other.public_key != status.public_key
    assert found["key_age_s"] < 2 * ROTATE_S
    secret = state.secret(running.name)
    assert secret.stat().st_mode & 0o777 == 0o600
    assert "keys.agreed" in events(running, "h1")


def test_nothing_is_said_in_clear(running: Lab) -> None:
    stats = lab_hosts.counters(running.name, "h1")
    assert stats["channel_malformed"] == stats["channel_unauthentic"] == 0
    assert "handshake.rejected" not in events(running, "h1")


def test_rotation_under_checked_traffic_loses_nothing(running: Lab) -> None:
    before = epoch(running, "h1", "h2"), connections(running, "h1")
    traffic = Traffic(running)
    eventually(lambda: epoch(running, "h1", "h2") >= before[0] + 3, "three rotations", 60)
    traffic.finish()
    qpns = [(qp["qpn"], qp["remote_qpn"]) for qp in connections(running, "h1")]
    assert qpns == [(qp["qpn"], qp["remote_qpn"]) for qp in before[1]]


def test_rotate_by_hand(running: Lab) -> None:
    before = epoch(running, "h1", "h2")
    done = mrcctl(running.name, "h1", "key", "rotate", "h2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert epoch(running, "h1", "h2") > before


# ---- restarts


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_restart_resumes_sessions_and_agrees_on_new_keys(
    running: Lab, number: signal.Signals
) -> None:
    before = [(qp["qpn"], qp["remote_qpn"]) for qp in connections(running, "h1")]
    earlier = epoch(running, "h1", "h2")
    silences = events(running, "h2").count("peer.silent")
    traffic = Traffic(running)
    began_ns = time.monotonic_ns()
    end(running, "h1", number)
    lab.start_daemon(running.name, "h1")
    lab_hosts.until_ok(running.name, "h1", SETTLED_S)
    away_ns = time.monotonic_ns() - began_ns
    eventually(lambda: epoch(running, "h1", "h2") > earlier, "new keys")
    traffic.finish()
    assert [(qp["qpn"], qp["remote_qpn"]) for qp in connections(running, "h1")] == before
    # On a busy machine a start may take longer than a peer may be silent, and it was heard last a
    # moment before.
    if away_ns <= DEAD_AFTER_NS - KEEPALIVE_NS:
        assert events(running, "h2").count("peer.silent") == silences


# ---- strangers


def test_stranger_without_keys_gets_silence(running: Lab) -> None:
    """It has a host's address, and knows that host's public key or not."""
    h1, h3 = (running.fabric.host(name) for name in ("h1", "h3"))
    stranger = Stranger(running, h3, h1, h3)
    status = lab_hosts.status(running.name, "h1")
    assert status is not None
    public = identity.decode_key(str(status.public_key))
    body = sealing.INIT + bytes(sealing.INIT_BYTES - 4 - sealing.MAC1_BYTES - sealing.MAC_BYTES)
    knowing = body + sealing.mac1(public, body) + bytes(sealing.MAC_BYTES)
    messages = {
        "drop_message": b"MRCf\0\1\x90\0",
        "drop_mac1": body + bytes(sealing.MAC1_BYTES + sealing.MAC_BYTES),
        "channel_handshake": knowing,
        "drop_index": sealing.SEALED + bytes(60),
    }
    before = lab_hosts.counters(running.name, "h1")
    for message in messages.values():
        send(running.namespace("h3"), stranger.message(message))
    wanted = dict.fromkeys(messages, 1)

    def rose() -> dict[str, int]:
        after = lab_hosts.counters(running.name, "h1")
        return {name: after[name] - before[name] for name in messages}

    eventually(lambda: rose() == wanted, "each is counted once")
    assert lab_hosts.ok(running.name, "h1")


def test_host_with_another_secret_gets_no_session(make_lab: MakeLab) -> None:
    running = make_lab(daemons=False, planes=2)
    other = state.places(running.name, "h2").folder / "other.secret"
    keyfiles.write(other, identity.Secret(b"\x77" * 32))
    config = state.places(running.name, "h2").config
    config.write_text(config.read_text().replace("../fabric.secret", "other.secret"))
    for host in ("h1", "h2"):
        lab.start_daemon(running.name, host)

    def refused() -> bool:
        status = lab_hosts.status(running.name, "h1")
        return status is not None and any("h2 is not trusted" in r for r in status.reasons)

    eventually(refused, "the reason", SETTLED_S)
    found = peer(running, "h1", "h2")
    assert found is not None
    assert found["state"] == "connecting"
    assert found["key_age_s"] is None


# ---- removal


@pytest.mark.alone
def test_removed_peer_is_out_within_a_second(running: Lab) -> None:
    assert running.pings("h2", "10.99.0.1")
    config = state.places(running.name, "h1").config
    config.write_text(config.read_text() + '\n[[peer]]\nname = "h3"\n')
    began = time.monotonic()
    reload(running, "h1")
    eventually(lambda: peer(running, "h1", "h2") is None, "h2 is out", 1.0)
    assert time.monotonic() - began < 1.0
    assert not running.pings("h2", "10.99.0.1")
    assert running.pings("h3", "10.99.0.1")
    dropped = lab_hosts.counters(running.name, "h1")["channel_stranger"]
    mrcctl(running.name, "h2", "key", "rotate", "h1")
    assert lab_hosts.counters(running.name, "h1")["channel_stranger"] > dropped


# ---- keys of each host


def test_own_keys_and_a_changed_one(make_lab: MakeLab) -> None:
    running = make_lab(daemons=False, planes=2)
    private = {name: identity.private_key(os.urandom(32)) for name in ("h1", "h2", "other")}
    public = {name: identity.encode_key(identity.public_key(key)) for name, key in private.items()}

    def publish(keys: dict[str, str]) -> None:
        fabric = running.fabric
        hosts = tuple(replace(host, public_key=keys[host.name]) for host in fabric.hosts)
        text = description.dumps(replace(fabric, hosts=hosts))
        (state.folder(running.name) / "fabric.toml").write_text(text)

    publish(public)
    for host in ("h1", "h2"):
        place = state.places(running.name, host)
        keyfiles.write(place.folder / "host.key", private[host])
        text = place.config.read_text()
        place.config.write_text(
            text.replace('secret_file = "../fabric.secret"', 'private_key_file = "host.key"')
        )
        lab.start_daemon(running.name, host)
    settle(running)
    assert running.pings("h1", "10.99.0.2")
    # h1 trusts another key in h2's place: h2 is out at once, and back when it is trusted again.
    publish({**public, "h2": public["other"]})
    reload(running, "h1")
    eventually(lambda: (peer(running, "h1", "h2") or {})["state"] == "connecting", "out", 1.0)
    assert not running.pings("h2", "10.99.0.1")
    publish(public)
    reload(running, "h1")
    settle(running)
    assert running.pings("h2", "10.99.0.1")


def test_keys_are_introduced_and_given_up_while_it_runs(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2, insecure=True)
    secret = state.secret(running.name)
    keyfiles.write(secret, identity.Secret(b"\x55" * 32))
    with_keys, without = f'secret_file = "../{secret.name}"', "insecure = true"
    for old, new in ((without, with_keys), (with_keys, without)):
        for host in ("h1", "h2"):
            config = state.places(running.name, host).config
            config.write_text(config.read_text().replace(old, new))
            reload(running, host)

        def changed(host: str, secured: bool = new == with_keys) -> bool:
            status = lab_hosts.status(running.name, host)
            return status is not None and status.secured is secured and status.state == "ok"

        for host in ("h1", "h2"):
            eventually(lambda host=host: changed(host), f"{host}: {new}", 30)
        assert running.pings("h1", "10.99.0.2")


# ---- nothing secret is shown


def test_no_output_holds_key_material(running: Lab, tmp_path: Path) -> None:
    secret = keyfiles.read(state.secret(running.name))
    names = [host.name for host in running.fabric.hosts]
    hidden = [secret, identity.shared_psk(secret)]
    hidden += [identity.host_key(secret, name) for name in names]
    file = tmp_path / "bundle.tar.gz"
    done = mrcctl(running.name, "h1", "debug", "bundle", "--output", str(file), "--seconds", "0.2")
    assert done.returncode == 0, done.stderr
    shown = {"bundle": done.stdout.encode()}
    with tarfile.open(file) as archive:
        for member in archive.getmembers():
            data = archive.extractfile(member)
            assert data is not None
            shown[member.name] = data.read()
    commands = (["status"], ["peer", "list"], ["stats"], ["config", "show"], ["conn", "list"])
    for command in commands:
        for more in ([], ["--json"]):
            shown[" ".join(command)] = mrcctl(running.name, "h1", *command, *more).stdout.encode()
    for host in names:
        place = state.places(running.name, host)
        shown[f"log of {host}"] = place.log.read_bytes()
        shown[f"sessions of {host}"] = (place.folder / "sessions.json").read_bytes()
        pid = lab.daemon_pid(running.name, host)
        for entry in ("cmdline", "environ"):
            shown[f"{entry} of {host}"] = Path(f"/proc/{pid}/{entry}").read_bytes()
    asked = ["status", "peer list", *(f"log of {host}" for host in names)]
    assert all(len(shown[name]) > 100 for name in asked)
    assert any(name.endswith("/files.toml") for name in shown)
    for name, data in shown.items():
        for key in hidden:
            raw = key.reveal()
            forms = (raw, raw.hex().encode(), base64.b64encode(raw).rstrip(b"="))
            assert not any(form in data for form in forms), name
