# SPDX-License-Identifier: GPL-2.0-only
"""Test the changes that operators, the survey and links make to planes, on a double of a ground."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrcd.linux.interfaces import Link, LinkChanged
from mrcd.planes import plane as nics
from mrcd.planes import planes
from mrcd.planes.ground import Nics
from mrcd.planes.plane import Plane
from mrcd.planes.planes import Heard, Planes
from mrcd.planes.usable import LastPlane
from mrcd.rules.drains import Drains
from mrcd.service.findings import Findings

MAC = bytes(6)


class Ground:
    """A double of what planes stand on: what it was told, in order."""

    def __init__(self, nics: Nics) -> None:
        self.nics = nics
        self.told: list[str] = []
        self.opens = True
        self.refused: str | None = None

    async def configure(self) -> None:
        self.told.append("configure")

    def configured(self) -> None:
        self.told.append("configured")

    def follow(self) -> None:
        self.told.append("follow")

    def look_again(self) -> None:
        self.told.append("look again")

    def linked(self, plane: Plane) -> None:
        self.told.append(f"linked {plane.index}")

    def greet(self, plane: Plane) -> None:
        self.told.append(f"greet {plane.index}")

    async def restore(self, plane: Plane) -> bool:
        if self.refused is not None:
            raise OSError(self.refused)
        self.told.append(f"restore {plane.index}")
        return self.opens

    def neighbor(self, event: object) -> None:
        self.told.append(f"neighbor {event}")

    def needs(self, plane: Plane) -> tuple[str | None, str | None]:
        return None, None

    def close(self) -> None:
        self.told.append("close")


class Bench:
    """Planes whose links are up, and the masks that they reported."""

    def __init__(self, state_dir: Path, count: int = 3, nl: object = None) -> None:
        self.masks: list[int] = []
        self.failures: list[BaseException] = []
        self.bound: list[str] = []
        self.up: list[int] = []
        self.findings = Findings()
        found = [
            Plane(k, Link(10 + k, f"plane{k}", MAC, 9000, up=True, carrier=True), MAC)
            for k in range(count)
        ]
        heard = Heard(self.masks.append, self.bind, self._up, self.failures.append)
        drains = Drains(state_dir, self.findings)
        self.planes = Planes(
            cast(Any, nl), cast(Any, None), cast(Any, None), found, drains, heard, self._ground
        )
        self.planes._changed("start")

    def _ground(self, nics: Nics) -> Ground:
        self.ground = Ground(nics)
        return self.ground

    def _up(self, plane: Plane) -> None:
        self.up.append(plane.index)

    async def bind(self, plane: Plane) -> None:
        """Note which NIC was bound."""
        self.bound.append(plane.link.name)

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
    assert Drains(tmp_path, Findings()).load(3) == {2}


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


def test_drain_that_cannot_be_remembered_is_done_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    bench = Bench(folder)
    bench.planes.drain(1)
    assert bench.masks == [0b111, 0b101]
    assert "will not survive a restart" in str(bench.planes.unsaved)
    (line,) = bench.findings.lines
    assert f"make room in {folder}" in line
    folder.mkdir()
    bench.planes.save_again()
    assert (bench.planes.unsaved, bench.findings.lines) == (None, [])
    assert Bench(folder).masks == [0b101]


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


class OneLink:
    """A Netlink that knows one link, or none."""

    def __init__(self) -> None:
        self.link: Link | None = None

    async def links(self) -> dict[str, Link]:
        return {} if self.link is None else {self.link.name: self.link}


def test_nic_that_is_back_under_its_name_is_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planes, "_write", lambda *_: None)
    nl = OneLink()

    async def run() -> None:
        bench = Bench(tmp_path, nl=nl)
        plane = bench.planes.planes[1]
        bench.planes._link_changed(LinkChanged(plane.link, gone=True))
        assert "plane1 is missing" in str(plane.why_unused("fe80::1"))
        other = Link(77, "plane1", MAC, 9000, up=True, carrier=False)
        bench.planes._link_changed(LinkChanged(replace(other, name="plane9"), gone=False))
        nl.link = other
        bench.planes._link_changed(LinkChanged(other, gone=False))
        while len(bench.planes._tasks):
            await asyncio.sleep(0)
        assert bench.bound == ["plane1"]
        assert (bench.up, bench.ground.told.count("restore 1")) == ([1], 1)
        assert "linked 1" in bench.ground.told
        assert (plane.link.index, plane.gateway_mac, plane.present) == (77, None, True)
        assert bench.failures == []

    asyncio.run(run())


def test_nic_that_comes_up_while_it_is_being_bound_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The news that it is up come while links are read, in which it is down."""
    monkeypatch.setattr(Planes, "_write", lambda *_: None)
    down = Link(77, "plane1", MAC, 9000, up=False, carrier=False)
    up = replace(down, up=True, carrier=True)

    class Slow:
        """A Netlink whose first answer is of before the NIC was set up."""

        now = down

        async def links(self) -> dict[str, Link]:
            before, self.now = self.now, up
            bench.planes._link_changed(LinkChanged(self.now, gone=False))
            others = {plane.link.name: plane.link for plane in bench.planes.planes}
            return others | {before.name: before}

    bench = Bench(tmp_path, nl=Slow())

    async def run() -> None:
        plane = bench.planes.planes[1]
        bench.planes._link_changed(LinkChanged(plane.link, gone=True))
        bench.planes._link_changed(LinkChanged(down, gone=False))
        while len(bench.planes._tasks):
            await asyncio.sleep(0)
        assert (plane.link, bench.up) == (up, [1])
        assert bench.failures == []

    asyncio.run(run())


@pytest.mark.parametrize("first", [False, True])
def test_links_that_change_while_they_are_read_are_read_again(tmp_path: Path, first: bool) -> None:
    """What was read is of before the news, and there are none after it."""
    before = Link(11, "plane1", MAC, 9000, up=first, carrier=first)
    after = replace(before, up=not first, carrier=not first)

    class Slow:
        """A Netlink that has read the links when the news come."""

        asked = 0

        async def links(self) -> dict[str, Link]:
            self.asked += 1
            read = {plane.link.name: plane.link for plane in bench.planes.planes}
            if self.asked > 1:
                return read
            bench.planes._link_changed(LinkChanged(after, gone=False))
            return read | {before.name: before}

    bench = Bench(tmp_path, nl=Slow())
    bench.planes._link_changed(LinkChanged(before, gone=False))
    bench.up.clear()
    asyncio.run(bench.planes._resync())
    assert bench.planes.planes[1].link == after
    assert cast(Any, bench.planes._nl).asked == 2


def test_nic_that_is_renamed_is_followed(bench: Bench) -> None:
    plane = bench.planes.planes[1]
    change = replace(plane.link, name="eth7", up=False)
    bench.planes._link_changed(LinkChanged(change, gone=False))
    assert (plane.link.name, plane.configured) == ("eth7", "plane1")


def test_plane_whose_mtu_is_too_small_is_left_while_there_is_another(bench: Bench) -> None:
    for plane in bench.planes.planes:
        plane.mtu = 9000
    for index in range(3):
        link = replace(bench.planes.planes[index].link, mtu=1500)
        bench.planes._link_changed(LinkChanged(link, gone=False))
    assert bench.masks == [0b111, 0b110, 0b100, 0b111]
    bench.planes._link_changed(LinkChanged(replace(link, mtu=9000), gone=False))
    assert bench.planes.mask == 0b100
    assert "ip link set plane0 mtu 9000" in str(bench.planes.planes[0].why_unused("fe80::1"))


def test_nic_with_another_address_is_written_and_greets(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setattr(Planes, "_write", lambda _planes, plane: written.append(plane.index))
    plane = bench.planes.planes[2]
    bench.planes._link_changed(LinkChanged(replace(plane.link, mac=b"\2" * 6), gone=False))
    assert written == [2]
    assert bench.ground.told == ["greet 2", "linked 2"]
    assert bench.masks == [0b111]


def test_what_fails_in_the_background_is_heard(tmp_path: Path) -> None:
    """Missed link changes cannot be read again."""

    class Broken:
        async def links(self) -> dict[str, Link]:
            raise TimeoutError("the kernel does not answer")

    async def run() -> Bench:
        bench = Bench(tmp_path, nl=Broken())
        bench.planes._links_missed()
        while len(bench.planes._tasks):
            await asyncio.sleep(0)
        await bench.planes.close()
        return bench

    bench = asyncio.run(run())
    assert [*map(str, bench.failures)] == ["the kernel does not answer"]
    assert bench.ground.told == ["close"]


def test_nic_that_cannot_be_given_what_it_lacks_is_told_of(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(
        planes, "log", SimpleNamespace(warning=lambda event, **why: said.append((event, why)))
    )
    bench.ground.refused = "no route"
    asyncio.run(bench.planes._restore(bench.planes.planes[2]))
    assert said == [("plane.not_restored", {"plane": 2, "error": "no route"})]
    assert (bench.failures, bench.up) == ([], [])


def test_sockets_are_opened_where_the_ground_says_so(bench: Bench) -> None:
    asyncio.run(bench.planes._restore(bench.planes.planes[2]))
    bench.ground.opens = False
    asyncio.run(bench.planes._restore(bench.planes.planes[1]))
    assert bench.up == [2]


# ---- finding them


def found(*mtus: int | None) -> list[Plane]:
    """Return the planes of a host whose NICs have these MTUs, where the fabric's is 9000.

    A NIC of None is not there.
    """
    names = tuple(f"plane{k}" for k in range(len(mtus)))
    links = {
        name: Link(10 + k, name, MAC, mtu, up=True, carrier=True)
        for k, (name, mtu) in enumerate(zip(names, mtus, strict=True))
        if mtu is not None
    }

    async def all_links() -> dict[str, Link]:
        return links

    config = SimpleNamespace(
        interfaces=names,
        fabric=SimpleNamespace(mtu=9000, described=True),
    )
    nl = SimpleNamespace(links=all_links)
    return asyncio.run(nics.find_planes(cast(Any, nl), cast(Any, config)))


def test_find_planes__one_whose_mtu_is_too_small_is_left_out_and_says_why() -> None:
    good, narrow = found(9000, 1500)
    assert good.port.narrow is None
    assert narrow.port.narrow is not None
    assert "plane1 has MTU 1500" in narrow.port.narrow


def test_find_planes__all_too_small_is_an_error() -> None:
    with pytest.raises(nics.PlaneError, match="plane0 has MTU 1500, plane1 has MTU 1500"):
        found(1500, 1500)


def test_find_planes__one_that_is_missing_is_left_out() -> None:
    good, missing = found(9000, None)
    assert good.present
    assert (missing.present, missing.configured, missing.port.linked) == (False, "plane1", False)
    assert "plane1 is missing" in (missing.why_unused("fe80::1") or "")


def test_find_planes__all_missing_is_an_error() -> None:
    with pytest.raises(nics.PlaneError, match="no interface plane0, plane1 on this host"):
        found(None, None)


def test_find_planes__those_that_are_there_too_small_is_an_error() -> None:
    with pytest.raises(nics.PlaneError, match="plane1 has MTU 1500"):
        found(None, 1500)
