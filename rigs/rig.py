# SPDX-License-Identifier: GPL-2.0-only
"""A test bench for the real programs: run one packet through one and see all of its effects.

mrcd's own code programs the maps, as in the daemon. The host of the rig has its mrc0 and its
planes in a network namespace of their own. Each is a veth pair with a tap on the other end, which
reads back what a program sends with bpf_clone_redirect.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import struct
import subprocess
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cli.lab.state import CACHE_DIR
from mrcd.config import config
from mrcd.config.config import Config
from mrcd.datapath import bytecode, loader, view
from mrcd.datapath.bytecode import Bytecode
from mrcd.datapath.clock import CARRIER
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.host import redundant
from mrcd.datapath.qptable import QpTable, evs_per_plane
from mrcd.datapath.view import PathView, QpView
from mrcd.fabric import description, network, underlay, usid
from mrcd.fabric.description import Fabric, Host
from mrcd.fabric.loops import loops_of
from mrcd.fabric.routing import SRV6, Routing
from mrcd.handshake import LocalQp, RemoteQp
from mrcd.linux import bpf, bpfbatch, bpfmap, netns
from mrcd.linux.ringbuf import RingBuffer
from mrcd.wire.abi import ABI
from mrcd.wire.envelope import cell_overhead
from mrcd.wire.layout import WIRE, words

DROPPED, PASSED, SENT, CELL = 1, 2, 3, 4  # what mrc_receive did, at either hook
TC_UNSPEC, TC_SHOT, TC_REDIRECT = 0xFFFFFFFF, 2, 7
HANDED_OVER, HANDED_CELL = 0x40, 0x41
"""What stubs return, to which mrc_receive's tail calls go instead of mrc_deliver and mrc_cell."""
_AT_XDP = {1: DROPPED, 2: PASSED, 3: SENT, 4: SENT}
_AT_TC = {
    TC_SHOT: DROPPED,
    TC_UNSPEC: PASSED,
    TC_REDIRECT: SENT,
    HANDED_OVER: PASSED,
    HANDED_CELL: CELL,
}
_TAIL_DELIVER, _TAIL_CELL = (loader.TAILS[name] for name in ("mrc_deliver", "mrc_cell"))

PLANES = 4
T1S = 4
MPR = 128
WINDOW = 2 * MPR
CELL_SLOTS = 16
RING_SLOTS = 200
QPS_PER_PEER = 16
PROBE_CREDIT = 1 << 30  # a test that needs less sets less
NEVER_NS = 4_000_000_000  # longer than anything takes in a test

LINK_MAC = bytes.fromhex("020000000099")
_LOOKUP_AND_DELETE = 21
_BACKLOGS = Path("/proc/net/softnet_stat")
_SO_RCVBUFFORCE = 33  # missing in Python's socket module
_MARKER = b"\xff" * 6 + b"\x02" + bytes(5) + b"\x88\xb5" + b"end of what was sent" * 3
_SIZES = {
    name: ABI.structs[f"mrc_{name}"].size for name in ("qp", "tx", "rx", "path", "peer", "balance")
}


def mac_of(plane: int) -> bytes:
    """Return the rig's own MAC address on a plane."""
    return bytes.fromhex("0200000001") + bytes([plane])


def gateway_mac_of(plane: int) -> bytes:
    """Return the T0's MAC address on a plane."""
    return bytes.fromhex("0200000002") + bytes([plane])


def hop_mac_of(peer: str, plane: int) -> bytes:
    """Return the MAC address of the next hop to a peer, where there is no fabric."""
    return bytes.fromhex("020000") + peer.encode() + bytes([plane])


def network_of(routing: Routing) -> Fabric:
    """Return a network of h1 to h3, whose addresses follow from nothing."""
    pattern = "fe80::{host}:{plane}" if routing.underlay == 6 else "192.0.2.{host}{plane}"
    hosts = [
        network.host(
            f"h{number}",
            [ip_address(pattern.format(host=number, plane=plane)) for plane in range(PLANES)],
        )
        for number in (1, 2, 3)
    ]
    return network.describe(PLANES, routing.underlay, routing.paths, 1500, hosts)


def peers_of(fabric: Fabric, host: str) -> str:
    """Return the planes and peers of a host of a network, as its configuration has them."""
    number = int(host.removeprefix("h"))
    lines = [
        f'[planes]\npaths = {fabric.routing.paths}\n[mrc0]\naddresses = ["10.99.0.{number}/24"]'
    ]
    lines += [f'[[plane]]\ninterface = "plane{plane}"' for plane in range(PLANES)]
    for other in fabric.hosts:
        if other.name != host:
            last = other.name.removeprefix("h")
            endpoints = json.dumps([str(address) for address in other.endpoints])
            lines.append(
                f'[[peer]]\nname = "{other.name}"\nendpoints = {endpoints}\n'
                f'allowed = ["10.99.0.{last}/32", "fd99::{last}/128"]'
            )
    return "\n".join(lines) + "\n"


def write_planes(dp: Datapath, fabric: Fabric, us: Host, ifindices: Sequence[int]) -> None:
    """Program the planes of a host, each over the interface with the index in its place."""
    for plane, ifindex in enumerate(ifindices):
        sid = usid.da_bytes(fabric.block, [usid.usid(plane, usid.ROLE_HOST, us.port)])
        dp.write(
            "planes",
            plane,
            ABI.structs["mrc_plane"],
            ifindex=ifindex,
            mac=tuple(mac_of(plane)),
            gateway_mac=tuple(gateway_mac_of(plane)),
            addr=words(underlay.of(fabric).packed(us, plane)),
            sid=words(sid),
            bare=1,
        )


def stub(returns: int) -> int:
    """Load a tc program that only returns a number; return its descriptor."""
    code = struct.pack("<BBhiBBhi", 0xB7, 0, 0, returns, 0x95, 0, 0, 0)
    return bpf.load_program(bpf.PROG_TYPE_SCHED_CLS, code, name="stub")[0]


def end_in_stub(dp: Datapath) -> int:
    """Have mrc_receive end in a stub instead of mrc_deliver; return the stub's descriptor."""
    made = stub(HANDED_OVER)
    bpf.update(dp.maps["tails"], struct.pack("=I", _TAIL_DELIVER), struct.pack("=I", made))
    return made


def code_of(sizes: loader.Sizes) -> Bytecode:
    """Return the compiled programs that a rig of these sizes loads."""
    text, compiled = loader.source(), sizes.compiled()
    key = bytecode.key_of(text, compiled.defines())
    with bytecode.alone(CACHE_DIR, key):
        code = bytecode.read(CACHE_DIR, key)
        if code is None:
            code = loader.compilation(text, compiled)
            bytecode.write(CACHE_DIR, key, code)
    return code


def arrival(dp: Datapath, frame: bytes, ifindex: int, *, out: int = 0) -> bpf.TestRun:
    """Return a run of mrc_receive on a frame, as if it had arrived at an interface."""
    if dp.sizes.xdp:  # struct xdp_md: data_end and ingress_ifindex
        context, back = struct.pack("=6I", 0, len(frame), 0, ifindex, 0, 0), 24
    else:  # struct __sk_buff up to ifindex
        context, back = struct.pack("=40xI", ifindex), 0
    return bpf.TestRun(
        dp.programs["mrc_receive"], frame, out_size=out, context=context, context_out_size=back
    )


def beat_of(generation: int) -> bytes:
    """Return the packet that circles for mrc_beat."""
    head = ABI.structs["mrc_beat"].pack(
        magic=ABI.MRC_BEAT_MAGIC, next_header=59, generation=generation
    )
    return (CARRIER[:14] + head).ljust(ABI.MRC_BEAT_LEN, b"\0")


def popped(map_fd: int, size: int) -> bytes | None:
    """Take the next value of a queue or stack, None if it is empty."""
    value = ctypes.create_string_buffer(size)
    attr = struct.pack("=IIQQQ", map_fd, 0, 0, bpf.address_of(value), 0)
    with contextlib.suppress(bpf.BpfError):
        bpf.call(_LOOKUP_AND_DELETE, attr, "pop")
        return value.raw
    return None


def settle() -> None:
    """Wait until all frames have come as far as they go.

    From one interface to the next they pass a CPU's backlog. A busy machine empties that later, in
    a thread of the kernel's, and what passes several would be overtaken by what ends a reading.
    """
    ours = os.sched_getaffinity(0)
    deadline = time.monotonic() + 5
    while True:
        rows = [line.split() for line in _BACKLOGS.read_text().splitlines()]
        if not any(int(row[11], 16) for row in rows if int(row[12], 16) in ours):
            return
        assert time.monotonic() < deadline, "frames wait in a backlog"
        time.sleep(0.0005)


class Tap:
    """A reader of the frames that arrive at an interface whose other end is `source`."""

    def __init__(self, name: str, source: str) -> None:
        self._in = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._in.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 32 << 20)
        self._in.bind((name, 3))
        self._out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._out.bind((source, 0))

    def take(self) -> list[bytes]:
        """Return every frame that was sent before this call, oldest first."""
        settle()
        self._out.send(_MARKER)
        self._in.settimeout(5)
        frames = []
        while (frame := self._in.recv(65536)) != _MARKER:
            frames.append(frame)
        return frames

    def close(self) -> None:
        self._in.close()
        self._out.close()


@dataclass(frozen=True, slots=True)
class Ran:
    """The verdict of a program, and the packet as the program left it."""

    verdict: int
    frame: bytes


class Rig:
    """A host with the compiled programs; `reset` restores its first state for each test."""

    def __init__(
        self,
        namespace: str,
        folder: Path,
        routing: Routing = SRV6,
        *,
        xdp: bool = False,
        decap: bool = False,
        cell_udp: bool = False,
    ) -> None:
        self.namespace = namespace
        self._folder = folder
        self._ticked = -1  # the QP of the last tick
        if routing.network:
            fabric = network_of(routing)
        else:
            fabric = description.generate(
                name="rig", hosts=3, planes=PLANES, t1=T1S, mtu=1500, routing=routing
            )
            (folder / "fabric.toml").write_text(description.dumps(fabric))
        self.fabric = fabric
        self._configurations: dict[tuple[object, ...], Config] = {}
        self.config = self.current = self._configuration("h1")
        envelope = WIRE.MRC_CELL_UDP if cell_udp else WIRE.MRC_CELL_IP6
        self.mtu = fabric.mtu - cell_overhead(routing.code, envelope)
        self._make_interfaces()
        sizes = loader.Sizes(
            mtu=self.mtu,
            window=WINDOW,
            ring_slots=RING_SLOTS,
            peers=len(fabric.hosts) - 1,
            qps=(len(fabric.hosts) - 1) * QPS_PER_PEER,
            evs=evs_per_plane(self.config),
            prefixes=16,
            loops=len(loops_of(fabric, self.config.host)),
            encap=routing.code,
            cell_slots=CELL_SLOTS,
            xdp=xdp,
            decap=decap,
            next_hops=routing.network,
            cell_udp=cell_udp,
        )
        self.dp = Datapath(folder, sizes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # bcc wants names as bytes
            # Labs and all workers share what is compiled: a variant takes 6 s.
            self.dp.maps, self.dp.programs, self.report = loader.load(sizes, cache=CACHE_DIR)
        self._stubs = {_TAIL_DELIVER: stub(HANDED_OVER), _TAIL_CELL: stub(HANDED_CELL)}
        self.point_tails()
        self.capture_report: list[loader.ProgramReport] = []  # of programs loaded over these maps
        events = self.dp.maps["events"]
        self.events = RingBuffer(events, bpfmap.described(events).entries)
        self.table = QpTable(self.dp, lambda: self.current)
        self._used_qps: set[int] = set()
        self._host: dict[str, Any] = {}
        self._counted: dict[str, int] = {}

    def _configuration(self, host: str, **transport: int) -> Config:
        key = host, *transport.items()
        if key not in self._configurations:
            self._configurations[key] = self._loaded(host, **transport)
        return self._configurations[key]

    def _loaded(self, host: str, **transport: int) -> Config:
        path = self._folder / f"{host}.toml"
        settings = f"[transport]\nmpr = {MPR}\nqps_per_peer = {QPS_PER_PEER}\n" + "".join(
            f"{key} = {value}\n" for key, value in transport.items()
        )
        if self.fabric.routing.network:
            path.write_text(f'[host]\nname = "{host}"\n{settings}' + peers_of(self.fabric, host))
            return config.load(path).placed(self.fabric.host(host).endpoints, self.fabric.mtu)
        path.write_text(f'[host]\nname = "{host}"\nfabric = "fabric.toml"\n{settings}')
        return config.load(path)

    def point_tails(self, *, stubs: bool = True) -> None:
        """Make the programs the targets of tail calls, but stubs those of mrc_receive."""
        self.dp.point_tails()
        for place, program in self._stubs.items() if stubs else ():
            bpf.update(self.dp.maps["tails"], struct.pack("=I", place), struct.pack("=I", program))

    # ---- surroundings

    def _make_interfaces(self) -> None:
        pairs = [
            ("mrc0", "mrc0p"),
            ("cut", "back"),
            ("beat", "rest"),
            *((f"plane{k}", f"wire{k}") for k in range(PLANES)),
        ]
        netns.prepare_run_dir()
        netns.create(self.namespace)
        with netns.entered(self.namespace):
            for name in ("default", "all"):
                Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
            lines = ["link set lo up"]
            for one, other in pairs:
                lines.append(f"link add {one} mtu 1500 type veth peer name {other} mtu 1500")
                lines += [f"link set {end} arp off up" for end in (one, other)]
            subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
            self.ifindex = {end: socket.if_nametoindex(end) for pair in pairs for end in pair}
            self.mrc0 = Tap("mrc0", "mrc0p")
            self.back = Tap("back", "cut")
            self.rest = Tap("rest", "beat")
            self.wires = [Tap(f"wire{k}", f"plane{k}") for k in range(PLANES)]

    def set_link(self, name: str, state: str) -> None:
        """Set an interface up or down."""
        subprocess.run(
            ["ip", "-n", self.namespace, "link", "set", name, state], check=True, timeout=10
        )

    def close(self) -> None:
        """Close the taps and the data path, and delete the namespace."""
        for tap in (self.mrc0, self.back, self.rest, *self.wires):
            tap.close()
        netns.delete(self.namespace)
        self.events.close()
        self.dp.close()
        for program in self._stubs.values():
            os.close(program)

    def sent(self) -> list[tuple[int, bytes]]:
        """Return (plane, frame) for all frames sent since the last call, plane by plane."""
        return [(k, frame) for k, wire in enumerate(self.wires) for frame in wire.take()]

    def delivered(self) -> list[bytes]:
        """Return the IP packets that reached mrc0 since the last call, in order."""
        return [frame[14:] for frame in self.mrc0.take()]

    # ---- programming

    def reset(self, host: str = "h1", **transport: int) -> None:
        """Set all maps as a fresh daemon of `host` leaves them: peers known, no QP set up.

        `transport` gives keys of the configuration that differ from the rig's usual ones.
        """
        size = self.dp.sizes
        self._fill("qps", size.qps, _SIZES["qp"])
        self._fill("txs", size.qps, _SIZES["tx"])
        self._fill("rxs", size.qps, _SIZES["rx"])
        self._fill("paths", size.qps * ABI.MRC_MAX_PLANES * size.evs, _SIZES["path"])
        self._fill("keys", size.qps, ABI.structs["mrc_keys"].size)
        self._fill("peer_keys", size.peers, ABI.structs["mrc_keys"].size)
        self._fill("replays", ABI.MRC_MAX_PLANES, ABI.structs["mrc_replay"].size)
        budget = ABI.structs["mrc_budget"].size
        self._fill("peer_budgets", size.peers, budget)
        self._fill("net_budgets", ABI.MRC_NET_BUDGETS + 1, budget)
        self._fill("told", 1, budget)
        for key in bpf.keys(self.dp.maps["indices"], 4):
            bpf.delete(self.dp.maps["indices"], key)
        for name, kind, window in (
            ("tx_entries", "mrc_tx_entry", WINDOW),
            ("rx_entries", "mrc_rx_entry", WINDOW // 2),
        ):
            for qp in self._used_qps:
                self._fill(name, window, ABI.structs[kind].size, qp * window)
        self._used_qps.clear()
        self._fill("active", -(-size.qps // 64), 8)
        self.dp.write("clock", 0, ABI.structs["mrc_clock"], probe_credit=PROBE_CREDIT)
        self._fill("survey", 1, ABI.structs["mrc_survey"].size)
        for key in bpf.keys(self.dp.maps["prefixes"], 20):
            bpf.delete(self.dp.maps["prefixes"], key)
        for key in bpf.keys(self.dp.maps["addresses"], 16):
            bpf.delete(self.dp.maps["addresses"], key)
        for key in bpf.keys(self.dp.maps["sources"], 16):
            bpf.delete(self.dp.maps["sources"], key)
        for name in ("tx_free", "rx_free"):
            self.take_slots(name)
            self.give_slots(name, range(RING_SLOTS))
        for name in ("tx_cells_free", "rx_cells_free"):
            self.take_slots(name)
            self.give_slots(name, range(CELL_SLOTS))
        self.set_room(RING_SLOTS, CELL_SLOTS)
        self._become(host, **transport)
        self.events.take()
        self.sent()
        self.delivered()
        self.back.take()
        self.rest.take()
        self._counted = self.dp.counters()

    def set_room(self, packets: int, cells: int) -> None:
        """Say how many slots of the reorder rings are free."""
        kind = ABI.structs["mrc_room"]
        self.dp.write("rooms", ABI.MRC_ROOM_PACKETS, kind, free=packets, all=RING_SLOTS)
        self.dp.write("rooms", ABI.MRC_ROOM_CELLS, kind, free=cells, all=CELL_SLOTS)

    def room(self) -> tuple[int, int]:
        """Return how many slots of the reorder rings are free, as the programs count them."""
        kind = ABI.structs["mrc_room"]
        rings = (ABI.MRC_ROOM_PACKETS, ABI.MRC_ROOM_CELLS)
        return tuple(self.dp.read("rooms", ring, kind)["free"] for ring in rings)  # type: ignore[return-value]

    def _fill(self, name: str, count: int, size: int, first: int = 0) -> None:
        bpfbatch.update_array(self.dp.maps[name], first, [bytes(size)] * count)

    def _become(self, host: str, **transport: int) -> None:
        self.config = self.current = self._configuration(host, **transport)
        self.table = QpTable(self.dp, lambda: self.current)
        fabric, us = self.fabric, self.config.host
        write_planes(self.dp, fabric, us, [self.ifindex[f"plane{p}"] for p in range(PLANES)])
        for peer in self.config.peers:
            self.table.peers.next_hops |= {
                (peer.name, plane): hop_mac_of(peer.name, plane)
                for plane in range(PLANES * fabric.routing.network)
            }
            self.table.peers.add((peer,))
            self.spread(peer.name, 0, 1)
        self._host = {}
        self.tune(
            link_ifindex=self.ifindex["mrc0p"],
            planes=PLANES,
            plane_mask=(1 << PLANES) - 1,
            **{"standby": 0, "relays": 0, **redundant(())},
            block=int.from_bytes(fabric.block.network_address.packed[:4], "little"),
            udp_port=socket.htons(self.config.transport.udp_port),
            control_port=socket.htons(self.config.transport.control_port),
            # No rule acts by itself: a test tunes the rules that it needs.
            reo_min_ns=NEVER_NS,
            reo_max_ns=NEVER_NS,
            fifo_slack_ns=NEVER_NS,
            rto_min_ns=NEVER_NS,
            hole_timeout_ns=NEVER_NS,
            sack_packets=1000,
            sack_bytes=1 << 30,
            sack_gap_ns=0,
            queue_target_ns=NEVER_NS,
            probe_interval_ns=NEVER_NS,
            probe_idle_ns=NEVER_NS,
            hold_base_ns=0,
            hold_max_ns=0,
            judge_ns=NEVER_NS,
            judge_slack_ns=NEVER_NS,
            slow_slack_ns=NEVER_NS,
            cell_port=socket.htons(WIRE.MRC_CELL_PORT_DEFAULT),
            cell_block=int.from_bytes(fabric.underlay6.network_address.packed[:4], "little"),
            lower_ifindex=self.ifindex["mrc0"],
            cut_ifindex=self.ifindex["cut"],
            cut_back_ifindex=self.ifindex["back"],
            beat_ifindex=self.ifindex["beat"],
            rest_ifindex=self.ifindex["rest"],
            probe_gap_ns=0,
            probe_most=PROBE_CREDIT,
            idle_gap_ns=0,
            park_ifindex=0,
            cell_bytes=65000,
            circle_ns=0,
            solicit_ns=NEVER_NS,
            cc_target_ns=0,
            cc_rate=0,
            retry_limit=0,
            retry_s=0,
            datagram_max_ms=0,
            # Tags are those of the zero key, and any inner address is taken.
            keyed=0,
            qps=self.dp.sizes.qps,
            inner=0,
            survey_key=(0, 0),
            mac1_key=(0, 0),
            hops_min=0,
            link_mac=tuple(LINK_MAC),
            # What leaves has class 0, but in the tests of the classes.
            dscp_data=0,
            dscp_again=0,
            dscp_whole=0,
            dscp_control=0,
            dscp_trimmed=WIRE.MRC_DSCP_TRIMMED,
            dscp_lasthop=WIRE.MRC_DSCP_LASTHOP,
        )

    def tune(self, **values: int | tuple[int, ...]) -> None:
        """Change members of the host's entry."""
        self._host.update(values)
        self.dp.write("host", 0, ABI.structs["mrc_host"], **self._host)

    @property
    def host_members(self) -> set[str]:
        """Return the names of the members of the host's entry that the rig sets."""
        return set(self._host)

    def spread(self, peer: str, first: int, count: int, planes: int = 0xFF, spare: int = 0) -> None:
        """Hash the flows towards a peer over `count` of its QPs, and set its masks of planes."""
        index, kind = self.table.peers.indices[peer], ABI.structs["mrc_peer"]
        first += self.table.peers.base(peer)
        masks = {"plane_mask": planes, "spare": spare, "ours": ABI.MRC_OURS_ALIKE}
        self.dp.write("peers", index, kind, qp_base=first, qp_mask=count - 1, **masks)

    def connect(
        self,
        peer: str = "h2",
        index: int = 0,
        *,
        qpn: int = 0x770000,
        remote_qpn: int = 0x880003,
        tx_psn: int = 1000,
        rx_psn: int = 5000,
        mpr: int = MPR,
        state: int = ABI.MRC_QP_READY,
    ) -> None:
        """Set a QP up; the index replaces the low half of `qpn`."""
        local = LocalQp(index, qpn & 0xFF0000 | index, tx_psn)
        self._used_qps.add(index)
        self.table.configure(peer, ((local, RemoteQp(remote_qpn, rx_psn)),), mpr)
        self.set_state(state, index)

    def set_state(self, state: int, index: int = 0) -> None:
        """Change a QP's state."""
        kind = ABI.structs["mrc_qp"]
        self.dp.write("qps", index, kind, **{**self.dp.read("qps", index, kind), "state": state})

    # ---- looking

    def counted(self) -> dict[str, int]:
        """Return the counters that rose since the last call, with the increases."""
        now = self.dp.counters()
        before, self._counted = self._counted, now
        return {name: now[name] - before[name] for name in now if now[name] != before[name]}

    def state(self) -> tuple[bytes, ...]:
        """Return all state that the programs keep between packets, except counters and buffers."""
        size = self.dp.sizes
        maps = (
            ("qps", size.qps, _SIZES["qp"]),
            ("txs", size.qps, _SIZES["tx"]),
            ("rxs", size.qps, _SIZES["rx"]),
            ("paths", size.qps * ABI.MRC_MAX_PLANES * size.evs, _SIZES["path"]),
            ("peers", size.peers, _SIZES["peer"]),
            ("balances", size.peers, _SIZES["balance"]),
            ("active", -(-size.qps // 64), 8),
        )
        return tuple(
            b"".join(bpfbatch.lookup(self.dp.maps[name], 0, count, value))
            for name, count, value in maps
        )

    def trust(self) -> tuple[bytes, ...]:
        """Return all keys, and the counts that arrived and were sent."""
        size = self.dp.sizes
        keys, replay = (ABI.structs[kind].size for kind in ("mrc_keys", "mrc_replay"))
        maps = (
            ("keys", size.qps, keys),
            ("peer_keys", size.peers, keys),
            ("replays", size.qps * ABI.MRC_MAX_PLANES, replay),
        )
        return tuple(
            b"".join(bpfbatch.lookup(self.dp.maps[name], 0, count, value))
            for name, count, value in maps
        )

    def view(self, index: int) -> QpView:
        """Read a QP from the maps."""
        return view.read(self.dp, index)

    def paths(self, index: int) -> list[PathView]:
        """Read every path of a QP from the maps; there is none before its EV set is chosen."""
        return view.paths(self.dp, index, self.table.evs(index))

    def tx(self, index: int = 0) -> dict[str, int]:
        """Return the sender half of a QP."""
        return self.view(index).tx

    def rx(self, index: int = 0) -> dict[str, int]:
        """Return the receiver half of a QP."""
        return self.view(index).rx

    def sets(self, index: int = 0) -> dict[str, tuple[int, ...]]:
        """Return the array members of a QP's sender half, among them its sets of slots."""
        kind = ABI.structs["mrc_tx"]
        raw = self.dp.read_raw("txs", index, kind.size)
        arrays = [field.name for field in kind.fields.values() if field.count > 1]
        return {name: kind.unpack_array(raw, name) for name in arrays}

    def edit(self, name: str, index: int, kind: str, **values: int | tuple[int, ...]) -> None:
        """Change members of one entry of a map and leave the others as they are."""
        layout = ABI.structs[kind]
        raw = self.dp.read_raw(name, index, layout.size)
        old: dict[str, int | tuple[int, ...]] = dict(layout.unpack(raw))
        for field in layout.fields.values():
            if field.count > 1:
                old[field.name] = layout.unpack_array(raw, field.name)
        self.dp.write(name, index, layout, **{**old, **values})

    def withdraw(self, *evs: int, index: int = 0) -> None:
        """Make paths ASSUMED_BAD as a loss does, without backups in their places."""
        sets = self.sets(index)
        use, spare, used = list(sets["use"]), list(sets["spare"]), list(sets["used"])
        for path in self.paths(index):
            word, bit = 2 * path.plane + (path.slot >> 6), 1 << (path.slot & 63)
            if path.ev in evs:
                used[path.plane] -= bool(use[word] & bit)
                use[word] &= ~bit
                spare[word] &= ~bit
        planes = sum(1 << p for p in range(PLANES) if use[2 * p] | use[2 * p + 1])
        self.edit(
            "txs", index, "mrc_tx", use=tuple(use), spare=tuple(spare), used=tuple(used),
            used_all=sum(used), plane_use=planes,
        )  # fmt: skip

    def path(self, ev: int, index: int = 0) -> dict[str, int]:
        """Return the path of an EV: its members, state, plane and slot, and the sets it is in."""
        (found,) = (path for path in self.paths(index) if path.ev == ev)
        return {
            **found.values,
            "state": found.state,
            "plane": found.plane,
            "slot": found.slot,
            "use": found.use,
            "skip": found.skip,
            "slow": found.slow,
            "spare": found.spare,
        }

    def edit_path(self, ev: int, index: int = 0, **values: int) -> None:
        """Change members of the path of an EV and leave the others as they are."""
        path = self.path(ev, index)
        at = (index * ABI.MRC_MAX_PLANES + path["plane"]) * self.dp.sizes.evs + path["slot"]
        self.edit("paths", at, "mrc_path", **values)

    def active(self) -> list[int]:
        """Return the QPs that have asked for the clock."""
        raw = bpfbatch.lookup(self.dp.maps["active"], 0, -(-self.dp.sizes.qps // 64), 8)
        bits = int.from_bytes(b"".join(raw), "little")
        return [qp for qp in range(bits.bit_length()) if bits >> qp & 1]

    def free_slots(self, name: str) -> int:
        """Return the number of free slots of a ring; AssertionError if one is free twice."""
        slots = self.take_slots(name)
        self.give_slots(name, slots)
        assert len(set(slots)) == len(slots), f"{name} holds a slot twice: {sorted(slots)}"
        return len(slots)

    def take_slots(self, name: str) -> list[int]:
        """Empty a stack of free slots and return them."""
        slots = []
        while (value := popped(self.dp.maps[name], 4)) is not None:
            slots.append(struct.unpack("=I", value)[0])
        return slots

    def give_slots(self, name: str, slots: Sequence[int]) -> None:
        """Push free slots."""
        for slot in slots:
            bpf.update(self.dp.maps[name], None, struct.pack("=I", slot))

    @contextlib.contextmanager
    def receiving_at(self, name: str) -> Iterator[None]:
        """Make an interface of the namespace plane 1, and run mrc_receive at its tc ingress."""
        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
        subprocess.run(["ip", "link", "set", name, "arp", "off", "up"], check=True)
        planes = [self.ifindex[f"plane{p}"] for p in range(PLANES)]
        planes[1] = socket.if_nametoindex(name)
        write_planes(self.dp, self.fabric, self.config.host, planes)
        program = self.dp.programs["mrc_receive"]
        link = bpf.create_link(program, planes[1], bpf.ATTACH_TCX_INGRESS)
        self.point_tails(stubs=False)
        try:
            yield
        finally:
            self.point_tails()
            os.close(link)

    # ---- running

    def receive(self, frame: bytes, interface: str = "plane1") -> Ran:
        """Run mrc_receive on one frame, as if it had arrived at an interface."""
        run = arrival(self.dp, frame, self.ifindex[interface], out=4096)
        verdicts = _AT_XDP if self.dp.sizes.xdp else _AT_TC
        return Ran(verdicts[run.run()], run.output)

    def admitted(self, frame: bytes) -> bytes:
        """Return a frame for the daemon as mrc_receive leaves it: at XDP its source says so."""
        if not self.dp.sizes.xdp:
            return frame
        mark = bytes([ABI.MRC_MARK_MAGIC0, ABI.MRC_MARK_MAGIC1, ABI.MRC_MARK_STACK])
        return frame[:6] + mark + frame[9:]

    def refuses(self, frame: bytes) -> bool:
        """Return whether a test run refuses a frame at tc: an IP packet shorter than its header."""
        shortest = {b"\x08\x00": 34, b"\x86\xdd": 54}.get(frame[12:14], 0)
        return not self.dp.sizes.xdp and len(frame) < shortest

    def tc(self, program: str, frame: bytes) -> Ran:
        """Run a tc program on one frame."""
        run = bpf.TestRun(self.dp.programs[program], frame, out_size=4096)
        return Ran(run.run(), run.output)

    def arrive(self, frame: bytes, interface: str = "plane1") -> Ran:
        """Run mrc_receive on one frame and, if that passes it, mrc_deliver."""
        first = self.receive(frame, interface)
        if first.verdict != PASSED:
            return first
        return self.tc("mrc_deliver", first.frame)

    def spray(self, packet: bytes) -> Ran:
        """Run mrc_spray on an application's IP packet."""
        proto = b"\x86\xdd" if packet[:1] and packet[0] >> 4 == 6 else b"\x08\x00"
        return self.tc("mrc_spray", LINK_MAC + LINK_MAC + proto + packet)

    def tick(self, times: int = 1) -> None:
        """Run mrc_tick for active QPs in turn, `times` in all, whether they need it or not."""
        while times and (active := self.active()):
            self._ticked = next((qp for qp in active if qp > self._ticked), active[0])
            runs = times if len(active) == 1 else 1
            self.tick_of(self._ticked, runs)
            times -= runs

    def tick_of(self, qp: int, times: int = 1) -> None:
        """Run mrc_tick for one QP."""
        self.run_marked("mrc_tick", ABI.MRC_KICK_MARK | qp, times)

    def run_marked(self, program: str, mark: int, times: int = 1) -> None:
        """Run a program of the clock on a packet with a mark."""
        context = struct.pack("=III", 0, 0, mark)  # __sk_buff: len, pkt_type, mark
        bpf.TestRun(self.dp.programs[program], CARRIER, context=context).run(times)

    def beat(self, *, slow: bool = False, generation: int | None = None) -> int:
        """Run mrc_beat as if its packet had arrived; return the verdict.

        Without mrc_beat attached, the clones for mrc_tick and mrc_idle are only seen by a tap.
        """
        if generation is None:
            generation = self.clock()["generation"]
        context = struct.pack("=40xI", self.ifindex["beat" if slow else "rest"])
        run = bpf.TestRun(self.dp.programs["mrc_beat"], beat_of(generation), context=context)
        return run.run()

    def clock(self) -> dict[str, int]:
        """Return the state of the clock."""
        return self.dp.read("clock", 0, ABI.structs["mrc_clock"])


def pinned_to_one_cpu() -> set[int]:
    """Bind this process to one CPU, so that frames arrive in order; return the old set of CPUs.

    Workers of pytest-xdist that run beside each other take different ones.
    """
    before = os.sched_getaffinity(0)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(before)[worker % len(before)]})
    return before


def clock_passes(nanoseconds: int) -> None:
    """Wait until CLOCK_MONOTONIC, the programs' clock, has advanced by `nanoseconds`."""
    end = time.monotonic_ns() + nanoseconds
    while time.monotonic_ns() <= end:
        pass
