# SPDX-License-Identifier: GPL-2.0-only
"""Measure how soon invited hosts are in, and revoked ones out, and what signed Hellos cost.

    python -m bench.faults.invitations [--rounds 10]     (as root)

Host a has the secret, and invites b and c, on two bridges. Then, in each round, c sends both others
a datagram each millisecond over mrc0, and is revoked on a. The time runs from the start of the
command to the last datagram that an application of a, or of b, has got. A copy of c's files then
starts on another host, and what it gets is counted. c is invited again, and joins. In the end b
reboots with other MAC addresses while a is off.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from datetime import datetime

from bench.instruments import entry
from mrcd.handshake import identity, voice
from mrcd.handshake.hello import Hello
from mrcd.handshake.identity import Secret
from mrcd.handshake.revocation import Revocations
from rigs.invited_hosts import Invited, Trickle
from rigs.lab_hosts import eventually
from rigs.quick_hosts import inner

NAME = "invitations"
WAIT_S = 60.0
SIGNED = 2000


def main() -> None:
    parser = entry.parser(__doc__, figures=False)
    parser.add_argument("--rounds", type=int, default=10, help="%(default)s")
    options = parser.parse_args()
    entry.begin(NAME)
    _cost()
    cluster = Invited(f"v{time.monotonic_ns() % 10_000}", 2)
    try:
        _run(cluster, options.rounds)
    finally:
        cluster.close()


def _cost() -> None:
    """Measure what a Hello costs that is signed, and one that is checked."""
    ring = identity.simple_keys(Secret(bytes(range(32))), "a", ())
    one = voice.of(ring, "a", Revocations())
    assert one is not None
    heard = {f"h{k}": ((0, 0), (1, 1)) for k in range(4)}
    said = [
        Hello(name="a", run=f"{k}", nic=0, nics=2, inner=("10.99.0.1", "fd99::1"), heard=heard)
        for k in range(SIGNED)
    ]
    before = time.process_time()
    datagrams = [one.say(hello) for hello in said]
    between = time.process_time()
    for datagram in datagrams:
        one.hear(datagram)
    after = time.process_time()
    print(f"a Hello of {len(datagrams[0])} bytes: {(between - before) / SIGNED * 1e6:.0f} us to "
          f"say, {(after - between) / SIGNED * 1e6:.0f} us to hear")  # fmt: skip


def _run(cluster: Invited, rounds: int) -> None:
    cluster.build()
    joins = [_join(cluster, name) for name in "bc"]
    out: dict[str, list[float]] = {"a": [], "b": []}
    since: dict[str, list[float]] = {"a": [], "b": []}
    taken, returned, got = [], [], 0
    for _ in range(rounds):
        trickles = {host: Trickle(cluster, "c", host) for host in "ab"}
        began, wall = time.monotonic(), time.time()
        code, said = cluster.revoke("c")
        assert code == 0, said
        returned.append(time.monotonic() - began)
        taken.append(_revoked_at(cluster) - wall)
        for host in "ab":
            eventually(lambda h=host: "c" not in cluster.peers(h), f"{host} lets c go", WAIT_S)
        for host, trickle in trickles.items():
            trickle.close()
            out[host].append(trickle.last_s - began)
            since[host].append(trickle.last_s - began - taken[-1])
        got += _steal(cluster)
        cluster.kill("c")
        shutil.rmtree(cluster.quick("c"))
        joins.append(_join(cluster, "c"))
    print(f"a host joins by an invitation, until it has pinged every other: {_spread(joins)}")
    for host, times in out.items():
        print(f"a host is revoked on a, until {host} has got its last datagram: {_spread(times)}")
    print(f"until mrcd of a has the command: {_spread(taken)}")
    for host, times in since.items():
        print(f"from then until {host} has got its last datagram: {_spread(times)}")
    print(f"until the command returns: {_spread(returned)}")
    print(f"copies of a revoked host's files: {rounds} started, sessions that they got: {got}")
    cluster.kill("a")
    before = time.monotonic()
    cluster.replug("b")
    _ping(cluster, "b", ["c"])
    print(f"an invited host reboots while a is off: {time.monotonic() - before:.1f} s")


def _revoked_at(cluster: Invited) -> float:
    """Return when mrcd of a logged that it has revoked c, the last time, as Unix time."""
    lines = [line for line in cluster.journal("a").splitlines() if '"host.revoked"' in line]
    found = next(e for e in map(json.loads, reversed(lines)) if e["reason"] == "revoked")
    return datetime.fromisoformat(found["time"]).timestamp()


def _join(cluster: Invited, name: str) -> float:
    if name not in cluster.spaces:
        cluster.plug(name)
    others = [host for host in "abc" if host != name and cluster.status(host) is not None]
    invitation = cluster.invite(name)
    before = time.monotonic()
    cluster.use(name, invitation)
    _ping(cluster, name, others)
    return time.monotonic() - before


def _ping(cluster: Invited, name: str, others: list[str]) -> None:
    for other in others:
        target = inner(cluster, other)
        eventually(
            lambda t=target: "1 received" in cluster.run(
                name, "ping", "-c", "1", "-W", "1", t, check=False
            ),
            f"{name} has pinged {other}", WAIT_S,
        )  # fmt: skip


def _steal(cluster: Invited) -> int:
    """Start a copy of c's files on d until it knows that it is out; return its sessions."""
    cluster.plug("d")
    cluster.quick("d").parent.mkdir(exist_ok=True)
    shutil.copytree(cluster.quick("c"), cluster.quick("d"))
    for file in cluster.quick("d").glob("revoked.json*"):
        file.unlink()
    cluster.start_again("d")
    try:
        eventually(lambda: cluster.status("d"), lambda: cluster.journal("d"), WAIT_S)
        eventually(lambda: "was revoked" in cluster.warnings("d"), "the copy is told", WAIT_S)
        return len(cluster.established("d"))
    finally:
        cluster.kill("d")
        cluster.power_off("d")


def _spread(times: list[float]) -> str:
    middle = statistics.median(times)
    return f"median {middle:.3f} s, {min(times):.3f} to {max(times):.3f}, {len(times)} times"


if __name__ == "__main__":
    sys.exit(main())
