# SPDX-License-Identifier: GPL-2.0-only
"""The hand-shake that gives two daemons their QPs: the Offer, the session and its commands.

This room is pure: time, randomness and received Offers come in as arguments, and commands go out.
It may know no clock, socket, process or log.

Floor 2: imports floor 1.
"""

from __future__ import annotations

from mrcd.handshake.commands import (
    Command,
    ConfigureReceive,
    LocalQp,
    PeerPlanes,
    ReadyToSend,
    RemoteQp,
    ResetQps,
    SendOffer,
    State,
    StateChanged,
)
from mrcd.handshake.datagram import MAX_BYTES
from mrcd.handshake.incarnation import Memory, Ours
from mrcd.handshake.offer import (
    CELL,
    CELL_UDP,
    CELLS_LOST,
    MAGIC,
    MAX_QPS,
    SACK_TIMES,
    TRIM,
    HandshakeError,
    LacksCapability,
    NoCommonVersion,
    Offer,
    decode,
    encode,
)
from mrcd.handshake.pace import (
    DEAD_AFTER_NS,
    KEEPALIVE_NS,
    MS,
    QUIET_NS,
    RETRY_MAX_NS,
    RETRY_MIN_NS,
    Pace,
)
from mrcd.handshake.session import UNCONFIRMED_NS, Event, Session

__all__ = [
    "CELL",
    "CELLS_LOST",
    "CELL_UDP",
    "DEAD_AFTER_NS",
    "KEEPALIVE_NS",
    "MAGIC",
    "MAX_BYTES",
    "MAX_QPS",
    "MS",
    "QUIET_NS",
    "RETRY_MAX_NS",
    "RETRY_MIN_NS",
    "SACK_TIMES",
    "TRIM",
    "UNCONFIRMED_NS",
    "Command",
    "ConfigureReceive",
    "Event",
    "HandshakeError",
    "LacksCapability",
    "LocalQp",
    "Memory",
    "NoCommonVersion",
    "Offer",
    "Ours",
    "Pace",
    "PeerPlanes",
    "ReadyToSend",
    "RemoteQp",
    "ResetQps",
    "SendOffer",
    "Session",
    "State",
    "StateChanged",
    "decode",
    "encode",
]
