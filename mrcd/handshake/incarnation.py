# SPDX-License-Identifier: GPL-2.0-only
"""A session's identity: what it offers, what it is bound to, and what it saves for a restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mrcd.handshake.commands import LocalQp
from mrcd.handshake.offer import Offer
from mrcd.handshake.pace import Patience, patience


@dataclass(frozen=True, slots=True)
class Ours:
    """This host's own part of an Offer to a peer, and the QP indices reserved for that peer.

    `required` names the capabilities without which a peer gets no session. `frame` and `hosts` are
    the digests of the fabric file that Offers state. `endpoints` are this host's addresses by
    plane, where there is no fabric that they follow from. `rates` are what these planes should
    carry, Mb/s, 0 where unknown. `build` is the version of this mrcd.
    """

    host: str
    epoch: int
    mtu: int
    mpr: int
    qp_base: int
    qps: int
    capabilities: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    frame: int = 0
    hosts: int = 0
    endpoints: tuple[bytes, ...] = ()
    rates: tuple[int, ...] = ()
    build: str = ""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A session id and the QPs that belong to it; the two never change."""

    sid: int
    qps: tuple[LocalQp, ...]


@dataclass(slots=True)
class Bound:
    """A binding between one incarnation of ours and one of the peer."""

    ours: Incarnation
    offer: Offer  # the latest accepted one
    since_ns: int
    heard_ns: int
    version: int  # the highest that both spoke when the session began

    @property
    def patience(self) -> Patience:
        """The waiting times for this peer, given the keepalive interval in its Offers."""
        return patience(self.offer.pace_ms)

    def is_from(self, offer: Offer) -> bool:
        """Return whether an Offer is from the incarnation that we are bound to."""
        return (offer.epoch, offer.sid) == (self.offer.epoch, self.offer.sid)


SEQ_LEAP: Final = 1 << 32
"""A resumed session adds this to its saved `seq`.

It cannot know how many Offers were sent after the save, and `seq` must never go back.
"""


@dataclass(frozen=True, slots=True)
class Memory:
    """The state that a session needs in order to continue after a restart of its daemon."""

    epoch: int
    sid: int
    seq: int
    generation: int
    qps: tuple[LocalQp, ...]
    offer: Offer  # the Offer of the peer that we are bound to
    version: int = 0  # that was agreed; 0: saved by a build that spoke one only, that of the Offer

    @property
    def agreed(self) -> int:
        """The version in which the session goes on."""
        return self.version or self.offer.version
