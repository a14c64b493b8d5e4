# SPDX-License-Identifier: GPL-2.0-only
"""Decide on which planes this host accepts packets (pure).

A plane is usable when its link is up, its gateway is resolved, no operator has drained it and its
health is not in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class LastPlane(Exception):
    """Draining this plane would leave no usable one."""


@dataclass(frozen=True, slots=True)
class PortState:
    """The facts that decide whether a plane is used."""

    up: bool  # administratively
    carrier: bool
    gateway: bool  # its link-layer address is known; without a fabric, the NIC's own address is
    drained: bool = False
    sick: str | None = None  # why its health is in doubt
    present: bool = True  # there is such an interface
    narrow: str | None = None  # how its MTU is too small

    @property
    def linked(self) -> bool:
        """Return whether packets can pass at all."""
        return self.present and self.up and self.carrier and self.gateway

    @property
    def well(self) -> bool:
        """Return whether nothing is wrong with it apart from that."""
        return self.sick is None and self.narrow is None


def usable_mask(ports: Iterable[PortState]) -> int:
    """Return the mask of planes to use; bit k stands for plane k.

    A drained plane is never used. Sick and narrow planes are used if no healthy plane is left,
    because they may still deliver something.
    """
    states = list(ports)
    there = sum(1 << k for k, port in enumerate(states) if port.linked and not port.drained)
    well = there & sum(1 << k for k, port in enumerate(states) if port.well)
    return well or there


def why_unused(port: PortState, interface: str, gateway: str | None) -> str | None:
    """Return the reason why a plane is not used, worded as a predicate; None if there is none."""
    if not port.present:
        return (
            f"{interface} is missing in mrcd's network namespace; it is used again when it is back"
        )
    if not port.up:
        return f"{interface} is down"
    if not port.carrier:
        return f"{interface} has no carrier"
    if not port.gateway and gateway is None:
        return f"{interface} has no address from which peers can be reached"
    if not port.gateway:
        return f"{interface} has no answer from its gateway {gateway}"
    if port.drained:
        return "drained by the operator"
    return port.narrow or port.sick
