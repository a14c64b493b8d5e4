# SPDX-License-Identifier: GPL-2.0-only
"""Test the status of many peers, and which map entries are read for a list of them."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.config.config import Peer
from mrcd.fabric.hosts import Host
from mrcd.handshake import State
from mrcd.report import peers
from mrcd.report.peers import MANY, _bits, _runs, reasons, warnings

SECOND = 1_000_000_000
NOW = 10_000 * SECOND


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: NOW)


def engine(**states: State) -> Any:
    """Return the parts of an engine that a report reads; each peer was heard 157 s ago."""
    known = {
        name: SimpleNamespace(
            session=SimpleNamespace(state=state, heard_ns=NOW - 157 * SECOND),
            narrow={},
            loses_cells=None,
        )
        for name, state in states.items()
    }
    return SimpleNamespace(
        config=SimpleNamespace(peers=[SimpleNamespace(name=name) for name in states]),
        planes=SimpleNamespace(ground=None),
        counts=SimpleNamespace(warnings=[]),
        peers=SimpleNamespace(
            all=known,
            refusals={},
            failed={},
        ),
    )


def test_reasons__each_peer_has_a_line_where_they_are_few() -> None:
    found = engine(h2=State.ESTABLISHED, h3=State.SILENT, h4=State.OFFERING, h5=State.BOUND)
    assert reasons(found) == [
        "peer h3 has not been heard for 2 min 37 s",
        "peer h4 has not answered yet",
        "peer h5 has not answered yet",
    ]


@pytest.mark.parametrize(
    ("state", "what"),
    [
        (State.SILENT, "have not been heard for 2 min 37 s or longer"),
        (State.OFFERING, "have not answered yet"),
    ],
)
def test_reasons__many_are_counted(state: State, what: str) -> None:
    names = [f"h{i}" for i in range(2, MANY + 2)]
    assert len(reasons(engine(**dict.fromkeys(names, state)))) == MANY
    names.append("h99")
    (line,) = reasons(engine(**dict.fromkeys(names, state)))
    assert line == f"{MANY + 1} peers (h2, h3, h4 and {MANY - 2} more) {what}"


def test_reasons__a_peer_whose_qp_gave_up_has_one_reason() -> None:
    found = engine(h2=State.OFFERING, h3=State.OFFERING)
    found.peers.failed["h2"] = "QP 1 gave up: nothing was acknowledged"
    assert reasons(found) == [
        "peer h2: QP 1 gave up: nothing was acknowledged; new QPs are set up",
        "peer h3 has not answered yet",
    ]
    names = [f"h{i}" for i in range(MANY + 1)]
    found = engine(**dict.fromkeys(names, State.OFFERING))
    found.peers.failed |= dict.fromkeys(names, "QP 0 gave up: why")
    (line,) = reasons(found)
    assert line == f"{MANY + 1} peers (h0, h1, h2 and {MANY - 2} more): QP 0 gave up: why"


def test_reasons__says_how_long_each_silent_peer_was_not_heard() -> None:
    found = engine(h2=State.SILENT, h3=State.SILENT)
    found.peers.all["h3"].session.heard_ns = NOW - 5 * SECOND
    assert reasons(found) == [
        "peer h2 has not been heard for 2 min 37 s",
        "peer h3 has not been heard for 5.0 s",
    ]


def test_reasons__of_many_silent_peers_say_the_shortest_time() -> None:
    names = [f"h{i}" for i in range(MANY + 1)]
    found = engine(**dict.fromkeys(names, State.SILENT))
    found.peers.all["h4"].session.heard_ns = NOW - 40 * SECOND
    (line,) = reasons(found)
    assert line.endswith("have not been heard for 40 s or longer")


def test_warnings__name_a_key_on_two_hosts_before_other_files() -> None:
    found = engine(h2=State.ESTABLISHED, h3=State.ESTABLISHED)
    found.peers.used_twice = {"h3": "two hosts use the key of peer h3"}
    found.peers.other_files = {"h2": "h2 has another file"}
    assert warnings(found) == ["two hosts use the key of peer h3", "h2 has another file"]
    found.peers.used_twice = {f"h{i}": "two hosts use a key" for i in range(MANY + 1)}
    found.peers.other_files = {}
    assert warnings(found) == [
        f"{MANY + 1} peers (h0, h1, h2 and {MANY - 2} more): two hosts use a key"
    ]


@given(st.sets(st.integers(0, 60)))
def test_runs__are_all_numbers_without_gaps(numbers: set[int]) -> None:
    runs = list(_runs(sorted(numbers)))
    assert [n for run in runs for n in run] == sorted(numbers)
    assert all(a.stop < b.start for a, b in itertools.pairwise(runs))


def test_bits__are_the_planes_of_a_mask() -> None:
    assert _bits(0b1011) == [0, 1, 3]
    assert _bits(0) == []


def test_warnings__name_planes_that_carry_shorter_packets() -> None:
    found = engine(h2=State.ESTABLISHED, h3=State.ESTABLISHED)
    found.config.fabric = SimpleNamespace(mtu=9000)
    found.peers.used_twice = found.peers.other_files = {}
    h2, h3 = found.peers.all["h2"], found.peers.all["h3"]
    h2.narrow, h3.narrow = {0: 1500}, {0: 1500, 1: 1514}
    h2.loses_cells, h3.loses_cells = False, True
    said = [line.partition(" (")[0] for line in warnings(found)]
    assert said == [
        "plane 0 carries packets of 1,500 bytes to 2 peers, h2 first; its NICs say 9,000",
        "plane 1 carries packets of 1,514 bytes to peer h3; its NICs say 9,000",
        "data to h3 goes in MRC's packets, because cells are lost on every plane",
        "data to h2 goes in MRC's packets, because cells are lost on every plane from there",
    ]


def test_hosts_that_hand_packets_on_are_named() -> None:
    """By the peer that has the address; one that is no peer by that."""
    near = Host("b", 1, 1, (), endpoints=(ip_address("fe80::b"), ip_address("::")))
    far = Host("c", 1, 1, (), endpoints=tuple(map(ip_address, ("fe80::c", "fe80::d", "::"))),
               vias=tuple(map(ip_address, ("fe80::b", "fe80::e", "::"))))  # fmt: skip
    config: Any = SimpleNamespace(peers=[Peer(near, ()), Peer(replace(far, name="c"), ())])
    assert peers._through(config, config.peers[0]) is None
    assert peers._through(config, config.peers[1]) == ["b", "fe80::e", ""]
    assert [peers._end(end) for end in near.endpoints] == ["fe80::b", ""]
