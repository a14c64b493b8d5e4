# SPDX-License-Identifier: GPL-2.0-only
"""The types that cross the control socket: the daemon fills them in, and ``mrcctl`` shows them.

The classes are plain frozen dataclasses because both ends read their annotations: the server
derives the varlink interface description from them, and the client has msgspec check received
data. For this reason the annotations are real types (no ``from __future__ import annotations``),
and sequences are lists: varlink knows arrays, not tuples.

Counters start when the data path is created and never decrease until it is created anew. The data
path outlives the daemon. The counters of paths, QPs and peers outlive the death of a path and of a
session. Optional values are ``None`` while nothing has been measured. Adding a field keeps
``SCHEMA_VERSION``; removing a field or changing its meaning raises it.
"""

from dataclasses import dataclass, field
from typing import Literal, TypedDict

INTERFACE = "io.mrcd.Control"
SCHEMA_VERSION = 1

DaemonState = Literal["starting", "ok", "degraded", "stopping"]
PeerState = Literal["connecting", "established", "silent"]
PathState = Literal["GOOD", "SKIP", "ASSUMED_BAD", "DENIED"]
KnownBy = Literal["secret", "invitation", "file", "nothing"]
LogLevel = Literal["debug", "info", "warning", "error"]
PathRole = Literal["active", "backup"]
QpState = Literal["RESET", "INIT", "RTR", "RTS", "ERROR"]
XdpMode = Literal["native", "off", "detached"]
TcKind = Literal["tcx", "clsact", "detached"]
FaultKind = Literal["dead", "loss", "slow", "damage", "repeat", "reorder", "flap"]
ElementKind = Literal["nic", "link", "t0", "t1", "network", "cable", "pair", "host"]
ElementState = Literal["ok", "dead", "loss", "slow", "unseen"]
TickState = Literal["idle", "running", "stopped"]
HowApplied = Literal["live", "restart"]
Framing = Literal["cell", "mrc"]
CellEnvelope = Literal["ipv6", "udp"]
Direction = Literal["tx", "rx"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mrc0Info:
    """The virtual interface that applications use."""

    name: str
    mtu: int
    addresses: list[str]  # with prefix length: "10.99.0.1/24"
    tx_packets: int = 0  # from applications, before anything is dropped
    tx_bytes: int = 0
    rx_packets: int = 0  # to applications
    rx_bytes: int = 0
    speed_mbps: int = 0  # what the usable planes carry together, as far as it is known; else 0


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
    unsaved: str | None = None  # why the drained planes would not survive a restart of mrcd
    sick: str | None = None  # why its health is in doubt
    wrong: str | None = None  # why it does not carry what it should; None: all is well
    unreached: int = 0  # established peers that no path of it gets through to
    swallowed: int = 0  # established peers to which it loses data while probes are answered
    mtu: int = 0
    address: str = ""  # of this host in the plane
    measured: str | None = None  # what gets through, where that was clearly less than the NIC says
    standby: bool = False  # it carries data only while no other plane can, to every peer
    standing_in: int = 0  # established peers to which it does so now


@dataclass(frozen=True, slots=True, kw_only=True)
class DatapathInfo:
    """The attachment of the BPF programs, and the state of their clock."""

    xdp: XdpMode  # "off": planes receive at tc
    tc: TcKind
    routing: str  # "srv6", "srv6, reduced", "ecmp over IPv6", "ecmp over IPv4"
    tick: TickState  # "running" only while something is outstanding
    bpffs: str  # where links and maps are pinned
    cell_bytes: int | None = None  # longest cell at present; None: no peer gets any
    cell_envelope: CellEnvelope | None = None  # of cells: IP in IPv6, or VXLAN in UDP


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of the daemon as a whole.

    ``reasons`` explains in sentences why it is degraded. ``warnings`` names what works, but needs a
    look.
    """

    host: str
    version: str
    state: DaemonState
    reasons: list[str]
    pid: int
    config: str  # path of the configuration file
    uptime_s: float
    mrc0: Mrc0Info
    planes: list[PlaneInfo]
    peers_total: int
    peers_up: int  # established
    datapath: DatapathInfo
    peers_silent: int = 0  # answered before, and no longer do
    secured: bool = False  # what daemons say and packets are authenticated; False: insecure = true
    public_key: str | None = None  # of this host; None: insecure
    warnings: list[str] = field(default_factory=list)
    peers_admitted: int = 0  # peers that no file lists
    log_level: LogLevel = "info"  # events from this level on are logged
    known_by: KnownBy = "nothing"  # by what peers know this host's key, as in PeerInfo
    revoked: list[str] = field(default_factory=list)  # names of hosts that were revoked
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """A remote host."""

    name: str
    state: PeerState
    addresses: list[str]  # allowed prefixes, which the routes through mrc0 cover
    mtu: int  # largest application packet to the peer, in bytes
    qps: int
    last_heard_s: float | None  # time since the last message; None: never heard
    planes_usable: list[int]  # planes usable at both ends
    shares: list[float]  # share of each plane in the balance of load; 1: undiminished
    planes_srtt_us: list[float | None]  # smoothed over all paths of the plane
    tx_packets: int
    rx_packets: int
    framing: Framing | None = None  # of data, both ways; None: no session yet
    trims: bool = False  # switches on the ways to the peer trim data
    refused: str | None = None  # why a peer that is heard gets no session
    other_file: str | None = None  # what its fabric file and that of this host do not agree on
    version: int | None = None  # of hand-shake and packets, the highest of both; None: no session
    public_key: str | None = None  # by which it is known; None: insecure
    key_age_s: float | None = None  # time since keys were last agreed; None: there are none
    key_epoch: int | None = None  # number of the keys that packets are sent under; None: insecure
    admitted: bool = False  # no file lists it; it was taken as a peer because it knows the secret
    # By what its key is known: the secret that all have, the certificate of a host that was
    # invited, or a file; "nothing": insecure.
    known_by: KnownBy = "nothing"
    certificate: str | None = None  # serial number of that certificate
    # Its addresses by plane, empty where it is not on the plane; None: they follow from the fabric.
    endpoints: list[str] | None = None
    through: list[str] | None = None  # hosts that hand packets on to it, by plane, empty: nobody
    spare: list[int] | None = None  # planes to it that are taken only while no other leads there
    far: list[int] | None = None  # those of which this is so because the way is far longer
    # What the way to it carries by plane, Mb/s, as hosts say of their NICs; 0: unknown, or none.
    ways_mbps: list[int] | None = None
    next_hops: list[str | None] | None = None  # MAC address by plane; one is None until it is known
    followed: list[str] | None = None  # prefixes behind it by others' routes over mrc0; None: none
    build: str | None = None  # version of its mrcd; None: it says none, or there is no session


@dataclass(frozen=True, slots=True, kw_only=True)
class PathInfo:
    """An EV of one QP, bound to its uSID list."""

    peer: str
    qp: int  # index among the peer's QPs, from 0
    ev: int
    plane: int
    t1: int  # from 1; 0: both hosts are connected to the same T0, or unknown (ecmp)
    usids: str  # the outer destination address as text; empty with ecmp
    state: PathState
    role: PathRole  # active: in rotation; backup: replaces a path that is withdrawn
    slow: bool  # round trips or marks far above those of its plane: used only occasionally
    sent: int
    acked: int
    lost: int
    marked: int  # congestion marks that the peer reported
    srtt_us: float | None
    # Probes are answered, and the last several packets of data were lost, all of them.
    loses_data: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSums:
    """The paths to one peer in one plane, summed up: of all QPs."""

    peer: str
    plane: int
    good: int  # paths in this state, as are the next three
    skip: int
    assumed_bad: int
    denied: int
    sent: int
    acked: int
    lost: int
    marked: int
    srtt_min_us: float | None  # of the path with the shortest smoothed round trip
    srtt_max_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEvent:
    """A change of a path into or out of use. The kernel takes the times (CLOCK_MONOTONIC)."""

    time_ns: int
    peer: str
    qp: int  # index among the peer's QPs, from 0
    ev: int
    plane: int
    t1: int
    from_state: PathState
    to_state: PathState
    cause: str  # loss, mark, probe, probe_mark, deny, allow
    sent_ns: int | None  # when the packet that counts as lost was sent
    rtt_ns: int | None  # smoothed round trip of the path
    missed: int  # earlier events that this watcher was too slow to receive


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedInfo:
    """A rule of the denylist."""

    element: str
    kind: str  # path, plane, t0, t1, link, nic, peer
    peer: str | None  # None: to every peer
    paths: int  # slots of the QPs' EV sets that the rule denies now


@dataclass(frozen=True, slots=True, kw_only=True)
class PathProbe:
    """The results of EV probes over one path; times are null unless a probe was answered."""

    peer: str
    ev: int
    plane: int
    t1: int  # from 1; 0: both hosts are connected to the same T0
    usids: str  # the outer destination address as text
    sent: int
    answered: int
    min_us: float | None
    median_us: float | None
    max_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneRate:
    """What a plane carried alone, to a peer (tx) or from it (rx); rates are Mb/s of IP packets."""

    peer: str
    plane: int
    interface: str
    direction: Direction
    nic_mbps: int | None  # what this host's NIC says; None: it says nothing
    peer_nic_mbps: int | None  # what the peer's says
    sent_mbps: float  # as fast as the sender could
    mbps: float  # what of it got through
    at_least: bool  # one of the two hosts was busy: the link may carry more
    loss: float | None  # share lost at a lower rate; None: the receiver lost some itself
    loss_mbps: float  # that rate
    rtt_us: float | None  # idle round trip, microseconds
    queue_median_us: float  # time in queues at full rate, microseconds
    queue_p99_us: float  # the same of the slowest hundredth
    largest: int  # longest IP packet that gets through, bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnInfo:
    """One QP: its send window and its receive window. PSNs are 24 bits."""

    peer: str
    qp: int
    qpn: int  # our QP number, which the peer writes into BTH
    remote_qpn: int
    state: QpState
    next_psn: int
    una_psn: int  # oldest unacknowledged PSN
    outstanding: int
    mpr: int  # most packets that may be outstanding
    srtt_us: float | None
    rx_next_psn: int  # next PSN to be delivered in order
    rx_waiting: int  # packets held behind a gap
    retransmits: int
    framing: Framing | None = None  # of data, both ways; None: no session yet
    trims: bool = False  # switches on the ways to the peer trim data
    window_bytes: int | None = None  # congestion window; None: not begun, or no congestion control
    inflight_bytes: int = 0  # sent and not acknowledged
    backlog_bytes: int = 0  # waits for the window
    delay_us: float | None = None  # queueing delay, smoothed
    target_us: float | None = None  # what the delay should be
    error: str | None = None  # why it is in the state ERROR
    granted: int | None = None  # packets that the peer has room for; None: it has not said


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter of the data path or the daemon; ``help`` is one sentence."""

    name: str
    value: int
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """Messages to the daemon that were refused because of their source, or in its name.

    ``source`` is a peer, ``(planes)`` for all other addresses of the planes, or ``(elsewhere)``.
    ``beyond_budget`` counts those beyond what the source may send, ``forged`` those without the
    right form, mac1 or index.
    """

    source: str
    beyond_budget: int
    forged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsInfo:
    """All counters, in the order in which a packet reaches them, and the refused by source.

    ``sources`` lists those that something was refused of.
    """

    counters: list[Counter]
    sources: list[SourceInfo] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSample:
    """One sample for ``mrcctl monitor``. Rates are differences between two samples' counters."""

    monotonic_ns: int  # when the sample was taken, CLOCK_MONOTONIC
    status: Status
    peers: list[PeerInfo]  # all, or at most the requested number
    stats: StatsInfo
    missed: int = 0  # earlier samples that this caller was too slow to receive
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A key of the configuration whose value differs in another text."""

    path: str  # "transport.probe_pps", "peer.h2.allowed"
    old: str | None  # as written in the file; None: absent
    new: str | None
    how: HowApplied  # at once, or only by a restart of the daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanges:
    """The changes that a text would make, or has made."""

    changes: list[ConfigChange]
    confirm_s: int | None = None  # the changes are applied and must be confirmed within this time


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachReport:
    """The parts that ``mrcctl datapath detach`` removed or could not remove, one per line."""

    detached: list[str]
    failed: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInfo:
    """What loses, delays or changes packets, inferred from all hosts' survey probes.

    In a fabric it is a link or a switch; elsewhere a NIC, the way between two, the network of a
    plane, or a host, with the direction if it is one: "a:eth1 sending".
    """

    element: str  # "p1t0-1:p1t1-2", "h1:p1", "p1t1-2"; "a:eth1", "a:eth1 to b:eth1"
    kind: FaultKind
    loss: float  # 0 to 1: in each direction of a link, or of all packets that enter a switch
    loss_low: float  # lower bound, about 99 %
    loss_high: float  # upper bound, about 99 %
    extra_us: float  # slow: excess time of one crossing
    since_s: float  # time since the fault was first found
    evidence: list[str]
    alternatives: list[list[str]]  # sets of elements that would explain exactly the same instead


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyInfo:
    """The survey behind the fault list."""

    enabled: bool
    reason: str  # why it is not enabled; empty if it is
    pps: int  # probes a second of this host
    loops: int  # loops of this host; without a fabric, ways from it
    trips: str  # what these are: "loops" or "ways"
    arrived: int  # ways: probes of peers that have arrived here since mrcd began
    lost: int  # ways: probes to this host that were lost since mrcd began
    queued: int  # ways: of these, those that a full queue took, which are no fault
    hosts_heard: int  # peers whose counts were received lately
    hosts_total: int
    accepted: int  # messages from peers
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementInfo:
    """A link or a switch of the fabric, or a NIC of a host, as the survey sees it."""

    name: str
    kind: ElementKind
    plane: int  # -1: a host, with all of its NICs, or a network that this host is not on
    state: ElementState
    loss: float
    sent: int  # probes of the window that crossed it
    latency_us: float | None  # one crossing of a link; None for a switch, or if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpot:
    """The T0 to which a host is connected."""

    name: str
    t0: int
    forwards: bool = False  # it hands on what other hosts send each other
    state: ElementState | None = None  # of a host that is cabled; None: none of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class NicSpot:
    """A NIC on a network, where there is no fabric."""

    host: str
    nic: str
    carrier: bool  # as its host has said last
    rate_mbps: int = 0  # 0: not known, as of other hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInfo:
    """A network between hosts that do not share all of them: a cable where it has two NICs."""

    name: str
    nics: list[NicSpot]
    state: ElementState
    loss: float
    towards: str | None = None  # the host to which it loses, if it does so in one direction only


@dataclass(frozen=True, slots=True, kw_only=True)
class WayInfo:
    """What probes from one host to another did in a plane, where there is no fabric."""

    sender: str
    receiver: str
    plane: int
    sent: int  # of the window
    lost: int  # without those that a full queue took


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePeer:
    """The name of the peer with a certain index in captured records."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureInfo:
    """The data needed to interpret the records of a capture (bpf/mrc_capture.h)."""

    host: str
    encap: int  # one of MRC_ENCAP_ in bpf/mrc_wire.h
    udp_port: int  # of MRC; the hand-shake uses another
    cell_port: int | None = None  # of cells in UDP; null: cells are IP in IPv6
    interfaces: list[str]  # of the planes
    peers: list[CapturePeer]
    qps_per_peer: int  # the QPs of peer k start at k times this number


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedPacket:
    """A packet as ``mrcctl capture --json`` prints it. Unknown values are null."""

    time_ns: int  # CLOCK_REALTIME
    direction: Direction
    plane: int
    interface: str
    length: int  # bytes on the wire, including the Ethernet header
    kind: str  # data/cell/sack/nack/probe/solicit/survey/request/response/hand-shake/other
    peer: str | None
    qp: int | None  # index among the peer's QPs, from 0
    ev: int | None
    t1: int | None  # from 1; 0: its path crosses no T1, or unknown (ecmp)
    psn: int | None  # its own or first (data, cell), last acknowledged (SACK), concerned (NACK)
    retransmit: bool
    verdict: str  # in order, reordered, duplicate, or the counter that names its fate
    psn_last: int | None = None  # of a cell's last packet
    attempt: int | None = None  # of a cell; 0: the first sending, 3: the fourth or a later one


@dataclass(frozen=True, slots=True, kw_only=True)
class HookInfo:
    """A place where a program of ours sees packets."""

    interface: str
    place: str  # "ingress" or "egress" of tc, or "xdp"
    program: str
    ident: int | None  # the kernel's number of the program that is there; None: it is not attached
    before: list[str]  # programs of others that see the packets first


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramInfo:
    """A loaded program."""

    name: str
    ident: int  # the kernel's number


@dataclass(frozen=True, slots=True, kw_only=True)
class MapInfo:
    """A map of the data path."""

    name: str
    ident: int  # the kernel's number
    entries: int  # room for this number
    bytes: int  # memory, as the kernel counts it


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
    hosts: list[HostSpot]  # without a fabric, t0 is 0
    elements: list[ElementInfo]
    ways: list[WayInfo]  # without a fabric: those that lose, and the first others
    networks: list[NetworkInfo]  # of hosts that do not share all of them
    loose: list[NicSpot]  # their NICs whose far end is not known


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


class PathSumsReply(TypedDict):
    """The paths of ListPaths, summed up by peer and plane."""

    schema_version: int
    sums: list[PathSums]


class DenyReply(TypedDict):
    """Reply of Deny and Allow: whether anything changed, the rules now in force, and why they would
    not survive a restart of mrcd, if so."""

    changed: bool
    rules: list[DeniedInfo]
    unsaved: str | None


class DeniedReply(TypedDict):
    """Reply of ListDenied."""

    schema_version: int
    rules: list[DeniedInfo]


class WatchPathsReply(TypedDict):
    """Each reply of WatchPaths; the first has no event and means that the watch has begun."""

    event: PathEvent | None


class PlaneReply(TypedDict):
    """Reply of Drain and Undrain: the plane as it is now."""

    plane: PlaneInfo


class ProbesReply(TypedDict):
    """Reply of ProbePaths."""

    schema_version: int
    probes: list[PathProbe]


class RatesReply(TypedDict):
    """Reply of MeasurePlane: to the peer, and from it."""

    schema_version: int
    rates: list[PlaneRate]


class RotateReply(TypedDict):
    """Reply of RotateKeys: peers with new keys, and those that did not answer in time."""

    schema_version: int
    rotated: list[str]
    unanswered: list[str]


class LogReply(TypedDict):
    """Reply of SetLogLevel: the level of now, and the one before."""

    schema_version: int
    level: LogLevel
    before: LogLevel


class ForgetReply(TypedDict):
    """Reply of ForgetPeer: the host that is no peer any more."""

    schema_version: int
    peer: str


class InviteReply(TypedDict):
    """Reply of Invite: the invitation, which is a secret, for whom, and its end (Unix time).

    known_by: how a host of this name is known now, whose key will not count any more once the
    invitation is used; None: no such host is.
    """

    schema_version: int
    invitation: str
    host: str
    end_s: int
    known_by: KnownBy | None


class RevokeReply(TypedDict):
    """Reply of RevokePeer: the host that is out.

    known_by: how it was known, None if it was not. withdrawn: open invitations that were withdrawn.
    secret_known: it may know the secret, and can come back by another name until that is changed.
    """

    schema_version: int
    peer: str
    known_by: KnownBy | None
    withdrawn: int
    secret_known: bool


class ConnectionsReply(TypedDict):
    """Reply of ListConnections."""

    schema_version: int
    connections: list[ConnInfo]


class StatsReply(TypedDict):
    """Reply of GetStats."""

    stats: StatsInfo


class DatapathReply(TypedDict):
    """Reply of GetDatapath: what is attached, loaded and pinned."""

    schema_version: int
    bpffs: str
    hooks: list[HookInfo]
    programs: list[ProgramInfo]
    maps: list[MapInfo]


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
