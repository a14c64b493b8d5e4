# SPDX-License-Identifier: GPL-2.0-only
"""Check the messages of commits, as CONTRIBUTING.md wants them: ``python -m scripts.commits``.

Commits from before SINCE are left alone, and so are merges. Where there is no history, as in a
source package, there is nothing to check.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SINCE = "2026-11-28"
SUBJECT = re.compile(r"[a-z0-9][\w/.-]*(, [\w/.-]+)*: \S")
LONGEST = 100
_FIELD, _RECORD = "\x1f", "\x1e"


def faults(message: str) -> list[str]:
    """Return what is wrong with a commit message; each fault says how to mend it."""
    subject, _, body = message.strip().partition("\n")
    found = []
    if not SUBJECT.match(subject):
        found.append("the subject does not begin with the part it is about, as in `repair: `")
    if ";" in subject:
        found.append("the subject has a `;`: make a commit of each")
    if len(subject) > LONGEST:
        found.append(f"the subject has {len(subject)} characters; {LONGEST} are enough")
    if not body.strip() and not subject.startswith("docs: "):
        found.append("there is no body: give the reason, and the figure if one was measured")
    return found


def history(root: Path) -> list[tuple[str, str]]:
    """Return the abbreviated hashes and messages of the commits to check, the newest first."""
    done = subprocess.run(
        ["git", "log", "--no-merges", f"--since={SINCE}T00:00:00Z",
         f"--format=%h{_FIELD}%B{_RECORD}"],
        cwd=root, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if done.returncode:
        return []
    records = (record.strip("\n") for record in done.stdout.split(_RECORD))
    return [(name, text) for name, _, text in (r.partition(_FIELD) for r in records) if name]


def main() -> None:
    """Print the faults of all commits to check; exit with 1 if there are any."""
    lines = [
        f"{name} {message.partition(chr(10))[0]!r}: {fault}"
        for name, message in history(ROOT)
        for fault in faults(message)
    ]
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
