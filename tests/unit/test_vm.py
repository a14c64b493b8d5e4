# SPDX-License-Identifier: GPL-2.0-only
"""Test that the virtual machines match the fabric file, in qemu and in the Vagrantfile."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.lab import nics, topology
from cli.lab.state import LabFailed
from mrcd.fabric import description
from mrcd.linux.interfaces import Link
from vm import cells, check, machines, measure, plain, planenics, provision, readme, steps, verdict
from vm.clock import Clock
from vm.qemu import Done

ROOT = Path(__file__).parents[2]
FABRIC = description.load(machines.FABRIC)


def test_machines_are_those_of_the_fabric_file() -> None:
    expected = machines.text(FABRIC)
    assert machines.MACHINES.read_text() == expected, "run `.venv/bin/python -m vm.machines`"


def test_every_host_has_a_nic_for_each_plane_that_is_cabled_to_its_t0() -> None:
    switches, *hosts = machines.of(FABRIC)
    assert (switches.role, len(switches.nics)) == ("switches", len(hosts) * FABRIC.planes)
    assert [machine.name for machine in hosts] == [host.name for host in FABRIC.hosts]
    ports = {nic.cable: nic for nic in switches.nics}
    for machine, host in zip(hosts, FABRIC.hosts, strict=True):
        assert [nic.name for nic in machine.nics] == [f"plane{k}" for k in range(FABRIC.planes)]
        for plane, nic in enumerate(machine.nics):
            port = ports[nic.cable]
            assert port.leads_to == machine.name
            assert port.name == f"p{plane}t0-{host.t0} port{host.port}"
            assert port.mac != nic.mac


def test_no_two_nics_have_the_same_address() -> None:
    fabric = description.generate(name="x", hosts=5, planes=8, t1=2, hosts_per_t0=2)
    macs = [nic.mac for machine in machines.of(fabric) for nic in machine.nics]
    assert len(set(macs)) == len(macs) == 2 * 5 * 8


def test_the_hosts_configuration_is_one_mrcd_takes(tmp_path: Path) -> None:
    text = provision.CONFIG.format(name="h1", keys='secret_file = "fabric.secret"')
    assert len(text.splitlines()) <= 10
    assert tomllib.loads(text)["planes"]["interfaces"] == "plane{plane}"


# A stand-in for Vagrant that prints the configuration as JSON.
STUB = """
require "json"
class Notes
  attr_reader :calls
  def initialize; @calls = []; end
  def method_missing(name, *args, **options, &block)
    part = Notes.new
    block.call(part) if block
    @calls << [name, args, options, part]
    part
  end
  def respond_to_missing?(*) = true
  def vm = self
end
module Vagrant
  def self.configure(_version)
    top = Notes.new
    yield top
    machines = top.calls.select { |name, *| name == :define }.map do |_, args, _, part|
      networks = part.calls.select { |name, *| name == :network }.map { |call| call[2] }
      shells = part.calls.select { |name, *| name == :provision }.map { |call| call[2][:inline] }
      providers = part.calls.select { |name, *| name == :provider }.map { |call| call[1][0] }
      [args[0], { networks: networks, shells: shells, providers: providers }]
    end
    puts JSON.generate(machines.to_h)
  end
end
load ARGV[0]
"""


@pytest.fixture(scope="module")
def vagrant() -> dict[str, Any]:
    """Return the Vagrantfile's configuration by machine."""
    if shutil.which("ruby") is None:
        pytest.skip("ruby, which comes with vagrant, is not installed")
    done = subprocess.run(
        ["ruby", "-e", STUB, str(ROOT / "Vagrantfile")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_vagrant_has_the_machines_of_the_fabric_file(vagrant: dict[str, Any]) -> None:
    for machine in machines.of(FABRIC):
        made = vagrant.pop(machine.name)
        assert [net["libvirt__mac"] for net in made["networks"]] == [n.mac for n in machine.nics]
        assert {net["libvirt__mtu"] for net in made["networks"]} == {FABRIC.mtu}
        assert made["providers"] == ["libvirt", "virtualbox"]
        assert f"provision.py {machine.name} " in made["shells"][0]
    assert not vagrant


def test_vagrant_joins_the_two_ends_of_each_cable(vagrant: dict[str, Any]) -> None:
    networks = [net for made in vagrant.values() for net in made["networks"]]
    ends = {net["libvirt__tunnel_local_port"]: net for net in networks}
    assert len(ends) == len(networks)
    for net in networks:
        other = ends[net["libvirt__tunnel_port"]]
        assert other["libvirt__tunnel_port"] == net["libvirt__tunnel_local_port"]
        assert other["virtualbox__intnet"] == net["virtualbox__intnet"]
        assert other is not net


def test_the_vagrantfile_has_no_facts_of_its_own() -> None:
    text = (ROOT / "Vagrantfile").read_text()
    facts = [nic.mac for machine in machines.of(FABRIC) for nic in machine.nics]
    facts += [host.name for host in FABRIC.hosts]
    assert not [fact for fact in facts if re.search(rf"\b{re.escape(fact)}\b", text)]


# ---- what a guest runs


def test_the_guests_tests_import_only_what_a_guest_has() -> None:
    own = {name.removesuffix(".py").replace("/", ".") for name in check.GUEST_TESTS}
    for name in check.GUEST_TESTS:
        for node in ast.parse((ROOT / name).read_text()).body:
            if isinstance(node, ast.Import):
                imported = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported = {node.module or ""}
            else:
                continue
            for module in imported - own:
                top = module.partition(".")[0]
                assert top in {"mrcd", "cli", *sys.stdlib_module_names}, f"{name}: {module}"


def test_only_a_step_and_those_that_it_needs() -> None:
    names = [name for name, _what, _essential in check.chosen(steps.STEPS, ["interrupts"])]
    assert names == ["boot", "provision", "interrupts"]
    names = [name for name, _what, _essential in check.chosen(steps.STEPS, ["restart"])]
    assert names == ["boot", "provision", "start", "reach", "restart"]
    with pytest.raises(SystemExit, match="no step is called reboot"):
        check.chosen(steps.STEPS, ["reboot"])


# ---- switches with real NICs


def links(macs: list[bytes]) -> dict[str, Link]:
    return {
        f"eth{i}": Link(i, f"eth{i}", mac, 1500, up=False, carrier=True)
        for i, mac in enumerate(macs)
    }


def test_switch_ports_are_found_by_their_addresses() -> None:
    plan = topology.plan(FABRIC)
    cables = list(plan.nic_cables())
    found = nics.find(plan, links([b"\2\0\0\0\0\1", *(c.near.mac for c in reversed(cables))]))
    assert found == {f"eth{i}": cable for i, cable in enumerate(reversed(cables), 1)}


def test_every_switch_port_without_a_nic_is_named() -> None:
    plan = topology.plan(FABRIC)
    cables = list(plan.nic_cables())
    with pytest.raises(LabFailed) as failed:
        nics.find(plan, links([cables[0].near.mac]))
    for end in (cable.near for cable in cables[1:]):
        assert f"{end.node} {end.ifname} ({end.mac.hex(':')})" in str(failed.value)
    assert f"{cables[0].near.node} " not in str(failed.value)


def test_the_part_without_hosts_has_only_trunks() -> None:
    plan = topology.plan(FABRIC)
    spaces = plan.namespaces()
    part = plan.within([name for name in spaces if spaces[name][0].kind != "host"])
    assert {node.kind for node in part.nodes.values()} == {"t0", "t1"}
    assert set(part.cables) == set(plan.cables) - set(plan.nic_cables())
    assert plan.within(spaces) == plan


def test_switches_discover_hosts_that_are_other_machines() -> None:
    plan = topology.plan(FABRIC)
    spaces = plan.namespaces()
    switches = [name for name in spaces if spaces[name][0].kind != "host"]
    towards_hosts = {(cable.near.node, cable.near.ifname) for cable in plan.nic_cables()}
    for node in plan.within(switches).nodes.values():
        known = {port for port, _ip, _mac in node.neighbors}
        assert known == {port for port in node.ports if (node.name, port) not in towards_hosts}
    after_a_fault = plan.beside(switches)
    assert after_a_fault.cables == plan.cables
    assert after_a_fault.nodes["p0t0-1"] == plan.within(switches).nodes["p0t0-1"]


# ---- what docs/quickstart.md says


def test_quickstarts_machines_are_its_fabrics() -> None:
    switches, *hosts = readme.fleet(readme.QUICKSTART.read_text())
    blocks = readme.blocks(readme.QUICKSTART.read_text())
    names = {switches.name, *(host.name for host in hosts)}
    assert {name for block in blocks for name in block.on} == names
    (text,) = (block.text for block in blocks if block.file == "/etc/mrcd/mrcd.toml")
    wanted = tomllib.loads(text)["planes"]["interfaces"]
    assert {len(host.nics) for host in hosts} == {len(wanted)}
    assert wanted == [f"eth{number}" for number in range(1, len(wanted) + 1)]


def test_every_command_and_file_of_the_quickstart_is_marked() -> None:
    text = readme.QUICKSTART.read_text()
    blocks = [block for block in readme.blocks(text) if block.source is None]
    shown = re.findall(r"^<!-- not typed: [^\n]+ -->\n```", text, re.M)
    assert len(blocks) + len(shown) == len(re.findall(r"^```\w*\n.*?^```", text, re.M | re.S))
    assert not readme.blocks((ROOT / "README.md").read_text())


def test_quickstart_copies_the_secret_before_the_service_starts() -> None:
    blocks = readme.blocks(readme.QUICKSTART.read_text())
    (copied,) = (block for block in blocks if block.source is not None)
    assert (copied.source, copied.on, copied.file) == ("a", ("b",), "/etc/mrcd/fabric.secret")
    made = next(i for i, block in enumerate(blocks) if "key generate" in block.text)
    started = next(i for i, block in enumerate(blocks) if "systemctl start" in block.text)
    assert made < blocks.index(copied) < started


def test_quickstarts_mac_addresses_are_those_of_the_switches_ports() -> None:
    blocks = readme.blocks(readme.QUICKSTART.read_text())
    fabric = next(block.text for block in blocks if block.file == readme.FABRIC)
    cables = topology.plan(description.parse(fabric, "quickstart.md")).nic_cables()
    (text,) = (block.text for block in blocks if block.on == ("switches",))
    typed = re.findall(r"^ip link set (\w+) address ([0-9a-f:]+) ", text, re.M)
    # The order is that of the cables, which is that of the NICs.
    assert typed == [(f"eth{i}", cable.near.mac.hex(":")) for i, cable in enumerate(cables, 1)]


# ---- figures


def iperf3(moved: list[int]) -> dict[str, Any]:
    parts = [{"sum": {"seconds": 0.2, "bytes": count}} for count in moved]
    total = {"bytes": sum(moved), "seconds": 0.2 * len(moved), "retransmits": 3}
    return {"intervals": parts, "end": {"sum_sent": total, "sum_received": total}}


def test_a_flows_longest_gap_is_a_row_of_empty_intervals() -> None:
    flow = measure.flow(iperf3([10, 0, 10, 0, 0, 0, 10, 0, 0]))
    assert flow.longest_gap_s() == pytest.approx(0.6)
    assert flow.figures()["tcp_retransmits"] == 3


def test_of_a_flow_that_was_stopped_counts_what_was_sent() -> None:
    report = iperf3([1000, 500])
    report["end"]["sum_received"] = {"bytes": 0}
    assert measure.flow(report).bytes == 1500


def test_a_flows_last_rate_is_that_of_its_last_intervals() -> None:
    flow = measure.flow(iperf3([0] * 10 + [25_000] * 5))
    assert flow.last_mbps(1) == pytest.approx(1.0)


def counted(sent: int, received: int, **counters: int) -> cells.Counts:
    every = ("tx_cells", "tx_packets", "rx_cells", "rx_packets", "rtx_fifo", "rtx_guard",
             "rtx_timeout", "rtx_nack")  # fmt: skip
    return cells.Counts(dict.fromkeys(every, 0) | counters, sent, received, tcp_retransmits=0)


def test_merging_is_told_by_the_skbs_that_mrc0_received() -> None:
    sender = counted(10, 0, tx_cells=10, tx_packets=80)
    receiver = counted(0, 16, rx_cells=15, rx_packets=80)
    assert cells.merging(sender, receiver) == {
        "cells": 10, "packets_of_a_sent_skb": 8.0, "pieces_of_a_cell": 1.5,
        "packets_of_a_received_skb": 5.0,
    }  # fmt: skip
    nothing = counted(0, 0)
    assert set(cells.merging(nothing, nothing).values()) == {0}


def test_what_a_transfer_added_is_the_difference_of_two_counts() -> None:
    before = counted(3, 4, tx_cells=1, rtx_fifo=2)
    added = counted(10, 12, tx_cells=6, rtx_fifo=2, rtx_guard=3, rtx_nack=1).since(before)
    assert (added.skbs_sent, added.skbs_received, added.counters["tx_cells"]) == (7, 8, 5)
    assert added.sent_again == 4


def test_a_failed_step_is_a_bad_verdict_and_its_reason_is_shown() -> None:
    def broken() -> dict[str, Any]:
        raise AssertionError("a cable is loose")

    checked = verdict.Check({}, deadline=float("inf"))
    assert not checked.step("reach", broken)
    assert checked.step("journal", lambda: {"log_events": 3})
    bad, good = checked.verdicts
    assert (bad.good, bad.reason, good.figures) == (False, "a cable is loose", {"log_events": 3})
    assert "a cable is loose" in verdict.line(bad)
    assert "log_events 3" in verdict.line(replace(good, seconds=1.0))


def test_the_clock_stands_still_while_a_machine_is_stopped() -> None:
    with subprocess.Popen(["sleep", "60"]) as machine:
        clock = Clock()
        clock.watch(machine.pid)
        machine.send_signal(signal.SIGSTOP)
        os.waitpid(machine.pid, os.WUNTRACED)
        clock.now()
        stopped = clock.now()
        time.sleep(0.02)
        assert clock.now() == stopped
        assert clock.stopped() >= 0.02
        machine.send_signal(signal.SIGCONT)
        os.waitpid(machine.pid, os.WCONTINUED)
        clock.now()  # the time up to here may be the stop's
        time.sleep(0.02)
        assert clock.now() >= stopped + 0.02
        machine.kill()


def test_patience_stretches_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MRC_VM_PATIENCE", "3")
    clock = Clock()
    assert clock.deadline(10) == pytest.approx(30, abs=1)


def test_no_step_begins_when_the_time_is_over() -> None:
    checked = verdict.Check({}, deadline=0.0)
    assert not checked.step("reach", dict)
    assert "time" in checked.verdicts[0].reason


# ---- ordinary networks


@pytest.mark.parametrize("network", plain.NETWORKS)
def test_every_cable_of_an_ordinary_network_has_two_ends(network: str) -> None:
    found = plain.fleet(network)
    ends = [(nic.cable, machine.name) for machine in found for nic in machine.nics]
    assert len(set(ends)) == len(ends)
    for cable in {cable for cable, _name in ends}:
        assert len([name for number, name in ends if number == cable]) == 2
    macs = [nic.mac for machine in found for nic in machine.nics]
    assert len(set(macs)) == len(macs)
    assert [machine.name for machine in found if machine.role == "host"] == list(plain.HOSTS)


@pytest.mark.parametrize("network", plain.NETWORKS)
def test_steps_of_an_ordinary_network_have_names_of_their_own(network: str) -> None:
    names = [name for name, _what, _essential in plain.steps(network)]
    assert names[:5] == ["boot", "network", "install", "connect", "ping"]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("--plane-nics --nic e1000e", "nics-e1000e"),
        ("--plane-nics --queues 4", "nics-virtio-net-pci-4"),
        ("--network cables --nic e1000e", "cables"),
        ("--readme", "readme"),
        ("", "result"),
    ],
)
def test_result_of_a_check_is_named_by_what_it_checks(options: str, name: str) -> None:
    assert check.named(check.arguments(options.split())) == name


class Shell:
    """A machine that answers commands as it is told, by a word of them."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers

    def run(self, command: str, _within_s: float = 0, **_: Any) -> Done:
        found = [out for word, out in self.answers.items() if word in command]
        return Done(0, found[0], "", 0.0)


def test_what_is_said_of_a_nic_is_what_its_host_shows() -> None:
    vm: Any = Shell(
        {
            "ethtool -i": "e1000e\n",
            "queues": "queues/rx-0\nqueues/rx-1\nqueues/tx-0\n",
            "ethtool -k": "tcp-segmentation-offload: on\nlarge-receive-offload: off [fixed]\n",
        }
    )
    assert planenics.looks(vm) == {
        "driver": "e1000e",
        "receive_queues": 2,
        "transmit_queues": 1,
        "offloads": "tcp-segmentation-offload",
    }


@pytest.mark.parametrize("state", ["ok", "warn", "wrong"])
def test_doctor_may_warn_but_find_nothing_wrong(state: str) -> None:
    finding = {"state": state, "check": "offloads", "found": "tso is off", "fix": []}
    vms: Any = [Shell({"doctor": json.dumps({"findings": [finding]})})]
    fake: Any = SimpleNamespace(hosts=vms)
    if state == "wrong":
        with pytest.raises(AssertionError, match="tso is off"):
            planenics.doctor(fake)
    else:
        says = "all ok" if state == "ok" else "warn: offloads: tso is off"
        assert planenics.doctor(fake) == {"checks": 1, "says": says}
