# SPDX-License-Identifier: GPL-2.0-only
"""Define the metrics and their units, and make their rows from a snapshot of the daemon (pure).

The configuration bounds the labels: plane, peer, or both. Paths appear as counts by state, never
one by one. The help of data path counters is read from bpf/mrc_abi.h. Drops form one family and
retransmissions another, so that each can be summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mrcd.datapath.census import Paths, PeerCount, PlaneCount
from mrcd.handshake.channel import Drop
from mrcd.model import FaultKind, PathState, PeerState
from mrcd.wire.abi import COUNTERS

Kind = Literal["counter", "gauge"]
Row = tuple[tuple[str, ...], float]
STATES: tuple[PathState, ...] = get_args(PathState)
PEER_STATES: tuple[PeerState, ...] = get_args(PeerState)
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
RINGS = ("tx", "rx")
MAPS = ("peers", "qps", "addresses", "prefixes", "sources", "loops")


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. The name of a counter ends in _total."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class PlaneState:
    """A plane of this host. Traffic counts everything that passed its interface."""

    index: int
    interface: str
    carrier: bool
    usable: bool
    drained: bool
    sick: bool
    unreached: int
    swallowed: int
    tx_packets: int
    tx_bytes: int
    rx_packets: int
    rx_bytes: int


@dataclass(frozen=True, slots=True)
class PeerSample:
    """A configured peer. `ports` is the mask of planes that are usable on both hosts."""

    name: str
    state: PeerState
    heard_age_s: float | None
    mtu: int
    count: PeerCount
    planes: Sequence[PlaneCount]
    ports: int
    key_age_s: float | None = None
    cells_lost: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state from which the metrics are made. `used` and `capacity` are by map (MAPS)."""

    host: str
    version: str
    routing: str
    xdp: str
    tc: str
    start_time_s: float
    degraded: int
    clock_runs: int
    ring_slots: int
    counters: Mapping[str, int]
    planes: Sequence[PlaneState]
    plane_paths: Sequence[Paths]
    peers: Sequence[PeerSample]
    used: Mapping[str, int]
    capacity: Mapping[str, int]
    faults: Mapping[str, int]
    survey_hosts_heard: int
    denied_rules: int
    secured: bool
    admitted: int
    channel_drops: Mapping[str, int]


Rows = Callable[[Snapshot], Iterator[Row]]
Metric = tuple[Family, Rows]

# ---- counters of the data path ---------------------------------------------------------------

_RULES = ("rtx_fifo", "rtx_guard", "rtx_timeout", "rtx_nack")
_MEANINGS = {name: meaning for _index, name, meaning in COUNTERS}


def _grouped(prefix: str) -> list[str]:
    return [n for n in _MEANINGS if n.startswith(prefix) and (prefix != "rtx_" or n in _RULES)]


def _group(name: str, prefix: str, label: str, head: str) -> Metric:
    """Make one family of counters that add up; its help gives the meaning of each."""
    names = {full: full.removeprefix(prefix) for full in _grouped(prefix)}
    parts = [
        f"{short}: {_MEANINGS[full].removeprefix('dropped: ')}" for full, short in names.items()
    ]
    return _family(
        name,
        "counter",
        (label,),
        f"{head}. {'; '.join(parts)}",
        lambda snap: (((short,), snap.counters[full]) for full, short in names.items()),
    )


def _counter(name: str, meaning: str) -> Metric:
    return _one(f"mrcd_{name}_total", "counter", meaning, lambda snap: snap.counters[name])


# ---- the table -------------------------------------------------------------------------------


def _family(name: str, kind: Kind, labels: tuple[str, ...], text: str, rows: Rows) -> Metric:
    return Family(name, kind, labels, text), rows


def _one(name: str, kind: Kind, text: str, value: Callable[[Snapshot], float]) -> Metric:
    return _family(name, kind, (), text, lambda snap: iter([((), value(snap))]))


def _plane(name: str, kind: Kind, text: str, value: Callable[[PlaneState], float]) -> Metric:
    def rows(snap: Snapshot) -> Iterator[Row]:
        return (((str(plane.index), plane.interface), value(plane)) for plane in snap.planes)

    return _family(name, kind, ("plane", "interface"), text, rows)


def _peer(name: str, kind: Kind, text: str, value: Callable[[PeerSample], float | None]) -> Metric:
    def rows(snap: Snapshot) -> Iterator[Row]:
        for peer in snap.peers:
            if (found := value(peer)) is not None:
                yield (peer.name,), found

    return _family(name, kind, ("peer",), text, rows)


def _peer_plane(
    name: str, kind: Kind, text: str, value: Callable[[PeerSample, int], float | None]
) -> Metric:
    def rows(snap: Snapshot) -> Iterator[Row]:
        for peer in snap.peers:
            for plane in range(len(peer.planes)):
                if (found := value(peer, plane)) is not None:
                    yield (peer.name, str(plane)), found

    return _family(name, kind, ("peer", "plane"), text, rows)


def _seconds(nanoseconds: int) -> float | None:
    return nanoseconds * 1e-9 if nanoseconds else None


def _by_state(paths: Paths) -> tuple[int, int, int, int]:
    return paths.good, paths.skip, paths.assumed_bad, paths.denied


def _plane_paths(snap: Snapshot) -> Iterator[Row]:
    for plane, paths in enumerate(snap.plane_paths):
        for state, number in zip(STATES, _by_state(paths), strict=True):
            yield (str(plane), state), number


def _peer_paths(snap: Snapshot) -> Iterator[Row]:
    for peer in snap.peers:
        for state, number in zip(STATES, _by_state(peer.count.paths), strict=True):
            yield (peer.name, state), number


def _plane_in_use(which: str) -> Rows:
    return lambda snap: (
        ((str(plane),), getattr(paths, which)) for plane, paths in enumerate(snap.plane_paths)
    )


def _ring_used(snap: Snapshot) -> Iterator[Row]:
    yield ("tx",), sum(peer.count.kept for peer in snap.peers)
    yield ("rx",), sum(peer.count.waiting for peer in snap.peers)


def _info(snap: Snapshot) -> Iterator[Row]:
    yield (snap.host, snap.version, snap.routing, snap.xdp, snap.tc), 1


_TABLE: tuple[Metric, ...] = (
    _family(
        "mrcd_info",
        "gauge",
        ("host", "version", "routing", "xdp", "tc"),
        "always 1; labels: host, version, how packets cross the fabric, how programs are attached",
        _info,
    ),
    _one(
        "mrcd_start_time_seconds",
        "gauge",
        "start of the daemon, seconds since 1970",
        lambda snap: snap.start_time_s,
    ),
    _one(
        "mrcd_degraded_reasons",
        "gauge",
        "reasons for a degraded state that `mrcctl status` lists; 0: all is well",
        lambda snap: snap.degraded,
    ),
    _one(
        "mrcd_secured",
        "gauge",
        "1 if peers are authenticated by keys, 0 with insecure = true",
        lambda snap: snap.secured,
    ),
    _one(
        "mrcd_qps_failed",
        "gauge",
        "QPs in the state ERROR, which are being set up anew",
        lambda snap: sum(peer.count.failed for peer in snap.peers),
    ),
    _one(
        "mrcd_clock_runs_total",
        "counter",
        "busy QPs that the clock looked at; it stops while nothing is outstanding",
        lambda snap: snap.clock_runs,
    ),
    _plane(
        "mrcd_plane_carrier",
        "gauge",
        "1 while the plane's NIC has a carrier",
        lambda plane: plane.carrier,
    ),
    _plane(
        "mrcd_plane_usable",
        "gauge",
        "1 while packets are sprayed on the plane",
        lambda plane: plane.usable,
    ),
    _plane(
        "mrcd_plane_drained",
        "gauge",
        "1 while an operator has taken the plane out of service",
        lambda plane: plane.drained,
    ),
    _plane(
        "mrcd_plane_sick",
        "gauge",
        "1 while the health of the plane's NIC link is in doubt",
        lambda plane: plane.sick,
    ),
    _plane(
        "mrcd_plane_unreached_peers",
        "gauge",
        "established peers that no path of the plane gets through to",
        lambda plane: plane.unreached,
    ),
    _plane(
        "mrcd_plane_swallowed_peers",
        "gauge",
        "established peers to which the plane loses data while probes are answered",
        lambda plane: plane.swallowed,
    ),
    _plane(
        "mrcd_plane_tx_packets_total",
        "counter",
        "packets sent on the plane's NIC",
        lambda plane: plane.tx_packets,
    ),
    _plane(
        "mrcd_plane_tx_bytes_total",
        "counter",
        "bytes of those packets",
        lambda plane: plane.tx_bytes,
    ),
    _plane(
        "mrcd_plane_rx_packets_total",
        "counter",
        "packets received on the plane's NIC",
        lambda plane: plane.rx_packets,
    ),
    _plane(
        "mrcd_plane_rx_bytes_total",
        "counter",
        "bytes of those packets",
        lambda plane: plane.rx_bytes,
    ),
    _family(
        "mrcd_paths",
        "gauge",
        ("plane", "state"),
        "paths of all QPs by state; a GOOD one is in rotation or a backup",
        _plane_paths,
    ),
    _family(
        "mrcd_paths_in_use",
        "gauge",
        ("plane",),
        "paths in rotation, slow and SKIP ones included",
        _plane_in_use("in_use"),
    ),
    _family(
        "mrcd_paths_slow",
        "gauge",
        ("plane",),
        "paths in rotation that are used once in 32 turns because they are slow or crowded",
        _plane_in_use("slow"),
    ),
    _family(
        "mrcd_peers",
        "gauge",
        ("state",),
        "configured peers by state of the hand-shake",
        lambda snap: (
            ((state,), sum(peer.state == state for peer in snap.peers)) for state in PEER_STATES
        ),
    ),
    _one(
        "mrcd_peers_admitted",
        "gauge",
        "peers that no file lists: they were admitted because they know the secret",
        lambda snap: snap.admitted,
    ),
    _peer(
        "mrcd_peer_established",
        "gauge",
        "1 while the peer answers and its QPs are set up",
        lambda peer: peer.state == "established",
    ),
    _peer(
        "mrcd_peer_heard_age_seconds",
        "gauge",
        "time since the last hand-shake message of the peer; absent: none yet",
        lambda peer: peer.heard_age_s,
    ),
    _peer(
        "mrcd_peer_key_age_seconds",
        "gauge",
        "time since keys were last agreed with the peer; absent: there are none",
        lambda peer: peer.key_age_s,
    ),
    _peer(
        "mrcd_peer_mtu_bytes",
        "gauge",
        "largest packet of an application towards the peer",
        lambda peer: peer.mtu,
    ),
    _peer(
        "mrcd_peer_cells_lost",
        "gauge",
        "1 while data goes in MRC's packets because cells get through to the peer on no plane",
        lambda peer: peer.cells_lost,
    ),
    _peer(
        "mrcd_peer_qps_ready",
        "gauge",
        "QPs with the peer that may send (RTS)",
        lambda peer: peer.count.ready,
    ),
    _peer(
        "mrcd_peer_tx_packets_total",
        "counter",
        "packets of applications sprayed to the peer",
        lambda peer: peer.count.tx_packets,
    ),
    _peer(
        "mrcd_peer_rx_packets_total",
        "counter",
        "data packets received from the peer, duplicates not counted",
        lambda peer: peer.count.rx_packets,
    ),
    _peer(
        "mrcd_peer_retransmissions_total",
        "counter",
        "packets sent again to the peer",
        lambda peer: peer.count.retransmits,
    ),
    _peer(
        "mrcd_peer_outstanding_packets",
        "gauge",
        "packets sent to the peer that are not acknowledged in order yet",
        lambda peer: peer.count.outstanding,
    ),
    _peer(
        "mrcd_peer_window_packets",
        "gauge",
        "packets that may be outstanding to the peer, all QPs together",
        lambda peer: peer.count.window,
    ),
    _peer(
        "mrcd_peer_waiting_packets",
        "gauge",
        "packets of the peer held behind a gap",
        lambda peer: peer.count.waiting,
    ),
    _family(
        "mrcd_peer_paths",
        "gauge",
        ("peer", "state"),
        "paths to the peer, of all its QPs, by state",
        _peer_paths,
    ),
    _peer_plane(
        "mrcd_peer_plane_usable",
        "gauge",
        "1 while the plane is usable here and at the peer",
        lambda peer, plane: peer.ports >> plane & 1,
    ),
    _peer_plane(
        "mrcd_peer_plane_share_ratio",
        "gauge",
        "the plane's share of the packets sent to the peer; 1: a whole share",
        lambda peer, plane: peer.planes[plane].share,
    ),
    _peer_plane(
        "mrcd_peer_plane_rtt_seconds",
        "gauge",
        "smoothed round trip to the peer over all paths of the plane; absent: never measured",
        lambda peer, plane: _seconds(peer.planes[plane].srtt_ns),
    ),
    _peer_plane(
        "mrcd_peer_plane_loss_ratio",
        "gauge",
        "smoothed ratio of lost packets among those sent to the peer on the plane",
        lambda peer, plane: peer.planes[plane].loss,
    ),
    _peer_plane(
        "mrcd_peer_plane_marked_ratio",
        "gauge",
        "smoothed ratio of the peer's SACKs that report a congestion mark on the plane",
        lambda peer, plane: peer.planes[plane].marked,
    ),
    _family(
        "mrcd_ring_slots",
        "gauge",
        ("ring",),
        "slots of the ring; tx: copies until acknowledged, rx: packets ahead of a gap",
        lambda snap: (((ring,), snap.ring_slots) for ring in RINGS),
    ),
    _family("mrcd_ring_slots_used", "gauge", ("ring",), "slots in use", _ring_used),
    _family(
        "mrcd_map_entries_max",
        "gauge",
        ("map",),
        "capacity of the map; other maps' sizes follow from these",
        lambda snap: (((name,), snap.capacity[name]) for name in MAPS),
    ),
    _family(
        "mrcd_map_entries",
        "gauge",
        ("map",),
        "entries in use; for QPs, those that are not DOWN",
        lambda snap: (((name,), snap.used[name]) for name in MAPS),
    ),
    _family(
        "mrcd_faults",
        "gauge",
        ("kind",),
        "what the survey names as faulty: links and switches, or NICs, pairs and hosts",
        lambda snap: (((kind,), snap.faults.get(kind, 0)) for kind in FAULT_KINDS),
    ),
    _one(
        "mrcd_survey_hosts_heard",
        "gauge",
        "peers that recently reported the results of their survey probes",
        lambda snap: snap.survey_hosts_heard,
    ),
    _family(
        "mrcd_channel_drops_total",
        "counter",
        ("reason",),
        "messages of daemons dropped without an answer since the daemon started. "
        + "; ".join(f"{why.name.lower()}: {why.value}" for why in Drop),
        lambda snap: (((reason,), count) for reason, count in snap.channel_drops.items()),
    ),
    _one(
        "mrcd_denied_rules",
        "gauge",
        "rules of `mrcctl path deny` in force",
        lambda snap: snap.denied_rules,
    ),
)


def _all() -> Iterator[Metric]:
    yield from _TABLE
    yield _group("mrcd_drops_total", "drop_", "reason", "packets dropped, by reason")
    yield _group(
        "mrcd_retransmissions_total",
        "rtx_",
        "rule",
        "packets sent again, by the rule that triggered it",
    )
    for _index, name, meaning in COUNTERS:
        if name not in (*_grouped("drop_"), *_grouped("rtx_")):
            yield _counter(name, meaning)


_ALL = tuple(_all())
FAMILIES: tuple[Family, ...] = tuple(family for family, _rows in _ALL)
"""All exposed families, in their order."""


def collect(snapshot: Snapshot) -> Iterator[tuple[Family, Iterator[Row]]]:
    """Yield every family with its rows: label values in the order of Family.labels, and the number.

    Rows are made one by one on demand, so that the caller may pause between them.
    """
    for family, rows in _ALL:
        yield family, rows(snapshot)
