# SPDX-License-Identifier: GPL-2.0-only
"""Use real NICs as switch ports, on a machine full of switches that is cabled to real hosts.

A NIC is recognised by its MAC address, which the topology assigns to every port. It moves into its
T0's namespace and returns to the machine when that namespace is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping

from cli.lab.state import LabFailed
from cli.lab.topology import Cable, Topology
from mrcd.linux.interfaces import Link
from mrcd.linux.netlink import Netlink


def find(plan: Topology, links: Mapping[str, Link]) -> dict[str, Cable]:
    """Return the interfaces that are switch ports towards hosts, by name, with their cables.

    Raises LabFailed with every port whose address no interface has.
    """
    by_mac = {link.mac: name for name, link in links.items()}
    cables = list(plan.nic_cables())
    missing = [
        f"{end.node} {end.ifname} ({end.mac.hex(':')})"
        for end in (cable.near for cable in cables)
        if end.mac not in by_mac
    ]
    if missing:
        raise LabFailed(
            f"no interface of this machine has the MAC address of {', '.join(missing)}: give it "
            "to the NIC that is cabled to that host, or build the lab with its hosts"
        )
    return {by_mac[cable.near.mac]: cable for cable in cables}


async def adopt(plan: Topology) -> None:
    """Move the NICs into the namespaces of their T0s, which must exist already."""
    async with Netlink() as nl:
        for name, cable in find(plan, await nl.links()).items():
            space = plan.namespace(cable.near.node)
            await nl.move_link(name, space, cable.near.ifname, plan.fabric.mtu)
