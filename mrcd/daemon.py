# SPDX-License-Identifier: GPL-2.0-only
"""The daemon: brings the pieces up in order, keeps them, takes them down.

Order of start: configuration, old pins away, compile, mrc0, planes, attach,
clock, hand-shake, control socket. Nothing is sprayed before a peer answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path

from mrcd import ethtool, pins, sysfs, tuning
from mrcd.abi import ABI
from mrcd.clock import Clock
from mrcd.config import Config, Peer
from mrcd.control import ControlServer
from mrcd.datapath import Datapath, DatapathError
from mrcd.denials import Denials
from mrcd.detach import detach_with
from mrcd.endpoint import Endpoint
from mrcd.loader import Sizes
from mrcd.log import get_logger
from mrcd.loops import loops_of
from mrcd.model import XdpMode
from mrcd.netlink import Netlink
from mrcd.pathfeed import PathFeed
from mrcd.pathlog import PathLog
from mrcd.peers import Peers
from mrcd.planes import Plane, Planes, find_planes
from mrcd.qptable import QpTable, evs_per_plane
from mrcd.report import Report
from mrcd.survey import Survey

log = get_logger()

NICE = -10
"""The daemon does little, but where applications keep every CPU busy, peers should not go on
sending to a dead NIC for a time slice or two."""

_HOST = ABI.structs["mrc_host"]


@dataclass(frozen=True, slots=True)
class Places:
    """Where this daemon keeps things."""

    socket: Path
    state_dir: Path
    bpffs: Path


def sizes_of(config: Config) -> Sizes:
    """What the maps must hold for a configuration."""
    return Sizes(
        mtu=config.mtu,
        window=2 * config.transport.mpr,
        ring_slots=config.transport.ring_slots,
        peers=len(config.peers),
        qps=len(config.peers) * config.transport.qps_per_peer,
        evs=evs_per_plane(config),
        prefixes=sum(len(peer.allowed) for peer in config.peers),
        loops=len(loops_of(config.fabric, config.host)),
        encap=config.fabric.routing.code,
    )


class Daemon:
    """One mrcd."""

    def __init__(self, config: Config, places: Places) -> None:
        self._config = config
        self._places = places
        self._tasks: set[asyncio.Task[None]] = set()
        self._routes: dict[str, int] = {}
        self._stop = asyncio.Event()
        self._failure: Exception | None = None
        self._mac = bytes(6)
        self._path_log = PathLog()
        self._endpoint: Endpoint | None = None  # until the planes are up
        self._peers: Peers | None = None  # as long

    def stop(self) -> None:
        """Ask the daemon to end; run() returns soon after."""
        self._stop.set()

    async def run(self) -> None:
        """Bring everything up, serve until stop(), leave the machine as it was.

        A start that fails takes down what it had made. Raises what went wrong.
        """
        places = self._places
        with contextlib.suppress(OSError):  # better on time; works without the right to it
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        self._loop = asyncio.get_running_loop()
        places.state_dir.mkdir(parents=True, exist_ok=True)
        pins.prepare(places.bpffs)
        with pins.owned(places.bpffs):
            async with Netlink() as nl:
                self._nl = nl
                planes = await find_planes(nl, self._config)
                await self._take_down()  # what an earlier run left
                try:
                    async with contextlib.AsyncExitStack() as stack:
                        await self._serve(stack, planes)
                finally:
                    await self._take_down()
        if self._failure is not None:
            raise self._failure
        log.info("daemon.stopped")

    async def _serve(self, stack: contextlib.AsyncExitStack, found: list[Plane]) -> None:
        config, places, nl = self._config, self._places, self._nl
        self._datapath = datapath = await self._build()
        stack.callback(datapath.close)
        await self._make_mrc0(nl)
        self._write_host(0)
        planes = Planes(nl, config, datapath, found, places.state_dir, self._planes_changed)
        await planes.configure()
        stack.push_async_callback(planes.close)
        await self._attach(nl, datapath, planes)

        table = QpTable(datapath, config)
        for peer in config.peers:
            table.add_peer(peer)
        self._denials = denials = Denials(config, table, places.state_dir)
        self._feed = feed = PathFeed(tuple(table.indices), table.per_peer)
        clock = Clock(
            datapath,
            config.fabric.planes,
            config.transport.tick_us * 1000,
            config.transport.probe_pps,
            self._path_event,
            self._clock_failed,
        )
        clock.start()
        stack.callback(clock.stop)

        epoch = secrets.randbits(64)
        endpoint = Endpoint(config)
        peers = Peers(config, table, epoch, self._mtu_of_peer, endpoint)
        self._endpoint, self._peers = endpoint, peers
        self._write_host(planes.mask)
        stack.callback(endpoint.close)
        endpoint.start(planes.mask)
        peers.start(planes.mask)
        stack.callback(peers.close)
        self._spawn(planes.follow())
        survey = Survey(config, datapath, peers, epoch, planes.set_health)
        self._spawn(survey.follow())
        stack.push_async_callback(self._cancel_tasks)

        report = Report(
            config,
            datapath,
            table,
            planes,
            peers,
            endpoint,
            clock,
            denials,
            feed,
            survey,
            places.bpffs,
        )
        await stack.enter_async_context(ControlServer(places.socket, report))
        if (endpoint_of_metrics := config.metrics.endpoint) is not None:
            # Its library takes memory; only who wants metrics pays for it.
            from mrcd.exporter import Exporter  # noqa: PLC0415
            from mrcd.snapshot import Snapshots  # noqa: PLC0415

            snapshots = Snapshots(config, datapath, table, peers, denials, survey, report)
            await stack.enter_async_context(Exporter(endpoint_of_metrics, snapshots.take))
        log.info("daemon.ready", host=config.host.name, peers=len(config.peers))
        await self._stop.wait()
        report.stopping = True
        log.info("daemon.stopping")

    # ---- the data path

    async def _build(self) -> Datapath:
        datapath = Datapath(self._places.bpffs, sizes_of(self._config))
        for report in await datapath.build(xdp_frags=self._config.transport.xdp == "native"):
            log.info("datapath.compiled", **report)
        return datapath

    async def _make_mrc0(self, nl: Netlink) -> None:
        """Create mrc0 and its other end, which cut packets to size and sum them."""
        name, link = self._config.mrc0.name, f"{self._config.mrc0.name}p"
        for interface in (name, link):
            if nl.exists(interface):
                raise DatapathError(
                    f"interface {interface} exists and was not made by this mrcd: remove it, or "
                    "choose another name in [mrc0]"
                )
        await nl.create_veth(name, link, mtu=self._config.mtu)
        pins.record(self._places.bpffs, "device", name)
        for interface in (name, link):
            for refused in sysfs.write_sysctls(interface):
                log.warning("interface.untuned", interface=interface, error=refused)
        # TCP's large segments are cut, and every packet is summed, on the way to the other end.
        ethtool.set_features(name, tso=False, gso=False, sg=False, tx_checksum=False, gro=True)
        # With GRO and NAPI on mrc0, and none on a sender without TSO, deliveries are merged.
        ethtool.set_features(link, tso=False, gso=False, gro=False)
        # TCP may send from two CPUs in turn; each packet must reach the spray program in that
        # order, so all packets of a flow are handled on one CPU (docs/decisions/0002).
        if (error := await sysfs.spread_receiving(link)) is not None:
            log.warning("interface.untuned", interface=link, error=error)
        await nl.set_link(name, arp=False, up=True)
        await nl.set_link(link, arp=False, up=True)
        for address in self._config.mrc0.addresses:
            await nl.add_address(name, str(address))
        self._mac = (await nl.links())[name].mac
        log.info("interface.created", interface=name, mtu=self._config.mtu)

    async def _attach(self, nl: Netlink, datapath: Datapath, planes: Planes) -> None:
        transport = self._config.transport
        await datapath.attach_tc(nl, f"{self._config.mrc0.name}p", "mrc_spray", transport.tc)
        for plane in planes.planes:
            await datapath.attach_tc(nl, plane.link.name, "mrc_deliver", transport.tc)
            datapath.attach_xdp(plane.link.name, plane.link.index, _xdp_mode(transport.xdp))
        log.info("datapath.attached", xdp=datapath.xdp_mode, tc=datapath.tc_kind)

    def _write_host(self, mask: int) -> None:
        config = self._config
        self._datapath.write(
            "host",
            0,
            _HOST,
            link_ifindex=self._nl.index(f"{config.mrc0.name}p"),
            planes=config.fabric.planes,
            plane_mask=mask,
            block=int.from_bytes(config.fabric.block.network_address.packed[:4], "little"),
            udp_port=_network16(config.transport.udp_port),
            control_port=_network16(config.transport.control_port),
            reo_min_ns=tuning.REO_MIN_NS,
            reo_max_ns=tuning.REO_MAX_NS,
            fifo_slack_ns=tuning.FIFO_SLACK_NS,
            rto_min_ns=tuning.RTO_MIN_NS,
            hole_timeout_ns=tuning.HOLE_TIMEOUT_NS,
            sack_packets=tuning.SACK_PACKETS,
            sack_bytes=tuning.SACK_BYTES,
            queue_target_ns=tuning.QUEUE_TARGET_NS,
            probe_interval_ns=tuning.PROBE_INTERVAL_NS,
            probe_idle_ns=tuning.PROBE_IDLE_NS,
            hold_base_ns=tuning.HOLD_BASE_NS,
            hold_max_ns=tuning.HOLD_MAX_NS,
            judge_ns=tuning.JUDGE_NS,
            judge_slack_ns=tuning.JUDGE_SLACK_NS,
            slow_slack_ns=tuning.SLOW_SLACK_NS,
            link_mac=tuple(self._mac),
        )

    # ---- changes

    def _planes_changed(self, mask: int) -> None:
        """In the order in which it helps: nothing more leaves by the plane, nothing more comes."""
        self._write_host(mask)
        if self._endpoint is not None:
            self._endpoint.set_planes(mask)
        if self._peers is not None:
            self._peers.set_planes(mask)

    def _mtu_of_peer(self, peer: Peer, mtu: int) -> None:
        """Its QPs were set up. Routes to a peer carry its MTU where it is smaller than ours."""
        self._denials.apply(peer.name)
        if self._routes.get(peer.name) != mtu:
            self._routes[peer.name] = mtu
            self._spawn(self._route_peer(peer, mtu))

    async def _route_peer(self, peer: Peer, mtu: int) -> None:
        for prefix in peer.allowed:
            await self._nl.replace_route(str(prefix), dev=self._config.mrc0.name, mtu=mtu, ecn=True)

    def _path_event(self, event: dict[str, int]) -> None:
        """From the clock's thread: a path came into use or went out of it."""
        if event["kind"] == ABI.MRC_EVENT_PATH:
            self._loop.call_soon_threadsafe(self._path_changed, event)
        elif event["kind"] == ABI.MRC_EVENT_OUT_OF_STEP:
            self._loop.call_soon_threadsafe(self._out_of_step, event["qp"])

    def _out_of_step(self, qp: int) -> None:
        """A QP and its peer's no longer agree on PSNs: begin anew with that peer."""
        assert self._peers is not None
        self._peers.begin_anew(self._config.peers[qp // self._config.transport.qps_per_peer].name)

    def _path_changed(self, event: dict[str, int]) -> None:
        if event["state"] == ABI.MRC_PATH_ASSUMED_BAD:
            self._path_log.withdrawn(event["ev"])
        self._feed.publish(event)

    def _clock_failed(self, error: Exception) -> None:
        """From the clock's thread."""
        log.error("tick.failed", error=str(error))
        self._failure = DatapathError(f"the clock program cannot be run: {error}")
        self._loop.call_soon_threadsafe(self._stop.set)

    # ---- tasks

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("daemon.failed", error=str(error), exc_info=error)
            self._failure = self._failure or (
                error if isinstance(error, Exception) else RuntimeError(repr(error))
            )
            self._stop.set()

    async def _cancel_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take_down(self) -> None:
        """Remove programs, pins and interfaces of this daemon, and of one that died."""
        report = await detach_with(self._nl, self._places.bpffs)
        if report.detached or report.failed:
            log.info("datapath.detached", removed=len(report.detached), failed=report.failed)


def _network16(value: int) -> int:
    """A number whose bytes in memory are `value` in network order."""
    return int.from_bytes(value.to_bytes(2, "big"), "little")


def _xdp_mode(wanted: str) -> XdpMode:
    """The mode to attach in; "auto" is generic, which every driver has."""
    return "native" if wanted == "native" else "generic"
