# SPDX-License-Identifier: GPL-2.0-only
"""What the running kernel can do, judged by its release."""

from __future__ import annotations

import os
import re

CELLS = (6, 3)
"""The first release whose bpf_skb_adjust_room can take an outer header off a large packet
(BPF_F_ADJ_ROOM_DECAP_L3_IPV4 and _IPV6)."""


def version(release: str) -> tuple[int, int]:
    """Return the first two numbers of a kernel release; (0, 0) if there are none."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def has_cells() -> bool:
    """Return whether the running kernel can take cells off the wire."""
    return why_no_cells() is None


def why_no_cells(release: str | None = None) -> str | None:
    """Return why a kernel cannot take cells off the wire, or None if it can.

    Without a `release` the running kernel is judged.
    """
    release = os.uname().release if release is None else release
    if version(release) >= CELLS:
        return None
    return (
        f"Linux {release} cannot take the outer header off a large packet in BPF; "
        f"Linux {CELLS[0]}.{CELLS[1]} can"
    )
