# SPDX-License-Identifier: GPL-2.0-only
"""Which planes do not lead to a peer, as next hops and the states of paths tell.

A link may be up and the plane dead behind it. Then a QP that sends has all its paths of the plane
ASSUMED_BAD, and the probes that would bring them back are not answered.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mrcd.datapath import view
from mrcd.datapath.datapath import Datapath
from mrcd.engine.engine import Engine
from mrcd.handshake import State
from mrcd.linux import bpfbatch
from mrcd.planes.network import AnyNetwork
from mrcd.planes.nexthops import Hop
from mrcd.wire.abi import ABI
from mrcd.wire.layout import picker
from mrcd.wording import duration

_TX = ABI.structs["mrc_tx"]
_WORDS, _PER_PLANE = ABI.MRC_SET_WORDS, ABI.MRC_EV_WORDS
_SET = struct.Struct(f"={_WORDS}Q")
_PATH = ABI.structs["mrc_path"]
_JUDGED = picker(_PATH, "delivered_ns", "withdrawn_ns", "misses", "answered_ns")
_UP = State.ESTABLISHED
UNANSWERED = 3
"""So many probes of each path lost since it was withdrawn: that is not a loss now and then."""
QUIET_NS = 1_000_000_000
"""A path gets through for this long after the last packet that did.

A queue that is full drops three probes of a path within 0.1 s, and carries data all the same.
"""
SHARED_MAX = 8
"""More peers with the same problem share one line."""
Unreached = Mapping[str, Mapping[int, float]]
"""Peers that are up, and the planes on which no path to them gets through: for how many seconds."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What planes do not reach, in words, and the lines of status that say so.

    wrong: by plane, what it does not lead to. unreached: by plane, the number of peers that are up
    and that it does not lead to.
    """

    wrong: Mapping[int, str]
    unreached: Mapping[int, int]
    lines: Sequence[str]


class Judged(NamedTuple):
    """What is known of a path that is ASSUMED_BAD, from struct mrc_path."""

    delivered_ns: int
    withdrawn_ns: int
    misses: int
    answered_ns: int

    @property
    def heard_ns(self) -> int:
        """Return when something is last known to have got through."""
        return max(self.delivered_ns, self.answered_ns)

    @property
    def unheard_ns(self) -> int:
        """Return since when nothing gets through."""
        return max(self.withdrawn_ns, self.heard_ns)


def away(tx: bytes) -> int:
    """Return the mask of planes all of whose paths are ASSUMED_BAD, apart from denied ones."""
    use, spare, denied, paths = (
        _SET.unpack_from(tx, _TX.fields[name].offset) for name in ("use", "spare", "denied", "all")
    )
    mask = 0
    for plane in range(_WORDS // _PER_PLANE):
        words = range(plane * _PER_PLANE, (plane + 1) * _PER_PLANE)
        if any(paths[k] & ~denied[k] for k in words) and not any(use[k] | spare[k] for k in words):
            mask |= 1 << plane
    return mask


def sentences(unreached: Unreached, planes: Mapping[str, int], faults: Mapping[int, str]) -> Reach:
    """Return what is wrong, for each plane and in all. Pure.

    planes: the mask of planes by which each peer that is up should be reached. faults: what the
    survey says of a plane's elements.
    """
    cut = [name for name, away in unreached.items() if len(away) == planes[name].bit_count()]
    everybody = len(cut) == len(planes)
    wrong: dict[int, str] = {}
    count: dict[int, int] = {}
    for plane in range(ABI.MRC_MAX_PLANES):
        names = [name for name, away in unreached.items() if plane in away]
        count[plane] = len(names)
        if not everybody:
            names = [name for name in names if name not in cut]
        if names:
            served = sum(mask >> plane & 1 for mask in planes.values())
            whom = "" if len(names) == served > 1 else f" to {_who(names)}"
            for_s = max(unreached[name][plane] for name in names)
            fault = f"; fault map: {faults[plane]}" if plane in faults else ""
            wrong[plane] = f"no path gets through{whom}, for {duration(for_s)}{fault}"
    lines = [f"plane {plane}: {text}" for plane, text in wrong.items() if not everybody]
    if cut:
        lines.append(f"no path gets through to {_who(cut)} on any plane")
        if everybody:
            lines += [
                f"plane {plane}: fault map: {text}" if plane >= 0 else f"fault map: {text}"
                for plane, text in faults.items()
            ]
    return Reach(wrong, count, lines)


def _who(names: Sequence[str]) -> str:
    return f"peer {names[0]}" if len(names) == 1 else f"{len(names)} peers, {names[0]} first"


def without_neighbor(engine: Engine) -> dict[int, str]:
    """Return the planes on which no neighbour is known that leads to some peer, in words."""
    table, usable = engine.table.peers, engine.planes.mask
    lost: dict[int, list[str]] = {}
    for peer in engine.config.peers:
        if missing := usable & table.shared(peer) & ~table.reached(peer.name):
            for plane in engine.planes.planes:
                if missing >> plane.index & 1:
                    lost.setdefault(plane.index, []).append(peer.name)
    return {
        plane: f"no neighbour answers that leads to {_who(names)}"
        for plane, names in sorted(lost.items())
    }


def without_path(engine: Engine) -> Reach:
    """Return what is wrong with planes because no path to some peer gets through any more."""
    table, peers = engine.table, engine.peers
    names = [each.name for each in engine.config.peers if peers.state(each.name) is _UP]
    usable = {
        name: engine.planes.mask & table.peers.planes[name] & table.peers.reached(name)
        for name in names
    }
    now = time.monotonic_ns()
    unreached = {}
    for name in names:
        found = _dead_for(engine.datapath, table.qps_of(name), table.configured, now)
        if dead := {k: (now - ns) / 1e9 for k, ns in found.items() if usable[name] >> k & 1}:
            unreached[name] = dead
    if not unreached:
        return Reach({}, {}, [])
    faults: dict[int, list[str]] = {}
    for each in engine.survey.list.named:
        element = each.fault.element
        faults.setdefault(element.plane, []).append(f"{element.name} {each.fault.kind}")
    return sentences(unreached, usable, {k: ", ".join(texts) for k, texts in faults.items()})


def swallowed(engine: Engine) -> dict[int, dict[str, int]]:
    """Return the planes on which probes are answered and data is lost: since when to whom (ns)."""
    found: dict[int, dict[str, int]] = {}
    for (name, plane), way in engine.trials.ways.items():
        if way.swallowed_ns is not None and engine.planes.mask >> plane & 1:
            found.setdefault(plane, {})[name] = way.swallowed_ns
    return found


def without_data(swallowed: Mapping[int, Mapping[str, int]]) -> dict[int, str]:
    """Return these planes in words."""
    now = time.monotonic_ns()
    return {
        plane: f"answers probes and loses data to {_who([*lost])}, for "
        f"{duration((now - min(lost.values())) / 1e9)}"
        for plane, lost in sorted(swallowed.items())
    }


def narrow(engine: Engine) -> list[str]:
    """Return the planes that carry shorter packets than their NICs say, in words."""
    found: dict[tuple[int, int], list[str]] = {}
    for name, peer in engine.peers.all.items():
        for plane, mtu in peer.narrow.items():
            found.setdefault((plane, mtu), []).append(name)
    return [
        f"plane {plane} carries packets of {mtu:,} bytes to {_who(names)}; "
        f"its NICs say {engine.config.fabric.mtu:,}"
        for (plane, mtu), names in sorted(found.items())
    ]


def shared_nics(engine: Engine) -> list[str]:
    """Return the peers whose planes are not apart, in words; many share one line."""
    ground = engine.planes.ground
    lines = by_one_nic(ground.hops.all) if isinstance(ground, AnyNetwork) else []
    if len(lines) > SHARED_MAX:
        return [f"{lines[0]}; and {len(lines) - 1} more such peers"]
    return lines


def by_one_nic(hops: Iterable[Hop]) -> list[str]:
    """Return the peers to which several planes lead by one of their NICs, in words.

    Where NICs share a network, Linux answers by one of them for the addresses of all.
    """
    found: dict[tuple[str, bytes], list[int]] = {}
    for hop in hops:
        if hop.mac is not None and hop.via == hop.address:
            found.setdefault((hop.peer, hop.mac), []).append(hop.plane)
    keys = ("arp_ignore=1", "arp_announce=2")
    sysctl = " ".join(f"net.ipv4.conf.all.{key}" for key in keys)
    return [
        f"planes {', '.join(map(str, sorted(planes)))} lead to peer {peer} by one link-layer "
        f"address, {mac.hex(':')}: they die together with its NIC; remedy: a network of its own "
        f"for each plane, or `sysctl -w {sysctl}` on {peer}"
        for (peer, mac), planes in sorted(found.items())
        if len(planes) > 1
    ]


def _dead_for(
    datapath: Datapath, qps: range, configured: Collection[int], now: int
) -> dict[int, int]:
    """Return the planes on which a QP has found no path that gets through, and since when (ns)."""
    dead: dict[int, int] = {}
    txs = bpfbatch.rows(datapath.maps["txs"], qps, _TX.size)
    for qp, tx in zip(qps, txs, strict=True):
        found = away(tx) if qp in configured else 0
        for plane in range(ABI.MRC_MAX_PLANES):
            if found >> plane & 1 and plane not in dead:
                since = unheard_since(_judged(datapath, qp, plane, tx), now)
                if since is not None:
                    dead[plane] = since
    return dead


def _judged(datapath: Datapath, qp: int, plane: int, tx: bytes) -> list[Judged]:
    """Return what is known of a QP's paths on a plane, apart from denied ones."""
    first = view.path_index(datapath, qp, plane, 0)
    slots = range(first, first + datapath.sizes.evs)
    there, denied = (_SET.unpack_from(tx, _TX.fields[name].offset) for name in ("all", "denied"))
    return [
        Judged(*_JUDGED(row))
        for slot, row in enumerate(bpfbatch.rows(datapath.maps["paths"], slots, _PATH.size))
        if _holds(there, plane, slot) and not _holds(denied, plane, slot)
    ]


def unheard_since(paths: Sequence[Judged], now: int) -> int | None:
    """Return since when none of these paths gets through (ns), at least one; None if one does."""
    since = max(each.unheard_ns for each in paths)
    if now - max(each.heard_ns for each in paths) < QUIET_NS:
        return None
    return None if any(each.misses < UNANSWERED for each in paths) else since


def _holds(words: Sequence[int], plane: int, slot: int) -> bool:
    return bool(words[plane * _PER_PLANE + (slot >> 6)] >> (slot & 63) & 1)
