# SPDX-License-Identifier: GPL-2.0-only
"""A model of a QP's EV set in plain Python: a second implementation of bpf/path.h and pick.h.

It uses sets of numbers instead of bitmaps, and the table of mrcd.paths.states instead of a switch.
Some choices of the programs are free: the order of planes in a round, and which turn a slow path
gets. The model is told those choices and checks that they were allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mrcd.paths.states import Event, State, after
from mrcd.wire.abi import ABI

FULL: int = ABI.MRC_SHARE_FULL
NEED, NEED_MAX = 2, 8
RELAPSES_MAX = 10
DEAD_MISSES = 2
RELAPSE_NS = 10_000_000_000
CLEARLY_WORSE_PPM = 8000
MARK_PARTS = 64
CROWD_SLACK_PPM = 20_000
CROWD_HOLD_NS = 100_000_000
CROWDS_MAX = 4


@dataclass(slots=True)
class Path:
    """The state of one path."""

    loss_ppm: int = 0
    relapses: int = 0
    need: int = 0
    ok: int = 0
    misses: int = 0
    acked: int = 0
    acked_then: int = 0
    mark_ppm: int = 0
    crowded: bool = False  # temporarily
    hold_ns: int = 0
    withdrawn_ns: int = 0
    relapsed_ns: int = 0


@dataclass(slots=True)
class Plane:
    """The slots of one plane."""

    all: set[int]
    active: int
    use: set[int] = field(default_factory=set)
    skip: set[int] = field(default_factory=set)
    slow: set[int] = field(default_factory=set)
    spare: set[int] = field(default_factory=set)
    denied: set[int] = field(default_factory=set)
    next: int = 0
    acked: int = 0
    acked_then: int = 0
    mark_ppm: int = 0

    def state(self, slot: int) -> State:
        if slot in self.denied:
            return State.DENIED
        if slot in self.use:
            return State.SKIP if slot in self.skip else State.GOOD
        return State.GOOD if slot in self.spare else State.ASSUMED_BAD


def cyclic(slots: set[int], start: int) -> int | None:
    """Return the first member of a set at or after `start`, cyclically."""
    return min(slots, key=lambda slot: (slot - start) % ABI.MRC_EVS_PER_PLANE, default=None)


def one_at_a_time(total: int, up: bool) -> int:
    """Return the smoothed loss after one more packet, in ppm."""
    return total + ((1_000_000 - total) >> 8) if up else total - (total >> 8)


def marked_part(ppm: int, fresh: int, parts: int) -> int:
    """Return the smoothed share of marked packets, in ppm; one of the last `fresh` was marked."""
    if not parts:
        return ppm
    fresh = min(fresh, parts)
    if fresh > 1:
        ppm -= ppm * (fresh - 1) // parts
    return ppm + (1_000_000 - ppm) // parts


class PathSet:
    """The EV set of one QP. A path is (plane, slot)."""

    def __init__(
        self,
        slots: list[int],
        active: list[int],
        floor: int = 0,
        hold_base_ns: int = 0,
        hold_max_ns: int = 0,
    ) -> None:
        self.planes = [
            Plane(set(range(n)), a, use=set(range(a)), spare=set(range(a, n)))
            for n, a in zip(slots, active, strict=True)
        ]
        self.floor, self.hold_base_ns, self.hold_max_ns = floor, hold_base_ns, hold_max_ns
        self.turn: set[int] = set()
        self.suspects: set[int] = set()
        self.arrived = [0] * ABI.MRC_MAX_PLANES  # when the latest packet that arrived was sent
        self.credit = [0] * ABI.MRC_MAX_PLANES
        self.loss_ppm = 0
        self.paths = {(p, k): Path() for p, n in enumerate(slots) for k in range(n)}

    # ---- the paths

    @property
    def used(self) -> int:
        return sum(len(plane.use) for plane in self.planes)

    @property
    def in_use(self) -> set[int]:
        return {p for p, plane in enumerate(self.planes) if plane.use}

    @property
    def open(self) -> set[int]:
        return {p for p, plane in enumerate(self.planes) if plane.all - plane.denied}

    def state(self, p: int, k: int) -> State:
        return self.planes[p].state(k)

    # ---- states

    def enter(self, p: int, k: int, to: State) -> None:
        """Put a path into a state; a backup of its plane fills the place that it leaves."""
        plane = self.planes[p]
        was = k in plane.use
        for members in (plane.use, plane.skip, plane.spare, plane.denied):
            members.discard(k)
        if to is State.DENIED:
            plane.denied.add(k)
        elif to is not State.ASSUMED_BAD:
            if was or len(plane.use) < plane.active:
                plane.use.add(k)
                if to is State.SKIP:
                    plane.skip.add(k)
            else:
                plane.spare.add(k)
        if was and k not in plane.use:
            plane.slow.discard(k)
            backup = cyclic(plane.spare, k)
            if backup is not None:
                plane.spare.remove(backup)
                plane.use.add(backup)

    def event(self, p: int, k: int, event: Event) -> tuple[State, State]:
        """Apply the table to an event, and return the states before and after."""
        before = self.state(p, k)
        to = after(before, event)
        if to is not before:
            self.enter(p, k, to)
        return before, to

    def acked(self, p: int, k: int) -> None:
        """Handle a packet of this path that arrived."""
        path = self.paths[p, k]
        path.acked += 1
        self.planes[p].acked += 1
        path.loss_ppm = one_at_a_time(path.loss_ppm, up=False)
        self.loss_ppm = one_at_a_time(self.loss_ppm, up=False)

    def plane_lost(self, p: int, sent: int) -> None:
        """Suspect a plane on which nothing sent after a lost packet has arrived."""
        if self.arrived[p] <= sent:
            self.suspects.add(p)

    def plane_heard(self, p: int, sent: int) -> None:
        """Handle a packet that arrived by a plane."""
        if sent > self.arrived[p]:
            self.arrived[p] = sent
            self.suspects.discard(p)

    def lost(self, p: int, k: int, now: int, *, alive: bool) -> tuple[State, State]:
        """Handle a lost packet of this path; `alive`: a later packet of the path arrived."""
        path = self.paths[p, k]
        path.loss_ppm = one_at_a_time(path.loss_ppm, up=True)
        self.loss_ppm = one_at_a_time(self.loss_ppm, up=True)
        keep = alive and self.used <= self.floor
        before, to = self.event(p, k, Event.MARK if keep else Event.LOSS)
        if to is before or to is not State.ASSUMED_BAD:
            return before, to
        if now - path.relapsed_ns > RELAPSE_NS:
            path.relapses = 0
        if path.loss_ppm > 2 * self.loss_ppm + CLEARLY_WORSE_PPM:
            self.relapsed(path, now)
        hold, path.need = 0, 1
        if path.relapses:
            hold = min(self.hold_base_ns << path.relapses, self.hold_max_ns)
            path.need = min(NEED + path.relapses, NEED_MAX)
        path.hold_ns, path.withdrawn_ns = now + hold, now
        path.ok = path.misses = 0
        return before, to

    def relapsed(self, path: Path, now: int) -> None:
        """Make the next withdrawal longer, unless it comes much later."""
        path.relapses = min(path.relapses + 1, RELAPSES_MAX)
        path.relapsed_ns = now

    def marked(self, p: int, k: int) -> tuple[State, State]:
        """Handle a marked packet: the path is slow if it is marked far more than its plane."""
        path, plane = self.paths[p, k], self.planes[p]
        for each, parts in ((plane, MARK_PARTS * len(plane.use)), (path, MARK_PARTS)):
            each.mark_ppm = marked_part(each.mark_ppm, each.acked - each.acked_then, parts)
            each.acked_then = each.acked
        moved = self.event(p, k, Event.MARK)
        usual = plane.mark_ppm
        far_more = path.mark_ppm > usual + usual // 2 + CROWD_SLACK_PPM
        may_leave = k in plane.slow or 2 * (len(plane.slow) + 1) <= len(plane.use)
        if k in plane.use and far_more and not path.crowded and may_leave:
            path.crowded = True
            plane.slow.add(k)
        return moved

    def cleared(self, p: int, k: int) -> tuple[State, State]:
        """Handle a packet of this path that counted as lost, but had arrived."""
        path, before = self.paths[p, k], self.state(p, k)
        self.suspects.discard(p)
        path.loss_ppm -= min(path.loss_ppm, (1_000_000 - path.loss_ppm) >> 8)
        self.loss_ppm -= min(self.loss_ppm, (1_000_000 - self.loss_ppm) >> 8)
        if before is State.ASSUMED_BAD and not path.misses:
            move = self.event(p, k, Event.PROBE)
            self.is_back(p, k)
            return move
        return before, before

    def is_back(self, p: int, k: int) -> None:
        """Put a path back into use, as crowded as it was."""
        if self.paths[p, k].crowded:
            self.planes[p].slow |= {k} & self.planes[p].use

    def answered(self, p: int, k: int, now: int, *, marked: bool) -> tuple[State, State]:
        """Handle an answered probe of this path."""
        path, before = self.paths[p, k], self.state(p, k)
        self.suspects.discard(p)
        if before is State.ASSUMED_BAD:
            if now < path.hold_ns:
                return before, before
            path.ok += 1
            if path.ok < path.need:
                return before, before
        before, to = self.event(p, k, Event.PROBE_MARK if marked else Event.PROBE)
        if before is State.ASSUMED_BAD:
            if path.misses >= DEAD_MISSES:
                self.relapsed(path, now)
            path.ok = path.misses = 0
            self.is_back(p, k)
        return before, to

    def silent(self, p: int, k: int, now: int) -> tuple[State, State]:
        """Handle an unanswered probe of this path."""
        path, before = self.paths[p, k], self.state(p, k)
        if before is State.ASSUMED_BAD:
            path.ok = 0
            path.misses += 1
        elif before is not State.DENIED:
            move = self.lost(p, k, now, alive=False)
            path.misses = 1
            return move
        return before, before

    # ---- the next packet

    def check_pick(
        self,
        chosen: tuple[int, int] | None,
        up: set[int],
        preferred: set[int] | None = None,
        shares: list[int] | None = None,
        price: int = FULL,
    ) -> None:
        """Check that the programs were allowed to send a packet on `chosen`.

        `up` holds the usable planes, of which suspects are left out if others have a path in use,
        and `preferred` those to take if one of them has a path.
        `price` is what the packet costs of a whole turn.
        Raises AssertionError if the choice was not allowed.
        """
        usable = self.in_use & up
        usable = usable - self.suspects or usable
        if not usable:
            self._check_last_resort(chosen, (self.open & up) or self.open)
            return
        assert chosen is not None, "paths are in use and none was taken"
        p, k = chosen
        preferred = (up if preferred is None else preferred) & usable or usable
        if not self.turn & usable:
            self.turn = self._new_round(usable, shares or [FULL] * len(self.credit))
        assert p in (self.turn & preferred or preferred), f"plane {p} was not to be used"
        self.turn.discard(p)
        if self.credit[p] >= FULL:
            self.credit[p] -= price
        self._check_slot(self.planes[p], k)

    def _new_round(self, usable: set[int], shares: list[int]) -> set[int]:
        def due() -> set[int]:
            return {p for p in usable if self.credit[p] >= FULL}

        if not due():
            self.credit = [
                credit % FULL + share for credit, share in zip(self.credit, shares, strict=True)
            ]
        return due() or set(usable)

    def _check_slot(self, plane: Plane, k: int) -> None:
        first = cyclic(plane.use, plane.next)
        assert first is not None
        other = cyclic(plane.use - plane.skip - plane.slow, first + 1)
        right = {first}
        if first in plane.skip:
            plane.skip.remove(first)  # GOOD again, but skipped this time
            if other is not None:
                right = {other}
        elif first in plane.slow and other is not None:
            right = {first, other}  # occasionally the slow one
        assert k in right, f"slot {k} was taken, {right} was to be"
        plane.next = (k + 1) % ABI.MRC_EVS_PER_PLANE

    def _check_last_resort(self, chosen: tuple[int, int] | None, planes: set[int]) -> None:
        """Check the choice when no path is in use: any path that is not denied, in turn."""
        if not planes:
            assert chosen is None, "a denied path was taken"
            return
        assert chosen is not None, "there was a path to try"
        p, k = chosen
        plane = self.planes[p]
        assert p in planes
        assert k == cyclic(plane.all - plane.denied, plane.next)
        plane.next = (k + 1) % ABI.MRC_EVS_PER_PLANE

    # ---- the form that the maps hold

    def members(self) -> dict[str, tuple[int, ...]]:
        """Return the array members of struct mrc_tx that the model covers."""
        words: dict[str, list[int]] = {}
        for name in ("use", "skip", "slow", "spare", "denied", "all"):
            words[name] = [0] * ABI.MRC_SET_WORDS
            for p, plane in enumerate(self.planes):
                for k in getattr(plane, name):
                    words[name][p * ABI.MRC_EV_WORDS + (k >> 6)] |= 1 << (k & 63)
        filler = [0] * (ABI.MRC_MAX_PLANES - len(self.planes))
        words["used"] = [len(plane.use) for plane in self.planes] + filler
        words["active"] = [plane.active for plane in self.planes] + filler
        words["ev_next"] = [plane.next for plane in self.planes] + filler
        return {name: tuple(values) for name, values in words.items()}

    def scalars(self) -> dict[str, int]:
        """Return the scalar members of struct mrc_tx that the model covers."""
        return {
            "used_all": self.used,
            "plane_use": sum(1 << p for p in self.in_use),
            "plane_open": sum(1 << p for p in self.open),
            "turn": sum(1 << p for p in self.turn),
            "credit": sum(credit << 8 * p for p, credit in enumerate(self.credit)),
            "loss_ppm": self.loss_ppm,
            "suspects": sum(1 << p for p in self.suspects),
        }


def check_invariants(arrays: dict[str, tuple[int, ...]], scalars: dict[str, int]) -> None:
    """Check, on the maps' own values, the invariants of a QP's sets."""
    words = ABI.MRC_EV_WORDS
    sets = {
        name: [sum(arrays[name][p * words + w] << 64 * w for w in range(words)) for p in range(8)]
        for name in ("use", "skip", "slow", "spare", "denied", "all")
    }
    for p in range(ABI.MRC_MAX_PLANES):
        use, spare, denied = sets["use"][p], sets["spare"][p], sets["denied"][p]
        assert arrays["used"][p] == use.bit_count() <= arrays["active"][p]
        assert use & spare == use & denied == spare & denied == 0
        assert (use | spare | denied) & ~sets["all"][p] == 0
        assert sets["skip"][p] & ~use == 0
        assert sets["slow"][p] & ~use == 0
        assert not spare or use.bit_count() == arrays["active"][p], "a backup that should be in use"
        assert scalars["plane_use"] >> p & 1 == bool(use)
        assert scalars["plane_open"] >> p & 1 == bool(sets["all"][p] & ~denied)
    assert scalars["used_all"] == sum(arrays["used"])
