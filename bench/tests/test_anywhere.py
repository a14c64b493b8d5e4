# SPDX-License-Identifier: GPL-2.0-only
"""Tests of the benchmark without a fabric: its command line, its ratios, and what it counts."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from bench.compare import anywhere, programs
from bench.compare.anywhere import PLAIN, SETTINGS, Counts, Multipath, Turns, Way
from bench.instruments import flow
from bench.instruments.experiment import Figures
from bench.instruments.flow import BenchFailed
from mrcd.config import config


def values(figures: Figures) -> dict[str, tuple[float, ...]]:
    return {line.what: line.values for line in figures.lines()}


@pytest.mark.parametrize("envelope", SETTINGS)
def test_settings__are_valid(envelope: str, tmp_path: Path) -> None:
    file = tmp_path / "mrcd.toml"
    file.write_text(
        '[host]\nname = "a"\n[mrc0]\naddresses = ["10.99.0.1/24"]\n[keys]\nsecret_file = "s"\n'
        f'{SETTINGS[envelope]}[[plane]]\ninterface = "eth1"\n'
        '[[peer]]\nname = "b"\nendpoints = ["2001:db8::2"]\nallowed = ["10.99.0.2/32"]\n'
    )
    found = config.load(file)
    assert (found.cells, found.cell_udp) == (envelope != "mrc", envelope == "udp")


def test_envelopes__that_do_not_fit_are_left_out() -> None:
    assert anywhere.unfit("router4", "ipv6")
    assert not anywhere.unfit("router4", "udp")
    assert not anywhere.unfit("router6", "ipv6")


def test_ratios__are_of_plain_tcp_in_the_same_round() -> None:
    here = Turns()
    for plain, ours in ((10.0, 5.0), (20.0, 15.0)):
        anywhere.note_ratios(here, "a case", {"mrc0": ours, PLAIN: plain})
    assert values(here.note("a case", "mrc0")) == {f"of {PLAIN}": (0.5, 0.75)}
    assert values(here.note("a case", PLAIN)) == {}


def test_counts__packets_of_a_cell_and_skbs() -> None:
    before = Counts({"tx_packets": 100, "tx_cells": 10, "rtx_fifo": 1}, 5, 7)
    after = Counts({"tx_packets": 1100, "tx_cells": 50, "rtx_fifo": 2, "rtx_nack": 1}, 25, 37)
    figures = Figures("", "")
    anywhere.note_counts(figures, before, after)
    assert values(figures) == {
        "packets a cell": (25.0,),
        "skbs received for one sent": (1.5,),
        "sent again, of a million packets": (2000.0,),
    }


def test_counts__without_cells() -> None:
    figures = Figures("", "")
    anywhere.note_counts(figures, Counts({}, 0, 0), Counts({"tx_packets": 3}, 3, 3))
    assert values(figures)["packets a cell"] == ()


def test_goodput__connections_that_break_are_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        broken = 2

    class Hosts:
        processes = ()
        prefix = "x"

    monkeypatch.setattr(anywhere.traffic, "run", lambda *_: Broken())
    here = Turns(hosts={PLAIN: Hosts()}, ways={PLAIN: Way(PLAIN, {})})  # type: ignore[dict-item]
    with pytest.raises(BenchFailed, match="2 connections broke"):
        anywhere.goodput(here, PLAIN, Figures("", ""), 4, 1)


def test_ways__lead_to_the_address_of_a_host() -> None:
    route = Multipath("MPTCP", {"a": "fd00::1", "b": "fd00::2"}).between("x", "a", "b")
    assert (route.address, route.mptcp) == ("fd00::2", True)
    assert not Way(PLAIN, {"a": "", "b": ""}).between("x", "a", "b").mptcp


def test_arguments() -> None:
    args = anywhere.arguments().parse_args([])
    assert (args.between, args.mtu, args.connections) == (["router4"], [1500, 9000], [1, 4])
    assert (args.envelopes, args.wire, args.rounds, args.json) == (
        ["udp"],
        ["whole", "cut"],
        5,
        None,
    )
    words = "--between bridge router6 --envelopes udp ipv6 mrc --wire cut --json f"
    args = anywhere.arguments().parse_args(words.split())
    assert (args.between, args.wire) == (["bridge", "router6"], ["cut"])
    assert (args.envelopes, args.json.name) == (["udp", "ipv6", "mrc"], "f")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("mptcp", [(), ("mptcp",)], ids=["tcp", "mptcp"])
@pytest.mark.parametrize(("size", "connections"), [(64, 1), (64, 9), (65536, 9)])
def test_traffic__requests_go_by_both_families(
    address: str, mptcp: tuple[str, ...], size: int, connections: int, tmp_path: Path
) -> None:
    """Requests and their answers, by the program that makes the traffic."""
    if mptcp and not flow.has_mptcp():
        pytest.skip("this kernel has no MPTCP")
    with socket.create_server((address, 0), family=_family(address)) as free:
        port = free.getsockname()[1]
    record = tmp_path / "took"
    program, at = str(programs.traffic()), [*mptcp, "at", address]
    what = [str(size), str(connections)]
    answering = subprocess.Popen([program, "answer", str(port), *what, *at], stdout=subprocess.PIPE)
    timer = threading.Timer(30, answering.kill)
    timer.start()
    with answering:
        assert answering.stdout is not None
        assert b"ready" in answering.stdout.readline()
        asked = subprocess.run(
            [program, "ask", str(port), "200", *what, str(record), *at],
            check=True, timeout=30, capture_output=True,
        )  # fmt: skip
        answered = json.loads(answering.stdout.readline())["answered"]
    timer.cancel()
    said = json.loads(asked.stdout.splitlines()[-1])
    pairs = np.fromfile(record, dtype=np.int64).reshape(-1, 2)
    assert connections <= len(pairs) == said["asked"] <= answered
    assert (pairs[:, 0] - pairs[:, 1] >= said["began_ns"]).all()  # no request is older than its run


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
