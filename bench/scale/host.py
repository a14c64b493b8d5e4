# SPDX-License-Identifier: GPL-2.0-only
"""Measure a real mrcd with many configured peers: starting, changing, and idling."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import ip_interface
from pathlib import Path

from bench.instruments import flow
from bench.instruments.flow import BenchFailed
from bench.instruments.processor import user_and_kernel_s
from bench.instruments.result import Line, at_most
from cli.console.client import Client
from cli.console.exits import CommandError
from cli.lab import lab, processes, state
from mrcd.fabric import description, naming, usid
from mrcd.fabric.description import Fabric, Host
from mrcd.handshake.pace import KEEPALIVES_PER_S, OFFERS_PER_S
from mrcd.linux import bpf, interfaces, netns

PLANES, T1, MTU = 4, 2, 1500
US, CROWD = "h1", "h2"
LARGEST = 5
"""The number of maps whose memory is shown."""
SPARE = 1
"""The number of hosts that are not peers at first; `config apply` adds it."""
_READY_S, _QUIET_S, _ANSWER_S = 300.0, 400.0, 240.0
_HOST_USIDS = 32 + 5  # block, plane, role


def fabric_of(name: str, peers: int, *, together: bool) -> Fabric:
    """Return a fabric of our host on T0 1 and the others.

    The others are on T0 2 with one NIC for all, or spread over eight T0s.
    """
    two = description.generate(name=name, planes=PLANES, t1=T1, mtu=MTU)
    t0s = 2 if together else min(8, peers + 1)

    def host(number: int) -> Host:
        others = number - 1
        t0, port = (2, others) if together else (others % t0s + 1, others // t0s + 1)
        place = (1, 1) if number == 1 else (t0, port)
        return Host(
            f"h{number}",
            *place,
            (
                ip_interface(f"10.99.{number >> 8}.{number & 255}/16"),
                ip_interface(f"fd99::{number:x}/64"),
            ),
        )

    members = tuple(host(number) for number in range(1, peers + 1 + SPARE + 1))
    return description.sound(replace(two, hosts=members, t0=t0s))


INSECURE = "[keys]\ninsecure = true\n"
"""The crowd's peers have no keys."""


def configuration(fabric: Fabric, peers: int, settings: str) -> str:
    """Return the text of our mrcd.toml, with the first `peers` of the others as peers."""
    lines = [f'[host]\nname = "{US}"\nfabric = "fabric.toml"\n{INSECURE}{settings}']
    lines += [f'[[peer]]\nname = "{host.name}"\n' for host in fabric.hosts[1 : peers + 1]]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a process in MB; `maps` is the size of its BPF maps in the kernel."""

    rss: float
    pss: float
    peak: float
    maps: float


def memory_of(pid: int) -> Memory:
    """Return the memory of a process now."""
    rollup = _pairs(Path(f"/proc/{pid}/smaps_rollup"))
    status = _pairs(Path(f"/proc/{pid}/status"))
    maps = sum(maps_of(pid).values()) / 1e6
    return Memory(_kb(rollup["Rss"]), _kb(rollup["Pss"]), _kb(status["VmHWM"]), maps)


def maps_of(pid: int) -> dict[int, int]:
    """Return the size in bytes of each BPF map of a process, by the map's ID."""
    maps: dict[int, int] = {}
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            info = _pairs(entry)
            if "map_id" in info:
                maps[int(info["map_id"])] = int(info["memlock"])
    return maps


def _pairs(file: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in file.read_text().splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _kb(text: str) -> float:
    return int(text.split()[0]) / 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """The totals of a daemon so far; seconds of CPU are in user space and in all."""

    at_s: float
    user_s: float
    cpu_s: float
    sent: int
    counters: dict[str, int]


class Daemon:
    """mrcd of the host US of a lab."""

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid = name, pid

    @property
    def client(self) -> Client:
        """Return a connection to the daemon."""
        return Client(str(state.places(self.name, US).socket))

    def sample(self, *, counters: bool = False) -> Sample:
        """Return what the daemon has used so far."""
        with netns.entered(f"{self.name}-{US}"):
            nics = [t for nic, t in interfaces.traffic().items() if nic.startswith("plane")]
        user, system = user_and_kernel_s(self.pid)
        values: dict[str, int] = {}
        if counters:
            with self.client as client:
                values = {each.name: each.value for each in client.stats().counters}
        sent = sum(nic.tx_packets for nic in nics)
        return Sample(time.monotonic(), user, user + system, sent, values)

    def mrcctl(self, *words: str) -> float:
        """Run a command of mrcctl; return the seconds from its start to its end."""
        command = [str(Path(sys.executable).with_name("mrcctl")), *words]
        line, environment = lab.command_in(self.name, US, command)
        began = time.monotonic()
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        took = time.monotonic() - began
        if done.returncode not in (0, 6):  # 6 means degraded
            raise BenchFailed(f"mrcctl {' '.join(words)}: {done.stderr.strip()[-500:]}")
        return took

    def settle(self, at_most_pps: float) -> float:
        """Wait until the daemon sends at most `at_most_pps`; return the seconds that took."""
        began = time.monotonic()
        while True:
            before = self.sample()
            time.sleep(2)
            after = self.sample()
            if (after.sent - before.sent) / (after.at_s - before.at_s) <= at_most_pps:
                return time.monotonic() - began
            if after.at_s - began > _QUIET_S:
                raise BenchFailed(f"it still sends more than {at_most_pps:.0f} packets a second")

    def calm(self, peers: int) -> float:
        """Wait until no more Offers arrive than a crowd's keepalives; return the seconds.

        Peers that came up together send in bursts at first, so the rate is taken over half of
        their interval.
        """
        began = time.monotonic()
        before = self.sample(counters=True)
        while True:
            time.sleep(max(4.0, peers / KEEPALIVES_PER_S / 2))
            after = self.sample(counters=True)
            heard = after.counters["control_rx"] - before.counters["control_rx"]
            if heard / (after.at_s - before.at_s) <= 1.2 * KEEPALIVES_PER_S:
                return time.monotonic() - began
            if after.at_s - began > _QUIET_S:
                raise BenchFailed("peers still send more Offers than keepalives")
            before = after


@dataclass(slots=True)
class Started:
    """A daemon that is ready, and the cost of its start; MB of the child that compiles."""

    daemon: Daemon
    ready_s: float
    child_pss: float


def start(name: str) -> Started:
    """Start mrcd and wait until it answers."""
    began = time.monotonic()
    daemon = Daemon(name, lab.start_daemon(name, US).pid)
    socket = state.places(name, US).socket
    child = 0.0
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError):
            for pid in children(daemon.pid):
                child = max(child, memory_of(pid).pss)
        if socket.exists():
            with contextlib.suppress(CommandError), daemon.client as client:
                client.status()
                return Started(daemon, time.monotonic() - began, child)
        if time.monotonic() - began > _READY_S or not Path(f"/proc/{daemon.pid}").exists():
            log = state.places(name, US).log.read_text()[-2000:]
            raise BenchFailed(f"mrcd did not become ready: {log}")
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def host_with(
    name: str, peers: int, settings: str, *, crowd: bool
) -> Iterator[tuple[Fabric, Path]]:
    """Build a lab of two hosts; ours has a fabric file with many, of which h2 plays none or all."""
    fabric = fabric_of(name, peers, together=crowd)
    two = description.generate(name=name, planes=PLANES, t1=T1, mtu=MTU)
    # All switches must exist, or the survey would search for their faults.
    with flow.fabric_up(replace(two, t0=fabric.t0), daemons=False):
        spot = state.places(name, US)
        (spot.folder / "fabric.toml").write_text(description.dumps(fabric))
        spot.config.write_text(configuration(fabric, peers, settings))
        if not crowd:
            yield fabric, spot.config
            return
        for plane in range(PLANES):
            _send_all_to(name, fabric, plane)
        crowd_process = processes.spawn(
            f"{name}-{CROWD}",
            [sys.executable, "-m", "rigs.crowd", str(spot.folder / "fabric.toml"), US],
        )
        try:
            yield fabric, spot.config
        finally:
            crowd_process.terminate()
            crowd_process.wait(10)


def _send_all_to(name: str, fabric: Fabric, plane: int) -> None:
    """Make T0 2 of a plane send the packets for all of its hosts to h2's NIC."""
    number = usid.usid(plane, usid.ROLE_HOST, 0)
    address = usid.locator(fabric.block, number).network_address
    route = ["replace", f"{address}/{_HOST_USIDS}", "via", "fe80::2", "dev", "port1"]
    space = f"{name}-{naming.t0(plane, 2)}"
    subprocess.run(["ip", "-n", space, "-6", "route", *route], check=True, timeout=10)


# ---- figures ---------------------------------------------------------------------------------


def measured(
    name: str, peers: int, seconds: float, settings: str, *, crowd: bool
) -> Iterator[Line]:
    """Measure one daemon with `peers` peers, all absent or all established."""
    where = f"{peers} peers, {'established' if crowd else 'absent'}"

    def line(what: str, unit: str, value: float, most: float | None = None) -> Line:
        return Line("scale", where, what, unit, (value,), None if most is None else at_most(most))

    with host_with(name, peers, settings, crowd=crowd) as (fabric, config):
        started = start(name)
        daemon = started.daemon
        yield line("start until it answers", "s", started.ready_s)
        yield line("child that compiles, PSS", "MB", started.child_pss)
        if crowd:
            yield line("until all are established", "s", _all_established(daemon, peers))
        small = 250 if peers <= 1000 else None
        quiet = 2 * OFFERS_PER_S + 200 + (2000 if crowd else 0)
        yield line("until only the idle remains", "s", daemon.settle(quiet))
        if crowd:
            yield line("until keepalives have their pace", "s", daemon.calm(peers))
        yield from _idle(daemon, line, seconds)
        if len(os.sched_getaffinity(0)) > 1:
            _steer(name, daemon)
            before = daemon.sample()
            time.sleep(seconds)
            after = daemon.sample()
            share = 100 * (after.cpu_s - before.cpu_s) / (after.at_s - before.at_s)
            yield line("idle, CPU, the lab's switches on another one", "%", share, 1)
        memory = memory_of(daemon.pid)
        yield line("daemon, RSS", "MB", memory.rss, small)
        yield line("daemon, PSS", "MB", memory.pss, small)
        yield line("maps", "MB", memory.maps)
        yield line("mrcctl status", "s", daemon.mrcctl("status"))
        yield line("mrcctl peer list", "s", daemon.mrcctl("peer", "list"))
        top = daemon.mrcctl("top", "--interval", "1", "--count", "2")
        yield line("mrcctl top, two frames a second apart", "s", top)
        yield line("mrcctl peer list --json", "s", daemon.mrcctl("peer", "list", "--json"))
        yield line("mrcctl stats", "s", daemon.mrcctl("stats"))
        yield from _largest(daemon, line)
        more = config.with_name("more.toml")
        more.write_text(configuration(fabric, peers + 1, settings))
        yield line("config apply, one peer more", "s", daemon.mrcctl("config", "apply", str(more)))
        yield line(
            "config apply, one peer less", "s", daemon.mrcctl("config", "apply", str(config))
        )
        memory = memory_of(daemon.pid)
        yield line("daemon after that, RSS", "MB", memory.rss, small)
        yield line("daemon, the most it ever had", "MB", memory.peak)
        if not crowd:
            yield line("a peer comes up, until established", "s", _comes_up(name, fabric, settings))


def _largest(daemon: Daemon, line: Callable[..., Line]) -> Iterator[Line]:
    """Yield the largest maps."""
    sizes, names = maps_of(daemon.pid), {}
    folder = next(state.places(daemon.name, US).bpffs.glob("layout-*"))
    for pin in folder.iterdir():
        if pin.is_file():
            with bpf.opened(pin) as fd:
                names[bpf.map_id(fd)] = pin.name
    for ident, size in sorted(sizes.items(), key=lambda item: -item[1])[:LARGEST]:
        yield line(f"maps: {names.get(ident, ident)}", "MB", size / 1e6)


def _comes_up(name: str, fabric: Fabric, settings: str) -> float:
    """Start the peer that is a host of the lab; return the s from its data path to our session."""
    spot = state.places(name, CROWD)
    known = replace(fabric, hosts=tuple(fabric.hosts[:2]))
    (spot.folder / "fabric.toml").write_text(description.dumps(known))
    own = f'[host]\nname = "{CROWD}"\nfabric = "fabric.toml"\n'
    spot.config.write_text(f"{own}{INSECURE}{settings}")
    lab.start_daemon(name, CROWD)
    end = time.monotonic() + _ANSWER_S
    while time.monotonic() < end:
        began = _logged(name, CROWD, "datapath.attached")
        there = _logged(name, US, "peer.established")
        if began is not None and there is not None:
            return (there - began).total_seconds()
        time.sleep(0.2)
    raise BenchFailed(f"{CROWD} was not heard within {_ANSWER_S:.0f} s")


def _logged(name: str, host: str, event: str) -> datetime | None:
    """Return when a daemon first logged an event; None if it has not."""
    for text in state.places(name, host).log.read_text().splitlines():
        if f'"event": "{event}"' in text:
            return datetime.fromisoformat(json.loads(text)["time"])
    return None


def _all_established(daemon: Daemon, peers: int) -> float:
    began = time.monotonic()
    while True:
        with daemon.client as client:
            up = client.status().peers_up
        if up == peers:
            return time.monotonic() - began
        if time.monotonic() - began > _ANSWER_S:
            raise BenchFailed(f"{up} of {peers} peers are established after {_ANSWER_S:.0f} s")
        time.sleep(0.2)


def _steer(name: str, daemon: Daemon) -> None:
    """Run the daemon on the first CPU, and the lab's switches that forward its packets on the next.

    The switches forward in the sender's context, a cost that a host with real NICs does not have.
    """
    for plane in range(PLANES):
        space = f"{name}-{naming.t0(plane, 1)}"
        command = "echo 2 > /sys/class/net/port1/queues/rx-0/rps_cpus"
        subprocess.run(["ip", "netns", "exec", space, "sh", "-c", command], check=True, timeout=10)
    for task in Path(f"/proc/{daemon.pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {0})


def _idle(daemon: Daemon, line: Callable[..., Line], seconds: float) -> Iterator[Line]:
    before = daemon.sample(counters=True)
    time.sleep(seconds)
    after = daemon.sample(counters=True)
    took = after.at_s - before.at_s
    yield line("idle, CPU", "%", 100 * (after.cpu_s - before.cpu_s) / took)
    yield line("idle, CPU in user space", "%", 100 * (after.user_s - before.user_s) / took)
    yield line("idle, packets sent", "/s", (after.sent - before.sent) / took)
    for name in ("probe_tx", "probe_missed", "survey_tx", "control_rx"):
        rate = (after.counters[name] - before.counters[name]) / took
        yield line(f"idle, {name}", "/s", rate)
