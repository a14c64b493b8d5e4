# SPDX-License-Identifier: GPL-2.0-only
"""Build a lab of two hosts cabled to each other, plane by plane, without switches.

mrcd sends every packet to the T0 of its plane, and with uSIDs the T0 has to shift the list. In a
fabric that hashes (`routing = "ecmp"`) no switch changes a packet, so the other host can have the
T0's address. A permanent neighbour entry provides that.

XDP has to be native: generic XDP at the other end of a cable does not see a redirected packet until
it has been received once, as by a switch. With native XDP, plain TCP would need software checksums,
so it has a separate cable without a program.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator

from bench.instruments import flow
from bench.instruments.flow import BenchFailed
from cli.lab import lab, reach, topology
from cli.lab.topology import Topology
from mrcd.fabric import shape
from mrcd.fabric.description import Fabric
from mrcd.fabric.routing import Routing

PLANES = 4
_HOSTS = ("h1", "h2")
_WITHIN_S = 120.0  # programs of changed sources are compiled first
_PLAIN = "plain0"

PLAIN_ADDRESSES = dict(zip(_HOSTS, ("10.94.0.1", "10.94.0.2"), strict=True))
"""The addresses at the ends of the cable for plain TCP."""


@contextlib.contextmanager
def up(name: str, mtu: int, framing: str | None = None, *, daemons: bool = True) -> Iterator[str]:
    """Build the lab without rate limits, with mrcd in both hosts or not; remove it afterwards."""
    fabric = shape.generate(
        name=name, planes=PLANES, t1=1, hosts_per_t0=2, mtu=mtu, routing=Routing("ecmp")
    )
    settings = flow.framed(framing)
    with flow.fabric_up(fabric, daemons=False, settings=settings):
        plan = topology.plan(fabric)
        _ip(cables(fabric, plan))
        for host in _HOSTS:
            _ip(addresses(fabric, plan, host), plan.namespace(host))
        if daemons:
            _start(name, plan)
        yield name


def _start(name: str, plan: Topology) -> None:
    """Start mrcd in both hosts, and wait until they reach each other."""
    running = {host: lab.start_daemon(name, host) for host in _HOSTS}

    def ended() -> str | None:
        gone = [host for host, process in running.items() if process.poll() is not None]
        return f"mrcd of {', '.join(gone)} ended" if gone else None

    missing, reason = asyncio.run(reach.wait(name, plan.fabric.hosts, _WITHIN_S, ended))
    if reason or missing:
        raise BenchFailed(reason or f"no answer through mrc0: {', '.join(map(str, missing))}")


def cables(fabric: Fabric, plan: Topology) -> list[str]:
    """Return lines for a veth pair between the hosts for each plane, and one more for plain TCP."""
    one, other = (plan.namespace(host) for host in _HOSTS)
    lines = [
        f"link add {_PLAIN} netns {one} mtu {fabric.mtu} type veth peer"
        f" name {_PLAIN} netns {other} mtu {fabric.mtu}"
    ]
    for plane in range(fabric.planes):
        macs = [_mac(plan, host, plane) for host in _HOSTS]
        lines += [
            f"-n {one} link del plane{plane}",
            f"-n {other} link del plane{plane}",
            f"link add plane{plane} netns {one} address {macs[0]} mtu {fabric.mtu} type veth peer"
            f" name plane{plane} netns {other} address {macs[1]} mtu {fabric.mtu}",
        ]
    return lines


def addresses(fabric: Fabric, plan: Topology, host: str) -> list[str]:
    """Return lines for a host's addresses and its neighbours: the other host, also as the T0."""
    other = next(name for name in _HOSTS if name != host)
    lines = [
        f"link set {_PLAIN} up",
        f"addr add {PLAIN_ADDRESSES[host]}/24 dev {_PLAIN}",
    ]
    for plane in range(fabric.planes):
        nic, mac = f"plane{plane}", _mac(plan, other, plane)
        own = [cidr for dev, cidr in plan.nodes[host].addresses if dev == nic]
        theirs = fabric.address4(fabric.host(other), plane)
        lines += [
            f"link set {nic} up",
            *(f"addr add {cidr} dev {nic}" for cidr in own),
            f"neigh replace {fabric.gateway} lladdr {mac} dev {nic} nud permanent",
            f"neigh replace {theirs} lladdr {mac} dev {nic} nud permanent",
            f"route replace {theirs}/32 dev {nic}",
        ]
    return lines


def _mac(plan: Topology, host: str, plane: int) -> str:
    ends = (end for cable in plan.cables for end in (cable.near, cable.far))
    mac = next(end.mac for end in ends if (end.node, end.ifname) == (host, f"plane{plane}"))
    return mac.hex(":")


def _ip(lines: list[str], namespace: str | None = None) -> None:
    """Run lines with `ip`, in one namespace or each in its own (`-n`)."""
    for line in lines:
        where = ["-n", namespace] if namespace else []
        done = subprocess.run(
            ["ip", *where, *line.split()], capture_output=True, text=True, timeout=30, check=False
        )
        if done.returncode:
            raise BenchFailed(f"ip {line}: {done.stderr.strip()}")
