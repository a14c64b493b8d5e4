# SPDX-License-Identifier: GPL-2.0-only
"""Hosts in subnets of their own, with routers in between, which find each other by a seed."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from mrcd.handshake import unicast
from mrcd.linux import netns
from rigs.quick_hosts import Cluster, finished

LEAST = 300
"""No Hello is shorter, bytes."""
SEEDED = ("--wait", "240")


class RoutedCluster(Cluster):
    """Hosts that are plugged into a router for each plane, or into one for all planes.

    one: all planes are one network. version: of IP. The NIC of plane k has address
    10.K.N.2, or fd00:K:N::2; each host has a number of its own, and another one after a reboot.
    """

    one = False
    version = 4

    def build(self) -> None:
        self.subnets: dict[str, int] = {}
        self.secret, self._last = "", 0
        for router in dict.fromkeys(map(self.router, range(self.planes))):
            self.add(router)
            keys = ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding")
            self.run(router, "sysctl", "-qw", *(f"{key}=1" for key in keys))

    def router(self, plane: int) -> str:
        """Return the router of a plane."""
        return "r0" if self.one else f"r{plane}"

    def address(self, host: str, plane: int, end: int = 2) -> str:
        """Return the address of a host's NIC, or of its router there."""
        number = self.subnets[host]
        return (
            f"10.{plane}.{number}.{end}" if self.version == 4 else f"fd00:{plane}:{number:x}::{end}"
        )

    def plug(self, host: str, number: int | None = None) -> None:
        """Make a host, with new NICs in subnets of this number, or of one that nobody had."""
        self._last = self._last + 1 if number is None else self._last
        self.subnets[host] = self._last if number is None else number
        self.add(host)
        for plane in range(self.planes):
            self.cable(host, f"eth{plane + 1}", self.router(plane), f"{host}{plane}")
            self.place(host, plane)

    def place(self, host: str, plane: int) -> None:
        """Give a host's NIC the addresses of its subnet, and routes to the plane's other ones."""
        nic, length = f"eth{plane + 1}", 24 if self.version == 4 else 64
        gateway = self.address(host, plane, 1)
        nodad = "" if self.version == 4 else " nodad"
        self.ip(self.router(plane), f"address add {gateway}/{length} dev {host}{plane}{nodad}")
        self.ip(host, f"address add {self.address(host, plane)}/{length} dev {nic}{nodad}")
        for other in range(self.planes) if self.one else (plane,):
            there = f"10.{other}.0.0/16" if self.version == 4 else f"fd00:{other}::/32"
            self.ip(host, f"route append {there} via {gateway} dev {nic} metric {plane + 10}")

    def readdress(self, host: str) -> None:
        """Give the NICs of a host other addresses while it runs."""
        self._last += 1
        self.subnets[host] = self._last
        for plane in range(self.planes):
            for node, nic in ((host, f"eth{plane + 1}"), (self.router(plane), f"{host}{plane}")):
                self.ip(node, f"-{self.version} address flush dev {nic} scope global")
            self.place(host, plane)

    def power_off(self, host: str) -> None:
        """Have a host vanish with all that it knew, and without a word."""
        self.kill_daemon(host)
        for plane in range(self.planes):
            self.ip(self.router(plane), f"link del {host}{plane}")
        netns.delete(self.namespace(host))
        self.spaces.remove(host)
        gone = [str(self.folder / host), str(self.folder / "bpf" / host)]
        subprocess.run(["rm", "-rf", *gone], check=True)

    def seeded(
        self, host: str, *seeds: str, more: Sequence[str] = SEEDED, secret: str | None = None
    ) -> subprocess.Popen[str]:
        """Start `quick up` on a host with the addresses of these hosts, by plane 0, as seeds."""
        options = [word for seed in seeds for word in ("--seed", self.address(seed, 0))]
        nics = [f"eth{plane + 1}" for plane in range(self.planes)]
        known = self.secret if secret is None else secret
        return self.up(host, *nics, secret=known, more=(*options, *more))

    def first(self, host: str) -> None:
        """Bring up the first host, which is the seed of others; it makes the secret."""
        process = self.seeded(host, host, more=(*SEEDED, "--hosts", "1"))
        code, out, error = finished(process)
        assert code == 0, error
        self.secret = self.secret or out.splitlines()[0]

    def seed(self, host: str, *seeds: str) -> None:
        """Have a host join by these seeds."""
        code, _out, error = finished(self.seeded(host, *seeds))
        assert code == 0, error

    def invite(self, by: str, name: str) -> str:
        """Return an invitation that a host makes."""
        code, out, error = finished(self.mrcctl(by, "invite", name))
        assert code == 0, error
        return out

    def invited(self, host: str, invitation: str, *seeds: str) -> subprocess.Popen[str]:
        """Start `quick up` on a host with an invitation on its standard input."""
        more = ("--invitation", "-", *SEEDED)
        return self.seeded(host, *seeds, more=more, secret=invitation)

    def hello(self, source: str, target: str, timeout_s: float = 15.0) -> bytes:
        """Return a parcel with a Hello that one host sends another by plane 0."""
        wanted = ip_address(self.address(target, 0)).packed
        for frame in frames(self.namespace(self.router(0)), f"{source}0", timeout_s):
            place = frame.find(unicast.PARCEL)
            if wanted in frame[14:54] and place > 0 and len(frame) > LEAST:
                return frame[place:]
        raise AssertionError(f"{source} says no Hello to {target}")

    def filter(self, plane: int, rule: str) -> None:
        """Have the router of a plane treat what it forwards by a rule of nftables."""
        chain = f"chain c {{ type filter hook forward priority 0; {rule}; }};"
        self.run(self.router(plane), "nft", f"table inet t {{ {chain} }}")

    def filter_no_more(self, plane: int) -> None:
        self.run(self.router(plane), "nft", "delete table inet t")


def frames(namespace: str, nic: str, seconds: float) -> Iterator[bytes]:
    """Yield the frames that arrive at a NIC of a namespace, for a time."""
    until = time.monotonic() + seconds
    with open_raw(namespace, nic) as tap:
        while time.monotonic() < until:
            try:
                frame = tap.recv(4096)
            except TimeoutError:
                continue
            yield frame


def open_raw(namespace: str, nic: str) -> socket.socket:
    """Return a socket that receives all frames which arrive at a NIC of a namespace."""
    with netns.entered(namespace):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    tap.bind((nic, 0))
    tap.settimeout(1.0)
    return tap
