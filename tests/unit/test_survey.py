# SPDX-License-Identifier: GPL-2.0-only
"""How often the survey wakes up."""

from __future__ import annotations

import pytest

from mrcd.evidence import INTERVAL_NS
from mrcd.survey import PEERS_TOLD_QUIET, interval_of, tick_of


@pytest.mark.parametrize(
    ("pps", "lossy_s", "quiet_s"),
    [(1, 0.1, 0.25), (200, 0.1, 0.25), (500, 0.04, 0.1), (1000, 0.02, 0.05), (100_000, 0.02, 0.02)],
)
def test_tick_of__is_longer_while_nothing_is_lost(pps: int, lossy_s: float, quiet_s: float) -> None:
    assert tick_of(pps, quiet=False) == lossy_s
    assert tick_of(pps, quiet=True) == quiet_s
    assert quiet_s * 1e9 <= INTERVAL_NS / 2  # what is read then has had time to come back


@pytest.mark.parametrize(
    ("peers", "quiet", "seconds"),
    [
        (1, True, 0.5),
        (PEERS_TOLD_QUIET, True, 0.5),
        (PEERS_TOLD_QUIET + 1, True, 1.0),
        (1000, True, 1.0),
        (1000, False, 0.5),
    ],
)
def test_interval_of__is_longer_among_many_while_nothing_is_lost(
    peers: int, quiet: bool, seconds: float
) -> None:
    assert interval_of(peers, quiet=quiet) == seconds
