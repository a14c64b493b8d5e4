# SPDX-License-Identifier: GPL-2.0-only
"""Plan what a mixed soak does beside faults: attacks, restarts, rotations of keys, mistakes.

The plan is a pure function of the seed, the length, the fabric, the kinds, and the episodes of
faults. Each kind has its own random numbers, so that leaving one out does not change the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.soak.schedule import LEAD_S, Episode, Ground
from rigs import mistakes, stranger
from rigs.mistakes import Mistake

MIXED = ("attack", "restart", "rotate", "mistake")
SETTLE_S = 12.0
"""No disturbance begins later than this before the end: what it costs has to heal."""

_GAP_S = {"attack": 12.0, "restart": 15.0, "rotate": 8.0, "mistake": 5.0}
_ATTACK_S = (2.0, 8.0)
_PPS = (500, 2000, 4000)  # two CPUs carry this beside the traffic
_AWAY_S = (0.0, 2.0)  # from a daemon's end to the start of the next one
_NIC_S = (1.0, 4.0)
_NIC_MISTAKES = ("MTU of a plane NIC lowered", "plane NIC renamed", "plane NIC set down")
PLANE = int(mistakes.PLANE.removeprefix("plane"))
"""The plane whose NIC mistakes are made with."""

ATTACKERS = ("h2", "h3")
"""Hosts from whose NICs forged packets come. No mistakes are made with the NICs of these."""


@dataclass(frozen=True, slots=True)
class Attack:
    """A flood of forged packets to `target` in the name of `posing`, from the NICs of `host`."""

    at_s: float
    seconds: float
    host: str
    target: str
    posing: str
    packets: tuple[str, ...]
    pps: int
    seed: int


@dataclass(frozen=True, slots=True)
class Restart:
    """The end of a host's daemon by a signal, and the start of the next one `away_s` later."""

    at_s: float
    host: str
    signal: str
    away_s: float


@dataclass(frozen=True, slots=True)
class Rotation:
    """A host's new keys with all of its peers."""

    at_s: float
    host: str


@dataclass(frozen=True, slots=True)
class Slip:
    """An operator's mistake by its name. One that mrcd cannot put right is undone `seconds` later.

    All are made on the host that tests.net.mistakes names.
    """

    at_s: float
    name: str
    seconds: float = 0.0


Disturbance = Attack | Restart | Rotation | Slip


def mistake(name: str) -> Mistake:
    """Return a mistake by its name."""
    return next(each for each in (*mistakes.REPAIRED, *mistakes.NAMED) if each.name == name)


def chosen(cells: bool) -> list[Mistake]:
    """Return the mistakes of a soak, where data are framed in cells or not.

    A NIC that was moved away comes back without the lab's rate; a foreign queue and a taken name
    are not mrcd's to put right.
    """
    found = [each for each in mistakes.REPAIRED if cells or not each.cells_only]
    return found + [each for each in mistakes.NAMED if each.name in _NIC_MISTAKES]


def cuts_plane(name: str) -> bool:
    """Return whether a mistake takes a plane away from the host until it is undone."""
    return name in _NIC_MISTAKES


def planes_of(name: str) -> tuple[int, ...]:
    """Return the planes whose NICs a mistake changes."""
    changes = cuts_plane(name) or mistake(name).about.startswith(f"plane {PLANE}")
    return (PLANE,) if changes else ()


def loses_datagrams(name: str) -> bool:
    """Return whether datagrams may be lost while a mistake lasts.

    They are where mrc0, an interface or program beside it, or its address is away, or mrc0 is too
    short for them. What happens to a plane or a route costs none.
    """
    about = mistake(name).about
    return about.startswith("mrc0") or about in ("10.99.0.1/24", "link_tc_mrc0p")


def disturbances(
    seed: int,
    seconds: float,
    ground: Ground,
    kinds: Sequence[str],
    planned: Sequence[Episode] = (),
    *,
    cells: bool = True,
    dead_s: float | None = None,
) -> list[Disturbance]:
    """Return all disturbances of these kinds in order of their beginning.

    With `dead_s`, restarts are daemons that are killed and left dead for this time, in turn.
    """
    makers: dict[str, Callable[[random.Random, Iterator[float]], Iterator[Disturbance]]]
    makers = {
        "attack": lambda rng, times: _attacks(rng, times, ground),
        "restart": lambda rng, times: _restarts(rng, times, ground, dead_s),
        "rotate": lambda rng, times: _rotations(rng, times, ground),
        "mistake": lambda rng, times: _slips(rng, times, ground, planned, cells),
    }
    found: list[Disturbance] = []
    for kind in MIXED:
        if kind in kinds:
            rng = random.Random(f"{seed} {kind}")
            away_s = dead_s if kind == "restart" and dead_s else 0.0
            found += makers[kind](rng, _times(rng, _GAP_S[kind] + away_s, seconds - away_s))
    return sorted(found, key=lambda each: each.at_s)


def _times(rng: random.Random, gap_s: float, seconds: float) -> Iterator[float]:
    at_s = LEAD_S
    while True:
        at_s += rng.uniform(0.5, 1.5) * gap_s
        if at_s > seconds - SETTLE_S:
            return
        yield round(at_s, 2)


def kind_of(disturbance: Disturbance) -> str:
    """Return the kind of a disturbance."""
    names = {Attack: "attack", Restart: "restart", Rotation: "rotate", Slip: "mistake"}
    return names[type(disturbance)]


def _attacks(rng: random.Random, times: Iterator[float], ground: Ground) -> Iterator[Attack]:
    for at_s in times:
        host = rng.choice([each for each in ground.hosts if each in ATTACKERS])
        target, posing = rng.sample([each for each in ground.hosts if each != host], 2)
        packets = tuple(rng.sample(sorted(stranger.KINDS), rng.randint(1, 4)))
        lasts, pps = round(rng.uniform(*_ATTACK_S), 2), rng.choice(_PPS)
        yield Attack(at_s, lasts, host, target, posing, packets, pps, rng.getrandbits(32))


def _restarts(
    rng: random.Random, times: Iterator[float], ground: Ground, dead_s: float | None
) -> Iterator[Restart]:
    for at_s in times:
        host, name = rng.choice(ground.hosts), rng.choice(("SIGTERM", "SIGKILL"))
        if dead_s is None:
            yield Restart(at_s, host, name, round(rng.uniform(*_AWAY_S), 2))
        else:
            yield Restart(at_s, host, "SIGKILL", dead_s)


def _rotations(rng: random.Random, times: Iterator[float], ground: Ground) -> Iterator[Rotation]:
    for at_s in times:
        yield Rotation(at_s, rng.choice(ground.hosts))


def _slips(
    rng: random.Random,
    times: Iterator[float],
    ground: Ground,
    planned: Sequence[Episode],
    cells: bool,
) -> Iterator[Slip]:
    """Yield every mistake once before any is made again.

    One that would take the last plane away waits for its next turn.
    """
    names: list[str] = []
    for at_s in times:
        if not names:
            names = [each.name for each in chosen(cells)]
            rng.shuffle(names)
        for name in names:
            lasts = round(rng.uniform(*_NIC_S), 2) if cuts_plane(name) else 0.0
            if not cuts_plane(name) or _spares_a_plane(at_s, at_s + lasts, ground, planned):
                names.remove(name)
                yield Slip(at_s, name, lasts)
                break


def _spares_a_plane(
    start_s: float, end_s: float, ground: Ground, planned: Sequence[Episode]
) -> bool:
    """Return whether another plane than that of the NIC mistakes is free of cuts meanwhile."""
    beside = [each for each in planned if each.start_s <= end_s and start_s <= each.end_s]
    away = set().union(*(each.planes for each in beside if each.cuts or each.kind == "flap"))
    return len(away | {PLANE}) < ground.planes
