# SPDX-License-Identifier: GPL-2.0-only
"""Test which version a session speaks, between builds that speak different ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mrcd.handshake import versions
from tests.unit.handshake.test_session import (
    SECOND,
    Packet,
    World,
    connected,
    remembered,
    resume,
)


class Mixed(World):
    """Two nodes whose builds speak different versions."""

    def __init__(self, a: tuple[int, int], b: tuple[int, int]) -> None:
        self.ranges = {"a": a, "b": b}
        super().__init__()

    @contextlib.contextmanager
    def build_of(self, name: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(versions, "OLDEST", self.ranges[name][0])
            patch.setattr(versions, "NEWEST", self.ranges[name][1])
            yield

    def boot(self, name: str) -> None:
        with self.build_of(name):
            super().boot(name)

    def deliver(self, packet: Packet) -> None:
        with self.build_of(packet.to):
            super().deliver(packet)

    def tick(self) -> None:
        for node in list(self.nodes.values()):
            if self.now_ns >= node.session.deadline_ns:
                with self.build_of(node.name):
                    self.obey(node.name, node.session.tick(now_ns=self.now_ns))

    def agreed(self) -> set[int | None]:
        return {node.session.version for node in self.nodes.values()}


def test_version__is_none_without_a_peer() -> None:
    world = World()
    assert {node.session.version for node in world.nodes.values()} == {None}


@pytest.mark.parametrize(
    ("a", "b", "agreed"), [((4, 4), (4, 4), 4), ((4, 6), (3, 5), 5), ((2, 5), (5, 9), 5)]
)
def test_version__is_the_highest_of_both(
    a: tuple[int, int], b: tuple[int, int], agreed: int
) -> None:
    world = Mixed(a, b)
    world.deliver_all()
    world.assert_agreement()
    assert world.agreed() == {agreed}


def test_version__lasts_as_long_as_the_session() -> None:
    world = Mixed((4, 4), (4, 4))
    world.deliver_all()
    for name in ("a", "b"):
        world.ranges[name] = (4, 5)
        memory = remembered(world, name)
        assert memory.agreed == 4
        resume(world, name, memory)
    world.run(20 * SECOND)
    assert world.established()
    assert world.agreed() == {4}
    assert {node.resets for node in world.nodes.values()} == {0}
    world.boot("a")
    world.run(5 * SECOND)
    assert world.agreed() == {5}


def test_version__of_a_session_saved_by_a_build_without_versions_is_that_of_its_offer() -> None:
    memory = remembered(connected(), "a")
    assert replace(memory, version=0).agreed == memory.offer.version
