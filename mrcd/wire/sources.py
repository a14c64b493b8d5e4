# SPDX-License-Identifier: GPL-2.0-only
"""Where the files that travel with the package lie."""

from __future__ import annotations

from pathlib import Path


def bpf_dir() -> Path:
    """The folder of the BPF sources and of the two headers both languages read.

    An installed package carries it inside itself; in a checkout it lies beside the package.
    Raises FileNotFoundError naming both places when neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "bpf", package.parent / "bpf")
    for candidate in candidates:
        if (candidate / "mrc_wire.h").is_file():
            return candidate
    tried = " or ".join(str(candidate) for candidate in candidates)
    raise FileNotFoundError(f"mrc_wire.h not found in {tried}; install the package again")
