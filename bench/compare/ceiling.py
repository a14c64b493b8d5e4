# SPDX-License-Identifier: GPL-2.0-only
"""Measure what programs without any state reach in mrcd's place: the ceiling of its data path.

TCP's large segments leave a device like mrc0, a macvlan on one end of a veth pair, get a cell's
outer header, take planes in turn, and enter the same device of the other host without the header
(ceiling.c). There is no copy of a segment, no order, no acknowledgement and no congestion control.
Without order TCP takes what overtakes for lost, so the same over one plane is a competitor, too.

The programs are at their places only while such a competitor has its turn.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from bench.compare import configuration, routes
from bench.compare.peers import STATELESS
from bench.compare.routes import Competitor, Lines
from bench.instruments.flow import BenchFailed
from cli.lab import state, topology
from cli.lab.topology import Topology
from mrcd.datapath import bytecode
from mrcd.datapath.bytecode import Bytecode
from mrcd.fabric.description import Fabric, Host
from mrcd.linux import bpf, kernel, netns, sysfs

OUTER_BYTES = 40
_SOURCE = Path(__file__).with_suffix(".c")
_PROGRAMS = ("ceiling_out", "ceiling_in")
_MAPS = ("ceiling_hosts", "ceiling_planes", "ceiling_turns")
_HOST = struct.Struct("=III4s6s2x")
_PLANE = struct.Struct("=I6s6s16s16s")
_WIDE_MTU = 65535
_MAC = bytes.fromhex("02636c670000")
_NETWORK = IPv4Address("10.93.0.0")
_TCX = (6, 6)
_DEVICE, _LOWER = "ceil0", "ceil0p"


class Ceiling(Competitor):
    """TCP in outer headers by programs without state.

    planes: that take turns, in their order. header: whether there is an outer header. lab: where
    it is set up; else its turns are in the lab of the arena.
    """

    interface = _DEVICE

    def __init__(self, planes: int = 1, *, header: bool = True, lab: str = "") -> None:
        self._planes, self._header, self._lab = planes, header, lab
        what = STATELESS if header else f"{STATELESS}, no header"
        self.key = f"ceiling-{planes}" if header else f"hops-{planes}"
        self.title = f"{what}, {'one plane' if planes == 1 else f'{planes} planes'}"
        self.about = (
            "cubic TCP over a macvlan on a veth as mrc0 is, whose large segments tc programs send"
            + (" in a cell's outer header" if header else " as they are")
            + (" by plane 0," if planes == 1 else f" by {planes} planes in turn, without order,")
            + " without state, copies or acknowledgements, on hosts without mrcd"
        )

    def address(self, fabric: Fabric, host: Host) -> str:
        return str(_NETWORK + list(fabric.hosts).index(host) + 1)

    def lines(self, plan: Topology) -> Lines:
        fabric = plan.fabric
        found: Lines = {}
        for host in fabric.hosts:
            found[host.name] = [
                f"ip link add {_LOWER} mtu {_WIDE_MTU} type veth peer name ceil0d mtu {_WIDE_MTU}",
                f"ip link add {_DEVICE} link {_LOWER} address {_MAC.hex(':')}"
                f" mtu {fabric.mtu - OUTER_BYTES} type macvlan mode private",
                *(f"ip link set {each} arp off multicast off up"
                  for each in ("ceil0d", _LOWER, _DEVICE)),
                f"ip address replace {self.address(fabric, host)}/24 dev {_DEVICE}",
            ]  # fmt: skip
        return found

    def undo(self, plan: Topology) -> Lines:
        return {host.name: [f"ip link del {_LOWER}"] for host in plan.fabric.hosts}

    def missing(self) -> str | None:
        if kernel.version(os.uname().release) >= _TCX:
            return None
        return "this kernel attaches no programs to tcx (Linux 6.6)"

    @contextlib.contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Attach the programs in both hosts for a block."""
        plan = topology.plan(state.read_fabric(self._lab or name))
        with contextlib.ExitStack() as stack:
            for host in plan.fabric.hosts:
                self._attach(stack, plan, host)
            yield

    def _attach(self, stack: contextlib.ExitStack, plan: Topology, host: Host) -> None:
        """Load the programs, and attach them to a host's interfaces until the stack unwinds."""
        code = _code()
        made = bytecode.make_maps(code, _MAPS, {})
        for fd in made.values():
            stack.callback(os.close, fd)
        for number, plane in enumerate(planes(plan, host)):
            bpf.update(made["ceiling_planes"], struct.pack("=I", number), plane.packed(plan, host))
        programs = {}
        for program in _PROGRAMS:
            text = bytecode.instructions(code, program, made, {})
            programs[program] = bpf.load_program(bpf.PROG_TYPE_SCHED_CLS, text, name=program)[0]
            stack.callback(os.close, programs[program])
        with netns.entered(plan.namespace(host.name)):
            sysfs.write_interfaces(
                [_LOWER], "queues/rx-0/rps_cpus", sysfs.cpu_mask(sysfs.all_cpus()), unless_set=True
            )
            lower = socket.if_nametoindex(_LOWER)
            config = _HOST.pack(self._planes, self._header, lower, _NETWORK.packed, _MAC)
            bpf.update(made["ceiling_hosts"], struct.pack("=I", 0), config)
            places = [(programs["ceiling_out"], lower, bpf.ATTACH_TCX_EGRESS)]
            for plane in range(plan.fabric.planes):
                nic = socket.if_nametoindex(f"plane{plane}")
                places.append((programs["ceiling_in"], nic, bpf.ATTACH_TCX_INGRESS))
            for program_fd, ifindex, where in places:
                link = bpf.create_link(program_fd, ifindex, where)
                stack.callback(os.close, link)


@dataclass(frozen=True, slots=True)
class PlaneTo:
    """A plane of a host: its number, the addresses in the outer header, and the next hop's MAC."""

    number: int
    source: bytes
    target: bytes
    at: IPv6Address
    to: IPv6Address

    def packed(self, plan: Topology, host: Host) -> bytes:
        """Return it as ceiling.c reads it, with the interface of the host."""
        with netns.entered(plan.namespace(host.name)):
            ifindex = socket.if_nametoindex(f"plane{self.number}")
        return _PLANE.pack(ifindex, self.target, self.source, self.at.packed, self.to.packed)


def planes(plan: Topology, host: Host) -> list[PlaneTo]:
    """Return the planes by which a host reaches the other one of a lab of two hosts.

    With uSIDs the outer address is a list of them as Seg6 has, by the first T1. Without, the hosts
    are cabled to each other (bench/compare/direct.py).
    """
    fabric = plan.fabric
    (other,) = (each for each in fabric.hosts if each != host)
    direct = fabric.routing.mode == "ecmp"
    sids = {} if direct else _first_paths(fabric, host, other)
    found = []
    for plane in range(fabric.planes):
        own, hop = _macs(plan, host.name, plane)
        if direct:
            hop = _macs(plan, other.name, plane)[0]
        to = sids.get(plane, _own(fabric, other))
        found.append(PlaneTo(plane, own, hop, _own(fabric, host), to))
    return found


def _first_paths(fabric: Fabric, host: Host, other: Host) -> Mapping[int, IPv6Address]:
    found: dict[int, IPv6Address] = {}
    for plane, sid in routes.sids(fabric, host, other):
        found.setdefault(plane, IPv6Address(sid))
    return found


def _own(fabric: Fabric, host: Host) -> IPv6Address:
    """Return an outer address that tells a host of the lab."""
    return IPv6Address("fcbc:bb00::") + list(fabric.hosts).index(host) + 1


def _macs(plan: Topology, host: str, plane: int) -> tuple[bytes, bytes]:
    """Return the addresses at a host's end of its cable in a plane, and at the other end."""
    for cable in plan.cables:
        if (cable.far.node, cable.far.ifname) == (host, f"plane{plane}"):
            return cable.far.mac, cable.near.mac
        if (cable.near.node, cable.near.ifname) == (host, f"plane{plane}"):
            return cable.near.mac, cable.far.mac
    raise BenchFailed(f"{host} has no NIC in plane {plane}")


def _code() -> Bytecode:
    """Return the compiled programs, which are kept beside the data path's."""
    kept, cache = bytecode.key_of(_SOURCE.read_text(), []), state.CACHE_DIR
    found = bytecode.read(cache, kept)
    if found is None:
        command = [sys.executable, "-W", "ignore", "-m", "mrcd.datapath.compiler"]
        done = subprocess.run(
            [*command, str(cache), str(_SOURCE), *_PROGRAMS, "--", *_MAPS],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        found = bytecode.read(cache, kept)
        if found is None:
            raise BenchFailed(f"{_SOURCE.name} cannot be compiled: {done.stderr.strip()}")
    return found


def set_up(lab: str) -> tuple[list[Competitor], dict[str, str]]:
    """Set the competitors up in a lab; return them, or why they take no part, by title."""
    those: list[Competitor] = [Ceiling(planes, lab=lab) for planes in (1, 4)]
    _one, refused = configuration.usable(lab, those[:1])
    return ([], refused) if refused else (those, {})


EVERY: tuple[Competitor, ...] = (Ceiling(1), Ceiling(4))
"""The competitors of the comparison."""
