# SPDX-License-Identifier: GPL-2.0-only
"""Run hypothesis state machines on the same examples each time, or with MRC_HYPOTHESIS=long on a
thousand new ones.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

LONG = os.environ.get("MRC_HYPOTHESIS") == "long"


def run(machine: type[RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Run a machine. Raises AssertionError with the shortest failing sequence of steps."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=1000 if LONG else examples,
            stateful_step_count=steps,
            derandomize=not LONG,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
