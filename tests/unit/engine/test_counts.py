# SPDX-License-Identifier: GPL-2.0-only
"""Test what is concluded from counters of the programs."""

from __future__ import annotations

from mrcd.engine.counts import KEPT, LEAST, Blocked, Counts, Refused
from mrcd.linux.neighbortable import Table
from mrcd.service.findings import Findings


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


def test_what_was_refused_is_said_for_a_while() -> None:
    refused = Refused()
    assert not refused.look(70), "that may be long ago"
    assert not refused.look(70)
    assert refused.look(71)
    assert [refused.look(71) for _ in range(KEPT)] == [True] * (KEPT - 1) + [False]
    assert refused.look(72)


def test_status_is_told_and_the_log() -> None:
    counted = {"control_rx": 0, "drop_not_ours": 0}
    findings = Findings()
    counts = Counts(lambda: counted, lambda: 5, "mrc1", 4971, findings, list)
    counts.look()
    assert (findings.lines, counts.warnings) == ([], [])
    counted |= {"control_rx": LEAST, "drop_not_ours": 1}
    counts.look()
    (line,), (warning,) = findings.lines, counts.warnings
    assert "drops UDP port 4971" in line
    assert "oifname mrc1 masquerade" in warning


def test_full_table_of_neighbours_is_said_for_a_while() -> None:
    tables = [Table("ipv4", 1024, 3, 1024), Table("ipv6", 10, 0, None)]
    counted = {"control_rx": 0, "drop_not_ours": 0}
    counts = Counts(lambda: counted, lambda: 5, "mrc0", 4971, Findings(), lambda: tables)
    counts.look()
    assert counts.warnings == [], "it was full before mrcd began"
    tables[:] = [Table("ipv4", 1024, 4, 1024), Table("ipv6", 10, 1, None)]
    counts.look()
    first, second = counts.warnings
    assert "ipv4 is full, 1024 entries for the whole machine" in first
    assert "raise net.ipv4.neigh.default.gc_thresh3" in first
    assert "ipv6 is full for the whole machine" in second
    for _ in range(KEPT):
        counts.look()
    assert counts.warnings == []
