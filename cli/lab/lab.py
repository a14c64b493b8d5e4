# SPDX-License-Identifier: GPL-2.0-only
"""Bring up, inspect, disturb and take down a lab: a fabric of network namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tomli_w

from cli.console.compiling import Compiling
from cli.lab import (
    build,
    cablefaults,
    cables,
    faults,
    injection,
    multiqueue,
    nics,
    portprograms,
    processes,
    reach,
    state,
    topology,
)
from cli.lab import (
    shape as shapes,
)
from cli.lab.injection import Applied
from cli.lab.marking import Marking
from cli.lab.multiqueue import ONE_QUEUE, HostNics
from cli.lab.reach import Member
from cli.lab.shape import Shape
from cli.lab.state import Fault, Lab, LabFailed, NoSuchElement
from cli.lab.topology import Topology
from mrcd.config import keyfiles
from mrcd.fabric import description
from mrcd.fabric.description import Fabric
from mrcd.handshake.identity import KEY_BYTES, Secret
from mrcd.linux import bpf, mounts, netns


@dataclass(frozen=True, slots=True)
class HostStatus:
    """The status of a host. `pid` is None when its daemon does not run."""

    name: str
    namespace: str
    present: bool
    addresses: tuple[str, ...]
    pid: int | None
    socket: str
    answering: bool
    log: str


@dataclass(frozen=True, slots=True)
class SwitchStatus:
    """The status of a switch."""

    name: str
    namespace: str
    present: bool


@dataclass(frozen=True, slots=True)
class PortStatus:
    """What a port of a switch that trims has done since its rate was set, in packets."""

    switch: str
    port: str
    marked: int
    trimmed: int
    dropped: int


@dataclass(frozen=True, slots=True)
class NetworkStatus:
    """A network of a lab without a fabric: its NICs, and its switch if it is no cable."""

    number: int
    nics: tuple[str, ...]
    switch: str | None
    rate_mbps: int
    standby: bool


@dataclass(frozen=True, slots=True)
class LabStatus:
    """The status of a whole lab. One without a fabric has networks in place of planes."""

    name: str
    folder: str
    planes: int
    t0: int
    t1: int
    mtu: int
    rate_mbps: int
    daemons: bool
    ecn: bool
    trim: bool
    queues: int
    qdisc: str
    hosts: tuple[HostStatus, ...]
    switches: tuple[SwitchStatus, ...]
    faults: tuple[Fault, ...]
    ports: tuple[PortStatus, ...]  # those that have trimmed or dropped something
    networks: tuple[NetworkStatus, ...] = ()

    @property
    def healthy(self) -> bool:
        """Return whether every namespace exists and every daemon answers; faults do not count."""
        if self.missing:
            return False
        return not self.daemons or all(host.answering for host in self.hosts)

    @property
    def missing(self) -> list[str]:
        """The nodes whose namespaces are gone."""
        hosts = [host.name for host in self.hosts if not host.present]
        return hosts + [switch.name for switch in self.switches if not switch.present]


def up(
    fabric: Fabric,
    *,
    hosts: bool = True,
    daemons: bool = True,
    ecn: bool = True,
    on_stop: str = "detach",
    settings: str = "",
    insecure: bool = False,
    host_nics: HostNics = ONE_QUEUE,
) -> None:
    """Build the lab of this fabric, named after it; return when all hosts reach all others.

    `ecn`: switches mark packets that leave through a long queue. `on_stop`: what a host's mrcd does
    with its data path when it is stopped; by default a lab leaves nothing behind. `settings`: TOML
    that is added to every host's mrcd.toml. The hosts share a secret of this lab, unless `insecure`
    is set or the settings name keys. Without `hosts` only the switches are built. NICs of
    this machine are then their ports to the hosts, and the call does not wait until hosts reach
    each other. `host_nics`: the hosts' NICs have several queues, or another queueing discipline.

    Raises LabFailed with the reason, and leaves nothing behind, when the lab cannot be built.
    """
    state.require_root()
    host_nics.check(fabric.rate_mbps)
    if _native(settings) and host_nics.queues > 1:  # such a veth takes no more than its queues
        raise LabFailed("hosts of a lab that receive at native XDP have NICs with one queue")
    plan = topology.plan(fabric)
    spaces = plan.namespaces()
    names = tuple(name for name in spaces if hosts or spaces[name][0].kind != "host")
    daemons = daemons and hosts
    qdisc = host_nics.qdisc
    _claim(
        Lab(fabric.name, names, daemons, ecn, (), host_nics.queues, qdisc),
        {"fabric.toml": description.dumps(fabric)},
    )
    with _removed_on_failure(fabric.name):
        if hosts and not insecure:
            _write_secret(fabric.name)
        _build(plan, plan.within(names), ecn, on_stop, settings, host_nics)
        if daemons:
            _start_daemons(fabric.name, fabric.hosts)


def up_shape(shape: Shape, *, daemons: bool = True) -> None:
    """Build a lab without a fabric; return when all hosts reach all others.

    Raises LabFailed with the reason, and leaves nothing behind, when the lab cannot be built.
    """
    state.require_root()
    name = shape.name
    _claim(
        Lab(name, cables.namespaces(shape), daemons, ecn=False, faults=()),
        {state.SHAPE: tomli_w.dumps(shapes.tables(shape))},
    )
    with _removed_on_failure(name):
        _write_secret(name)
        cables.create_namespaces(shape)
        _mount_bpffs(name)
        for host in shape.hosts:
            spot = state.places(name, host.name)
            spot.folder.mkdir()
            secret_file = f"../{state.secret(name).name}"
            spot.config.write_text(tomli_w.dumps(shapes.configuration(shape, host, secret_file)))
        asyncio.run(cables.build_links(shape))
        if daemons:
            _start_daemons(name, shape.hosts)


@contextlib.contextmanager
def _removed_on_failure(name: str) -> Iterator[None]:
    """Remove the lab if what follows fails."""
    try:
        yield
    except BaseException as error:
        down(name)
        if isinstance(error, OSError):
            raise LabFailed(f"lab {name} could not be built: {error}") from error
        raise


def _write_secret(name: str) -> None:
    secret = Secret(secrets.token_bytes(KEY_BYTES))
    keyfiles.write(state.secret(name), secret, service=False)


def _mount_bpffs(name: str) -> None:
    mount = state.bpffs(name)
    mount.mkdir()
    mounts.mount_bpffs(mount)


def _claim(lab: Lab, files: Mapping[str, str]) -> None:
    """Claim the lab's name before creating anything that would need cleaning up.

    `files`: what its folder has from the beginning.
    """
    with state.locked(state.ROOT.parent):
        home = state.folder(lab.name)
        if home.exists():
            raise LabFailed(
                f"lab {lab.name} is up already: `mrcctl lab down --name {lab.name}` first"
            )
        taken = sorted(set(lab.namespaces) & set(netns.names()))
        if taken:
            raise LabFailed(
                f"network namespaces {', '.join(taken)} exist and belong to no lab:"
                " delete them (`ip netns del`) or choose another --name"
            )
        home.mkdir(mode=0o755, parents=True)
        state.write(lab)
        for file, text in files.items():
            (home / file).write_text(text)
        if netns.prepare_run_dir():
            state.mark_run_netns()


def _build(
    whole: Topology, plan: Topology, ecn: bool, on_stop: str, settings: str, host_nics: HostNics
) -> None:
    """Build `plan`, the part of the whole that runs on this machine."""
    for name, members in plan.namespaces().items():
        build.create_namespace(name, members[0])
    _mount_bpffs(plan.fabric.name)
    for host in plan.fabric.hosts:
        if host.name in plan.nodes:
            spot = state.places(plan.fabric.name, host.name)
            spot.folder.mkdir()
            spot.config.write_text(_config_of(host.name, plan.fabric, on_stop, settings))
    if len(plan.nodes) < len(whole.nodes):
        asyncio.run(nics.adopt(whole))
    with _marking(plan, ecn) as marking:
        asyncio.run(build.build(plan, marking, host_nics))
    if _native(settings):
        _receive_what_xdp_sends(plan)


def _native(settings: str) -> bool:
    """Return whether hosts with these settings receive at native XDP."""
    return bool(tomllib.loads(settings).get("transport", {}).get("xdp") == "native")


def _receive_what_xdp_sends(plan: Topology) -> None:
    """Have the switches' ports to hosts run NAPI for XDP, without which a veth takes nothing of it.

    Hosts with native XDP turn probes round there. A program on the port starts NAPI; that GRO does
    so, too, is not enough, since the kernel then leaves what XDP sends in the ring (Linux 6.18).
    """
    handle = portprograms.load("lab_pass")
    try:
        for cable in plan.nic_cables():
            end = cable.near
            with netns.entered(plan.namespace(end.node)):
                index = socket.if_nametoindex(end.ifname)
                link = bpf.create_link(handle, index, bpf.ATTACH_XDP, flags=bpf.XDP_FLAGS_DRV_MODE)
            bpf.pin(link, state.bpffs(plan.fabric.name) / f"port_{end.node}_{end.ifname}")
            os.close(link)
    finally:
        os.close(handle)


_PROFILES = {"private_key_file", "secret_file", "insecure"}
"""Keys of [keys] that say where keys come from."""


def _config_of(host: str, fabric: Fabric, on_stop: str, settings: str) -> str:
    """Return the mrcd.toml of a host, with the caller's settings.

    Where switches trim, cells are single packets: only on its way out of the machine would the
    kernel cut a large one, and a program cannot trim it before that.
    """
    tables: dict[str, dict[str, object]] = {
        "host": {"name": host, "fabric": "../fabric.toml"},
        "service": {"on_stop": on_stop},
    }
    if fabric.trim:
        tables["transport"] = {"cell_max": 0}
    shared = state.secret(fabric.name)
    tables["keys"] = {"secret_file": f"../{shared.name}"} if shared.exists() else {"insecure": True}
    given = tomllib.loads(settings)
    if _PROFILES & given.get("keys", {}).keys():
        tables["keys"] = {}
    for name, table in given.items():
        tables[name] = {**tables.get(name, {}), **table}
    return tomli_w.dumps(tables)


def _marking(plan: Topology, ecn: bool) -> contextlib.AbstractContextManager[Marking | None]:
    if not ecn and not plan.fabric.trim:
        return contextlib.nullcontext()
    return Marking(plan, state.bpffs(plan.fabric.name), ecn=ecn)


def _start_daemons(name: str, hosts: Sequence[Member]) -> None:
    running: dict[str, subprocess.Popen[bytes]] = {}
    for host in hosts:
        running[host.name] = start_daemon(name, host.name)

    compiling = Compiling([state.places(name, host).log for host in running])

    def alive() -> str | None:
        compiling.look()
        for host, process in running.items():
            status = process.poll()
            if status is not None:
                return f"mrcd of {host} ended with status {status}\n{_log_tail(name, host)}"
        return None

    deadline_s = 60.0 + 3 * len(running)
    with compiling:
        missing, reason = asyncio.run(reach.wait(name, hosts, deadline_s, alive))
    if reason is not None:
        raise LabFailed(reason)
    if missing:
        pairs = sorted(map(str, missing))
        more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
        first = min(pair.source for pair in missing)
        raise LabFailed(
            f"no answer through mrc0 within {deadline_s:.0f} s: {', '.join(pairs[:4])}{more}\n"
            + _log_tail(name, first)
        )


def start_daemon(name: str, host: str) -> subprocess.Popen[bytes]:
    """Start the mrcd of one host (again) and return at once; its log is appended to."""
    spot = state.places(name, host)
    command = [
        *processes.daemon_command(),
        *("--config", str(spot.config)),
        *("--socket", str(spot.socket)),
        *("--state-dir", str(spot.folder)),
        *("--cache-dir", str(state.CACHE_DIR)),
        *("--bpffs", str(spot.bpffs)),
    ]
    with spot.log.open("ab") as log:
        process = processes.spawn(f"{name}-{host}", command, stdout=log, stderr=subprocess.STDOUT)
    spot.pid.write_text(f"{process.pid}\n")
    return process


def _log_tail(name: str, host: str) -> str:
    log = state.places(name, host).log
    return f"{log} ends with:\n{processes.end_of(log)}"


def down(name: str) -> None:
    """Remove the lab, whatever its state; raises NoSuchElement when there is none."""
    state.require_root()
    home = state.folder(name)
    if not home.is_dir():
        state.read(name)  # raises NoSuchElement with the existing labs
    try:
        namespaces = state.read(name).namespaces
    except NoSuchElement:
        namespaces = ()  # `up` crashed before it created any
    _stop_processes(namespaces)
    for namespace in namespaces:
        netns.delete(namespace)
    mounts.unmount(state.bpffs(name))
    with state.locked(state.ROOT.parent):
        shutil.rmtree(home)
        if state.forget_root():
            netns.release_run_dir()


def _stop_processes(namespaces: Sequence[str]) -> None:
    """Stop the lab's processes, in up to three rounds, since one may have started another."""
    for _ in range(3):
        found = processes.inside(namespaces)
        if not found:
            return
        left = processes.stop(found)
        if left:
            raise LabFailed(f"processes {left} in the lab's namespaces cannot be killed")


def down_all() -> list[str]:
    """Remove every lab and return their names."""
    state.require_root()
    names = state.labs()
    for name in names:
        down(name)
    return names


def status(name: str) -> LabStatus:
    """Return the current status of a lab."""
    lab = state.read(name)
    if (shape := state.read_shape(name)) is not None:
        return _shape_status(lab, shape)
    fabric = state.read_fabric(name)
    plan = topology.plan(fabric).within(lab.namespaces)
    there = set(netns.names())
    hosts = [_host_status(name, host, there) for host in fabric.hosts if host.name in plan.nodes]
    switches = tuple(
        SwitchStatus(node.name, plan.namespace(node.name), plan.namespace(node.name) in there)
        for node in plan.nodes.values()
        if node.kind != "host"
    )
    return LabStatus(
        name=name,
        folder=str(state.folder(name)),
        planes=fabric.planes,
        t0=fabric.t0,
        t1=fabric.t1,
        mtu=fabric.mtu,
        rate_mbps=fabric.rate_mbps,
        daemons=lab.daemons,
        ecn=lab.ecn,
        trim=fabric.trim,
        queues=lab.queues,
        qdisc=lab.qdisc,
        hosts=tuple(hosts),
        switches=switches,
        faults=lab.faults,
        ports=tuple(port for port in ports(name) if port.trimmed or port.dropped),
    )


def _shape_status(lab: Lab, shape: Shape) -> LabStatus:
    there = set(netns.names())
    spaces = {switch: shape.namespace(switch) for switch in shape.switches}
    return LabStatus(
        name=lab.name,
        folder=str(state.folder(lab.name)),
        planes=0,
        t0=0,
        t1=0,
        mtu=shape.mtu,
        rate_mbps=shape.rate_mbps,
        daemons=lab.daemons,
        ecn=lab.ecn,
        trim=False,
        queues=lab.queues,
        qdisc=lab.qdisc,
        hosts=tuple(_host_status(lab.name, host, there) for host in shape.hosts),
        switches=tuple(SwitchStatus(name, sp, sp in there) for name, sp in spaces.items()),
        faults=lab.faults,
        ports=(),
        networks=tuple(
            NetworkStatus(
                network.number,
                tuple(map(str, network.nics)),
                network.switch,
                shape.rate(network),
                network.standby,
            )
            for network in shape.networks
        ),
    )


def _host_status(name: str, host: Member, there: Container[str]) -> HostStatus:
    """Return the status of a host; `there` are the namespaces that exist."""
    spot, namespace = state.places(name, host.name), f"{name}-{host.name}"
    return HostStatus(
        name=host.name,
        namespace=namespace,
        present=namespace in there,
        addresses=tuple(map(str, host.addresses)),
        pid=daemon_pid(name, host.name),
        socket=str(spot.socket),
        answering=_answers(spot.socket),
        log=str(spot.log),
    )


def ports(name: str) -> list[PortStatus]:
    """Return what each port has done, of a lab that trims; otherwise an empty list."""
    lab = state.read(name)
    plan = topology.plan(state.read_fabric(name)).within(lab.namespaces)
    if not plan.fabric.trim:
        return []
    with Marking(plan, state.bpffs(name), ecn=lab.ecn) as marking:
        return [
            PortStatus(node, port, done.marked, done.trimmed, done.dropped)
            for (node, port), done in marking.counts().items()
        ]


def daemon_pid(name: str, host: str) -> int | None:
    """Return the pid of a host's mrcd, or None when it does not run."""
    try:
        pid = int(state.places(name, host).pid.read_text())
    except (OSError, ValueError):
        return None
    return pid if processes.runs_in(pid, f"{name}-{host}") else None


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(0.5)
        try:
            sock.connect(str(path))
        except OSError:
            return False
        return True


def fault(name: str, element: str, action: str) -> Applied:
    """Inject or clear a fault; return when the change is in effect.

    Raises BadAction or NoSuchElement for an invalid action or element.
    """
    return asyncio.run(inject(name, element, action))


async def inject(name: str, element: str, action: str) -> Applied:
    """Inject or clear a fault like `fault`, for callers that run an event loop."""
    return await inject_together(name, {element: action})


async def inject_together(name: str, actions: Mapping[str, str]) -> Applied:
    """Inject or clear several faults at the same moment; `actions` maps elements to actions."""
    state.require_root()
    parsed = {element: faults.parse_action(action) for element, action in actions.items()}
    if (shape := state.read_shape(name)) is not None:
        return await _inject_in_shape(shape, parsed)
    plan = topology.plan(state.read_fabric(name))
    parsed = {faults.canonical(plan, element): todo for element, todo in parsed.items()}
    for element, (kind, _value) in parsed.items():
        faults.check(plan, element, kind)
    with state.locked(state.folder(name)):
        lab = state.read(name)
        plan = plan.beside(lab.namespaces)
        after = _record(lab, parsed)
        ports = {port for element in parsed for port in faults.ports(plan, element)}
        try:
            with _marking(plan, lab.ecn) as marking:
                choosing = multiqueue.ports(plan, HostNics(lab.queues, lab.qdisc))
                effects = faults.effects(plan, after)
                return await injection.apply(plan, ports, effects, marking, choosing)
        except OSError as error:
            shown = ", ".join(f"{element} {action}" for element, action in actions.items())
            raise LabFailed(f"fault {shown}: {error}") from error


def _record(lab: Lab, parsed: Mapping[str, tuple[str, int]]) -> tuple[Fault, ...]:
    """Write and return the faults of a lab after some actions, by element.

    The record is written first, so that `clear` can undo a change that a crash cut short.
    """
    after = lab.faults
    for element, (kind, value) in parsed.items():
        after = faults.changed(after, element, kind, value)
    state.write(replace(lab, faults=after))
    return after


async def _inject_in_shape(shape: Shape, parsed: Mapping[str, tuple[str, int]]) -> Applied:
    """Inject or clear faults in a lab without a fabric; `parsed` has actions by element."""
    parsed = {cablefaults.canonical(shape, element): todo for element, todo in parsed.items()}
    for element, (kind, _value) in parsed.items():
        cablefaults.check(element, kind)
    with state.locked(state.folder(shape.name)):
        after = _record(state.read(shape.name), parsed)
        known = cablefaults.elements(shape)
        ends = {end for element in parsed for link in known[element] for end in link.ends}
        try:
            return await cables.apply(shape, sorted(ends), cablefaults.effects(shape, after))
        except OSError as error:
            raise LabFailed(f"fault {', '.join(parsed)}: {error}") from error


def command_in(
    name: str, host: str, command: Sequence[str], path_front: Path | None = None
) -> tuple[list[str], Mapping[str, str]]:
    """Return the command line and environment that run `command` in a host.

    The command line uses `ip netns exec`, so /sys shows the host's interfaces.
    """
    if (shape := state.read_shape(name)) is not None:
        known = [each.name for each in shape.hosts]
        if host not in known:
            raise NoSuchElement(f"no host {host!r} in this lab; known: {', '.join(known)}")
    else:
        try:
            state.read_fabric(name).host(host)
        except KeyError as error:
            raise NoSuchElement(error.args[0]) from None
    environment = dict(os.environ)
    environment["MRCD_SOCKET"] = str(state.places(name, host).socket)
    if path_front is not None:
        environment["PATH"] = f"{path_front}:{environment.get('PATH', os.defpath)}"
    return ["ip", "netns", "exec", f"{name}-{host}", *command], environment


def execute(name: str, host: str, command: Sequence[str], path_front: Path | None = None) -> None:
    """Replace this process with `command` inside a host; never returns, but may raise LabFailed."""
    state.require_root()
    line, environment = command_in(name, host, command, path_front)
    with contextlib.suppress(FileNotFoundError):
        os.execvpe(line[0], line, environment)
    raise LabFailed("`ip` was not found: install iproute2")
