# SPDX-License-Identifier: GPL-2.0-only
"""What crosses the control socket: the daemon fills these in, ``mrcctl`` shows them.

The classes are plain frozen dataclasses because both ends read them by their annotations: the
server derives the varlink interface description from them, the client has msgspec check what it
receives. That is also why the annotations are real types (no ``from __future__ import
annotations``) and sequences are lists: varlink knows arrays, not tuples.

Counters count since the data path was made, which outlives the daemon, and do not fall before it
is made anew: those of paths, QPs and peers outlive the death of a path and of a session. Optional
values are ``None`` while nothing was measured. Adding a field keeps ``SCHEMA_VERSION``; removing
one or changing its meaning raises it.
"""

from dataclasses import dataclass
from typing import Literal, TypedDict

INTERFACE = "io.mrcd.Control"
SCHEMA_VERSION = 1

DaemonState = Literal["starting", "ok", "degraded", "stopping"]
PeerState = Literal["connecting", "established", "silent"]
PathState = Literal["GOOD", "SKIP", "ASSUMED_BAD", "DENIED"]
PathRole = Literal["active", "backup"]
QpState = Literal["RESET", "INIT", "RTR", "RTS", "ERROR"]
XdpMode = Literal["native", "generic", "detached"]
TcKind = Literal["tcx", "clsact", "detached"]
FaultKind = Literal["dead", "loss", "slow"]
ElementKind = Literal["nic", "link", "t0", "t1"]
ElementState = Literal["ok", "dead", "loss", "slow", "unseen"]
TickState = Literal["idle", "running", "stopped"]
HowApplied = Literal["live", "restart"]
Direction = Literal["tx", "rx"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mrc0Info:
    """The virtual interface applications use."""

    name: str
    mtu: int
    addresses: list[str]  # with prefix length: "10.99.0.1/24"
    tx_packets: int = 0  # from applications, before anything is dropped
    tx_bytes: int = 0
    rx_packets: int = 0  # to applications
    rx_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneInfo:
    """One NIC plane as this host sees it."""

    index: int
    interface: str
    up: bool  # administratively
    carrier: bool
    usable: bool  # up, carrier, gateway resolved, not drained, not sick: packets are sprayed on it
    gateway: str
    gateway_mac: str | None  # None: not resolved yet
    tx_packets: int
    tx_bytes: int
    rx_packets: int
    rx_bytes: int
    drained: bool = False  # taken out of service by an operator
    sick: str | None = None  # why its health is in doubt
    mtu: int = 0
    address: str = ""  # of this host in the plane


@dataclass(frozen=True, slots=True, kw_only=True)
class DatapathInfo:
    """How the BPF programs are attached, and whether their clock runs."""

    xdp: XdpMode  # the least of all planes: one generic plane makes it "generic"
    tc: TcKind
    routing: str  # "srv6", "srv6, reduced", "ecmp over IPv6", "ecmp over IPv4"
    tick: TickState  # "running" only while something is outstanding
    bpffs: str  # where links and maps are pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The daemon as a whole. ``reasons`` says in full sentences why it is degraded."""

    host: str
    version: str
    state: DaemonState
    reasons: list[str]
    pid: int
    config: str  # the file
    uptime_s: float
    mrc0: Mrc0Info
    planes: list[PlaneInfo]
    peers_total: int
    peers_up: int  # established
    datapath: DatapathInfo
    peers_silent: int = 0  # had answered, and do not any more
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """A remote host."""

    name: str
    state: PeerState
    addresses: list[str]  # allowed prefixes: what the route through mrc0 covers
    mtu: int  # largest application packet towards it
    qps: int
    last_heard_s: float | None  # ago; None: never
    planes_usable: list[int]  # usable here and there
    shares: list[float]  # of each plane, 1 where it is whole
    planes_srtt_us: list[float | None]  # smoothed over all paths of the plane
    tx_packets: int
    rx_packets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PathInfo:
    """An EV of one QP, bound to its uSID list."""

    peer: str
    qp: int  # index among the peer's QPs, from 0
    ev: int
    plane: int
    t1: int  # from 1; 0: both hosts hang on one T0, or nobody knows (ecmp)
    usids: str  # the outer destination address as text; empty with ecmp
    state: PathState
    role: PathRole  # active: in rotation; backup: takes the place of one that is withdrawn
    slow: bool  # far above its plane in round trips or marks: used now and then only
    sent: int
    acked: int
    lost: int
    marked: int  # congestion marks that the peer told of
    srtt_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEvent:
    """A path came into use or went out of it. Times are CLOCK_MONOTONIC, taken in the kernel."""

    time_ns: int
    peer: str
    qp: int  # index among the peer's QPs, from 0
    ev: int
    plane: int
    t1: int
    from_state: PathState
    to_state: PathState
    cause: str  # loss, mark, probe, probe_mark, deny, allow
    sent_ns: int | None  # when the packet was sent that is taken for lost
    rtt_ns: int | None  # the path's, smoothed
    missed: int  # events before this one that this watcher was too slow for


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedInfo:
    """A rule of the denylist."""

    element: str
    kind: str  # path, plane, t0, t1, link, nic, peer
    peer: str | None  # None: to every peer
    paths: int  # slots of the QPs' EV sets that it denies now


@dataclass(frozen=True, slots=True, kw_only=True)
class PathProbe:
    """What EV probes of one path found; times are there when at least one was answered."""

    peer: str
    ev: int
    plane: int
    t1: int  # from 1; 0: both hosts hang on one T0
    usids: str  # the outer destination address as text
    sent: int
    answered: int
    min_us: float | None
    median_us: float | None
    max_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnInfo:
    """One QP: its send window and its receive window. PSNs are 24 bits."""

    peer: str
    qp: int
    qpn: int  # ours: what the peer writes into BTH
    remote_qpn: int
    state: QpState
    next_psn: int
    una_psn: int  # oldest not acknowledged
    outstanding: int
    mpr: int  # packets that may be outstanding
    srtt_us: float | None
    rx_next_psn: int  # next to be delivered in order
    rx_waiting: int  # packets held behind a gap
    retransmits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter of the data path or the daemon; ``help`` is one sentence."""

    name: str
    value: int
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsInfo:
    """All counters, in the order in which a packet meets them."""

    counters: list[Counter]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSample:
    """One reading for ``mrcctl monitor``. Rates are differences of two samples' counters."""

    monotonic_ns: int  # when it was taken, CLOCK_MONOTONIC
    status: Status
    peers: list[PeerInfo]  # all, or as many as were asked for
    stats: StatsInfo
    missed: int = 0  # samples that fell due before this one while this caller was too slow
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A key of the configuration whose value another text would change."""

    path: str  # "transport.probe_pps", "peer.h2.allowed"
    old: str | None  # as it would stand in the file; None: it was not there
    new: str | None
    how: HowApplied  # at once, or only by a restart of the daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanges:
    """What a text changes, or has changed."""

    changes: list[ConfigChange]
    confirm_s: int | None = None  # applied, and to be confirmed within so many seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachReport:
    """What ``mrcctl datapath detach`` removed and could not remove, a line each."""

    detached: list[str]
    failed: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInfo:
    """A link or a switch that loses packets or time, as all hosts' survey probes together tell."""

    element: str  # "p1t0-1:p1t1-2", "h1:p1", "p1t1-2"
    kind: FaultKind
    loss: float  # 0 to 1, of a link in each direction, of a switch of what enters it
    loss_low: float  # bounds, about 99 % each
    loss_high: float
    extra_us: float  # slow: what one crossing takes too long
    since_s: float  # ago
    evidence: list[str]
    alternatives: list[list[str]]  # sets of elements that would explain exactly the same instead


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyInfo:
    """The survey behind the fault list."""

    enabled: bool
    reason: str  # why not
    pps: int
    loops: int  # this host's
    hosts_heard: int  # peers that told lately what they saw
    hosts_total: int
    accepted: int  # messages
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementInfo:
    """A link or a switch of the fabric, as the survey sees it."""

    name: str
    kind: ElementKind
    plane: int
    state: ElementState
    loss: float
    sent: int  # probes of the window that crossed it
    latency_us: float | None  # one crossing of a link; None for switches, or when not known


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpot:
    """Where a host hangs."""

    name: str
    t0: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePeer:
    """A peer by the number it has in records."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureInfo:
    """What the records of a capture (bpf/mrc_capture.h) need to be understood."""

    host: str
    encap: int  # one of MRC_ENCAP_ in bpf/mrc_wire.h
    udp_port: int  # of MRC; the hand-shake has another
    interfaces: list[str]  # of the planes
    peers: list[CapturePeer]
    qps_per_peer: int  # of peer k those from k times this


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedPacket:
    """A packet as ``mrcctl capture --json`` prints it. What is not known of it is None."""

    time_ns: int  # CLOCK_REALTIME
    direction: Direction
    plane: int
    interface: str
    length: int  # on the wire, with its Ethernet header
    kind: str  # data, sack, nack, probe, survey, request, response, hand-shake, other
    peer: str | None
    qp: int | None  # index among the peer's QPs, from 0
    ev: int | None
    t1: int | None  # from 1; 0: its path crosses none, or nobody knows (ecmp)
    psn: int | None  # of data; of a SACK the last it acknowledges; of a NACK what it is about
    retransmit: bool
    verdict: str  # in order, reordered, duplicate, or the counter that tells what became of it


class FaultsReply(TypedDict):
    """Reply of ListFaults."""

    schema_version: int
    survey: SurveyInfo
    faults: list[FaultInfo]


class MapReply(TypedDict):
    """Reply of GetMap."""

    schema_version: int
    survey: SurveyInfo
    planes: int
    t0: int
    t1: int
    hosts: list[HostSpot]
    elements: list[ElementInfo]


class StatusReply(TypedDict):
    """Reply of GetStatus."""

    status: Status


class PeersReply(TypedDict):
    """Reply of ListPeers."""

    schema_version: int
    peers: list[PeerInfo]


class PlanesReply(TypedDict):
    """Every plane: a part of GetStatus."""

    schema_version: int
    planes: list[PlaneInfo]


class InterfacesReply(TypedDict):
    """mrc0 and the planes' NICs: a part of GetStatus."""

    schema_version: int
    mrc0: Mrc0Info
    planes: list[PlaneInfo]


class PathsReply(TypedDict):
    """Reply of ListPaths."""

    schema_version: int
    paths: list[PathInfo]


class DenyReply(TypedDict):
    """Reply of Deny and Allow: whether anything changed, and the rules there are now."""

    changed: bool
    rules: list[DeniedInfo]


class DeniedReply(TypedDict):
    """Reply of ListDenied."""

    schema_version: int
    rules: list[DeniedInfo]


class WatchPathsReply(TypedDict):
    """Each reply of WatchPaths; the first has no event and says that the watch has begun."""

    event: PathEvent | None


class PlaneReply(TypedDict):
    """Reply of Drain and Undrain: the plane as it is now."""

    plane: PlaneInfo


class ProbesReply(TypedDict):
    """Reply of ProbePaths."""

    schema_version: int
    probes: list[PathProbe]


class ConnectionsReply(TypedDict):
    """Reply of ListConnections."""

    schema_version: int
    connections: list[ConnInfo]


class StatsReply(TypedDict):
    """Reply of GetStats."""

    stats: StatsInfo


class ConfigReply(TypedDict):
    """Reply of GetConfig."""

    schema_version: int
    text: str


class ChangesReply(TypedDict):
    """Reply of DiffConfig and ApplyConfig."""

    schema_version: int
    diff: ConfigChanges


class MonitorReply(TypedDict):
    """Each reply of Monitor."""

    sample: MonitorSample
