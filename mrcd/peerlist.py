# SPDX-License-Identifier: GPL-2.0-only
"""The peers as the control API lists them, read from the maps in batches.

A host may have thousands. Of a peer that never answered there is nothing to read but its balance,
and most balances are as they were at first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import lru_cache

from mrcd import batches, census
from mrcd.abi import ABI
from mrcd.claims import Prefix
from mrcd.engine import Engine
from mrcd.handshake import State
from mrcd.model import PeerInfo, PeerState
from mrcd.qptable import ALL_PLANES, Balance, balance_of

_BALANCE, _TX, _RX = (ABI.structs[name] for name in ("mrc_balance", "mrc_tx", "mrc_rx"))
_SENT, _RECEIVED = census.picker(_TX, "packets"), census.picker(_RX, "packets")
_STATES: dict[State, PeerState] = {
    State.OFFERING: "connecting",
    State.BOUND: "connecting",
    State.ESTABLISHED: "established",
    State.SILENT: "silent",
}
_AT_ONCE = 1024
"""Entries of a map read by one call."""
MANY = 8
"""More peers than this with one thing wrong are not listed one by one."""
NAMED = 3
"""Of those so many are named, and the others counted."""


def listed(engine: Engine) -> list[PeerInfo]:
    """Every configured peer."""
    config, table = engine.config, engine.table
    packets = _packets(engine)
    found: list[PeerInfo] = []
    balances = _balances(engine)
    now, mtu = time.monotonic_ns(), config.mtu
    for peer in config.peers:
        sent, received = packets.get(peer.name, (0, 0))
        ports, shares, trips = balances[table.indices[peer.name]]
        heard = engine.peers.heard_ns.get(peer.name)
        both = engine.planes.mask & engine.peers.port_mask.get(peer.name, ALL_PLANES) & ports
        found.append(
            PeerInfo(
                name=peer.name,
                state=_STATES[engine.peers.state(peer.name)],
                addresses=_texts(peer.allowed),
                mtu=engine.peers.mtu.get(peer.name, mtu),
                qps=table.per_peer,
                last_heard_s=None if heard is None else (now - heard) / 1e9,
                planes_usable=_bits(both),
                shares=shares,
                planes_srtt_us=trips,
                tx_packets=sent,
                rx_packets=received,
            )
        )
    return found


@lru_cache(maxsize=1 << 14)
def _texts(prefixes: tuple[Prefix, ...]) -> list[str]:
    return [str(prefix) for prefix in prefixes]


@lru_cache
def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


Shown = tuple[int, list[float], list[float | None]]
"""Of a balance: the mask of planes, shares, round trips in microseconds."""


def _shown(balance: Balance) -> Shown:
    return (
        balance.ports,
        [round(share, 3) for share in balance.shares],
        [rtt / 1000 if rtt else None for rtt in balance.srtt_ns],
    )


def _balances(engine: Engine) -> list[Shown]:
    """The balance of each peer, by its index."""
    places = max(engine.table.indices.values(), default=-1) + 1
    planes = engine.config.fabric.planes
    known: dict[bytes, Shown] = {}
    found: list[Shown] = []
    for raw in _rows(engine, "balances", _BALANCE.size, range(places)):
        balance = known.get(raw)
        if balance is None:
            balance = known[raw] = _shown(balance_of(raw, planes))
        found.append(balance)
    return found


def _packets(engine: Engine) -> dict[str, tuple[int, int]]:
    """What was sent to and received from each peer whose QPs were ever set up."""
    table = engine.table
    found: dict[str, tuple[int, int]] = {}
    for qps in _runs(sorted(table.configured)):
        txs = _rows(engine, "txs", _TX.size, qps)
        rxs = _rows(engine, "rxs", _RX.size, qps)
        for qp, tx, rx in zip(qps, txs, rxs, strict=True):
            name = table.peer_of(qp)
            if name is not None:
                sent, received = found.get(name, (0, 0))
                found[name] = sent + _SENT(tx)[0], received + _RECEIVED(rx)[0]
    return found


def _runs(indices: Sequence[int]) -> Iterator[range]:
    """Ascending numbers as ranges without gaps."""
    first = 0
    for at in range(1, len(indices) + 1):
        if at == len(indices) or indices[at] != indices[at - 1] + 1:
            yield range(indices[first], indices[at - 1] + 1)
            first = at


def _rows(engine: Engine, name: str, size: int, indices: range) -> Iterator[bytes]:
    fd = engine.datapath.maps[name]
    for first in range(indices.start, indices.stop, _AT_ONCE):
        yield from batches.lookup(fd, first, min(_AT_ONCE, indices.stop - first), size)


def reasons(engine: Engine) -> list[str]:
    """What is wrong with peers, a line for each, or for all of a kind where they are many."""
    unheard, silent = [], []
    for peer in engine.config.peers:
        state = engine.peers.state(peer.name)
        if state is State.SILENT:
            silent.append(peer.name)
        elif state is not State.ESTABLISHED:
            unheard.append(peer.name)
    for_so_long = {name: engine.peers.sessions[name].silent_after_ns for name in silent}
    if len(silent) > MANY:
        shortest = min(for_so_long.values()) / 1e9
        lines = [f"{_counted(silent)} have not been heard for {shortest:.0f} s"]
    else:
        lines = [
            f"peer {name} has not been heard for {for_so_long[name] / 1e9:.0f} s" for name in silent
        ]
    if len(unheard) > MANY:
        return [*lines, f"{_counted(unheard)} have not answered yet"]
    return [*lines, *(f"peer {name} has not answered yet" for name in unheard)]


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} peers ({', '.join(names[:NAMED])} and {len(names) - NAMED} more)"
