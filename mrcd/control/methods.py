# SPDX-License-Identifier: GPL-2.0-only
"""The methods of the varlink interface ``io.mrcd.Control``.

They ask the report (mrcd/report/) and what runs (mrcd/running.py).

docs/api.md is generated from this module. No ``from __future__ import annotations`` here:
asyncvarlink builds the interface from the annotations and needs the types themselves.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict, TypeVar

from asyncvarlink import FileDescriptor, VarlinkInterface, varlinkmethod
from asyncvarlink.serviceinterface import InvalidParameter

from mrcd.config.config import ConfigError
from mrcd.config.diff import CannotApply
from mrcd.control.access import writes
from mrcd.control.errors import (
    BadConfig,
    BadElement,
    CannotCapture,
    CannotMeasure,
    Internal,
    LastUsablePlane,
    NoKeys,
    NoPathLeft,
    NoSuchPeer,
    NoSuchPlane,
    NotApplicable,
    NotPermitted,
)
from mrcd.control.parts import in_parts
from mrcd.datapath import capture
from mrcd.handshake.invitation import HOURS, HOURS_MAX
from mrcd.measure import measure
from mrcd.model import (
    INTERFACE,
    SCHEMA_VERSION,
    CaptureInfo,
    ChangesReply,
    ConfigReply,
    ConnectionsReply,
    DatapathReply,
    DeniedReply,
    DenyReply,
    Direction,
    FaultsReply,
    ForgetReply,
    InviteReply,
    LogLevel,
    LogReply,
    MapReply,
    MonitorReply,
    MonitorSample,
    PathsReply,
    PathState,
    PeerInfo,
    PeersReply,
    PlaneReply,
    ProbesReply,
    RatesReply,
    RevokeReply,
    RotateReply,
    StatsReply,
    StatusReply,
    WatchPathsReply,
)
from mrcd.planes.usable import LastPlane
from mrcd.report.report import Report
from mrcd.rules.denylist import CutsOff, NotDenied
from mrcd.rules.elements import NoSuchElement
from mrcd.running import Running
from mrcd.service.loglevel import Level

_Item = TypeVar("_Item")

INTERVAL_MIN_MS = 10  # a sample reads every map once; a shorter interval would only measure itself
INTERVAL_MAX_MS = 3_600_000
SHARED_NS = 5_000_000  # a sample up to this age is shared by several callers
SLICE_S = 0.002  # of a long list, before the event loop's other tasks get a turn
PROBES_MAX = 100  # for each path; this takes a second
CONFIRM_MAX_S = 3600
LOG_MAX_S = 86_400
SNAPLEN_MAX = 262_144  # as in tcpdump; longer than any packet


class CaptureReply(TypedDict):
    """Reply of Capture. The two maps are passed as file descriptors; the numbers index those."""

    capture: CaptureInfo
    ring_bytes: int
    records: FileDescriptor
    state: FileDescriptor


async def _parts(rows: Iterable[Sequence[_Item]]) -> AsyncIterator[list[_Item]]:
    """Yield the rows of a list, as many as are found in SLICE_S; other tasks get turns between.

    The last part may be empty.
    """
    part: list[_Item] = []
    since = time.monotonic()
    for some in rows:
        part += some
        if time.monotonic() > since + SLICE_S:
            yield part
            await asyncio.sleep(0)
            part, since = [], time.monotonic()
    yield part


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn a refused configuration into the error reply that names the problems or the reason."""
    try:
        yield
    except ConfigError as error:
        raise BadConfig({"problems": [*error.problems]}) from error
    except CannotApply as error:
        raise NotApplicable(reason=str(error)) from error


class Control(VarlinkInterface, name=INTERFACE):
    """What mrcd on this host is doing, and which paths it may use."""

    errors = (
        NoSuchPeer,
        NoSuchPlane,
        LastUsablePlane,
        BadElement,
        NoPathLeft,
        BadConfig,
        NotApplicable,
        NotPermitted,
        CannotCapture,
        CannotMeasure,
        NoKeys,
        Internal,
    )

    def __init__(self, report: Report, running: Running) -> None:
        self._report = report
        self._running = running
        self._shared: MonitorSample | None = None
        self._level = Level()

    @varlinkmethod
    def GetStatus(self) -> StatusReply:
        """Return the state of the daemon, mrc0, the planes and the data path."""
        return {"status": self._report.status()}

    @in_parts
    @varlinkmethod
    async def ListPeers(self) -> AsyncIterator[PeersReply]:
        """Return every configured peer."""
        async for part in _parts(self._report.peer_parts()):
            yield {"schema_version": SCHEMA_VERSION, "peers": part}

    @in_parts
    @varlinkmethod
    async def ListPaths(
        self, *, peer: str | None = None, plane: int | None = None, state: PathState | None = None
    ) -> AsyncIterator[PathsReply]:
        """Return every path (an EV of a QP) to one peer or to all, of all planes and states or of
        the given one."""
        self._check_peer(peer)
        all_paths = map(self._report.paths, self._each(peer))
        chosen = (
            [p for p in paths if plane in (None, p.plane) and state in (None, p.state)]
            for paths in all_paths
        )
        async for part in _parts(chosen):
            yield {"schema_version": SCHEMA_VERSION, "paths": part}

    @in_parts
    @varlinkmethod
    async def ListConnections(self, *, peer: str | None = None) -> AsyncIterator[ConnectionsReply]:
        """Return every QP of one peer or of all."""
        self._check_peer(peer)
        async for part in _parts(map(self._report.connections, self._each(peer))):
            yield {"schema_version": SCHEMA_VERSION, "connections": part}

    async def _peers(self) -> list[PeerInfo]:
        return [peer async for part in _parts(self._report.peer_parts()) for peer in part]

    def _each(self, peer: str | None) -> Sequence[str]:
        """Return the name of one peer or of each."""
        return self._report.peer_names() if peer is None else [peer]

    @varlinkmethod
    async def GetDatapath(self) -> DatapathReply:
        """Return the programs and maps in the kernel, and where the programs are attached."""
        return await self._report.datapath()

    @varlinkmethod
    def GetStats(self) -> StatsReply:
        """Return all counters of the data path and the daemon."""
        return {"stats": self._report.stats()}

    @writes
    @varlinkmethod
    async def Deny(
        self, *, element: str, peer: str | None = None, force: bool = False
    ) -> DenyReply:
        """Deny the paths, to one peer or to all, that cross an element: an EV (0x10020000), plane
        (p1), switch (p1t1-2), link (p1t0-1:p1t1-2), NIC link (h2:p1) or peer (h2). A rule that
        would leave no path to a peer is refused unless force is set."""
        self._check_peer(peer)
        try:
            changed = await self._report.deny(element, peer, force=force)
        except NoSuchElement as error:
            raise BadElement({"element": element, "reason": str(error)}) from error
        except CutsOff as error:
            raise NoPathLeft({"element": element, "peers": [*error.peers]}) from error
        return self._denied(changed)

    @writes
    @varlinkmethod
    async def Allow(self, *, element: str, peer: str | None = None) -> DenyReply:
        """Remove the rule that Deny of the same element and peer added."""
        self._check_peer(peer)
        try:
            await self._report.allow(element, peer)
        except (NoSuchElement, NotDenied) as error:
            raise BadElement({"element": element, "reason": str(error)}) from error
        return self._denied(True)

    def _denied(self, changed: bool) -> DenyReply:
        rules, unsaved = self._report.denied(), self._report.denied_unsaved
        return {"changed": changed, "rules": rules, "unsaved": unsaved}

    @varlinkmethod
    def ListDenied(self) -> DeniedReply:
        """Return the rules of the denylist."""
        return {"schema_version": SCHEMA_VERSION, "rules": self._report.denied()}

    @varlinkmethod(delay_generator=False)
    async def WatchPaths(self) -> AsyncIterator[WatchPathsReply]:
        """Send a reply without an event at once, then one for each path that comes into use or goes
        out of use, until the caller hangs up. Must be called with "more"."""
        async with contextlib.aclosing(self._report.watch_paths()) as events:
            async for event in events:
                yield {"event": event}

    # It changes nothing for packets, but reveals their contents.
    @writes
    @varlinkmethod(delay_generator=False)
    async def Capture(
        self,
        *,
        snaplen: int = SNAPLEN_MAX,
        plane: int | None = None,
        peer: str | None = None,
        direction: Direction | None = None,
        survey: bool = False,
    ) -> AsyncIterator[CaptureReply]:
        """Record packets until the caller hangs up, and send one reply when the recording has
        begun. The reply carries two file descriptors of BPF maps, to be mapped into memory. One
        is a ring buffer of struct mrc_capture, each followed by the packet's first snaplen bytes,
        or 192 if snaplen is smaller. The other holds one struct mrc_capturing, which counts packets
        that found no room. Survey probes are recorded only if survey is set. Must be called with
        "more"."""
        self._check_peer(peer)
        if plane is not None:
            self._check_plane(plane)
        if not 0 <= snaplen <= SNAPLEN_MAX:
            raise InvalidParameter(parameter="snaplen")
        wanted = capture.Wanted(snaplen, plane, peer, direction, survey)
        try:
            async with contextlib.aclosing(self._report.capture(wanted)) as begun:
                async for rings in begun:
                    yield {
                        "capture": self._report.capture_info(),
                        "ring_bytes": rings.size,
                        "records": FileDescriptor(os.dup(rings.records), should_close=True),
                        "state": FileDescriptor(os.dup(rings.state), should_close=True),
                    }
        except capture.CannotCapture as error:
            raise CannotCapture(reason=str(error)) from error

    @writes
    @varlinkmethod
    def Drain(self, *, plane: int, force: bool = False) -> PlaneReply:
        """Take a plane out of service: nothing is sent on it, and peers are told not to send to it.
        Draining the last usable plane is refused unless force is set."""
        self._check_plane(plane)
        try:
            return {"plane": self._report.drain(plane, force)}
        except LastPlane as error:
            raise LastUsablePlane(plane=plane) from error

    @writes
    @varlinkmethod
    def Undrain(self, *, plane: int) -> PlaneReply:
        """Put a plane back into service, as far as its link allows."""
        self._check_plane(plane)
        return {"plane": self._report.undrain(plane)}

    @writes
    @varlinkmethod
    async def ProbePaths(
        self, *, peer: str, plane: int | None = None, count: int = 10
    ) -> ProbesReply:
        """Send count (1 to 100) EV probes over every path to a peer, on one plane or on all."""
        self._check_peer(peer)
        if plane is not None:
            self._check_plane(plane)
        if not 1 <= count <= PROBES_MAX:
            raise InvalidParameter(parameter="count")
        probes = await self._report.probe(peer, plane, count)
        return {"schema_version": SCHEMA_VERSION, "probes": probes}

    @writes
    @varlinkmethod
    async def MeasurePlane(self, *, peer: str, plane: int) -> RatesReply:
        """Fill a plane to a peer and from it for about a second each, which takes its whole
        bandwidth, and return what got through. One measurement at a time is possible."""
        self._check_peer(peer)
        self._check_plane(plane)
        try:
            rates = await self._report.measure(peer, plane)
        except measure.CannotMeasure as error:
            raise CannotMeasure(reason=str(error)) from error
        return {"schema_version": SCHEMA_VERSION, "rates": rates}

    @writes
    @varlinkmethod
    async def RotateKeys(self, *, peer: str | None = None) -> RotateReply:
        """Agree on new keys of packets with one peer or with all, without losing a packet, and
        return once they have answered, or after 5 seconds. The daemon does this by itself at
        intervals (rotate_s)."""
        self._check_peer(peer)
        if not self._report.secured:
            raise NoKeys()
        rotated, unanswered = await self._report.rotate(peer)
        return {
            "schema_version": SCHEMA_VERSION,
            "rotated": rotated,
            "unanswered": unanswered,
        }

    @writes
    @varlinkmethod
    def SetLogLevel(self, *, level: LogLevel, seconds: int | None = None) -> LogReply:
        """Log events from this level on, until the daemon ends or for this number of seconds, after
        which the level is info."""
        if seconds is not None and not 1 <= seconds <= LOG_MAX_S:
            raise InvalidParameter(parameter="seconds")
        before = self._level.set(level, seconds)
        return {"schema_version": SCHEMA_VERSION, "level": level, "before": before}

    @writes
    @varlinkmethod
    async def ForgetPeer(self, *, peer: str) -> ForgetReply:
        """Take a host out of the peers that was admitted because it knows the secret (admit). It is
        admitted again when it asks again."""
        self._check_peer(peer)
        with _refusals():
            await self._running.forget(peer)
        return {"schema_version": SCHEMA_VERSION, "peer": peer}

    # The invitation is a secret, so only writers see it.
    @writes
    @varlinkmethod
    def Invite(self, *, name: str, hours: float = HOURS) -> InviteReply:
        """Make an invitation for a host of a name, by which it can join once within this number of
        hours (up to 720), while mrcd runs here. Only a host with the secret of hosts that find each
        other can."""
        if not 0 < hours <= HOURS_MAX:
            raise InvalidParameter(parameter="hours")
        with _refusals():
            made = self._running.invite(name, hours)
        return {
            "schema_version": SCHEMA_VERSION,
            "invitation": made.text,
            "host": made.name,
            "end_s": made.end_s,
            "known_by": self._running.trust.how_known(name),
        }

    @writes
    @varlinkmethod
    async def RevokePeer(self, *, peer: str, force: bool = False) -> RevokeReply:
        """Put a host out for good: every host ends its session with it, and takes it as a peer no
        more unless it is invited again. A name that is not known here is refused unless force is
        set. Only a host with the secret of hosts that find each other can."""
        with _refusals():
            done = await self._running.revoke(peer, force=force)
        return {
            "schema_version": SCHEMA_VERSION,
            "peer": peer,
            "known_by": done.known_by,
            "withdrawn": done.withdrawn,
            "secret_known": done.known_by != "invitation",
        }

    @varlinkmethod
    def ListFaults(self) -> FaultsReply:
        """Return the links and switches at fault, inferred from the survey probes of all hosts."""
        return self._report.faults()

    @varlinkmethod
    def GetMap(self) -> MapReply:
        """Return every link and switch of the fabric, as the survey sees it."""
        return self._report.fabric_map()

    @varlinkmethod
    def GetConfig(self) -> ConfigReply:
        """Return the running configuration as TOML."""
        return {"schema_version": SCHEMA_VERSION, "text": self._running.text()}

    # It changes nothing, but it makes the daemon read the fabric file that the text names.
    @writes
    @varlinkmethod
    def DiffConfig(self, *, text: str) -> ChangesReply:
        """Return the changes that applying a configuration (TOML) would make, and whether each one
        needs a restart."""
        with _refusals():
            return {"schema_version": SCHEMA_VERSION, "diff": self._running.diff(text)}

    @writes
    @varlinkmethod
    async def ApplyConfig(self, *, text: str, confirm_s: int = 0) -> ChangesReply:
        """Apply a configuration (TOML). With confirm_s (1 to 3600) the former configuration returns
        unless ConfirmConfig is called within that number of seconds."""
        if not 0 <= confirm_s <= CONFIRM_MAX_S:
            raise InvalidParameter(parameter="confirm_s")
        with _refusals():
            diff = await self._running.apply(text, confirm_s)
        return {"schema_version": SCHEMA_VERSION, "diff": diff}

    @writes
    @varlinkmethod
    def ConfirmConfig(self) -> None:
        """Keep the configuration that ApplyConfig applied and that waits to be confirmed."""
        with _refusals():
            self._running.confirm()

    @varlinkmethod(delay_generator=False)
    async def Monitor(
        self, *, interval_ms: int = 1000, peers: int | None = None
    ) -> AsyncIterator[MonitorReply]:
        """Send a sample at once and then every interval_ms (10 to 3600000), until the caller hangs
        up. Must be called with "more". A caller that is too slow misses samples, which are counted.
        With `peers`, a sample lists at most that number of peers: those in trouble, and the
        busiest."""
        if not INTERVAL_MIN_MS <= interval_ms <= INTERVAL_MAX_MS:
            raise InvalidParameter(parameter="interval_ms")
        if peers is not None and peers < 0:
            raise InvalidParameter(parameter="peers")
        loop = asyncio.get_running_loop()
        interval = interval_ms / 1000
        due, sample = loop.time(), None
        packets: Mapping[str, int] = {}
        while True:
            missed = int((loop.time() - due) / interval)
            if peers is None:
                sample = await self._sample(sample)
            else:
                few, packets = self._report.foremost_peers(peers, packets)
                sample = self._sample_of(few)
            yield {"sample": replace(sample, missed=missed)}
            # Keep the cadence of the first sample, but never catch up with a burst.
            due += interval * (1 + missed)
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _sample(self, last: MonitorSample | None) -> MonitorSample:
        """Return a sample newer than the caller's last one; callers may share a recent sample."""
        now, shared = time.monotonic_ns(), self._shared
        if shared is None or now - shared.monotonic_ns > SHARED_NS or shared is last:
            shared = self._shared = self._sample_of(await self._peers())
        return shared

    def _sample_of(self, peers: list[PeerInfo]) -> MonitorSample:
        return MonitorSample(
            monotonic_ns=time.monotonic_ns(),
            status=self._report.status(),
            peers=peers,
            stats=self._report.stats(),
        )

    def _check_plane(self, index: int) -> None:
        known = self._report.plane_indices()
        if index not in known:
            raise NoSuchPlane({"plane": index, "known": [*known]})

    def _check_peer(self, name: str | None) -> None:
        if name is None:
            return
        known = self._report.peer_names()
        if name not in known:
            # The library's annotation requires list[JSONValue], and lists are invariant.
            raise NoSuchPeer({"name": name, "known": [*known]})
