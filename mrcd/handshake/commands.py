# SPDX-License-Identifier: GPL-2.0-only
"""What a session wants done: the commands it returns, and how far it says it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """How far a session has come; the values appear in logs and in `mrcctl`."""

    OFFERING = "offering"
    BOUND = "bound"
    ESTABLISHED = "established"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class LocalQp:
    """Our end: its index in the QP map, its QPN, the first PSN we shall send on it."""

    index: int
    qpn: int
    psn: int


@dataclass(frozen=True, slots=True)
class RemoteQp:
    """The peer's end: the QPN to address, the first PSN to expect from it."""

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
    """Program each pair of QPs: accept packets for it, send none (RTR).

    `mtu` and `mpr` are the smaller of both sides' values, `capabilities` what both have.
    """

    peer: str
    epoch: int
    qps: tuple[tuple[LocalQp, RemoteQp], ...]
    mtu: int
    mpr: int
    port_mask: int
    capabilities: frozenset[str]


@dataclass(frozen=True, slots=True)
class ReadyToSend:
    """The peer receives on the QPs configured last: send on them (RTS)."""

    peer: str


@dataclass(frozen=True, slots=True)
class ResetQps:
    """Forget everything about the QPs with these indices; a ConfigureReceive may follow."""

    peer: str
    indices: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PeerPlanes:
    """The peer can be reached on these planes from now on (bit k: plane k)."""

    peer: str
    port_mask: int


@dataclass(frozen=True, slots=True)
class StateChanged:
    """For the log and for whoever watches."""

    peer: str
    old: State
    new: State
    reason: str


Command = SendOffer | ConfigureReceive | ReadyToSend | ResetQps | PeerPlanes | StateChanged
