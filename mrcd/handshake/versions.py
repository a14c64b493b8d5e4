# SPDX-License-Identifier: GPL-2.0-only
"""The versions of the hand-shake and of packets that two hosts may speak with each other.

A version is a promise about bytes: hosts that agree on one understand each other's Offers, packets
and cells. Whatever changes these bytes raises NEWEST, and OLDEST stays for as long as the older
ones are still spoken. An Offer states both numbers, and a session uses the highest version that
both hosts speak, until it ends: a host that is upgraded meanwhile goes on in the version that was
agreed, as long as it still speaks that one.
"""

from __future__ import annotations

OLDEST = 4
"""The oldest version that this daemon speaks."""
NEWEST = 4
"""The newest one."""


def common(newest: int, oldest: int) -> int | None:
    """Return the highest version that this daemon speaks and a host that names these, or None.

    An `oldest` of 0 means that the host speaks `newest` only.
    """
    version = min(NEWEST, newest)
    return version if version >= max(OLDEST, oldest or newest) else None


def spoken(version: int) -> bool:
    """Return whether this daemon speaks a version."""
    return OLDEST <= version <= NEWEST


def ours() -> tuple[int, int]:
    """Return the oldest and the newest version that this daemon speaks."""
    return OLDEST, NEWEST


def apart(
    peer: str, theirs: tuple[int, int], this: tuple[int, int] | None = None, what: str = ""
) -> str:
    """Say that a peer and this host have no version in common, and which one to upgrade.

    Both ranges are of the oldest and the newest version: of `what`, or else of the hand-shake.
    """
    this = ours() if this is None else this
    behind = peer if theirs[1] < this[0] else "this host"
    named = f"{what} " if what else ""
    return f"peer {peer} speaks {named}{span(*theirs)}, this host {span(*this)}: upgrade {behind}"


def span(oldest: int, newest: int) -> str:
    """Return a range of versions in words."""
    return f"{newest}" if oldest >= newest else f"{oldest} to {newest}"
