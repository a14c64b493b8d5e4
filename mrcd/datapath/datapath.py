# SPDX-License-Identifier: GPL-2.0-only
"""The data path as the daemon holds it: maps and programs, opened from their pins.

This module has file descriptors and typed access to the maps. The loader compiles in a child
process. mrcd/datapath/adoption.py decides whether a pinned data path can be taken over,
mrcd/datapath/attachment.py puts programs on interfaces, and mrcd/datapath/qptable.py and
mrcd/datapath/peertable.py know how QPs and peers look in the maps.
"""

from __future__ import annotations

import json
import os
import struct
import time
from dataclasses import asdict
from pathlib import Path

from mrcd.datapath import loader, loading
from mrcd.datapath.loader import MAPS, PROGRAMS, Sizes
from mrcd.linux import bpf, bpfbatch, bpfmap, libc
from mrcd.model import TcKind, XdpMode
from mrcd.service.log import get_logger
from mrcd.wire.abi import ABI, COUNTERS
from mrcd.wire.packet import Struct

log = get_logger()

_SYS_MEMBARRIER = 324 if os.uname().machine == "x86_64" else 283
_MEMBARRIER_GLOBAL = 1
_GRACE_S = 0.02
"""The wait where the kernel refuses a membarrier: longer than any program runs."""


class DatapathError(Exception):
    """The data path cannot be built or attached; the message says why and what to do."""


def wait_for_programs() -> None:
    """Wait until every program run that is under way now has ended.

    Programs run in RCU read sections, and a global membarrier waits for those.
    """
    if libc.LIBC.syscall(_SYS_MEMBARRIER, _MEMBARRIER_GLOBAL, 0, 0) < 0:
        time.sleep(_GRACE_S)  # kernels with nohz_full refuse the call


class Datapath:
    """The open maps and programs of one layout's folder."""

    def __init__(self, folder: Path, sizes: Sizes, cache: Path | None = None) -> None:
        """`cache` is the folder of compiled programs; None compiles each time."""
        self.folder = folder
        self.cache = cache
        self.sizes = sizes
        self.maps: dict[str, int] = {}
        self.programs: dict[str, int] = {}
        self.xdp_mode: XdpMode = "detached"
        self.tc_kind: TcKind = "detached"

    async def build(self, code: str, *, adopt: bool) -> None:
        """Load and pin in a child process, which compiles what the cache does not hold.

        With `adopt`, only programs are made, for the existing maps. DatapathError quotes the
        compiler or the verifier.
        """
        order = {
            "folder": str(self.folder),
            "code": code,
            "sizes": asdict(self.sizes),
            "adopt": adopt,
        }
        if not loader.kept(self.sizes, self.cache):
            log.info("datapath.compiling", mtu=self.sizes.mtu, window=self.sizes.window)
        out, err = await loading.run(order, self.cache)
        try:
            answer = json.loads(out)
        except ValueError:
            answer = {"error": "the loader died"}
        if "error" in answer:
            tail = err.decode(errors="replace")[-3000:]
            raise DatapathError(f"{answer['error']}\n{tail}".rstrip())
        for program in answer["programs"]:
            event = "datapath.compiled" if program.pop("compiled") else "datapath.loaded"
            log.info(event, **program)

    def open(self, code: Path) -> None:
        """Open the maps, and the programs in the folder `code`."""
        self.open_maps()
        self.programs = {name: bpf.get(code / name) for name in PROGRAMS}

    def open_maps(self) -> None:
        """Open only the maps. DatapathError if they do not match the headers."""
        for name in MAPS:
            self.maps[name] = bpf.get(self.folder / name)
        self._check_layouts()

    def point_tails(self) -> None:
        """Make the open programs the targets of tail calls."""
        loader.point_tails(self.maps, self.programs)

    def _check_layouts(self) -> None:
        """Raise DatapathError unless the kernel's value sizes equal the headers' struct sizes."""
        kinds = {
            "host": "mrc_host",
            "planes": "mrc_plane",
            "peers": "mrc_peer",
            "peer_planes": "mrc_peer_plane",
            "relays": "mrc_relay",
            "qps": "mrc_qp",
            "txs": "mrc_tx",
            "rxs": "mrc_rx",
            "keys": "mrc_keys",
            "peer_keys": "mrc_keys",
            "replays": "mrc_replay",
            "peer_budgets": "mrc_budget",
            "net_budgets": "mrc_budget",
            "indices": "mrc_budget",
            "told": "mrc_budget",
            "tx_entries": "mrc_tx_entry",
            "rx_entries": "mrc_rx_entry",
            "paths": "mrc_path",
            "clock": "mrc_clock",
            "loop_paths": "mrc_peer_plane",
            "loops": "mrc_loop",
            "survey": "mrc_survey",
            "rooms": "mrc_room",
            "counter_names": "mrc_counter_name",
        }
        for name, kind in kinds.items():
            size = bpfmap.described(self.maps[name]).value_size
            if size != ABI.structs[kind].size:
                raise DatapathError(
                    f"map {name} holds values of {size} bytes, struct {kind} has "
                    f"{ABI.structs[kind].size}: run `mrcctl datapath detach` and start again"
                )

    def close(self) -> None:
        """Close every descriptor. Pins stay."""
        for fd in (*self.maps.values(), *self.programs.values()):
            os.close(fd)
        self.maps.clear()
        self.programs.clear()

    # ---- typed access

    def write(self, name: str, index: int, kind: Struct, **values: int | tuple[int, ...]) -> None:
        """Write one array element from named members; other members become zero."""
        bpf.update(self.maps[name], struct.pack("=I", index), kind.pack(**values))

    def read(self, name: str, index: int, kind: Struct) -> dict[str, int]:
        """Read the plain members of one array element."""
        return kind.unpack(self.read_raw(name, index, kind.size))

    def read_raw(self, name: str, index: int, size: int) -> bytes:
        """Read one array element."""
        raw = bpf.lookup(self.maps[name], struct.pack("=I", index), size)
        assert raw is not None, f"{name}[{index}] is outside the map"
        return raw

    def count(self, *places: int) -> int:
        """Return the sum of some counters, given by their places (MRC_C_...), over all CPUs."""
        fd, cpus = self.maps["counters"], bpf.possible_cpus()
        rows = [bpfbatch.lookup(fd, place, 1, 8 * cpus)[0] for place in places]
        return sum(sum(struct.unpack(f"={cpus}Q", row)) for row in rows)

    def counters(self) -> dict[str, int]:
        """Return every counter by name, summed over CPUs."""
        cpus = bpf.possible_cpus()
        rows = bpfbatch.lookup(self.maps["counters"], 0, ABI.MRC_C_COUNT, 8 * cpus)
        return {
            name: sum(struct.unpack(f"={cpus}Q", rows[index])) for index, name, _help in COUNTERS
        }
