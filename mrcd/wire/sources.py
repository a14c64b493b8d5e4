# SPDX-License-Identifier: GPL-2.0-only
"""Find the files that are shipped with the package."""

from __future__ import annotations

from pathlib import Path


def bpf_dir() -> Path:
    """Return the folder of the BPF sources and of the headers that C and Python share.

    An installed package contains this folder; in a checkout it lies beside the package. Raises
    FileNotFoundError with both places when neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "bpf", package.parent / "bpf")
    for candidate in candidates:
        if (candidate / "mrc_wire.h").is_file():
            return candidate
    tried = " or ".join(str(candidate) for candidate in candidates)
    raise FileNotFoundError(f"mrc_wire.h not found in {tried}; install the package again")
