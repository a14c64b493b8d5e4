# SPDX-License-Identifier: GPL-2.0-only
"""What planes carry, and what part of a turn each gets for that."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from mrcd.config.config import Config
from mrcd.datapath.view import PLANES
from mrcd.linux import ethtool
from mrcd.wire.abi import ABI

FULL: int = ABI.MRC_SHARE_FULL


def says(config: Config) -> tuple[int, ...]:
    """Return what each plane should carry, Mb/s: its rate as written, else its NIC's speed.

    0 where that is unknown, as of a NIC without a link. Speeds are those of this thread's network
    namespace.
    """
    return tuple(plane_says(config, plane) for plane in range(len(config.interfaces)))


def plane_says(config: Config, plane: int) -> int:
    """Return the same of one plane."""
    written = config.nics[plane].rate_mbps if config.nics else config.fabric.rate_mbps
    return written or ethtool.link_mbps(config.interfaces[plane])


def common(ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, ...]:
    """Return the lesser of two hosts' rates by plane; 0 where neither is known."""
    both = zip_longest(ours, theirs[: len(ours)], fillvalue=0)
    return tuple(min(one, other) if one and other else one or other for one, other in both)


def mean_mbps(rates: Sequence[int], standby: int) -> int:
    """Return what a plane that serves carries in the mean, Mb/s; 0 if no rate is known.

    `rates` is by plane, 0 where unknown: such a plane counts as the slowest that is known. Planes
    of the mask `standby` do not count.
    """
    counted = [rate for plane, rate in enumerate(rates) if not standby >> plane & 1]
    known = [rate for rate in counted if rate]
    if not known:
        return 0
    return max(1, sum(rate or min(known) for rate in counted) // len(counted))


def weights(rates: Sequence[int], standby: int) -> int:
    """Return the parts of a turn that planes get by what they carry, one byte for each plane.

    FULL for the fastest, and at least 1. A plane whose rate is not known gets as much as the
    slowest that is known. Of planes on standby each has its own part, by the fastest of them.
    """
    found = [FULL] * PLANES
    for mask in (~standby, standby):
        planes = [plane for plane in range(len(rates)) if mask >> plane & 1]
        known = [rates[plane] for plane in planes if rates[plane]]
        for plane in planes if known else ():
            part = FULL * (rates[plane] or min(known)) / max(known)
            found[plane] = max(1, round(part))
    return int.from_bytes(bytes(found), "little")
