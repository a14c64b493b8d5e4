# SPDX-License-Identifier: GPL-2.0-only
"""Compute how a flow answers a step: when it has its new share, and how far it exceeds it (pure).

Rates are those of bins that begin with the step. The share is reached with the first bin that has
it, if the mean of the next SUSTAINED_NS, this bin included, has it, too. A rate has the share from
90 % of it on. Where the share is less than the rate before, it must not exceed 110 % either: the
flow has to give something up first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.instruments.metrics import MS, Arrivals, Floats

WITHIN = 0.1
"""The part of the new share by which a rate may miss it."""
SUSTAINED_NS = 100 * MS


@dataclass(frozen=True, slots=True)
class Response:
    """The answer of a flow to a step.

    `reached_ns` is the time from the step to the end of the first bin with the new share, and
    `over` the part of the share by which the largest bin from there on exceeds it. Both are None if
    the share was never reached. `settled` is the goodput of the last second as a part of the share.
    """

    reached_ns: int | None
    over: float | None
    settled: float


def response(
    arrivals: Arrivals,
    *,
    step_ns: int,
    until_ns: int,
    before_bps: float,
    share_bps: float,
    bin_ns: int,
    last_ns: int,
) -> Response:
    """Judge a step after which a flow of `before_bps` should have `share_bps`.

    `last_ns` is how much of the end, up to `until_ns`, counts as settled.
    """
    rates = arrivals.bins_bps(step_ns, until_ns, bin_ns)
    most = 1 + WITHIN if share_bps < before_bps else None
    first = reached(rates / share_bps, max(1, SUSTAINED_NS // bin_ns), most)
    settled = arrivals.bps(until_ns - last_ns, until_ns) / share_bps
    if first is None:
        return Response(None, None, settled)
    return Response((first + 1) * bin_ns, overshoot(rates[first:] / share_bps), settled)


def reached(parts: Floats, span: int, most: float | None = None) -> int | None:
    """Return the first bin with the share, if the mean of `span` bins from there has it, too.

    `parts` are rates as parts of the share. `most` is the largest part that counts, None: any.
    """

    def there(part: float) -> bool:
        return part >= 1 - WITHIN and (most is None or part <= most)

    for first in range(len(parts) - span + 1):
        if there(float(parts[first])) and there(float(parts[first : first + span].mean())):
            return first
    return None


def overshoot(parts: Floats) -> float:
    """Return by how much the largest part exceeds the whole; 0 if none does."""
    return max(0.0, float(np.max(parts)) - 1)
