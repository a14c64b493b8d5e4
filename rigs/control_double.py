# SPDX-License-Identifier: GPL-2.0-only
"""A double of the daemon: a real control server with made-up contents."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import tomllib
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from mrcd.config.config import ConfigError
from mrcd.config.diff import CannotApply
from mrcd.config.network import bad_name
from mrcd.control.access import Access
from mrcd.control.server import ControlServer
from mrcd.datapath.capture import CannotCapture, Rings, Wanted
from mrcd.fabric import description
from mrcd.handshake import invitation
from mrcd.handshake.authority import Authority
from mrcd.handshake.certificate import How
from mrcd.handshake.identity import Secret
from mrcd.handshake.invitation import Invitation
from mrcd.measure.measure import CannotMeasure
from mrcd.model import (
    SCHEMA_VERSION,
    CaptureInfo,
    CapturePeer,
    ConfigChange,
    ConfigChanges,
    ConnInfo,
    Counter,
    DaemonState,
    DatapathInfo,
    DatapathReply,
    DeniedInfo,
    ElementInfo,
    ElementKind,
    FaultInfo,
    FaultsReply,
    HookInfo,
    HostSpot,
    MapInfo,
    MapReply,
    Mrc0Info,
    PathEvent,
    PathInfo,
    PathProbe,
    PeerInfo,
    PlaneInfo,
    PlaneRate,
    ProgramInfo,
    StatsInfo,
    Status,
    SurveyInfo,
)
from mrcd.peers.trust import Revoked
from mrcd.planes.usable import LastPlane
from mrcd.report.faults import STATES
from mrcd.rules.denylist import CutsOff, NotDenied
from mrcd.rules.elements import Rule, parse
from mrcd.wire.abi import CAPTURE
from rigs.ring_double import PAGE, SIZE, Producer

PEERS = ("h2", "h3")
PUBLIC_KEY = "DW5kW0zL+5uhrsO1Qn1qv/T+u/XIR9sN9zoKvFEqVAQ="
OWN = "/nowhere/mrcd.toml"
"""The daemon's own configuration file."""
AUTHORITY = Authority(Secret(bytes(range(32))))
CONFIG = "[transport]\nprobe_pps = 2000\n"


NOBODY = Access(uid=65534, group="nosuch", gid=None)
"""A rule under which only root and the user nobody may write."""


class FakeConfiguration:
    """A configuration of probe_pps, which changes at once, and keys that reset QPs."""

    def __init__(self) -> None:
        self.current = CONFIG
        self.unconfirmed: str | None = None  # the configuration that would come back
        self.forgotten: str | None = None  # a peer

    def text(self) -> str:
        return self.current

    async def forget(self, name: str) -> None:
        self.forgotten = name

    @property
    def trust(self) -> FakeConfiguration:
        return self

    def how_known(self, name: str) -> How | None:
        return "secret" if name in PEERS else None

    def invite(self, name: str, hours: float) -> Invitation:
        if wrong := bad_name(name):
            raise CannotApply(f"{name!r} {wrong}")
        if name in PEERS:
            raise CannotApply(f"{name} is in the files of this host")
        end = 1_800_000_000 + int(hours * 3600)
        return invitation.make(AUTHORITY, name, "h1", ident=bytes(16), end_s=end)

    async def revoke(self, name: str, *, force: bool) -> Revoked:
        if name not in PEERS and not force:
            raise CannotApply(f"no host {name} is known here")
        return Revoked(name, "secret" if name in PEERS else None, 0)

    def diff(self, text: str) -> ConfigChanges:
        if "probe_pps" not in text:
            problems = ["transport.probe_pps: is missing", "it is all wrong"]
            raise ConfigError([*(f"{OWN}: {one}" for one in problems), "f.toml: t0: 0: is too few"])
        try:
            new = tomllib.loads(text)["transport"]
            assert isinstance(new, dict)
        except (ValueError, RecursionError, LookupError, AssertionError) as error:
            raise ConfigError([f"{OWN}: is not valid TOML: {error}"]) from None
        old = tomllib.loads(self.current)["transport"]
        return ConfigChanges(
            changes=[
                ConfigChange(
                    path=f"transport.{key}",
                    old=str(old[key]) if key in old else None,
                    new=str(new[key]) if key in new else None,
                    how="live" if key == "probe_pps" else "restart",
                )
                for key in sorted(old.keys() | new.keys())
                if old.get(key) != new.get(key)
            ]
        )

    async def apply(self, text: str, confirm_s: int) -> ConfigChanges:
        found = self.diff(text)
        if self.unconfirmed is not None:
            raise CannotApply("another configuration waits to be confirmed")
        if found.changes:
            self.unconfirmed = self.current if confirm_s else None
            self.current = text
            return replace(found, confirm_s=confirm_s or None)
        return found

    def confirm(self) -> None:
        if self.unconfirmed is None:
            raise CannotApply("nothing waits to be confirmed")
        self.unconfirmed = None


class FakeSource:
    """Two planes, two peers, one QP with each; the counters grow with every ``status()``."""

    def __init__(self, state: DaemonState = "ok", reasons: tuple[str, ...] = ()) -> None:
        self.state: DaemonState = state
        self.reasons = list(reasons)
        self.readings = 0
        self.broken: Exception | None = None
        self.has_keys = True
        self.survey_off = ""
        self.rejected = 0
        self.healthy_fabric = False
        self.healthy_until = 0  # number of the question that is answered with faults
        self.asked_for_faults = 0
        self.fabric_planes, self.t0s, self.t1s = 2, 2, 2
        self.rules: list[DeniedInfo] = []
        self.events: list[PathEvent] = []
        self.watchers = 0
        self.drained: set[int] = set()
        self.wrong: dict[int, str] = {}  # by plane: no path gets through
        self.measured: dict[int, str] = {}  # by plane: what falls short
        self.standby: dict[int, int] = {}  # by plane: peers to which it stands in
        self.full = False  # the disk
        self.records: list[bytes] = []  # those of a capture
        self.lost_records = 0  # on plane 1
        self.wanted: Wanted | None = None
        self.no_capture = ""
        self.no_measure: dict[int, str] = {}  # by plane: why it cannot be measured
        self.lost = 0  # number of each path's probes that are lost
        self.configuration = FakeConfiguration()
        self.config_path = OWN

    def status(self) -> Status:
        self.readings += 1
        return Status(
            host="h1",
            version="0.1.0",
            state=self.state,
            reasons=self.reasons,
            pid=4242,
            config=self.config_path,
            uptime_s=3725.5,
            mrc0=Mrc0Info(
                name="mrc0",
                mtu=8872,
                addresses=["10.99.0.1/24", "fd99::1/64"],
                tx_packets=7000,
                rx_bytes=123,
                speed_mbps=100_000,
            ),
            planes=[self._plane(0), replace(self._plane(1), carrier=False, usable=False)],
            peers_total=2,
            peers_up=1,
            secured=self.has_keys,
            public_key=PUBLIC_KEY if self.has_keys else None,
            datapath=DatapathInfo(
                xdp="native", tc="tcx", tick="idle", routing="srv6", bpffs="/nowhere/bpf"
            ),
        )

    def _plane(self, index: int) -> PlaneInfo:
        return PlaneInfo(
            index=index,
            interface=f"plane{index}",
            up=True,
            carrier=True,
            usable=True,
            gateway="fe80::1",
            gateway_mac="02:00:00:00:00:01",
            tx_packets=1000 * self.readings,
            tx_bytes=9_000_000 * self.readings,
            rx_packets=500 * self.readings,
            rx_bytes=50_000 * self.readings,
            drained=index in self.drained,
            unsaved="the disk is full" if self.full else None,
            wrong=self.wrong.get(index),
            unreached=int(index in self.wrong),
            mtu=9000,
            address=f"fd00:{index}:1::1",
            measured=self.measured.get(index),
            standby=index in self.standby,
            standing_in=self.standby.get(index, 0),
        )

    async def datapath(self) -> DatapathReply:
        await asyncio.sleep(0)
        return {
            "schema_version": SCHEMA_VERSION,
            "bpffs": "/sys/fs/bpf/mrcd",
            "hooks": [
                HookInfo(
                    interface="mrc0p", place="egress", program="mrc_spray", ident=17, before=[]
                ),
                HookInfo(
                    interface="eth2",
                    place="ingress",
                    program="mrc_receive",
                    ident=None,
                    before=["cil_from_netdev (program 99)"],
                ),
            ],
            "programs": [ProgramInfo(name="mrc_spray", ident=17)],
            "maps": [MapInfo(name="qps", ident=5, entries=64, bytes=1_048_576)],
        }

    def plane_indices(self) -> list[int]:
        return [plane.index for plane in self.status().planes]

    def drain(self, plane: int, force: bool) -> PlaneInfo:
        if plane == 0 and not force:
            raise LastPlane("plane 0 is the last usable one")
        self.drained.add(plane)
        return self._plane(plane)

    def undrain(self, plane: int) -> PlaneInfo:
        self.drained.discard(plane)
        return self._plane(plane)

    @property
    def secured(self) -> bool:
        return self.has_keys

    async def rotate(self, peer: str | None) -> tuple[list[str], list[str]]:
        asked = [name for name in PEERS if peer in (None, name)]
        return [n for n in asked if n == "h2"], [n for n in asked if n != "h2"]

    async def probe(self, peer: str, plane: int | None, count: int) -> list[PathProbe]:
        return [
            PathProbe(
                peer=peer,
                ev=each << 28 | 1 << 16,
                plane=each,
                t1=1,
                usids="fcbb:bb00:2001:2801:2002:3001::",
                sent=count,
                answered=count - self.lost,
                min_us=30.0 if count > self.lost else None,
                median_us=40.0 if count > self.lost else None,
                max_us=90.0 if count > self.lost else None,
            )
            for each in ((0, 1) if plane is None else (plane,))
        ]

    async def measure(self, peer: str, plane: int) -> list[PlaneRate]:
        if plane in self.no_measure:
            raise CannotMeasure(self.no_measure[plane])
        out = PlaneRate(
            peer=peer,
            plane=plane,
            interface=f"plane{plane}",
            direction="tx",
            nic_mbps=10000,
            peer_nic_mbps=10000,
            sent_mbps=5200.0,
            mbps=95.4,
            at_least=False,
            loss=0.0,
            loss_mbps=76.3,
            rtt_us=210.0,
            queue_median_us=20100.0,
            queue_p99_us=21000.0,
            largest=1500,
        )
        return [out, replace(out, direction="rx", mbps=9300.0, loss=None, queue_median_us=40.0)]

    def peer_parts(self) -> Iterator[list[PeerInfo]]:
        for peer in self.peers():
            yield [peer]

    def peers(self) -> list[PeerInfo]:
        heard = PeerInfo(
            name="h2",
            state="established",
            addresses=["10.99.0.2/32"],
            mtu=8872,
            qps=4,
            last_heard_s=0.5,
            planes_usable=[0],
            shares=[1.0, 0.5],
            planes_srtt_us=[81.5, None],
            tx_packets=1000,
            rx_packets=500,
        )
        unheard = replace(
            heard,
            name="h3",
            state="connecting",
            addresses=["10.99.0.3/32"],
            last_heard_s=None,
            planes_usable=[],
            shares=[1.0, 1.0],
            planes_srtt_us=[None, None],
        )
        return [heard, unheard]

    def foremost_peers(
        self, count: int, before: Mapping[str, int]
    ) -> tuple[list[PeerInfo], Mapping[str, int]]:
        peers = self.peers()
        return peers[:count], {peer.name: peer.tx_packets + peer.rx_packets for peer in peers}

    def peer_names(self) -> list[str]:
        return [peer.name for peer in self.peers()]

    def paths(self, peer: str | None) -> list[PathInfo]:
        return [
            PathInfo(
                peer=name,
                qp=0,
                ev=0x1001_0000,
                plane=1,
                t1=1,
                usids="fcbb:bb00:2001:2801:2002:3001::",
                state="ASSUMED_BAD",
                role="backup",
                slow=False,
                sent=100,
                acked=90,
                lost=10,
                marked=3,
                srtt_us=None,
            )
            for name in PEERS
            if peer in (None, name)
        ]

    def connections(self, peer: str | None) -> list[ConnInfo]:
        if self.broken is not None:
            raise self.broken
        return [
            ConnInfo(
                peer=name,
                qp=0,
                qpn=0x11,
                remote_qpn=0x12,
                state="RTS",
                next_psn=200,
                una_psn=190,
                outstanding=10,
                mpr=2048,
                srtt_us=88.25,
                rx_next_psn=77,
                rx_waiting=3,
                retransmits=7,
            )
            for name in PEERS
            if peer in (None, name)
        ]

    def stats(self) -> StatsInfo:
        return StatsInfo(
            counters=[
                Counter(name="spray.sent", value=1000 * self.readings, help="Packets sprayed."),
                Counter(name="drop.short", value=0, help="Packets too short for their headers."),
            ]
        )

    async def deny(self, element: str, peer: str | None, *, force: bool) -> bool:
        found = parse(description.generate(hosts=3), element)
        if found.kind == "peer" and not force:
            raise CutsOff(Rule(found, peer), ["h2"])
        rule = DeniedInfo(element=found.name, kind=found.kind, peer=peer, paths=8)
        if rule in self.rules:
            return False
        self.rules.append(rule)
        return True

    async def allow(self, element: str, peer: str | None) -> None:
        kept = [rule for rule in self.rules if (rule.element, rule.peer) != (element, peer)]
        if kept == self.rules:
            raise NotDenied(f"{element} is not denied; denied: p1t1-2")
        self.rules = kept

    def denied(self) -> list[DeniedInfo]:
        return self.rules

    @property
    def denied_unsaved(self) -> str | None:
        return "the disk is full" if self.full else None

    async def watch_paths(self) -> AsyncGenerator[PathEvent | None, None]:
        self.watchers += 1
        try:
            yield None
            for event in self.events:
                yield event
            await asyncio.Event().wait()
        finally:
            self.watchers -= 1

    def capture_info(self) -> CaptureInfo:
        return CaptureInfo(
            host="h1",
            encap=0,
            udp_port=4971,
            interfaces=["plane0", "plane1"],
            peers=[CapturePeer(index=0, name="h2"), CapturePeer(index=1, name="h3")],
            qps_per_peer=4,
        )

    async def capture(self, wanted: Wanted) -> AsyncGenerator[Rings, None]:
        if self.no_capture:
            raise CannotCapture(self.no_capture)
        self.wanted = wanted
        self.watchers += 1
        ring = Producer()
        for record in self.records:
            ring.put(record)
        state = os.memfd_create("state")
        lost = (0, self.lost_records, 0, 0, 0, 0, 0, 0)
        os.write(state, CAPTURE.structs["mrc_capturing"].pack(lost=lost).ljust(PAGE, b"\0"))
        try:
            yield Rings(ring.fd, state, SIZE)
            await asyncio.Event().wait()
        finally:
            os.close(ring.fd)
            os.close(state)
            self.watchers -= 1

    # ---- the fabric: two planes of two T0s and two T1s

    @property
    def _survey(self) -> SurveyInfo:
        return SurveyInfo(
            enabled=not self.survey_off,
            reason=self.survey_off,
            pps=200,
            loops=10,
            trips="loops",
            arrived=0,
            lost=0,
            queued=0,
            hosts_heard=1,
            hosts_total=2,
            accepted=40,
            rejected=self.rejected,
        )

    def faults(self) -> FaultsReply:
        lossy = FaultInfo(
            element="p1t0-1:p1t1-2",
            kind="loss",
            loss=0.041,
            loss_low=0.032,
            loss_high=0.104,
            extra_us=0.0,
            since_s=12.0,
            evidence=["h1 - p1t0-1 - p1t1-2 and back: lost 21 of 264"],
            alternatives=[],
        )
        dead = replace(
            lossy,
            element="p0t1-1",
            kind="dead",
            loss=1.0,
            loss_low=0.97,
            loss_high=1.0,
            alternatives=[["p0t0-1:p0t1-1", "p0t0-2:p0t1-1"]],
        )
        slow = replace(lossy, element="h2:p1", kind="slow", extra_us=5400.0)
        self.asked_for_faults += 1
        healthy = self.healthy_fabric or self.asked_for_faults < self.healthy_until
        found = [] if healthy else [dead, lossy, slow]
        return {"schema_version": 1, "survey": self._survey, "faults": found}

    def fabric_map(self) -> MapReply:
        t0s, t1s = range(1, self.t0s + 1), range(1, self.t1s + 1)
        elements: list[ElementInfo] = []

        def add(name: str, kind: ElementKind, plane: int, latency: float | None) -> None:
            fault = {each.element: each for each in self.faults()["faults"]}.get(name)
            elements.append(
                ElementInfo(
                    name=name,
                    kind=kind,
                    plane=plane,
                    state=STATES[fault.kind] if fault else "ok",
                    loss=fault.loss if fault else 0.0,
                    sent=100,
                    latency_us=latency,
                )
            )

        for plane in range(self.fabric_planes):
            for j in t0s:
                add(f"p{plane}t0-{j}", "t0", plane, None)
                add(f"h{j}:p{plane}", "nic", plane, 12.0)
                for m in t1s:
                    add(f"p{plane}t0-{j}:p{plane}t1-{m}", "link", plane, 23.4)
            for m in t1s:
                add(f"p{plane}t1-{m}", "t1", plane, None)
        return {
            "schema_version": 1,
            "survey": self._survey,
            "planes": self.fabric_planes,
            "t0": self.t0s,
            "t1": self.t1s,
            "hosts": [HostSpot(name=f"h{j}", t0=j) for j in t0s],
            "elements": elements,
            "ways": [],
            "networks": [],
            "loose": [],
        }


def server_of(
    path: Path,
    source: FakeSource,
    *,
    rule: Access | None = None,
    activated: socket.socket | None = None,
) -> ControlServer:
    """The control server of a double."""
    return ControlServer(path, source, source.configuration, rule=rule, activated=activated)


@contextlib.contextmanager
def serving(path: Path, source: FakeSource, rule: Access | None = None) -> Iterator[None]:
    """Serve ``source`` on ``path`` from another thread, as another process would.

    `rule` decides which callers may write; the default is that of this host.
    """
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        async with server_of(path, source, rule=rule):
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        assert ready.wait(10), "the control server did not start"
        yield
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
        loop.close()
