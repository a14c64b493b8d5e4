# SPDX-License-Identifier: GPL-2.0-only
"""The denylist as the daemon keeps it: the operator's rules, on disk and in the data path.

Rules are in `denylist.json` of the state folder and outlive the daemon. They are laid over the EV
set of every QP: those there are when a rule changes, and each new one before it sends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from mrcd import denylist
from mrcd.config import Config, Peer
from mrcd.denylist import Element, NoSuchElement, Rule
from mrcd.log import get_logger
from mrcd.model import DeniedInfo

log = get_logger()

_FILE = "denylist.json"


class CutsOff(Exception):
    """A rule would leave no path to some peers."""

    def __init__(self, rule: Rule, peers: Sequence[str]) -> None:
        super().__init__(f"{rule} leaves no path to {', '.join(peers)}")
        self.peers = tuple(peers)


class NotDenied(Exception):
    """No rule says that; the message lists those there are."""


class PlaneEvs(Protocol):
    """One plane of a QP's EV set."""

    @property
    def evs(self) -> tuple[int, ...]:
        """The EV of each slot."""


class EvSets(Protocol):
    """The EV sets of the data path (mrcd.qptable.QpTable)."""

    def qps_of(self, peer: str) -> range:
        """Indices of the peer's QPs."""

    def evs(self, index: int) -> Sequence[PlaneEvs]:
        """A QP's set, plane by plane; empty while it is not configured."""

    def deny(self, index: int, plane: int, slot: int, *, denied: bool) -> None:
        """Deny the path in a slot of a QP's set, or allow it again."""


class Denials:
    """The rules of one daemon."""

    def __init__(self, config: Config, sets: EvSets, state_dir: Path) -> None:
        self._config = config
        self._sets = sets
        self._path = state_dir / _FILE
        self._peers = {peer.name: peer for peer in config.peers}
        self._rules: list[Rule] = self._read()

    # ---- what the operator asks

    def deny(self, element: str, peer: str | None, *, force: bool) -> bool:
        """Add a rule; False when it was there. NoSuchElement, or CutsOff without `force`."""
        rule = Rule(self._element(element), peer)
        if rule in self._rules:
            return False
        rules = [*self._rules, rule]
        before = set(self._cut_off(self._rules))
        lost = [name for name in self._cut_off(rules) if name not in before]
        if lost and not force:
            raise CutsOff(rule, lost)
        self._change(rules)
        log.warning("path.denied", element=rule.element.name, peer=peer, cut_off=lost)
        return True

    def allow(self, element: str, peer: str | None) -> None:
        """Remove a rule; NoSuchElement, or NotDenied when there is none like it."""
        rule = Rule(self._element(element), peer)
        if rule not in self._rules:
            known = ", ".join(map(str, self._rules)) or "nothing is"
            raise NotDenied(f"{rule} is not denied; what is: {known}")
        self._change([other for other in self._rules if other != rule])
        log.info("path.allowed", element=rule.element.name, peer=peer)

    def listed(self) -> list[DeniedInfo]:
        """Every rule, with what it denies of the EV sets there are."""
        return [
            DeniedInfo(
                element=rule.element.name,
                kind=rule.element.kind,
                peer=rule.peer,
                paths=sum(
                    len(denylist.denied([rule], self._config.host, peer.host, evs))
                    for peer in self._config.peers
                    for evs in self._of_qps(peer)
                ),
            )
            for rule in self._rules
        ]

    def _element(self, text: str) -> Element:
        element = denylist.parse(self._config.fabric, text)
        if element.kind == "peer" and element.host not in self._peers:
            known = ", ".join(self._peers) or "none"
            raise NoSuchElement(f"{text} is no peer of this host; peers: {known}")
        return element

    # ---- the data path

    def apply(self, peer: str) -> None:
        """Lay the rules over the EV sets of a peer's QPs, which are new."""
        for index in self._sets.qps_of(peer):
            for plane, slot, hit in self._slots(self._peers[peer], index, self._rules):
                if hit:
                    self._sets.deny(index, plane, slot, denied=True)

    def _change(self, rules: list[Rule]) -> None:
        """Make these the rules: first on disk, then in every QP, each slot that differs."""
        self._write(rules)
        old, self._rules = self._rules, rules
        for peer in self._config.peers:
            for index in self._sets.qps_of(peer.name):
                was = self._slots(peer, index, old)
                now = self._slots(peer, index, rules)
                for (plane, slot, before), (_, _, after) in zip(was, now, strict=True):
                    if before != after:
                        self._sets.deny(index, plane, slot, denied=after)

    def _slots(self, peer: Peer, index: int, rules: list[Rule]) -> list[tuple[int, int, bool]]:
        """Plane and number of every slot of a QP, and whether the rules deny it."""
        return [
            (plane, slot, any(rule.denies(self._config.host, peer.host, ev) for rule in rules))
            for plane, one in enumerate(self._sets.evs(index))
            for slot, ev in enumerate(one.evs)
        ]

    def _of_qps(self, peer: Peer) -> list[list[int]]:
        """The EV sets of a peer's QPs that are configured."""
        sets = (self._sets.evs(index) for index in self._sets.qps_of(peer.name))
        return [[ev for plane in planes for ev in plane.evs] for planes in sets if planes]

    def _cut_off(self, rules: list[Rule]) -> list[str]:
        """Peers to which some QP, or before there is one the fabric, has no path left."""
        config = self._config

        def sets(peer: Peer) -> Sequence[Collection[int]]:
            every = denylist.evs_between(config.fabric, config.host, peer.host)
            return self._of_qps(peer) or [every]

        found = ((peer.host, sets(peer)) for peer in config.peers)
        return denylist.cut_off(rules, config.host, found)

    # ---- the file

    def _read(self) -> list[Rule]:
        """The rules of an earlier run. What cannot be used is logged and left out."""
        try:
            entries = json.loads(self._path.read_text())["rules"]
            pairs = [(str(entry["element"]), entry["peer"]) for entry in entries]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("denylist.unreadable", path=str(self._path), error=str(error))
            return []
        rules = []
        for text, peer in pairs:
            try:
                if peer is not None and peer not in self._peers:
                    raise NoSuchElement(f"{peer} is no peer any more")
                rules.append(Rule(self._element(text), peer))
            except NoSuchElement as error:
                log.warning("denylist.rule_dropped", element=text, peer=peer, reason=str(error))
        return rules

    def _write(self, rules: list[Rule]) -> None:
        """Write the rules; who reads sees the old or the new ones, also after a crash."""
        entries = [{"element": rule.element.name, "peer": rule.peer} for rule in rules]
        draft = self._path.with_suffix(".new")
        with draft.open("w") as file:
            json.dump({"rules": entries}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
