# SPDX-License-Identifier: GPL-2.0-only
"""Rules for networks of sessions that lose and replay packets."""

from __future__ import annotations

import random
from typing import Any, Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule


class Flights(Protocol):
    """A network: the packets on their way, and all that there were; it delivers one."""

    flight: list[Any]
    history: list[Any]

    def deliver(self, packet: Any) -> None: ...


class Lossy(RuleBasedStateMachine):
    """What may become of packets in any of these networks."""

    world: Flights

    @precondition(lambda self: self.world.flight)
    @rule(share=st.integers(1, 4), seed=st.integers(0, 999))
    def lose(self, share: int, seed: int) -> None:
        rng = random.Random(seed)
        self.world.flight = [p for p in self.world.flight if rng.randrange(4) >= share]

    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.world.history) - 1))
        self.world.deliver(self.world.history[at])
