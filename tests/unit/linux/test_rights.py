# SPDX-License-Identifier: GPL-2.0-only
"""Test that capabilities are given up for good, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys

from mrcd.linux import rights

GIVE_UP = """
import json, subprocess, sys
from mrcd.linux import rights

rights.{call}
show = "import json; from mrcd.linux import rights; print(json.dumps(rights.held()))"
print(json.dumps(rights.held()))
with rights.inherited({inherited}):
    print(subprocess.run([sys.executable, "-c", show], capture_output=True, text=True).stdout)
print(subprocess.run([sys.executable, "-c", show], capture_output=True, text=True).stdout)
"""


def sets(call: str, inherited: tuple[int, ...] = ()) -> list[dict[str, int]]:
    """Return the sets of a process after a call, and those of two programs that it starts."""
    done = subprocess.run(
        [sys.executable, "-c", GIVE_UP.format(call=call, inherited=inherited)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line]


def test_nothing_is_left_and_nothing_comes_back() -> None:
    for found in sets("give_up()"):
        assert {found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}


def test_what_is_kept_is_inherited_only_when_asked() -> None:
    """Root keeps what it asks for; other users have nothing to keep."""
    there = rights.held()["CapPrm"]
    keep, spare = there & rights.mask([rights.NET_RAW]), there & rights.mask([rights.PERFMON])
    own, child, later = sets(f"keep([{rights.NET_RAW}], [{rights.PERFMON}])", (rights.PERFMON,))
    assert (own["CapEff"], own["CapPrm"], own["CapAmb"]) == (keep, keep | spare, 0)
    assert child["CapEff"] == child["CapPrm"] == spare
    assert later["CapEff"] == 0
