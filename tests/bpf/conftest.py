# SPDX-License-Identifier: GPL-2.0-only
"""One compiled data path for the whole run, reset before each test."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from cli.lab.state import CACHE_DIR
from mrcd.datapath import loader
from mrcd.fabric.routing import SRV6, Routing
from mrcd.linux import kernel, netns
from rigs import rig as rigs
from rigs.packets import Far, in_udp
from rigs.rig import Rig
from tests.bpf.capturing import CapturingRig
from tests.bpf.cells import CellRig, Door

ROUTINGS = (
    SRV6,
    Routing("srv6", "reduced"),
    Routing("ecmp", underlay=6),
    Routing("ecmp", underlay=4),
)
"""With two IP headers cells go in IPv6, otherwise in UDP, so that there is a rig of each kind."""

Build = Callable[..., Rig]
Recording = Callable[[Rig], tuple[dict[str, int], dict[str, int]]]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    """Return a function that gives the rig of a routing and a hook, compiled on first use."""
    if os.geteuid() != 0:
        pytest.skip("BPF programs need root: run the tests as root")
    built: dict[tuple[Routing, bool, bool, bool], Rig] = {}
    cpus = rigs.pinned_to_one_cpu()

    def of(
        routing: Routing, xdp: bool, decap: bool = kernel.has_decap(), cell_udp: bool | None = None
    ) -> Rig:
        if cell_udp is None:
            cell_udp = in_udp(routing)
        key = routing, xdp, decap, cell_udp
        if key not in built:
            kind = f"{routing.code}{'n' * routing.network}{'u' * cell_udp}"
            namespace = f"rig{os.getpid()}-{kind}{'x' * xdp}{'d' * decap}"
            folder = tmp_path_factory.mktemp("rig")
            try:
                built[key] = Rig(
                    namespace, folder, routing, xdp=xdp, decap=decap, cell_udp=cell_udp
                )
            except BaseException:
                netns.delete(namespace)
                raise
        return built[key]

    try:
        yield of
    finally:
        for one in built.values():
            one.close()
        os.sched_setaffinity(0, cpus)


@pytest.fixture
def at_xdp() -> bool:
    """Return whether mrc_receive is an XDP program. Files override it to test both."""
    return False


@pytest.fixture
def routing() -> Routing:
    """Return how the fabric routes. Files override it to test several."""
    return SRV6


@pytest.fixture
def decap() -> bool:
    """Return whether programs take headers off by flags of Linux 6.3. Tests try it without, too."""
    return kernel.has_decap()


@pytest.fixture
def cell_udp(routing: Routing) -> bool:
    """Return whether cells go in UDP. Files override it to test uSIDs in both envelopes."""
    return in_udp(routing)


@pytest.fixture
def built_rig(build: Build, routing: Routing, at_xdp: bool, decap: bool, cell_udp: bool) -> Rig:
    return build(routing, at_xdp, decap, cell_udp)


@pytest.fixture
def rig(built_rig: Rig) -> Iterator[Rig]:
    """Yield the rig as host h1, with QP 0 to h2 ready."""
    yield from made_ready(built_rig)


@pytest.fixture
def far(built_rig: Rig) -> Far:
    """Return a maker of the frames that h2 sends to h1."""
    return far_of(built_rig)


@pytest.fixture(params=ROUTINGS, ids=lambda routing: routing.shown)
def each_rig(request: pytest.FixtureRequest, build: Build, at_xdp: bool) -> Iterator[Rig]:
    """Yield what `rig` yields, once for each routing."""
    yield from made_ready(build(request.param, at_xdp))


@pytest.fixture
def each_far(each_rig: Rig) -> Far:
    """Return what `far` returns, for `each_rig`."""
    return far_of(each_rig)


@pytest.fixture(scope="session")
def doors() -> Iterator[dict[str, Door]]:
    """Yield the interfaces by which large packets come into rigs, by namespace."""
    made: dict[str, Door] = {}
    yield made
    for door in made.values():
        door.close()


@pytest.fixture
def cells(rig: Rig, doors: dict[str, Door]) -> Iterator[CellRig]:
    """Yield the rig of `rig`, whose QP 0 has the framing of cells."""
    if rig.namespace not in doors:
        doors[rig.namespace] = Door()
    with contextlib.ExitStack() as links:
        yield CellRig(rig, doors[rig.namespace], links)


def made_ready(built: Rig) -> Iterator[Rig]:
    # A program looks interfaces up in the namespace of the process that runs it.
    with netns.entered(built.namespace):
        built.reset()
        built.connect()
        built.counted()
        yield built


def far_of(built: Rig) -> Far:
    fabric = built.fabric
    cell_udp = built.dp.sizes.cell_udp
    return Far(fabric, fabric.host("h1"), fabric.host("h2"), cell_udp=cell_udp)


@pytest.fixture(scope="session")
def recording(build: Build) -> Iterator[Recording]:
    """Return a function that gives the maps and programs of a capture over a rig's maps.

    They are compiled on first use.
    """
    made: dict[str, tuple[dict[str, int], dict[str, int]]] = {}

    def of(rig: Rig) -> tuple[dict[str, int], dict[str, int]]:
        if rig.namespace not in made:
            sizes = replace(rig.dp.sizes, capture=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                maps, programs, rig.capture_report = loader.load_over(
                    rig.dp.maps, sizes, cache=CACHE_DIR
                )
            made[rig.namespace] = maps, programs
        return made[rig.namespace]

    yield of
    for maps, programs in made.values():
        for fd in (*maps.values(), *programs.values()):
            os.close(fd)


@pytest.fixture
def capture_rig(rig: Rig, recording: Recording) -> Iterator[CapturingRig]:
    """Yield the rig of `rig` with programs that record packets."""
    yield from capturing(rig, *recording(rig))


@pytest.fixture
def each_capture_rig(each_rig: Rig, recording: Recording) -> Iterator[CapturingRig]:
    """Yield what `capture_rig` yields, once for each routing."""
    yield from capturing(each_rig, *recording(each_rig))


def capturing(rig: Rig, maps: dict[str, int], programs: dict[str, int]) -> Iterator[CapturingRig]:
    ordinary, rig.dp.programs = rig.dp.programs, programs
    rig.point_tails()
    try:
        with contextlib.closing(CapturingRig(rig, ordinary, maps)) as made:
            yield made
    finally:
        rig.dp.programs = ordinary
        rig.point_tails()
