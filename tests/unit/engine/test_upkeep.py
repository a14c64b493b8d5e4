# SPDX-License-Identifier: GPL-2.0-only
"""Test what upkeep does about interfaces that were made anew, and about routes that are missing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrcd.config import config
from mrcd.config.config import Config
from mrcd.datapath.attachment import Hook
from mrcd.engine.upkeep import Upkeep
from mrcd.fabric import description


class Parts:
    """What upkeep acts through, and what it did, in order."""

    def __init__(self, settings: Config | None) -> None:
        self.settings = settings
        self.done: list[str] = []
        self.other = True
        self.attached = True
        self.made = SimpleNamespace(indices={"mrc0": 5, "mrc0p": 6})

    async def remake(self) -> bool:
        self.done.append("remake")
        return self.other

    async def attach(self, hooks: list[Hook]) -> None:
        self.done += [f"attach {hook.interface}" for hook in hooks]

    async def renew(self, peers: Any) -> None:
        self.done.append(f"routes to {' '.join(peer.name for peer in peers)}")

    def make_beat(self) -> None:
        self.done.append("beat")

    def upkeep(self) -> Upkeep:
        hooks = [
            cast(Hook, SimpleNamespace(interface=name)) for name in ("plane0", "mrc0p", "mrc0d")
        ]
        me = cast(Any, self)
        return Upkeep(
            lambda: self.settings,
            hooks,
            lambda: me if self.attached else None,
            me,
            me,
            me,
            me,
            lambda leads: None,
        )


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    (tmp_path / "fabric.toml").write_text(
        description.dumps(description.generate(hosts=3, planes=2))
    )
    text = '[host]\nname = "h1"\nfabric = "fabric.toml"\n'
    return Parts(config.loads(text, tmp_path / "mrcd.toml"))


def test_interfaces_that_are_others_get_programs_beats_and_routes(parts: Parts) -> None:
    asyncio.run(parts.upkeep()._remake())
    assert parts.done == ["remake", "attach mrc0p", "beat", "routes to h2 h3"]


def test_interfaces_that_were_only_set_back_need_nothing_else(parts: Parts) -> None:
    parts.other = False
    asyncio.run(parts.upkeep()._remake())
    assert parts.done == ["remake"]


def test_nothing_is_attached_while_programs_are_replaced(parts: Parts) -> None:
    parts.attached = False
    asyncio.run(parts.upkeep().attach_to("plane0"))
    assert parts.done == []


def test_only_peers_whose_routes_are_missing_get_them_again(parts: Parts) -> None:
    assert parts.settings is not None
    prefix = str(parts.settings.peers[1].allowed[0])
    asyncio.run(parts.upkeep()._reroute([prefix]))
    assert parts.done == ["routes to h3"]


def test_nothing_is_wanted_while_mrcd_takes_its_leave(parts: Parts) -> None:
    parts.settings = None
    assert parts.upkeep().wanted() is None
