# SPDX-License-Identifier: GPL-2.0-only
"""Packets that interrupt the clock's program on its own CPU.

From Linux 6.8 on, the kernel disables softirqs during a test run. There this test only shows that
the measurement counts correctly; `make check-vm` runs it on Linux 6.1, where packets do interrupt.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bpf import interrupted


def test_interrupting_packets_and_the_clock_keep_out_of_each_others_memory(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("BPF programs need root: run the tests as root")
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one CPU ticks while another one sends")
    with interrupted.made_rig(tmp_path) as rig:
        found = interrupted.measure(rig, 1)
    assert interrupted.violations(found) == []


def test_violations_name_each_broken_invariant() -> None:
    good = {"ticks": 10, "sacks": 5, "nacks": 5, "a_due": 160, "a_missing": 0, "b_foreign": 0}
    assert interrupted.violations(good) == []
    assert "3 of 160" in "".join(interrupted.violations(good | {"a_missing": 3}))
    assert "2 packets" in "".join(interrupted.violations(good | {"b_foreign": 2}))
    assert "nothing was measured" in "".join(interrupted.violations(good | {"sacks": 0}))
