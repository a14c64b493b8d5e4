# SPDX-License-Identifier: GPL-2.0-only
"""Words for quantities that the daemon and `mrcctl` both write."""

from __future__ import annotations


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
