# SPDX-License-Identifier: GPL-2.0-only
"""Keep all that is known of one peer, and decide what follows from news of it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from mrcd.config.config import Config
from mrcd.config.config import Peer as Configured
from mrcd.fabric import digest, numbering
from mrcd.fabric.numbering import Numbering
from mrcd.handshake import CELLS_LOST, Memory, Offer, Session, State
from mrcd.paths.largest import LEAST
from mrcd.wire.abi import ABI

PLAIN_S: Final = 10.0
"""Time without cells to a peer that got none on any plane: a change costs data."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long packets may be, bytes: those of a plane's NICs, and an application's within them.

    An application's are in cells, or in MRC's framing.
    """

    plane: int
    cell: int
    packet: int

    @classmethod
    def of(cls, config: Config) -> Lengths:
        """Return the lengths of a configuration."""
        return cls(config.fabric.mtu, config.mtu_of(cells=True), config.mtu_of(cells=False))

    def longest(self, *, cells: bool) -> int:
        """Return the longest packet of an application in a framing."""
        return self.cell if cells else self.packet


@dataclass(frozen=True, slots=True)
class SessionFraming:
    """What data to a peer with QPs is in: cells or MRC's packets; whether switches trim it.

    timed: SACKs of cells say when they were sent.

    mtu: the smaller one of both hosts', bytes. Both may have an MTU for cells although there are
    none in the session.
    """

    mtu: int
    cells: bool
    trims: bool
    timed: bool = False


@dataclass(frozen=True, slots=True)
class Tried:
    """Data to a peer: its longest packet in bytes, its framing, and the bytes of its headers.

    session: the two hosts' identifiers of the session, sid. plain: it is tried whether cells
    get through, while data goes in MRC's packets.
    """

    longest: int
    framing: int
    headers: int
    session: tuple[int, int]
    plain: bool = False


@dataclass(slots=True)
class Peer:
    """A configured peer, its session, and what is known of the ways to it.

    heard_ns: when its last Offer came. ports: the mask of planes on which it takes packets, None
    until it says so. mtu: the longest packet of an application to it, bytes. refused, failed: why
    it gets no session although it is heard, and why its QPs are set up anew. path_mtu, narrow: the
    longest packet that a plane carries to it, where the kernel knows and where trials found it.
    plain_s: since when cells get through to it on no plane. numbering: which of our planes its own
    are.
    """

    configured: Configured
    session: Session
    heard_ns: int | None = None
    ports: int | None = None
    framing: SessionFraming | None = None
    mtu: int | None = None
    refused: str | None = None
    failed: str | None = None
    path_mtu: dict[int, int] = field(default_factory=dict)
    narrow: dict[int, int] = field(default_factory=dict)
    plain_s: float | None = None
    numbering: Numbering = numbering.ALIKE
    _stated: tuple[int, int] | None = None  # digests of its fabric file

    @property
    def name(self) -> str:
        """The name of the host."""
        return self.configured.name

    @property
    def established(self) -> bool:
        """Whether there is a session, and the peer is heard."""
        return self.session.state is State.ESTABLISHED

    @property
    def memory(self) -> Memory | None:
        """What resumes the session after a restart; None while there is nothing to resume."""
        return self.session.memory

    # ---- how long packets are, and what they are in

    def frame(self, framing: SessionFraming, lengths: Lengths) -> int:
        """Frame data so from now on; return the longest packet of an application to the peer."""
        self.framing = framing
        longest = lengths.longest(cells=framing.cells)
        headers = lengths.plane - longest
        ways = (
            found - headers for known in (self.path_mtu, self.narrow) for found in known.values()
        )
        self.mtu = min(framing.mtu, longest, *ways)
        return self.mtu

    def set_path_mtu(self, plane: int, mtu: int) -> None:
        """Note how long a packet the kernel's route on a plane takes; 0: as long as a NIC's."""
        if mtu:
            self.path_mtu[plane] = mtu
        else:
            self.path_mtu.pop(plane, None)

    def set_most(self, plane: int, most: int | None, lengths: Lengths) -> None:
        """Note the longest packet of an application that gets through; None: as long as any."""
        tried = self.tried(lengths)
        if most is None or tried is None or tried.plain:
            self.narrow.pop(plane, None)
        else:
            self.narrow[plane] = most + tried.headers

    def tried(self, lengths: Lengths) -> Tried | None:
        """Return what data to the peer is to be tried; None without a session."""
        if self.framing is None or not self.established:
            return None
        plain = self.plain_s is not None
        cells = self.framing.cells or plain
        longest = lengths.longest(cells=cells)
        known = self.memory
        session = (known.sid, known.offer.sid) if known is not None else (0, 0)
        return Tried(
            min(longest, max(self.framing.mtu, LEAST)),
            ABI.MRC_FRAMING_CELL if cells else ABI.MRC_FRAMING_MRC,
            lengths.plane - longest,
            session,
            plain,
        )

    def set_swallowed(self, planes: Mapping[int, bool], usable: int, now_s: float) -> bool:
        """Note on which planes cells are lost; return whether the framing is another one now.

        `usable` is the mask of our usable planes.
        """
        if self.framing is None or not self.established:
            return False
        lost = [swallowed for plane, swallowed in planes.items() if usable >> plane & 1]
        if lost and all(lost) and self.framing.cells:
            self.plain_s = now_s
            return True
        if self.plain_s is not None and not any(lost) and now_s > self.plain_s + PLAIN_S:
            self.plain_s = None
            return True
        return False

    @property
    def loses_cells(self) -> bool | None:
        """Whether this host (True) or only the peer (False) found that cells are lost between them.

        None: neither did.
        """
        if self.plain_s is not None:
            return True
        known = self.memory
        told = known is not None and CELLS_LOST in known.offer.capabilities
        return False if told else None

    # ---- what it says

    def hear(self, offer: Offer, now_ns: int) -> str | None:
        """Note an Offer that was taken; return what begins to differ in its fabric file, if any."""
        self.heard_ns = now_ns
        self.refused = None
        stated = offer.frame, offer.hosts
        if self._stated == stated:
            return None
        self._stated = stated
        return self.other_file

    @property
    def other_file(self) -> str | None:
        """What does not agree between its fabric file and ours."""
        if self._stated is None:
            return None
        return digest.differences(self.name, self._stated, self.session.digests)

    def number(self, offer: Offer) -> bool:
        """Find which of our planes its planes are; return whether they are others than before."""
        said = tuple(ip_address(address) for address in offer.endpoints)
        found = numbering.between(self.configured.host.endpoints, said)
        changed = found != self.numbering
        self.numbering = found
        return changed

    def set_ports(self, mask: int) -> bool:
        """Note on which planes it takes packets; return whether they are others than before."""
        changed = self.ports != mask
        self.ports = mask
        return changed
