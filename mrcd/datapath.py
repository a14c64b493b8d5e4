# SPDX-License-Identifier: GPL-2.0-only
"""The data path as the daemon holds it: maps and programs, opened from their pins.

Compiling is the loader's business in a child process; here are file
descriptors, attachment, and typed access to the maps. What a QP or a peer
looks like in them is in mrcd/qptable.py.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import struct
import sys
import time
from dataclasses import asdict
from pathlib import Path

from mrcd import bpfsys, pins
from mrcd.abi import ABI, COUNTERS
from mrcd.loader import MAPS, PROGRAMS, Sizes
from mrcd.model import TcKind, XdpMode
from mrcd.netlink import Netlink
from mrcd.wire import Struct

_SYS_MEMBARRIER = 324 if os.uname().machine == "x86_64" else 283
_MEMBARRIER_GLOBAL = 1
_GRACE_S = 0.02
"""Longer than any program runs, where the kernel cannot tell."""
_libc = ctypes.CDLL(None, use_errno=True)


class DatapathError(Exception):
    """The data path cannot be built or attached; the message says why and what to do."""


def wait_for_programs() -> None:
    """Return when no program run that was under way now is still running.

    Programs run in RCU read sections, and a global membarrier waits for those.
    """
    if _libc.syscall(_SYS_MEMBARRIER, _MEMBARRIER_GLOBAL, 0, 0) < 0:
        time.sleep(_GRACE_S)  # kernels with nohz_full refuse the call


class Datapath:
    """Open maps and programs of one pin folder."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self.folder = folder
        self.sizes = sizes
        self.maps: dict[str, int] = {}
        self.programs: dict[str, int] = {}
        self.xdp_mode: XdpMode = "detached"
        self.tc_kind: TcKind = "detached"

    async def build(self, *, xdp_frags: bool) -> list[dict[str, object]]:
        """Compile, load and pin in a child process, then open the pins.

        Returns the loader's report, a dictionary for each program. Raises
        DatapathError with the compiler's or the verifier's words.
        """
        order = {"folder": str(self.folder), "sizes": asdict(self.sizes), "xdp_frags": xdp_frags}
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "mrcd.loader",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await child.communicate(json.dumps(order).encode())
        try:
            answer = json.loads(out)
        except ValueError:
            answer = {"error": "the loader died"}
        if "error" in answer:
            tail = err.decode(errors="replace")[-3000:]
            raise DatapathError(f"{answer['error']}\n{tail}".rstrip())
        self.open()
        for name in ("tx_free", "rx_free"):
            for slot in range(self.sizes.ring_slots):
                bpfsys.update(self.maps[name], None, struct.pack("=I", slot))
        report: list[dict[str, object]] = answer["programs"]
        return report

    def open(self) -> None:
        """Open what is pinned."""
        self.maps = {name: bpfsys.get(self.folder / name) for name in MAPS}
        self.programs = {name: bpfsys.get(self.folder / name) for name in PROGRAMS}
        self._check_layouts()

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
            size = bpfsys.map_info(self.maps[name])[2]
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

    # ---- attachment

    async def attach_tc(self, nl: Netlink, name: str, program: str, kind: str) -> None:
        """Attach a program to the tc ingress of interface `name`; kind: auto, tcx or clsact."""
        ifindex = nl.index(name)
        if kind != "clsact":
            try:
                link = bpfsys.create_link(
                    self.programs[program],
                    ifindex,
                    bpfsys.ATTACH_TCX_INGRESS,
                    what=f"attach {program} to tcx ingress of {name}",
                )
                bpfsys.pin(link, self.folder / f"link_tc_{name}")
                os.close(link)
                self.tc_kind = "tcx"
                return
            except bpfsys.BpfError as error:
                if kind == "tcx":
                    raise DatapathError(
                        f"{error}; tcx needs Linux 6.6 and no other exclusive program: "
                        'set [transport] tc = "clsact"'
                    ) from error
        await nl.replace_qdisc_clsact(name)
        pins.record(self.folder, "clsact", name)
        await nl.attach_clsact(name, self.programs[program], prog_name=program, prio=pins.PRIO)
        self.tc_kind = "clsact"

    def attach_xdp(self, name: str, ifindex: int, mode: XdpMode) -> None:
        """Attach the receiver to an interface; mode: native or generic."""
        flags = bpfsys.XDP_FLAGS_DRV_MODE if mode == "native" else bpfsys.XDP_FLAGS_SKB_MODE
        try:
            link = bpfsys.create_link(
                self.programs["mrc_receive"],
                ifindex,
                bpfsys.ATTACH_XDP,
                flags=flags,
                what=f"attach mrc_receive to {name} ({mode} XDP)",
            )
        except bpfsys.BpfError as error:
            raise DatapathError(
                f"{error}; is another XDP program on {name}? `ip link show {name}` names it, "
                f"`ip link set {name} xdp off` removes it"
            ) from error
        bpfsys.pin(link, self.folder / f"link_xdp_{name}")
        os.close(link)
        if self.xdp_mode != "generic":
            self.xdp_mode = mode

    # ---- typed access

    def write(self, name: str, index: int, kind: Struct, **values: int | tuple[int, ...]) -> None:
        """Write one array element from named members; the others become zero."""
        bpfsys.update(self.maps[name], struct.pack("=I", index), kind.pack(**values))

    def read(self, name: str, index: int, kind: Struct) -> dict[str, int]:
        """Read the plain members of one array element."""
        return kind.unpack(self.read_raw(name, index, kind.size))

    def read_raw(self, name: str, index: int, size: int) -> bytes:
        """Read one array element."""
        raw = bpfsys.lookup(self.maps[name], struct.pack("=I", index), size)
        assert raw is not None, f"{name}[{index}] is outside the map"
        return raw

    def counters(self) -> dict[str, int]:
        """Every counter by name, summed over CPUs."""
        cpus = bpfsys.possible_cpus()
        rows = bpfsys.lookup_batch(self.maps["counters"], 0, ABI.MRC_C_COUNT, 8 * cpus)
        return {
            name: sum(struct.unpack(f"={cpus}Q", rows[index])) for index, name, _help in COUNTERS
        }
