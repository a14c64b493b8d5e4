# SPDX-License-Identifier: GPL-2.0-only
"""Compile the C programs of the comparison when they are first needed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.instruments.flow import BenchFailed

_HERE = Path(__file__).parent
_BUILT = Path(__file__).parents[2] / "build" / "bench"


def traffic() -> Path:
    """Return the program that makes traffic, see traffic.c."""
    return _compiled("traffic.c", "traffic")


def tcp_preload() -> Path:
    """Return the library that gives a program cubic TCP or MPTCP, see tcp_preload.c."""
    return _compiled("tcp_preload.c", "tcp_preload.so", "-shared", "-fPIC", "-ldl")


def _compiled(source: str, target: str, *options: str) -> Path:
    """Return an up-to-date build of a program; compile it if needed."""
    text, built = _HERE / source, _BUILT / target
    if not built.exists() or built.stat().st_mtime < text.stat().st_mtime:
        _BUILT.mkdir(parents=True, exist_ok=True)
        line = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(built), str(text), *options]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        except FileNotFoundError:
            raise BenchFailed("gcc was not found: run `make setup`") from None
        if done.returncode:
            raise BenchFailed(f"{source} does not compile: {done.stderr.strip()}")
    return built
