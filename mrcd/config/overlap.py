# SPDX-License-Identifier: GPL-2.0-only
"""Find overlaps among thousands of claimed prefixes (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Generic, TypeVar

Prefix = IPv4Network | IPv6Network
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Claim(Generic[T]):
    """A prefix and its owner."""

    network: Prefix
    owner: T


def overlaps(claims: Sequence[Claim[T]]) -> list[tuple[Claim[T], Claim[T]]]:
    """Return every overlapping pair, the earlier claim first, sorted by the later one.

    Two prefixes overlap only when one contains the other. The prefixes are visited in order of
    their first address, shorter ones before longer ones. All prefixes that contain the current one
    are then still on the stack `around`.
    """
    order = sorted(range(len(claims)), key=lambda i: _place(claims[i].network))
    pairs: list[tuple[int, int]] = []
    around: list[int] = []
    for i in order:
        inner = claims[i].network
        while around and not within(inner, claims[around[-1]].network):
            around.pop()
        pairs += ((min(i, j), max(i, j)) for j in around)
        around.append(i)
    pairs.sort(key=lambda pair: (pair[1], pair[0]))
    return [(claims[one], claims[other]) for one, other in pairs]


def _place(network: Prefix) -> tuple[int, int, int]:
    return network.version, int(network.network_address), network.prefixlen


class Owners:
    """Finds who owns a prefix, also among thousands, without a look at each of them."""

    def __init__(self, claims: Iterable[Claim[str]]) -> None:
        self._alone: dict[Prefix, tuple[int, str]] = {}
        self._wide: list[tuple[int, Claim[str]]] = []
        for number, claim in enumerate(claims):
            if claim.network.prefixlen == claim.network.max_prefixlen:
                self._alone.setdefault(claim.network, (number, claim.owner))
            else:
                self._wide.append((number, claim))

    def of(self, network: Prefix) -> str | None:
        """Return the owner of the first claim that overlaps a prefix; None if there is none."""
        found = [(n, each.owner) for n, each in self._wide if meet(network, each.network)][:1]
        if network.prefixlen == network.max_prefixlen:
            found += [self._alone[network]] if network in self._alone else []
        else:
            found += [place for alone, place in self._alone.items() if meet(network, alone)]
        return min(found)[1] if found else None


def meet(one: Prefix, other: Prefix) -> bool:
    """Return whether two prefixes have addresses in common."""
    return one.version == other.version and one.overlaps(other)


def within(inner: Prefix, outer: Prefix) -> bool:
    """Return whether a prefix is another one or a part of it."""
    if inner.version != outer.version or inner.prefixlen < outer.prefixlen:
        return False
    shift = inner.max_prefixlen - outer.prefixlen
    return int(inner.network_address) >> shift == int(outer.network_address) >> shift
