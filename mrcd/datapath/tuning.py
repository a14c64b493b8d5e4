# SPDX-License-Identifier: GPL-2.0-only
"""Constants of the transport that no specification fixes, with their reasons.

The measurements behind them are in docs/protocol.md.
"""

from __future__ import annotations

US = 1_000
MS = 1_000_000

REO_MIN_NS = 700 * US
"""Least reorder guard: growth of a queue that the latest round trips do not show yet."""
REO_MAX_NS = 4 * MS
"""Greatest reorder guard: bounds how long the death of a path stays unseen."""
FIFO_SLACK_NS = 100 * US
"""Reordering granted within a path: one path's packets may be handled on two CPUs."""
RTO_MIN_NS = 3 * MS
"""Least time-out: a delayed SACK may take two ticks, and a busy clock is late."""
HOLE_TIMEOUT_NS = 1000 * MS
"""The receiver gives up on a gap. Far beyond what any repair takes; nothing stalls for ever."""
SACK_PACKETS = 8
SACK_BYTES = 16384
"""A SACK after so many packets or bytes: 100 to 140 us apart at 1 Gb/s."""
SACK_GAP_NS = 50 * US
"""But no sooner after the last one: far below what any loss waits for to be believed."""
QUEUE_TARGET_NS = 2_500 * US
"""Queueing delay at which TCP is told to slow down; links here hold 5 ms."""
PROBE_INTERVAL_NS = 1 * MS
PROBE_IDLE_NS = 1000 * MS
"""Each plane of an idle QP is probed so often, on another path each time."""
HOLD_BASE_NS = 4 * MS
HOLD_MAX_NS = 1000 * MS
"""Extra time away for a path that loses clearly more than the others, doubling by relapse."""
JUDGE_NS = 10 * MS
"""Shares of planes are judged so often: a few round trips, so that a change shows first."""
JUDGE_SLACK_NS = 1 * MS
"""Delay over the best plane's that is nobody's fault: time slices of a busy machine."""
SLOW_SLACK_NS = 500 * US
"""The same for a path over its plane's lower quartile."""
