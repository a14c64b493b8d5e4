# SPDX-License-Identifier: GPL-2.0-only
"""Make other builds of mrcd: copies of its sources with some of them altered."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from cli.lab import processes
from mrcd.handshake import versions
from mrcd.wire.abi import ABI
from rigs.lab_hosts import ROOT

NEW_COUNTER = "news"


@dataclass(frozen=True, slots=True)
class Edit:
    """Another text in the place of one that a source file has once."""

    file: str
    old: str
    new: str


def next_release() -> list[Edit]:
    """Return what an ordinary next release changes: a counter, a program, the newest version."""
    count, newest = ABI.MRC_C_COUNT, versions.NEWEST
    return [
        Edit(
            "bpf/mrc_abi.h",
            f"#define MRC_C_COUNT {count}\n",
            f"#define MRC_C_{NEW_COUNTER.upper()} {count} /* runs of the clock's program */\n"
            f"#define MRC_C_COUNT {count + 1}\n",
        ),
        Edit(
            "bpf/beat.c",
            "\t\tck->ticks++;\n",
            f"\t\tck->ticks++;\n\t\tcount_atomic(MRC_C_{NEW_COUNTER.upper()});\n",
        ),
        Edit("bpf/tick.c", "#define REVERSE_SACKS 4 ", "#define REVERSE_SACKS 8 "),
        Edit("mrcd/handshake/versions.py", f"NEWEST = {newest}\n", f"NEWEST = {newest + 1}\n"),
    ]


def build(folder: Path, edits: Sequence[Edit]) -> Path:
    """Copy mrcd into a folder, alter it, and return the command that starts this build."""
    for name in ("mrcd", "cli", "bpf"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    for edit in edits:
        source = folder / edit.file
        text = source.read_text()
        assert text.count(edit.old) == 1, (
            f"{edit.file} has {edit.old!r} {text.count(edit.old)} times"
        )
        source.write_text(text.replace(edit.old, edit.new))
    command = folder / "start"
    command.write_text(
        f'#!/bin/sh\ncd {folder}\nexport PYTHONPATH={folder}\nexec {sys.executable} -m mrcd "$@"\n'
    )
    command.chmod(0o755)
    return command


@contextlib.contextmanager
def started_as(command: Path) -> Iterator[None]:
    """Make labs start this build within the block."""
    with mock.patch.object(processes, "daemon_command", return_value=[str(command)]):
        yield
