# SPDX-License-Identifier: GPL-2.0-only
"""One compiled data path for the whole run; each test finds it as new."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from mrcd import netns
from mrcd.fabric.routing import SRV6, Routing
from tests.bpf import rig as rigs
from tests.bpf.packets import Far
from tests.bpf.rig import Rig

ROUTINGS = (
    SRV6,
    Routing("srv6", "reduced"),
    Routing("ecmp", underlay=6),
    Routing("ecmp", underlay=4),
)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Routing], Rig]]:
    """Gives the rig of a routing, compiled when it is asked for first."""
    if os.geteuid() != 0:
        pytest.skip("BPF programs need root: run the tests as root")
    built: dict[Routing, Rig] = {}
    cpus = rigs.pinned_to_one_cpu()

    def of(routing: Routing) -> Rig:
        if routing not in built:
            namespace = f"rig{os.getpid()}-{routing.code}"
            try:
                built[routing] = Rig(namespace, tmp_path_factory.mktemp("rig"), routing)
            except BaseException:
                netns.delete(namespace)
                raise
        return built[routing]

    try:
        yield of
    finally:
        for one in built.values():
            one.close()
        os.sched_setaffinity(0, cpus)


@pytest.fixture(scope="session")
def built_rig(build: Callable[[Routing], Rig]) -> Rig:
    return build(SRV6)


@pytest.fixture
def rig(built_rig: Rig) -> Iterator[Rig]:
    """The rig as host h1, with QP 0 to h2 ready."""
    yield from made_ready(built_rig)


@pytest.fixture
def far(built_rig: Rig) -> Far:
    """Makes the frames that h2 sends to h1."""
    return far_of(built_rig)


@pytest.fixture(params=ROUTINGS, ids=lambda routing: routing.shown)
def each_rig(request: pytest.FixtureRequest, build: Callable[[Routing], Rig]) -> Iterator[Rig]:
    """As `rig`, once for each routing."""
    yield from made_ready(build(request.param))


@pytest.fixture
def each_far(each_rig: Rig) -> Far:
    """As `far`, for `each_rig`."""
    return far_of(each_rig)


def made_ready(built: Rig) -> Iterator[Rig]:
    # Programs look interfaces up in the namespace of whoever runs them.
    with netns.entered(built.namespace):
        built.reset()
        built.connect()
        built.counted()
        yield built


def far_of(built: Rig) -> Far:
    fabric = built.fabric
    return Far(fabric, fabric.host("h1"), fabric.host("h2"))
