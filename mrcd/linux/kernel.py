# SPDX-License-Identifier: GPL-2.0-only
"""What the running kernel can do, judged by its release, and whether it forwards."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

FORWARDING = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}
"""The sysctl that makes a host forward packets, by the IP version."""
DECAP = (6, 3)
"""The first release whose bpf_skb_adjust_room has BPF_F_ADJ_ROOM_DECAP_L3_IPV4 and _IPV6."""


def version(release: str) -> tuple[int, int]:
    """Return the first two numbers of a kernel release; (0, 0) if there are none."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def has_decap(release: str | None = None) -> bool:
    """Return whether bpf_skb_adjust_room can be told which packet is behind an outer header.

    Without a `release` the running kernel is judged.
    """
    return version(os.uname().release if release is None else release) >= DECAP


def forwarding() -> dict[int, bool]:
    """Return whether this host forwards packets, by the IP version, as far as it has that."""
    found = {}
    for number, key in FORWARDING.items():
        with contextlib.suppress(OSError):
            text = Path("/proc/sys", key.replace(".", "/")).read_text()
            found[number] = text.strip() != "0"
    return found
