# SPDX-License-Identifier: GPL-2.0-only
"""Connections to what cannot be reached end soon, and none that has begun ends for that."""

from __future__ import annotations

import errno
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab
from rigs.lab_hosts import counters, cut_off, eventually, status, until_ok
from rigs.traffic import Stream, open_in, transfer
from tests.net.test_daemon import log_of, start, stop
from tests.net.test_pods import BEHIND, running_pod

Lab = Any  # conftest.RunningLab
MakeLab = Any

NOBODY = ["10.99.0.77", "fd99::77"]
H2 = ["10.99.0.2", "fd99::2"]
SOON_S = 3.0
"""Ethernet gives an address that nobody has this time."""
FRAMINGS = pytest.mark.parametrize("module_lab", ["auto", "mrc"], indirect=True)


def outcome(running: Lab, source: str, address: str, port: int = 9) -> tuple[str, float]:
    """Connect; return the name of the error, "" for none, and the seconds until then."""
    made = open_in(running.namespace(source), address, socket.SOCK_STREAM)
    with made:
        made.settimeout(20)
        began = time.monotonic()
        try:
            made.connect((address, port))
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, repr(error)), time.monotonic() - began
        try:
            made.getpeername()
        except OSError:  # the kernel has told nobody why it ended
            return "ENOTCONN", time.monotonic() - began
        return "", time.monotonic() - began


def refused_soon(running: Lab, source: str, address: str) -> None:
    """Assert that new connections end with EHOSTUNREACH, and one of three within three seconds.

    The first message finds the socket in use now and then, where CPUs are short. Then it ends
    later, or without a reason.
    """
    found, reasons = [], []
    while len(found) < 3 and not any(seconds < SOON_S for seconds in found):
        why, seconds = outcome(running, source, address)
        reasons.append(why)
        if reasons == ["ENOTCONN"]:
            continue
        assert why == "EHOSTUNREACH", reasons
        found.append(seconds)
    assert min(found) < SOON_S


def silent(running: Lab, host: str) -> int:
    """Return how many peers of a host are silent."""
    now = status(running.name, host)
    return 0 if now is None else now.peers_silent


@FRAMINGS
@pytest.mark.parametrize("address", NOBODY, ids=["v4", "v6"])
def test_nobody_has_the_address(shared_lab: Lab, address: str) -> None:
    before = counters(shared_lab.name, "h1")
    refused_soon(shared_lab, "h1", address)
    after = counters(shared_lab.name, "h1")
    assert after["unreachable_tx"] > before["unreachable_tx"]


@FRAMINGS
@pytest.mark.parametrize("address", NOBODY, ids=["v4", "v6"])
def test_ping_says_that_the_host_is_unreachable(shared_lab: Lab, address: str) -> None:
    said = shared_lab.run("h1", "ping", "-n", "-c", "1", "-W", "3", address, check=False)
    assert "nreachable" in said, said


@FRAMINGS
def test_peer_that_is_silent(shared_lab: Lab) -> None:
    """New connections end, and an established one goes on when the peer is back."""
    running = shared_lab
    stream = Stream(running, "h1", "h2", H2[0]).start()
    stream.progress(1 << 20)
    with cut_off(running):
        eventually(lambda: silent(running, "h1"), "h2 is silent", 30)
        for address in H2:
            refused_soon(running, "h1", address)
        refused_soon(running, "h1", H2[0])  # now without a trial
        said = running.run("h1", "ping", "-n", "-c", "2", "-W", "3", H2[0], check=False)
        assert "nreachable" in said, said
        assert counters(running.name, "h1")["drop_unreachable"] > 0
    stream.progress(1 << 20, within_s=60)
    stream.finish()
    until_ok(running.name, "h1", 30)
    for address in H2:
        transfer(running, "h1", "h2", address, 1 << 20)


def test_peer_whose_daemon_died_takes_connections(make_lab: MakeLab) -> None:
    """Its data path works: it is silent, and answers."""
    running: Lab = make_lab(daemons=True, planes=2)
    until_ok(running.name, "h1", 30)
    stop(running, "h2", signal.SIGKILL)
    eventually(lambda: silent(running, "h1"), "h2 is silent", 30)
    for address in H2 * 4:
        transfer(running, "h1", "h2", address, 1 << 16)
        transfer(running, "h2", "h1", address.replace("2", "1"), 1 << 16)
    assert counters(running.name, "h1")["drop_unreachable"] == 0


def test_peer_that_was_never_heard(make_lab: MakeLab) -> None:
    """A connection that begins before the peer starts succeeds if the peer does so in time."""
    running: Lab = make_lab(daemons=True, planes=2)
    until_ok(running.name, "h1", 30)
    stop(running, "h2", signal.SIGTERM)
    stop(running, "h1", signal.SIGTERM)
    lab.start_daemon(running.name, "h1")
    eventually(lambda: status(running.name, "h1") is not None, "h1 answers", 30)
    eventually(lambda: outcome(running, "h1", H2[0])[0] == "EHOSTUNREACH", "connections end", 30)
    refused_soon(running, "h1", H2[0])
    assert counters(running.name, "h1")["drop_not_ready"] > 0
    start(running, "h2")
    transfer(running, "h1", "h2", H2[0], 1 << 16)


def during_a_restart(running: Lab, address: str) -> tuple[str, bool]:
    """Connect from h1 while h2 is restarted.

    Return the error, "" for none, and whether the restart took so long that h2 counted as silent.
    """
    seen = log_of(running, "h1").count('"peer.silent"')
    listener = open_in(running.namespace("h2"), address, socket.SOCK_STREAM)
    found: list[tuple[str, float]] = []
    with listener:
        listener.bind((address, 0))
        listener.listen()
        port = listener.getsockname()[1]
        stop(running, "h2", signal.SIGTERM)  # its mrc0 is gone, and its address
        asking = threading.Thread(
            target=lambda: found.append(outcome(running, "h1", address, port)), daemon=True
        )
        asking.start()
        start(running, "h2")
        asking.join(30)
    assert found, "the connection neither came about nor ended"
    return found[0][0], log_of(running, "h1").count('"peer.silent"') > seen


def test_connection_during_a_restart_of_the_peer_succeeds(make_lab: MakeLab) -> None:
    running: Lab = make_lab(daemons=True, planes=2)
    until_ok(running.name, "h1", 30)
    for _ in range(4):
        why, too_slow = during_a_restart(running, H2[0])
        if not too_slow:
            assert why == ""
            return
    pytest.skip("a restart takes more than five seconds here")


def test_pod_is_told_too(make_lab: MakeLab, tmp_path: Path) -> None:
    running: Lab = make_lab(daemons=True, routed=BEHIND)
    until_ok(running.name, "h1", 30)
    with running_pod(running, "h1", "pod1", BEHIND["h1"], tmp_path):
        refused_soon(running, "pod1", NOBODY[0])
