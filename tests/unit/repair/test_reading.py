# SPDX-License-Identifier: GPL-2.0-only
"""Test how our interfaces are remembered, without asking the kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mrcd.linux.interfaces import LinkState
from mrcd.repair import reading
from mrcd.repair.reading import Made

CONFIG: Any = SimpleNamespace(cells=True, cell_udp=True, mrc0=SimpleNamespace(name="mrc0"))


def made(monkeypatch: pytest.MonkeyPatch, *kinds: tuple[str, str]) -> dict[str, int]:
    """Return the indices that are remembered when interfaces of these names and types are there."""
    links = {
        index: LinkState(index=index, name=name, kind=kind)
        for index, (name, kind) in enumerate(kinds, 5)
    }
    monkeypatch.setattr(reading.rtnl, "links", lambda: links)
    monkeypatch.setattr(reading, "offloads", lambda _names: {})
    return dict(Made.now(CONFIG, bytes(6)).indices)


def test_made__ours_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (("mrc0p", "veth"), ("mrc0", "macvlan"), ("eth0", ""), ("mrc0u", "vxlan"))
    assert made(monkeypatch, *kinds) == {"mrc0p": 5, "mrc0": 6, "mrc0u": 8}


def test_made__another_interface_that_has_taken_the_name_is_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert made(monkeypatch, ("mrc0p", "veth"), ("mrc0", "bridge")) == {"mrc0p": 5}
