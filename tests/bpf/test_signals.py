# SPDX-License-Identifier: GPL-2.0-only
"""A signal that arrives while programs run neither fails nor shortens the run."""

from __future__ import annotations

import signal

import pytest

from mrcd.datapath.clock import CARRIER
from mrcd.linux import bpf
from rigs.rig import Rig

LONG = 1_000_000  # repetitions, which take far longer than the signal needs
SOON_S = 0.005


# The runner's own time-out would use the same timer. Timers of CPU time signal no system call.
@pytest.mark.timeout(method="thread")
def test_signal_during_a_run_is_no_error(rig: Rig) -> None:
    """The kernel ends the repetitions with EINTR, as it did to a daemon that was told to end."""
    arrived: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: arrived.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, SOON_S)
        assert bpf.TestRun(rig.dp.programs["mrc_survey"], CARRIER).run(LONG) == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert arrived == [signal.SIGALRM]
