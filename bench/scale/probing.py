# SPDX-License-Identifier: GPL-2.0-only
"""Measure the cost of probing idle paths in packets per second, for 10, 100 and 1,000 peers.

    python -m bench.scale.probing [--peers 10 100 1000] [--real 10] [--seconds 10]

The figures are computed from the configuration, and measured. With up to --real peers, each is a
host of a lab with its own daemon. With more, one daemon has a fabric file with that many hosts, of
which one exists. The QPs of the others are programmed as if their hand-shake had happened, so the
data path probes all of them without an answer: the worst case, in which all peers die at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_interface
from pathlib import Path

from bench.instruments import entry, flow, path_states
from bench.instruments.flow import BenchFailed
from bench.instruments.processor import cpu_s
from bench.instruments.result import Line, table
from cli.lab import lab, state
from mrcd.config import config as daemon_config
from mrcd.config.config import Config
from mrcd.config.sections import Transport
from mrcd.datapath import adoption, pins
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.qptable import QpTable
from mrcd.datapath.tuning import PROBE_IDLE_NS
from mrcd.fabric import description
from mrcd.fabric.description import Fabric, Host
from mrcd.handshake import LocalQp, Pace, RemoteQp
from mrcd.linux import interfaces, netns

PLANES, T1 = 4, 2
_MTU = 1500  # the rings of many daemons on one machine
_MANY = "[transport]\nmpr = 128\nring_slots = 1024\n"
_READY_S = 120.0


def computed(peers: int, planes: int, transport: Transport) -> Iterator[Line]:
    """Yield what an idle daemon should send when all peers are healthy."""
    where = f"{peers} peers, computed"
    asked, probes = _idle_probes(peers, planes, transport)
    offers = peers * 1e9 / Pace(answering=peers).keepalive_ns
    yield Line("probing", where, "paths to watch: planes of QPs", "",
               (float(peers * transport.qps_per_peer * planes),))  # fmt: skip
    yield Line("probing", where, "probes", "/s", (probes,))
    yield Line("probing", where, "Offers", "/s", (offers,))
    every = asked / probes * PROBE_IDLE_NS / 1e9 if probes else 0.0
    yield Line("probing", where, "each plane of a QP is asked every", "s", (every,))


def _idle_probes(peers: int, planes: int, transport: Transport) -> tuple[float, float]:
    """Return the probes per second: wanted, and allowed by the budget."""
    wanted = peers * transport.qps_per_peer * planes * 1e9 / PROBE_IDLE_NS
    return wanted, min(wanted, transport.probe_pps / 2)


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of a host at a time."""

    at_ns: int
    counters: dict[str, int]
    sent: int
    received: int
    cpu_s: float


def _sample(name: str, host: str) -> Sample:
    with netns.entered(f"{name}-{host}"):
        nics = [each for nic, each in interfaces.traffic().items() if nic.startswith("plane")]
    counters = path_states.counters(name, host)
    return Sample(
        time.monotonic_ns(),
        counters,
        sum(nic.tx_packets for nic in nics),
        sum(nic.rx_packets for nic in nics),
        _cpu_s(name, host),
    )


def _cpu_s(name: str, host: str) -> float:
    pid = lab.daemon_pid(name, host)
    if pid is None:
        raise BenchFailed(f"mrcd of {host} is not running")
    return cpu_s(pid)


def _rates(where: str, before: Sample, after: Sample) -> Iterator[Line]:
    seconds = (after.at_ns - before.at_ns) / 1e9

    def line(what: str, unit: str, value: float) -> Line:
        return Line("probing", where, what, unit, (value / seconds,))

    yield line("packets sent on all planes", "/s", after.sent - before.sent)
    yield line("packets received on all planes", "/s", after.received - before.received)
    for name in ("probe_tx", "probe_rx", "probe_missed", "control_rx"):
        if name in after.counters:
            yield line(name, "/s", after.counters[name] - before.counters[name])
    yield line("CPU of the daemon", "%", 100 * (after.cpu_s - before.cpu_s))


def real(name: str, peers: int, seconds: float) -> Iterator[Line]:
    """Measure a lab of `peers` + 1 hosts, all idle and established."""
    fabric = _fabric(name, peers + 1)
    with flow.fabric_up(fabric):
        time.sleep(3)  # let the messages of the start pass
        before = _sample(name, "h1")
        time.sleep(seconds)
        yield from _rates(f"{peers} peers, idle", before, _sample(name, "h1"))


def _fabric(name: str, hosts: int) -> Fabric:
    """Return a fabric of `hosts` hosts on up to 8 T0s, neighbours on different ones."""
    two = description.generate(name=name, planes=PLANES, t1=T1, mtu=_MTU)
    t0s = min(8, hosts)
    members = tuple(
        Host(
            name=f"h{i + 1}",
            t0=i % t0s + 1,
            port=i // t0s + 1,
            addresses=(ip_interface(f"10.99.{(i + 1) >> 8}.{(i + 1) & 255}/16"),),
        )
        for i in range(hosts)
    )
    return description.checked(replace(two, hosts=members, t0=t0s))


def absent(name: str, peers: int, seconds: float) -> Iterator[Line]:
    """Measure one real peer; the other peers' QPs are programmed, and probes get no answer."""
    big = _fabric(name, peers + 1)
    small = replace(big, hosts=big.hosts[:2], t0=2)
    with flow.fabric_up(small, daemons=False):
        config = _configure(name, "h1", big)
        _configure(name, "h2", small)
        for host in ("h1", "h2"):
            lab.start_daemon(name, host)
        _wait_established(name, "h1", "h2")
        where = f"{peers} peers, {peers - 1} never there"
        yield from _measured(name, where, seconds)
        began = time.monotonic()
        _program(config, state.places(name, "h1").bpffs)
        took = time.monotonic() - began
        where = f"{peers} peers, {peers - 1} dead at once"
        yield Line("probing", where, "time to program their QPs", "s", (took,))
        yield from _measured(name, f"{where}, at first", seconds)
        # Wait until every plane of every QP was probed three times: then all are known to be dead.
        wanted, allowed = _idle_probes(peers, PLANES, config.transport)
        time.sleep(2 * PROBE_IDLE_NS / 1e9 * wanted / allowed)
        yield from _measured(name, f"{where}, all known", seconds)


def _measured(name: str, where: str, seconds: float) -> Iterator[Line]:
    before = _sample(name, "h1")
    time.sleep(seconds)
    yield from _rates(where, before, _sample(name, "h1"))


def _configure(name: str, host: str, fabric: Fabric) -> Config:
    """Write a separate fabric file for the host, with small windows; return its configuration."""
    spot = state.places(name, host)
    (spot.folder / "fabric.toml").write_text(description.dumps(fabric))
    text = f'[host]\nname = "{host}"\nfabric = "fabric.toml"\n[keys]\ninsecure = true\n{_MANY}'
    spot.config.write_text(text)
    return daemon_config.load(spot.config)


def _wait_established(name: str, host: str, peer: str) -> None:
    end = time.monotonic() + _READY_S
    while time.monotonic() < end:
        if state.places(name, host).socket.exists():
            states = {each.name: each.state for each in path_states.peers(name, host)}
            if states.get(peer) == "established":
                return
        time.sleep(0.2)
    raise BenchFailed(f"{host} did not connect to {peer} within {_READY_S:.0f} s")


def _program(config: Config, pinned: Path) -> None:
    """Write the QPs of all peers except the real one, as their hand-shake would."""
    needed = adoption.sizes_of(config)
    home = pins.layout(pinned, adoption.layout_of(config, needed))
    found = adoption.find(pinned, home.name.removeprefix("layout-"), needed)
    assert found.sizes is not None, found.refused
    datapath = Datapath(home, found.sizes)
    datapath.open(next(home.glob("code-*")))
    try:
        qps = QpTable(datapath, lambda: config)
        qps.adopt()
        for peer in config.peers:
            if peer.name == "h2":
                continue
            qps.add_peer(peer)
            pairs = tuple(
                (LocalQp(index, 1 << 16 | index, 1), RemoteQp(1 << 16 | index, 1))
                for index in qps.qps_of(peer.name)
            )
            qps.configure(peer.name, pairs, config.transport.mpr)
            qps.ready(peer.name)
    finally:
        datapath.close()


def main() -> None:
    """Compute, measure and print the figures."""
    parser = entry.parser(__doc__, name="probing", seconds=10)
    parser.add_argument("--peers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--real", type=int, default=10, help="up to this many are real hosts")
    args = parser.parse_args()
    entry.begin("bench")
    lines: list[Line] = []
    for peers in args.peers:
        lines += computed(peers, PLANES, Transport())
        measured = real if peers <= args.real else absent
        lines += measured(args.name, peers, args.seconds)
    print(f"== probing: {PLANES} planes x {T1} T1, defaults but for windows, idle")
    print(table(lines))
    entry.save(args.json, entry.plain(lines))


if __name__ == "__main__":
    main()
