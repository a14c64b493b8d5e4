# SPDX-License-Identifier: GPL-2.0-only
"""Read QPs, their paths and a peer's planes from the maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mrcd.datapath.datapath import Datapath
from mrcd.linux import bpfbatch
from mrcd.paths import evset
from mrcd.paths.states import State
from mrcd.wire.abi import ABI
from mrcd.wire.layout import picker

PLANES = ABI.MRC_MAX_PLANES
ALL_PLANES = (1 << PLANES) - 1
_BALANCE = ABI.structs["mrc_balance"]
_QP = ABI.structs["mrc_qp"]
_TX = ABI.structs["mrc_tx"]
_RX = ABI.structs["mrc_rx"]
_PATH = ABI.structs["mrc_path"]
_PORTS = picker(_BALANCE, "ports", "heard_ports")
_SETS = ("use", "skip", "slow", "spare", "denied")


WHY_FAILED = {
    ABI.MRC_FAILED_RETRIES: "nothing was acknowledged, however often it was sent again",
    ABI.MRC_FAILED_EVENT: "the peer has no use for what was sent",
}
"""Why a QP is in the state ERROR, by `failed` of struct mrc_tx."""


@dataclass(frozen=True, slots=True)
class QpView:
    """A QP as read from the maps."""

    qp: dict[str, int]
    tx: dict[str, int]
    rx: dict[str, int]


@dataclass(frozen=True, slots=True)
class PathView:
    """A path of a QP as read from the maps. `values` are the members of struct mrc_path."""

    ev: int
    plane: int
    slot: int
    state: State
    use: bool  # in rotation; a GOOD path that is not is a backup
    skip: bool
    slow: bool
    spare: bool
    denied: bool
    values: dict[str, int]


@dataclass(frozen=True, slots=True)
class Trip:
    """The round trips to a peer on a plane: smoothed (0: none), and when last measured, ns."""

    srtt_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Balance:
    """A peer's planes: share of a whole one, round trips, announced mask.

    probed_ns: the shortest round trip of a probe, 0 if unknown.
    """

    shares: tuple[float, ...]
    trips: tuple[Trip, ...]
    ports: int
    probed_ns: int

    @property
    def srtt_ns(self) -> tuple[int, ...]:
        """The smoothed round trips of the planes."""
        return tuple(trip.srtt_ns for trip in self.trips)


def path_index(dp: Datapath, qp: int, plane: int, slot: int) -> int:
    """Return the index of a path in the map `paths`."""
    return (qp * PLANES + plane) * dp.sizes.evs + slot


def read(dp: Datapath, qp: int) -> QpView:
    """Return one QP as it is now."""
    return QpView(dp.read("qps", qp, _QP), dp.read("txs", qp, _TX), dp.read("rxs", qp, _RX))


def paths(dp: Datapath, qp: int, sets: Sequence[evset.PlaneSet]) -> list[PathView]:
    """Return every path of a QP, given its EV set: one set for each plane, or none at all."""
    if not sets:
        return []
    raw = dp.read_raw("txs", qp, _TX.size)
    members = {name: _TX.unpack_array(raw, name) for name in _SETS}
    found = []
    for plane, one in enumerate(sets):
        first = path_index(dp, qp, plane, 0)
        rows = bpfbatch.lookup(dp.maps["paths"], first, len(one.evs), _PATH.size)
        for slot, (ev, row) in enumerate(zip(one.evs, rows, strict=True)):
            member = {
                name: bool(words[2 * plane + (slot >> 6)] >> (slot & 63) & 1)
                for name, words in members.items()
            }
            values = _PATH.unpack(row)
            found.append(PathView(ev, plane, slot, state_of(member), **member, values=values))
    return found


def denied_slots(dp: Datapath, qp: int) -> set[tuple[int, int]]:
    """Return the planes and slots of a QP's set that are DENIED."""
    raw = dp.read_raw("txs", qp, _TX.size)
    found = set()
    for number, word in enumerate(_TX.unpack_array(raw, "denied")):
        plane, half = divmod(number, ABI.MRC_EV_WORDS)
        while word:
            lowest = word & -word
            found.add((plane, half * 64 + lowest.bit_length() - 1))
            word ^= lowest
    return found


def state_of(member: dict[str, bool]) -> State:
    """Return the state of a path by the sets of mrc_tx that it is in (bpf/mrc_abi.h)."""
    if member["denied"]:
        return State.DENIED
    if member["use"]:
        return State.SKIP if member["skip"] else State.GOOD
    return State.GOOD if member["spare"] else State.ASSUMED_BAD


def balance_of(raw: bytes, planes: int) -> Balance:
    """Decode an entry of the map balances."""
    one = _BALANCE.unpack(raw)
    shares = one["shares"].to_bytes(PLANES, "little")
    trips, measured = (
        _BALANCE.unpack_array(raw, name)[:planes] for name in ("srtt_ns", "rtt_at_ns")
    )
    return Balance(
        tuple(share / ABI.MRC_SHARE_FULL for share in shares[:planes]),
        tuple(map(Trip, trips, measured)),
        ports_of(raw),
        one["probed_ns"],
    )


def nearest_ns(balance: bytes, now_ns: int) -> tuple[int, ...]:
    """Return the shortest round trip of a probe by plane, ns, of late; 0: none, or too soon to say.

    It is the least in this part of time and the one before (MRC_NEAR_SHIFT). Until a whole part has
    passed a queue could be taken for the way.
    """
    part = now_ns >> ABI.MRC_NEAR_SHIFT & 0xFFFFFFFF
    found = []
    for at, near, before in zip(
        *(_BALANCE.unpack_array(balance, f"near{name}") for name in ("_at", "_ns", "_before_ns")),
        strict=True,
    ):
        if part - at == 1:  # nothing has come in this part yet
            found.append(near)
        else:
            found.append(min(near, before) if part == at and before else 0)
    return tuple(found)


def ports_of(balance: bytes) -> int:
    """Return the mask of planes on which a peer takes packets, by its updates and its SACKs."""
    told, heard = _PORTS(balance)
    return told & heard & ALL_PLANES
