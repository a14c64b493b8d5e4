# SPDX-License-Identifier: GPL-2.0-only
"""The survey: sends this host's loops, exchanges what hosts saw, and judges what is at fault.

Probes are sent and counted by the kernel (bpf/survey.h); every tick one system call sends the next
few, while a fault is unsure half of them over the loops that tell most about it. Twice a second,
among many peers once while nothing is lost, the totals are read, told to the peers, and all that is
known is judged (mrcd/survey/evidence.py, mrcd/survey/inference.py, mrcd/survey/named.py).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from mrcd.config.config import Config
from mrcd.datapath import census
from mrcd.datapath.clock import CARRIER
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.qptable import words
from mrcd.fabric import usid
from mrcd.fabric.loops import Loop, loops_of, members_of
from mrcd.linux import bpf, bpfbatch
from mrcd.peers.peers import Peers
from mrcd.service.log import get_logger
from mrcd.service.ratelog import Rejections
from mrcd.survey import evidence, messages
from mrcd.survey.evidence import Evidence
from mrcd.survey.inference import Fault, Seen, infer
from mrcd.survey.messages import EvidenceError, Total
from mrcd.survey.named import CERTAIN, FaultList
from mrcd.survey.nichealth import NicHealth
from mrcd.wire.abi import ABI

log = get_logger()

_LOOP = ABI.structs["mrc_loop"]
_SENT, _RETURNED = census.picker(_LOOP, "sent"), census.picker(_LOOP, "returned")
_RTT = struct.Struct(f"={ABI.MRC_RTT_BUCKETS}Q").unpack_from
_PATH = ABI.structs["mrc_peer_plane"]
_SURVEY = ABI.structs["mrc_survey"]

TICK_MIN_S, TICK_MAX_S, TICK_MAX_QUIET_S = 0.02, 0.1, 0.25
PER_TICK, PER_TICK_QUIET = 20, 50
"""Probes of one system call, within these bounds of time, and while nothing is lost: waking costs
more than sending."""
PEERS_TOLD, PEERS_TOLD_QUIET = 64, 16
"""Peers told in one interval, and while nothing is lost; with more, each in its turn, and while
nothing is lost over one plane only."""
CROWD_INTERVALS = 2
"""While nothing is lost and more peers answer than are told at a time, totals are read and told
only once in so many intervals."""
UNSURE = 2 * CERTAIN
"""Certainty below which a fault has half of the probes; more than naming it takes, lest it hover
there, and since other hosts may know less."""
QUIET_S = 2.0
"""While nothing is lost, the windows are only looked at so often, for what is slow."""
QUIET_MAX_S = 30.0
JUDGED_SHARE, JUDGED_SHARE_QUIET = 0.05, 0.002
"""Part of a CPU that judging may take: with many hosts it is done less often."""


def write_loops(datapath: Datapath, config: Config, loops: Sequence[Loop]) -> None:
    """Program where the loops lead; mrc_survey sends them in turn from then on."""
    fabric, host = config.fabric, config.host
    for index, each in enumerate(loops):
        datapath.write(
            "loop_paths",
            index,
            _PATH,
            addr=words(fabric.address6(host, each.plane).packed),
            usids=words(usid.da_bytes(fabric.block, each.usids)),
        )
        datapath.write("loops", index, _LOOP, plane=each.plane)
    datapath.write("survey", 0, _SURVEY, loops=len(loops))


def tick_of(pps: int, *, quiet: bool) -> float:
    """Seconds between two system calls that send; `quiet`: nothing was lost lately."""
    most, per_tick = (TICK_MAX_QUIET_S, PER_TICK_QUIET) if quiet else (TICK_MAX_S, PER_TICK)
    return min(most, max(TICK_MIN_S, per_tick / pps))


def is_calm_crowd(peers: int, *, quiet: bool) -> bool:
    """Whether nothing is lost, and more peers answer than are told at a time then."""
    return quiet and peers > PEERS_TOLD_QUIET


def interval_of(peers: int, *, quiet: bool) -> float:
    """Seconds between two readings with so many peers that answer."""
    crowd = is_calm_crowd(peers, quiet=quiet)
    return evidence.INTERVAL_NS / 1e9 * (CROWD_INTERVALS if crowd else 1)


class Survey:
    """Start it when planes and peers are up; `on_nic` hears plane, health and reason."""

    def __init__(
        self,
        config: Config,
        datapath: Datapath,
        peers: Peers,
        epoch: int,
        on_nic: Callable[[int, bool, str], None],
    ) -> None:
        self._config = config
        self._dp = datapath
        self._peers = peers
        self._epoch = epoch >> 1  # 63 bits, as the message has them
        self._nics = NicHealth(config.host.name, config.fabric.planes, on_nic)
        self.pps = config.transport.survey_pps
        self.reason = _why_not(config)
        if self.reason:
            self.pps = 0
        fabric = config.fabric
        members = members_of(fabric)
        self.loops = loops_of(fabric, config.host, members) if self.pps else ()
        hosts = [config.host, *(peer.host for peer in config.peers)]
        self._digest = messages.digest(fabric)
        self._evidence = Evidence(
            {host.name: functools.partial(loops_of, fabric, host, members) for host in hosts},
            self._digest,
            evidence.interval_ns(len(self.loops), self.pps) if self.pps else evidence.INTERVAL_NS,
        )
        self.use(datapath.programs)
        self._histograms: dict[int, tuple[int, ...]] = {}
        self._sent: dict[int, int] = {}
        self._turn = self._told = 0
        self._judged, self._judging = -math.inf, 0.0  # when, and the seconds it took
        self._numbers = {loop: index for index, loop in enumerate(self.loops)}
        self._telling: tuple[int, ...] = ()
        self.list = FaultList()
        self.seen: list[Seen] = []
        self.accepted = 0
        self.rejections = Rejections("survey.rejected")
        peers.on_message(messages.MAGIC, self._receive)

    def use(self, programs: Mapping[str, int]) -> None:
        """Send probes with these from now on; descriptors by name."""
        self._run = bpf.TestRun(programs["mrc_survey"], CARRIER)

    @property
    def heard(self) -> int:
        """How many peers told what they saw lately."""
        now = time.monotonic_ns()
        heard = self._evidence.heard_ns
        return sum(
            now - heard[peer.name] < 10 * evidence.INTERVAL_NS
            for peer in self._config.peers
            if peer.name in heard
        )

    async def follow(self) -> None:
        """Send, exchange and judge; runs until cancelled."""
        if not self.pps:
            log.info("survey.off", reason=self.reason)
            return
        write_loops(self._dp, self._config, self.loops)
        log.info("survey.started", loops=len(self.loops), pps=self.pps)
        loop = asyncio.get_running_loop()
        tick_s = tick_of(self.pps, quiet=False)
        credit, read_at = 0.0, loop.time()
        paid_at = read_at - tick_s
        while True:
            now = loop.time()
            if now >= read_at:
                # What was sent last has had a tick to come back.
                quiet = self._interval(now)
                tick_s = tick_of(self.pps, quiet=quiet)
                wait_s = interval_of(len(self._peers.answering), quiet=quiet)
                read_at = now + wait_s - tick_s / 2  # at the tick next to it
            credit = min(credit + self.pps * (now - paid_at), max(1.0, 2 * self.pps * tick_s))
            paid_at = now
            if credit >= 1:
                self._run.run(int(credit))
                credit -= int(credit)
            # Waking up costs more than most of what is done then: keepalives leave with us.
            await asyncio.sleep(self._peers.beat_s(tick_s) - loop.time())

    # ---- once an interval

    def _interval(self, now: float) -> bool:
        """Read, tell, judge if it is time; whether nothing was lost lately."""
        totals = self._read()
        for index, total in totals.items():
            if self.loops[index].kind == "near":
                self._nics.near(self.loops[index].plane, total, self._histograms[index])
        self._evidence.add(self._config.host.name, self._epoch, totals, now_ns=time.monotonic_ns())
        quiet = self._evidence.quiet(now_ns=time.monotonic_ns())
        self._tell(totals, quiet=quiet)
        if now - self._judged >= self._judge_gap(quiet=quiet):
            self._judge()
            self._judged, self._judging = now, asyncio.get_running_loop().time() - now
        return quiet

    def _judge_gap(self, *, quiet: bool) -> float:
        """Seconds between two judgements, as the latest took so long."""
        if quiet:
            return min(QUIET_MAX_S, max(QUIET_S, self._judging / JUDGED_SHARE_QUIET))
        return self._judging / JUDGED_SHARE

    def _read(self) -> dict[int, Total]:
        """Totals of the loops that were probed since the last time."""
        rows = bpfbatch.lookup(self._dp.maps["loops"], 0, len(self.loops), _LOOP.size)
        totals = {}
        for index, raw in enumerate(rows):
            (sent,) = _SENT(raw)
            if sent == self._sent.get(index):
                continue
            (came_back,), histogram = _RETURNED(raw), _RTT(raw, _LOOP.fields["rtt"].offset)
            before = self._histograms.get(index, (0,) * len(histogram))
            fresh = [new - old for new, old in zip(histogram, before, strict=True)]
            self._sent[index], self._histograms[index] = sent, histogram
            # A probe may come back between the kernel's two counts and our reading of them.
            returned = min(came_back, sent)
            totals[index] = Total(sent, returned, evidence.quantile_us(fresh))
        return totals

    def _tell(self, totals: dict[int, Total], *, quiet: bool) -> None:
        """Send the totals to the peers that answer, each on planes in turn."""
        peers, planes = self._peers.answering, self._config.fabric.planes
        if not peers:
            return
        datagrams = messages.encode(self._config.host.name, self._epoch, self._digest, totals)
        count = min(PEERS_TOLD_QUIET if quiet else PEERS_TOLD, len(peers))
        once = is_calm_crowd(len(peers), quiet=quiet)
        for i in range(count):
            name = peers[(self._told + i) % len(peers)]
            usable = self._peers.usable_planes(name) or list(range(planes))
            first = self._turn % len(usable)
            second = first + 1 + self._turn // len(usable) % max(1, len(usable) - 1)
            for plane in {usable[first], usable[first if once else second % len(usable)]}:
                for datagram in datagrams:
                    self._peers.send(name, plane, datagram)
        self._turn += 1
        self._told = (self._told + count) % len(peers)

    def _receive(self, datagram: bytes, plane: int) -> None:
        now_ns = time.monotonic_ns()
        try:
            self._evidence.receive(datagram, now_ns=now_ns)
            self.accepted += 1
        except EvidenceError as error:
            self.rejections.add(plane, str(error), now_ns=now_ns)

    def _judge(self) -> None:
        now_ns = time.monotonic_ns()
        self.seen = self._evidence.seen(now_ns=now_ns)
        faults = infer(self.seen)
        self._aim(faults)
        changes = self.list.update(faults, now_ns=now_ns)
        for fault in changes.named:
            log.warning("fault.named", **_fields(fault))
        for fault in changes.cleared:
            log.info("fault.cleared", element=fault.element.name, kind=fault.kind)
        self._nics.update([named.fault for named in self.list.named], now_ns=now_ns)

    def _aim(self, faults: Sequence[Fault]) -> None:
        """Half of the probes go where they tell most about what is not certain yet."""
        telling = telling_of(faults, self._numbers)
        if telling == self._telling:
            return
        self._telling = telling
        room = (0,) * (ABI.MRC_TELLING_MAX - len(telling))
        was = self._dp.read("survey", 0, _SURVEY)
        was["telling"] = len(telling)
        self._dp.write("survey", 0, _SURVEY, **was, tell=telling + room)


def telling_of(faults: Iterable[Fault], numbers: Mapping[Loop, int]) -> tuple[int, ...]:
    """Which of a host's loops tell most about faults that are unsure; `numbers`: of its own.

    The most telling loop of each fault comes first, then the second of each.
    """
    unsure = [
        [numbers[loop] for loop in fault.telling if loop in numbers]
        for fault in faults
        if fault.certainty < UNSURE
    ]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*unsure))
    found = dict.fromkeys(number for number in turns if number is not None)
    return tuple(found)[: ABI.MRC_TELLING_MAX]


def _why_not(config: Config) -> str:
    """Why no survey is possible here; empty when it is."""
    if config.fabric.routing.mode != "srv6":
        return 'routing = "ecmp": only a source route leads back to its sender'
    return "" if config.transport.survey_pps else "[transport] survey_pps is 0"


def _fields(fault: Fault) -> dict[str, str]:
    fields = {"element": fault.element.name, "kind": fault.kind}
    if fault.kind == "loss":
        fields["loss"] = f"{fault.loss:.1%}"
    if fault.alternatives:
        fields["or"] = ", or ".join(" and ".join(names) for names in fault.alternatives)
    return fields
