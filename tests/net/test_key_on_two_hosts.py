# SPDX-License-Identifier: GPL-2.0-only
"""Test a third host with the key and the state of one of two, as a cloned machine has them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator

import pytest

from rigs.bare_hosts import (
    HOSTS,
    INNER,
    MIDDLE,
    STARTED_S,
    Bare,
    address_of,
    bridge,
    nic,
)
from rigs.lab_hosts import eventually
from rigs.traffic import Stream
from tests.net.test_anywhere import PLANES, both_ways

pytestmark = pytest.mark.timeout(600)

BACK_S = 60.0
"""How long the two may take to find each other; 13 s on a quiet machine."""
CLONE = "c"


@pytest.fixture
def bare() -> Iterator[Bare]:
    """Build a and b, which reach each other, and c, which has b's key and b's state."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    bare = Bare(f"y{os.getpid()}k", PLANES)
    try:
        for host in (*HOSTS, CLONE):
            bare.add(host)
        bare.write_secret()
        bridge(bare)
        for plane in range(PLANES):
            bare.cable(CLONE, nic(plane), MIDDLE, f"{CLONE}{plane}")
            bare.ip(MIDDLE, f"link set {CLONE}{plane} master br{plane}")
        for host, other in (("a", "b"), ("b", "a")):
            bare.configure(host, [address_of(bare, other, k) for k in range(PLANES)])
        bare.begin()
        shutil.copytree(
            bare.folder / "b", bare.folder / CLONE, ignore=shutil.ignore_patterns("*.sock", "*.log")
        )
        yield bare
    finally:
        bare.close()


def endpoints(bare: Bare) -> list[str]:
    """Return where a believes b to be."""
    return [each.partition("%")[0] for each in bare.peer("a").endpoints]


def places(bare: Bare, host: str) -> list[str]:
    return [bare.link_local(host, nic(plane)) for plane in range(PLANES)]


def test_session_goes_on_beside_a_clone_that_is_named(bare: Bare) -> None:
    stream = Stream(bare, "a", "b", INNER["b"]).start()
    stream.progress(1 << 20)
    before = bare.log("a")
    bare.start(CLONE)

    def named() -> bool:
        status = bare.status("a")
        lines = [] if status is None else status.warnings
        return any(
            f"two hosts use the key of peer b: one is heard at {one}, another asks from {other} " in
            line
            for line in lines
            for one, other in zip(places(bare, "b"), places(bare, CLONE), strict=True)
        )  # fmt: skip

    eventually(named, "a names the two hosts", STARTED_S)
    stream.progress(1 << 20)
    bare.stop(CLONE)
    stream.progress(1 << 20)
    stream.finish(60)
    since = bare.log("a").removeprefix(before)
    assert "peer.key_used_twice" in since
    for event in ("peer.silent", "peer.restarted", "peer.moved"):
        assert event not in since
    assert endpoints(bare) == places(bare, "b")
    bare.settle()
    both_ways(bare, 1 << 20)


def test_peer_comes_back_after_a_clone_took_its_place(bare: Bare) -> None:
    """The clone takes over while b's daemon stands still, and ends after b's daemon goes on."""
    bare.processes["b"].send_signal(signal.SIGSTOP)
    try:
        bare.start(CLONE)
        there = places(bare, CLONE)
        eventually(
            lambda: endpoints(bare) == there and bare.peer("a").state == "established",
            "a is established with the clone", STARTED_S,
        )  # fmt: skip
    finally:
        bare.processes["b"].send_signal(signal.SIGCONT)
    bare.stop_hard(CLONE)
    eventually(
        lambda: endpoints(bare) == places(bare, "b") and bare.ok("a") and bare.ok("b"),
        "a and b are established with each other", BACK_S,
    )  # fmt: skip
    bare.settle()
    both_ways(bare, 1 << 20)
