# SPDX-License-Identifier: GPL-2.0-only
"""What planes carry."""

from __future__ import annotations

from mrcd.config.config import Config
from mrcd.linux import ethtool


def plane_mbps(config: Config) -> int:
    """Return what a plane carries: the fabric's rate, else its slowest NIC's speed; 0 if unknown.

    Standby planes are left out, and NICs without a link. Speeds are those of this thread's network
    namespace.
    """
    if config.fabric.rate_mbps:
        return config.fabric.rate_mbps
    speeds = [ethtool.link_mbps(name) for name in config.serving]
    return min((speed for speed in speeds if speed), default=0)
