# SPDX-License-Identifier: GPL-2.0-only
"""Keep the figures of the last runs of all tests, a line of JSON for each run.

    runs.py add FILE FOLDER BEGAN CPU STATUS TIER...   append a run, forget all but the last ten
    runs.py table FILE                                 print them as a table for a document

BEGAN is the time of the run's beginning (`date +%s`), CPU the first line of /proc/stat then, and
STATUS that of the whole run, with its style checks: 0 if all is well. It runs with the
system's Python, as `.ci/summary.py` does.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from summary import Tier, slowest, tiers

KEPT = 10
_STEAL = 7  # the column of /proc/stat's line `cpu`; guests' times are within user and nice
_COLUMNS = 8


def steal_percent(before: str, after: str) -> float:
    """Return the share of the CPUs' time between two lines of /proc/stat that was stolen."""
    then, now = ([int(word) for word in line.split()[1 : _COLUMNS + 1]] for line in (before, after))
    spent = [late - early for early, late in zip(then, now, strict=True)]
    return round(100 * spent[_STEAL] / max(1, sum(spent)), 2)


def commit() -> str:
    """Return the commit that was tested; with a + if files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "none"


def run(found: list[Tier], began: float, cpu: str, status: str) -> dict[str, Any]:
    """Return the figures of a run that ends now."""
    reasons: dict[str, int] = {}
    for tier in found:
        for reason, count in tier.first.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
    now = Path("/proc/stat").read_text().partition("\n")[0]
    return {
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "commit": commit(),
        "passed": status == "0",
        "seconds": round(time.time() - began),
        "tiers": {tier.name: round(tier.seconds) for tier in found},
        "ran": sum(tier.ran for tier in found),
        "failed": sum(tier.count["failure"] + tier.count["error"] for tier in found),
        "second_runs": [".".join(test) for tier in found for test in tier.second_runs],
        "skipped": reasons,
        "slowest": [[round(took_s, 1), test] for took_s, test in slowest(found)],
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
        "steal_percent": steal_percent(cpu, now),
    }


def add(file: Path, figures: dict[str, Any]) -> None:
    """Append the figures of a run to a file, which keeps the last ones, in one step."""
    lines = file.read_text().splitlines() if file.exists() else []
    lines = [*lines, json.dumps(figures)][-KEPT:]
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}.new")
    fresh.write_text("".join(f"{line}\n" for line in lines))
    fresh.replace(file)


def table(text: str) -> str:
    """Return the runs of a file as a table, the last one first."""
    runs = [json.loads(line) for line in reversed(text.splitlines())]
    names = list(dict.fromkeys(name for each in runs for name in each["tiers"]))
    rows = [["began", "commit", "", "in all", *names, "ran", "second runs", "skips", "machine"]]
    rows.append(["---"] * len(rows[0]))
    for each in runs:
        whole = f"{each['seconds'] // 60}:{each['seconds'] % 60:02}"
        took = [f"{each['tiers'][name]} s" if name in each["tiers"] else "" for name in names]
        machine = f"{each['cpus']} CPUs, Linux {each['kernel']}, steal {each['steal_percent']} %"
        verdict = "passed" if each["passed"] else f"FAILED ({each['failed']} tests)"
        counts = [each["ran"], len(each["second_runs"]), sum(each["skipped"].values())]
        rows.append(
            [each["began"], each["commit"], verdict, whole, *took, *map(str, counts), machine]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(words: list[str]) -> None:
    match words:
        case ["add", file, folder, began, cpu, status, *names] if names:
            add(Path(file), run(tiers(Path(folder), names), float(began), cpu, status))
        case ["table", file]:
            print(table(Path(file).read_text()))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
