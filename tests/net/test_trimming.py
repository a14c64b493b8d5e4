# SPDX-License-Identifier: GPL-2.0-only
"""Test switches that trim: what they cut is asked for and sent again, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cli.lab import lab
from mrcd.fabric import naming
from rigs import lab_hosts
from rigs.traffic import Stream, udp_sequence

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]

pytestmark = pytest.mark.alone

RATE_MBPS = 20
SENDERS = ("h2", "h3", "h4", "h5")
AHEAD = 40
"""Datagrams of a sender that are on their way. On two planes they fill its own NIC's queue of
16 packets and its burst of two almost; those of four senders far exceed a last hop."""
COUNT = 2000


def settings(framing: str, control: str) -> str:
    return f'[transport]\nframing = "{framing}"\ncongestion_control = "{control}"\n'


def overload(running: Lab, target: str, senders: Sequence[str], ahead: int = AHEAD) -> None:
    """Have hosts send to one at the same time; every datagram must arrive, once and in order."""
    host = running.fabric.host(target)
    address = str(host.addresses[0].ip)

    def send(source: str) -> list[int]:
        return udp_sequence(
            running, source, target, address, count=COUNT, ahead=ahead, within_s=40.0
        )

    with ThreadPoolExecutor(len(senders)) as pool:
        for found in pool.map(send, senders):
            assert found == list(range(COUNT))


def summed(running: Lab, hosts: Sequence[str]) -> dict[str, int]:
    total: dict[str, int] = {}
    for host in hosts:
        for name, value in lab_hosts.counters(running.name, host).items():
            total[name] = total.get(name, 0) + value
    return total


def dropped_by_queues(running: Lab, node: str) -> dict[str, int]:
    """Return what the queue of each interface of a node has dropped."""
    shown = running.run(node, "tc", "-s", "-j", "qdisc", "show")
    return {qdisc["dev"]: qdisc["drops"] for qdisc in json.loads(shown) if qdisc.get("root")}


def dropped_by_switches(running: Lab) -> int:
    """Return what the queues of all switch ports have dropped behind the programs' backs."""
    switches = lab.status(running.name).switches
    return sum(sum(dropped_by_queues(running, switch.name).values()) for switch in switches)


def overflowing(running: Lab, hosts: Sequence[str]) -> set[str]:
    """Return the NIC links of hosts that have overflowed their own queue, where no switch trims."""
    return {
        naming.nic(plane, host)
        for host in hosts
        for plane in range(running.fabric.planes)
        if dropped_by_queues(running, host)[f"plane{plane}"]
    }


def assert_nothing_is_blamed(
    running: Lab, senders: Sequence[str], but: Collection[str] = ()
) -> None:
    """Assert that senders have no bad path, and name no fault but of the elements `but`."""
    for host in senders:
        paths = lab_hosts.paths(running.name, host)
        assert [path for path in paths if path.state == "ASSUMED_BAD"] == []
        faults = lab_hosts.mrcctl_json(running.name, host, "fault", "list")["faults"]
        assert [fault for fault in faults if fault["element"] not in but] == []


@pytest.mark.parametrize("framing", ["mrc", "auto"])
def test_an_overloaded_last_hop_trims_and_nothing_is_lost(make_lab: MakeLab, framing: str) -> None:
    running = make_lab(
        hosts=5, planes=2, t1=1, hosts_per_t0=5, mtu=1500, rate_mbps=RATE_MBPS, trim=True,
        daemons=True, settings=settings(framing, "off"),
    )  # fmt: skip
    overload(running, "h1", SENDERS)
    ports = lab.ports(running.name)
    trimmed = {port.port: port.trimmed for port in ports if port.trimmed}
    assert trimmed.keys() == {"port1"}
    there, here = summed(running, ["h1"]), summed(running, SENDERS)
    assert there["trim_rx_lasthop"] > 100
    assert there["trim_rx"] == here["nack_trimmed"] == 0
    assert here["nack_lasthop"] == there["nack_tx"]
    assert here["rtx_nack"] + here["nack_stale"] <= here["nack_lasthop"]
    assert here["rtx_nack"] > 100
    assert sum(port.dropped for port in ports) == 0
    assert dropped_by_switches(running) <= sum(trimmed.values()) / 100
    # Without congestion control the senders overflow their own NICs, and that may be named.
    assert_nothing_is_blamed(running, SENDERS, overflowing(running, SENDERS))


def test_a_trunk_that_trims_is_passed_over_and_not_withdrawn(make_lab: MakeLab) -> None:
    running = make_lab(
        hosts=2, planes=2, t1=2, mtu=1500, trim=True, daemons=True,
        settings=settings("mrc", "off"),
    )  # fmt: skip
    running.fault("p0t0-2:p0t1-1", f"rate={RATE_MBPS}")
    overload(running, "h2", ["h1"], ahead=150)
    sender, receiver = summed(running, ["h1"]), summed(running, ["h2"])
    assert receiver["trim_rx"] > 0
    assert receiver["trim_rx_lasthop"] == 0
    assert sender["nack_trimmed"] == receiver["nack_tx"]
    # Not one for each NACK: packets that were cut together find their path SKIP already.
    assert sender["path_skipped"] > 0
    assert dropped_by_switches(running) == 0
    assert_nothing_is_blamed(running, ["h1"])


def test_tcp_survives_an_overloaded_last_hop(make_lab: MakeLab) -> None:
    running = make_lab(
        hosts=3, planes=2, t1=1, hosts_per_t0=3, mtu=1500, rate_mbps=RATE_MBPS, trim=True,
        daemons=True,
    )  # fmt: skip
    address = str(running.fabric.host("h1").addresses[0].ip)
    streams = [Stream(running, host, "h1", address).start(8 << 20) for host in ("h2", "h3")]
    for stream in streams:
        stream.finish(40.0)
        stream.close()
    assert_nothing_is_blamed(running, ["h2", "h3"])


def test_hosts_whose_fabric_does_not_trim_send_data_that_is_not_trimmed(make_lab: MakeLab) -> None:
    running = make_lab(
        hosts=2, planes=1, t1=1, hosts_per_t0=2, mtu=1500, daemons=True,
        settings=settings("mrc", "on"),
    )  # fmt: skip
    shown = lab_hosts.mrcctl_json(running.name, "h1", "conn", "list")
    assert {conn["trims"] for conn in shown["connections"]} == {False}
    assert lab.ports(running.name) == []
