# SPDX-License-Identifier: GPL-2.0-only
"""The machines of a check, and a verdict on each of its steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from vm.clock import CLOCK, LOOK_S
from vm.machines import SWITCHES
from vm.measure import Figures
from vm.qemu import MachineFailed, Vm


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a step. `reason` is empty if it passed."""

    step: str
    good: bool
    seconds: float
    figures: Figures
    reason: str


@dataclass(slots=True)
class Check:
    """A check in progress: its machines, deadline and verdicts so far."""

    vms: dict[str, Vm]
    deadline: float
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def hosts(self) -> list[Vm]:
        return [vm for vm in self.vms.values() if vm.machine.role == "host"]

    @property
    def switches(self) -> Vm:
        return self.vms[SWITCHES]

    def left_s(self) -> float:
        """Return the seconds left for the whole check; MachineFailed if there are none."""
        left = self.deadline - CLOCK.now()
        if left <= 0:
            raise MachineFailed("the time limit of the whole check is over (--minutes)")
        return left

    def together(self, what: Callable[[Vm], object], vms: list[Vm]) -> None:
        """Call a function for several machines at once."""
        with ThreadPoolExecutor(len(vms)) as pool:
            for done in [pool.submit(what, vm) for vm in vms]:
                done.result()

    def step(self, name: str, what: Callable[[], Figures]) -> bool:
        """Run one step, and keep and print its verdict; return whether it passed."""
        began, stopped = CLOCK.now(), CLOCK.stopped()
        figures: Figures = {}
        reason = ""
        try:
            self.left_s()
            figures = what()
        except (MachineFailed, AssertionError, OSError, ValueError, KeyError) as error:
            reason = str(error) or type(error).__name__
        seconds = round(CLOCK.now() - began, 1)
        if (stood := CLOCK.stopped() - stopped) > LOOK_S:
            figures = figures | {"stopped_s": round(stood)}
        verdict = Verdict(name, not reason, seconds, figures, reason)
        self.verdicts.append(verdict)
        print(line(verdict), flush=True)
        return verdict.good


def line(verdict: Verdict) -> str:
    """Return a verdict as a row of the table."""
    words = ", ".join(f"{key} {value}" for key, value in verdict.figures.items())
    outcome = "ok" if verdict.good else "FAILED"
    return f"{verdict.step:16} {outcome:7} {verdict.seconds:6.1f} s  {verdict.reason or words}"
