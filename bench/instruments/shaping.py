# SPDX-License-Identifier: GPL-2.0-only
"""Change the rate of a lab's links by tc, without notice to the lab's hosts and switches."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable

from bench.instruments.flow import BenchFailed
from cli.lab import queues, state, topology
from cli.lab.injection import Applied

_ETHERNET = 14


def plane_rate(name: str, plane: int, mbps: float) -> Applied:
    """Limit every port of the plane's switches to a rate in Mb/s from now on."""
    plan = topology.plan(state.read_fabric(name))
    nodes = [node for node in plan.nodes.values() if node.plane == plane]
    ports = [(plan.namespace(node.name), port) for node in nodes for port in node.ports]
    return _retune(ports, mbps, plan.fabric.mtu)


def _retune(ports: Iterable[tuple[str, str]], mbps: float, mtu: int) -> Applied:
    lines: dict[str, list[str]] = {}
    for namespace, port in ports:
        where = _tbf(namespace, port)
        lines.setdefault(namespace, []).append(
            f"qdisc change dev {port} {where} {_parameters(mbps, mtu)}"
        )
    began_ns = time.monotonic_ns()
    for namespace, batch in lines.items():
        _tc("-n", namespace, "-batch", "-", text="\n".join(batch) + "\n")
    return Applied(began_ns, time.monotonic_ns())


def _tbf(namespace: str, port: str) -> str:
    """Return the place of the port's token bucket, as arguments of tc."""
    for qdisc in json.loads(_tc("-n", namespace, "-j", "qdisc", "show", "dev", port)):
        if qdisc["kind"] == "tbf":
            place = "root" if qdisc.get("root") else f"parent {qdisc['parent']}"
            return f"{place} handle {qdisc['handle']} tbf"
    raise BenchFailed(f"{port} in {namespace} has no token bucket: the lab needs a rate")


def _parameters(mbps: float, mtu: int) -> str:
    """Return the burst and queue that the lab gives a link of this rate."""
    rate = int(mbps * 1_000_000) // 8
    frame = mtu + _ETHERNET
    burst = max(2 * frame, rate // 1000)
    limit = max(rate * queues.QUEUE_MS // 1000, queues.QUEUE_PACKETS * frame)
    return f"rate {rate * 8}bit burst {burst} limit {limit}"


def _tc(*arguments: str, text: str | None = None) -> str:
    done = subprocess.run(
        ["tc", *arguments], input=text, capture_output=True, text=True, timeout=20, check=False
    )
    if done.returncode:
        raise BenchFailed(f"tc {' '.join(arguments)}: {done.stderr.strip()} {text or ''}")
    return done.stdout
