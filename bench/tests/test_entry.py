# SPDX-License-Identifier: GPL-2.0-only
"""Tests that figures are gathered and kept, and that one failed figure does not end the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bench.instruments import entry
from bench.instruments.flow import BenchFailed
from bench.instruments.result import Line

ONE, TWO = (Line("item", "here", what, "ms", (1.0,)) for what in ("one", "two"))


def broken() -> Iterator[Line]:
    yield ONE
    raise BenchFailed("no flow")


def test_take__prints_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.take("it", iter([ONE, TWO])) == [ONE, TWO]
    printed = capsys.readouterr().out
    assert "one" in printed
    assert "two" in printed


def test_take__says_why_there_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.take("it", broken()) == "it could not be measured: no flow"
    assert capsys.readouterr().out == ""


def test_gather__keeps_what_there_is_after_each_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept: list[list[Line]] = []

    def keep(lines: Sequence[Line]) -> None:
        kept.append(list(lines))

    results = [[ONE], "it could not be measured", [TWO]]
    assert entry.gather(results, keep) == ([ONE, TWO], True)
    assert kept == [[ONE], [ONE], [ONE, TWO]]
    assert capsys.readouterr().out == "bench: it could not be measured\n"
    assert entry.gather([[ONE]], keep) == ([ONE], False)


def test_save__writes_what_a_report_says(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    entry.save(None, {})
    entry.save(file, entry.report([ONE], published="nothing"))
    found = json.loads(file.read_text())
    assert set(found) == {"kernel", "cpus", "taken", "published", "lines"}
    assert found["published"] == "nothing"
    assert found["lines"] == json.loads(json.dumps([ONE.plain()]))
