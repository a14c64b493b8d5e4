# SPDX-License-Identifier: GPL-2.0-only
"""Test labs whose hosts have NICs with several queues, or a queueing discipline of choice."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cli.lab import lab, state
from cli.lab.multiqueue import HostNics
from cli.lab.state import LabFailed
from mrcd.fabric import underlay, usid
from mrcd.linux import bpf, netns, rss
from mrcd.linux.netlink import Netlink
from rigs import assembler, lab_hosts
from rigs.assembler import R0, R1, R2, R6, R10, TC_ACT_UNSPEC
from rigs.lab_hosts import eventually
from rigs.traffic import transfer
from tests.net.test_lab_netlink import inside
from tests.net.usid_packets import ETH_P_IPV6, udp_in_ipv6

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]

QUEUES = 4
PACKETS = 64  # few enough for the backlog of a CPU
ETH_P_ALL = 3
PACKET_FANOUT, FANOUT_QM = 18, 5
SOL_PACKET = 263
_LOOKUP, _CPU = 1, 8
_QUEUE_MAPPING = 12  # offsetof(struct __sk_buff, ...)
_MASK = 31  # more than QUEUES, as recorded


def queues_of(running: Lab, node: str, port: str) -> dict[str, int]:
    """Return how many transmit and receive queues of an interface are in use."""
    listed = running.run(node, "ls", f"/sys/class/net/{port}/queues").split()
    return dict(Counter(name.partition("-")[0] for name in listed))


def cpus_of(running: Lab, node: str, port: str, queues: int) -> list[int]:
    """Return the mask of CPUs of each receive queue."""
    files = (f"/sys/class/net/{port}/queues/rx-{queue}/rps_cpus" for queue in range(queues))
    return [int(word.replace(",", ""), 16) for word in running.run(node, "cat", *files).split()]


def counting(map_fd: int) -> bytes:
    """Return a program that counts packets by CPU and recorded queue."""
    return assembler.link(
        [
            assembler.move(R6, R1),
            assembler.call(_CPU),
            assembler.insn(0x64, R0, imm=5),  # w0 <<= 5
            assembler.load_u32(R1, R6, _QUEUE_MAPPING),
            assembler.insn(0x54, R1, imm=_MASK),  # w1 &= mask
            assembler.insn(0x4C, R0, R1),  # w0 |= w1
            assembler.insn(0x63, R10, R0, -4),  # *(u32 *)(r10 - 4) = w0
            assembler.load_map(R1, map_fd),
            assembler.move(R2, R10),
            assembler.insn(0x07, R2, imm=-4),
            assembler.call(_LOOKUP),
            assembler.Jump("out", 0x15, R0, imm=0),
            assembler.load_imm(R1, 1),
            assembler.insn(0xDB, R0, R1),  # lock *(u64 *)r0 += r1
            "out",
            assembler.finish(TC_ACT_UNSPEC),
        ]
    )


class Counted:
    """The packets that an interface received, by CPU and by receive queue as recorded."""

    def __init__(self, namespace: str, port: str) -> None:
        self._cpus = os.cpu_count() or 1
        self._map = bpf.create_array(8, self._cpus << 5, name="received")
        code = counting(self._map)
        handle, _ = bpf.load_program(bpf.PROG_TYPE_SCHED_CLS, code, name="received")

        async def attach(nl: Netlink) -> None:
            await nl.replace_qdisc_clsact(port)
            await nl.attach_clsact(port, handle, prog_name="received", prio=1)

        inside(namespace, attach)
        os.close(handle)
        self._before: Counter[tuple[int, int]] = Counter()

    def _all(self) -> Counter[tuple[int, int]]:
        found: Counter[tuple[int, int]] = Counter()
        for place in range(self._cpus << 5):
            value = bpf.lookup(self._map, struct.pack("=I", place), 8)
            assert value is not None
            found[place >> 5, place & _MASK] = struct.unpack("=Q", value)[0]
        return found

    def since(self) -> Counter[tuple[int, int]]:
        """Return what has arrived since `begin`."""
        return self._all() - self._before

    def begin(self) -> None:
        self._before = self._all()


@contextlib.contextmanager
def sending(running: Lab, protocol: int) -> Iterator[socket.socket]:
    """Yield a raw socket in h1 for whole IPv6 packets, or for what follows the header."""
    with netns.entered(running.namespace("h1")):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, protocol)
    with sock:
        yield sock


def send_cells(running: Lab, count: int, *, sources: int) -> None:
    """Send packets along one path, whose outer source addresses differ as those of cells do."""
    fabric = running.fabric
    h1, h2 = fabric.hosts[:2]
    ev = underlay.of(fabric).evs(h1, h2, 0)[0]
    destination = ipaddress.IPv6Address(usid.da_bytes(fabric.block, usid.path_usids(h1, h2, ev)))
    inner = udp_in_ipv6(fabric, h1, h2, 0, b"cell")
    with sending(running, socket.IPPROTO_RAW) as sock:
        for number in range(count):
            source = ipaddress.IPv6Address(int(fabric.address6(h1, 0)) + (number % sources << 16))
            header = struct.pack("!IHBB", 6 << 28, len(inner), socket.IPPROTO_IPV6, 64)
            packet = header + source.packed + destination.packed + inner
            sock.sendto(packet, (str(destination), 0))


@pytest.fixture
def several(make_lab: MakeLab) -> Lab:
    """Return a lab without daemons whose hosts' NICs have several queues, and rates."""
    return make_lab(planes=2, t1=1, mtu=1500, rate_mbps=250, host_nics=HostNics(QUEUES))


def test_nics_of_hosts_have_the_queues_and_each_has_a_cpu(several: Lab) -> None:
    cpus = os.cpu_count() or 1
    for plane in range(2):
        port = f"plane{plane}"
        assert queues_of(several, "h1", port) == {"tx": QUEUES, "rx": QUEUES}
        of_queues = [1 << queue % cpus for queue in range(QUEUES)]
        assert cpus_of(several, "h1", port, QUEUES) == of_queues
        with netns.entered(several.namespace("h1")):
            assert rss.of(port).queues == QUEUES
        switch = f"p{plane}t0-1"
        assert queues_of(several, switch, "port1") == {"tx": QUEUES + 1, "rx": QUEUES}
        assert queues_of(several, switch, "t1-1") == {"tx": 1, "rx": 1}
        own = 1 << plane % cpus  # the switches of a plane keep its order, on one CPU
        assert cpus_of(several, switch, "port1", QUEUES) == [own] * QUEUES
        assert cpus_of(several, switch, "t1-1", 1) == [own]
    assert lab.status(several.name).queues == QUEUES


def test_without_options_a_nic_has_one_queue(make_lab: MakeLab) -> None:
    running = make_lab(planes=1, t1=1)
    assert queues_of(running, "h1", "plane0") == {"tx": 1, "rx": 1}
    assert queues_of(running, "p0t0-1", "port1") == {"tx": 1, "rx": 1}
    assert "lab_spread" not in running.run(
        "p0t0-1", "tc", "filter", "show", "dev", "port1", "egress"
    )


def test_cells_of_one_path_arrive_in_all_queues_and_on_their_cpus(several: Lab) -> None:
    """Of 64 sources, none falls into one of four queues once in 25 million hashes."""
    counted = Counted(several.namespace("h2"), "plane0")
    counted.begin()
    send_cells(several, PACKETS, sources=PACKETS)
    eventually(lambda: counted.since().total() >= PACKETS, "all packets arrive")
    found = counted.since()
    # A driver records queue q as q + 1. What other packets there are has chosen a queue, too.
    assert {queue for _, queue in found} == set(range(1, QUEUES + 1))
    cpus = os.cpu_count() or 1
    assert all(cpu == (queue - 1) % cpus for cpu, queue in found)
    assert len({cpu for cpu, _ in found}) == min(cpus, QUEUES)


def test_packets_with_the_same_addresses_arrive_in_one_queue(several: Lab) -> None:
    counted = Counted(several.namespace("h2"), "plane0")
    counted.begin()
    send_cells(several, PACKETS, sources=1)
    eventually(lambda: counted.since().total() >= PACKETS, "all packets arrive")
    assert max(counted.since().values()) >= PACKETS


@pytest.mark.parametrize("underlay", [4, 6])
def test_ports_of_ordinary_flows_choose_the_queue(several: Lab, underlay: int) -> None:
    fabric = several.fabric
    h2 = fabric.host("h2")
    address = str(fabric.address4(h2, 0) if underlay == 4 else fabric.address6(h2, 0))
    assert several.pings("h1", address)
    counted = Counted(several.namespace("h2"), "plane0")
    counted.begin()
    with netns.entered(several.namespace("h1")):
        family = socket.AF_INET if underlay == 4 else socket.AF_INET6
        sock = socket.socket(family, socket.SOCK_DGRAM)
    with sock:
        for port in range(20000, 20000 + PACKETS):
            sock.sendto(b"", (address, port))
    eventually(lambda: counted.since().total() >= PACKETS, "all datagrams arrive")
    assert {queue for _, queue in counted.since()} == set(range(1, QUEUES + 1))


def test_faults_leave_the_choice_of_queues(several: Lab) -> None:
    for action in ("loss=50%", "rate=25", "down", "clear"):
        several.fault("h2:p0", action)
    counted = Counted(several.namespace("h2"), "plane0")

    def spread() -> bool:
        counted.begin()
        send_cells(several, PACKETS, sources=PACKETS)
        with contextlib.suppress(AssertionError):  # the T0 asks for the host's address first
            eventually(lambda: counted.since().total() >= PACKETS, "all packets arrive", 2)
        return {queue for _, queue in counted.since()} >= set(range(1, QUEUES + 1))

    eventually(spread, "packets arrive in all queues")


def test_a_connection_over_mrc0_arrives_in_several_queues(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2, t1=1, mtu=1500, host_nics=HostNics(QUEUES))
    with contextlib.ExitStack() as stack:
        taps = []
        with netns.entered(running.namespace("h2")):
            for _ in range(QUEUES + 1):  # the kernel gives a packet to socket number mod QUEUES + 1
                tap = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0))
                tap.bind(("plane1", ETH_P_ALL))  # before mrcd has taken it
                group = os.getpid() & 0xFFFF | FANOUT_QM << 16
                tap.setsockopt(SOL_PACKET, PACKET_FANOUT, group)
                tap.settimeout(0)
                taps.append(tap)
        address = str(running.fabric.host("h2").addresses[0].ip)
        transfer(running, "h1", "h2", address, size=16 << 20)
        seen = [queue for queue, tap in enumerate(taps) if _has_a_cell(tap)]
    assert seen == list(range(1, QUEUES + 1))
    for host in ("h1", "h2"):
        lab_hosts.until_ok(running.name, host)
    status = lab_hosts.mrcctl_json(running.name, "h2", "doctor")
    (finding,) = [each for each in status["findings"] if each["check"] == "receive queues"]
    assert "several on plane0, plane1" in finding["found"]


def _has_a_cell(tap: socket.socket) -> bool:
    """Return whether a tap has a packet that arrived, with an IPv4 packet in it."""
    with contextlib.suppress(BlockingIOError):
        while True:
            packet, address = tap.recvfrom(64)
            arrived = address[1] == ETH_P_IPV6 and address[2] != socket.PACKET_OUTGOING
            if arrived and packet[6] == socket.IPPROTO_IPIP:
                return True
    return False


@pytest.mark.parametrize(
    ("rate_mbps", "nics", "shown"),
    [
        (0, HostNics(1, "pfifo_fast"), {"pfifo_fast"}),
        (100, HostNics(2, "pfifo_fast"), {"tbf", "pfifo_fast"}),
        (0, HostNics(2, "mq"), {"mq"}),
    ],
)
def test_hosts_have_the_queueing_discipline(
    make_lab: MakeLab, rate_mbps: int, nics: HostNics, shown: set[str]
) -> None:
    running = make_lab(planes=1, t1=1, rate_mbps=rate_mbps, host_nics=nics)
    kinds = inside(running.namespace("h1"), lambda nl: nl.qdiscs("plane0"))
    default = {"pfifo_fast"} if nics.qdisc == "mq" else set()  # or net.core.default_qdisc
    assert shown <= kinds
    assert kinds <= shown | default | {"fq", "fq_codel"}
    at_switch = inside(running.namespace("p0t0-1"), lambda nl: nl.qdiscs("port1"))
    assert not at_switch & {"pfifo_fast", "mq"}
    address = str(running.fabric.address4(running.fabric.host("h2"), 0))
    assert running.pings("h1", address)
    status = lab.status(running.name)
    assert (status.queues, status.qdisc) == (nics.queues, nics.qdisc)


def test_what_the_kernel_lacks_is_said_before_anything_is_made(
    make_lab: MakeLab, worker_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(netns, "create", made.append)
    with pytest.raises(LabFailed, match="this kernel has no queueing discipline nosuch"):
        make_lab(planes=1, host_nics=HostNics(1, "nosuch"))
    assert made == []
    assert not [name for name in state.labs() if name.startswith(worker_name)]


def test_native_xdp_and_several_queues_exclude_each_other(make_lab: MakeLab) -> None:
    with pytest.raises(LabFailed, match="native XDP"):
        make_lab(settings='[transport]\nxdp = "native"\n', host_nics=HostNics(2))
