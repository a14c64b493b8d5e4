# SPDX-License-Identifier: GPL-2.0-only
"""The peers as the control API lists them, read from the maps in batches.

A host may have thousands of peers. A peer that never answered has only its balance to read, and
most balances still have their initial value, so equal ones are decoded once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice

from mrcd.config.config import Config, Peer
from mrcd.config.overlap import Prefix
from mrcd.datapath.view import ALL_PLANES, Balance, balance_of
from mrcd.engine.engine import Engine
from mrcd.fabric.hosts import Address
from mrcd.handshake import State
from mrcd.handshake.identity import Keyring
from mrcd.linux import bpfbatch
from mrcd.model import Framing, KnownBy, PeerInfo, PeerState
from mrcd.peers.peer import SessionFraming
from mrcd.peers.trust import Trust
from mrcd.report import reach
from mrcd.report.live import Live
from mrcd.shortlist import Standing, foremost
from mrcd.wire.abi import ABI
from mrcd.wire.layout import picker
from mrcd.wording import duration

_BALANCE, _TX, _RX = (ABI.structs[name] for name in ("mrc_balance", "mrc_tx", "mrc_rx"))
_SENT, _RECEIVED = picker(_TX, "packets"), picker(_RX, "packets")
SHOWN: Mapping[State, PeerState] = {
    State.OFFERING: "connecting",
    State.BOUND: "connecting",
    State.ESTABLISHED: "established",
    State.SILENT: "silent",
}
"""The control API's word for each state of the hand-shake."""
ROTATE_S = 5.0
"""How long a caller who asked for new keys waits for peers to answer."""
ROTATE_LOOK_S = 0.02
SLICE = 64
"""QPs or peers that are read without a pause, which takes less than a millisecond."""
MANY = 8
"""More peers than this with the same problem share one line."""
NAMED = 3
"""A shared line names this many of its peers and counts the others."""


class PeerReport(Live):
    """The configured peers."""

    def peer_parts(self) -> Iterator[list[PeerInfo]]:
        """Yield every configured peer, SLICE at a time, as each is then; peers may go meanwhile."""
        configured = iter(self._engine.config.peers)
        while part := [*islice(configured, SLICE)]:
            engine = self._engine  # another configuration may have been applied
            there = [peer for peer in part if peer.name in engine.table.peers.indices]
            yield _infos(engine, there, _packets(engine, there), self._running.trust)

    @property
    def secured(self) -> bool:
        """Whether there are keys."""
        return self._engine.peers.channels is not None

    async def rotate(self, peer: str | None) -> tuple[list[str], list[str]]:
        """Agree on new keys with a peer or all; return who answered in time, and who did not."""
        channels = self._engine.peers.channels
        assert channels is not None, "there are no keys"
        before = {each.name: channels.epoch(each.name) for each in self._chosen(peer)}
        channels.renew(before)
        deadline = time.monotonic() + ROTATE_S
        waiting = set(before)
        while waiting and time.monotonic() < deadline:
            await asyncio.sleep(ROTATE_LOOK_S)
            now = self._engine.peers.channels
            if now is None:
                break  # another configuration was applied
            known = now.memories
            waiting = {n for n in waiting if n in known and known[n].epoch <= before[n]}
        return [n for n in before if n not in waiting], [n for n in before if n in waiting]

    def peer_names(self) -> list[str]:
        """Return the names of all configured peers."""
        return [peer.name for peer in self._engine.config.peers]

    def foremost_peers(
        self, count: int, before: Mapping[str, int]
    ) -> tuple[list[PeerInfo], Mapping[str, int]]:
        """Return at most `count` peers in configured order: those in trouble, and the busiest.

        `before` maps each peer to its packets at the last call. The packets of every peer now are
        returned, too, as the next call's `before`.
        """
        engine = self._engine
        packets = _packets(engine, engine.config.peers)
        sums = {name: sum(both) for name, both in packets.items()}
        standings = (
            Standing(
                peer.name,
                SHOWN[engine.peers.state(peer.name)],
                max(0, sums.get(peer.name, 0) - before.get(peer.name, 0)),
            )
            for peer in engine.config.peers
        )
        chosen = {*foremost(standings, count)}
        peers = [peer for peer in engine.config.peers if peer.name in chosen]
        return _infos(engine, peers, packets, self._running.trust), sums


def _infos(
    engine: Engine,
    peers: Sequence[Peer],
    packets: Mapping[str, tuple[int, int]],
    trust: Trust,
) -> list[PeerInfo]:
    config, table = engine.config, engine.table
    found: list[PeerInfo] = []
    balances = _balances(engine, sorted(table.peers.indices[peer.name] for peer in peers))
    now, mtu = time.monotonic_ns(), config.mtu
    channels = engine.peers.channels
    admitted = {*config.admitted}
    followed: dict[str, list[str]] = {}
    for prefix, name in table.peers.followed.items():
        followed.setdefault(name, []).append(str(prefix))
    for peer in peers:
        known = engine.peers.all[peer.name]
        sent, received = packets.get(peer.name, (0, 0))
        ports, shares, trips = balances[table.peers.indices[peer.name]]
        theirs = ALL_PLANES if known.ports is None else known.ports
        both = engine.planes.mask & theirs & ports
        both &= table.peers.reached(peer.name)
        shown = trust.known_by(peer.name) if peer.name in admitted else None
        found.append(
            PeerInfo(
                name=peer.name,
                state=SHOWN[known.session.state],
                addresses=_texts(peer.allowed),
                mtu=mtu if known.mtu is None else known.mtu,
                qps=table.peers.per_peer,
                last_heard_s=None if known.heard_ns is None else (now - known.heard_ns) / 1e9,
                planes_usable=_bits(both),
                shares=shares,
                planes_srtt_us=trips,
                tx_packets=sent,
                rx_packets=received,
                framing=_framing(known.framing),
                trims=known.framing is not None and known.framing.trims,
                refused=engine.peers.refusal(peer.name),
                other_file=known.other_file,
                version=known.session.version,
                build=None if (offer := known.session.remote) is None else offer.build or None,
                public_key=None if channels is None else channels.public_key(peer.name),
                key_age_s=None if channels is None else channels.key_age_s(peer.name),
                key_epoch=None if channels is None else channels.epoch(peer.name),
                admitted=peer.name in admitted,
                known_by=known_by(config.keyring) if shown is None else shown.how,
                certificate=None if shown is None else shown.serial.hex(),
                endpoints=[_end(address) for address in peer.host.endpoints] or None,
                through=_through(config, peer),
                spare=_bits(peer.host.spare) or None,
                far=_bits(table.peers.far.get(peer.name, 0)) or None,
                ways_mbps=[rank.mbps for rank in peer.host.ranks] or None,
                next_hops=_next_hops(engine, peer),
                followed=followed.get(peer.name),
            )
        )
    return found


def known_by(ring: Keyring | None) -> KnownBy:
    """Return by what a host is known that has shown no certificate."""
    if ring is None:
        return "nothing"
    return "secret" if ring.simple else "file"


def _end(address: Address) -> str:
    return "" if address.is_unspecified else str(address)


def _through(config: Config, peer: Peer) -> list[str] | None:
    """Return the hosts that hand packets on to a peer, by plane; None if nobody does."""
    names = []
    for plane in range(len(peer.host.endpoints)):
        via = peer.host.via(plane)
        there = (p.name for p in config.peers if via and p.host.endpoints[plane] == via)
        names.append("" if via is None else next(there, str(via)))
    return names if any(names) else None


def _next_hops(engine: Engine, peer: Peer) -> list[str | None] | None:
    """Return the MAC addresses that lead to a peer without a fabric, by plane."""
    known = engine.table.peers.next_hops
    macs = [known.get((peer.name, plane)) for plane, _ in enumerate(peer.host.endpoints)]
    return [None if mac is None else mac.hex(":") for mac in macs] or None


def _framing(known: SessionFraming | None) -> Framing | None:
    if known is None:
        return None
    return "cell" if known.cells else "mrc"


@lru_cache(maxsize=1 << 14)
def _texts(prefixes: tuple[Prefix, ...]) -> list[str]:
    return [str(prefix) for prefix in prefixes]


@lru_cache
def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


Shown = tuple[int, list[float], list[float | None]]
"""The part of a balance that is shown: mask of planes, shares, round trips in microseconds."""


def _shown(balance: Balance) -> Shown:
    return (
        balance.ports,
        [round(share, 3) for share in balance.shares],
        [rtt / 1000 if rtt else None for rtt in balance.srtt_ns],
    )


def _balances(engine: Engine, indices: Sequence[int]) -> dict[int, Shown]:
    """Return the balances of these peers, given by ascending index, by index."""
    fd, planes = engine.datapath.maps["balances"], engine.config.fabric.planes
    known: dict[bytes, Shown] = {}
    found: dict[int, Shown] = {}
    for run in _runs(indices):
        for index, raw in zip(run, bpfbatch.rows(fd, run, _BALANCE.size), strict=True):
            balance = known.get(raw)
            if balance is None:
                balance = known[raw] = _shown(balance_of(raw, planes))
            found[index] = balance
    return found


def _packets(engine: Engine, peers: Iterable[Peer]) -> dict[str, tuple[int, int]]:
    """Return the packets sent to and received from those of `peers` whose QPs were ever set up."""
    table, maps = engine.table, engine.datapath.maps
    found: dict[str, tuple[int, int]] = {}
    first = sorted(table.peers.indices[peer.name] * table.peers.per_peer for peer in peers)
    places = (range(at, at + table.peers.per_peer) for at in first)
    configured = table.configured
    for qps in _runs([qp for place in places for qp in place if qp in configured]):
        txs = bpfbatch.rows(maps["txs"], qps, _TX.size)
        rxs = bpfbatch.rows(maps["rxs"], qps, _RX.size)
        for qp, tx, rx in zip(qps, txs, rxs, strict=True):
            name = table.peers.peer_of(qp)
            if name is not None:
                sent, received = found.get(name, (0, 0))
                found[name] = sent + _SENT(tx)[0], received + _RECEIVED(rx)[0]
    return found


def _runs(indices: Sequence[int]) -> Iterator[range]:
    """Yield ascending numbers as ranges without gaps."""
    first = 0
    for at in range(1, len(indices) + 1):
        if at == len(indices) or indices[at] != indices[at - 1] + 1:
            yield range(indices[first], indices[at - 1] + 1)
            first = at


def reasons(engine: Engine) -> list[str]:
    """Return what is wrong with peers: a line for each, or one for many with the same problem."""
    unheard, refused, failed = [], engine.peers.refusals, engine.peers.failed
    silent: dict[str, float] = {}
    now = time.monotonic_ns()
    for name, peer in engine.peers.all.items():
        session = peer.session
        if session.state is State.ESTABLISHED or name in refused or name in failed:
            continue
        if session.state is State.SILENT:
            silent[name] = (now - (session.heard_ns or now)) / 1e9
        else:
            unheard.append(name)
    if len(silent) > MANY:
        least = duration(min(silent.values()))
        lines = [f"{_counted([*silent])} have not been heard for {least} or longer"]
    else:
        lines = [f"peer {n} has not been heard for {duration(s)}" for n, s in silent.items()]
    if len(refused) > MANY:
        lines.append(f"{_counted([*refused])} are refused: {next(iter(refused.values()))}")
    else:
        lines += refused.values()
    if len(failed) > MANY:
        lines.append(f"{_counted([*failed])}: {next(iter(failed.values()))}")
    else:
        lines += [f"peer {name}: {why}; new QPs are set up" for name, why in failed.items()]
    if len(unheard) > MANY:
        return [*lines, f"{_counted(unheard)} have not answered yet"]
    return [*lines, *(f"peer {name} has not answered yet" for name in unheard)]


def warnings(engine: Engine) -> list[str]:
    """Return what works, but needs a look: a line for each peer, or one for many."""
    lines = [*reach.narrow(engine), *reach.shared_nics(engine), *engine.counts.warnings]
    plain: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for name, peer in engine.peers.all.items():
        plain[peer.loses_cells].append(name)
    for ours in (True, False):
        names = sorted(plain[ours])
        if not names:
            continue
        whom = _counted(names) if len(names) > MANY else ", ".join(names)
        ways = "" if ours else " from there"
        lines.append(
            f"data to {whom} goes in MRC's packets, because cells are lost on every plane{ways}"
        )
    for found in (engine.peers.used_twice, engine.peers.other_files):
        if len(found) > MANY:
            lines.append(f"{_counted([*found])}: {next(iter(found.values()))}")
        else:
            lines += [found[peer.name] for peer in engine.config.peers if peer.name in found]
    return lines


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} peers ({', '.join(names[:NAMED])} and {len(names) - NAMED} more)"
