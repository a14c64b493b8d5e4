# SPDX-License-Identifier: GPL-2.0-only
"""What crosses the maps, read from bpf/mrc_abi.h and bpf/mrc_capture.h and never mirrored."""

from __future__ import annotations

from mrcd.wire.packet import read_header
from mrcd.wire.sources import bpf_dir

ABI = read_header(bpf_dir() / "mrc_abi.h")
CAPTURE = read_header(bpf_dir() / "mrc_capture.h")

COUNTERS: tuple[tuple[int, str, str], ...] = tuple(
    (value, name.removeprefix("MRC_C_").lower(), ABI.comments[name])
    for name, value in ABI.constants.items()
    if name.startswith("MRC_C_") and name != "MRC_C_COUNT"
)
"""Every counter: its index in the map, its name, what it counts."""
