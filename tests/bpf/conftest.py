# SPDX-License-Identifier: GPL-2.0-only
"""One compiled data path for the whole run; each test finds it as new."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mrcd import netns
from tests.bpf import rig as rigs
from tests.bpf.packets import Far
from tests.bpf.rig import Rig


@pytest.fixture(scope="session")
def built_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if os.geteuid() != 0:
        pytest.skip("BPF programs need root: run the tests as root")
    namespace = f"rig{os.getpid()}"
    cpus = rigs.pinned_to_one_cpu()
    try:
        built = Rig(namespace, tmp_path_factory.mktemp("rig"))
        yield built
        built.close()
    finally:
        os.sched_setaffinity(0, cpus)
        netns.delete(namespace)


@pytest.fixture
def rig(built_rig: Rig) -> Iterator[Rig]:
    """The rig as host h1, with QP 0 to h2 ready."""
    # Programs look interfaces up in the namespace of whoever runs them.
    with netns.entered(built_rig.namespace):
        built_rig.reset()
        built_rig.connect()
        built_rig.counted()
        yield built_rig


@pytest.fixture
def far(built_rig: Rig) -> Far:
    """Makes the frames that h2 sends to h1."""
    fabric = built_rig.fabric
    return Far(fabric, fabric.host("h1"), fabric.host("h2"))
