# SPDX-License-Identifier: GPL-2.0-only
"""The state machine of a path as one table (pure).

The states and most transitions come from the specification (figure 5, as far as it is public).
docs/protocol.md marks the rows that fill a gap. ``bpf/path.h`` holds the same table for the
programs; a test compares the two entry by entry.
"""

from __future__ import annotations

from enum import IntEnum

from mrcd.wire.abi import ABI


class State(IntEnum):
    """The state of a path."""

    GOOD = ABI.MRC_PATH_GOOD
    DENIED = ABI.MRC_PATH_DENIED
    SKIP = ABI.MRC_PATH_SKIP
    ASSUMED_BAD = ABI.MRC_PATH_ASSUMED_BAD


class Event(IntEnum):
    """An event that can change the state of a path."""

    TURN = ABI.MRC_ON_TURN  # the rotation reached it
    MARK = ABI.MRC_ON_MARK  # SACK m = SKIP_ONCE, or NACK TRIMMED
    LOSS = ABI.MRC_ON_LOSS  # packet or probe lost, or SACK m = ALWAYS_SKIP
    PROBE = ABI.MRC_ON_PROBE  # enough probes in a row were answered
    PROBE_MARK = ABI.MRC_ON_PROBE_MARK  # the same, and the last answer was marked
    DENY = ABI.MRC_ON_DENY  # operator or fault map
    ALLOW = ABI.MRC_ON_ALLOW


_G, _D, _S, _B = State.GOOD, State.DENIED, State.SKIP, State.ASSUMED_BAD

TRANSITIONS: dict[Event, dict[State, State]] = {
    Event.TURN: {_G: _G, _D: _D, _S: _G, _B: _B},
    Event.MARK: {_G: _S, _D: _D, _S: _S, _B: _B},
    Event.LOSS: {_G: _B, _D: _D, _S: _B, _B: _B},
    Event.PROBE: {_G: _G, _D: _D, _S: _S, _B: _G},
    Event.PROBE_MARK: {_G: _S, _D: _D, _S: _S, _B: _S},
    Event.DENY: {_G: _D, _D: _D, _S: _D, _B: _D},
    Event.ALLOW: {_G: _G, _D: _G, _S: _S, _B: _B},
}
"""The state after each event, by event and state before."""


def after(state: State, event: Event) -> State:
    """Return the state of a path after an event."""
    return TRANSITIONS[event][state]
