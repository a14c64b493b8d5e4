# SPDX-License-Identifier: GPL-2.0-only
"""Test how .ci/run judges the reports of the test tiers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def write(folder: Path, tier: str, **outcomes: str) -> None:
    """Write pytest's report of a tier: `passed`, `failure`, `error` or `skipped` by test."""
    cases = "".join(
        f'<testcase classname="tests.net.test_x" name="{name}">'
        + ("" if outcome == "passed" else f"<{outcome}/>")
        + "</testcase>"
        for name, outcome in outcomes.items()
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


def test_the_run_uses_it() -> None:
    assert ".ci/summary.py" in (ROOT / ".ci" / "run").read_text()
