# SPDX-License-Identifier: GPL-2.0-only
"""Judge the reports of a run of all tests: `summary.py FOLDER TIER...`; exit 1 if it failed.

It runs with the system's Python, also where `make setup` has failed. `.ci/runs.py` keeps the
figures of the last runs.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

SECOND_RUNS_MAX = 2
"""The most tests of all tiers that may pass only on their second run, alone. One may meet a busy
machine. More are a fault of the tests or of what they test."""
SLOWEST = 10
"""How many of the slowest tests are named."""
_BAD = ("failure", "error")

Test = tuple[str, str]


@dataclass
class Report:
    """What pytest reported of a tier."""

    outcomes: dict[Test, str] = field(default_factory=dict)
    took_s: dict[Test, float] = field(default_factory=dict)
    """What each test took, with the fixtures that it was the first to need."""
    reasons: Counter[str] = field(default_factory=Counter)
    """How many tests were skipped for each reason."""
    seconds: float = 0.0


def read(file: Path) -> Report:
    """Return what a report says; nothing if there is none."""
    report = Report()
    if not file.exists():
        return report
    for suite in ElementTree.parse(file).getroot().iter("testsuite"):
        report.seconds += float(suite.get("time", 0))
        for case in suite.iter("testcase"):
            found = {child.tag: child for child in case}
            outcome = next((x for x in (*_BAD, "skipped") if x in found), "passed")
            test = case.get("classname", ""), case.get("name", "")
            # A test that passed and could not clean up has two entries.
            if report.outcomes.get(test, "passed") == "passed":
                report.outcomes[test] = outcome
            took_s = float(case.get("time", 0))
            report.took_s[test] = report.took_s.get(test, 0.0) + took_s
            if outcome == "skipped":
                report.reasons[found["skipped"].get("message", "no reason")] += 1
    return report


@dataclass
class Tier:
    """What a tier came to, its second run included."""

    name: str
    first: Report
    again: Report

    @property
    def count(self) -> Counter[str]:
        return Counter((self.first.outcomes | self.again.outcomes).values())

    @property
    def ran(self) -> int:
        return self.count.total() - self.count["skipped"]

    @property
    def seconds(self) -> float:
        return self.first.seconds + self.again.seconds

    @property
    def second_runs(self) -> list[Test]:
        """The tests that have not failed when they ran again alone."""
        return [test for test, outcome in self.again.outcomes.items() if outcome not in _BAD]

    @property
    def verdict(self) -> str:
        if not self.first.outcomes:
            return "DID NOT RUN"
        if any(self.count[bad] for bad in _BAD):
            return "FAILED"
        return "ok" if self.ran else "RAN NOTHING"


def tiers(folder: Path, names: list[str]) -> list[Tier]:
    """Read the reports of the tiers."""
    return [
        Tier(name, read(folder / f"{name}.xml"), read(folder / f"{name}-again.xml"))
        for name in names
    ]


def passed(found: list[Tier]) -> bool:
    """Return whether all is well."""
    again = sum(len(tier.second_runs) for tier in found)
    return again <= SECOND_RUNS_MAX and all(tier.verdict == "ok" for tier in found)


def slowest(found: list[Tier]) -> list[tuple[float, str]]:
    """Return the tests of all tiers that took longest, in seconds, the longest first."""
    took = [
        (seconds, f"{tier.name}: {'.'.join(test)}")
        for tier in found
        for test, seconds in tier.first.took_s.items()
    ]
    return sorted(took, reverse=True)[:SLOWEST]


def tell(found: list[Tier]) -> None:
    """Print a line for each tier, each second run and each of the slowest tests."""
    for tier in found:
        if tier.verdict == "DID NOT RUN":
            print(f"ci: {tier.name:9} DID NOT RUN")
            continue
        for test, outcome in tier.again.outcomes.items():
            print(
                f"ci: {tier.name:9} {'.'.join(test)} failed beside another test; alone: {outcome}"
            )
        print(
            f"ci: {tier.name:9} {tier.verdict}: {tier.ran} ran, {tier.count['failure']} failed, "
            f"{tier.count['error']} errors, {tier.count['skipped']} skipped, {tier.seconds:.0f} s"
        )
    again = sum(len(tier.second_runs) for tier in found)
    print(
        f"ci: {'again':9} {'ok' if again <= SECOND_RUNS_MAX else 'TOO MANY'}: "
        f"{again} passed only on their second run, {SECOND_RUNS_MAX} may"
    )
    for seconds, test in slowest(found):
        print(f"ci: {'slowest':9} {seconds:5.1f} s {test}")


if __name__ == "__main__":
    ran = tiers(Path(sys.argv[1]), sys.argv[2:])
    tell(ran)
    sys.exit(not passed(ran))
