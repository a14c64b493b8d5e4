# SPDX-License-Identifier: GPL-2.0-only
"""Build hosts on a bridge for each plane, without a fabric, whose ports can be made to fail."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cli.lab import delays, impair
from cli.lab.faults import Impairment
from mrcd.handshake import identity
from mrcd.linux import netns
from mrcd.linux.netlink import Netlink
from rigs.bare_hosts import MIDDLE, STARTED_S, Bare, nic
from rigs.lab_hosts import ROOT, eventually

_PRIO = 1


class Grey(Bare):
    """Hosts `a`, `b`, ... with NICs eth1, eth2, ... on the bridges br0, br1, ... in `m`.

    Port a0 is where eth1 of a is plugged in: what a sends enters the bridge there.
    """

    hosts: tuple[str, ...] = ()

    def build(self, hosts: int) -> None:
        """Make the hosts, their cables and the bridges."""
        self.hosts = tuple("abcdefgh"[:hosts])
        self.add(MIDDLE)
        for plane in range(self.planes):
            self.ip(MIDDLE, f"link add br{plane} type bridge mcast_snooping 0")
            self.ip(MIDDLE, f"link set br{plane} up")
        for host in self.hosts:
            self.add(host)
            for plane in range(self.planes):
                self.cable(host, nic(plane), MIDDLE, f"{host}{plane}")
                self.ip(MIDDLE, f"link set {host}{plane} master br{plane}")

    def inner(self, host: str) -> str:
        return f"10.99.0.{1 + self.hosts.index(host)}"

    def configure_all(self, extra: str = "") -> None:
        """Write the configuration of each host, with all others as its peers."""
        self.write_secret()
        addresses = {
            (host, plane): self.link_local(host, nic(plane))
            for host in self.hosts
            for plane in range(self.planes)
        }
        nics = "".join(f'[[plane]]\ninterface = "{nic(k)}"\n' for k in range(self.planes))
        for host in self.hosts:
            place = self.config(host)
            place.parent.mkdir(exist_ok=True)
            text = (
                f'[host]\nname = "{host}"\n[mrc0]\naddresses = ["{self.inner(host)}/24"]\n'
                '[keys]\nsecret_file = "../secret"\n[service]\non_stop = "detach"\n'
                f"{extra}{nics}"
            )
            for other in self.hosts:
                if other != host:
                    there = [f"{addresses[other, k]}%{nic(k)}" for k in range(self.planes)]
                    text += (
                        f'[[peer]]\nname = "{other}"\nendpoints = {json.dumps(there)}\n'
                        f'allowed = ["{self.inner(other)}/32"]\n'
                    )
            place.write_text(text)

    def begin_all(self) -> None:
        """Start all daemons, and wait until each has a session with all others."""
        for host in self.hosts:
            self.start(host)
        for host in self.hosts:
            eventually(lambda host=host: self.ok(host), f"{host} is ok", STARTED_S)
            eventually(lambda host=host: self._hears_all(host), f"{host} hears all", 30)

    def _hears_all(self, host: str) -> bool:
        with self.client(host) as client:
            return client.faults()["survey"].hosts_heard == len(self.hosts) - 1

    def named(self, host: str) -> dict[str, str]:
        """Return what a host names: kinds by element."""
        with self.client(host) as client:
            return {fault.element: fault.kind for fault in client.faults()["faults"]}

    # ---- hosts that only watch

    def watch(self, host: str, secret: str, *more: str) -> None:
        """Start `mrcctl watch` on all NICs of a host; what it prints is in its folder."""
        home = self.folder / host
        home.mkdir(exist_ok=True)
        nics = [nic(plane) for plane in range(self.planes)]
        command = [sys.executable, "-m", "cli", "watch", *nics, "--name", host, "--json", *more]
        with (
            (home / "watch.out").open("wb") as out,
            (home / "watch.err").open("wb") as err,
            netns.entered(self.namespace(host)),
        ):
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=err, cwd=ROOT
            )
        assert process.stdin is not None
        process.stdin.write(f"{secret}\n".encode())
        process.stdin.close()
        self.processes[host] = process

    def watch_all(self, *more: str) -> None:
        """Start it everywhere, and wait until each host hears all others."""
        secret = identity.encode_key(os.urandom(identity.KEY_BYTES))
        for host in self.hosts:
            self.watch(host, secret, *more)
        for host in self.hosts:
            for other in self.hosts:
                if other != host:
                    eventually(
                        lambda host=host, other=other: f"{other} is here" in self.told(host),
                        f"{host} hears {other}", 30,
                    )  # fmt: skip

    def told(self, host: str) -> str:
        return (self.folder / host / "watch.err").read_text()

    def lines(self, host: str) -> list[dict[str, object]]:
        text = (self.folder / host / "watch.out").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def watched(self, host: str) -> dict[str, str]:
        """Return what `mrcctl watch` of a host names now: kinds by element."""
        found: dict[str, str] = {}
        for line in self.lines(host):
            if line["event"] == "named":
                found[str(line["element"])] = str(line["kind"])
            else:
                found.pop(str(line["element"]), None)
        return found

    # ---- faults

    def impair(self, port: str, way: str, **share: int) -> None:
        """Drop or corrupt packets at a port, by the million; `way` is ingress or egress."""
        asyncio.run(self._attach(port, way, impair.load(Impairment(**share)), 0))

    def delay(self, port: str, delay_us: int) -> None:
        """Hold the packets that leave by a port."""
        delays.start(self.namespace(MIDDLE), port, delay_us)
        asyncio.run(self._attach(port, "egress", -1, delay_us))

    async def _attach(self, port: str, way: str, program: int, delay_us: int) -> None:
        async with Netlink(self.namespace(MIDDLE)) as nl:
            await nl.links()
            if delay_us:
                tap = delays.tap(port)
                await nl.set_link(tap, up=True, mtu=self.mtu)
                program = impair.load(Impairment(), nl.index(tap), once=True)
            try:
                await nl.replace_qdisc_clsact(port)
                await nl.attach_clsact(
                    port, program, prog_name="lab_fault", prio=_PRIO, direction=way
                )
            finally:
                os.close(program)

    def heal(self, port: str) -> None:
        """End what `impair` and `delay` did to a port."""
        asyncio.run(self._heal(port))

    async def _heal(self, port: str) -> None:
        async with Netlink(self.namespace(MIDDLE)) as nl:
            await nl.links()
            await nl.delete_clsact(port)
        delays.stop(list(delays.running(self.namespace(MIDDLE), port)))

    def rule(self, port: str, rule: str, hook: str = "ingress") -> None:
        """Have nftables treat packets at a port."""
        chain = f"type filter hook {hook} device {port} priority 0;"
        self.run(MIDDLE, "nft", f"table netdev t {{ chain {port}{hook} {{ {chain} {rule}; }}; }}")

    def rule_no_more(self) -> None:
        self.run(MIDDLE, "nft", "delete table netdev t", check=False)

    def mac(self, host: str, plane: int) -> str:
        (found,) = json.loads(self.ip(host, f"-j link show dev {nic(plane)}"))
        return str(found["address"])


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of grey failure: how it is put in, how it is ended, and what is to be named.

    `expected`: the elements, with the kind each is named as.
    """

    name: str
    begin: Callable[[Grey], None]
    end: Callable[[Grey], None]
    expected: dict[str, str]
    within_s: float


def _both(grey: Grey) -> None:
    there = grey.mac("c", 0)
    grey.rule("a0", f"ether daddr {there} drop")
    grey.rule("c0", f"ether daddr {grey.mac('a', 0)} drop")


def _network(grey: Grey) -> None:
    for host in grey.hosts:
        grey.impair(f"{host}1", "ingress", drop_ppm=20_000)


def _network_heals(grey: Grey) -> None:
    for host in grey.hosts:
        grey.heal(f"{host}1")


def _flap(grey: Grey) -> None:
    for _ in range(4):
        grey.ip(MIDDLE, "link set a0 down")
        eventually(lambda: "NO-CARRIER" in grey.ip("a", "link show dev eth1"), "no carrier")
        grey.ip(MIDDLE, "link set a0 up")
        eventually(lambda: "NO-CARRIER" not in grey.ip("a", "link show dev eth1"), "a carrier")


def _drop_by_port(grey: Grey) -> None:
    """As one of a bond's two legs that swallows all while its carrier is up."""
    grey.rule("a0", "jhash udp sport mod 2 0 drop")


_NO_RULE = Grey.rule_no_more

KINDS = (
    Kind(
        "1 % of what a NIC sends is lost",
        lambda g: g.impair("a0", "ingress", drop_ppm=10_000),
        lambda g: g.heal("a0"),
        {"a:eth1 sending": "loss"}, 20,
    ),
    Kind(
        "5 % of what a NIC receives is lost",
        lambda g: g.impair("b0", "egress", drop_ppm=50_000),
        lambda g: g.heal("b0"),
        {"b:eth1 receiving": "loss"}, 15,
    ),
    Kind(
        "a pair hears nothing of each other in one plane",
        _both, _NO_RULE, {"between a:eth1 and c:eth1": "dead"}, 10,
    ),
    Kind(
        "a NIC receives nothing, and its carrier is up",
        lambda g: g.impair("b0", "egress", drop_ppm=1_000_000),
        lambda g: g.heal("b0"),
        {"b:eth1 receiving": "dead"}, 10,
    ),
    Kind(
        "a plane's network loses 2 %",
        _network, _network_heals, {"network of plane 1": "loss"}, 20,
    ),
    Kind(
        "only long packets of a NIC are lost",
        lambda g: g.rule("a0", "meta length > 1000 drop"), _NO_RULE,
        {"a:eth1 sending": "loss"}, 10,
    ),
    Kind(
        "a leg of a bond swallows what a hash gives it",
        _drop_by_port, _NO_RULE, {"a:eth1 sending": "loss"}, 10,
    ),
    Kind(
        "3 % of what a NIC sends are damaged",
        lambda g: g.impair("c1", "ingress", corrupt_ppm=30_000),
        lambda g: g.heal("c1"),
        {"c:eth2 sending": "damage"}, 20,
    ),
    Kind(
        "what a NIC receives is 20 ms late",
        lambda g: g.delay("b0", 20_000),
        lambda g: g.heal("b0"),
        {"b:eth1 receiving": "slow"}, 40,
    ),
    Kind(
        "what a NIC sends to another comes twice",
        lambda g: g.rule("a0", "dup to b0"), _NO_RULE,
        {"a:eth1 to b:eth1": "repeat"}, 30,
    ),
    Kind(
        "a NIC flaps",
        _flap, lambda g: None, {"a:eth1": "flap"}, 15,
    ),
)  # fmt: skip


def building(prefix: str, planes: int, hosts: int) -> Iterator[Grey]:
    """Yield hosts on bridges, and remove them at the end."""
    made = Grey(f"{prefix}{os.getpid()}", planes)
    try:
        made.build(hosts)
        yield made
    finally:
        made.close()
