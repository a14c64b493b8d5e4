# SPDX-License-Identifier: GPL-2.0-only
"""Plan the faults of a soak as a pure function of the seed, the length and the fabric.

An episode breaks one element, or a few at once, in one way for a while. Overlapping episodes have
different elements, since clearing an element clears all of its faults. Episodes that cut (down,
blackhole, flaps) spare one plane, except in rare blackouts: all NIC links of a host for a few
seconds.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

KINDS = ("down", "blackhole", "loss", "corrupt", "rate", "flap")
LEAD_S = 3.0
"""No fault begins before this time: traffic starts first."""
BLACKOUT_MAX_S = 2.5

_CUTS = ("down", "blackhole")
_GAP_S = 1.5  # the mean time between the beginnings of two episodes
_LAST_S = (0.3, 8.0)
_AT_ONCE_MAX = 5
_BLACKOUT_SHARE = 0.02
_SEVERAL_SHARE = 0.25
_TICK_S = 0.05  # the grid of changes, so that those meant for the same time have the same time


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the lab at a time: an action for each element, all at once."""

    at_s: float
    actions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Ground:
    """The elements and faults that a schedule may use."""

    planes: int
    t0: int
    t1: int
    hosts: tuple[str, ...]
    rate_mbps: int


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode: elements that are broken from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    elements: tuple[str, ...]
    kind: str
    action: str
    blackout: bool = False

    @property
    def planes(self) -> set[int]:
        """Return the planes that it touches."""
        return {plane_of(element) for element in self.elements}

    @property
    def cuts(self) -> bool:
        """Return whether the elements pass nothing while it lasts."""
        return self.action in _CUTS

    def changes(self) -> Iterator[Change]:
        """Yield the changes that break and clear its elements."""
        if self.kind != "flap":
            yield Change(self.start_s, dict.fromkeys(self.elements, self.action))
        else:
            at_s, broken = self.start_s, False
            while at_s < self.end_s:
                broken = not broken
                action = self.action if broken else "clear"
                yield Change(at_s, dict.fromkeys(self.elements, action))
                at_s += 0.25
        yield Change(self.end_s, dict.fromkeys(self.elements, "clear"))


def plane_of(element: str) -> int:
    """Return the plane of an element."""
    found = re.search(r"(?:^|:)p(\d+)", element)
    if found is None:
        raise ValueError(f"{element}: names no plane")
    return int(found[1])


def episodes(
    seed: int, seconds: float, ground: Ground, kinds: Sequence[str] = KINDS
) -> list[Episode]:
    """Return all episodes in order of their beginning; all are over at `seconds`."""
    rng = random.Random(seed)
    found: list[Episode] = []
    at_s = LEAD_S
    while True:
        at_s += rng.expovariate(1 / _GAP_S)
        start_s = _grid(at_s)
        end_s = _grid(start_s + rng.uniform(*_LAST_S))
        blackout = rng.random() < _BLACKOUT_SHARE
        if blackout:  # it waits until others are over, and none begins before its end
            at_s = max([at_s, *(each.end_s + 2 * _TICK_S for each in found)])
            start_s = _grid(at_s)
            end_s = _grid(start_s + rng.uniform(0.3, BLACKOUT_MAX_S))
        kind = rng.choice(list(kinds))
        wanted = (_link(rng, ground),) if kind == "corrupt" else _elements(rng, ground)
        action = _action(rng, kind, ground)
        if end_s > seconds:
            return found
        if blackout:
            wanted = _every_nic_link(rng, ground)
            action = kind = rng.choice([cut for cut in _CUTS if cut in kinds] or ["loss=10%"])
        now = [each for each in found if each.end_s >= start_s - _TICK_S]
        new = Episode(start_s, end_s, wanted, kind, action, blackout)
        if _fits(new, now, ground):
            found.append(new)


def _grid(at_s: float) -> float:
    return round(round(at_s / _TICK_S) * _TICK_S, 3)


def _every_nic_link(rng: random.Random, ground: Ground) -> tuple[str, ...]:
    host = rng.choice(ground.hosts)
    return tuple(f"{host}:p{plane}" for plane in range(ground.planes))


def _link(rng: random.Random, ground: Ground) -> str:
    plane = rng.randrange(ground.planes)
    t0, t1 = rng.randint(1, ground.t0), rng.randint(1, ground.t1)
    links = (f"p{plane}t0-{t0}:p{plane}t1-{t1}", f"{rng.choice(ground.hosts)}:p{plane}")
    return rng.choice(links)


def _elements(rng: random.Random, ground: Ground) -> tuple[str, ...]:
    count = rng.randint(2, 4) if rng.random() < _SEVERAL_SHARE else 1
    return tuple(dict.fromkeys(_element(rng, ground) for _ in range(count)))


def _element(rng: random.Random, ground: Ground) -> str:
    plane = rng.randrange(ground.planes)
    t0, t1 = rng.randint(1, ground.t0), rng.randint(1, ground.t1)
    return rng.choice(
        (
            f"p{plane}",
            f"p{plane}t0-{t0}",
            f"p{plane}t1-{t1}",
            f"p{plane}t0-{t0}:p{plane}t1-{t1}",
            f"{rng.choice(ground.hosts)}:p{plane}",
        )
    )


def _action(rng: random.Random, kind: str, ground: Ground) -> str:
    if kind == "loss":
        return f"loss={rng.choice((0.1, 1, 5, 20, 50))}%"
    if kind == "corrupt":
        return f"corrupt={rng.choice((0.1, 1, 5))}%"
    if kind == "rate":
        return f"rate={max(1, int(ground.rate_mbps * rng.choice((0.1, 0.3, 0.5, 0.8))))}"
    return rng.choice(_CUTS) if kind == "flap" else kind


def _fits(new: Episode, now: Sequence[Episode], ground: Ground) -> bool:
    """Return whether an episode may begin while those in `now` last."""
    # A packet must not be damaged twice: two flipped bits can cancel out in the checksums of TCP
    # and UDP, which are the only protection of a payload.
    if new.kind == "corrupt" and any(each.kind == "corrupt" for each in now):
        return False
    taken = {element for each in now for element in each.elements}
    if taken & set(new.elements) or len(now) >= _AT_ONCE_MAX:
        return False
    if any(each.blackout for each in now):
        return False
    if new.blackout:
        return True
    cut = set().union(*(each.planes for each in (*now, new) if each.cuts))
    return len(cut) < ground.planes


def changes(planned: Iterable[Episode]) -> list[Change]:
    """Return the changes in time order; those of the same time are merged."""
    together: dict[float, dict[str, str]] = {}
    for episode in planned:
        for change in episode.changes():
            together.setdefault(round(change.at_s, 3), {}).update(change.actions)
    return [Change(at_s, actions) for at_s, actions in sorted(together.items())]


def text(
    seed: int,
    seconds: float,
    ground: Ground,
    planned: Sequence[Episode],
    disturbances: Sequence[Any] = (),
) -> str:
    """Return the text of a file with the schedule and its inputs.

    The disturbances are dataclasses of soak_mix.
    """
    content = {
        "seed": seed,
        "seconds": seconds,
        "ground": asdict(ground),
        "episodes": [asdict(episode) for episode in planned],
        "disturbances": [{"kind": type(d).__name__.lower(), **asdict(d)} for d in disturbances],
    }
    return json.dumps(content, indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class Spell:
    """A period in which no plane was free of cuts; times are CLOCK_MONOTONIC."""

    start_ns: int
    end_ns: int


def spells(applied: Iterable[tuple[int, int, dict[str, str]]], planes: int) -> list[Spell]:
    """Return the spells in which every plane had a cut.

    `applied` are (began, in effect, actions), in order.
    """
    broken: set[str] = set()
    found: list[Spell] = []
    since: int | None = None
    end_ns = 0
    for began_ns, end_ns, actions in applied:
        for element, action in actions.items():
            if action in _CUTS:
                broken.add(element)
            elif action == "clear":
                broken.discard(element)
        all_cut = len({plane_of(element) for element in broken}) == planes
        if all_cut and since is None:
            since = began_ns
        elif not all_cut and since is not None:
            found.append(Spell(since, end_ns))
            since = None
    if since is not None:
        found.append(Spell(since, end_ns))
    return found


def longest_stall_ns(progress_ns: Sequence[int], without: Sequence[Spell]) -> int:
    """Return the longest time without progress, outside spells, between first and last entry."""
    worst = 0
    for start_ns, end_ns in itertools.pairwise(progress_ns):
        edge = start_ns
        for spell in without:
            if spell.end_ns > start_ns and spell.start_ns < end_ns:
                worst = max(worst, min(spell.start_ns, end_ns) - edge)
                edge = max(edge, spell.end_ns)
        worst = max(worst, end_ns - edge)
    return worst
