# SPDX-License-Identifier: GPL-2.0-only
"""Build hosts without a fabric: namespaces with cables, a bridge or a router between their NICs."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cli.console.client import Client
from cli.console.exits import CommandError
from cli.lab import processes, state
from mrcd.config import keyfiles
from mrcd.handshake import identity
from mrcd.linux import mounts, netns
from mrcd.model import Status
from rigs.lab_hosts import eventually
from rigs.traffic import transfer

HOSTS = ("a", "b")
INNER = {"a": "10.99.0.1", "b": "10.99.0.2"}
MIDDLE = "m"
STARTED_S = 240.0  # compiling takes seconds, and far longer on a busy machine


@dataclass
class Bare:
    """Two hosts, `a` and `b`, with NICs eth1, eth2, ...; and `m` between them, if anything is."""

    prefix: str
    planes: int
    mtu: int = 1500
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="mrcd-bare-")))
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    spaces: list[str] = field(default_factory=list)

    # ---- namespaces

    def namespace(self, node: str) -> str:
        return f"{self.prefix}-{node}"

    def run(self, node: str, *command: str, check: bool = True) -> str:
        """Run a command in a node's namespace, and return its output."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.namespace(node), *command],
            capture_output=True, text=True, timeout=50, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command} in {node}: {done.stderr}"
        return done.stdout

    def ip(self, node: str, words: str) -> str:
        return self.run(node, "ip", *words.split())

    def add(self, node: str) -> None:
        """Make a namespace."""
        netns.prepare_run_dir()
        netns.create(self.namespace(node))
        self.spaces.append(node)
        self.ip(node, "link set lo up")

    def cable(self, one: str, nic: str, other: str, other_nic: str, mtu: int | None = None) -> None:
        """Lay a cable between two NICs, which have their usual link-local addresses then."""
        mtu = self.mtu if mtu is None else mtu
        there = self.namespace(other)
        self.ip(one, f"link add {nic} mtu {mtu} type veth peer {other_nic} mtu {mtu} netns {there}")
        for node, name in ((one, nic), (other, other_nic)):
            self.ip(node, f"link set {name} up")

    def link_local(self, node: str, nic: str) -> str:
        """Return the link-local address of a NIC, once it may be used."""

        def found() -> str:
            shown = self.ip(node, f"-6 -br address show dev {nic} scope link -tentative")
            return next((w for w in shown.split() if w.startswith("fe80")), "").partition("/")[0]

        return str(eventually(found, f"{nic} of {node} has a link-local address"))

    # ---- daemons

    def write_secret(self) -> None:
        keyfiles.write(self.folder / "secret", identity.Secret(os.urandom(32)))

    def config(self, host: str) -> Path:
        return self.folder / host / "mrcd.toml"

    def configure(self, host: str, endpoints: list[str], extra: str = "") -> None:
        """Write the configuration of a host whose peer has these addresses."""
        other = "b" if host == "a" else "a"
        nics = "".join(f'[[plane]]\ninterface = "eth{k + 1}"\n' for k in range(self.planes))
        place = self.config(host)
        place.parent.mkdir(exist_ok=True)
        place.write_text(
            f'[host]\nname = "{host}"\n[mrc0]\naddresses = ["{INNER[host]}/24"]\n'
            f'[keys]\nsecret_file = "../secret"\n[service]\non_stop = "detach"\n{extra}{nics}'
            f'[[peer]]\nname = "{other}"\nendpoints = {json.dumps(endpoints)}\n'
            f'allowed = ["{INNER[other]}/32"]\n'
        )

    def start(self, host: str) -> None:
        """Start the mrcd of a host."""
        home = self.folder / host
        pins = self.folder / "bpf"
        pins.mkdir(exist_ok=True)
        if not mounts.is_mounted(pins):
            mounts.mount_bpffs(pins)
        command = [
            *processes.daemon_command(), "--config", str(self.config(host)),
            "--socket", str(home / "mrcd.sock"), "--state-dir", str(home),
            "--cache-dir", str(state.CACHE_DIR), "--bpffs", str(pins / host),
        ]  # fmt: skip
        with (home / "mrcd.log").open("ab") as log:
            self.processes[host] = processes.spawn(
                self.namespace(host), command, stdout=log, stderr=subprocess.STDOUT
            )

    def reload(self, host: str) -> None:
        self.processes[host].send_signal(signal.SIGHUP)

    def stop(self, host: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End the mrcd of a host, and wait for its end."""
        process = self.processes.pop(host)
        process.send_signal(number)
        process.wait(30)

    def client(self, host: str) -> Client:
        return Client(str(self.folder / host / "mrcd.sock"))

    def status(self, host: str) -> Status | None:
        """Return the status of a host's mrcd, or None if it does not answer."""
        try:
            with self.client(host) as client:
                return client.status()
        except CommandError:
            return None

    def sent(self, host: str = "a") -> list[int]:
        """Return the bytes that a host has sent on each plane."""
        now = self.status(host)
        assert now is not None
        return [plane.tx_bytes for plane in now.planes]

    def carried(self, size: int = 8 << 20) -> list[int]:
        """Send by TCP from a to b; return what each plane of `a` sent meanwhile, in bytes."""
        before = self.sent()
        transfer(self, "a", "b", INNER["b"], size)
        return [now - then for now, then in zip(self.sent(), before, strict=True)]

    def ok(self, host: str) -> bool:
        now = self.status(host)
        if self.processes[host].poll() is not None:
            raise AssertionError(f"mrcd of {host} ended:\n{self.log(host)[-3000:]}")
        return now is not None and now.state == "ok"

    def said(self, host: str) -> list[str] | None:
        """Return all that the status of a host names; None if its mrcd does not answer."""
        now = self.status(host)
        return None if now is None else [*now.reasons, *now.warnings]

    def log(self, host: str) -> str:
        return (self.folder / host / "mrcd.log").read_text()

    def counters(self, host: str) -> dict[str, int]:
        with self.client(host) as client:
            return {counter.name: counter.value for counter in client.stats().counters}

    def peer(self, host: str) -> Any:
        """Return what a host says of the other."""
        with self.client(host) as client:
            (found,) = client.peers()["peers"]
            return found

    def settle(self) -> None:
        """Wait until both hosts report ok, and send on every plane."""
        for host in HOSTS:
            eventually(lambda host=host: self.ok(host), f"{host} is ok", STARTED_S)
            eventually(
                lambda host=host: len(self.peer(host).planes_usable) == self.planes,
                f"{host} uses all planes", 20,
            )  # fmt: skip

    def begin(self) -> None:
        """Start both daemons, and wait until they reach each other."""
        for host in HOSTS:
            self.start(host)
        self.settle()

    def close(self) -> None:
        """Remove everything."""
        for host in list(self.processes):
            try:
                self.stop(host)
            except subprocess.TimeoutExpired:
                self.stop_hard(host)
        for node in self.spaces:
            netns.delete(self.namespace(node))
        mounts.unmount(self.folder / "bpf")
        shutil.rmtree(self.folder)

    def stop_hard(self, host: str) -> None:
        self.stop(host, signal.SIGKILL)


def nic(plane: int) -> str:
    return f"eth{plane + 1}"


def address_of(bare: Bare, host: str, plane: int) -> str:
    """Return the address by which a host's NIC is known: a global one if it has any."""
    shown = bare.ip(host, f"-br address show dev {nic(plane)} scope global").split()
    for word in shown[2:]:
        return word.partition("/")[0]
    return f"{bare.link_local(host, nic(plane))}%{nic(plane)}"


# ---- what is between the hosts


def cables(bare: Bare) -> None:
    """Back to back."""
    for plane in range(bare.planes):
        bare.cable("a", nic(plane), "b", nic(plane))


def bridge(bare: Bare) -> None:
    """A switch for each plane."""
    bare.add(MIDDLE)
    for plane in range(bare.planes):
        bare.ip(MIDDLE, f"link add br{plane} type bridge")
        bare.ip(MIDDLE, f"link set br{plane} up")
        for host in HOSTS:
            bare.cable(host, nic(plane), MIDDLE, f"{host}{plane}")
            bare.ip(MIDDLE, f"link set {host}{plane} master br{plane}")


def subnet(host: str, plane: int) -> str:
    return f"10.{plane}.{HOSTS.index(host)}"


def router4(bare: Bare) -> None:
    """A router, and IPv4 addresses in a subnet of each NIC."""
    bare.add(MIDDLE)
    bare.run(MIDDLE, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    for plane in range(bare.planes):
        for host, other in (("a", "b"), ("b", "a")):
            bare.cable(host, nic(plane), MIDDLE, f"{host}{plane}")
            bare.ip(MIDDLE, f"address add {subnet(host, plane)}.1/24 dev {host}{plane}")
            bare.ip(host, f"address add {subnet(host, plane)}.2/24 dev {nic(plane)}")
            gateway, there = f"{subnet(host, plane)}.1", f"{subnet(other, plane)}.0/24"
            bare.ip(host, f"route add {there} via {gateway} dev {nic(plane)}")


def router6(bare: Bare) -> None:
    """A router, and IPv6 addresses in a subnet of each NIC."""
    bare.add(MIDDLE)
    bare.run(MIDDLE, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
    for plane in range(bare.planes):
        for host, other in (("a", "b"), ("b", "a")):
            here, there = (f"2001:db8:{plane}:{HOSTS.index(each)}" for each in (host, other))
            bare.cable(host, nic(plane), MIDDLE, f"{host}{plane}")
            bare.ip(MIDDLE, f"address add {here}::1/64 dev {host}{plane} nodad")
            bare.ip(host, f"address add {here}::2/64 dev {nic(plane)} nodad")
            bare.ip(host, f"route add {there}::/64 via {here}::1 dev {nic(plane)}")


def subnet4(bare: Bare) -> None:
    """Cables, and IPv4 addresses of one subnet for each plane."""
    cables(bare)
    for plane in range(bare.planes):
        for number, host in enumerate(HOSTS, 1):
            bare.ip(host, f"address add 192.168.{plane}.{number}/24 dev {nic(plane)}")


def flat(bare: Bare) -> None:
    """One switch for all NICs, and IPv4 addresses of one subnet."""
    bare.add(MIDDLE)
    bare.ip(MIDDLE, "link add br0 type bridge")
    bare.ip(MIDDLE, "link set br0 up")
    for plane in range(bare.planes):
        for number, host in enumerate(HOSTS, 1):
            bare.cable(host, nic(plane), MIDDLE, f"{host}{plane}")
            bare.ip(MIDDLE, f"link set {host}{plane} master br0")
            bare.ip(host, f"address add 192.168.0.{10 * plane + number}/24 dev {nic(plane)}")


def set_offloads(bare: Bare, settings: str) -> None:
    """Set offloads of all NICs of both hosts, as `ethtool -K` takes them.

    A cable carries a large segment whole, whatever its MTU, unless they are off at its sender.
    """
    for host in HOSTS:
        for plane in range(bare.planes):
            bare.run(host, "ethtool", "-K", nic(plane), *settings.split())


def treat(bare: Bare, rules: str, planes: Sequence[int], ways: Sequence[str] = HOSTS) -> None:
    """Have what is between the hosts treat packets that come from some of them by some planes.

    `rules` are of nftables' family netdev.
    """
    ports = ", ".join(f"{host}{plane}" for plane in planes for host in ways)
    chain = f"type filter hook ingress devices = {{ {ports} }} priority 0;"
    bare.run(MIDDLE, "nft", f"table netdev t {{ chain c {{ {chain} {rules}; }}; }}")


def treat_no_more(bare: Bare) -> None:
    bare.run(MIDDLE, "nft", "delete table netdev t")


BUILDERS: dict[str, Callable[[Bare], None]] = {
    each.__name__: each for each in (cables, bridge, router4, router6, subnet4)
}


# ---- hosts for a test


Make = Callable[..., Bare]
"""Build hosts with something between them, and with more in their configurations if it is given."""
_NUMBERS = itertools.count()


def building(prefix: str, planes: int) -> Iterator[Make]:
    """Yield what builds hosts, and remove them all at the end. `prefix` begins their names."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    made: list[Bare] = []

    def build(how: Callable[[Bare], None], extra: str = "", mtu: int = 1500) -> Bare:
        bare = Bare(f"{prefix}{os.getpid()}{next(_NUMBERS)}", planes, mtu)
        made.append(bare)
        for host in HOSTS:
            bare.add(host)
        bare.write_secret()
        how(bare)
        configure(bare, extra)
        return bare

    try:
        yield build
    finally:
        for bare in made:
            bare.close()


def configure(bare: Bare, extra: str) -> None:
    """Write both hosts' configurations, with more in them."""
    for host, other in (HOSTS, HOSTS[::-1]):
        bare.configure(host, [address_of(bare, other, k) for k in range(bare.planes)], extra)
