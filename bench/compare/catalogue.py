# SPDX-License-Identifier: GPL-2.0-only
"""All workloads: what is measured, in which lab, and how often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.compare import (
    duplex,
    exchange,
    faults,
    gigabit,
    latency,
    training,
    unlimited,
    workloads,
)
from bench.compare.arena import Arena
from bench.instruments.experiment import Shape

PAIR = Shape(planes=4, t1=2, rate_mbps=100)
EIGHT = Shape(planes=4, t1=4, rate_mbps=50, hosts=8, hosts_per_t0=4)
FOUR = Shape(planes=4, t1=2, rate_mbps=100, hosts=4, hosts_per_t0=2)
UNLIMITED = Shape(planes=4, t1=2, rate_mbps=0)
UNLIMITED_FOUR = Shape(planes=4, t1=2, rate_mbps=0, hosts=4, hosts_per_t0=2)
GIGABIT = Shape(planes=4, t1=2, rate_mbps=250)
GIGABIT_FOUR = Shape(planes=4, t1=2, rate_mbps=250, hosts=4, hosts_per_t0=2)

_MTUS = (9000, 4200, 1500)


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload and its labs; every shape and MTU is a separate lab.

    `quick` are the shapes of a quick run; without any, it is left out there. A workload with
    `own_labs` makes its labs itself. `section` is its place in the report.
    """

    name: str
    section: str
    measure: Callable[[Arena], None]
    shapes: tuple[Shape, ...]
    quick: tuple[Shape, ...]
    mtus: tuple[int, ...] = (9000,)
    rounds: int = 3  # unless --rounds is given
    own_labs: bool = False
    quick_mtus: tuple[int, ...] = (4200,)


WORKLOADS = (
    Workload("bulk", "bulk", workloads.bulk, (PAIR,), (PAIR,), _MTUS),
    Workload("faults", "faults", faults.faults, (PAIR,), (PAIR,)),
    Workload("latency", "latency", latency.latency, (PAIR,), (PAIR,)),
    Workload("collision", "collision", workloads.collision, (PAIR,), (PAIR,)),
    Workload(
        "speed", "speed", unlimited.speed, (UNLIMITED,), (UNLIMITED,), (9000, 1500),
        own_labs=True, quick_mtus=(1500,),
    ),
    Workload(
        "direct", "direct", unlimited.on_direct_planes, (UNLIMITED,), (), (9000, 1500),
        own_labs=True,
    ),
    Workload(
        "gigabit", "gigabit", gigabit.gigabit, (GIGABIT, GIGABIT_FOUR), (), _MTUS, own_labs=True,
    ),
    Workload(
        "many-hosts", "gigabit", gigabit.gigabit, (EIGHT,), (), (1500,), 5, own_labs=True,
    ),
    Workload(
        "duplex", "duplex", duplex.duplex, (GIGABIT, UNLIMITED), (), (9000, 1500), 5,
        own_labs=True,
    ),
    Workload("requests", "requests", exchange.exchange, (GIGABIT,), (), (1500,), 5, own_labs=True),
    Workload("requests-idle", "requests", exchange.idle, (PAIR,), (), (1500,), 5, own_labs=True),
    Workload("incast", "incast", workloads.incast, (EIGHT,), (FOUR,)),
    Workload("permutation", "permutation", workloads.permutation, (EIGHT,), (FOUR,)),
    Workload("all-to-all", "all-to-all", workloads.all_to_all, (EIGHT,), (FOUR,)),
    Workload("training", "training", training.training, (EIGHT, FOUR), (FOUR,), rounds=2),
    Workload(
        "steps", "steps", training.steps, (FOUR, UNLIMITED_FOUR), (), rounds=2, own_labs=True,
    ),
    Workload("training-long", "training", training.long_run, (FOUR,), (), rounds=2),
)  # fmt: skip
NAMES = tuple(workload.name for workload in WORKLOADS)

ABOUT = {
    "bulk": "TCP from h1 to h2 as fast as it goes, without faults.",
    "faults": "Four connections from h1 to h2; the fault strikes where most of the traffic is just"
    " then. Capacity lost: what is missing of the goodput before, times the share of the fabric"
    " that the fault leaves, as time at that rate.",
    "latency": "A request of 64 bytes from h1 to h2 and an answer as long, one after another on one"
    " connection; alone, beside four connections of the same competitor that together send 30 % of"
    " what the planes carry, and beside four that send as fast as they can.",
    "collision": "Two connections from h1 to h2, their ports such that the hash of TCP by ECMP, and"
    " of seg6, puts both on one plane.",
    "incast": "All other hosts send to h1; the last of them also sends to h2, the victim.",
    "permutation": "Every host sends to one host of the other T0 and hears from one, pairs drawn"
    " anew each round.",
    "all-to-all": "Every host sends to every other.",
    "training": "Collective operations of torch.distributed (gloo) and of Open MPI over its TCP"
    " BTL, a rank in every host, float32. A step ends when its slowest rank has it. Sockets of both"
    " are made cubic, or MPTCP, by a preloaded library. Faults strike in the middle of a job, where"
    " most of the traffic is, and last 1.5 s; in the long run the plane stays dead to the end.",
    "speed": "No rate limits: two CPUs do everything, both hosts, the switches and the"
    " applications. Plain TCP with all offloads runs on hosts without mrcd. Packets of the other"
    " plain TCP go one by one (no TSO, GSO, GRO on its plane). Packets on the wire: no TSO at any"
    " sender's end of a cable, switches' ports included, and GRO at the receiving host's NICs;"
    " where switches merge, also at their ports."
    " Stateless: what programs reach that only put a header on and choose a plane."
    " Goodput lost to the death of a plane is time at the rate before or after it, the lower; the"
    " same was computed of a moment a second earlier. The loaded round trip is TCP's own.",
    "direct": "Four planes, each a cable from host to host without a switch, no rate limits; mrcd"
    ' with `routing = "ecmp"`, as the first uSID would be a switch\'s, and `xdp = "native"`. Plain'
    " TCP has a cable of its own, that with all offloads between hosts without mrcd. With a CPU for"
    " each host, its processes are pinned and its interfaces receive there (/proc/stat by CPU).",
    "gigabit": "Four planes of 250 Mb/s: h1 to h2, and every host to every other; eight hosts have"
    " planes of 50 Mb/s. MPTCP runs on hosts without mrcd.",
    "duplex": "h1 and h2 send to each other at the same time, each by connections of its own. Which"
    " direction is the slower one may change from round to round. MPTCP and TCP run on hosts"
    " without mrcd, with all offloads.",
    "requests": "Requests from h1 to h2 and answers as long, one after another on each connection;"
    " there are as many connections as requests in flight. MPTCP and TCP run on hosts without mrcd,"
    " with all offloads.",
    "steps": "gloo's collective operations, a rank in every host, float32: steps a second from the"
    " first to the last. MPTCP and plain TCP run on hosts without mrcd, with all offloads.",
}  # fmt: skip


def labs(
    chosen: Sequence[Workload],
    quick: bool,
    mtus: Sequence[int] | None = None,
    hosts: Sequence[int] | None = None,
) -> dict[tuple[Shape, int], list[Workload]]:
    """Return the workloads of each lab, so that no lab is built twice."""
    found: dict[tuple[Shape, int], list[Workload]] = {}
    for workload in chosen:
        for shape in workload.quick if quick else workload.shapes:
            if hosts and shape.hosts not in hosts:
                continue
            for mtu in mtus or (workload.quick_mtus if quick else workload.mtus):
                found.setdefault((shape, mtu), []).append(workload)
    return found
