# SPDX-License-Identifier: GPL-2.0-only
"""Tests of the account of a cell: variants, arithmetic, the ceiling, a CPU for each host."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bench.compare import ceiling, placement, traffic, unlimited
from bench.compare.ceiling import Ceiling
from bench.compare.placement import Spent
from bench.compare.traffic import Connection, Traffic
from bench.fastpath import account
from bench.fastpath.account import (
    KNOCK_OUTS,
    PLAIN,
    WHOLE,
    Cost,
    KnockOut,
    Side,
    Swap,
    changed_sources,
    lines,
    saved,
    shares,
)
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import Arrivals, S
from bench.instruments.processor import Spending, handled
from bench.instruments.result import Line
from cli.lab import topology
from mrcd.fabric import description, shape, usid
from mrcd.fabric.routing import Routing
from mrcd.wire import sources

ROOT = sources.bpf_dir().parent
SWAPS = [
    pytest.param(knock_out.swaps, id=knock_out.name) for knock_out in KNOCK_OUTS if knock_out.swaps
]


@pytest.mark.parametrize("swaps", SWAPS)
def test_swaps__are_in_the_sources_once(swaps: Sequence[Swap]) -> None:
    texts: dict[str, str] = {}
    for swap in swaps:
        before = texts.setdefault(swap.file, (ROOT / swap.file).read_text())
        texts[swap.file] = swap.of(before)
        assert texts[swap.file] != before


@pytest.mark.parametrize(("old", "times"), [("not there", 0), ("count(", 2)])
def test_swaps__must_be_there_once(old: str, times: int) -> None:
    with pytest.raises(BenchFailed, match=rf"cell\.c has {times} times"):
        Swap("cell.c", old, "").of("count(1); count(2);")


def test_variants__have_names_of_their_own_and_say_what_they_break() -> None:
    names = [knock_out.name for knock_out in KNOCK_OUTS]
    assert len({*names, WHOLE, PLAIN}) == len(names) + 2
    silent = {each.name for each in KNOCK_OUTS if each.swaps and not each.breaks}
    assert silent == {
        "every packet's entry written twice",
        "a tenth of the SACKs and of the questions for them",
    }


def test_sources__daemons_get_a_changed_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "before")
    swap = Swap("bpf/cell.h", "#define TCP_FIN 0x01", "#define TCP_FIN 0x41")
    with changed_sources([swap]) as folder:
        assert os.environ["PYTHONPATH"] == str(folder)
        assert "TCP_FIN 0x41" in (folder / swap.file).read_text()
        assert (folder / "mrcd" / "wire" / "sources.py").is_file()
    assert os.environ["PYTHONPATH"] == "before"
    assert not folder.exists()
    assert "TCP_FIN 0x41" not in (ROOT / swap.file).read_text()


def costs(*us: float) -> list[Cost | None]:
    return [Cost(320 / each, each, each / 4, 3 * each / 4, 30_000, 0, 0) for each in us]


FOUND: account.Found = {
    WHOLE: costs(30, 32),
    "less": costs(27, 29),
    "twice": costs(32, 36),
    PLAIN: costs(20, 22),
}
LESS = Side("less", "x", account.Mrc0(), KnockOut("less"))
TWICE = Side("twice", "x", account.Mrc0(), KnockOut("twice", adds=True))


def test_saved__is_of_the_same_round_and_turned_round_for_what_adds() -> None:
    assert saved(FOUND, "less", "us", adds=False) == [3, 3]
    assert saved(FOUND, "less", "receiver_us", adds=False) == [2.25, 2.25]
    assert saved(FOUND, "twice", "us", adds=True) == [2, 4]
    assert shares(FOUND, "less", LESS) == [30, 30]
    assert shares(FOUND, "twice", TWICE) == [20, 40]


def test_lines__ends_are_told_apart_only_where_each_host_has_a_cpu() -> None:
    sides = {
        WHOLE: Side(WHOLE, "x", account.Mrc0(), KnockOut(WHOLE)),
        "less": Side("less", "x", account.Mrc0(), KnockOut("less", breaks="repair")),
        "twice": TWICE,
        PLAIN: Side(PLAIN, "bare", account.OffloadsCable()),
    }

    def told(where: str, name: str) -> dict[str, Line]:
        return {line.what: line for line in lines(where, FOUND, sides) if name in line.where}

    apart, free = account.PLACES
    assert told(free, "less")["saves"].values == (3, 3)
    assert told(free, "less (breaks: repair)")["share of the difference"].values == (30, 30)
    assert "saves, sender" not in told(free, "less")
    assert told(apart, "less")["saves, sender"].values == (0.75, 0.75)
    assert "share of the difference" not in told(free, PLAIN)
    assert not any(what.startswith("saves") for what in told(free, f": {WHOLE}"))


def test_lines__a_variant_that_breaks_is_shown() -> None:
    found: account.Found = {**FOUND, "less": [None, *costs(29)], "twice": [None, None]}
    sides = {name: Side(name, "x", account.Mrc0(), KnockOut(name)) for name in found}
    told = [line for line in lines(account.PLACES[1], found, sides) if line.what == "goodput"]
    assert [line.missing for line in told] == [0, 1, 2, 0]
    assert told[2].values == ()
    assert saved(found, "less", "us", adds=False) == [3]


def flowed(size: int) -> Traffic:
    """Return the record of a connection that received `size` bytes in its first second."""
    times = np.array([S // 2], dtype=np.int64)
    arrivals = Arrivals(times, np.array([size], dtype=np.int64))
    one = Connection(flow=0, sent=size, received=size, error=0, arrivals=arrivals)
    return Traffic(0, S, (one,), (), ((0, 0), (S, 3)), busy=0.5)


def test_spent__by_both_hosts_and_by_one() -> None:
    spent = Spent(4e9, 2.0, (0.9, 0.3), (0.6, 0.2), flowed(1))
    assert spent.gbps == 16
    assert spent.us(40_000) == pytest.approx(20)
    assert spent.us(40_000, "h2") == pytest.approx(5)
    assert spent.gigabytes() == pytest.approx(2)
    assert spent.gigabytes("h2") == pytest.approx(8)
    cost = account.cost(spent, 30_000, 0.5)
    assert (cost.sender_us, cost.receiver_us) == (pytest.approx(15), pytest.approx(5))
    assert cost.resent == 3


def test_speed__gigabytes_of_a_cpu_second() -> None:
    assert unlimited.of_a_second(flowed(3 * 10**9), cpus=2) == pytest.approx(3)


def test_processor__seconds_of_each_cpu_in_interrupts() -> None:
    before = [[0] * 8, [10] * 8]
    after = [[50, 0, 20, 900, 5, 1, 9, 15], [20, 10, 10, 10, 10, 10, 30, 10]]
    assert handled(before, after, 100) == (0.1, 0.2)


def test_processor__what_this_process_spends() -> None:
    spending = Spending([[os.getpid()], []])
    deadline_s = time.monotonic() + 10
    while not spending.processes_s()[0] and time.monotonic() < deadline_s:
        sum(range(10_000))
    mine, nobodys = spending.processes_s()
    assert 0 < mine < 11
    assert nobodys == 0
    assert len(spending.interrupts_s()) == os.cpu_count()


def test_placement__each_host_of_the_pair_has_a_cpu() -> None:
    assert sorted(placement.APART) == ["h1", "h2"]
    assert len(set(placement.APART.values())) == 2
    assert traffic.Flow("h1", "h2") in account._FLOWS


@pytest.mark.parametrize("mode", ["srv6", "ecmp"])
def test_ceiling__by_uSID_lists_or_by_cables(mode: str) -> None:
    fabric = (
        description.generate(name="x", planes=2, t1=2)
        if mode == "srv6"
        else shape.generate(name="x", planes=2, t1=1, hosts_per_t0=2, routing=Routing("ecmp"))
    )
    plan = topology.plan(fabric)
    one, other = fabric.hosts
    there, back = ceiling.planes(plan, one), ceiling.planes(plan, other)
    assert [each.number for each in there] == [0, 1]
    macs = {(end.node, end.ifname): end.mac for c in plan.cables for end in (c.near, c.far)}
    assert [each.source for each in there] == [macs["h1", f"plane{k}"] for k in (0, 1)]
    if mode == "ecmp":
        assert [(each.target, each.to) for each in there] == [(e.source, e.at) for e in back]
        return
    block = ceiling.routes.BLOCK
    found = [tuple(usid.usids_of_da(block, each.to.packed)) for each in there]
    assert found == [tuple(usid.path_usids(one, other, usid.ev(plane, 1))) for plane in (0, 1)]
    assert all(each.target not in {e.source for e in back} for each in there)


def test_ceiling__the_device_is_made_and_removed() -> None:
    plan = topology.plan(description.generate(name="x", planes=2, t1=2, mtu=1500))
    lines, gone = Ceiling().lines(plan), Ceiling().undo(plan)
    for host, address in (("h1", "10.93.0.1/24"), ("h2", "10.93.0.2/24")):
        assert any("mtu 1460 type macvlan mode private" in line for line in lines[host])
        assert f"ip address replace {address} dev ceil0" in lines[host]
        assert gone[host] == ["ip link del ceil0p"]  # its peer and the macvlan go with it


def test_ceiling__python_writes_what_the_program_reads() -> None:
    text = (Path(ceiling.__file__).with_suffix(".c")).read_text()
    sizes = {"u32": 4, "u8": 1}
    for name, packed in (("ceiling_host", ceiling._HOST), ("ceiling_plane", ceiling._PLANE)):
        body = re.search(rf"struct {name} \{{(.*?)\}};", text, re.DOTALL)
        assert body is not None
        declared = re.findall(r"^\t(u32|u8) ([^;]+);", body[1], re.MULTILINE)
        members = [(kind, one) for kind, many in declared for one in many.split(",")]
        total = sum(
            sizes[kind] * int((re.findall(r"\[(\d+)\]", one) or ["1"])[0]) for kind, one in members
        )
        assert total == packed.size
        assert total % 4 == 0


def test_ceiling__titles_differ_by_planes_and_header() -> None:
    those = [Ceiling(1), Ceiling(4), Ceiling(1, header=False)]
    assert all(one.title != other.title for one, other in pairwise([*those, those[0]]))
    assert len({each.key for each in those}) == 3
