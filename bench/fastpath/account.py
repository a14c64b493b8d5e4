# SPDX-License-Identifier: GPL-2.0-only
"""Give each part of what a cell costs an owner: knock-outs, judged by goodput and by CPU time.

Two hosts are cabled to each other, plane by plane. TCP flows over mrc0 in labs whose daemons run a
copy of mrcd's sources that lacks a part, over the device of the stateless ceiling
(bench/compare/ceiling.py) with ever less around it, and by a cable of its own, as plain TCP. All
take turns in random order, once with a CPU for each host (bench/compare/placement.py), which tells
what the sender and what the receiver pays, and once as the kernel places the work.

What a variant saves is the difference to the whole mrc0 of the same round. Parts overlap, and some
have no end of their own: savings need not add up.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compare import configuration, direct, placement
from bench.compare.ceiling import Ceiling
from bench.compare.placement import APART, Spent
from bench.compare.routes import Competitor, Mrc0
from bench.compare.traffic import Flow
from bench.compare.unlimited import OffloadsCable
from bench.instruments import counters, flow
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import spread
from bench.instruments.processor import Processor
from bench.instruments.result import Line
from cli.lab import processes
from mrcd.datapath.mrc0 import GSO
from mrcd.linux import sysfs
from mrcd.wire import sources

CELL_BYTES = 40_000
"""What is counted as a cell: as many bytes as one carries on average at MTU 1500."""
WARM_S = 0.7
_CABLE = "plain0"
_FLOWS = [Flow("h1", "h2", 1)]
_FREE, _APART = "CPUs shared", "a CPU for each host"
PLACES = (_APART, _FREE)
WHOLE, PLAIN = "mrc0", "plain TCP"
BOUNDED = f"plain TCP, segments up to {CELL_BYTES // 1000} KB"


@dataclass(frozen=True, slots=True)
class Swap:
    """A piece of a source file, by its path below the root, and its replacement."""

    file: str
    old: str
    new: str

    def made_in(self, root: Path) -> None:
        """Change the file below `root`; BenchFailed if the piece is not there once."""
        path = root / self.file
        path.write_text(self.of(path.read_text()))

    def of(self, text: str) -> str:
        """Return the text with the replacement; BenchFailed if the piece is not there once."""
        if text.count(self.old) != 1:
            raise BenchFailed(f"{self.file} has {text.count(self.old)} times {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class KnockOut:
    """mrc0 without a part, or with its work elsewhere.

    swaps: what changes in the sources. planes, lower: the CPUs, as a mask, that receive for the
    NICs of both hosts and for the interface below mrc0; None: as mrcd and the placement have it.
    breaks: what no longer works. adds: the variant does a part twice, so it costs what the part
    costs. with_a_cpu: whether it can run with a CPU for each host.
    """

    name: str
    swaps: tuple[Swap, ...] = ()
    planes: int | None = None
    lower: int | None = None
    breaks: str = ""
    adds: bool = False
    with_a_cpu: bool = True


_CELL_TX, _CELL_RX = "bpf/cell_tx.c", "bpf/cell_rx.c"
_TUNING = "mrcd/datapath/tuning.py"
_RECORD = "if (record_packet(qp, psn + i, id, copy->slot | i << MRC_SLOT_AT_SHIFT, len, now))"
_NO_COPY = Swap(_CELL_TX, "bpf_skb_load_bytes(skb, MRC_ETH_LEN, big->data, len)", "0")
_NO_CHECK = Swap(
    _CELL_RX,
    "in->p->wrong = check_inner_of(skb, CELL_OFF, in->h, in->q->peer, in->p->v6);",
    "in->p->wrong = 0;",
)
_REDIRECT = (
    Swap(
        _CELL_RX,
        "to_mrc0(skb, in->h, 1));",
        "(!(in->p->c.count > 1 || skb->gso_size) && to_mrc0(skb, in->h, 1)));",
    ),
    Swap(
        _CELL_RX,
        "\t\twatch_only(in->p->qp);\n\t\treturn TC_ACT_SHOT;",
        "\t\twatch_only(in->p->qp);\n"
        "\t\tif (disposition != RX_DELIVER || in->p->wrong)\n\t\t\treturn TC_ACT_SHOT;\n"
        "\t\tskb->queue_mapping = 0;\n"
        "\t\treturn bpf_redirect(in->h->lower_ifindex, BPF_F_INGRESS);",
    ),
)
_RARE_SACKS = (
    Swap(_TUNING, "SACK_GAP_NS = 50 * US", "SACK_GAP_NS = 500 * US"),
    Swap(_TUNING, "SOLICIT_NS = 50 * US", "SOLICIT_NS = 500 * US"),
)
KNOCK_OUTS = (
    KnockOut(
        "no copy into the retransmit ring", (_NO_COPY,), breaks="nothing lost can be sent again"
    ),
    KnockOut(
        "delivery by redirect, not by a clone", _REDIRECT,
        breaks="order, where several CPUs receive",
    ),
    KnockOut(
        "the same, one CPU receives", _REDIRECT, planes=1 << APART["h2"], lower=1 << APART["h2"],
        breaks="order, where several CPUs receive", with_a_cpu=False,
    ),
    KnockOut("no check of the inner addresses", (_NO_CHECK,), breaks="strangers' packets enter"),
    KnockOut(
        "every packet's entry written twice",
        (
            Swap(
                _CELL_TX, _RECORD,
                "record_packet(qp, psn + i + CFG_WINDOW / 2, id, copy->slot, len, now);\n\t\t"
                + _RECORD,
            ),
        ),
        adds=True,
    ),
    KnockOut("a tenth of the SACKs and of the questions for them", _RARE_SACKS),
    KnockOut(
        "no copy, clone, inner check; a tenth of the SACKs",
        (_NO_COPY, *_REDIRECT, _NO_CHECK, *_RARE_SACKS), breaks="repair, order, checks",
    ),
    KnockOut("steering behind mrc0: CPU 0", lower=1, with_a_cpu=False),
    KnockOut("steering behind mrc0: CPU 1", lower=2, with_a_cpu=False),
    KnockOut(
        "steering behind mrc0: none",
        (Swap("mrcd/linux/sysfs.py", "mask = cpu_mask(all_cpus())", 'mask = "0"'),),
        lower=0, breaks="order, where several CPUs receive", with_a_cpu=False,
    ),
    KnockOut(
        "one CPU receives for the planes", planes=1 << APART["h2"], with_a_cpu=False,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """Something that takes turns: what it is called, its lab, its way, and where it runs."""

    name: str
    lab: str
    competitor: Competitor
    knock_out: KnockOut | None = None
    gso: int = 0  # the most bytes of a segment that TCP makes for the cable; 0: as many as usual

    def runs(self, place: str) -> bool:
        """Return whether it takes part in a placement."""
        return place == _FREE or self.knock_out is None or self.knock_out.with_a_cpu


@dataclass(frozen=True, slots=True)
class Cost:
    """What one turn showed; us of CPU for CELL_BYTES, and the mean payload of sent segments."""

    gbps: float
    us: float
    sender_us: float
    receiver_us: float
    segment: float
    resent: float
    stolen: float


@contextlib.contextmanager
def changed_sources(swaps: Sequence[Swap]) -> Iterator[Path]:
    """Have daemons that start in the block run a copy of mrcd's sources with these swaps."""
    root = sources.bpf_dir().parent
    with tempfile.TemporaryDirectory(prefix="account-") as folder:
        for part in ("mrcd", "cli", "bpf"):
            shutil.copytree(
                root / part, Path(folder, part), ignore=shutil.ignore_patterns("__pycache__")
            )
        for swap in swaps:
            swap.made_in(Path(folder))
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before


def account(name: str, mtu: int, rounds: int, seconds: float) -> Iterator[Line]:
    """Measure one MTU: every variant in both placements, in turns."""
    with contextlib.ExitStack() as stack:
        sides = _sides(stack, name, mtu)
        for place in PLACES:
            those = [side for side in sides if side.runs(place)]
            for lab in dict.fromkeys(side.lab for side in sides if side.lab):
                (placement.apart if place == _APART else placement.together)(lab)
            found = _turns(those, place, rounds, seconds)
            yield from lines(f"MTU {mtu}, {place}", found, {side.name: side for side in those})


def _sides(stack: contextlib.ExitStack, name: str, mtu: int) -> list[Side]:
    """Build a lab for each set of swaps, and one without mrcd.

    A variant that does not come up has no lab, and all its turns will fail.
    """
    labs: dict[tuple[Swap, ...], str] = {}
    found = []
    for knock_out in (KnockOut(WHOLE), *KNOCK_OUTS):
        swaps = knock_out.swaps
        if swaps not in labs:
            labs[swaps] = f"{name}-{len(labs)}"
            try:
                with changed_sources(swaps):
                    stack.enter_context(direct.up(labs[swaps], mtu, "cell"))
            except BenchFailed as problem:
                print(f"{knock_out.name}: {problem}", flush=True)
                labs[swaps] = ""
        found.append(Side(knock_out.name, labs[swaps], Mrc0(), knock_out))
    bare = f"{name}-bare"
    stack.enter_context(direct.up(bare, mtu, daemons=False))
    configuration.prepare(bare, Ceiling())
    for ceiling in (Ceiling(1, header=False), Ceiling(1), Ceiling(4)):
        found.append(Side(ceiling.title, bare, ceiling))
    found.append(Side(BOUNDED, bare, OffloadsCable(), gso=CELL_BYTES))
    found.append(Side(PLAIN, bare, OffloadsCable()))
    return found


Found = dict[str, list[Cost | None]]
"""The turns of each variant by rounds; None where it did not get through."""


def _turns(sides: Sequence[Side], place: str, rounds: int, seconds: float) -> Found:
    found: Found = {side.name: [] for side in sides}
    for _ in range(rounds):
        _round(sides, place, seconds, found)
    return found


def _round(sides: Sequence[Side], place: str, seconds: float, found: Found) -> None:
    with _still({side.lab for side in sides if side.lab}):
        for side in random.sample(sides, len(sides)):
            try:
                found[side.name].append(_turn(side, place, seconds))
            except BenchFailed as problem:
                print(f"{side.name}, {place}: {problem}", flush=True)
                found[side.name].append(None)


@contextlib.contextmanager
def _still(labs: Collection[str]) -> Iterator[None]:
    """Stop the daemons of labs for a block: idle ones of this number take a third of a CPU.

    The data path does without for minutes.
    """
    found = processes.inside([f"{lab}-{host}" for lab in labs for host in APART])
    with contextlib.ExitStack() as stack:
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
            stack.callback(os.kill, pid, signal.SIGCONT)
        yield


def _turn(side: Side, place: str, seconds: float) -> Cost:
    if not side.lab:
        raise BenchFailed("its lab did not come up")
    cpus = APART if place == _APART else None
    device = _CABLE if isinstance(side.competitor, OffloadsCable) else side.competitor.interface
    processor = Processor()
    with _steered(side, place), _bounded(side), side.competitor.turn(side.lab):
        before = _sent(side.lab, device)
        spent = placement.send(side.lab, side.competitor, _FLOWS, WARM_S, seconds, cpus)
        after = _sent(side.lab, device)
    sent = sum(each.sent for each in spent.seen.connections)
    return cost(spent, sent / (after - before), 100 * processor.stolen())


@contextlib.contextmanager
def _bounded(side: Side) -> Iterator[None]:
    """Bound TCP's segments during a turn, if that is the variant."""
    if not side.gso:
        yield
        return
    line = f"ip link set {_CABLE} gso_max_size"
    flow.shell(side.lab, "h1", f"{line} {side.gso}")
    try:
        yield
    finally:
        flow.shell(side.lab, "h1", f"{line} {GSO[0]}")


def cost(spent: Spent, segment: float, stolen: float) -> Cost:
    """Return what a flow cost."""
    ends = [spent.us(CELL_BYTES, host) for host in APART]
    resent = float(spent.seen.retransmits[-1][1])
    return Cost(spent.gbps, spent.us(CELL_BYTES), *ends, segment, resent, stolen)


def _sent(lab: str, device: str) -> int:
    """Return how many segments, whole ones, h1 has sent by a device."""
    (found,) = counters.sent_packets(f"{lab}-h1", (device,))
    return found


@contextlib.contextmanager
def _steered(side: Side, place: str) -> Iterator[None]:
    """Have other CPUs receive during a turn, if that is the variant."""
    wanted = side.knock_out
    if wanted is None or place == _APART or (wanted.planes, wanted.lower) == (None, None):
        yield
        return
    for host in APART:
        if wanted.planes is not None:
            placement.steer(side.lab, host, wanted.planes, ["plane"])
        if wanted.lower is not None:
            placement.steer(side.lab, host, wanted.lower, ["mrc0p"])
    try:
        yield
    finally:
        for host in APART:
            placement.steer(side.lab, host, 0, ["plane"])
            if wanted.swaps == () or wanted.lower:
                placement.steer(side.lab, host, sysfs.all_cpus(), ["mrc0p"])


def lines(where: str, found: Found, sides: dict[str, Side]) -> Iterator[Line]:
    """Yield the figures of each variant, and what it saves, in the order of the variants."""
    ends = (("us", ""), ("sender_us", ", sender"), ("receiver_us", ", receiver"))
    for name, turns in found.items():
        costs = [turn for turn in turns if turn is not None]
        knock_out = sides[name].knock_out
        at = f"{where}: {name}" + (
            f" (breaks: {knock_out.breaks})" if knock_out and knock_out.breaks else ""
        )
        goodput = tuple(each.gbps for each in costs)
        missing = len(turns) - len(costs)
        yield Line("account", at, "goodput", "Gb/s", goodput, missing=missing)
        if not costs:
            continue
        for figure, of in ends if _APART in where else ends[:1]:
            values = [getattr(each, figure) for each in costs]
            yield _line(at, f"CPU for {CELL_BYTES // 1000} KB{of}", "us", values)
            if name != WHOLE:
                less = saved(found, name, figure, adds=bool(knock_out and knock_out.adds))
                yield _line(at, f"saves{of}", "us", less)
        if name not in (WHOLE, PLAIN):
            yield _line(at, "share of the difference", "%", shares(found, name, sides[name]))
        yield _line(at, "mean segment", "bytes", [each.segment for each in costs])
        yield _line(at, "TCP retransmissions", "", [each.resent for each in costs])
        yield _line(at, "steal", "%", [each.stolen for each in costs])


def _line(where: str, what: str, unit: str, values: Sequence[float]) -> Line:
    return Line("account", where, what, unit, tuple(values))


def saved(found: Found, name: str, figure: str, *, adds: bool) -> list[float]:
    """Return by rounds what a variant spends less than mrc0; what one that adds spends more."""
    less = [
        getattr(whole, figure) - getattr(mine, figure)
        for whole, mine in zip(found[WHOLE], found[name], strict=True)
        if whole is not None and mine is not None
    ]
    return [-each for each in less] if adds else less


def shares(found: Found, name: str, side: Side) -> list[float]:
    """Return by rounds which share of mrc0's difference to plain TCP a variant explains, in %.

    The medians stand for the difference, which varies less than its parts do.
    """
    knock_out = side.knock_out
    less = saved(found, name, "us", adds=bool(knock_out and knock_out.adds))
    difference = spread(saved(found, PLAIN, "us", adds=False)).median
    return [100 * each / difference for each in less]
