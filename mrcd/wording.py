# SPDX-License-Identifier: GPL-2.0-only
"""Words for quantities that the daemon and `mrcctl` both write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mrcd.model import PlaneRate

CUT: Final = 0.8
"""A plane that carries less than this part of what its NIC says is worth a word."""


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour} h"
    if hours:
        return f"{hours} h {minute} min"
    return f"{minutes} min {second} s"


def falls_short(rate: PlaneRate) -> str | None:
    """Return what a NIC says and what got through, if that is clearly less; or None.

    None also where a host, and not the link, may be the reason.
    """
    says = rate.nic_mbps
    if says is None or rate.at_least or rate.mbps >= CUT * says:
        return None
    way = "to" if rate.direction == "tx" else "from"
    return carries_less(rate.interface, says, rate.mbps, f"{way} {rate.peer}")


def carries_less(who: str, says: int, mbps: float, whither: str) -> str:
    """Return who says what a plane carries, and what got through; both in Mb/s."""
    return f"{who} says {says} Mb/s, {mbps:.0f} get through {whither}"
