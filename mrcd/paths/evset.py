# SPDX-License-Identifier: GPL-2.0-only
"""The EV set of a QP: which paths it uses, and which it keeps as backups (pure).

As the paper has it (arXiv 2605.04333, sections 2.1 and 2.4): equally many EVs of each plane, a
random choice within the plane, senders do not coordinate; a failed EV is replaced by a backup of
the same plane.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mrcd.wire.abi import ABI

SLOTS_MAX: int = ABI.MRC_EVS_PER_PLANE
"""Slots of a plane, active and backup together."""
ACTIVE_MIN, ACTIVE_MAX = 8, 256
"""Bounds of an EV set's active part, all planes together."""


@dataclass(frozen=True, slots=True)
class PlaneSet:
    """The EVs of one plane in slot order; the first `active` of them begin in use."""

    evs: tuple[int, ...]
    active: int


def slots_per_plane(paths: int, planes: int, wanted: int) -> int:
    """Slots each plane of a QP's set needs: a power of two, at most `SLOTS_MAX`.

    paths: EVs of one plane between two hosts. wanted: active EVs of the whole set.
    Twice the active ones where the fabric has as many, so that half are backups.
    """
    needed = min(paths, 2 * active_per_plane(paths, planes, wanted), SLOTS_MAX)
    return 1 << max(0, needed - 1).bit_length()


def active_per_plane(paths: int, planes: int, wanted: int) -> int:
    """EVs of each plane in use: an equal part of those wanted, if there are so many."""
    return max(1, min(paths, wanted // planes, SLOTS_MAX))


def generate(
    universe: Sequence[Sequence[int]], wanted: int, slots: int, seed: str
) -> tuple[PlaneSet, ...]:
    """Choose a QP's set.

    universe: each plane's EVs between the two hosts. wanted: active EVs in all. slots: room of
    each plane. seed: differs between hosts, peers and QPs, so that senders rotate in different
    orders over different paths; the same seed gives the same set.
    """
    rng = random.Random(seed)
    active = min(active_per_plane(len(evs), len(universe), wanted) for evs in universe)
    sets = []
    for evs in universe:
        chosen = rng.sample(list(evs), min(len(evs), slots))
        sets.append(PlaneSet(tuple(chosen), min(active, len(chosen))))
    return tuple(sets)


def words(slots: int) -> tuple[int, int]:
    """A set of the first `slots` slots as the two words of a bitmap."""
    mask = (1 << slots) - 1
    return mask & 0xFFFFFFFFFFFFFFFF, mask >> 64
