# SPDX-License-Identifier: GPL-2.0-only
"""The data path as the daemon holds it: maps and programs, opened from their pins.

Compiling is the loader's business in a child process; here are file
descriptors and typed access to the maps. Whether what is pinned can be taken
over is decided in mrcd/datapath/adoption.py, programs are put on interfaces in
mrcd/datapath/attachment.py, and what a QP or a peer looks like in the maps is in
mrcd/datapath/qptable.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from dataclasses import asdict
from pathlib import Path

from mrcd.datapath import loader
from mrcd.datapath.loader import MAPS, PROGRAMS, Sizes
from mrcd.linux import bpf, bpfbatch, libc
from mrcd.model import TcKind, XdpMode
from mrcd.wire.abi import ABI, COUNTERS
from mrcd.wire.packet import Struct

_SYS_MEMBARRIER = 324 if os.uname().machine == "x86_64" else 283
_MEMBARRIER_GLOBAL = 1
_GRACE_S = 0.02
"""Longer than any program runs, where the kernel cannot tell."""


class DatapathError(Exception):
    """The data path cannot be built or attached; the message says why and what to do."""


def wait_for_programs() -> None:
    """Return when no program run that was under way now is still running.

    Programs run in RCU read sections, and a global membarrier waits for those.
    """
    if libc.LIBC.syscall(_SYS_MEMBARRIER, _MEMBARRIER_GLOBAL, 0, 0) < 0:
        time.sleep(_GRACE_S)  # kernels with nohz_full refuse the call


class Datapath:
    """Open maps and programs of one layout's folder."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self.folder = folder
        self.sizes = sizes
        self.maps: dict[str, int] = {}
        self.programs: dict[str, int] = {}
        self.xdp_mode: XdpMode = "detached"
        self.tc_kind: TcKind = "detached"

    async def build(self, code: str, *, adopt: bool, xdp_frags: bool) -> list[dict[str, object]]:
        """Compile, load and pin in a child process: everything, or programs for maps there are.

        Returns the loader's report, a dictionary for each program. Raises
        DatapathError with the compiler's or the verifier's words.
        """
        order = {
            "folder": str(self.folder),
            "code": code,
            "sizes": asdict(self.sizes),
            "adopt": adopt,
            "xdp_frags": xdp_frags,
        }
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "mrcd.datapath.loader",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await child.communicate(json.dumps(order).encode())
        except asyncio.CancelledError:
            child.kill()
            await child.wait()
            raise
        try:
            answer = json.loads(out)
        except ValueError:
            answer = {"error": "the loader died"}
        if "error" in answer:
            tail = err.decode(errors="replace")[-3000:]
            raise DatapathError(f"{answer['error']}\n{tail}".rstrip())
        report: list[dict[str, object]] = answer["programs"]
        return report

    def open(self, code: Path) -> None:
        """Open the maps, and the programs in the folder `code`."""
        self.open_maps()
        self.programs = {name: bpf.get(code / name) for name in PROGRAMS}

    def open_maps(self) -> None:
        """Open the maps alone. DatapathError when they are not what the headers say."""
        for name in MAPS:
            self.maps[name] = bpf.get(self.folder / name)
        self._check_layouts()

    def point_tails(self) -> None:
        """Make the open programs those that others end in."""
        loader.point_tails(self.maps, self.programs)

    def _check_layouts(self) -> None:
        """The kernel's value sizes must be the headers' struct sizes."""
        kinds = {
            "host": "mrc_host",
            "planes": "mrc_plane",
            "peers": "mrc_peer",
            "peer_planes": "mrc_peer_plane",
            "qps": "mrc_qp",
            "txs": "mrc_tx",
            "rxs": "mrc_rx",
            "tx_entries": "mrc_tx_entry",
            "rx_entries": "mrc_rx_entry",
            "paths": "mrc_path",
            "clock": "mrc_clock",
            "loop_paths": "mrc_peer_plane",
            "loops": "mrc_loop",
            "survey": "mrc_survey",
        }
        for name, kind in kinds.items():
            size = bpf.map_info(self.maps[name])[2]
            if size != ABI.structs[kind].size:
                raise DatapathError(
                    f"map {name} holds values of {size} bytes, struct {kind} has "
                    f"{ABI.structs[kind].size}: run `mrcctl datapath detach` and start again"
                )

    def close(self) -> None:
        """Close every descriptor; what is pinned stays."""
        for fd in (*self.maps.values(), *self.programs.values()):
            os.close(fd)
        self.maps.clear()
        self.programs.clear()

    # ---- typed access

    def write(self, name: str, index: int, kind: Struct, **values: int | tuple[int, ...]) -> None:
        """Write one array element from named members; the others become zero."""
        bpf.update(self.maps[name], struct.pack("=I", index), kind.pack(**values))

    def read(self, name: str, index: int, kind: Struct) -> dict[str, int]:
        """Read the plain members of one array element."""
        return kind.unpack(self.read_raw(name, index, kind.size))

    def read_raw(self, name: str, index: int, size: int) -> bytes:
        """Read one array element."""
        raw = bpf.lookup(self.maps[name], struct.pack("=I", index), size)
        assert raw is not None, f"{name}[{index}] is outside the map"
        return raw

    def counters(self) -> dict[str, int]:
        """Every counter by name, summed over CPUs."""
        cpus = bpf.possible_cpus()
        rows = bpfbatch.lookup(self.maps["counters"], 0, ABI.MRC_C_COUNT, 8 * cpus)
        return {
            name: sum(struct.unpack(f"={cpus}Q", rows[index])) for index, name, _help in COUNTERS
        }
