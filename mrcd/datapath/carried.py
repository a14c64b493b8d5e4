# SPDX-License-Identifier: GPL-2.0-only
"""What planes carry."""

from __future__ import annotations

from mrcd.config.config import Config
from mrcd.linux import ethtool


def plane_mbps(config: Config) -> int:
    """Return what a plane carries: the fabric's rate, else its slowest NIC's speed; 0 if unknown.

    NICs without a link are left out. Their speeds are those of this thread's network namespace.
    """
    if config.fabric.rate_mbps:
        return config.fabric.rate_mbps
    speeds = [ethtool.link_mbps(name) for name in config.interfaces]
    return min((speed for speed in speeds if speed), default=0)
