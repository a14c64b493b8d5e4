# SPDX-License-Identifier: GPL-2.0-only
"""Lay planes of different rates and lengths between two hosts without a fabric."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from cli.lab import holding
from rigs.bare_hosts import HOSTS, MIDDLE, Bare, nic

_READY_S = 10.0
_QUEUE_S = 0.02
_LEAST_BYTES = 60_000


@dataclass(frozen=True, slots=True)
class Way:
    """What a plane carries, Mb/s (0: no limit), and how long it takes, ms each way (0: nothing)."""

    mbps: float = 0.0
    ms: float = 0.0


class Unequal:
    """Planes that differ. Called, it lays them between the hosts of a rig (Bare)."""

    def __init__(self, ways: Sequence[Way]) -> None:
        self._ways = ways
        self._ended = ExitStack()

    def __call__(self, bare: Bare) -> None:
        """Lay the planes: a switch for each, a process that holds packets where they are long."""
        bare.add(MIDDLE)
        for plane, way in enumerate(self._ways):
            for host in HOSTS:
                bare.cable(host, nic(plane), MIDDLE, f"{host}{plane}")
            if way.ms:
                for host, other in (HOSTS, HOSTS[::-1]):
                    self._hold(bare, host, other, plane, way.ms)
            else:
                bare.ip(MIDDLE, f"link add br{plane} type bridge")
                bare.ip(MIDDLE, f"link set br{plane} up")
                for host in HOSTS:
                    bare.ip(MIDDLE, f"link set {host}{plane} master br{plane}")
            if way.mbps:
                self._shape(bare, plane, way.mbps)

    def _hold(self, bare: Bare, host: str, other: str, plane: int, delay_ms: float) -> None:
        """Have what comes from a host leave for the other later."""
        tap = f"t{host}{plane}"
        inside = ["ip", "netns", "exec", bare.namespace(MIDDLE), sys.executable, "-I", "-S"]
        held = [holding.__file__, f"{other}{plane}", tap, str(round(delay_ms * 1000))]
        process = subprocess.Popen([*inside, *held], stdout=subprocess.PIPE)
        self._ended.callback(_end, process)
        assert process.stdout is not None
        assert process.stdout.read(len(holding.READY)) == holding.READY
        bare.ip(MIDDLE, f"link set {tap} up")
        hook = f"type filter hook ingress device {host}{plane} priority 0;"
        bare.run(MIDDLE, "nft", f"table netdev {tap} {{ chain c {{ {hook} fwd to {tap}; }}; }}")

    def _shape(self, bare: Bare, plane: int, mbps: float) -> None:
        """Limit what leaves for each host; queues hold what a plane carries in 20 ms."""
        burst, limit = max(16_000, int(mbps * 125)), int(mbps * 125_000 * _QUEUE_S)
        for host in HOSTS:
            bare.run(host, "ethtool", "-K", nic(plane), "tso", "off", "gso", "off")
            bare.run(MIDDLE, "tc", "qdisc", "replace", "dev", f"{host}{plane}", "root", "tbf",
                     "rate", f"{mbps}mbit", "burst", str(burst),
                     "limit", str(max(_LEAST_BYTES, limit)))  # fmt: skip

    def close(self) -> None:
        """End what holds packets."""
        self._ended.close()


@contextmanager
def unequal(*ways: Way) -> Iterator[Unequal]:
    """Yield what lays such planes, and end it afterwards."""
    made = Unequal(ways)
    try:
        yield made
    finally:
        made.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(_READY_S)
    if process.stdout is not None:
        process.stdout.close()
