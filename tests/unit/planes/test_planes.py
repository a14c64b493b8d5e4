# SPDX-License-Identifier: GPL-2.0-only
"""Test the changes that operators and the survey make to planes, without asking the kernel."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrcd.linux.interfaces import Link, LinkChanged
from mrcd.planes import planes
from mrcd.planes.planes import Plane, Planes
from mrcd.planes.usable import LastPlane
from mrcd.rules import drains

MAC = bytes(6)


class Bench:
    """Planes whose links are up, and the masks that they reported."""

    def __init__(self, state_dir: Path, count: int = 3, nl: object = None) -> None:
        self.masks: list[int] = []
        self.failures: list[BaseException] = []
        found = [
            Plane(k, Link(10 + k, f"plane{k}", MAC, 9000, up=True, carrier=True), MAC)
            for k in range(count)
        ]
        nothing = cast(Any, None)
        self.planes = Planes(
            cast(Any, nl),
            nothing,
            nothing,
            found,
            state_dir,
            self.masks.append,
            state_dir,
            self.failures.append,
        )
        self.planes._changed("start")

    def link(self, index: int, *, carrier: bool) -> None:
        link = Link(10 + index, f"plane{index}", MAC, 9000, up=True, carrier=carrier)
        self.planes._link_changed(LinkChanged(link, gone=False))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_drain_and_undrain_are_reported_once(bench: Bench) -> None:
    bench.planes.drain(1)
    bench.planes.drain(1)
    bench.planes.undrain(1)
    bench.planes.undrain(1)
    assert bench.masks == [0b111, 0b101, 0b111]


def test_drained_planes_are_there_after_a_restart(tmp_path: Path) -> None:
    Bench(tmp_path).planes.drain(0)
    again = Bench(tmp_path)
    assert again.masks == [0b110]
    again.planes.drain(2)
    again.planes.undrain(0)
    assert drains.load(tmp_path, 3) == {2}


def test_last_usable_plane_stays_without_force(bench: Bench) -> None:
    bench.planes.drain(0)
    bench.link(1, carrier=False)
    with pytest.raises(LastPlane, match="plane 2"):
        bench.planes.drain(2)
    assert bench.planes.mask == 0b100
    bench.planes.drain(2, force=True)
    assert bench.planes.mask == 0


def test_plane_that_is_down_anyway_may_be_drained(bench: Bench) -> None:
    bench.link(1, carrier=False)
    bench.planes.drain(1)
    bench.link(1, carrier=True)
    assert bench.masks == [0b111, 0b101]


def test_drain_that_cannot_be_remembered_is_not_done(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "missing")
    with pytest.raises(OSError, match="missing"):
        bench.planes.drain(1)
    assert bench.masks == [0b111]


def test_sick_plane_leaves_until_it_is_healthy(bench: Bench) -> None:
    bench.planes.set_health(1, False, "loses 4 % of its own probes")
    bench.planes.set_health(1, False, "loses 5 % of its own probes")
    assert bench.planes.planes[1].why_unused("fe80::1") == "loses 5 % of its own probes"
    bench.planes.set_health(1, True)
    assert bench.planes.planes[1].why_unused("fe80::1") is None
    assert bench.masks == [0b111, 0b101, 0b111]


def test_sick_plane_is_used_while_there_is_no_other(bench: Bench) -> None:
    for index in range(3):
        bench.planes.set_health(index, False, "sick")
    assert bench.masks == [0b111, 0b110, 0b100, 0b111]
    bench.planes.set_health(0, True)
    assert bench.planes.mask == 0b001
    bench.link(0, carrier=False)
    assert bench.planes.mask == 0b110


def test_links_of_other_interfaces_mean_nothing(bench: Bench) -> None:
    bench.planes._link_changed(LinkChanged(Link(99, "eth0", MAC, 1500, True, False), gone=False))
    bench.planes._link_changed(LinkChanged(bench.planes.planes[0].link, gone=False))
    assert bench.masks == [0b111]


def test_link_that_is_gone_is_down(bench: Bench) -> None:
    bench.planes._link_changed(LinkChanged(bench.planes.planes[0].link, gone=True))
    assert bench.masks == [0b111, 0b110]


class BrokenNetlink:
    """A Netlink that no longer answers."""

    async def links(self) -> dict[str, Link]:
        raise TimeoutError("the kernel does not answer")

    async def resolve_neighbor(self, *_: object) -> bytes | None:
        raise RuntimeError("no socket")


def test_what_fails_in_the_background_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missed link changes cannot be read again, or a gateway cannot be resolved."""
    monkeypatch.setattr(Planes, "_gateway", lambda *_: "fe80::1")

    async def run() -> list[BaseException]:
        bench = Bench(tmp_path, nl=BrokenNetlink())
        bench.planes._links_missed()
        bench.planes.planes[1].gateway_mac = None
        bench.planes._keep_resolving(bench.planes.planes[1])
        while len(bench.planes._tasks):
            await asyncio.sleep(0)
        await bench.planes.close()
        return bench.failures

    assert sorted(map(str, asyncio.run(run()))) == ["no socket", "the kernel does not answer"]


def test_nic_that_cannot_be_given_its_route_again_is_told_of(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise OSError("no route")

    said: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(Planes, "_address_and_route", refuse)
    monkeypatch.setattr(
        planes, "log", SimpleNamespace(warning=lambda event, **why: said.append((event, why)))
    )
    asyncio.run(bench.planes._restore(bench.planes.planes[2]))
    assert said == [("plane.not_restored", {"plane": 2, "error": "no route"})]
    assert bench.failures == []
