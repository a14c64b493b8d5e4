# SPDX-License-Identifier: GPL-2.0-only
"""Test how .ci/run judges the reports of the test tiers, and keeps the figures of its last runs."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def write(folder: Path, tier: str, **outcomes: str) -> None:
    """Write pytest's report of a tier: `passed`, `failure`, `error` or `skipped` by test.

    The first test takes 1 s, the second one 2 s, ...
    """
    cases = "".join(
        f'<testcase classname="tests.net.test_x" name="{name}" time="{number}.0">'
        + ("" if outcome == "passed" else f'<{outcome} message="why {name}"/>')
        + "</testcase>"
        for number, (name, outcome) in enumerate(outcomes.items(), 1)
    )
    text = f'<testsuites><testsuite time="2.0">{cases}</testsuite></testsuites>'
    (folder / f"{tier}.xml").write_text(text)


def judged(folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["/usr/bin/python3", str(ROOT / ".ci" / "summary.py"), str(folder), "unit", "net"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(("second", "code", "said"), [(2, 0, "ok: 2"), (3, 1, "TOO MANY: 3")])
def test_few_tests_may_pass_on_their_second_run_only(
    tmp_path: Path, second: int, code: int, said: str
) -> None:
    write(tmp_path, "unit", a="passed")
    names = [f"b{k}" for k in range(second)]
    write(tmp_path, "net", good="passed", **dict.fromkeys(names, "failure"))
    write(tmp_path, "net-again", **dict.fromkeys(names, "passed"))
    found, text = judged(tmp_path)
    assert found == code, text
    assert f"again     {said} passed only on their second run, 2 may" in text
    assert text.count("failed beside another test; alone: passed") == second
    assert f"net       ok: {second + 1} ran, 0 failed" in text


def test_tiers_are_counted_together(tmp_path: Path) -> None:
    for tier in ("unit", "net"):
        write(tmp_path, tier, a="failure", b="error")
        write(tmp_path, f"{tier}-again", a="passed", b="skipped")
    found, text = judged(tmp_path)
    assert (found, "TOO MANY: 4" in text) == (1, True)


def test_second_failure_is_a_failure(tmp_path: Path) -> None:
    write(tmp_path, "unit", a="passed")
    write(tmp_path, "net", a="failure", b="passed")
    write(tmp_path, "net-again", a="failure")
    found, text = judged(tmp_path)
    assert found == 1
    assert "net       FAILED: 2 ran, 1 failed" in text
    assert "again     ok: 0 passed" in text


def test_nothing_that_ran_is_a_failure(tmp_path: Path) -> None:
    write(tmp_path, "unit", a="skipped")
    found, text = judged(tmp_path)
    assert found == 1
    assert "unit      RAN NOTHING" in text
    assert "net       DID NOT RUN" in text


def test_the_ten_slowest_tests_are_named(tmp_path: Path) -> None:
    write(tmp_path, "unit", quick="passed")
    write(tmp_path, "net", **{f"t{k}": "passed" for k in range(1, 13)})
    _code, text = judged(tmp_path)
    named = [line.split()[2:] for line in text.splitlines() if line.startswith("ci: slowest")]
    assert named == [[f"{k}.0", "s", "net:", f"tests.net.test_x.t{k}"] for k in range(12, 2, -1)]


CPU = Path("/proc/stat").read_text().partition("\n")[0]


def runs(*words: str) -> str:
    done = subprocess.run(
        ["/usr/bin/python3", str(ROOT / ".ci" / "runs.py"), *words],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_figures_of_the_last_ten_runs_are_kept(tmp_path: Path) -> None:
    write(tmp_path, "unit", a="passed", b="skipped", c="failure")
    write(tmp_path, "net", d="failure", e="skipped")
    write(tmp_path, "net-again", d="passed")
    file = tmp_path / "kept" / "ci-runs.jsonl"
    for began in range(12):
        runs("add", str(file), str(tmp_path), str(began), CPU, str(began % 2), "unit", "net")
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["began"] for each in kept] == [f"1970-01-01T00:00:{k:02}Z" for k in range(2, 12)]
    last = kept[-1]
    assert (last["passed"], kept[-2]["passed"]) == (False, True)
    assert (last["ran"], last["failed"]) == (3, 1)
    assert last["second_runs"] == ["tests.net.test_x.d"]
    assert last["skipped"] == {"why b": 1, "why e": 1}
    assert last["tiers"] == {"unit": 2, "net": 4}
    assert last["slowest"][0] == [3.0, "unit: tests.net.test_x.c"]
    assert last["seconds"] > 1e9, "since 1970, for this test"
    assert last["cpus"] >= 1
    assert 0 <= last["steal_percent"] <= 100
    head, _dashes, first, *rest = runs("table", str(file)).splitlines()
    assert "| in all | unit | net | ran | second runs | skips |" in head
    assert len(rest) == 9
    assert "FAILED (1 tests)" in first
    assert "| 2 s | 4 s | 3 | 1 | 2 |" in first


def test_steal_is_a_share_of_all_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    steal_percent = importlib.import_module("runs").steal_percent
    #         user nice system idle iowait irq softirq steal guest guest_nice
    before = "cpu 10 0 10 100 0 0 0 5 10 0"
    assert steal_percent(before, "cpu 60 0 20 130 0 0 0 15 60 0") == 10.0
    assert steal_percent(before, before) == 0


TIERS = ("unit", "bpf", "net-alone", "net", "package")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a clone whose tests and checks take no time: `make test` has written the reports."""
    made = tmp_path / "clone"
    shutil.copytree(ROOT / ".ci", made / ".ci")
    (made / "Makefile").write_text(
        "setup:\nlint:\ntest:\n\tmkdir -p build\n\tcp -r ../reports build/results\n"
    )
    (made / "scripts").mkdir()
    (made / "scripts" / "commits.py").touch()
    (made / ".venv" / "bin").mkdir(parents=True)
    (made / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    (tmp_path / "reports").mkdir()
    for tier in TIERS:
        write(tmp_path / "reports", tier, a="passed")
    return made


@pytest.mark.parametrize("kept", [None, "../kept"])
def test_a_run_keeps_its_figures(clone: Path, kept: str | None) -> None:
    """In build/, or in a folder that outlives the clone."""
    elsewhere = {} if kept is None else {"MRC_CI_RECORD": kept}
    environment = {name: value for name, value in os.environ.items() if name != "MRC_CI_RECORD"}
    for passed in (True, False):
        if not passed:
            write(clone.parent / "reports", "net", a="failure")
        done = subprocess.run(
            [str(clone / ".ci" / "run")],
            cwd="/", env=environment | elsewhere,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) is passed, done.stdout + done.stderr
        assert f"ci: {'passed' if passed else 'FAILED'}" in done.stdout
    file = clone / (kept or "build") / "ci-runs.jsonl"
    first, last = [json.loads(line) for line in file.read_text().splitlines()]
    assert (first["passed"], last["passed"]) == (True, False)
    assert tuple(first["tiers"]) == TIERS
    assert first["seconds"] < 60
