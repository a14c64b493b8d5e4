# SPDX-License-Identifier: GPL-2.0-only
"""What stands on plane NICs so that packets find their way: it differs by the kind of network.

In a fabric that is an address, a route and a gateway for each plane (gateways.py). In any other
network the NICs have addresses already, and each peer has a next hop of its own (network.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mrcd.linux.interfaces import NeighborChanged
from mrcd.linux.netlink import Netlink
from mrcd.planes.plane import Plane
from mrcd.service.tasks import Tasks


@dataclass(frozen=True, slots=True)
class Nics:
    """What a ground has of the planes that stand on it.

    write: write a plane into the map of the data path. changed: find the mask of usable planes
    anew, because of what the text says.
    """

    nl: Netlink
    tasks: Tasks
    planes: Sequence[Plane]
    write: Callable[[Plane], None]
    changed: Callable[[str], None]


class Ground(Protocol):
    """What Planes asks of a ground."""

    async def configure(self) -> None:
        """Set all planes up, and write them."""

    def configured(self) -> None:
        """Go by the configuration of now: it has other peers, but the same planes."""

    def follow(self) -> None:
        """Begin to follow what only this ground depends on."""

    def look_again(self) -> None:
        """Ask the kernel anew, since news were missed."""

    def linked(self, plane: Plane) -> None:
        """Hear that a plane's NIC has changed, or is another one."""

    def greet(self, plane: Plane) -> None:
        """Make neighbours learn the NIC's other link-layer address."""

    async def restore(self, plane: Plane) -> bool:
        """Give a NIC that is up what it lacks; return whether sockets can be opened on it.

        Raises OSError if the kernel refuses that.
        """

    def neighbor(self, event: NeighborChanged) -> None:
        """Hear what the kernel has learned of a neighbour."""

    def leads_to(self, peer: str, plane: int) -> bool:
        """Return whether packets to a peer can leave by a plane, as far as is known."""

    def needs(self, plane: Plane) -> tuple[str | None, str | None]:
        """Return the address that a plane's NIC needs, and the destinations of its route.

        None: anything will do. Without a route, the address is not ours to add.
        """

    def close(self) -> None:
        """Follow nothing any more."""
