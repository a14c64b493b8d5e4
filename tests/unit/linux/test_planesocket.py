# SPDX-License-Identifier: GPL-2.0-only
"""Test which sockets of planes are opened, and which are left as they are."""

from __future__ import annotations

import asyncio
import errno
from ipaddress import IPv6Address

import pytest

from mrcd.linux.planesocket import Address, PlaneSockets

LOOPBACK = IPv6Address("::1")


class Sockets(PlaneSockets):
    """Plane sockets whose opening is noted; those of `away` interfaces fail with their error."""

    def __init__(self, **away: int) -> None:
        super().__init__("test", 0, None)
        self.away = away
        self.opened: list[int] = []

    def open_plane(self, plane: int, interface: str, address: Address) -> None:
        if interface in self.away:
            raise OSError(self.away[interface], f"cannot open sockets on {interface}")
        super().open_plane(plane, "lo", LOOPBACK)
        self.opened.append(plane)

    def _readable(self, plane: int) -> None:
        """Read nothing."""


def opened(sockets: Sockets, *names: str) -> list[str]:
    """Open the planes of these interfaces and return what failed."""
    try:
        return sockets.open_planes(names, [LOOPBACK] * len(names))
    finally:
        sockets.close()


@pytest.mark.parametrize("error", [errno.ENODEV, errno.EADDRNOTAVAIL])
def test_open_planes__one_that_is_missing_or_down_is_left_out(error: int) -> None:
    async def work() -> None:
        sockets = Sockets(plane1=error)
        assert "plane1" in opened(sockets, "plane0", "plane1")[0]
        assert sockets.opened == [0]

    asyncio.run(work())


@pytest.mark.parametrize(
    ("away", "names"),
    [
        ({"plane0": errno.ENODEV, "plane1": errno.ENODEV}, ("plane0", "plane1")),
        ({"plane1": errno.EADDRINUSE}, ("plane0", "plane1")),
    ],
    ids=["all are missing", "another error"],
)
def test_open_planes__fails(away: dict[str, int], names: tuple[str, ...]) -> None:
    async def work() -> None:
        with pytest.raises(OSError, match="cannot open sockets on plane1"):
            opened(Sockets(**away), *names)

    asyncio.run(work())


def test_open_closed__sockets_that_are_open_stay_as_they_are() -> None:
    async def work() -> None:
        sockets = Sockets(plane1=errno.ENODEV)
        sockets.open_planes(("plane0", "plane1"), [LOOPBACK] * 2)
        sockets.away = {}
        for plane in (0, 1, 1):
            sockets.open_closed(plane, f"plane{plane}", LOOPBACK)
        assert sockets.opened == [0, 1]
        sockets.close()

    asyncio.run(work())
