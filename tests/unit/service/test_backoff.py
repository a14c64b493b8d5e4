# SPDX-License-Identifier: GPL-2.0-only
"""Test how long a failed daemon waits before it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrcd.service import backoff


class Machine:
    """A clock, and a daemon that fails on it again and again."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.file = folder / "failures"
        self.told: list[int] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def fail(self, *, after: float = 1.0, pause: float = 1.0) -> int:
        """Start a daemon, have it fail, and return how many seconds it waited."""
        began = self.now
        self.now += after
        failed = self.now
        self.told.clear()
        backoff.hold(self.file, began, self.told.append, lambda: self.now, self.sleep)
        waited = round(self.now - failed)
        assert self.told == list(range(waited, 0, -1))
        self.now += pause
        return waited


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_failures_in_a_row_wait_longer_each_time_without_end(machine: Machine) -> None:
    waits = [machine.fail() for _ in range(40)]
    assert waits[:8] == [0, 0, 1, 2, 4, 8, 16, backoff.MOST_S]
    assert set(waits[8:]) == {backoff.MOST_S}


def test_start_by_hand_later_begins_anew(machine: Machine) -> None:
    for _ in range(6):
        machine.fail()
    machine.now += backoff.ROW_S
    assert [machine.fail() for _ in range(3)] == [0, 0, 1]


def test_failure_after_a_steady_run_ends_at_once(machine: Machine) -> None:
    """Nothing drives the clock of the data path meanwhile."""
    for _ in range(6):
        machine.fail()
    assert machine.fail(after=backoff.STEADY_S) == 0


def test_end_by_a_signal_is_not_counted(machine: Machine) -> None:
    for _ in range(3):
        machine.fail()

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backoff.hold(machine.file, machine.now, machine.told.append, lambda: 0.0, interrupted)
    assert backoff.failures_in_row(machine.file, machine.now, machine.now) == 4


@pytest.mark.parametrize("content", ["", "[]", "[1]", '["1", 2.0]', "{}", "[1, 9e9]"])
def test_file_that_says_nothing_counts_as_none(machine: Machine, content: str) -> None:
    machine.file.write_text(content)
    assert machine.fail() == 0


def test_folder_that_cannot_be_written_does_not_matter(machine: Machine) -> None:
    machine.file = Path("/nowhere/failures")
    assert [machine.fail() for _ in range(4)] == [0, 0, 0, 0]
