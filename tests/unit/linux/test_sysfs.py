# SPDX-License-Identifier: GPL-2.0-only
"""Test receive packet steering, which only root may write: udev writes it, perhaps later, or not
at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mrcd.linux import sysfs

NAME = "mrc0p"


@pytest.fixture
def steering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of an interface that only udev may write."""
    file = tmp_path / NAME / "queues" / "rx-0" / "rps_cpus"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"0\n")
    (tmp_path / NAME / "ifindex").write_bytes(b"7\n")

    def refuse(*_: object, **_more: object) -> None:
        raise PermissionError

    monkeypatch.setattr(sysfs, "_INTERFACES", tmp_path)
    monkeypatch.setattr(sysfs, "write_interfaces", refuse)
    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(sysfs.socket, "if_nametoindex", lambda _name: 7)
    return file


def test_udev_has_done_it(steering: Path) -> None:
    steering.write_bytes(b"3\n")
    assert asyncio.run(sysfs.spread_receiving(NAME, 0)) is None


def test_udev_does_it_while_we_wait(steering: Path) -> None:
    async def run() -> str | None:
        waiting = asyncio.create_task(sysfs.spread_receiving(NAME, 30))
        await asyncio.sleep(0)
        assert not waiting.done()
        steering.write_bytes(b"3\n")
        return await waiting

    assert asyncio.run(run()) is None


def test_nobody_does_it(steering: Path) -> None:
    error = asyncio.run(sysfs.spread_receiving(NAME, 0.02))
    assert error is not None
    assert "90-mrcd.rules" in error


def test_steering_that_was_taken_away_and_only_root_may_give_back(steering: Path) -> None:
    with pytest.raises(PermissionError, match=r"only root may write .*rps_cpus"):
        sysfs.spread_again(NAME)
    steering.write_bytes(b"00000000,00000002\n")
    assert not sysfs.spread_again(NAME)
