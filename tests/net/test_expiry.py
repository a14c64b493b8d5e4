# SPDX-License-Identifier: GPL-2.0-only
"""Datagrams that an outage has made old are not delivered after it, and nothing waits for them."""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Any

import pytest

from rigs.lab_hosts import counters, cut_off, eventually, until_ok
from rigs.traffic import Stream, open_in

Lab = Any  # conftest.RunningLab

H2 = "10.99.0.2"
BOUND_S = 2.0  # the default of datagram_max_ms
LATE_S = 0.5
"""What is sent in time may wait for what was sent before it, longer where CPUs are short."""
INTERVAL_S = 0.01
_SO_TIMESTAMPNS, _SO_RCVBUFFORCE = 35, 33
_STAMP = struct.Struct("=qq")
_BODY = struct.Struct("=Id")


class Numbers:
    """A sender of numbered datagrams at a fixed rate, and what has arrived of them."""

    def __init__(self, running: Lab) -> None:
        self._in = open_in(running.namespace("h2"), H2, socket.SOCK_DGRAM)
        self._in.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        # What waited through an outage arrives at once.
        self._in.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
        self._in.bind((H2, 0))
        self._in.settimeout(0.5)
        self._out = open_in(running.namespace("h1"), H2, socket.SOCK_DGRAM)
        self._out.connect(self._in.getsockname()[:2])
        self._stop, self._end = threading.Event(), threading.Event()
        self.sent = 0
        self.arrived: list[int] = []
        self.ages: list[float] = []
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)
        ]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            try:
                self._out.send(_BODY.pack(self.sent, time.time()))
            except OSError:
                continue  # no room; the number is still to be sent
            self.sent += 1

    def _receive(self) -> None:
        while not self._end.is_set():
            try:
                data, ancillary, _flags, _sender = self._in.recvmsg(100, 100)
            except TimeoutError:
                continue
            number, at = _BODY.unpack(data)
            ((_level, _kind, raw),) = ancillary
            seconds, nanoseconds = _STAMP.unpack(raw)  # when the kernel had it
            self.ages.append(seconds + nanoseconds / 1e9 - at)
            self.arrived.append(number)

    def until(self, number: int, what: str) -> None:
        """Wait until a number has arrived."""
        eventually(lambda: self.arrived and self.arrived[-1] >= number, what, 30)

    def stop(self) -> None:
        """End both threads."""
        self._stop.set()
        self._threads[0].join(5)
        last = self.sent - 1
        self.until(last, "the last datagram arrives")
        self._end.set()
        self._threads[1].join(5)
        self._in.close()
        self._out.close()


@pytest.mark.parametrize("module_lab", ["auto", "mrc"], indirect=True)
def test_old_datagrams_are_not_delivered_after_an_outage(shared_lab: Lab) -> None:
    running = shared_lab
    before = counters(running.name, "h1"), counters(running.name, "h2")
    numbers = Numbers(running)
    numbers.until(100, "datagrams arrive")
    stream = Stream(running, "h1", "h2", H2).start()
    stream.progress(1 << 20)
    with cut_off(running):
        dead = numbers.sent
        eventually(lambda: numbers.sent >= dead + 400, "four seconds pass", 30)
    back = numbers.sent
    numbers.until(back + 200, "datagrams arrive again")
    numbers.stop()
    stream.progress(1 << 20, within_s=60)
    stream.finish()
    rose = [
        {key: now[key] - then[key] for key in now}
        for now, then in zip(
            (counters(running.name, "h1"), counters(running.name, "h2")), before, strict=True
        )
    ]
    assert numbers.arrived == sorted(set(numbers.arrived))
    assert max(numbers.ages) < BOUND_S + LATE_S
    lost = set(range(numbers.sent)) - set(numbers.arrived)
    assert lost, "the outage was too short"
    assert all(dead - 50 <= number < back for number in lost), sorted(lost)
    full = sum(rose[0][f"drop_{what}"] for what in ("window", "backlog", "ring", "early"))
    given_up = rose[1]["hole_skipped"]  # gaps that the outage left open
    assert rose[0]["drop_expired"] + full + given_up >= len(lost)
    assert rose[0]["drop_expired"] > 0
    assert 0 < rose[1]["stub_rx"] <= rose[0]["drop_expired"]
    until_ok(running.name, "h1", 30)
