# SPDX-License-Identifier: GPL-2.0-only
"""Check the four capabilities that mrcd needs, whichever user it runs as."""

from __future__ import annotations

from pathlib import Path

NEEDED = {
    "CAP_NET_ADMIN": 12,  # interfaces, routes, attaching programs
    "CAP_NET_RAW": 13,  # probes and Offers use a protocol of their own
    "CAP_PERFMON": 38,  # lets the verifier accept the packet pointer comparisons of bcc
    "CAP_BPF": 39,  # maps and programs
}
"""The names and numbers (linux/capability.h) of what the systemd unit and container grant."""


def lacking() -> list[str]:
    """Return the needed capabilities that this process does not have."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
            return [name for name, bit in NEEDED.items() if not held >> bit & 1]
    return list(NEEDED)
