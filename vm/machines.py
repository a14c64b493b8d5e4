# SPDX-License-Identifier: GPL-2.0-only
"""The virtual machines of a fabric file: one for each host, and one for all switches.

Run as a program, it writes machines.json, which the Vagrantfile and the guests read because
neither has the project's Python. A NIC is identified by its MAC address. Both ends of a cable have
the same number.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cli.lab import topology
from mrcd.fabric import description
from mrcd.fabric.description import Fabric

HERE = Path(__file__).resolve().parent
FABRIC = HERE / "fabric.toml"
MACHINES = HERE / "machines.json"
SWITCHES = "switches"


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC. `name` is its name in the guest; a switch's NIC has it after it has been moved."""

    cable: int
    name: str
    mac: str
    leads_to: str


@dataclass(frozen=True, slots=True)
class Machine:
    """A virtual machine: a host, or all the switches."""

    name: str
    role: str
    address: str
    nics: tuple[Nic, ...]


def of(fabric: Fabric) -> list[Machine]:
    """Return the machines of a fabric, switches first, so that hosts boot into a ready fabric."""
    plan = topology.plan(fabric)
    nics: dict[str, list[Nic]] = {host.name: [] for host in fabric.hosts}
    ports = []
    for number, cable in enumerate(plan.nic_cables()):
        near, far = cable.near, cable.far
        ports.append(Nic(number, f"{near.node} {near.ifname}", near.mac.hex(":"), far.node))
        nics[far.node].append(Nic(number, far.ifname, far.mac.hex(":"), SWITCHES))
    hosts = [
        Machine(host.name, "host", str(host.addresses[0].ip), tuple(nics[host.name]))
        for host in fabric.hosts
    ]
    return [Machine(SWITCHES, "switches", "", tuple(ports)), *hosts]


def text(fabric: Fabric) -> str:
    """Return the text of machines.json for a fabric."""
    found = {
        "fabric": fabric.name,
        "mtu": fabric.mtu,
        "machines": [asdict(machine) for machine in of(fabric)],
    }
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    MACHINES.write_text(text(description.load(FABRIC)))
