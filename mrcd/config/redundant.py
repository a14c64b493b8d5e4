# SPDX-License-Identifier: GPL-2.0-only
"""Which packets are sent on two planes at once: what `[mrc0] redundant` says (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mrcd.wire.abi import ABI

MOST = ABI.MRC_REDUNDANT_PORTS
_PORT_MAX, _DSCP_MAX = 65535, 63
_FORM = re.compile(r"(udp|dscp)/(0|[1-9][0-9]{0,4})")
_EXAMPLE = 'write one like "udp/5000", a port of UDP, or "dscp/46"'


def wrong(text: str, earlier: Sequence[str]) -> str | None:
    """Return why this is no kind of packets, behind those before it; None if it is one."""
    found = _FORM.fullmatch(text)
    if found is None:
        return f"is no kind of packets; {_EXAMPLE}"
    kind, number = found[1], int(found[2])
    if not 1 <= number <= (_PORT_MAX if kind == "udp" else _DSCP_MAX):
        most = (
            "port of UDP: 1 to 65535" if kind == "udp" else "DSCP that sets packets apart: 1 to 63"
        )
        return f"is no {most}"
    return "appears twice" if text in earlier else None


def split(named: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the UDP ports and the DSCPs that these kinds name."""
    numbers: dict[str, list[int]] = {"udp": [], "dscp": []}
    for text in named:
        kind, _, number = text.partition("/")
        numbers[kind].append(int(number))
    return numbers["udp"], numbers["dscp"]
