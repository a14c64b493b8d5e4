# SPDX-License-Identifier: GPL-2.0-only
"""A QP's paths, packet by packet: the real programs beside the model in tests/path_model.py.

Every event of a path has its real cause: packets sprayed, SACKs that acknowledge, miss and mark,
NACKs, probes answered or not, commands, planes that come and go. MRC_HYPOTHESIS=long runs a
thousand new examples instead of the same few.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mrcd.linux import bpfbatch
from mrcd.paths.states import Event, State
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Data, Peth, decode_frame
from rigs.packets import Far, ip4
from rigs.rig import PLANES, T1S, TC_REDIRECT, TC_SHOT, Rig, clock_passes
from tests.path_model import FULL, PathSet, check_invariants
from tests.stateful import run

FIRST = 1000
OUT = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")
OUTSTANDING = 48  # a SACK's bitmap shows 64
RESEND_MAX = 16
NEVER_NS = 1 << 62
_PATH = ABI.structs["mrc_path"]


@dataclass(slots=True)
class Packet:
    """A packet of ours that is on its way."""

    path: tuple[int, int]
    sent: int  # the step that sent it last
    sends: int = 1
    was: tuple[int, int] | None = None  # path of the first transmission, once it was repeated


class Paths(RuleBasedStateMachine):
    """h1 sends to h2 over four planes of four paths."""

    rig: ClassVar[Rig]
    far: ClassVar[Far]

    @initialize(active=st.integers(2, T1S), floor=st.integers(0, 6))
    def begin(self, active: int, floor: int) -> None:
        rig = self.rig
        rig.reset(evs=active * PLANES, ev_min_active=floor)
        rig.connect()
        # A packet sent before one that arrived is lost. No other rule acts by itself.
        rig.tune(reo_min_ns=0, reo_max_ns=0, probe_interval_ns=1)
        self.model = PathSet([T1S] * PLANES, [active] * PLANES, floor or active * PLANES // 4)
        self.evs = {path.ev: (path.plane, path.slot) for path in rig.paths(0)}
        self.ev_of = {path: ev for ev, path in self.evs.items()}
        self.ours = self.theirs = self.ports = self.heard = 0xFF
        self.shares = [FULL] * ABI.MRC_MAX_PLANES
        self.sent: dict[int, Packet] = {}
        self.next = FIRST
        self.high = FIRST
        self.step = 0
        self.latest = 0  # newest transmission that arrived ...
        self.delivered = dict.fromkeys(self.ev_of, 0)  # ... and that of each path
        self.probes: dict[tuple[int, int], int] = {}
        self.now = 0
        rig.counted()

    @property
    def up(self) -> set[int]:
        mask = self.ours & self.theirs & self.ports & self.heard
        return {p for p in range(PLANES) if mask >> p & 1}

    def taken(self, frame: bytes) -> tuple[int, int]:
        """Return the path that a frame of ours left by."""
        return self.evs[decode_frame(frame).envelope.ev]

    # Which probes are overdue depends on time, which Hypothesis must not notice: its draws do not
    # depend on the choices that exist.
    number = st.integers(0, 63)

    # ---- sending

    @rule(count=st.integers(1, 8))
    def spray(self, count: int) -> None:
        for _ in range(min(count, OUTSTANDING - (self.next - min(self.sent, default=self.next)))):
            self.rig.counted()
            ran = self.rig.spray(OUT)
            self.step += 1
            if not self.ports:
                assert self.rig.counted() == {"drop_no_plane": 1}
                continue
            if ran.verdict == TC_SHOT:
                self.model.check_pick(None, self.up, shares=self.shares)
                assert self.rig.counted() == {"drop_no_path": 1}
                continue
            assert ran.verdict == TC_REDIRECT
            path = self.taken(ran.frame)
            assert self.model.state(*path) is not State.DENIED
            self.model.check_pick(path, self.up, shares=self.shares)
            self.sent[self.next] = Packet(path, self.step)
            self.next += 1
            self.rig.counted()

    # ---- answers

    @rule(
        number=number,
        random=st.randoms(use_true_random=False),
        share=st.sampled_from(["all", "prefix", "most", "few", "none"]),
        verdict=st.sampled_from([0, 0, WIRE.MRC_SETH_M_SKIP_ONCE, WIRE.MRC_SETH_M_ALWAYS_SKIP]),
        down=st.sampled_from([0, 0, 0, 1, 0b0110, 0b1111]),
        twice=st.booleans(),
    )
    def sack(
        self, number: int, random: Random, share: str, verdict: int, down: int, twice: bool
    ) -> None:
        """Acknowledge some of the packets on their way, one of them perhaps twice.

        `verdict` is about the path of that one.
        """
        psns = sorted(self.sent)
        if not psns:
            return
        if share == "prefix":
            arrived = set(psns[: number % len(psns) + 1])
        elif share in ("most", "few"):
            often = 0.8 if share == "most" else 0.2
            arrived = {psn for psn in psns if random.random() < often}
        else:
            arrived = set(psns) if share == "all" else set()
        trigger = psns[number % len(psns)]
        about, cause = self.sent[trigger].path, self.sent[trigger]
        left = [psn for psn in psns if psn not in arrived]
        cack = (left[0] if left else self.next) - 1
        got = {psn for psn in range(cack + 1, self.next) if psn not in left}
        self.step += 1
        now = self.step

        # ---- the model: what arrived, the verdict, what is missing
        for psn in sorted(arrived):
            packet = self.sent.pop(psn)
            self.high = max(self.high, psn + 1)
            if packet.sends > 1:  # the SACK does not tell which one arrived
                continue
            self.model.acked(*packet.path)
            self.latest = max(self.latest, packet.sent)
            self.delivered[packet.path] = max(self.delivered[packet.path], packet.sent)
            self.model.plane_heard(packet.path[0], packet.sent)
        if twice and cause.sends == 2:
            assert cause.was is not None
            self.model.cleared(*cause.was)
        if twice and cause.sends == 1:
            pass  # someone else has sent it the second time
        elif verdict == WIRE.MRC_SETH_M_SKIP_ONCE:
            self.model.marked(*about)
        elif verdict:
            self.model.lost(*about, self.now, alive=False)
        self.heard = ~down & 0xFF
        lost = [psn for psn in left if psn < self.high and self.sent[psn].sent < self.latest]

        # ---- the programs
        bitmap = sum(1 << psn - cack - 1 for psn in got)
        self.rig.arrive(
            self.far.sack(
                cack,
                bitmap,
                trigger=trigger,
                verdict=verdict,
                about=self.ev_of[about],
                down=down,
                duplicate=twice,
            )
        )
        self.follow_resends(lost[:RESEND_MAX], now)
        self.hold()

    def hold(self) -> None:
        """Keep crowded paths crowded, however slow the test is."""
        for path, values in self.values().items():
            if 0 < values["crowded_ns"] < NEVER_NS:
                self.rig.edit_path(self.ev_of[path], crowded_ns=NEVER_NS)

    def follow_resends(self, lost: list[int], now: int, *, nacked: bool = False) -> None:
        """Check that `lost` were sent again in order, each on a path that was right at its time."""
        again = {}
        for plane, frame in self.rig.sent():
            packet = decode_frame(frame)
            assert isinstance(packet, Data)
            assert packet.bth.rtx
            again[packet.bth.psn] = path = self.evs[packet.envelope.ev]
            assert path[0] == plane
        assert again.keys() <= set(lost)
        for psn in lost:
            packet = self.sent[psn]
            if nacked:
                self.model.event(*packet.path, Event.MARK)
            else:
                alive = self.delivered[packet.path] > packet.sent
                self.model.lost(*packet.path, self.now, alive=alive)
                self.model.plane_lost(packet.path[0], packet.sent)
            self.model.check_pick(again.get(psn), self.up, self.up - {packet.path[0]}, self.shares)
            packet.sent = now
            packet.sends += 1
            packet.was = packet.path if packet.sends == 2 else packet.was
            if psn in again:
                packet.path = again[psn]

    @rule(number=number)
    def nack(self, number: int) -> None:
        """Report a trimmed packet: its path is passed over once, and the packet is sent again."""
        if not self.sent:
            return
        psn = sorted(self.sent)[number % len(self.sent)]
        self.step += 1
        self.rig.arrive(self.far.nack(psn, about=self.ev_of[self.sent[psn].path]))
        self.follow_resends([psn], self.step, nacked=True)

    # ---- probes

    @rule(times=st.integers(1, 6), wait=st.booleans())
    def tick(self, times: int, wait: bool) -> None:
        """Let the clock probe withdrawn paths and their neighbours, or find one silent."""
        for _ in range(times):
            if wait:
                clock_passes(4_100_000)
            # no time-out sends data again, however slow the test is
            self.rig.edit("txs", 0, "mrc_tx", progress_ns=time.monotonic_ns())
            self.rig.tick()
            values = self.values()
            before = dict(self.probes)
            away = {p for p in range(PLANES) for k in range(T1S) if self.is_away(p, k)}
            frames = self.rig.sent()
            assert len({plane for plane, _frame in frames}) == len(frames)  # one for each plane
            for path in sorted(before):
                probe_id = before[path]
                if values[path]["probe_seen"] == probe_id:  # it counts as unanswered
                    del self.probes[path]
                    self.model.silent(*path, self.now)
            for plane, frame in frames:
                packet = decode_frame(frame)
                assert isinstance(packet.body, Peth)
                path = self.evs[packet.envelope.ev]
                assert path[0] == plane
                assert plane in away or self.is_away(*path)
                assert self.model.state(*path) is not State.DENIED
                assert path not in self.probes  # one on its way at a time
                assert packet.body.probe_id >> 9 == path[1]
                self.probes[path] = packet.body.probe_id

    def is_away(self, p: int, k: int) -> bool:
        return self.model.state(p, k) is State.ASSUMED_BAD

    @rule(number=number, marked=st.booleans(), twice=st.booleans())
    def answer(self, number: int, marked: bool, twice: bool) -> None:
        if not self.probes:
            return
        path = sorted(self.probes)[number % len(self.probes)]
        verdict = WIRE.MRC_SETH_M_SKIP_ONCE if marked else WIRE.MRC_SETH_M_NONE
        frame = self.far.probe_reply(self.probes.pop(path), self.ev_of[path], verdict=verdict)
        for _ in range(1 + twice):  # a copy has no effect
            self.rig.receive(frame, f"plane{path[0]}")
        self.model.answered(*path, self.now, marked=marked)

    # ---- the operator, the planes

    path = st.tuples(st.integers(0, PLANES - 1), st.integers(0, T1S - 1))

    @rule(path=path, denied=st.booleans())
    def deny(self, path: tuple[int, int], denied: bool) -> None:
        self.rig.table.deny(0, *path, denied=denied)
        self.model.event(*path, Event.DENY if denied else Event.ALLOW)

    @rule(plane=st.none() | st.integers(0, PLANES - 1), denied=st.booleans())
    def deny_a_plane(self, plane: int | None, denied: bool) -> None:
        """Deny or allow all paths of a plane, or of all planes."""
        for p in range(PLANES) if plane is None else (plane,):
            for k in range(T1S):
                self.deny((p, k), denied)

    @rule(who=st.sampled_from(["ours", "theirs", "ports"]), mask=st.sampled_from([15, 15, 5, 8, 0]))
    def planes_change(self, who: str, mask: int) -> None:
        if who == "ours":
            self.ours = mask
            self.rig.tune(plane_mask=mask)
        elif who == "theirs":
            self.theirs = mask
            self.rig.spread("h2", 0, 1, planes=mask)
        else:
            self.ports = self.heard = mask
            self.rig.table.peers.set_ports("h2", mask)

    @rule(shares=st.lists(st.integers(4, FULL), min_size=PLANES, max_size=PLANES))
    def share(self, shares: list[int]) -> None:
        self.shares[1:PLANES] = shares[1:]
        word = int.from_bytes(bytes(self.shares), "little")
        peer = self.rig.table.peers.indices["h2"]
        self.rig.edit("balances", peer, "mrc_balance", shares=word, turns=word)

    @rule(path=path)
    def slow(self, path: tuple[int, int]) -> None:
        plane = self.model.planes[path[0]]
        plane.slow |= {path[1]} & plane.use
        self.rig.edit("txs", 0, "mrc_tx", slow=self.model.members()["slow"])

    # ---- after each step

    def values(self) -> dict[tuple[int, int], dict[str, int]]:
        """Return struct mrc_path of each path."""
        evs = self.rig.dp.sizes.evs
        raw = bpfbatch.lookup(self.rig.dp.maps["paths"], 0, PLANES * evs, _PATH.size)
        return {(p, k): _PATH.unpack(raw[p * evs + k]) for p in range(PLANES) for k in range(T1S)}

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        arrays, plain = self.rig.sets(), self.rig.tx()
        members, scalars = self.model.members(), self.model.scalars()
        assert {name: arrays[name] for name in members} == members
        assert {name: plain[name] for name in scalars} == scalars
        check_invariants(arrays, plain)
        assert plain["next"] == self.next
        assert plain["una"] == min(self.sent, default=self.next)
        values = self.values()
        for view in self.rig.paths(0):
            key = (view.plane, view.slot)
            path = self.model.paths[key]
            assert view.state is self.model.state(*key)
            found = values[key]
            assert (found["loss_ppm"], found["relapses"]) == (path.loss_ppm, path.relapses)
            assert (found["probe_need"], found["probe_ok"]) == (path.need, path.ok)
            assert found["misses"] == path.misses


@pytest.mark.timeout(600)
def test_programs_and_model_agree(rig: Rig, far: Far) -> None:
    assert rig.dp.sizes.evs == T1S
    Paths.rig, Paths.far = rig, far
    run(Paths, examples=40, steps=25)
