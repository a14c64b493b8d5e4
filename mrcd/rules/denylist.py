# SPDX-License-Identifier: GPL-2.0-only
"""Keep the operator's deny rules on disk and apply them to the data path.

The rules are in `denylist.json` of the state folder and outlive the daemon. They apply to the EV
set of every QP: to existing ones when a rule changes, and to each new one before it sends. The
daemon's own packets to a peer use the EVs in `open_evs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from mrcd.config.config import Current, Peer
from mrcd.fabric import underlay, usid
from mrcd.model import DeniedInfo
from mrcd.rules import elements
from mrcd.rules.elements import Element, NoSuchElement, Rule
from mrcd.service.findings import Findings
from mrcd.service.keptfile import KeptFile
from mrcd.service.log import get_logger

log = get_logger()

_FILE = "denylist.json"
_WAYS = 1 << 13
"""The number of peer and plane pairs whose open EVs are cached."""


class CutsOff(Exception):
    """A rule would leave no path to some peers."""

    def __init__(self, rule: Rule, peers: Sequence[str]) -> None:
        super().__init__(f"{rule} leaves no path to {', '.join(peers)}")
        self.peers = tuple(peers)


class NotDenied(Exception):
    """There is no such rule; the message lists the existing ones."""


class PlaneEvs(Protocol):
    """One plane of a QP's EV set."""

    @property
    def evs(self) -> tuple[int, ...]:
        """The EVs in slot order."""


class EvSets(Protocol):
    """The EV sets of the data path (mrcd.datapath.qptable.QpTable)."""

    def qps_of(self, peer: str) -> range:
        """Return the indices of the peer's QPs."""

    def evs(self, index: int) -> Sequence[PlaneEvs]:
        """Return a QP's set by plane; empty while the QP is not configured."""

    def denied_slots(self, index: int) -> AbstractSet[tuple[int, int]]:
        """Return the (plane, slot) pairs of a QP's set that are DENIED."""

    def deny(self, index: int, plane: int, slot: int, *, denied: bool) -> None:
        """Deny the path in a slot of a QP's set, or allow it again."""


class Denials:
    """The rules of one daemon."""

    def __init__(self, config: Current, sets: EvSets, state_dir: Path, findings: Findings) -> None:
        self._config = config
        self._sets = sets
        self._file = KeptFile(state_dir / _FILE, "the denied elements", findings)
        self._rules: list[Rule] = self._read()
        self._changing = asyncio.Lock()
        self.open_evs = lru_cache(maxsize=_WAYS)(self._open_evs)
        """Maps a peer's name and a plane to the EVs that no rule denies; may return none."""

    # ---- what the operator asks

    async def deny(self, element: str, peer: str | None, *, force: bool) -> bool:
        """Add a rule; return False if it exists already.

        Raises NoSuchElement, or, without `force`, CutsOff if a peer would lose its last path.
        """
        rule = Rule(self._element(element), peer)
        async with self._changing:
            if rule in self._rules:
                return False
            rules = [*self._rules, rule]
            lost = await self._lost(rules)
            if lost and not force:
                raise CutsOff(rule, lost)
            await self._change(rules)
        log.warning("path.denied", element=rule.element.name, peer=peer, cut_off=lost)
        return True

    async def allow(self, element: str, peer: str | None) -> None:
        """Remove a rule; raises NoSuchElement, or NotDenied if there is no such rule."""
        rule = Rule(self._element(element), peer)
        async with self._changing:
            if rule not in self._rules:
                known = ", ".join(map(str, self._rules)) or "nothing"
                raise NotDenied(f"{rule} is not denied; denied: {known}")
            await self._change([other for other in self._rules if other != rule])
        log.info("path.allowed", element=rule.element.name, peer=peer)

    def listed(self) -> list[DeniedInfo]:
        """Return every rule with the number of slots it denies in existing EV sets."""
        return [
            DeniedInfo(
                element=rule.element.name,
                kind=rule.element.kind,
                peer=rule.peer,
                paths=sum(self._count(peer, rule) for peer in self._config().peers),
            )
            for rule in self._rules
        ]

    def _element(self, text: str) -> Element:
        element = elements.parse(self._config().fabric, text)
        if element.kind == "peer" and element.host not in self._config().by_name:
            known = ", ".join(self._config().by_name) or "none"
            raise NoSuchElement(f"{text} is no peer of this host; peers: {known}")
        return element

    def _count(self, peer: Peer, rule: Rule) -> int:
        """Return the number of slots of a peer's QPs that a rule denies."""
        denied = self._denied(peer, [rule])
        return sum(ev in denied for evs in self._of_qps(peer) for ev in evs) if denied else 0

    # ---- the data path

    def configured(self) -> None:
        """Drop the rules that no longer apply: the configuration is another one."""
        self.open_evs.cache_clear()
        kept = [rule for rule in self._rules if self._means_something(rule)]
        if kept != self._rules:
            self._write(kept)
            self._rules = kept
            self.open_evs.cache_clear()

    def _means_something(self, rule: Rule) -> bool:
        try:
            if rule.peer is not None and rule.peer not in self._config().by_name:
                raise NoSuchElement(f"{rule.peer} is no longer a peer")
            self._element(rule.element.name)
        except NoSuchElement as error:
            element, peer = rule.element.name, rule.peer
            log.warning("denylist.rule_dropped", element=element, peer=peer, reason=str(error))
            return False
        return True

    def apply(self, peer: str) -> None:
        """Apply the rules to the EV sets of a peer's QPs, whether new or from an earlier run."""
        denied = self._denied(self._config().by_name[peer], self._rules)
        for index in self._sets.qps_of(peer):
            held = self._sets.denied_slots(index)
            for plane, one in enumerate(self._sets.evs(index)):
                for slot, ev in enumerate(one.evs):
                    if (ev in denied) != ((plane, slot) in held):
                        self._sets.deny(index, plane, slot, denied=ev in denied)

    async def _change(self, rules: list[Rule]) -> None:
        """Replace the rules: on disk if possible, and in each slot of every QP that changes.

        A thousand peers take seconds, so other tasks may run after each peer.
        """
        self._write(rules)
        old, self._rules = self._rules, rules
        self.open_evs.cache_clear()
        for peer in self._config().peers:
            self._set(peer, self._denied(peer, old), self._denied(peer, rules))
            await asyncio.sleep(0)

    def _set(self, peer: Peer, before: set[int], after: set[int]) -> None:
        """Deny the EVs that are newly denied, and allow those that no longer are."""
        changed = before ^ after
        if not changed:
            return
        for index in self._sets.qps_of(peer.name):
            for plane, one in enumerate(self._sets.evs(index)):
                for slot, ev in enumerate(one.evs):
                    if ev in changed:
                        self._sets.deny(index, plane, slot, denied=ev in after)

    def _denied(self, peer: Peer, rules: list[Rule]) -> set[int]:
        """Return every EV to a peer that any of the rules denies."""
        fabric, own = self._config().fabric, self._config().host
        every = elements.evs_between(fabric, own, peer.host) if rules else ()
        return elements.denied(rules, own, peer.host, every)

    def _open_evs(self, peer: str, plane: int) -> tuple[int, ...]:
        own, target = self._config().host, self._config().by_name[peer].host
        every = underlay.of(self._config().fabric).evs(own, target, plane)
        denied = elements.denied(self._rules, own, target, every)
        return tuple(ev for ev in every if ev not in denied)

    def _of_qps(self, peer: Peer) -> list[list[int]]:
        """Return the EV sets of a peer's configured QPs."""
        sets = (self._sets.evs(index) for index in self._sets.qps_of(peer.name))
        return [[ev for plane in planes for ev in plane.evs] for planes in sets if planes]

    def _leading(self, peer: Peer) -> list[list[int]]:
        """Return these sets, or one set of all EVs before a QP has any, of planes that lead there.

        Other EVs, of planes that the peer is not on, carry nothing.
        """
        fabric, own = self._config().fabric, self._config().host
        sets = self._of_qps(peer) or [elements.evs_between(fabric, own, peer.host)]
        planes = {p for p in range(fabric.planes) if underlay.of(fabric).leads(peer.host, p)}
        return [[ev for ev in evs if usid.ev_plane(ev) in planes] for evs in sets]

    async def _lost(self, rules: list[Rule]) -> list[str]:
        """Return the peers to which the rules would leave some QP without a path.

        Peers already cut off are not included.
        """
        lost = []
        for peer in self._config().peers:
            sets = self._leading(peer)
            cut = elements.cuts_off(self._denied(peer, rules), sets)
            if cut and not elements.cuts_off(self._denied(peer, self._rules), sets):
                lost.append(peer.name)
            await asyncio.sleep(0)
        return lost

    # ---- the file

    def _read(self) -> list[Rule]:
        """Return the rules of an earlier run. Those that cannot be used are logged and left out."""
        pairs = self._file.load(_pairs) or ()
        rules = []
        for text, peer in pairs:
            try:
                if peer is not None and peer not in self._config().by_name:
                    raise NoSuchElement(f"{peer} is no longer a peer")
                rules.append(Rule(self._element(text), peer))
            except NoSuchElement as error:
                log.warning("denylist.rule_dropped", element=text, peer=peer, reason=str(error))
        return rules

    def _write(self, rules: list[Rule]) -> None:
        entries = [{"element": rule.element.name, "peer": rule.peer} for rule in rules]
        self._file.save({"rules": entries})

    def save_again(self) -> None:
        """Try again to write rules that could not be written."""
        self._file.save_again()

    @property
    def unsaved(self) -> str | None:
        """Why the rules would not survive a restart; None if they would."""
        return self._file.unsaved


def _pairs(content: Any) -> list[tuple[str, str | None]]:
    """Return the element and peer of each rule in the file's content."""
    return [(str(entry["element"]), entry["peer"]) for entry in content["rules"]]
