# SPDX-License-Identifier: GPL-2.0-only
"""Which planes are on standby, and which of these carry data now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mrcd.datapath.view import PLANES
from mrcd.engine.engine import Engine
from mrcd.handshake import State
from mrcd.linux import bpfbatch
from mrcd.wire.abi import ABI
from mrcd.wire.layout import picker

_TX = ABI.structs["mrc_tx"]
_IN_USE = picker(_TX, "plane_use", "suspects")


@dataclass(frozen=True, slots=True)
class Standby:
    """The planes that carry data only while no other plane can.

    planes: the mask of those that are so to every established peer, or to all by the configuration.
    standing_in: by plane, the number of established peers to which such a plane carries data now.
    """

    planes: int
    standing_in: Mapping[int, int]


def serving(up: int, spare: int, in_use: int, suspects: int) -> int:
    """Return which of the planes `up` carry data (pure): serving_planes() of bpf/pick.h."""
    rest = up & ~spare
    return rest if rest & in_use & ~suspects else up


def sending(engine: Engine) -> int:
    """Return the mask of usable planes by which data goes, as far as no peer matters."""
    mask = engine.planes.mask
    return mask & ~engine.config.standby or mask


def look(engine: Engine) -> Standby:
    """Return how it is now."""
    table, always = engine.table, engine.config.standby
    names = [
        each.name
        for each in engine.config.peers
        if engine.peers.state(each.name) is State.ESTABLISHED
    ]
    spare = {name: table.peers.spares(name) for name in names}
    counts = dict.fromkeys(range(PLANES), 0)
    ports = table.peers.every_ports() if any(spare.values()) else {}
    for name in names:
        if not spare[name]:
            continue
        up = engine.planes.mask & table.peers.planes[name] & table.peers.reached(name) & ports[name]
        now = _sending_to(engine, name, up, spare[name]) & spare[name]
        for plane in counts:
            counts[plane] += now >> plane & 1
    to_all = -1 if names else 0
    for mask in spare.values():
        to_all &= mask
    return Standby(always | to_all, counts)


def _sending_to(engine: Engine, name: str, up: int, spare: int) -> int:
    """Return the mask of planes by which any QP of a peer sends."""
    table, found = engine.table, 0
    qps = table.qps_of(name)
    for qp, tx in zip(qps, bpfbatch.rows(engine.datapath.maps["txs"], qps, _TX.size), strict=True):
        if qp in table.configured:
            found |= serving(up, spare, *_IN_USE(tx))
    return found
