# SPDX-License-Identifier: GPL-2.0-only
"""Hosts with cables from NIC to NIC, and no switch, on which `mrcctl quick up` is run."""

from __future__ import annotations

from collections.abc import Sequence

from rigs.lab_hosts import eventually
from rigs.quick_hosts import Cluster, finished

Cable = tuple[str, str]


def ring(names: str) -> list[Cable]:
    return list(zip(names, names[1:] + names[0], strict=True))


def mesh(names: str) -> list[Cable]:
    return [(one, other) for k, one in enumerate(names) for other in names[k + 1 :]]


class Cabled(Cluster):
    """Hosts of one letter each; their NICs are eth1, eth2, ... in the order of the cables."""

    def lay(self, cables: Sequence[Cable]) -> None:
        """Make the hosts and the cables between them."""
        self.nics: dict[str, list[str]] = {
            name: [] for name in sorted({*"".join(map("".join, cables))})
        }
        self.between: dict[Cable, tuple[str, str]] = {}
        for name in self.nics:
            self.add(name)
        for one, other in cables:
            ends = tuple(f"eth{len(self.nics[name]) + 1}" for name in (one, other))
            self.cable(one, ends[0], other, ends[1])
            self.nics[one].append(ends[0])
            self.nics[other].append(ends[1])
            self.between[one, other] = ends[0], ends[1]
        for name, nics in self.nics.items():
            for nic in nics:
                self.link_local(name, nic)

    def raise_all(self, *more: str, hosts: int = 0) -> None:
        """Run `quick up` on all hosts; the first one makes the secret."""
        names = list(self.nics)
        more = ("--wait", "240", "--hosts", str(hosts or len(names)), *more)
        first = self.up(names[0], *self.nics[names[0]], more=more)
        assert first.stdout is not None
        self.secret = first.stdout.readline().strip()
        others = [self.up(n, *self.nics[n], secret=self.secret, more=more) for n in names[1:]]
        for process in (*others, first):
            code, _out, error = finished(process)
            assert code == 0, error

    def cut(self, one: str, other: str, *, up: bool = False) -> None:
        """Pull a cable out, or put it in again."""
        nic = self.between[one, other][0]
        self.ip(one, f"link set {nic} {'up' if up else 'down'}")

    def whole(self, within_s: float) -> None:
        """Wait until each host has all others as peers."""
        for name in self.nics:
            others = {*self.nics} - {name}
            eventually(
                lambda name=name, others=others: self.established(name) == others,
                lambda name=name: f"{name} has all: {self.warnings(name)}", within_s,
            )  # fmt: skip
