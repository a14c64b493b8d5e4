# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures: labs for tests, each removed after its test or module."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator

import pytest

from mrcd.linux import netns
from rigs import lab_hosts
from rigs.running_lab import MakeLab, RunningLab, deep_backlog, labs


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Hold the machine's settings for the whole run: workers share them, so the controller does."""
    with contextlib.nullcontext() if hasattr(session.config, "workerinput") else deep_backlog():
        return (yield)


@pytest.fixture
def make_lab(worker_name: str) -> Iterator[MakeLab]:
    """Build labs: `make_lab(daemons=False, ecn=True, hosts=2, ...)`, with the options of `lab up`.

    `settings` is TOML to add to every host's mrcd.toml; `on_stop` is the setting of that name.
    `host_nics` is the kind of NIC that hosts have. `routed` has the prefix behind each host that
    has one.
    """
    with labs(worker_name) as make:
        yield make


@pytest.fixture(scope="module")
def module_labs() -> Iterator[MakeLab]:
    """Build labs like `make_lab`, but for all tests of a module to share."""
    with labs(f"k{os.getpid()}") as make:
        yield make


@pytest.fixture(scope="module")
def module_lab(request: pytest.FixtureRequest) -> Iterator[RunningLab]:
    """Return a lab of two hosts and four planes, with daemons, for all tests of a module.

    A framing may be its parameter (indirect parametrization).
    """
    framing = getattr(request, "param", "auto")
    with labs(f"m{os.getpid()}") as make:
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
