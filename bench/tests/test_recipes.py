# SPDX-License-Identifier: GPL-2.0-only
"""Tests of recipes: what programs print, the judgement of operations, and tables."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from bench.compare.results import Results
from bench.compare.steps import Steps
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import MS, S
from bench.recipes import blocks, postgres, redis, ucx
from bench.recipes.__main__ import ROUTES, arguments
from bench.recipes.catalogue import NAMES
from bench.recipes.outcome import FIGURES, Interval, Outcome, judge, markdown, rows
from bench.recipes.stage import program
from bench.recipes.storage import Written

WHEN = Interval(warm_ns=1 * S, struck_ns=3 * S, healed_ns=5 * S)


def steps(*pairs: tuple[float, float]) -> Steps:
    """Return operations of (begin in s, time in ms)."""
    began, took = np.array(pairs).T
    return Steps((began * S).astype(np.int64), (took * MS).astype(np.int64))


def test_judge__rates_count_what_ended_in_each_part() -> None:
    done = steps((0.5, 100), (1.5, 100), (2.0, 100), (3.5, 100), (4.9, 200))
    found = judge(done, WHEN, each=10)
    assert (found.before, found.during) == (10, 5)


def test_judge__the_operation_in_progress_at_the_fault_is_one_since_it() -> None:
    found = judge(steps((1.5, 20), (2.9, 700), (4, 30)), WHEN)
    assert (found.calm_ms, found.worst_ms) == (20, 700)


def test_judge__what_ended_while_warming_up_is_left_out() -> None:
    found = judge(steps((0.1, 800), (1.5, 20), (4, 30)), WHEN)
    assert found.calm_ms == 20


def test_judge__nothing_ended_since_the_fault() -> None:
    found = judge(steps((1.5, 20), (2, 30)), WHEN, errors=2)
    assert (found.during, found.worst_ms, found.errors) == (0, None, 2)


def noted() -> Results:
    results = Results()
    for worst in (5.0, 7.0, None):
        Outcome(100, 75, 2, worst, 0).note(results, ("recipes", "mpi", "mrc0"), "steps/s", 0.1)
    return results


def test_rows__medians_with_units_and_the_range() -> None:
    heading, row = rows(noted().figures(), ["mrc0", "MPTCP"], "mpi")
    assert heading == ("over", *FIGURES)
    assert row == ("mrc0", "100 steps/s", "75 steps/s", "2 ms", "6 ms (5 to 7), 1 without", "0")


def test_rows__a_figure_that_no_round_gave() -> None:
    results = Results()
    Outcome(100, 0, 2, None, 1).note(results, ("recipes", "mpi", "mrc0"), "steps/s", 0.1)
    assert rows(results.figures(), ["mrc0"], "mpi")[1][4] == "never"


def test_rows__a_dagger_marks_busy_cpus() -> None:
    results = Results()
    Outcome(100, 75, 2, 3, 0).note(results, ("recipes", "mpi", "mrc0"), "steps/s", 0.95)
    assert rows(results.figures(), ["mrc0"], "mpi")[1][:2] == ("mrc0 †", "100 steps/s")


def test_rows__other_recipes_are_left_out() -> None:
    assert len(rows(noted().figures(), ["mrc0"], "ucx")) == 1


def test_markdown() -> None:
    assert markdown([("a", "b"), ("1", "2")]) == "| a | b |\n|---|---|\n| 1 | 2 |"


def test_postgres__commits_are_on_our_clock() -> None:
    log = "0 1 1500 0 100 250000 40\n3 2 500 0 101 0 0\n1 3 skipped 0 101 0 0\n"
    done = postgres.commits(log, offset_ns=90 * S)
    assert list(done.took_ns) == [1_500_000, 500_000]
    assert list(done.began_ns + done.took_ns) == [10 * S + 250 * MS, 11 * S]


def test_postgres__no_transaction_at_all() -> None:
    assert len(postgres.commits("", 0).took_ns) == 0


def test_postgres__failed_transactions_and_aborted_clients_count() -> None:
    said = "client 3 aborted in command 5\nnumber of failed transactions: 2 (0.100%)\n"
    assert postgres.failed(said) == 3


def test_postgres__no_result() -> None:
    with pytest.raises(BenchFailed, match="no server"):
        postgres.failed("connection failed: no server")


UCX = """\
|    Stage     | # iterations | 100.0%ile | average | overall |
[thread 0]                10    100.0  50000.000 50000.000   9.62   9.62   10   10
[thread 0]                20    200.0  50000.000 50000.000   9.62   9.62   10   10
[thread 0]                30 300000.0  90000.000 70000.000   9.62   9.62   10   10
[thread 0]                40 300000.0"""


def test_ucx__rows_give_round_trips() -> None:
    found = ucx.rows(UCX)
    assert [row.messages for row in found] == [10, 20, 30]  # the last line is not whole yet
    assert [row.after_ns for row in found] == [S, 2 * S, 30 * 140 * MS]
    assert found[-1].slowest_ns == 600 * MS


def test_ucx__outcome() -> None:
    found = ucx.outcome(ucx.rows(UCX), 0, WHEN, 0)
    assert found.before == pytest.approx(10 * 2 * 2**20 * 8 / 1e6)  # in one second
    assert found.during == pytest.approx(10 * 2 * 2**20 * 8 / 1e6 / 2.2)
    assert (found.calm_ms, found.worst_ms) == (0.4, 600)


def test_ucx__no_row_since_the_fault() -> None:
    found = ucx.outcome(ucx.rows(UCX)[:2], 0, WHEN, 1)
    assert (found.during, found.worst_ms, found.errors) == (0, None, 1)


def test_ucx__too_few_rows() -> None:
    with pytest.raises(BenchFailed, match="too few rows"):
        ucx.outcome([], 0, WHEN, 0)


def test_redis__a_request_has_the_lengths_of_its_words() -> None:
    assert (
        redis.request(b"SET", b"k", b"a\r\nb") == b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n"
    )


class Places:
    """A storage that takes some writes, then refuses."""

    def __init__(self, takes: int) -> None:
        self.takes = takes
        self.held: dict[int, bytes] = {}

    def write(self, place: int, content: bytes) -> None:
        if not self.takes:
            raise blocks.WriteFailed("it is full")
        self.takes -= 1
        self.held[place] = content


def test_blocks__a_client_leaves_a_record(tmp_path: Path) -> None:
    places = Places(takes=blocks.PLACES + 2)
    blocks.write_for(60, places.write, tmp_path)
    record = blocks.load(tmp_path)
    assert len(record.began_ns) == len(record.ended_ns) == blocks.PLACES + 2
    assert int((tmp_path / "began").read_text()) <= record.began_ns[0] <= record.ended_ns[0]
    assert record.problem == "it is full"
    assert blocks.lacking(record.last(), places.held.__getitem__) == 0


def test_blocks__no_time_is_no_write(tmp_path: Path) -> None:
    blocks.write_for(0, Places(takes=0).write, tmp_path)
    assert blocks.load(tmp_path) == blocks.Record([], [], "")


def test_blocks__the_last_write_to_each_place_counts() -> None:
    record = blocks.Record([0] * (blocks.PLACES + 2), [0] * (blocks.PLACES + 2), "")
    last = record.last()
    assert (last[0], last[1], last[2]) == (blocks.PLACES, blocks.PLACES + 1, 2)
    assert len(last) == blocks.PLACES


@pytest.mark.parametrize(
    "held",
    [
        b"",
        blocks.block(3),
        blocks.block(3 + blocks.PLACES)[:-1],
        blocks.block(3 + blocks.PLACES)[: blocks.BYTES // 2] + blocks.block(3)[blocks.BYTES // 2 :],
    ],
    ids=["nothing", "an earlier write", "a byte too few", "half of an earlier write"],
)
def test_blocks__a_place_lacks_its_last_write(held: bytes) -> None:
    assert blocks.lacking({3: 3 + blocks.PLACES}, lambda place: held) == 1


def test_storage__a_client_that_stopped_and_lacking_blocks_are_errors(tmp_path: Path) -> None:
    record = blocks.Record([1 * S, 2 * S], [1 * S + 20 * MS, 2 * S + 30 * MS], "it is full")
    found = Written(record, tmp_path, WHEN).outcome(lacking=2)
    assert (found.before, found.calm_ms, found.errors) == (1, 30, 3)


def test_storage__no_write_at_all(tmp_path: Path) -> None:
    found = Written(blocks.Record([], [], ""), tmp_path, WHEN).outcome(lacking=0)
    assert (found.before, found.calm_ms, found.worst_ms, found.errors) == (0, None, None, 0)


def test_program__the_folders_come_before_the_path(tmp_path: Path) -> None:
    (tmp_path / "sh").touch(mode=0o755)
    assert program("sh", tmp_path) == str(tmp_path / "sh")


def test_program__a_missing_one_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match="make setup-bench"):
        program("no-such-program", tmp_path)


def test_document__every_recipe_has_a_command_and_a_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    commands = re.findall(r"python -m bench\.recipes (--only [^`\n]*)", text)
    run = {name for line in commands for name in arguments().parse_args(line.split()).only}
    assert run == set(NAMES)
    assert text.count(markdown([("over", *FIGURES)])) == len(NAMES)


def test_arguments__every_recipe_and_route_can_be_chosen() -> None:
    keys = [route.key for route in ROUTES]
    args = arguments().parse_args(["--only", *NAMES, "--routes", *keys])
    assert (tuple(args.only), args.routes) == (NAMES, keys)
