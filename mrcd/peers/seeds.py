# SPDX-License-Identifier: GPL-2.0-only
"""Why a seed does not answer, in words, from what came back in place of an answer (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from mrcd.handshake.unicast import OTHER_SECRET, TRANSLATED
from mrcd.peers.lines import LOST_NS, MS, SECOND

JUDGE_NS: Final = 1400 * MS
"""A seed that has not answered for this time does not answer ..."""
PROBE_NS: Final = 500 * MS
"""... and after this time it is asked on another port whether it is there ..."""
PROBE_AGAIN_NS: Final = 10 * SECOND
"""... and again after this."""
RECENT_NS: Final = 15 * SECOND
"""What came back counts for this time."""


class Sign(Enum):
    """What came back from a seed, or on the way to it, in place of an answer."""

    CLOSED = auto()
    """It says that nothing has the port."""
    FILTERED = auto()
    """A router or a firewall says that it does not let the datagram pass."""
    LOST = auto()
    """A router says that it knows no way."""
    SILENT = auto()
    """The kernel says that the neighbour on the way to it does not answer."""
    THERE = auto()
    """It answers on another port."""
    SECRET = auto()
    """It says that the Hello is of no host that it knows."""
    MOVED = auto()
    """It says that the Hello comes from another address than that of its host."""


_OF_REASON: Final = {OTHER_SECRET: Sign.SECRET, TRANSLATED: Sign.MOVED}
_ORDER: Final = (
    Sign.SECRET,
    Sign.MOVED,
    Sign.CLOSED,
    Sign.FILTERED,
    Sign.LOST,
    Sign.SILENT,
    Sign.THERE,
)


@dataclass(slots=True)
class _Seed:
    """routed: whether the kernel has a route to it, by plane; signs: by whom, and when."""

    asked_ns: int | None = None
    heard_ns: int | None = None
    probed_ns: int | None = None
    routed: dict[int, bool] = field(default_factory=dict)
    signs: dict[Sign, tuple[str, int]] = field(default_factory=dict)


class Seeds:
    """The seeds of one host."""

    def __init__(self, port: int) -> None:
        """`port` is the UDP port of Hellos, for the remedies."""
        self._port = port
        self._seeds: dict[str, _Seed] = {}

    def set(self, seeds: Sequence[str], own: Sequence[str]) -> None:
        """Ask these seeds from now on; one at an address of our own is this host."""
        wanted = [seed for seed in seeds if seed not in own]
        self._seeds = {seed: self._seeds.get(seed, _Seed()) for seed in wanted}

    def __contains__(self, address: object) -> bool:
        return address in self._seeds

    @property
    def addresses(self) -> list[str]:
        """The seeds that are other hosts."""
        return list(self._seeds)

    def asked(self, seed: str, plane: int, *, routed: bool, now_ns: int) -> None:
        """Note that a Hello was sent to a seed by a plane, or could not be without a route."""
        if (known := self._seeds.get(seed)) is not None:
            known.routed[plane] = routed
            if known.asked_ns is None:
                known.asked_ns = now_ns

    def heard(self, seed: str, now_ns: int) -> None:
        """Note that a seed says Hello."""
        if (known := self._seeds.get(seed)) is not None:
            known.heard_ns = now_ns
            known.signs.clear()

    def refused(self, seed: str, reason: int, now_ns: int) -> None:
        """Note that a seed refuses our Hello."""
        sign = _OF_REASON.get(reason)
        if sign is not None and (known := self._seeds.get(seed)) is not None:
            known.signs[sign] = seed, now_ns

    def noted(self, seed: str, sign: Sign, by: str, now_ns: int) -> None:
        """Note what came back from `by` in place of an answer."""
        if (known := self._seeds.get(seed)) is not None:
            known.signs[sign] = by, now_ns

    def probe(self, now_ns: int) -> list[str]:
        """Return which seeds to ask on another port now whether they are there."""
        found = []
        for seed, known in self._seeds.items():
            if known.asked_ns is None or not self._is_silent(known, now_ns, PROBE_NS):
                continue
            if known.probed_ns is None or now_ns - known.probed_ns > PROBE_AGAIN_NS:
                known.probed_ns = now_ns
                found.append(seed)
        return found

    def _is_silent(self, known: _Seed, now_ns: int, after_ns: int) -> bool:
        if known.heard_ns is not None:
            return now_ns - known.heard_ns > LOST_NS
        return known.asked_ns is not None and now_ns - known.asked_ns > after_ns

    def warnings(self, nics: Mapping[int, str], *, now_ns: int) -> list[str]:
        """Return why seeds do not answer, a sentence for each that does not."""
        return [
            self._why(seed, known, nics, now_ns)
            for seed, known in self._seeds.items()
            if self._is_silent(known, now_ns, JUDGE_NS)
        ]

    def _why(self, seed: str, known: _Seed, nics: Mapping[int, str], now_ns: int) -> str:
        recent = {s: by for s, (by, at) in known.signs.items() if now_ns - at < RECENT_NS}
        sign = next((each for each in _ORDER if each in recent), None)
        by = [nics[plane] for plane, routed in known.routed.items() if routed and plane in nics]
        if sign is None and not by:
            every = ", ".join(nics.values())
            return (
                f"seed {seed}: this host has no route to it by {every}: add one "
                f"(`ip route add {seed} via ROUTER dev NIC`), or correct the address"
            )
        return f"seed {seed} {self._told(sign, recent.get(sign, '') if sign else '', by)}"

    def _told(self, sign: Sign | None, by: str, nics: Sequence[str]) -> str:
        port = f"UDP port {self._port}"
        match sign:
            case Sign.SECRET:
                return (
                    "refuses this host: it has another secret; give both the same one, and see "
                    "that the address is right"
                )
            case Sign.MOVED:
                return (
                    "refuses this host: its address is translated on the way (NAT), and planes "
                    "need addresses that all hosts reach"
                )
            case Sign.CLOSED:
                return (
                    f"has nothing at {port}: start its mrcd with seeds, as by `mrcctl quick up "
                    "--seed` there, or correct the address"
                )
            case Sign.FILTERED:
                return (
                    f"is not reached: {by} refuses what is sent to it: have its firewall let "
                    f"{port} and those of [transport] pass, both ways"
                )
            case Sign.LOST:
                return (
                    f"is not reached: {by} says that there is no way to it: look whether it is up, "
                    "and at the routes of the routers"
                )
            case Sign.SILENT:
                return (
                    f"is not reached from {by}: the neighbour on that link, a router or itself, "
                    "does not answer: look at the cable, and at the route to it"
                )
            case Sign.THERE:
                return (
                    f"is up, and nothing comes back from {port}: some firewall or router between "
                    f"it and {', '.join(nics)} drops it: have it pass, both ways, as the ports of "
                    "[transport]"
                )
            case None:
                return (
                    f"does not answer to {', '.join(nics)}: look whether it is up, whether its "
                    "mrcd runs with seeds (`mrcctl status` there), whether the routers know the "
                    f"way back, and whether {port} may pass"
                )
