# SPDX-License-Identifier: GPL-2.0-only
"""The way to a host's NIC in a plane, and by each EV (pure).

By uSIDs a packet's destination names each switch. Where switches hash, or without a fabric, it is
the NIC's own address, and the network finds the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from mrcd.fabric import usid


@dataclass(frozen=True, slots=True)
class Way:
    """What leads to a NIC. template: the uSID list without a T1, of 16 bytes; None: no uSIDs do."""

    address: IPv4Address | IPv6Address
    template: bytes | None

    def usids(self, ev: int) -> bytes | None:
        """Return the uSID list by which packets on an EV get there; None: no uSIDs do."""
        return None if self.template is None else usid.with_t1(self.template, usid.ev_t1(ev))

    def destination(self, ev: int) -> IPv4Address | IPv6Address:
        """Return where packets on an EV are addressed to."""
        usids = self.usids(ev)
        return self.address if usids is None else IPv6Address(usids)

    def t1(self, ev: int) -> int:
        """Return the T1 that packets on an EV cross; 0: none, or only the switches know."""
        return 0 if self.template is None else usid.ev_t1(ev)
