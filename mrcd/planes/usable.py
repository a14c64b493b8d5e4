# SPDX-License-Identifier: GPL-2.0-only
"""Decide which planes this host takes packets on (pure).

A plane is usable when its link and gateway are up, no operator drained it and its health is not in
doubt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class LastPlane(Exception):
    """Draining this plane would leave no usable one."""


@dataclass(frozen=True, slots=True)
class PortState:
    """What decides whether a plane is used."""

    up: bool  # administratively
    carrier: bool
    gateway: bool  # its link-layer address is known
    drained: bool = False
    sick: str | None = None  # why its health is in doubt

    @property
    def linked(self) -> bool:
        """Whether packets could pass at all."""
        return self.up and self.carrier and self.gateway


def usable_mask(ports: Iterable[PortState]) -> int:
    """Bit k: plane k is used.

    What an operator drained is never used. A sick plane is, where otherwise none would be: it
    may deliver something, and nothing else does.
    """
    states = list(ports)
    there = sum(1 << k for k, port in enumerate(states) if port.linked and not port.drained)
    well = there & ~sum(1 << k for k, port in enumerate(states) if port.sick is not None)
    return well or there


def why_unused(port: PortState, interface: str, gateway: str) -> str | None:
    """What keeps a plane from being used, as a predicate of it; None when nothing does."""
    if not port.up:
        return f"{interface} is down"
    if not port.carrier:
        return f"{interface} has no carrier"
    if not port.gateway:
        return f"{interface} has no answer from its gateway {gateway}"
    if port.drained:
        return "drained by the operator"
    return port.sick
