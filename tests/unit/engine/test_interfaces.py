# SPDX-License-Identifier: GPL-2.0-only
"""Test how mrc0 follows what planes carry, with doubles of the kernel and of the maps."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any, cast

import pytest

from mrcd.config import config
from mrcd.engine import interfaces
from mrcd.engine.interfaces import OurInterfaces
from mrcd.fabric import description
from mrcd.linux.privileged.requests import SetBucket


class Kernel:
    """A double that sets token buckets, unless the interface is gone."""

    def __init__(self) -> None:
        self.rates: dict[str, int] = {}
        self.gone = False

    async def change(self, request: SetBucket) -> None:
        if self.gone:
            raise OSError(errno.ENODEV, "No such device")
        self.rates[request.name] = request.rate


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the rates that the programs are told."""
    rates: list[int] = []
    monkeypatch.setattr(interfaces.host, "planes_told", lambda _dp: 3)
    monkeypatch.setattr(
        interfaces.host, "write", lambda *_args, mbps, **_others: rates.append(mbps)
    )
    monkeypatch.setattr(interfaces.carried, "says", lambda _config: (10_000, 10_000))
    return rates


@pytest.fixture
def ours(kernel: Kernel, tmp_path: Path) -> OurInterfaces:
    (tmp_path / "fabric.toml").write_text(description.dumps(description.generate(planes=2)))
    text = '[host]\nname = "h1"\nfabric = "fabric.toml"\n'
    found = config.loads(text, tmp_path / "mrcd.toml")
    return OurInterfaces(
        cast(Any, kernel), lambda: found, cast(Any, None), tmp_path, cast(Any, None)
    )


def test_programs_and_the_parking_interface_follow_what_planes_carry(
    ours: OurInterfaces, kernel: Kernel, told: list[int]
) -> None:
    asyncio.run(ours.carry((100, 100)))
    slow = kernel.rates["mrc0cp"]
    asyncio.run(ours.carry(None))
    assert told == [100, 10_000]
    assert kernel.rates["mrc0cp"] == pytest.approx(100 * slow, rel=0.01)


def test_an_interface_that_has_just_gone_is_left_to_the_repair(
    ours: OurInterfaces, kernel: Kernel, told: list[int]
) -> None:
    kernel.gone = True
    asyncio.run(ours.carry((150, 50)))
    assert told == [100]
    assert ours.mbps == 100
