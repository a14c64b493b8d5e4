# SPDX-License-Identifier: GPL-2.0-only
"""Test that mrc0's interfaces may go at any time without ending the daemon."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from mrcd.datapath import mrc0
from mrcd.linux import sysfs


def test_interface_that_goes_while_it_is_set_up_is_named() -> None:
    async def links() -> dict[str, Any]:
        return {"mrc0p": SimpleNamespace(mac=bytes(6))}

    nl: Any = SimpleNamespace(links=links)
    with pytest.raises(OSError, match="mrc0 was deleted while it was set up"):
        asyncio.run(mrc0._mac_of(nl, "mrc0"))
    assert asyncio.run(mrc0._mac_of(nl, "mrc0p")) == bytes(6)


def test_interface_that_goes_while_its_steering_is_checked_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def gone(name: str, _within_s: float) -> str | None:
        asked.append(name)
        raise FileNotFoundError(2, f"cannot open queues/rx-0/rps_cpus of {name}")

    monkeypatch.setattr(sysfs, "spread_receiving", gone)
    config: Any = SimpleNamespace(mrc0=SimpleNamespace(name="mrc0"), cells=True)
    with capture_logs() as logged:
        asyncio.run(mrc0.check_steering(config))
    assert asked == ["mrc0p", "mrc0cp"]
    assert [(each["event"], each["interface"]) for each in logged] == [
        ("interface.untuned", name) for name in asked
    ]
