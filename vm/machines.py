# SPDX-License-Identifier: GPL-2.0-only
"""Which virtual machines a fabric file asks for: one a host, one for all switches.

Run as a program it writes machines.json, which the Vagrantfile and the guests read: neither has
the project's Python. A NIC is known by its MAC address; both ends of a cable have the same number.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from mrcd.fabric import description
from mrcd.fabric.description import Fabric
from mrcd.lab import topology

HERE = Path(__file__).resolve().parent
FABRIC = HERE / "fabric.toml"
MACHINES = HERE / "machines.json"
SWITCHES = "switches"


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC. `name` is what it is called in the guest (a switch's: after it has moved)."""

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
    """The machines of a fabric, switches first: hosts come up in a fabric that is there."""
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
    """What machines.json says of a fabric."""
    found = {
        "fabric": fabric.name,
        "mtu": fabric.mtu,
        "machines": [asdict(machine) for machine in of(fabric)],
    }
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    MACHINES.write_text(text(description.load(FABRIC)))
