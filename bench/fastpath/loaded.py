# SPDX-License-Identifier: GPL-2.0-only
"""Time packets one at a time through the programs of a data path of any shape.

PROG_TEST_RUN times the program. Three costs would be included and are subtracted: reading the
clock, the call, and making a packet as long as required with room for headers in front (for tc the
kernel does not accept long packets). A small program of our own makes the packet and ends in the
program in question, or in one that does nothing. The difference is the program's cost.

Each call handles one packet: nearly every program changes its packet, and would not accept it a
second time. Only the clock's programs can be repeated in one call.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrcd.config import config as daemon_config
from mrcd.datapath import adoption, loader, tuning, view
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.qptable import QpTable
from mrcd.fabric import description
from mrcd.handshake import LocalQp, RemoteQp
from mrcd.linux import bpf, netns
from mrcd.wire.abi import ABI
from rigs.packets import Far, ip4
from rigs.rig import LINK_MAC, arrival, end_in_stub, pinned_to_one_cpu, write_planes

_NEVER_NS = 4_000_000_000
_TARGET_NS = 1_000_000_000
_ENDLESS = 1 << 28  # bytes a millisecond that the planes carry
_OUR_QPN, _REMOTE_QPN = 0x770000, 0x880000
TX_ENTRY = ABI.structs["mrc_tx_entry"]
_TX, _RX = ABI.structs["mrc_tx"], ABI.structs["mrc_rx"]
_PATH, _CLOCK = ABI.structs["mrc_path"], ABI.structs["mrc_clock"]
_HOST = ABI.structs["mrc_host"]
_SLOWEST = 20
"""One run of this many, the slowest, is left out: it was interrupted."""
_TC_SHOT = 2
_BPF_EXIST = 2  # for a stack: if it is full, the oldest entry is removed
_HARNESS = r"""
#include <uapi/linux/bpf.h>
#include <uapi/linux/pkt_cls.h>
BPF_ARRAY(length, u32, 1);
BPF_PROG_ARRAY(follows, 2);

/* As TCP's packets are when they reach mrc0's other end: with room for headers. */
static inline void grow(struct __sk_buff *skb)
{
	u32 zero = 0, *len = length.lookup(&zero);

	bpf_skb_adjust_room(skb, 256, BPF_ADJ_ROOM_MAC, 0);
	bpf_skb_adjust_room(skb, -256, BPF_ADJ_ROOM_MAC, 0);
	if (len && *len > skb->len)
		bpf_skb_change_tail(skb, *len, 0);
}

int grown(struct __sk_buff *skb)
{
	grow(skb);
	follows.call(skb, 0);
	return TC_ACT_OK;
}

int grown_only(struct __sk_buff *skb)
{
	grow(skb);
	follows.call(skb, 1);
	return TC_ACT_OK;
}

int nothing(struct __sk_buff *skb)
{
	return TC_ACT_SHOT;
}
"""


@dataclass(frozen=True, slots=True)
class Make:
    """The shape of a data path; `evs` are in use in a QP's set, over all planes.

    `control` is whether there is congestion control; its window never fills.
    """

    mtu: int = 9000
    planes: int = 4
    t1: int = 32
    evs: int = 128
    qps: int = 4
    mpr: int = 2048
    slots: int = 8192
    control: bool = True

    def __str__(self) -> str:
        return f"MTU {self.mtu}, {self.planes} planes, {self.evs} EVs, {self.qps} QPs"


class Harness:
    """The program that makes packets long, and the programs that do nothing."""

    def __init__(self) -> None:
        from bcc import BPF  # type: ignore[import-untyped]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # bcc prefers names as bytes
            module = BPF(text=_HARNESS.encode())
        self._module = module  # keep it: its maps are closed when it is collected
        self._fds = {
            name: bpf.load_program(
                bpf.PROG_TYPE_SCHED_CLS, bytes(module.dump_func(name.encode())), name=name
            )[0]
            for name in ("grown", "grown_only", "nothing")
        }
        self._length, self._follows = (int(module[name].map_fd) for name in ("length", "follows"))
        self._end_in(1, self._fds["nothing"])
        self._target = -1

    def _end_in(self, place: int, program: int) -> None:
        bpf.update(self._follows, struct.pack("=I", place), struct.pack("=I", program))

    def close(self) -> None:
        """Close the programs; the maps are closed with the object."""
        for fd in self._fds.values():
            os.close(fd)

    def aim(self, program: int, length: int) -> None:
        """Make packets grow to `length` and pass them to this program from now on."""
        bpf.update(self._length, bytes(4), struct.pack("=I", length))
        if program != self._target:
            self._end_in(0, program)
            self._target = program

    def tc(self, frame: bytes, *, out: int = 0) -> bpf.TestRun:
        """Return a run of the program in question."""
        return bpf.TestRun(self._fds["grown"], frame, out_size=out)

    def tc_floor(self, frame: bytes) -> bpf.TestRun:
        """Return the same run without the program."""
        return bpf.TestRun(self._fds["grown_only"], frame)

    def arrival_floor(self, frame: bytes) -> bpf.TestRun:
        """Return a run of a program that drops the frame as it is."""
        return bpf.TestRun(self._fds["nothing"], frame)


def make_interfaces() -> dict[str, int]:
    """Make mrc0, planes and their other ends in this namespace; return the index of each."""
    pairs = [("mrc0", "mrc0p"), *((f"plane{k}", f"wire{k}") for k in range(ABI.MRC_MAX_PLANES))]
    lines = []
    for one, other in pairs:
        lines.append(f"link add {one} mtu 9000 type veth peer name {other} mtu 9000")
        lines += [f"link set {end} arp off up" for end in (one, other)]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    return {end: socket.if_nametoindex(end) for pair in pairs for end in pair}


@contextlib.contextmanager
def secluded(name: str) -> Iterator[None]:
    """Run the block in a new namespace of this name, with this thread on one CPU."""
    before = pinned_to_one_cpu()
    netns.prepare_run_dir()
    netns.create(name)
    try:
        with netns.entered(name):
            yield
    finally:
        netns.delete(name)
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def bench(name: str) -> Iterator[tuple[Path, dict[str, int], Harness]]:
    """Enter a new namespace; yield a folder for pins, the interfaces' indexes, and a harness."""
    with secluded(name), tempfile.TemporaryDirectory() as folder:
        harness = Harness()
        yield Path(folder), make_interfaces(), harness
        harness.close()


class Loaded:
    """The data path of h1 in a fabric of two hosts, with every QP to h2 ready."""

    def __init__(self, make: Make, folder: Path, ifindex: dict[str, int]) -> None:
        folder.mkdir()
        self.make = make
        fabric = description.generate(name="fast", planes=make.planes, t1=make.t1, mtu=make.mtu)
        (folder / "fabric.toml").write_text(description.dumps(fabric))
        path = folder / "mrcd.toml"
        path.write_text(
            '[host]\nname = "h1"\nfabric = "fabric.toml"\n[keys]\ninsecure = true\n'
            "[transport]\n"
            f"qps_per_peer = {make.qps}\nmpr = {make.mpr}\nevs = {make.evs}\n"
            f"ring_slots = {make.slots}\n"
        )
        self.config = daemon_config.load(path)
        self.mtu = self.config.mtu
        self.dp = Datapath(folder, adoption.sizes_of(self.config))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.dp.maps, self.dp.programs, self.report = loader.load(self.dp.sizes)
        loader.fill_rings(self.dp.maps, self.dp.sizes.ring_slots, self.dp.sizes.cell_slots)
        self._stub = end_in_stub(self.dp)
        self.ifindex = ifindex
        self.table = QpTable(self.dp, lambda: self.config)
        self.table.peers.add(self.config.peers)
        planes = [ifindex[f"plane{plane}"] for plane in range(make.planes)]
        write_planes(self.dp, fabric, self.config.host, planes)
        self._host: dict[str, Any] = {}
        self.tune(**self._usual())
        self.dp.write("clock", 0, _CLOCK, probe_credit=1 << 40)
        self.far = Far(fabric, self.config.host, self.config.peers[0].host)
        self.connect()

    def _usual(self) -> dict[str, Any]:
        transport, block = self.config.transport, self.config.fabric.block
        never = {name: _NEVER_NS for name in _HOST.fields if name.endswith("_ns")}
        return {
            **never,
            "link_ifindex": self.ifindex["mrc0p"],
            "planes": self.make.planes,
            "plane_mask": (1 << self.make.planes) - 1,
            "block": int.from_bytes(block.network_address.packed[:4], "little"),
            "udp_port": socket.htons(transport.udp_port),
            "control_port": socket.htons(transport.control_port),
            "cc_target_ns": _TARGET_NS if self.make.control else 0,
            "cc_rate": _ENDLESS,
            "sack_packets": 1 << 20,
            "sack_bytes": 1 << 30,
            "link_mac": tuple(LINK_MAC),
        }

    def tune(self, **values: Any) -> None:
        """Change members of the host's entry."""
        self._host.update(values)
        self.dp.write("host", 0, _HOST, **self._host)

    def connect(self) -> None:
        """Set the QPs up again, with empty windows and PSNs from 1."""
        pairs = tuple(
            (LocalQp(qp, _OUR_QPN | qp, 1), RemoteQp(_REMOTE_QPN | qp, 1))
            for qp in range(self.make.qps)
        )
        self.table.configure("h2", pairs, self.make.mpr)
        self.table.ready("h2")
        self.spread(1)

    def spread(self, qps: int) -> None:
        """Hash the flows to the peer over its first `qps` QPs."""
        self.dp.write(
            "peers",
            0,
            ABI.structs["mrc_peer"],
            qp_mask=qps - 1,
            plane_mask=(1 << ABI.MRC_MAX_PLANES) - 1,
        )

    def close(self) -> None:
        """Release everything."""
        os.close(self._stub)
        self.dp.close()

    # ---- packets

    def frame_to_spray(self, port: int = 7) -> bytes:
        """Return the beginning of a packet to the peer, as mrc0's other end sees it."""
        packet = ip4(bytes(60), src="10.99.0.1", dst="10.99.0.2", port=port)
        return LINK_MAC + LINK_MAC + b"\x08\x00" + packet

    def arriving(self, frame: bytes, plane: int, *, out: int = 0) -> bpf.TestRun:
        """Return a run of mrc_receive; it returns HANDED_OVER instead of calling mrc_deliver."""
        return arrival(self.dp, frame, self.ifindex[f"plane{plane}"], out=out)

    def program(self, name: str) -> int:
        """Return a program's file descriptor."""
        return self.dp.programs[name]

    # ---- state

    def acknowledge(self, qp: int = 0) -> None:
        """Empty a send window and return its slots, as SACKs do; congestion control begins anew."""
        raw = bytearray(self.dp.read_raw("txs", qp, _TX.size))
        una, following = (_TX.unpack(bytes(raw))[name] for name in ("una", "next"))
        window = self.dp.sizes.window
        for psn in range(una, following):
            slot = self.dp.read("tx_entries", qp * window + psn % window, TX_ENTRY)["slot"]
            # A variant that pops no slots has left the stack full.
            bpf.update(self.dp.maps["tx_free"], None, struct.pack("=I", slot), _BPF_EXIST)
        after = {"una": following, "high": following, "inflight": 0, "cwnd": 0}
        for name, value in after.items():
            struct.pack_into("=I", raw, _TX.fields[name].offset, value)
        bpf.update(self.dp.maps["txs"], struct.pack("=I", qp), bytes(raw))

    def next_psn(self, qp: int = 0) -> int:
        """Return the PSN that the receive window waits for."""
        return self.dp.read("rxs", qp, _RX)["next"]

    def path_in_use(self, qp: int = 0) -> Any:
        """Return a path of a QP that is in use."""
        return next(path for path in view.paths(self.dp, qp, self.table.evs(qp)) if path.use)

    def ev_of(self, psn: int) -> int:
        """Return the EV of the path that a packet of the first QP left by."""
        path = self.dp.read("tx_entries", psn % self.dp.sizes.window, TX_ENTRY)["path"]
        return int(self.dp.read("paths", self._path_at(0, path >> 8, path & 0xFF), _PATH)["ev"])

    def _path_at(self, qp: int, plane: int, slot: int) -> int:
        return (qp * ABI.MRC_MAX_PLANES + plane) * self.dp.sizes.evs + slot

    def asked(self, path: Any, probe_id: int, qp: int = 0) -> None:
        """Make a path wait for the answer to this probe."""
        index = self._path_at(qp, path.plane, path.slot)
        raw = bytearray(self.dp.read_raw("paths", index, _PATH.size))
        struct.pack_into("=I", raw, _PATH.fields["probe_id"].offset, probe_id)
        struct.pack_into("=I", raw, _PATH.fields["probe_seen"].offset, probe_id ^ 1)
        bpf.update(self.dp.maps["paths"], struct.pack("=I", index), bytes(raw))


def mean_ns(took: Sequence[int]) -> float:
    """Return the mean without the slowest twentieth, which was interrupted."""
    kept = sorted(took)[: max(1, len(took) * (_SLOWEST - 1) // _SLOWEST)]
    return sum(kept) / len(kept)


def timed(runs: Sequence[bpf.TestRun], expected: int | None = None) -> list[int]:
    """Return the ns of each run; AssertionError if one does not return `expected`."""
    took = []
    for run in runs:
        verdict = run.run()
        assert expected is None or verdict == expected, f"verdict {verdict}, not {expected}"
        took.append(run.duration_ns)
    return took


Timing = Callable[[], tuple[list[int], list[int]]]
"""A function that returns the ns of packets through a program, and through none."""


def spraying(side: Loaded, harness: Harness, packets: int, length: int, qps: int = 1) -> Timing:
    """Time mrc_spray for application packets of `length` bytes, hashed to the QPs in turn."""
    frames = [side.frame_to_spray(port) for port in range(7, 7 + 4 * qps)]

    def measure() -> tuple[list[int], list[int]]:
        harness.aim(side.program("mrc_spray"), 14 + length)
        side.spread(qps)
        runs, floors = [harness.tc(f) for f in frames], [harness.tc_floor(f) for f in frames]
        some = [runs[i % len(runs)] for i in range(packets)]
        took = timed(some, 7)
        floor = timed([floors[i % len(floors)] for i in range(packets)], _TC_SHOT)
        side.spread(1)
        for qp in range(side.make.qps):
            side.acknowledge(qp)
        return took, floor

    return measure


USUAL_SACKS = {"sack_packets": tuning.SACK_PACKETS, "sack_bytes": tuning.SACK_BYTES}
