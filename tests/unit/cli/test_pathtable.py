# SPDX-License-Identifier: GPL-2.0-only
"""Test ``mrcctl path list``: the worst paths first, sums of peers and planes, and its length."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cli.state import pathtable
from mrcd.model import PathInfo
from rigs.control_double import FakeSource
from tests.unit.command_line import run, run_json

ROOT = Path(__file__).parents[3]


def paths_of(source: FakeSource) -> list[PathInfo]:
    """Return paths of two peers and two planes in all states."""
    bad = replace(source.paths("h2")[0], srtt_us=90.0)
    good = replace(bad, state="GOOD", role="active", lost=0, srtt_us=30.0)
    return [
        replace(good, ev=1, plane=0),
        replace(good, ev=2, plane=0, lost=7),
        replace(good, ev=3, state="SKIP", srtt_us=None),
        replace(good, ev=4, peer="h3", state="DENIED", sent=5),
        replace(bad, ev=5, lost=3),
        replace(bad, ev=6, lost=9),
    ]


class Several(FakeSource):
    """A source with those paths, or with many of the first."""

    many = 0

    def paths(self, peer: str | None) -> list[PathInfo]:
        few = paths_of(FakeSource())
        found = [replace(few[0], ev=ev) for ev in range(self.many)] or few
        return [path for path in found if peer in (None, path.peer)]


@pytest.fixture
def source() -> Several:
    return Several()


def test_the_worst_paths_come_first(server: Path) -> None:
    rows = [line.split() for line in run(server, "path", "list").output.splitlines()[1:]]
    assert [(int(row[2], 16), row[5]) for row in rows] == [
        (6, "ASSUMED_BAD"), (5, "ASSUMED_BAD"), (4, "DENIED"), (3, "SKIP"),
        (2, "GOOD"), (1, "GOOD"),
    ]  # fmt: skip


def test_sums_of_each_peer_and_plane(server: Path) -> None:
    header, *rows = run(server, "path", "list", "--summary").output.splitlines()
    assert header.split() == [
        "PEER", "PLANE", "GOOD", "SKIP", "ASSUMED_BAD", "DENIED", "SENT", "ACKED", "LOST", "MARKED",
        "SRTT", "MIN", "SRTT", "MAX",
    ]  # fmt: skip
    assert [row.split() for row in rows] == [
        ["h2", "1", "0", "1", "2", "0", "300", "270", "12", "9", "90", "us", "90", "us"],
        ["h3", "1", "0", "0", "0", "1", "5", "90", "0", "3", "30", "us", "30", "us"],
        ["h2", "0", "2", "0", "0", "0", "200", "180", "7", "6", "30", "us", "30", "us"],
    ]


def test_sums_are_of_the_chosen_paths(server: Path) -> None:
    sums = run_json(server, "path", "list", "--summary", "--plane", "1", "--state", "skip")["sums"]
    assert [(each["peer"], each["skip"], each["srtt_min_us"]) for each in sums] == [("h2", 1, None)]


def test_a_longer_table_ends_with_what_is_left_out(source: Several) -> None:
    source.many = 70
    lines = pathtable.render(source.paths(None), 64).splitlines()
    assert (len(lines), lines[-1]) == (66, "6 more; --all shows them")
    assert len(pathtable.render(source.paths(None), 70).splitlines()) == 71
    sums = pathtable.summed(paths_of(FakeSource()))
    assert pathtable.render_sums(sums, 2).splitlines()[-1] == "1 more; --all shows them"


def test_off_a_terminal_and_in_json_nothing_is_left_out(server: Path, source: Several) -> None:
    source.many = 70
    assert len(run(server, "path", "list").output.splitlines()) == 71
    assert len(run_json(server, "path", "list")["paths"]) == 70


@pytest.mark.parametrize(("options", "rows"), [([], 66), (["--all"], 71), (["-j"], None)])
def test_a_terminal_shows_64_rows(
    server: Path, source: Several, options: list[str], rows: int | None
) -> None:
    source.many = 70
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "path", "list", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), "MRCD_SOCKET": str(server)},
        stdout=slave,
    )
    os.close(slave)
    text = b""
    try:
        while chunk := os.read(master, 1 << 16):
            text += chunk
    except OSError:  # the program has closed the terminal
        pass
    os.close(master)
    assert process.wait(20) == 0
    assert text.count(b"fcbb") == (70 if options else 64)
    if rows is not None:
        assert len(text.splitlines()) == rows


def test_paths_that_answer_probes_and_lose_data_are_named(source: Several) -> None:
    first, second, *others = paths_of(source)
    losing = [replace(first, loses_data=True, sent=1348, lost=1301), others[-1]]
    assert pathtable.render(losing).splitlines()[-1] == (
        "h2, plane 0: 1 path answers probes and loses data: 1,301 of 1,348 packets"
    )
    both = [*losing, replace(second, loses_data=True, sent=100_000, lost=12)]
    assert pathtable.render(both).splitlines()[-1] == (
        "h2, plane 0: 2 paths answer probes and lose data: 1,313 of 101,348 packets"
    )
    assert "data" not in pathtable.render(others)
