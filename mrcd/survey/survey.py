# SPDX-License-Identifier: GPL-2.0-only
"""The survey: probe this host's loops, exchange the counts with peers, and infer the faults.

The kernel sends and counts the probes (bpf/survey.c). At each tick one system call sends the next
few; while a fault is uncertain, half of them go over the loops that tell most about it. Twice a
second the totals are read, sent to the peers and judged together with theirs
(mrcd/survey/evidence.py, mrcd/survey/inference.py, mrcd/survey/named.py). With many peers this
happens once a second while nothing is lost.
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
from mrcd.datapath.clock import CARRIER
from mrcd.datapath.datapath import Datapath
from mrcd.fabric import underlay, usid
from mrcd.fabric.loops import Loop, Trip, loops_of, members_of
from mrcd.linux import bpf, bpfbatch
from mrcd.peers.peers import Peers
from mrcd.service.log import get_logger
from mrcd.service.ratelog import Rejections
from mrcd.survey import evidence, messages
from mrcd.survey.evidence import Evidence
from mrcd.survey.inference import Fault, Seen, infer
from mrcd.survey.messages import EvidenceError, Total
from mrcd.survey.named import CERTAIN, FaultList, fields_of
from mrcd.survey.nichealth import NicHealth
from mrcd.wire.abi import ABI
from mrcd.wire.layout import picker, words

log = get_logger()

_LOOP = ABI.structs["mrc_loop"]
_SENT, _RETURNED = picker(_LOOP, "sent"), picker(_LOOP, "returned")
_RTT = struct.Struct(f"={ABI.MRC_RTT_BUCKETS}Q").unpack_from
_PATH = ABI.structs["mrc_peer_plane"]
_SURVEY = ABI.structs["mrc_survey"]

TICK_MIN_S, TICK_MAX_S, TICK_MAX_QUIET_S = 0.02, 0.1, 0.25
PER_TICK, PER_TICK_QUIET = 20, 50
"""Probes sent by one system call, as far as the bounds of the tick allow. The second value applies
while nothing is lost, because waking up costs more than sending."""
PEERS_TOLD, PEERS_TOLD_QUIET = 64, 16
"""Peers told in one interval; the second value applies while nothing is lost. More peers take
turns, and while nothing is lost, they are told over one plane only."""
CROWD_INTERVALS = 2
"""Intervals between two readings while nothing is lost and more peers answer than are told in one
interval."""
UNSURE = 2 * CERTAIN
"""Certainty below which a fault gets half of the probes. It exceeds the certainty needed for
naming, so that a fault does not hover at that threshold, and because other hosts may know less."""
QUIET_S = 2.0
QUIET_MAX_S = 30.0
"""Bounds of the time between two judgements while nothing is lost; these only look for slow
elements."""
JUDGED_SHARE, JUDGED_SHARE_QUIET = 0.05, 0.002
"""Share of a CPU that judging may take, which makes it less frequent with many hosts. The second
value applies while nothing is lost."""


def write_loops(datapath: Datapath, config: Config, loops: Sequence[Loop]) -> None:
    """Write the loops' paths into the maps; mrc_survey probes them in turn from then on."""
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
    """Return the seconds between two system calls that send; `quiet`: nothing was lost lately."""
    most, per_tick = (TICK_MAX_QUIET_S, PER_TICK_QUIET) if quiet else (TICK_MAX_S, PER_TICK)
    return min(most, max(TICK_MIN_S, per_tick / pps))


def is_calm_crowd(peers: int, *, quiet: bool) -> bool:
    """Return whether nothing is lost and more peers answer than are then told in one interval."""
    return quiet and peers > PEERS_TOLD_QUIET


def interval_of(peers: int, *, quiet: bool) -> float:
    """Return the seconds between two readings, given the number of peers that answer."""
    crowd = is_calm_crowd(peers, quiet=quiet)
    return evidence.INTERVAL_NS / 1e9 * (CROWD_INTERVALS if crowd else 1)


class Survey:
    """The survey of this host; start `follow` when planes and peers are up.

    `on_nic` is called with the plane, the health and the reason when a NIC link's health changes.
    """

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
        self._epoch = epoch >> 1  # the message has room for 63 bits
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
        self._judged, self._judging = -math.inf, 0.0  # time of the last judgement, its duration
        self._numbers: dict[Trip, int] = {loop: index for index, loop in enumerate(self.loops)}
        self._telling: tuple[int, ...] = ()
        self.list = FaultList()
        self.seen: list[Seen] = []
        self.accepted = 0
        self.rejections = Rejections("survey.rejected")
        peers.on_message(messages.MAGIC, self._receive)

    def use(self, programs: Mapping[str, int]) -> None:
        """Send probes with these programs from now on; they are descriptors by name."""
        self._run = bpf.TestRun(programs["mrc_survey"], CARRIER)

    @property
    def heard(self) -> int:
        """The number of peers whose counts were received lately."""
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
                # The last probes have had a tick to come back.
                quiet = self._interval(now)
                tick_s = tick_of(self.pps, quiet=quiet)
                wait_s = interval_of(len(self._peers.answering), quiet=quiet)
                read_at = now + wait_s - tick_s / 2  # reads at the nearest tick
            credit = min(credit + self.pps * (now - paid_at), max(1.0, 2 * self.pps * tick_s))
            paid_at = now
            if credit >= 1:
                self._run.run(int(credit))
                credit -= int(credit)
            # Waking up costs more than most of the work then, so share the keepalives' beats.
            await asyncio.sleep(self._peers.beat_s(tick_s) - loop.time())

    # ---- once an interval

    def _interval(self, now: float) -> bool:
        """Read and send the totals, and judge if due. Returns whether nothing was lost lately."""
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
        """Return the seconds between two judgements, derived from the latest one's duration."""
        if quiet:
            return min(QUIET_MAX_S, max(QUIET_S, self._judging / JUDGED_SHARE_QUIET))
        return self._judging / JUDGED_SHARE

    def _read(self) -> dict[int, Total]:
        """Return the totals of the loops that were probed since the last reading."""
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
            # A probe may come back while the two counts are read.
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

    def _receive(self, sender: str | None, datagram: bytes, plane: int) -> None:
        now_ns = time.monotonic_ns()
        try:
            self._evidence.receive(datagram, now_ns=now_ns, sender=sender)
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
            log.warning("fault.named", **fields_of(fault))
        for fault in changes.cleared:
            log.info("fault.cleared", element=fault.element.name, kind=fault.kind)
        self._nics.update([named.fault for named in self.list.named], now_ns=now_ns)

    def _aim(self, faults: Sequence[Fault]) -> None:
        """Direct half of the probes to the loops that tell most about uncertain faults."""
        telling = telling_of(faults, self._numbers)
        if telling == self._telling:
            return
        self._telling = telling
        room = (0,) * (ABI.MRC_TELLING_MAX - len(telling))
        was = self._dp.read("survey", 0, _SURVEY)
        was["telling"] = len(telling)
        self._dp.write("survey", 0, _SURVEY, **was, tell=telling + room)


def telling_of(faults: Iterable[Fault], numbers: Mapping[Trip, int]) -> tuple[int, ...]:
    """Return the numbers of a host's loops that tell most about uncertain faults.

    `numbers` gives the number of each of its loops. The most telling loop of each fault comes
    first, then the second of each.
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
    """Return the reason why this host runs no survey; empty if it does."""
    if why := underlay.of(config.fabric).why_no_loops():
        return why
    return "" if config.transport.survey_pps else "[transport] survey_pps is 0"
