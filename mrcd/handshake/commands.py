# SPDX-License-Identifier: GPL-2.0-only
"""The commands that a session returns, and the states it can be in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class State(Enum):
    """The state of a session; the values appear in logs and in `mrcctl`."""

    OFFERING = "offering"
    BOUND = "bound"
    ESTABLISHED = "established"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class LocalQp:
    """The local end of a QP: its index in the QP map, its QPN, the first PSN to send on it."""

    index: int
    qpn: int
    psn: int


@dataclass(frozen=True, slots=True)
class RemoteQp:
    """The peer's end of a QP: the QPN to address, the first PSN to expect from it."""

    qpn: int
    psn: int


@dataclass(frozen=True, slots=True)
class SendOffer:
    """Send `datagram` to the peer, once on each of `planes`."""

    peer: str
    planes: tuple[int, ...]
    datagram: bytes


@dataclass(frozen=True, slots=True)
class ConfigureReceive:
    """Program each pair of QPs to accept packets but to send none (RTR).

    `mtu` and `mpr` are the smaller of both sides' values; `capabilities` are those that both sides
    have. `trims`: whether the peer says that switches on the ways to it trim data.
    """

    peer: str
    epoch: int
    qps: tuple[tuple[LocalQp, RemoteQp], ...]
    mtu: int
    mpr: int
    port_mask: int
    capabilities: frozenset[str]
    trims: bool


@dataclass(frozen=True, slots=True)
class ReadyToSend:
    """Send on the QPs that were configured last, since the peer now receives on them (RTS)."""

    peer: str


@dataclass(frozen=True, slots=True)
class ResetQps:
    """Forget all state of the QPs with these indices; a ConfigureReceive may follow."""

    peer: str
    indices: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PeerPlanes:
    """Use only these planes to reach the peer from now on (bit k: plane k)."""

    peer: str
    port_mask: int


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Report a change of state to the log and to watching clients."""

    peer: str
    old: State
    new: State
    reason: str


Command = SendOffer | ConfigureReceive | ReadyToSend | ResetQps | PeerPlanes | StateChanged


# ---- what a channel returns (channel.py)


@dataclass(frozen=True, slots=True)
class SendDatagram:
    """Send `datagram` to the peer on each usable plane, or only where a question came from."""

    peer: str
    datagram: bytes = field(repr=False)
    back: bool = False


@dataclass(frozen=True, slots=True)
class Deliver:
    """Process `plaintext`, which the peer and nobody else has said."""

    peer: str
    plaintext: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReceiveKey:
    """Accept packets of the peer that are tagged under this epoch, in addition to the other phase.

    A key that was there for this phase is replaced. `secret` has 32 bytes, the same on both sides;
    the keys of packets follow from it (mrcd/wire/keys.py).
    """

    peer: str
    epoch: int
    phase: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SendKey:
    """Tag packets to the peer under this epoch from now on: the peer accepts it already."""

    peer: str
    epoch: int
    phase: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Accept nothing under this epoch any more, and forget its keys.

    If packets were still sent under it, a SendKey of another epoch follows, or the peer is gone.
    """

    peer: str
    epoch: int


# ---- about hosts that are no peers, or not where the peer is (guests.py)


@dataclass(frozen=True, slots=True)
class Reply:
    """Send `datagram` to the place (T0 and port) from which a stranger asks, the way it came."""

    place: tuple[int, int]
    datagram: bytes = field(repr=False)


class Stranger(Protocol):
    """A host that is no peer but knows the secret; `remote` is its public key."""

    @property
    def place(self) -> tuple[int, int]:
        """The T0 and the port from which it asks."""

    @property
    def remote(self) -> bytes:
        """Its public key."""

    def refuse(self, reason: str, *, now_ns: int) -> list[ChannelCommand]:
        """Tell it why it is not taken."""


@dataclass(frozen=True, slots=True)
class Introduced:
    """Judge what a stranger who knows the secret says of himself."""

    guest: Stranger
    plaintext: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Report that the owner of a peer's key asks from a place that is not the peer's."""

    peer: str
    place: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Twice:
    """Report that a second host asks with the key of a peer that is heard at its own place."""

    peer: str


@dataclass(frozen=True, slots=True)
class Seek:
    """Ask for the peer where this message came from, too: it may be a recording, or the peer."""

    peer: str


OfPeer = SendDatagram | Deliver | ReceiveKey | SendKey | Forget
OfGuest = Reply | Introduced | Elsewhere | Twice | Seek
ChannelCommand = OfPeer | OfGuest
