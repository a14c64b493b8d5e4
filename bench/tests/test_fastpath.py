# SPDX-License-Identifier: GPL-2.0-only
"""Tests of the fast path's benchmark: the parts it removes from programs, and its count of runs."""

from __future__ import annotations

import pytest

from bench.fastpath.large import Turn, lines
from bench.fastpath.loaded import mean_ns
from bench.fastpath.parts import PARTS, Part
from bench.instruments.flow import BenchFailed
from bench.instruments.progstats import Runs
from mrcd.datapath import loader


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_parts__are_in_the_source(part: Part) -> None:
    source = loader.source()
    assert part.of(source) != source
    assert part.program in source


@pytest.mark.parametrize("old", ["not there", "bpf_spin_lock(&tx->lock);"])
def test_parts__must_be_there_once(old: str) -> None:
    with pytest.raises(BenchFailed, match=r"a part: the source has \d+ times"):
        Part("mrc_spray", "a part", ((old, ""),)).of(loader.source())


def test_runs__have_a_mean_of_what_was_added() -> None:
    assert Runs(30, 9_000).since(Runs(20, 4_000)) == Runs(10, 5_000)
    assert Runs(10, 5_000).mean_ns == 500
    assert Runs(0, 0).mean_ns == 0


def test_large__what_programs_take_of_an_skb_and_of_a_packet() -> None:
    turn = Turn(skbs=100, packets=400, runs={"often": Runs(120, 60_000), "rarely": Runs(2, 20_000)})
    assert turn.means() == {"often": 500}
    found = {line.what: line.values for line in lines("MTU 1500", "sender", [turn])}
    assert found == {
        "sender, often, a run": (500.0,),
        "sender, packets in an skb": (4.0,),
        "sender, all programs, an skb": (800.0,),
        "sender, all programs, a packet": (200.0,),
    }


def test_mean__leaves_interrupts_out() -> None:
    assert mean_ns([10] * 38 + [20, 1_000_000]) == 10
    assert mean_ns([7]) == 7
