# SPDX-License-Identifier: GPL-2.0-only
"""Build or take over one data path.

A first start goes in this order: compile, mrc0, planes, attach, clock, hand-shake. Nothing is
sprayed before a peer answers. A pinned data path of the same layout goes on meanwhile, its clock
included: programs of another build are replaced between two packets, and sessions are resumed, so
that neither applications nor peers notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mrcd.config.config import Config
from mrcd.config.inforce import InForce
from mrcd.datapath import adoption, host, mrc0, pins, totals
from mrcd.datapath.attachment import Attachment, Hook, hooks
from mrcd.datapath.capture import Capture
from mrcd.datapath.clock import Clock
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.detach import undo
from mrcd.datapath.qptable import QpTable
from mrcd.datapath.relaytable import RelayTable
from mrcd.engine.counts import Counts
from mrcd.engine.engine import Engine, tell_path_mtus
from mrcd.engine.events import Events
from mrcd.engine.interfaces import OurInterfaces
from mrcd.engine.memory import SessionMemory
from mrcd.engine.reactions import Reactions, Sessions
from mrcd.engine.surveying import Surveying
from mrcd.engine.upkeep import Upkeep
from mrcd.fabric import underlay
from mrcd.linux import bpf
from mrcd.linux.netlink import Netlink
from mrcd.measure.distances import Distances
from mrcd.measure.measure import Measuring
from mrcd.measure.watch import Watch
from mrcd.paths.feed import PathFeed
from mrcd.peers import saved
from mrcd.peers.channels import Admission
from mrcd.peers.endpoint import Endpoint
from mrcd.peers.peers import Peers
from mrcd.peers.routes import PeerRoutes
from mrcd.peers.trials import Places, Trials
from mrcd.planes.gateways import Gateways
from mrcd.planes.ground import Ground, Nics
from mrcd.planes.network import AnyNetwork, Found
from mrcd.planes.placement import placed
from mrcd.planes.plane import Plane, find_planes
from mrcd.planes.planes import Heard, Planes
from mrcd.rules.denylist import Denials
from mrcd.rules.drains import Drains
from mrcd.service.findings import Findings
from mrcd.service.log import get_logger
from mrcd.service.tasks import Tasks, fatal
from mrcd.wire.abi import ABI

log = get_logger()

_PRESSURE = (ABI.MRC_C_TX_HELD, ABI.MRC_C_TX_CE, ABI.MRC_C_DROP_EARLY)
"""Counters that grow while more is offered than the network takes."""
SAVE_AGAIN_S = 2.0
"""The time between two attempts to write a state file, perhaps to a disk that was full."""


class _Programs(NamedTuple):
    """A data path that is open. adopted: it was pinned, and runs. code: the programs' folder."""

    datapath: Datapath
    hooks: list[Hook]
    present: list[Hook]
    adopted: bool
    code: Path


class Start:
    """The start of one data path. After a failure call `close`; `made` says if anything is new."""

    def __init__(
        self,
        nl: Netlink,
        config: Config,
        bpffs: Path,
        state_dir: Path,
        on_failure: Callable[[Exception], None],
        cache_dir: Path | None = None,
        admission: Admission | None = None,
        beside: Findings | None = None,
    ) -> None:
        """`admission` decides about hosts that are no peers but know the secret.

        `beside` are findings that outlive the engine.
        """
        self._in_force = InForce(config)
        self._admission = admission
        self.made = False
        self._nl = nl
        self._bpffs = bpffs
        self._state_dir = state_dir
        self._cache_dir = cache_dir
        self._on_failure = on_failure
        self._stack = contextlib.AsyncExitStack()
        self._tasks = Tasks(fatal(on_failure))
        self._findings = Findings()
        self._beside = Findings() if beside is None else beside

    async def close(self) -> None:
        """Let go of what was built."""
        await self._stack.aclose()

    async def run(self) -> Engine:
        """Bring everything up. Return when packets can flow; raise what prevents it."""
        nl, in_force, tasks = self._nl, self._in_force, self._tasks
        in_force.config = config = await placed(nl, in_force.config)
        found_planes = await find_planes(nl, config)
        programs = await self._programs(found_planes)
        datapath, adopted = programs.datapath, programs.adopted
        self.made = not adopted
        routes = PeerRoutes(nl, config.mrc0.name, tasks)
        interfaces = OurInterfaces(
            nl, in_force, datapath, self._bpffs, lambda config: routes.refresh(config.peers)
        )
        await interfaces.make()
        told = host.planes_told(datapath)
        interfaces.write_host(told)
        table = QpTable(datapath, in_force)
        table.peers.set_rates(interfaces.says)
        denials = Denials(in_force, table, self._state_dir, self._findings)
        relays = RelayTable(datapath, in_force)
        reactions = Reactions(in_force, table, interfaces, routes, denials, relays, found_planes)
        bound: list[Callable[[Plane], Awaitable[None]]] = []
        planes = self._planes(datapath, found_planes, reactions, bound)
        if adopted:
            planes.adopt()
            table.adopt()
            relays.adopt()
        else:
            await planes.configure()
        datapath.point_tails()
        await self._attachment(datapath).attach(programs.present)
        log.info(
            "datapath.adopted" if adopted else "datapath.attached",
            xdp=datapath.xdp_mode,
            tc=datapath.tc_kind,
        )
        table.peers.add(config.peers)
        dropped = table.peers.drop_prefixes()
        feed = PathFeed(table.peers.peer_of, table.peers.per_peer)
        events = Events(table.peers.peer_of, feed)
        clock = self._clock(datapath, events)
        sessions = await self._sessions(programs, table, planes, denials, reactions, events, told)
        self._stack.push_async_callback(tasks.cancel)
        await routes.delete(dropped)
        surveying = Surveying(
            in_force,
            datapath,
            sessions.peers,
            planes.set_health,
            tasks,
            table.peers.data_loss,
        )
        captures = self._captures(programs, table, clock, surveying)
        engine = Engine(
            in_force=in_force,
            bpffs=self._bpffs,
            hooks=programs.hooks,
            made=self.made,
            datapath=datapath,
            attached=self._attachment,
            captures=captures,
            interfaces=interfaces,
            table=table,
            planes=planes,
            routes=routes,
            denials=denials,
            feed=feed,
            clock=clock,
            endpoint=sessions.endpoint,
            peers=sessions.peers,
            trials=sessions.trials,
            surveying=surveying,
            measuring=Measuring(in_force, lambda: planes.planes, sessions.peers),
            watch=self._watch(datapath, table, planes, interfaces, sessions.peers),
            counts=self._counts(datapath, sessions.peers),
            findings=self._findings,
            beside=self._beside,
            reactions=reactions,
            stack=self._stack,
        )
        upkeep = self._upkeep(engine)
        bound.append(lambda plane: upkeep.attach_to(plane.configured))
        self._follow(engine, upkeep, sessions.memory)
        await self._remove_strays(programs)
        return engine

    # ---- the programs

    async def _programs(self, planes: Sequence[Plane]) -> _Programs:
        """Open the maps and this build's programs for them; make what is missing."""
        config = self._in_force.config
        needed = adoption.sizes_of(config)
        wanted = hooks(config.mrc0.name, config.interfaces, xdp=needed.xdp, cells=config.cells)
        missing = {plane.configured for plane in planes if not plane.present}
        present = [hook for hook in wanted if hook.interface not in missing]
        key = adoption.layout_of(config, needed)
        found = adoption.find(self._bpffs, key, needed)
        adopted = found.sizes is not None
        layout = found.sizes or adoption.with_room(
            needed, config.transport.qps_per_peer, discover=config.keys.discover
        )
        datapath = Datapath(pins.layout(self._bpffs, key), layout, self._cache_dir)
        await self._attachment(datapath).refuse_foreign(present)
        if found.refused:
            log.warning("datapath.replaced", reason=found.refused)
        code_key = adoption.code_of(layout)
        code = pins.code(datapath.folder, code_key)
        if not (adopted and adoption.whole_code(code)):
            await datapath.build(code_key, adopt=adopted)
        datapath.open(code)
        self._stack.callback(datapath.close)
        totals.take_over(datapath)
        return _Programs(datapath, wanted, present, adopted, code)

    def _attachment(self, datapath: Datapath) -> Attachment:
        tc = self._in_force.config.transport.tc
        return Attachment(self._nl, self._bpffs, datapath, tc=tc)

    def _captures(
        self, programs: _Programs, table: QpTable, clock: Clock, surveying: Surveying
    ) -> Capture:
        def run(those: Mapping[str, int]) -> None:
            """Make beats of the clock, and probes of the survey, with these programs."""
            clock.use(those)
            surveying.use(those)

        captures = Capture(
            programs.datapath,
            self._attachment,
            programs.hooks,
            run,
            lambda peer: table.peers.indices[peer],
        )
        self._stack.callback(captures.forget)
        return captures

    async def _remove_strays(self, programs: _Programs) -> None:
        """Remove the remains of earlier data paths that this one does not use."""
        removed: list[str] = []
        for link in self._attachment(programs.datapath).stray_links(programs.hooks):
            removed += pins.remove(link)
        for path in pins.strays(self._bpffs, programs.datapath.folder):
            pins.remove(path)
            removed.append(path.name)
        for path in pins.stray_code(programs.datapath.folder, programs.code):
            pins.remove(path)
            removed.append(path.name)
        config = self._in_force.config
        ours = {*mrc0.names(config), *config.interfaces}
        report = await undo(self._nl, self._bpffs, keep=ours)
        removed += report.detached
        if removed or report.failed:
            log.info("strays.removed", removed=removed, failed=report.failed)

    # ---- planes and the clock

    def _planes(
        self,
        datapath: Datapath,
        found: list[Plane],
        reactions: Reactions,
        bound: Sequence[Callable[[Plane], Awaitable[None]]],
    ) -> Planes:
        """Return the planes. `bound` is called first when a NIC has taken a plane's place."""
        in_force = self._in_force

        def ground(nics: Nics) -> Ground:
            if not underlay.of(in_force.config.fabric).next_hops:
                return Gateways(nics, in_force, self._bpffs)
            news = Found(reactions.hop_found, reactions.path_measured, reactions.we_moved)
            return AnyNetwork(nics, in_force, news)

        async def plane_bound(plane: Plane) -> None:
            for first in bound:
                await first(plane)
            reactions.plane_bound(plane)

        heard = Heard(
            reactions.planes_changed, plane_bound, reactions.plane_up, fatal(self._on_failure)
        )
        drains = Drains(self._state_dir, self._findings)
        planes = Planes(self._nl, datapath, in_force, found, drains, heard, ground)
        self._stack.push_async_callback(planes.close)
        return planes

    def _clock(self, datapath: Datapath, events: Events) -> Clock:
        clock = Clock(
            datapath,
            self._in_force.config.transport.tick_us * 1000,
            events.act,
            self._on_failure,
            self._findings,
        )
        self._stack.callback(clock.stop)
        clock.start()
        return clock

    # ---- peers

    async def _sessions(
        self,
        programs: _Programs,
        table: QpTable,
        planes: Planes,
        denials: Denials,
        reactions: Reactions,
        events: Events,
        told: int,
    ) -> Sessions:
        """Resume the sessions of an earlier daemon, and begin to offer the others.

        told: the planes that the programs were told of by an earlier daemon.
        """
        in_force, maps = self._in_force, programs.datapath.maps
        memory = SessionMemory(self._state_dir, bpf.map_id(maps["qps"]), self._findings)
        self._stack.callback(memory.cancel)
        found = memory.load()
        endpoint = Endpoint(in_force, denials.open_evs, table.keys.endpoint)

        def open_evs(peer: str, plane: int) -> Sequence[int]:
            """Return the EVs of a plane to a peer by which the daemon's own packets may go."""
            return denials.open_evs(peer, plane) if planes.ground.leads_to(peer, plane) else ()

        peers = Peers(
            in_force,
            table,
            secrets.randbits(64),
            reactions.longest_changed,
            endpoint,
            memory.changed,
            open_evs,
            packets=table.keys,
            channels=found.channels,
            on_moved=reactions.peer_moved,
            admission=self._admission,
        )
        self._stack.callback(endpoint.close)
        tell_path_mtus(planes, peers)
        if programs.adopted:
            endpoint.start(told, found.update_id + saved.ID_LEAP)
            resumed = peers.resume(found.sessions, told)
            log.info("sessions.resumed", peers=len(resumed), of=len(in_force.config.peers))
            await planes.configure()
        else:
            endpoint.start(planes.mask)
        reactions.planes_changed(planes.mask)
        endpoint.set_planes(planes.mask)
        peers.start(planes.mask)
        trials = self._trials(programs.datapath, table, planes, peers)
        events.begin(peers, trials)
        reactions.follow(planes, endpoint, peers)
        self._stack.callback(peers.close)
        self._stack.callback(memory.end)
        memory.follow(peers, lambda: endpoint.update_id)
        sessions = Sessions(endpoint, peers, trials, memory)
        reactions.begin(sessions)
        return sessions

    def _trials(self, datapath: Datapath, table: QpTable, planes: Planes, peers: Peers) -> Trials:
        known = table.peers
        places = Places(
            table.qps_of,
            lambda name: known.indices[name],
            lambda name: planes.mask & known.planes[name] & known.reached(name),
        )
        trials = Trials(datapath, places, peers, lambda: peers.established)
        self._stack.callback(trials.close)
        return trials

    # ---- what goes on from now on

    def _watch(
        self,
        datapath: Datapath,
        table: QpTable,
        planes: Planes,
        interfaces: OurInterfaces,
        peers: Peers,
    ) -> Watch:
        return Watch(
            self._in_force,
            lambda: planes.planes,
            peers,
            table.peers.balance,
            lambda: datapath.count(*_PRESSURE),
            interfaces.carry,
        )

    def _counts(self, datapath: Datapath, peers: Peers) -> Counts:
        config = self._in_force.config
        return Counts(
            datapath.counters,
            lambda: peers.datagrams_read,
            config.mrc0.name,
            config.transport.control_port,
            self._findings,
        )

    def _upkeep(self, engine: Engine) -> Upkeep:
        return Upkeep(
            lambda: None if engine.reactions.draining else engine.config,
            engine.hooks,
            lambda: engine.attachment,
            engine.interfaces,
            engine.routes,
            engine.planes,
            engine.clock,
            engine.table.peers.follow,
        )

    def _follow(self, engine: Engine, upkeep: Upkeep, memory: SessionMemory) -> None:
        """Begin what runs until the end."""
        tasks, stack = self._tasks, self._stack
        tasks.spawn(engine.planes.follow())
        tasks.spawn(mrc0.check_steering(engine.config))
        tasks.spawn(engine.trials.follow())
        if engine.cells is not None:
            tasks.spawn(engine.cells.follow())
        stack.push_async_callback(engine.measuring.close)
        stack.callback(engine.watch.close)
        tasks.spawn(engine.watch.follow())
        tasks.spawn(
            Distances(
                engine.table.peers,
                lambda: engine.peers.established,
                lambda: engine.config.standby,
            ).follow()
        )
        stack.push_async_callback(engine.captures.close)
        tasks.spawn(upkeep.repair(self._nl, self._findings).follow())
        tasks.spawn(_save_again(engine.denials, engine.planes, memory))
        tasks.spawn(engine.counts.follow())


async def _save_again(denials: Denials, planes: Planes, memory: SessionMemory) -> None:
    """Try again, now and then, to write files that could not be written."""
    while True:
        await asyncio.sleep(SAVE_AGAIN_S)
        denials.save_again()
        planes.save_again()
        memory.save_again()
