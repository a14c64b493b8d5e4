# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures: labs for tests, each removed after its test or module."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from mrcd.fabric import description
from mrcd.fabric.description import Fabric
from mrcd.lab import lab, state
from mrcd.lab.multiqueue import ONE_QUEUE, HostNics
from mrcd.linux import netns
from tests.net import lab_hosts

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


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Hold the machine's settings for the whole run: workers share them, so the controller does."""
    with contextlib.nullcontext() if hasattr(session.config, "workerinput") else deep_backlog():
        return (yield)


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
def _labs(prefix: str) -> Iterator[MakeLab]:
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


@pytest.fixture
def make_lab(worker_name: str) -> Iterator[MakeLab]:
    """Build labs: `make_lab(daemons=False, ecn=True, hosts=2, ...)`, with the options of `lab up`.

    `settings` is TOML to add to every host's mrcd.toml; `on_stop` is the setting of that name.
    `host_nics` is the kind of NIC that hosts have. `routed` has the prefix behind each host that
    has one.
    """
    with _labs(worker_name) as make:
        yield make


@pytest.fixture(scope="module")
def module_labs() -> Iterator[MakeLab]:
    """Build labs like `make_lab`, but for all tests of a module to share."""
    with _labs(f"k{os.getpid()}") as make:
        yield make


@pytest.fixture(scope="module")
def module_lab(request: pytest.FixtureRequest) -> Iterator[RunningLab]:
    """Return a lab of two hosts and four planes, with daemons, for all tests of a module.

    A framing may be its parameter (indirect parametrization).
    """
    framing = getattr(request, "param", "auto")
    with _labs(f"m{os.getpid()}") as make:
        yield make(daemons=True, settings=f'[transport]\nframing = "{framing}"\n')


@pytest.fixture
def shared_lab(module_lab: RunningLab) -> Iterator[RunningLab]:
    """Return the module's lab without faults; all hosts report ok and all paths are good."""
    lab_hosts.heal(module_lab)
    yield module_lab
    lab_hosts.heal(module_lab)


@pytest.fixture
def worker_name() -> str:
    """Return a lab name of this process only, so that two workers or runs do not collide."""
    return f"t{os.getpid()}"


def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait for a condition, and fail if it does not become true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s"


def machine_state() -> tuple[set[str], set[str], set[str]]:
    """Return everything that a lab could leave behind: namespaces, mount points, interfaces."""
    with open("/proc/self/mountinfo") as mounts:
        points = {line.split()[4] for line in mounts}
    return set(netns.names()), points, set(os.listdir("/sys/class/net"))


@pytest.fixture
def machine() -> Callable[[], tuple[set[str], set[str], set[str]]]:
    return machine_state


@pytest.fixture
def wait_until() -> Callable[..., None]:
    return eventually
