# SPDX-License-Identifier: GPL-2.0-only
"""Who a session is: what it promises, what it is bound to, and what of that is remembered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mrcd.handshake.commands import LocalQp
from mrcd.handshake.offer import Offer
from mrcd.handshake.pace import Patience, patience


@dataclass(frozen=True, slots=True)
class Ours:
    """What we tell a peer about ourselves, and the range of QP indices that is the peer's."""

    host: str
    epoch: int
    mtu: int
    mpr: int
    qp_base: int
    qps: int
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A session id and the QPs that go with it for ever."""

    sid: int
    qps: tuple[LocalQp, ...]


@dataclass(slots=True)
class Bound:
    """Our incarnation and the peer's, promised to each other."""

    ours: Incarnation
    offer: Offer  # the latest that counted
    since_ns: int
    heard_ns: int

    @property
    def patience(self) -> Patience:
        """How long to wait for a peer that sends as many keepalives as its Offers say."""
        return patience(self.offer.pace_ms)

    def is_from(self, offer: Offer) -> bool:
        """Whether an Offer is of the peer's incarnation that we are bound to."""
        return (offer.epoch, offer.sid) == (self.offer.epoch, self.offer.sid)


SEQ_LEAP: Final = 1 << 32
"""A session that is resumed cannot know how many Offers it sent since it was remembered."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a session must know again to go on after a restart of its daemon."""

    epoch: int
    sid: int
    seq: int
    generation: int
    qps: tuple[LocalQp, ...]
    offer: Offer  # the peer's, which we are bound to
