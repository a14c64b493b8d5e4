# SPDX-License-Identifier: GPL-2.0-only
"""Read the kernel's counts of a host's programs while counting is on: runs and their time.

A program that is entered by a tail call has no runs; its time counts for the first program.
Source: BPF_ENABLE_STATS and struct bpf_prog_info in include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.lab import state
from mrcd.datapath.loader import PROGRAMS, TAILS
from mrcd.linux import bpf

_ENABLE_STATS = 32
_INFO_BYTES = 224
_JITED_LEN, _XLATED_LEN, _RUN_TIME, _RUN_CNT = 16, 20, 192, 200


@dataclass(frozen=True, slots=True)
class Runs:
    """The number of a program's runs, and their total nanoseconds."""

    count: int
    ns: int

    def since(self, before: Runs) -> Runs:
        """Return the increase."""
        return Runs(self.count - before.count, self.ns - before.ns)

    @property
    def mean_ns(self) -> float:
        """Return the mean nanoseconds of a run."""
        return self.ns / self.count if self.count else 0.0


@contextlib.contextmanager
def counted() -> Iterator[None]:
    """Make the kernel count the runs of all programs while the block runs."""
    fd = bpf.call(_ENABLE_STATS, struct.pack("=I", 0), "count the runs of programs")
    try:
        yield
    finally:
        os.close(fd)


def _info(fd: int) -> bytes:
    info = ctypes.create_string_buffer(_INFO_BYTES)
    attr = struct.pack("=IIQ", fd, _INFO_BYTES, bpf.address_of(info))
    bpf.call(bpf.OBJ_GET_INFO_BY_FD, attr, "program info")
    return info.raw


def runs(fd: int) -> Runs:
    """Return a program's counts so far."""
    ns, count = struct.unpack_from("=QQ", _info(fd), _RUN_TIME)
    return Runs(count, ns)


def lengths(fd: int) -> tuple[int, int]:
    """Return a program's instructions after the verifier, and the bytes of its native code."""
    native, instructions = struct.unpack_from("=II", _info(fd), _JITED_LEN)
    return instructions // 8, native


@contextlib.contextmanager
def programs_of(name: str, host: str) -> Iterator[dict[str, int]]:
    """Open the programs of a lab's host while the block runs; yield descriptors by name."""
    (folder,) = state.places(name, host).bpffs.glob("layout-*/code-*")
    found: dict[str, int] = {}
    try:
        for program in PROGRAMS:
            found[program] = bpf.get(Path(folder, program))
        yield found
    finally:
        for fd in found.values():
            os.close(fd)


def snapshot(programs: Mapping[str, int]) -> dict[str, Runs]:
    """Return the counts so far of the programs that have any."""
    return {name: runs(fd) for name, fd in programs.items() if name not in TAILS}
