# SPDX-License-Identifier: GPL-2.0-only
"""Choose the EV set of a QP: the paths it uses and the backups it keeps (pure).

The choice follows the paper (arXiv 2605.04333, sections 2.1 and 2.4). Every plane contributes the
same number of EVs, chosen at random within the plane, and senders do not coordinate. A backup of
the same plane replaces a failed EV.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mrcd.wire.abi import ABI

SLOTS_MAX: int = ABI.MRC_EVS_PER_PLANE
"""The most slots a plane can have, active and backup together."""
ACTIVE_MIN, ACTIVE_MAX = 8, 256
"""Bounds for the active part of an EV set, all planes together."""


@dataclass(frozen=True, slots=True)
class PlaneSet:
    """The EVs of one plane in slot order; the first `active` of them are in use at the start."""

    evs: tuple[int, ...]
    active: int


def slots_per_plane(paths: int, planes: int, wanted: int) -> int:
    """Return the slots that each plane of a QP's set needs: a power of two, at most `SLOTS_MAX`.

    paths: EVs of one plane between two hosts. wanted: active EVs of the whole set.
    There are twice as many slots as active EVs where the fabric has that many paths, so that half
    of them are backups.
    """
    needed = min(paths, 2 * active_per_plane(paths, planes, wanted), SLOTS_MAX)
    return 1 << max(0, needed - 1).bit_length()


def active_per_plane(paths: int, planes: int, wanted: int) -> int:
    """Return the active EVs of each plane: an equal part of `wanted`, as far as `paths` allows."""
    return max(1, min(paths, wanted // planes, SLOTS_MAX))


def generate(
    universe: Sequence[Sequence[int]], wanted: int, slots: int, seed: str
) -> tuple[PlaneSet, ...]:
    """Choose a QP's EV set.

    universe: each plane's EVs between the two hosts. wanted: active EVs of all planes together.
    slots: slots of each plane. seed: differs between hosts, peers and QPs, so that senders rotate
    in different orders over different paths; the same seed gives the same set.
    """
    rng = random.Random(seed)
    active = min(active_per_plane(len(evs), len(universe), wanted) for evs in universe)
    sets = []
    for evs in universe:
        chosen = rng.sample(list(evs), min(len(evs), slots))
        sets.append(PlaneSet(tuple(chosen), min(active, len(chosen))))
    return tuple(sets)


def words(slots: int) -> tuple[int, int]:
    """Return the set of the first `slots` slots as the two 64-bit words of a bitmap."""
    mask = (1 << slots) - 1
    return mask & 0xFFFFFFFFFFFFFFFF, mask >> 64
