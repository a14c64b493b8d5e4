# SPDX-License-Identifier: GPL-2.0-only
"""The contents of the BPF maps, read from bpf/mrc_abi.h and bpf/mrc_capture.h.

Nothing is copied into Python by hand, so the two languages cannot disagree.
"""

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
"""Each counter's index in the map, its name, and a description of what it counts."""
