# SPDX-License-Identifier: GPL-2.0-only
"""Constants of the transport that no specification fixes, with their reasons.

The measurements behind them are in docs/protocol.md.
"""

from __future__ import annotations

US = 1_000
MS = 1_000_000

REO_MIN_NS = 700 * US
"""Least reorder guard. It covers queue growth that the latest round trips do not show yet."""
REO_MAX_NS = 4 * MS
"""Greatest reorder guard. It bounds how long the death of a path stays undetected."""
FIFO_SLACK_NS = 100 * US
"""Reordering tolerated within a path, whose packets two CPUs may handle."""
RTO_MIN_NS = 3 * MS
"""Least time-out. A delayed SACK may take two ticks, and a busy clock is late."""
HOLE_TIMEOUT_NS = 1000 * MS
"""The receiver abandons a gap after this time, so that nothing stalls for ever. Any repair takes
far less."""
SACK_PACKETS = 16
SACK_BYTES = 16384
"""A SACK is sent after this many packets or bytes, which are 100 to 140 us apart at 1 Gb/s."""
SACK_GAP_NS = 50 * US
"""Least time between two SACKs. It is far below the time after which any packet counts as lost."""
CIRCLE_NS = 100 * US
"""Time for which an early cell waits in the backlog, uncopied. Planes' delays differ by less; what
lasts longer is a gap."""
SOLICIT_NS = 50 * US
"""Least time between two questions for a SACK, as between two SACKs."""
QUEUE_TARGET_NS = 2_500 * US
"""Queueing delay at which TCP is told to slow down. Links here buffer 5 ms."""
CC_TARGET_NS = 1_000 * US
"""Least queueing delay that a sender alone may cause: a busy CPU delays packets by as much."""
CC_TARGET_PACKETS = 2
"""... or the time that this number of full packets takes on the slowest plane."""
CC_RATE_MBPS = 100_000
"""What a plane is taken to carry if neither the fabric's description nor a NIC says."""
PROBE_INTERVAL_NS = 1 * MS
PROBE_IDLE_NS = 700 * MS
"""Each plane of an idle QP is probed at this interval, over another path each time."""
PROBE_CREDIT_NS = 100 * MS
"""Up to this time's worth of unsent probes may go out at once, because paths fail together."""
HOLD_BASE_NS = 4 * MS
HOLD_MAX_NS = 1000 * MS
"""Extra time out of use for a path that loses clearly more than the others. It doubles with each
relapse."""
JUDGE_NS = 10 * MS
"""Interval at which the shares of planes are judged: a few round trips, so that the effect of a
change shows first."""
JUDGE_SLACK_NS = 1 * MS
"""Tolerated delay above the best plane's, which time slices of a busy machine may cause."""
SLOW_SLACK_NS = 500 * US
"""Tolerated delay of a path above its plane's lower quartile, for the same reason."""
CELL_SLOTS = 256
"""Cells of several packets that each ring keeps, 80 KB each. Beyond that, they are cut."""
