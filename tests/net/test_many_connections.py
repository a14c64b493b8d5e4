# SPDX-License-Identifier: GPL-2.0-only
"""Connections that begin to send at the same time, more than the congestion window has room for."""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from rigs import lab_hosts
from rigs.traffic import open_in

Lab = Any  # conftest.RunningLab
H2 = "10.99.0.2"
CONNECTIONS, SIZE = 64, 128 << 10
WITHIN_S = 60.0
NEARLY_OVER_MS = 150
"""What is left of a timer of 200 ms and a round trip when it is clear that nothing else helps."""
_TIMER = re.compile(r"\(persist,(\d+)ms,(\d+)\)")
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def slow_lab(module_labs: Callable[..., Lab]) -> Lab:
    """Return a lab of two planes of 50 Mb/s."""
    running = module_labs(daemons=True, planes=2, t1=1, mtu=1500, rate_mbps=50)
    for host in ("h1", "h2"):
        lab_hosts.until_ok(running.name, host, 60.0)
    return running


def standing_still(running: Lab) -> list[str]:
    """Return the connections of h1 with nothing on their way whose timer has run for a while."""
    shown = running.run("h1", "ss", "-tnoH", "state", "established")
    found = []
    for line in shown.splitlines():
        timer = _TIMER.search(line)
        if timer and (int(timer[1]) < NEARLY_OVER_MS or timer[2] != "0"):
            found.append(line)
    return found


def test_no_connection_stands_still_because_it_was_refused(slow_lab: Lab) -> None:
    """With nothing on its way no acknowledgement has TCP try again: a timer does, after 200 ms."""
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as arriving:
        listener = stack.enter_context(open_in(slow_lab.namespace("h2"), H2, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 4 * SIZE)  # no window is closed
        listener.bind((H2, 0))
        listener.listen(CONNECTIONS)
        senders = []
        for _ in range(CONNECTIONS):
            out = stack.enter_context(open_in(slow_lab.namespace("h1"), H2, socket.SOCK_STREAM))
            out.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 4 * SIZE)
            out.connect(listener.getsockname()[:2])
            inside = stack.enter_context(listener.accept()[0])
            inside.setblocking(False)
            arriving.register(inside, selectors.EVENT_READ)
            senders.append(out)
        for out in senders:
            out.setblocking(False)
            assert out.send(bytes(SIZE)) == SIZE
        got, refused = 0, set()
        ends, looks_at = time.monotonic() + WITHIN_S, time.monotonic()
        while got < CONNECTIONS * SIZE:
            assert time.monotonic() < ends, f"{got} bytes have arrived"
            for key, _events in arriving.select(0.1):
                with contextlib.suppress(BlockingIOError):
                    got += len(key.fileobj.recv(1 << 20))  # type: ignore[union-attr]
            if time.monotonic() > looks_at:
                refused.update(standing_still(slow_lab))
                looks_at = time.monotonic() + 0.02
    assert lab_hosts.counters(slow_lab.name, "h1")["tx_held"] > 0, "there was no room"
    assert refused == set()
