# SPDX-License-Identifier: GPL-2.0-only
"""Run a client that writes blocks to a storage (blocks.py), and judge what it did."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.compare.steps import Steps
from bench.recipes import blocks
from bench.recipes.blocks import Record
from bench.recipes.outcome import Interval, Outcome, judge
from bench.recipes.stage import LASTS_S, Stage

UNIT = "writes/s"
_START_S = 30.0
_SLACK_S = 60.0


@dataclass(frozen=True, slots=True)
class Written:
    """What a client wrote, the folder with its record, and the times of the run."""

    record: Record
    folder: Path
    when: Interval

    def outcome(self, lacking: int) -> Outcome:
        """Return the outcome; `lacking` blocks were not there at the end.

        A client that stopped early is an error, too.
        """
        began, ended = (
            np.array(each, np.int64) for each in (self.record.began_ns, self.record.ended_ns)
        )
        return judge(Steps(began, ended - began), self.when, bool(self.record.problem) + lacking)


def write(stage: Stage, host: str, client: Sequence[str]) -> Written:
    """Run a client in a host; its last arguments are the seconds that it writes, and a folder."""
    folder = stage.folder / f"blocks-{time.monotonic_ns()}"
    folder.mkdir()
    began = folder / "began"
    with stage.running(host, (*client, str(LASTS_S), str(folder)), name="client") as running:
        running.until("the first write", began.exists, _START_S)
        when = stage.strike(int(began.read_text()))
        running.wait(LASTS_S + _SLACK_S)
    record = blocks.load(folder)
    if record.problem:
        print(f"recipes: the client stopped early: {record.problem}", flush=True)
    return Written(record, folder, when)
