# SPDX-License-Identifier: GPL-2.0-only
"""Measure the cost of a packet in the programs with many peers, as a ratio to few (two).

Both data paths, with their maps and programs, exist at the same time. The same packets go through
them in turn by PROG_TEST_RUN, whose own clock times each packet. The peer is chosen in three ways:

    same    packets to two peers, whatever else the tables hold: the cost of look-ups
    trains  32 packets to one peer, then to the next of 512, as on a host with many flows
    each    every packet to another of 512 peers, so that all of their state is out of the caches

The first way shows the cost of the data structures. In the other two, the second data path fetches
the state of 512 peers and the first that of two, unless the first has 512 as well (`--few 512`).
"""

from __future__ import annotations

import gc
import random
import socket
import struct
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

from bench.fastpath.loaded import mean_ns, secluded
from bench.instruments.result import Line, at_most
from bench.scale.host import PLANES, configuration, fabric_of
from mrcd.config import config as daemon_config
from mrcd.datapath import adoption, loader
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.qptable import QpTable
from mrcd.fabric import description, usid
from mrcd.fabric.description import Host
from mrcd.handshake import LocalQp, RemoteQp
from mrcd.linux import bpf
from mrcd.wire.abi import ABI
from rigs.packets import Far, ip4
from rigs.rig import (
    LINK_MAC,
    TC_REDIRECT,
    TC_SHOT,
    arrival,
    write_planes,
)

USED = 512
"""The number of peers that receive packets, however many there are."""
TRAIN = 32
BATCH = 512
"""The number of packets through one data path before the other's turn."""
ORDERS = ("same", "trains", "each")
_SETTINGS = "[transport]\nqps_per_peer = 1\nmpr = 512\nring_slots = 2048\n"
_NEVER_NS = 4_000_000_000
_BYTES = 1000
_CACHES = 64 << 20
_TX = ABI.structs["mrc_tx"]
_HOST = ABI.structs["mrc_host"]
_NEXT = _TX.fields["next"].offset
_OURS, _REMOTE = 0x110000, 0x330000


@dataclass(slots=True)
class Used:
    """A peer that sends and receives packets, its QP, and its next PSN."""

    host: Host
    qp: int
    spray: bpf.TestRun
    payload: bytes
    rx_psn: int = 1


class Side:
    """A data path with a number of peers."""

    def __init__(self, peers: int, folder: Path, ifindex: dict[str, int]) -> None:
        folder.mkdir()
        self.peers = peers
        self.fabric = fabric_of("cost", peers, together=False)
        (folder / "fabric.toml").write_text(description.dumps(self.fabric))
        path = folder / "mrcd.toml"
        path.write_text(configuration(self.fabric, peers, _SETTINGS))
        self.config = daemon_config.load(path)
        needed = adoption.sizes_of(self.config)
        sizes = adoption.with_room(needed, self.config.transport.qps_per_peer)
        self.dp = Datapath(folder, sizes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # bcc prefers names as bytes
            self.dp.maps, self.dp.programs, _ = loader.load(sizes)
        loader.fill_rings(self.dp.maps, sizes.ring_slots, sizes.cell_slots)
        self.table = QpTable(self.dp, lambda: self.config)
        self.table.peers.add(self.config.peers)
        self._write_host(ifindex)
        every = list(self.config.peers)
        step = max(1, len(every) // USED)
        self.used = [self._use(peer.host) for peer in every[::step][:USED]]
        self._ingress = ifindex["plane0"]

    def _write_host(self, ifindex: dict[str, int]) -> None:
        fabric, us = self.fabric, self.config.host
        write_planes(self.dp, fabric, us, [ifindex["plane0"]] * PLANES)
        never = {name: _NEVER_NS for name in _HOST.fields if name.endswith("_ns")}
        self.dp.write(
            "host",
            0,
            _HOST,
            link_ifindex=ifindex["mrc0p"],
            planes=PLANES,
            plane_mask=(1 << PLANES) - 1,
            block=int.from_bytes(fabric.block.network_address.packed[:4], "little"),
            udp_port=socket.htons(self.config.transport.udp_port),
            control_port=socket.htons(self.config.transport.control_port),
            sack_packets=1 << 20,
            sack_bytes=1 << 30,
            link_mac=tuple(LINK_MAC),
            **never,
        )

    def _use(self, host: Host) -> Used:
        """Set up the first QP of a peer, and hash all flows to it."""
        qp = self.table.peers.base(host.name)
        pairs = ((LocalQp(qp, _OURS | qp, 1), RemoteQp(_REMOTE | qp, 1)),)
        self.table.configure(host.name, pairs, self.config.transport.mpr)
        self.table.ready(host.name)
        own, other = (h.addresses[0] for h in (self.config.host, host))
        assert isinstance(own, IPv4Interface) and isinstance(other, IPv4Interface)  # noqa: PT018
        packet = ip4(bytes(_BYTES), src=str(own.ip), dst=str(other.ip))
        frame = LINK_MAC + LINK_MAC + b"\x08\x00" + packet
        run = bpf.TestRun(self.dp.programs["mrc_spray"], frame)
        return Used(host, qp, run, ip4(bytes(_BYTES), src=str(other.ip), dst=str(own.ip)))

    # ---- packets

    def spray(self, order: Sequence[Used]) -> list[int]:
        """Return the ns of mrc_spray for a packet to each of these peers."""
        took = []
        for used in order:
            assert used.spray.run() == TC_REDIRECT, f"mrc_spray to {used.host.name}"
            took.append(used.spray.duration_ns)
        return took

    def acknowledge(self, order: Sequence[Used]) -> None:
        """Empty the windows of these peers, and return the slots of their packets."""
        slots = self.dp.sizes.ring_slots
        for slot in range(slots - len(order), slots):  # a stack: the latest were taken first
            bpf.update(self.dp.maps["tx_free"], None, struct.pack("=I", slot))
        for qp in {used.qp for used in order}:
            raw = bytearray(self.dp.read_raw("txs", qp, _TX.size))
            for name in ("una", "high"):
                at = _TX.fields[name].offset
                raw[at : at + 4] = raw[_NEXT : _NEXT + 4]
            bpf.update(self.dp.maps["txs"], struct.pack("=I", qp), bytes(raw))

    def frames(self, order: Sequence[Used]) -> list[bytes]:
        """Return the next packet from each of these peers, as it arrives on plane 0."""
        made = []
        for used in order:
            far = Far(self.fabric, self.config.host, used.host)
            t1 = 0 if used.host.t0 == self.config.host.t0 else 1
            psn, used.rx_psn = used.rx_psn, used.rx_psn + 1
            made.append(far.data(psn, used.payload, usid.ev(0, t1), qpn=_OURS | used.qp))
        return made

    def arrive(self, frames: Sequence[bytes]) -> list[int]:
        """Return the ns of mrc_receive and mrc_deliver together for each of these frames."""
        took = []
        for frame in frames:
            run = arrival(self.dp, frame, self._ingress)
            assert run.run() == TC_SHOT, "mrc_deliver"  # a clone went to mrc0
            took.append(run.duration_ns)
        return took


def order_of(which: str, used: Sequence[Used], rng: random.Random) -> list[Used]:
    """Return the peers that the packets of a batch go to, or come from."""
    if which == "same":
        used = (used[0], used[-1])
    some = list(used)
    rng.shuffle(some)
    train = TRAIN if which == "trains" else 1
    return [some[i // train % len(some)] for i in range(BATCH)]


def cost(
    name: str, few: int, peers: Sequence[int], rounds: int, seed: int, folder: Path
) -> Iterator[Line]:
    """Measure the ratios to few peers for each number of peers."""
    rng = random.Random(seed)
    waste = bytearray(_CACHES)
    with secluded(name):
        ifindex = _interfaces()
        small = Side(few, folder / "small", ifindex)
        for many in peers:
            large = Side(many, folder / f"large{many}", ifindex)
            yield from _compared(small, large, rounds, rng, waste)
            large.dp.close()


def _interfaces() -> dict[str, int]:
    lines = ["link add mrc0 type veth peer name mrc0p", "link add plane0 type veth peer name wire0"]
    lines += [f"link set {end} up" for end in ("mrc0", "mrc0p", "plane0", "wire0")]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    return {end: socket.if_nametoindex(end) for end in ("mrc0p", "plane0")}


def _compared(
    small: Side, large: Side, rounds: int, rng: random.Random, waste: bytearray
) -> Iterator[Line]:
    for which in ORDERS:
        means: dict[tuple[str, int], list[float]] = {}
        for number in range(rounds + 1):
            sides = [small, large]
            rng.shuffle(sides)
            for side in sides:
                order = order_of(which, side.used, rng)
                frames = side.frames(order)
                gc.collect()
                waste[:] = bytes(len(waste))  # give the second the same caches as the first
                sprayed, arrived = side.spray(order), side.arrive(frames)
                side.acknowledge(order)
                dropped = {n: c for n, c in side.dp.counters().items() if "drop_" in n and c}
                assert not dropped, f"with {side.peers} peers: {dropped}"
                if number:  # the first was for warming up
                    means.setdefault(("mrc_spray", side.peers), []).append(mean_ns(sprayed))
                    means.setdefault(("arrival", side.peers), []).append(mean_ns(arrived))
        for program in ("mrc_spray", "arrival"):
            few, lots = means[program, small.peers], means[program, large.peers]
            ratios = tuple(b / a for a, b in zip(few, lots, strict=True))
            where = f"{large.peers} peers, {which}"
            target = at_most(1.05) if which == "same" else None
            yield Line("cost", where, f"{program}, to {small.peers} peers", "", ratios, target)
            for count, values in ((small.peers, few), (large.peers, lots)):
                yield Line("cost", where, f"{program}, {count} peers", "ns", tuple(values))
