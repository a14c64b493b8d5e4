# SPDX-License-Identifier: GPL-2.0-only
"""Wait at the end of a daemon that has failed, longer each time, because it is started again.

systemd 252 knows one delay only, and that has to be short: nothing drives the clock of the data
path until the daemon is back. So the first failures end at once, and those that follow each other
wait here. What failed may pass, so there is no last attempt. A file counts the failures; it is in
the folder for run-time files, and so is forgotten at a boot.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from mrcd.service import statefile

PROMPT = 2
"""The number of failures in a row that end without a wait."""
MOST_S = 20
"""The longest wait. It fits into TimeoutStopSec= of the unit, which counts it."""
ROW_S = 10.0
"""Failures are in one row if the daemon was started again within this time."""
STEADY_S = 60.0
"""A daemon that ran for this long begins a new row."""


def delay_s(failures: int) -> int:
    """Return how long to wait after this number of failures in a row, this one included."""
    return 0 if failures <= PROMPT else int(min(2 ** (failures - PROMPT - 1), MOST_S))


def failures_in_row(file: Path, began: float, now: float) -> int:
    """Return the number of failures in a row, with that of the daemon that began at `began`.

    Times are those of the monotonic clock.
    """
    earlier = 0
    with contextlib.suppress(statefile.Unreadable, OSError):
        count, ended = statefile.read(file, _counted) or (0, 0.0)
        earlier = count if 0 <= began - ended < ROW_S else 0
    return 1 + (earlier if now - began < STEADY_S else 0)


def _counted(content: object) -> tuple[int, float]:
    match content:
        case [int(count), float(ended)]:
            return count, ended
    raise ValueError("must be a number of failures and a time")


def hold(
    file: Path,
    began: float,
    tell: Callable[[int], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait as long as the failures in a row ask for, and count this one.

    `tell` is called once a second with the seconds that are left. A signal that ends the process
    meanwhile leaves the failure uncounted.
    """
    failures = failures_in_row(file, began, clock())
    for left in range(delay_s(failures), 0, -1):
        tell(left)
        sleep(1)
    with contextlib.suppress(OSError):  # then the next one does not wait, which is all
        statefile.write(file, [failures, clock()])
