# SPDX-License-Identifier: GPL-2.0-only
"""By which NIC, to which address and when a host behind routers sends Hellos (pure).

A line is a plane of ours and an address of another host. Where routers lead from each NIC to each
address, all of them are lines, and hosts choose the same ones of those that carry Hellos both ways
(mrcd/fabric/cabling.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mrcd.handshake.unicast import NO_COOKIE

MS: Final = 1_000_000
SECOND: Final = 1000 * MS
EAGER_NS: Final = 250 * MS
"""Time between the first Hellos on a line ..."""
EAGER: Final = 6
"""... which are this many."""
RETRY_NS: Final = SECOND
"""After them, the time between Hellos to a host of which nothing is heard ..."""
PATIENT_NS: Final = 60 * SECOND
"""... and after this time as between those to hosts that are heard:"""
CALM_NS: Final = 5 * SECOND
SEED_NS: Final = 2 * SECOND
"""The same for a seed, which may begin anew and know of nobody."""
LOST_NS: Final = 12 * SECOND
"""A line is not heard any more after this time without a Hello."""
GAP_NS: Final = 50 * MS
"""The least time between two Hellos on a line."""
RATE: Final = 200
"""Hellos a second of one host at most ..."""
BURST: Final = 256
"""... and at once."""
LINES_MAX: Final = 4096

Line = tuple[int, str]


@dataclass(slots=True)
class _State:
    """What is known of a line. given: the cookie that the other end gave us."""

    owner: str
    began_ns: int
    due_ns: int
    tries: int = 0
    sent_ns: int | None = None
    heard_ns: int | None = None
    given: bytes = NO_COOKIE


class Lines:
    """The lines of one host."""

    def __init__(self) -> None:
        self._lines: dict[Line, _State] = {}
        self._seeds: frozenset[str] = frozenset()
        self._alive_ns: dict[str, int] = {}
        self._paid_ns = -BURST * SECOND

    def aim(
        self, owners: Mapping[str, str], planes: Iterable[int], seeds: Iterable[str], now_ns: int
    ) -> None:
        """Send to these addresses by these planes from now on, and to no others.

        `owners` has the name of the host at each address, or the address where it is not known.
        """
        self._seeds = frozenset(seeds)
        wanted = {(plane, address): owner for address, owner in owners.items() for plane in planes}
        self._lines = {line: state for line, state in self._lines.items() if line in wanted}
        for line, owner in wanted.items():
            known = self._lines.get(line)
            if known is not None:
                known.owner = owner
            elif len(self._lines) < LINES_MAX:
                self._lines[line] = _State(owner, now_ns, now_ns)
        self._alive_ns = {
            owner: at for owner, at in self._alive_ns.items() if now_ns - at < PATIENT_NS
        }

    @property
    def all(self) -> list[Line]:
        """All lines."""
        return list(self._lines)

    def due(self, now_ns: int) -> list[Line]:
        """Return on which lines to send now, the longest due first; they count as sent."""
        ready = sorted((s.due_ns, line) for line, s in self._lines.items() if s.due_ns <= now_ns)
        paid = max(self._paid_ns, now_ns - BURST * SECOND // RATE)
        few = ready[: max(0, (now_ns - paid) * RATE // SECOND)]
        self._paid_ns = paid + len(few) * SECOND // RATE
        for _due, line in few:
            self._sent(line, now_ns)
        return [line for _due, line in few]

    def next_ns(self, now_ns: int) -> int:
        """Return when a line is due next."""
        soonest = min((state.due_ns for state in self._lines.values()), default=now_ns + CALM_NS)
        return max(soonest, self._paid_ns + SECOND // RATE - BURST * SECOND // RATE)

    def _sent(self, line: Line, now_ns: int) -> None:
        state = self._lines[line]
        state.sent_ns = now_ns
        state.tries += 1
        state.due_ns = now_ns + self._gap_ns(line, state, now_ns)

    def _gap_ns(self, line: Line, state: _State, now_ns: int) -> int:
        calm_ns = SEED_NS if line[1] in self._seeds else CALM_NS
        if state.heard_ns is not None and now_ns - state.heard_ns < LOST_NS:
            return calm_ns
        if state.tries < EAGER:
            return EAGER_NS
        if now_ns - self._alive_ns.get(state.owner, -LOST_NS) < LOST_NS:
            return calm_ns  # it is heard on other lines
        return RETRY_NS if now_ns - state.began_ns < PATIENT_NS else calm_ns

    def heard(self, line: Line, owner: str, now_ns: int) -> None:
        """Note that a host was heard on a line."""
        self._alive_ns[owner] = now_ns
        if (state := self._lines.get(line)) is not None:
            state.owner, state.heard_ns = owner, now_ns

    def is_heard(self, line: Line, now_ns: int) -> bool:
        """Return whether a line is heard, so that the kernel need not be asked for a route."""
        state = self._lines.get(line)
        heard_ns = None if state is None else state.heard_ns
        return heard_ns is not None and now_ns - heard_ns < LOST_NS

    def hurry(self, line: Line, now_ns: int) -> None:
        """Send on a line soon: its other end waits."""
        if (state := self._lines.get(line)) is not None:
            after = now_ns if state.sent_ns is None else max(now_ns, state.sent_ns + GAP_NS)
            state.due_ns = min(state.due_ns, after)

    def begin(self, now_ns: int) -> None:
        """Send on all lines often for a moment, as at first."""
        for line, state in self._lines.items():
            state.tries = 0
            self.hurry(line, now_ns)

    def given(self, line: Line) -> bytes:
        """Return the cookie to send on a line."""
        state = self._lines.get(line)
        return NO_COOKIE if state is None else state.given

    def give(self, line: Line, cookie: bytes) -> bool:
        """Keep the cookie of a line; return whether it is another one than before."""
        state = self._lines.get(line)
        if state is None or state.given == cookie:
            return False
        state.given = cookie
        return True
