# SPDX-License-Identifier: GPL-2.0-only
"""Test when hand-shakes count as blocked on their way to our sockets."""

from __future__ import annotations

from mrcd.peers.blocked import LEAST, Blocked


def test_what_is_read_is_not_blocked() -> None:
    blocked = Blocked()
    assert not any(blocked.look(100 * turn, turn) for turn in range(10))


def test_packets_that_are_passed_on_and_never_read_are() -> None:
    blocked = Blocked()
    assert not blocked.look(50, 0), "an earlier daemon may have read those"
    assert not blocked.look(50 + LEAST - 1, 0)
    assert blocked.look(50 + LEAST, 0)
    assert blocked.look(50 + LEAST, 0), "nothing says otherwise"
    assert not blocked.look(50 + LEAST, 1)
    assert not blocked.look(50 + 2 * LEAST - 1, 1)
    assert blocked.look(50 + 2 * LEAST, 1)


def test_nothing_arrives() -> None:
    blocked = Blocked()
    assert not any(blocked.look(7, 3) for _ in range(100))
