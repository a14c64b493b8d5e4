# SPDX-License-Identifier: GPL-2.0-only
"""A running lab, labs that are removed at the end, and the machine's settings for their time."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cli.lab import lab, state
from cli.lab.multiqueue import ONE_QUEUE, HostNics
from mrcd.fabric import description
from mrcd.fabric.description import Fabric

BACKLOG = Path("/proc/sys/net/core/netdev_max_backlog")


@contextlib.contextmanager
def deep_backlog() -> Iterator[None]:
    """Let CPUs' backlogs hold as many packets as systemd/90-mrcd.conf does on a host.

    All hosts and switches of a lab share them. What a backlog drops between mrc0 and the programs
    behind it has no PSN yet.
    """
    before = BACKLOG.read_text()
    with contextlib.suppress(OSError):
        BACKLOG.write_text("10000")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            BACKLOG.write_text(before)


@dataclass(frozen=True, slots=True)
class RunningLab:
    """A running lab, with the operations that tests need."""

    fabric: Fabric

    @property
    def name(self) -> str:
        return self.fabric.name

    def namespace(self, node: str) -> str:
        return f"{self.name}-{node}"

    def run(self, node: str, *command: str, check: bool = True) -> str:
        """Run a command in a node's namespace (fresh /sys, like `lab exec`); return its output."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.namespace(node), *command],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"{command} in {node}: {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def pings(self, source: str, address: str, *options: str) -> bool:
        """Return whether one of three echo requests within a second is answered."""
        command = ["ping", "-q", "-c", "3", "-i", "0.1", "-w", "1", *options, address]
        return " 0 received" not in self.run(source, *command, check=False)

    def fault(self, element: str, action: str) -> lab.Applied:
        return lab.fault(self.name, element, action)


MakeLab = Callable[..., RunningLab]


@contextlib.contextmanager
def labs(prefix: str) -> Iterator[MakeLab]:
    """Yield a function that makes labs, and remove them at the end."""
    if os.geteuid() != 0:
        pytest.skip("labs need root: run the tests as root")
    made: list[str] = []

    def make(
        *,
        daemons: bool = False,
        ecn: bool = True,
        settings: str = "",
        on_stop: str = "detach",
        insecure: bool = False,
        host_nics: HostNics = ONE_QUEUE,
        routed: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> RunningLab:
        name = f"{prefix}{chr(ord('a') + len(made))}"
        made.append(name)
        if name in state.labs():  # left over from a killed run
            lab.down(name)
        fabric = description.generate(name=name, **options)
        behind = {host: (ipaddress.ip_network(prefix),) for host, prefix in routed.items()}
        hosts = tuple(replace(host, routed=behind.get(host.name, ())) for host in fabric.hosts)
        fabric = replace(fabric, hosts=hosts)
        lab.up(
            fabric,
            daemons=daemons,
            ecn=ecn,
            on_stop=on_stop,
            settings=settings,
            insecure=insecure,
            host_nics=host_nics,
        )
        return RunningLab(fabric)

    try:
        yield make
    finally:
        for name in made:
            with contextlib.suppress(state.NoSuchElement):
                lab.down(name)
