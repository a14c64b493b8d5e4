# SPDX-License-Identifier: GPL-2.0-only
"""When a peer counts as unheard, and for how long that is said."""

from __future__ import annotations

from mrcd.peers.unheard import GRACE_NS, LEASE_NS, Unheard

S = 1_000_000_000


def test_silent_peer__is_unheard_at_once() -> None:
    assert Unheard().look([("a", True)], 5 * S) == {"a": 5 * S + LEASE_NS}


def test_peer_that_connects__has_some_time() -> None:
    unheard = Unheard()
    assert unheard.look([("a", False)], 5 * S) == {}
    assert unheard.look([("a", False)], 5 * S + GRACE_NS - 1) == {}
    now = 5 * S + GRACE_NS
    assert unheard.look([("a", False)], now) == {"a": now + LEASE_NS}


def test_time_begins_anew_when_the_peer_was_heard_meanwhile() -> None:
    unheard = Unheard()
    unheard.look([("a", False)], 0)
    assert unheard.look([], 2 * S) == {}
    assert unheard.look([("a", False)], GRACE_NS) == {}
    assert unheard.heard("a") == {}
    assert unheard.look([("a", False)], 2 * GRACE_NS - 1) == {}


def test_it_is_said_again_before_it_ends_and_not_all_the_time() -> None:
    unheard = Unheard()
    until = unheard.look([("a", True)], 0)["a"]
    said = []
    for second in range(1, 60):
        found = unheard.look([("a", True)], second * S)
        assert second * S < until
        if found:
            said.append(second)
            until = found["a"]
    assert len(said) <= 60 * S // (LEASE_NS // 2)


def test_end_is_said_once() -> None:
    unheard = Unheard()
    unheard.look([("a", True), ("b", True)], 0)
    assert unheard.heard("a") == {"a": 0}
    assert unheard.heard("a") == {}
    assert unheard.look([("b", True)], S) == {}
    assert unheard.look([], 2 * S) == {"b": 0}
    assert unheard.look([], 3 * S) == {}


def test_peer_that_is_removed_is_forgotten() -> None:
    unheard = Unheard()
    unheard.look([("a", True)], 0)
    unheard.forget("a")
    assert unheard.look([], S) == {}
