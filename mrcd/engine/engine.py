# SPDX-License-Identifier: GPL-2.0-only
"""Build or take over one data path, keep it running, and change it while it runs.

A first start goes in this order: compile, mrc0, planes, attach, clock, hand-shake. Nothing is
sprayed before a peer answers. A pinned data path of the same layout goes on meanwhile, its clock
included: programs of another build are replaced between two packets, and sessions are resumed, so
that neither applications nor peers notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

from mrcd.config.change import Change
from mrcd.config.config import Config, Peer
from mrcd.config.inforce import InForce
from mrcd.datapath import adoption, host, mrc0, pins, totals
from mrcd.datapath.attachment import Attachment, Hook, hooks
from mrcd.datapath.capture import Capture
from mrcd.datapath.cellsize import CellSize
from mrcd.datapath.clock import Clock
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.detach import undo
from mrcd.datapath.qptable import QpTable
from mrcd.datapath.sizes import Sizes
from mrcd.engine.counts import Counts
from mrcd.engine.events import Events
from mrcd.engine.interfaces import OurInterfaces
from mrcd.engine.memory import SessionMemory
from mrcd.engine.upkeep import Upkeep
from mrcd.fabric import underlay
from mrcd.fabric.hosts import Address
from mrcd.handshake import State
from mrcd.linux import bpf
from mrcd.linux.netlink import Netlink
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
from mrcd.planes.nexthops import Hop
from mrcd.planes.placement import placed
from mrcd.planes.plane import Plane, find_planes
from mrcd.planes.planes import Heard, Planes
from mrcd.rules.denylist import Denials
from mrcd.rules.drains import Drains
from mrcd.service.findings import Findings
from mrcd.service.log import get_logger
from mrcd.service.tasks import Tasks, fatal
from mrcd.survey.survey import Survey
from mrcd.wire.abi import ABI

log = get_logger()

DRAIN_S = 5.0
"""A drain waits no longer than this for outstanding packets, because a peer may be dead."""
_DRAIN_LOOK_S = 0.02
_PRESSURE = (ABI.MRC_C_TX_HELD, ABI.MRC_C_TX_CE, ABI.MRC_C_DROP_EARLY)
"""Counters that grow while more is offered than the network takes."""
SAVE_AGAIN_S = 2.0
"""The time between two attempts to write a state file, perhaps to a disk that was full."""


class Engine:
    """One data path and its upkeep. Call `start` first and `close` last."""

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

        `beside` are findings that outlive this engine.
        """
        self._in_force = InForce(config)
        self._admission = admission
        self.adopted = False
        self.made = False  # whether a failed start has to take something down
        self._nl = nl
        self._bpffs = bpffs
        self._state_dir = state_dir
        self._cache_dir = cache_dir
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._stack = contextlib.AsyncExitStack()
        self._tasks = Tasks(fatal(on_failure))
        self._routes = PeerRoutes(nl, config.mrc0.name, self._tasks)
        self.hooks: list[Hook] = []
        self.findings = Findings()
        self.beside = Findings() if beside is None else beside
        self._peers: Peers | None = None  # None until there are sessions
        self._endpoint: Endpoint | None = None  # None until there are sessions
        self._draining = False
        self._surveying: asyncio.Task[None] | None = None
        self.datapath: Datapath
        self.interfaces: OurInterfaces
        self.table: QpTable
        self.planes: Planes
        self.clock: Clock
        self.denials: Denials
        self.feed: PathFeed
        self.captures: Capture
        self.survey: Survey
        self.measuring: Measuring
        self.watch: Watch
        self.counts: Counts
        self._memory: SessionMemory
        self._upkeep: Upkeep

    @property
    def config(self) -> Config:
        """Return the configuration that is in force."""
        return self._in_force.config

    @property
    def peers(self) -> Peers:
        """Return the sessions with all peers."""
        assert self._peers is not None, "the engine has not started"
        return self._peers

    @property
    def endpoint(self) -> Endpoint:
        """Return the sender of endpoint requests to peers."""
        assert self._endpoint is not None, "the engine has not started"
        return self._endpoint

    @property
    def cells(self) -> CellSize | None:
        """Return the length of cells; None without cells."""
        return self.interfaces.cells

    # ---- up and down

    async def start(self) -> None:
        """Bring everything up. Return when packets can flow; raise what prevents it."""
        nl = self._nl
        self._in_force.config = config = await placed(nl, self.config)
        self.counts = Counts(
            lambda: self.datapath.counters(),
            lambda: self.peers.datagrams_read,
            config.mrc0.name,
            config.transport.control_port,
            self.findings,
        )
        found_planes = await find_planes(nl, config)
        needed = adoption.sizes_of(config)
        wanted = hooks(config.mrc0.name, config.interfaces, xdp=needed.xdp, cells=config.cells)
        self.hooks = wanted
        missing = {plane.configured for plane in found_planes if not plane.present}
        present = [hook for hook in wanted if hook.interface not in missing]
        key = adoption.layout_of(config, needed)
        found = adoption.find(self._bpffs, key, needed)
        self.adopted = found.sizes is not None
        layout = found.sizes or adoption.with_room(needed, config.transport.qps_per_peer)
        self.datapath = Datapath(pins.layout(self._bpffs, key), layout, self._cache_dir)
        attachment = self._attachment(self.datapath)
        await attachment.refuse_foreign(present)
        if found.refused:
            log.warning("datapath.replaced", reason=found.refused)
        code = await self._open(layout)
        self.captures = self._new_capture(wanted)
        self._stack.callback(self.captures.forget)
        self.made = not self.adopted
        self.interfaces = OurInterfaces(
            nl, self._in_force, self.datapath, self._bpffs, self._cells_resized
        )
        await self.interfaces.make()
        told = host.planes_told(self.datapath)
        self.interfaces.write_host(told)
        self.table = table = QpTable(self.datapath, self._in_force)
        self.planes = planes = self._new_planes(found_planes)
        self._stack.push_async_callback(planes.close)
        if self.adopted:
            planes.adopt()
            table.adopt()
        else:
            await planes.configure()
        self.datapath.point_tails()
        await attachment.attach(present)
        log.info(
            "datapath.adopted" if self.adopted else "datapath.attached",
            xdp=self.datapath.xdp_mode,
            tc=self.datapath.tc_kind,
        )
        table.peers.add(config.peers)
        dropped = table.peers.drop_prefixes()
        self.denials = Denials(self._in_force, table, self._state_dir, self.findings)
        self.feed = PathFeed(table.peers.peer_of, table.peers.per_peer)
        self._events = Events(table.peers.peer_of, self.feed)
        self._start_clock()
        self._upkeep = self._new_upkeep()
        await self._start_sessions(told)
        await self._routes.delete(dropped)
        self._tasks.spawn(planes.follow())
        self._tasks.spawn(mrc0.check_steering(config))
        self._tasks.spawn(self.trials.follow())
        if self.cells is not None:
            self._tasks.spawn(self.cells.follow())
        self._stack.push_async_callback(self._tasks.cancel)
        self._start_survey()
        self.measuring = Measuring(self._in_force, lambda: planes.planes, self.peers)
        self._stack.push_async_callback(self.measuring.close)
        self.watch = Watch(
            self._in_force,
            lambda: planes.planes,
            self.peers,
            table.peers.balance,
            lambda: self.datapath.count(*_PRESSURE),
            self.interfaces.carry,
        )
        self._stack.callback(self.watch.close)
        self._tasks.spawn(self.watch.follow())
        self._stack.push_async_callback(self.captures.close)
        await self._remove_strays(attachment, wanted, code)
        self._tasks.spawn(self._upkeep.repair(nl, self.findings).follow())
        self._tasks.spawn(self._save_again())
        self._tasks.spawn(self.counts.follow())

    async def _open(self, layout: Sizes) -> Path:
        """Open the maps and this build's programs for them; make what is missing."""
        datapath, key = self.datapath, adoption.code_of(layout)
        code = pins.code(datapath.folder, key)
        if not (self.adopted and adoption.whole_code(code)):
            await datapath.build(key, adopt=self.adopted)
        datapath.open(code)
        self._stack.callback(datapath.close)
        totals.take_over(datapath)
        return code

    def _new_capture(self, wanted: list[Hook]) -> Capture:
        return Capture(
            self.datapath,
            self._attachment,
            wanted,
            self._run,
            lambda peer: self.table.peers.indices[peer],
        )

    def _new_planes(self, found: list[Plane]) -> Planes:
        drains = Drains(self._state_dir, self.findings)
        heard = Heard(
            self._planes_changed, self._plane_bound, self._plane_up, fatal(self._on_failure)
        )
        return Planes(self._nl, self.datapath, self._in_force, found, drains, heard, self._ground)

    def _ground(self, nics: Nics) -> Ground:
        if not underlay.of(self.config.fabric).next_hops:
            return Gateways(nics, self._in_force, self._bpffs)
        found = Found(self._hop_found, self._path_mtu_changed, self._readdressed)
        return AnyNetwork(nics, self._in_force, found)

    def _attachment(self, datapath: Datapath) -> Attachment:
        return Attachment(self._nl, self._bpffs, datapath, tc=self.config.transport.tc)

    def _run(self, programs: Mapping[str, int]) -> None:
        """Make beats of the clock, and probes of the survey, with these programs."""
        self.clock.use(programs)
        self.survey.use(programs)

    def _start_clock(self) -> None:
        self.clock = Clock(
            self.datapath,
            self.config.transport.tick_us * 1000,
            self._events.act,
            self._on_failure,
            self.findings,
        )
        self._stack.callback(self.clock.stop)
        self.clock.start()

    def _open_evs(self, peer: str, plane: int) -> Sequence[int]:
        """Return the EVs of a plane to a peer by which the daemon's own packets may go."""
        return (
            self.denials.open_evs(peer, plane) if self.planes.ground.leads_to(peer, plane) else ()
        )

    async def _start_sessions(self, told: int) -> None:
        """Resume the sessions of an earlier daemon, and begin to offer the others."""
        config, planes = self.config, self.planes
        maps = bpf.map_id(self.datapath.maps["qps"])
        self._memory = memory = SessionMemory(self._state_dir, maps, self.findings)
        self._stack.callback(memory.cancel)
        found = memory.load()
        self._endpoint = endpoint = Endpoint(
            self._in_force, self.denials.open_evs, self.table.keys.endpoint
        )
        peers = Peers(
            self._in_force,
            self.table,
            secrets.randbits(64),
            self._mtu_of_peer,
            endpoint,
            memory.changed,
            self._open_evs,
            packets=self.table.keys,
            channels=found.channels,
            on_moved=self._peer_moved,
            admission=self._admission,
        )
        self._stack.callback(endpoint.close)
        self._tell_path_mtus(peers)
        if self.adopted:
            endpoint.start(told, found.update_id + saved.ID_LEAP)
            resumed = peers.resume(found.sessions, told)
            log.info("sessions.resumed", peers=len(resumed), of=len(config.peers))
            await planes.configure()
        else:
            endpoint.start(planes.mask)
        self._planes_changed(planes.mask)
        peers.start(planes.mask)
        self.trials = self._new_trials(peers)
        self._stack.callback(self.trials.close)
        self._events.begin(peers, self.trials)
        self._follow_configuration(endpoint, peers)
        self._peers = peers
        self._stack.callback(peers.close)
        self._stack.callback(memory.end)
        memory.follow(peers, lambda: endpoint.update_id)

    def _new_trials(self, peers: Peers) -> Trials:
        table = self.table.peers
        places = Places(
            self.table.qps_of,
            lambda name: table.indices[name],
            lambda name: self.planes.mask & table.planes[name] & table.reached(name),
        )
        return Trials(self.datapath, places, peers, lambda: peers.established)

    def _start_survey(self) -> None:
        self.survey = Survey(
            self.config,
            self.datapath,
            self.peers,
            secrets.randbits(64),
            self.planes.set_health,
        )
        self._surveying = self._tasks.spawn(self.survey.follow())

    async def _remove_strays(self, attachment: Attachment, wanted: list[Hook], code: Path) -> None:
        """Remove the remains of earlier data paths that this one does not use."""
        removed: list[str] = []
        for link in attachment.stray_links(wanted):
            removed += pins.remove(link)
        for path in pins.strays(self._bpffs, self.datapath.folder):
            pins.remove(path)
            removed.append(path.name)
        for path in pins.stray_code(self.datapath.folder, code):
            pins.remove(path)
            removed.append(path.name)
        config = self.config
        ours = {*mrc0.names(config), *config.interfaces}
        report = await undo(self._nl, self._bpffs, keep=ours)
        removed += report.detached
        if removed or report.failed:
            log.info("strays.removed", removed=removed, failed=report.failed)

    async def close(self) -> None:
        """Let go of the data path. Its programs stay attached."""
        await self._stack.aclose()

    async def drain(self) -> bool:
        """Take no more packets, tell peers, and wait for outstanding packets.

        Return False if some are left after DRAIN_S.
        """
        self._draining = True
        self.table.peers.prefixes.close()  # ends spraying; outstanding packets are still resent
        self._tell_planes(0)
        deadline = self._loop.time() + DRAIN_S
        while not (self.table.quiet() and not self.endpoint.unanswered):
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(_DRAIN_LOOK_S)
        return True

    # ---- what others change

    def _new_upkeep(self) -> Upkeep:
        return Upkeep(
            lambda: None if self._draining else self.config,
            self.hooks,
            lambda: self.attachment,
            self.interfaces,
            self._routes,
            self.planes,
            self.clock,
        )

    @property
    def attachment(self) -> Attachment | None:
        """Return what our programs are attached by; None while they are being replaced."""
        datapath = self.captures.in_place
        return None if datapath is None else self._attachment(datapath)

    async def _plane_bound(self, plane: Plane) -> None:
        """Attach programs to the NIC that has taken a plane's place, and open its sockets."""
        await self._upkeep.attach_to(plane.configured)
        self.endpoint.rebind(plane.index, plane.link.name)
        self.peers.rebind(plane.index, plane.link.name)

    def _plane_up(self, plane: Plane) -> None:
        """Open the sockets of a plane whose NIC was down when they were to be opened."""
        self.endpoint.open_closed(plane.index, plane.link.name)
        self.peers.open_closed(plane.index, plane.link.name)

    # ---- another configuration, while it runs

    def fits(self, config: Config) -> bool:
        """Return whether the present maps serve a configuration."""
        config = self._in_force.placed(config)
        needed = adoption.sizes_of(config)
        key = adoption.layout_of(config, needed)
        same = pins.layout(self._bpffs, key) == self.datapath.folder
        return same and not self.datapath.sizes.lacking(needed)

    async def apply(self, config: Config) -> None:
        """Switch to a configuration for which `fits` holds, without effect on unchanged peers."""
        config = self._in_force.placed(config)
        change = self._in_force.replace(config)
        dropped = self.table.peers.drop_prefixes()
        for peer in change.gone:
            self.peers.remove(peer.name)
            self.trials.forget(peer.name)
            self.table.remove_peer(peer)
            self._routes.forget(peer.name)
        self._in_force.tell(change)
        self.table.peers.add(change.changed)
        for peer in change.new:
            self.peers.add(peer)
        self._tell_path_mtus(self.peers)
        await self._routes.delete(dropped)
        await self._routes.renew(change.changed)
        await self.interfaces.reconfigure()
        if change.tick:
            self.clock.retune(config.transport.tick_us * 1000)
        if change.survey:
            await self._restart_survey()

    def _follow_configuration(self, endpoint: Endpoint, peers: Peers) -> None:
        """Have all parts hear when the configuration is another one; they ask for it."""

        def heard(change: Change) -> None:
            for part in (self.denials, endpoint, peers):
                part.configured()
            self._readdress_peers(change)
            self.planes.configured()

        self._in_force.follow(heard)

    def _readdress_peers(self, change: Change) -> None:
        """Move peers that have other addresses than before; their sessions stay."""
        for was, now in change.readdressed:
            if now.name in self.table.peers.planes:
                self.table.peers.readdress(was, now)

    async def _restart_survey(self) -> None:
        if self._surveying is not None:
            self._surveying.cancel()
            await asyncio.gather(self._surveying, return_exceptions=True)
        self._start_survey()

    # ---- changes

    def _peer_moved(self, name: str, plane: int, address: str) -> None:
        """Follow a peer to an address from which it has said something that only it can say."""
        if underlay.of(self.config.fabric).roaming and not self._draining:
            self._in_force.peer_moved(name, plane, ip_address(address))
            log.info("peer.moved", peer=name, plane=plane, address=address)

    def _hop_found(self, hop: Hop) -> None:
        """Send to a peer by the neighbour that leads to it now."""
        peer = self.config.by_name.get(hop.peer)
        if peer is not None and hop.mac is not None:
            self.table.peers.set_next_hop(peer, hop.plane, hop.mac)

    def _tell_path_mtus(self, peers: Peers) -> None:
        if isinstance(self.planes.ground, AnyNetwork):
            for hop in self.planes.ground.hops.all:
                peers.set_path_mtu(hop.peer, hop.plane, hop.mtu)

    def _path_mtu_changed(self, hop: Hop) -> None:
        """Send a peer no longer packets than the path to it takes."""
        if self._peers is not None:
            self._peers.set_path_mtu(hop.peer, hop.plane, hop.mtu)

    def _readdressed(self, addresses: tuple[Address, ...]) -> None:
        """Send from the addresses that our planes have now."""
        names = {plane.index: plane.link.name for plane in self.planes.planes}
        moved = {plane: names[plane] for plane in self._in_force.we_moved(addresses)}
        for part in (self._endpoint, self._peers):
            if part is not None:
                part.move(moved)

    async def _cells_resized(self, config: Config) -> None:
        """Tell the connections that cells may have another length."""
        await self._routes.refresh(config.peers)

    def _planes_changed(self, mask: int) -> None:
        """Stop sending on a lost plane first, then ask peers to stop sending to it."""
        self.interfaces.write_host(mask)
        if not self._draining:
            self._tell_planes(mask)

    def _tell_planes(self, mask: int) -> None:
        """Tell peers on which planes we take packets, by Port Status Updates and by Offers."""
        if self._endpoint is not None:
            self._endpoint.set_planes(mask)
        if self._peers is not None:
            self._peers.set_planes(mask)
            self._memory.changed()  # the number of the update is saved

    async def _save_again(self) -> None:
        """Try again, now and then, to write files that could not be written."""
        while True:
            await asyncio.sleep(SAVE_AGAIN_S)
            self.denials.save_again()
            self.planes.save_again()
            self._memory.save_again()

    def _mtu_of_peer(self, peer: Peer, mtu: int) -> None:
        """Lay the denylist over the QPs of a peer that are set up.

        Routes to the peer carry its MTU where it is smaller than ours.
        """
        self.denials.apply(peer.name)
        self._routes.want(peer, mtu)
        if self._peers is not None and self._peers.state(peer.name) is not State.ESTABLISHED:
            self.trials.begin(peer.name)
