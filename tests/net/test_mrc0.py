# SPDX-License-Identifier: GPL-2.0-only
"""Test applications over mrc0: traffic uses all planes, and stays in order and complete through
every fault of the fabric."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mrcd.linux import bpf, netns
from rigs import lab_hosts
from rigs.lab_hosts import eventually, mrcctl_json
from rigs.traffic import Stream, open_in, transfer, udp_sequence

Lab = Any  # conftest.RunningLab
H2, H2_6 = "10.99.0.2", "fd99::2"
H1 = "10.99.0.1"
pytestmark = pytest.mark.parametrize("module_lab", ["auto", "mrc"], indirect=True, scope="module")
BOTH = pytest.mark.parametrize("address", [H2, H2_6], ids=["IPv4", "IPv6"])
MIB = 1 << 20


def sent_by_plane(lab: Lab, host: str = "h1") -> dict[int, int]:
    """Return the packets that the paths of each plane have carried."""
    totals: dict[int, int] = {}
    for path in lab_hosts.paths(lab.name, host):
        totals[path.plane] = totals.get(path.plane, 0) + path.sent
    return totals


def shares(lab: Lab, work: Callable[[], object]) -> dict[int, float]:
    """Run some work, and return each plane's share of its packets."""
    before = sent_by_plane(lab)
    work()
    after = sent_by_plane(lab)
    total = sum(after.values()) - sum(before.values())
    return {plane: (after[plane] - before[plane]) / total for plane in after}


def withdrawn(lab: Lab, host: str = "h1") -> set[tuple[int, int]]:
    """Return plane and T1 of the paths that `mrcctl path list` shows as ASSUMED_BAD."""
    shown = mrcctl_json(lab.name, host, "path", "list")["paths"]
    return {(path["plane"], path["t1"]) for path in shown if path["state"] == "ASSUMED_BAD"}


def has_cells(lab: Lab) -> bool:
    """Return whether data goes in cells."""
    (peer,) = mrcctl_json(lab.name, "h1", "peer", "list")["peers"]
    return bool(peer["framing"] == "cell")


# ---- what is in the kernel


def test_datapath_show_lists_what_the_kernel_has(shared_lab: Lab) -> None:
    told = mrcctl_json(shared_lab.name, "h1", "datapath", "show")
    numbers = {each["name"]: each["ident"] for each in told["programs"]}
    assert {each["interface"] for each in told["hooks"]} >= {"mrc0p", "plane0", "plane3"}
    for each in told["hooks"]:
        assert (each["ident"], each["before"]) == (numbers[each["program"]], [])
        with netns.entered(shared_lab.namespace("h1")):
            index = socket.if_nametoindex(each["interface"])
            direction = f"ATTACH_TCX_{each['place'].upper()}"
            assert bpf.line(index, getattr(bpf, direction)) == [each["ident"]]
    memory = {each["name"]: each["bytes"] for each in told["maps"]}
    assert memory["tx_ring"] > 8 << 20


# ---- no faults


@BOTH
def test_ping(shared_lab: Lab, address: str) -> None:
    output = shared_lab.run("h1", "ping", "-c", "20", "-i", "0.01", "-w", "5", address)
    assert "20 received" in output


@pytest.mark.parametrize("name", ["mrc0", "mrc0p"])
def test_link_layer_addresses_are_chosen_by_us(shared_lab: Lab, name: str) -> None:
    """udev replaces random addresses with others, of which mrcd would not know."""
    chosen = "3"  # NET_ADDR_SET
    kind = shared_lab.run("h1", "cat", f"/sys/class/net/{name}/addr_assign_type")
    assert kind.strip() == chosen


def test_one_cpu_takes_all_packets_of_a_flow(shared_lab: Lab) -> None:
    """Several CPUs send and deliver, and only receive packet steering keeps their order."""
    steered = ["mrc0p", *(["mrc0cp"] if has_cells(shared_lab) else [])]
    for name in steered:
        mask = shared_lab.run("h1", "cat", f"/sys/class/net/{name}/queues/rx-0/rps_cpus")
        assert int(mask.replace(",", ""), 16) == (1 << (os.cpu_count() or 1)) - 1, name


@BOTH
def test_tcp_transfer_both_ways(shared_lab: Lab, address: str) -> None:
    transfer(shared_lab, "h1", "h2", address)
    transfer(shared_lab, "h2", "h1", H1 if address == H2 else "fd99::1")


def test_tcp_loads_all_planes_evenly(shared_lab: Lab) -> None:
    def even() -> bool:
        spread = shares(shared_lab, lambda: transfer(shared_lab, "h1", "h2", H2, 16 * MIB))
        return spread.keys() == set(range(4)) and all(0.24 < x < 0.26 for x in spread.values())

    # Other work on the machine may make a path look late and so reduce its plane's share.
    eventually(even, "each plane carries a quarter of a transfer")
    counted = lab_hosts.counters(shared_lab.name, "h2")
    assert counted["hole_skipped"] == 0


@pytest.mark.parametrize("size", [64, 1400, 8000])
def test_udp_arrives_complete_in_order_and_once(shared_lab: Lab, size: int) -> None:
    assert udp_sequence(shared_lab, "h1", "h2", H2, size=size) == list(range(3000))


def test_many_flows_at_once(shared_lab: Lab) -> None:
    streams = [Stream(shared_lab, "h1", "h2", H2 if i % 2 else H2_6).start(MIB) for i in range(8)]
    streams += [Stream(shared_lab, "h2", "h1", H1).start(MIB) for _ in range(4)]
    for stream in streams:
        assert stream.finish() == MIB


@pytest.mark.parametrize(("address", "headers"), [(H2, 28), (H2_6, 48)], ids=["IPv4", "IPv6"])
def test_packet_of_the_mtu_passes_and_a_larger_one_is_told_the_mtu(
    shared_lab: Lab, address: str, headers: int
) -> None:
    mtu = mrcctl_json(shared_lab.name, "h1", "status")["mrc0"]["mtu"]
    assert mtu == 9000 - (40 if has_cells(shared_lab) else 128)

    def ping(size: int) -> str:
        command = ("ping", "-M", "do", "-c", "2", "-i", "0.1", "-w", "2", "-s", str(size), address)
        return shared_lab.run("h1", *command, check=False)

    assert "2 received" in ping(mtu - headers)
    assert "0 received" in ping(mtu - headers + 1)
    with open_in(shared_lab.namespace("h1"), address, socket.SOCK_DGRAM) as sock:
        option = (socket.IPPROTO_IPV6, 23) if ":" in address else (socket.IPPROTO_IP, 10)
        sock.setsockopt(*option, 2)  # MTU_DISCOVER: DO
        sock.connect((address, 9))
        with pytest.raises(OSError, match="Message too long") as failed:
            sock.send(bytes(mtu - headers + 1))
        assert failed.value.errno == 90
        assert sock.send(bytes(mtu - headers)) == mtu - headers


def test_fragments_of_a_large_datagram_arrive(shared_lab: Lab) -> None:
    assert udp_sequence(shared_lab, "h1", "h2", H2, count=50, size=40000, ahead=4) == list(
        range(50)
    )


# ---- loss


@pytest.mark.parametrize(
    "faults",
    [{"p1": "loss=5%"}, {f"p{k}": "loss=1%" for k in range(4)}],
    ids=["5 % on one plane", "1 % on every plane"],
)
def test_loss_is_repaired_below_the_application(shared_lab: Lab, faults: dict[str, str]) -> None:
    for element, action in faults.items():
        shared_lab.fault(element, action)
    before = lab_hosts.counters(shared_lab.name, "h1")
    assert udp_sequence(shared_lab, "h1", "h2", H2, count=4000) == list(range(4000))
    transfer(shared_lab, "h1", "h2", H2, 8 * MIB)
    after = lab_hosts.counters(shared_lab.name, "h1")
    resent = sum(after[name] - before[name] for name in ("rtx_fifo", "rtx_guard", "rtx_timeout"))
    assert resent > 0
    assert lab_hosts.counters(shared_lab.name, "h2")["hole_skipped"] == 0


def test_corrupted_packets_do_not_reach_the_application(shared_lab: Lab) -> None:
    shared_lab.fault("p2", "corrupt=2%")
    transfer(shared_lab, "h1", "h2", H2, 8 * MIB)


# ---- faults


@pytest.mark.parametrize("element", ["p1", "p2t1-1", "p0t0-1:p0t1-2"])
def test_tcp_survives_a_silent_death_and_uses_the_path_again(shared_lab: Lab, element: str) -> None:
    plane = int(element[1])
    stream = Stream(shared_lab, "h1", "h2", H2).start()
    stream.progress(2 * MIB)
    shared_lab.fault(element, "blackhole")
    stream.progress(4 * MIB)
    t1s = {1, 2} if element == "p1" else {int(element[-1])}
    # A single condition, because a path withdrawn needlessly on a busy machine comes back.
    eventually(
        lambda: withdrawn(shared_lab) == {(plane, t1) for t1 in t1s},
        f"paths of plane {plane} by the T1s {t1s} are withdrawn, and no others",
    )
    shared_lab.fault(element, "clear")
    eventually(lambda: not lab_hosts.bad_planes(shared_lab.name, "h1"), "all paths are good")
    before = sent_by_plane(shared_lab)
    stream.progress(16 * MIB)  # a cell counts once
    gained = {plane: count - before[plane] for plane, count in sent_by_plane(shared_lab).items()}
    assert gained[plane] > 0.5 * sum(gained.values()) / len(gained), gained
    stream.finish()


def test_tcp_survives_two_planes_that_die_in_a_row(shared_lab: Lab) -> None:
    stream = Stream(shared_lab, "h1", "h2", H2).start()
    stream.progress(MIB)
    for plane in ("p0", "p3"):
        shared_lab.fault(plane, "blackhole")
        stream.progress(4 * MIB)
    eventually(
        lambda: lab_hosts.bad_planes(shared_lab.name, "h1") == {0, 3}, "planes 0 and 3 are away"
    )
    for plane in ("p0", "p3"):
        shared_lab.fault(plane, "clear")
    eventually(lambda: not lab_hosts.bad_planes(shared_lab.name, "h1"), "all paths are good")
    stream.progress(MIB)
    stream.finish()


def test_tcp_survives_the_death_of_a_t1_that_says_so(shared_lab: Lab) -> None:
    stream = Stream(shared_lab, "h1", "h2", H2).start()
    stream.progress(MIB)
    shared_lab.fault("p1t1-2", "down")
    stream.progress(4 * MIB)
    shared_lab.fault("p1t1-2", "clear")
    eventually(lambda: not lab_hosts.bad_planes(shared_lab.name, "h1"), "all paths are good")
    stream.progress(MIB)
    stream.finish()


@pytest.mark.parametrize("side", ["h1", "h2"])
def test_nic_link_down_takes_the_plane_out_at_once(shared_lab: Lab, side: str) -> None:
    stream = Stream(shared_lab, "h1", "h2", H2).start()
    stream.progress(MIB)
    shared_lab.fault(f"{side}:p2", "down")
    stream.progress(4 * MIB)

    def usable(host: str) -> list[int]:
        other = "h2" if host == "h1" else "h1"
        (peer,) = mrcctl_json(shared_lab.name, host, "peer", "list")["peers"]
        assert peer["name"] == other
        return list(peer["planes_usable"])

    for host in ("h1", "h2"):  # the other side learns of it
        eventually(lambda host=host: usable(host) == [0, 1, 3], f"{host} leaves plane 2 out")
    there = mrcctl_json(shared_lab.name, side, "status")
    assert there["state"] == "degraded"
    assert "plane 2" in there["reasons"][0]
    before = sent_by_plane(shared_lab)
    stream.progress(4 * MIB)
    after = sent_by_plane(shared_lab)
    assert after[2] == before[2]

    shared_lab.fault(f"{side}:p2", "clear")
    for host in ("h1", "h2"):
        eventually(lambda host=host: usable(host) == [0, 1, 2, 3], f"{host} uses plane 2 again")
    eventually(lambda: not lab_hosts.bad_planes(shared_lab.name, "h1"), "all paths are good")
    before = sent_by_plane(shared_lab)
    stream.progress(16 * MIB)  # a cell counts once
    gained = {plane: count - before[plane] for plane, count in sent_by_plane(shared_lab).items()}
    assert gained[2] > 0.2 * sum(gained.values())
    stream.finish()


def test_reverse_direction_survives_too(shared_lab: Lab) -> None:
    """The blackhole drops data in one direction and SACKs in the other."""
    there = Stream(shared_lab, "h1", "h2", H2).start()
    back = Stream(shared_lab, "h2", "h1", H1).start()
    for plane in ("p1", "p2"):
        shared_lab.fault(plane, "blackhole")
        there.progress(2 * MIB)
        back.progress(2 * MIB)
        shared_lab.fault(plane, "clear")
        there.progress(2 * MIB)
    there.finish()
    back.finish()


def test_idle_connection_survives_a_plane_that_died_meanwhile(shared_lab: Lab) -> None:
    shared_lab.fault("p0", "blackhole")
    assert udp_sequence(shared_lab, "h1", "h2", H2, count=40, ahead=1) == list(range(40))


def test_all_planes_dead_and_back(shared_lab: Lab) -> None:
    stream = Stream(shared_lab, "h1", "h2", H2).start()
    stream.progress(MIB)
    for plane in range(4):
        shared_lab.fault(f"p{plane}", "blackhole")
    at = stream.received
    threading.Event().wait(0.3)  # the fault has to last, and there is no condition to wait for
    for plane in range(4):
        shared_lab.fault(f"p{plane}", "clear")
    stream.progress(2 * MIB)
    assert stream.received > at
    stream.finish()
