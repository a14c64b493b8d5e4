# SPDX-License-Identifier: GPL-2.0-only
"""The packet programs, all of them, translated from what the kernel loads (translate.py, world.py).

Inputs are rows of steps (kernel/harness.c): packets arrive, applications send, time passes.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from mrcd.fabric.routing import SRV6, Routing
from mrcd.wire.sources import bpf_dir
from tests.fuzz import world

KERNEL = Path(__file__).parent / "kernel"
COMMON = ("-O1", "-g1", "-fno-strict-aliasing", "-Wno-unused-function", "-w")


WORLDS = {
    "programs": (SRV6, False),
    "programs_ip4": (Routing("ecmp", underlay=4), True),
}
"""The targets: over uSIDs with cells in IPv6, and over IPv4 with cells in UDP, without a fabric."""


def built(target: str, folder: Path) -> Path:
    """Return the fuzzer of a target, made anew in a folder. As root, with clang."""
    _write(target, folder)
    return _compiled(folder, "fuzzer", ["clang", "-fsanitize=fuzzer"])


def replayer(target: str, folder: Path) -> Path:
    """Return a program that runs the inputs of a file; it needs no clang."""
    _write(target, folder)
    return _compiled(folder, "replay", ["gcc", "-DREPLAY"])


def _write(target: str, folder: Path) -> None:
    routing, cell_udp = WORLDS[target]
    world.write(folder, routing, cell_udp=cell_udp)


def _compiled(folder: Path, name: str, command: list[str]) -> Path:
    subprocess.run(
        [*command, *COMMON, f"-I{folder}", f"-I{KERNEL}", f"-I{bpf_dir()}",
         "-o", folder / name, KERNEL / "harness.c"],
        check=True, timeout=600,
    )  # fmt: skip
    return folder / name


def environment(folder: Path) -> dict[str, str]:
    """Return the environment in which both run."""
    return os.environ | {"MRC_WORLD": str(folder / "world.bin")}


def replay(folder: Path, inputs: Iterable[bytes]) -> subprocess.CompletedProcess[str]:
    """Run inputs with what `replayer` has made in a folder."""
    file = folder / "inputs"
    file.write_bytes(b"".join(struct.pack("=I", len(one)) + one for one in inputs))
    return subprocess.run(
        [folder / "replay", file], env=environment(folder), capture_output=True, text=True,
        timeout=110, check=False,
    )  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Yield each frame by itself, and rows in which both halves of a QP have something to do."""
    for frame in range(40):
        yield bytes([0, frame, 0, 0])
    for packet in range(7):
        for flags in (0, 4, 0x70):
            yield bytes([5, packet, flags, 3, 12, 6, 0, 6, 1, 11, 14])
    for first in (0, 16):
        gap = b"".join(bytes([0, first, 8, 0, psn]) for psn in (2, 1, 4, 0, 3, 9))
        yield gap + bytes([3, 16, 4, 3, 17, 4, 12])
    lost = bytes([5, 1, 0x70, 6, 2, 4, 6, 6, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x15])
    yield lost + bytes([3, 13, 3, 14, 3, 15, 3, 18, 11, 18, 7, 3])
    yield bytes([7, 15]) * 4
    for command in range(5):
        yield bytes([39, command, 1, 0, 2, 88, 5, 1, 0, 39, command ^ 1, 1, 0, 2, 88, 5, 1, 0])
        yield bytes([47, command, 1, 0, 2, 88, 5, 1, 0, 7, 15])
    yield bytes([5, 1, 0x70, 3, 19, 3, 19, 3, 19, 3, 19, 3, 19, 3, 19, 0, 10, 0, 0])
