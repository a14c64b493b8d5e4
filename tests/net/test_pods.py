# SPDX-License-Identifier: GPL-2.0-only
"""Test that what has a network of its own on a host, as pods have, uses mrc0.

The plugins of the Container Network Interface make the pods' interfaces, with the example in
packaging/kubernetes and the prefix of each host in the fabric file.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mrcd.linux import netns
from rigs import lab_hosts
from rigs.traffic import Stream, transfer, udp_sequence

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]

PLUGINS = Path("/usr/lib/cni")
EXAMPLE = Path(__file__).resolve().parents[2] / "packaging" / "kubernetes" / "mrc0.conf"
BEHIND = {"h1": "10.98.1.0/24", "h2": "10.98.2.0/24"}


def plugin(running: Lab, host: str, pod: str, command: str, settings: dict[str, Any]) -> str:
    """Run the plugin that a configuration names on a host, for a pod; return what it prints."""
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": pod,
        "CNI_NETNS": str(netns.path(running.namespace(pod))),
        "CNI_IFNAME": "net1",
        "CNI_PATH": str(PLUGINS),
    }
    done = subprocess.run(
        ["ip", "netns", "exec", running.namespace(host), str(PLUGINS / settings["type"])],
        input=json.dumps(settings), capture_output=True, text=True, timeout=30, check=False,
        env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def running_pod(running: Lab, host: str, pod: str, prefix: str, leases: Path) -> Iterator[str]:
    """Give a pod on a host an interface with an address of a prefix; yield the address."""
    settings = json.loads(EXAMPLE.read_text())
    settings["ipam"] |= {"ranges": [[{"subnet": prefix}]], "dataDir": str(leases / host)}
    space = running.namespace(pod)
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        running.run(pod, "ip", "link", "set", "lo", "up")
        made = json.loads(plugin(running, host, pod, "ADD", settings))
        yield made["ips"][0]["address"].partition("/")[0]
        plugin(running, host, pod, "DEL", settings)
    finally:
        subprocess.run(["ip", "netns", "delete", space], check=True)


@pytest.fixture
def pods(make_lab: MakeLab, tmp_path: Path) -> Iterator[tuple[Lab, str, str]]:
    """Return a lab with a pod on each host, pod1 on h1 and pod2 on h2, and their addresses."""
    running = make_lab(daemons=True, routed=BEHIND)
    with contextlib.ExitStack() as stack:
        one, other = (
            stack.enter_context(running_pod(running, host, f"pod{host[1:]}", prefix, tmp_path))
            for host, prefix in BEHIND.items()
        )
        yield running, one, other


def test_pods_use_mrc0_through_the_death_of_a_plane(pods: tuple[Lab, str, str]) -> None:
    running, one, other = pods
    assert other.startswith("10.98.2.")
    stream = Stream(running, "pod1", "pod2", other).start()
    stream.progress(8 << 20)
    running.fault("p1", "blackhole")
    stream.progress(64 << 20, within_s=20.0)
    stream.finish()
    back = udp_sequence(running, "pod2", "pod1", one)
    assert back == list(range(3000))
    h1 = str(running.fabric.host("h1").addresses[0].ip)
    transfer(running, "pod2", "h1", h1)  # from a pod to another host itself,
    transfer(running, "h1", "pod2", other)  # and back
    for host in BEHIND:
        counted = lab_hosts.counters(running.name, host)
        assert counted["drop_foreign"] == 0
        assert counted["tx_packets"] > 0


def test_a_pod_outside_of_its_hosts_prefix_is_not_taken(make_lab: MakeLab, tmp_path: Path) -> None:
    running = make_lab(daemons=True, routed=BEHIND)
    target = str(running.fabric.host("h2").addresses[0].ip)
    with running_pod(running, "h1", "pod1", "10.98.7.0/24", tmp_path):
        assert not running.pings("pod1", target)
    assert lab_hosts.counters(running.name, "h1")["drop_not_ours"] > 0
    assert lab_hosts.counters(running.name, "h2")["drop_foreign"] == 0
