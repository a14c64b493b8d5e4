# SPDX-License-Identifier: GPL-2.0-only
"""Judge the reports of a run of all tests: `summary.py FOLDER TIER...`; exit 1 if it failed.

It runs with the system's Python, also where `make setup` has failed.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

SECOND_RUNS_MAX = 2
"""The most tests of all tiers that may pass only on their second run, alone. One may meet a busy
machine. More are a fault of the tests or of what they test."""

Outcomes = dict[tuple[str, str], str]


def read(report: Path) -> tuple[Outcomes, float]:
    """Return the outcome of each test, and the seconds that all took."""
    outcomes: Outcomes = {}
    seconds = 0.0
    if report.exists():
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            seconds += float(suite.get("time", 0))
            for case in suite.iter("testcase"):
                found = {child.tag for child in case}
                outcome = next((x for x in ("failure", "error", "skipped") if x in found), "passed")
                test = case.get("classname", ""), case.get("name", "")
                # A test that passed and could not clean up has two entries.
                if outcomes.get(test, "passed") == "passed":
                    outcomes[test] = outcome
    return outcomes, seconds


def judge(folder: Path, tiers: list[str]) -> bool:
    """Print a line for each tier and each second run; return whether all is well."""
    good, second_runs = True, 0
    for tier in tiers:
        outcomes, seconds = read(folder / f"{tier}.xml")
        if not outcomes:
            print(f"ci: {tier:9} DID NOT RUN")
            good = False
            continue
        again, more = read(folder / f"{tier}-again.xml")
        for test, outcome in again.items():
            print(f"ci: {tier:9} {'.'.join(test)} failed beside another test; alone: {outcome}")
        second_runs += sum(outcome not in ("failure", "error") for outcome in again.values())
        count = Counter((outcomes | again).values())
        ran = count.total() - count["skipped"]
        verdict = "ok"
        if count["failure"] or count["error"]:
            verdict = "FAILED"
        elif not ran:
            verdict = "RAN NOTHING"
        good &= verdict == "ok"
        print(
            f"ci: {tier:9} {verdict}: {ran} ran, {count['failure']} failed, "
            f"{count['error']} errors, {count['skipped']} skipped, {seconds + more:.0f} s"
        )
    verdict = "ok" if second_runs <= SECOND_RUNS_MAX else "TOO MANY"
    print(
        f"ci: {'again':9} {verdict}: {second_runs} passed only on their second run, "
        f"{SECOND_RUNS_MAX} may"
    )
    return good and verdict == "ok"


if __name__ == "__main__":
    sys.exit(not judge(Path(sys.argv[1]), sys.argv[2:]))
