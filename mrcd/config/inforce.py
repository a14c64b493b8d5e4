# SPDX-License-Identifier: GPL-2.0-only
"""The configuration that is in force, and who hears when it is another one (pure)."""

from __future__ import annotations

from collections.abc import Callable

from mrcd.config.change import Change, Roamed, planes_readdressed
from mrcd.config.config import Config
from mrcd.fabric.hosts import Address


class InForce:
    """Owns the configuration of a data path. Called, it returns the present one."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._roamed = Roamed()
        self._heard: list[Callable[[Change], None]] = []

    def __call__(self) -> Config:
        return self.config

    def follow(self, heard: Callable[[Change], None]) -> None:
        """Call `heard` with each change from now on, after those that follow already."""
        self._heard.append(heard)

    def placed(self, config: Config) -> Config:
        """Return a configuration with addresses that are known now: this host's, and peers'."""
        if config.fabric.described:
            return config
        here = config.placed(self.config.host.endpoints, self.config.fabric.mtu)
        return self._roamed.applied(here)

    def replace(self, config: Config) -> Change:
        """Put another configuration in force, and return what is different.

        The caller ends what is gone, has the others hear by `tell`, and begins what is new.
        """
        change = Change.between(self.config, config)
        self._roamed.forget(config)
        self.config = config
        return change

    def tell(self, change: Change) -> None:
        """Have those who follow hear of a change."""
        for heard in self._heard:
            heard(change)

    def peer_moved(self, name: str, plane: int, address: Address) -> None:
        """Go on with a peer that was found at another address of a plane; it stays there."""
        self._go_on(self._roamed.moved(self.config, name, plane, address))

    def we_moved(self, addresses: tuple[Address, ...]) -> list[int]:
        """Go on with other addresses of our planes; return the planes that have another one."""
        config = self.config.placed(addresses, self.config.fabric.mtu)
        moved = planes_readdressed(self.config, config)
        self._go_on(config)
        return moved

    def _go_on(self, config: Config) -> None:
        """Put a configuration in force that differs in addresses only, and say so."""
        change = Change.between(self.config, config)
        self.config = config
        self.tell(change)
