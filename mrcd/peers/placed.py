# SPDX-License-Identifier: GPL-2.0-only
"""Keep sockets at the planes' addresses while NICs and addresses change."""

from __future__ import annotations

from collections.abc import Mapping

from mrcd.config.config import Current
from mrcd.fabric import underlay
from mrcd.linux.planesocket import PlaneSockets


class Placed:
    """What has sockets at the addresses that the configuration gives the planes."""

    _config: Current
    _sockets: PlaneSockets

    def rebind(self, plane: int, interface: str) -> None:
        """Use another NIC for a plane. Raises OSError if its sockets cannot be opened."""
        fabric, host = self._config().fabric, self._config().host
        self._sockets.reopen_plane(plane, interface, underlay.of(fabric).address(host, plane))

    def open_closed(self, plane: int, interface: str) -> None:
        """Open the sockets of a plane that was down before. Raises OSError if that fails."""
        fabric, host = self._config().fabric, self._config().host
        self._sockets.open_closed(plane, interface, underlay.of(fabric).address(host, plane))

    def move(self, interfaces: Mapping[int, str]) -> None:
        """Send from, and listen at, the new addresses of planes, whose NICs `interfaces` names."""
        for plane, interface in interfaces.items():
            self.rebind(plane, interface)
