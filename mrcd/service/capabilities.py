# SPDX-License-Identifier: GPL-2.0-only
"""What mrcd needs of root's rights: four capabilities, whoever it runs as."""

from __future__ import annotations

from pathlib import Path

NEEDED = {
    "CAP_NET_ADMIN": 12,  # interfaces, routes, attaching programs
    "CAP_NET_RAW": 13,  # probes and offers are packets of a protocol of their own
    "CAP_PERFMON": 38,  # the verifier lets only those compare packet pointers as bcc compiles it
    "CAP_BPF": 39,  # maps and programs
}
"""Names and numbers (linux/capability.h). The service's unit and the container grant these."""


def lacking() -> list[str]:
    """Which of them this process does not have."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
            return [name for name, bit in NEEDED.items() if not held >> bit & 1]
    return list(NEEDED)
