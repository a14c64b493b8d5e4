# SPDX-License-Identifier: GPL-2.0-only
"""Tests of the overload benchmark: its roles, its command line, and what it reads of queues."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.instruments import backlog
from bench.instruments.experiment import Figures
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import MS
from bench.instruments.result import Line
from bench.transport import overload
from bench.transport.overload import Load, Outcome, Roles, percentile, roles
from cli.lab import topology
from mrcd.fabric import description


def described(kind: int, *attributes: tuple[int, bytes]) -> bytes:
    """Return the kernel's answer with these attributes, padded to four bytes."""
    body = struct.pack("=BxxxiIII", 0, 7, 0x80010000, 0xFFFFFFFF, 2)
    for number, value in attributes:
        body += struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 99) + body


STATS = struct.pack("=QIIIIIII", 1 << 40, 12, 3, 4, 0, 0, 38, 53_444)


def test_backlog__of_the_root_qdisc() -> None:
    answer = described(36, (1, b"tbf\0"), (12, b"\0"), (3, STATS))
    assert backlog.waiting(answer) == 53_444


@pytest.mark.parametrize("answer", [described(2, (3, STATS)), described(36, (1, b"noqueue\0"))])
def test_backlog__an_answer_without_statistics(answer: bytes) -> None:
    with pytest.raises(BenchFailed, match="has it a rate"):
        backlog.waiting(answer)


def test_backlog__the_kernel_takes_the_request_for_one_port() -> None:
    words = backlog.request(7)
    length, kind, flags, _, _ = struct.unpack_from("=IHHII", words)
    assert (length, kind, flags) == (len(words), 38, 9)
    assert struct.unpack_from("=BxxxiIII", words, 16) == (socket.AF_UNSPEC, 7, 0, 0xFFFFFFFF, 0)


def test_backlog__in_ms_of_the_link_without_the_edges() -> None:
    rows = np.array([[0, 9, 9], [10, 6250, 0], [20, 62_500, 12_500], [30, 9, 9]])
    assert backlog.in_ms(rows, 50, 10, 30).tolist() == [1, 0, 10, 2]
    assert backlog.in_ms(rows, 50, 40, 50).tolist() == []


def test_last_hops__one_in_each_plane() -> None:
    plan = topology.plan(description.generate(name="x", hosts=4, hosts_per_t0=2, planes=2, t1=2))
    assert backlog.last_hops(plan, "h4") == [("x-p0t0-2", "port2"), ("x-p1t0-2", "port2")]
    assert len(backlog.last_hops(plan)) == 8


@pytest.mark.parametrize(
    ("senders", "hosts_per_t0", "expected"),
    [
        pytest.param(2, 3, Roles(("h3", "h5"), "h1", "h4", "h2"), id="from the second T0"),
        pytest.param(7, 4, Roles(("h3", "h4", *(f"h{i}" for i in range(6, 11))), "h1", "h5", "h2"),
                     id="among other senders"),
        pytest.param(2, 9, Roles(("h3", "h4"), "h1", "h5", "h2"), id="all on one T0"),
        pytest.param(2, 1, Roles(("h4", "h5"), "h1", "h3", "h2"), id="a T0 for each"),
    ],
)  # fmt: skip
def test_roles__the_victim_shares_switches_but_no_host(
    senders: int, hosts_per_t0: int, expected: Roles
) -> None:
    assert roles(senders, hosts_per_t0, victim=True) == expected


def test_roles__hosts_2_and_up_send_without_a_victim() -> None:
    assert roles(3, 3, victim=False) == Roles(("h2", "h3", "h4"))


@pytest.mark.parametrize(("which", "expected"), [(0, 0.0), (50, 50.0), (99, 99.0), (100, 100.0)])
def test_percentile(which: float, expected: float) -> None:
    assert percentile(np.arange(101, dtype=np.float64), which) == expected


def test_percentile__of_nothing() -> None:
    assert percentile((), 99) is None


SOME = Outcome(
    rates=(30.0, 10.0), pings=(1.0, 2.0, 3.0), unanswered=1, sent=200, repaired=3, held=50,
    nacks=4, trimmed=5, refused=6, dropped=7, queue=None, victim=None, stolen=0.01,
)  # fmt: skip


def outcome(**more: Any) -> dict[str, tuple[float, ...]]:
    """Return the figures of a run of two senders, by name."""
    figures = Figures("overload", "2 senders")
    replace(SOME, **more).note(figures)
    return {line.what: line.values for line in figures.lines()}


def test_outcome__shares_and_parts() -> None:
    found = outcome()
    assert found["goodput"] == (40.0,)
    assert (found["slowest of a fair share"], found["fastest of a fair share"]) == ((0.5,), (1.5,))
    assert (found["sent again"], found["waited for the window"]) == ((1.5,), (25.0,))
    assert found["ping p50"] == (2.0,)
    assert not any("queue" in what or "victim" in what for what in found)


def test_outcome__queue_and_victim() -> None:
    found = outcome(queue=np.arange(101, dtype=np.float64), victim=(20.0, 15.0))
    assert found["queue at the last hop, p50"] == (50.0,)
    assert found["queue at the last hop, p99"] == (99.0,)
    assert found["victim beside the load, of alone"] == (75.0,)
    assert outcome(victim=(0.0, 0.0))["victim beside the load, of alone"] == ()


@pytest.mark.parametrize(
    ("fails", "goodput", "failed"),
    [((), (40.0,) * 3, ()), ((1,), (40.0,) * 2, (1.0,)), ((0, 1), (40.0,), (2.0,))],
)
def test_rounds__one_that_fails_does_not_end_the_rest(
    fails: tuple[int, ...],
    goodput: tuple[float, ...],
    failed: tuple[float, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {line.what: line.values for line in taken(fails, monkeypatch)}
    assert found["goodput"] == goodput
    assert found.get("rounds that failed", ()) == failed


def test_rounds__all_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchFailed, match="no flow"):
        taken((0, 1, 2), monkeypatch)


def taken(fails: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    """Return the figures of three rounds, of which some fail."""
    turns = iter(range(3))

    def run(*_: object) -> Outcome:
        if next(turns) in fails:
            raise BenchFailed("no flow")
        return SOME

    monkeypatch.setattr(overload, "run", run)
    monkeypatch.setattr(overload, "_SETTLE_S", 0)
    load = Load(2, "udp", 120, 3000, 8)
    return list(overload._rounds("x", load, roles(2, 3, False), Figures("", ""), 3))


def test_rate__is_what_arrived_not_what_was_sent() -> None:
    """iperf3 calls nothing lost of what is missing at the end."""
    end = {
        "sum": {"bits_per_second": 120e6, "lost_percent": 0},
        "sum_received": {"bits_per_second": 7e6},
    }
    assert overload._rate(json.dumps({"end": end}).encode()) == 7
    with pytest.raises(BenchFailed, match="control socket"):
        overload._rate(b'{"error": "control socket has closed"}')


def test_edges__of_short_loads_are_shorter() -> None:
    assert overload._edge_ns(8) == 1000 * MS
    assert overload._edge_ns(2) == 500 * MS


def test_arguments__an_incast_in_every_kind_of_lab() -> None:
    words = "--senders 7 --transport udp tcp --trim off on --victim 20 --json f"
    args = overload.arguments().parse_args(words.split())
    assert (args.senders, args.transport, args.trim) == ([7], ["udp", "tcp"], ["off", "on"])
    assert (args.congestion_control, args.victim, args.json.name) == (["on", "off"], 20.0, "f")


def test_arguments__without_any() -> None:
    args = overload.arguments().parse_args([])
    assert (args.senders, args.transport, args.trim, args.victim) == ([5], ["udp"], ["off"], 0)
    assert args.json is None
