# SPDX-License-Identifier: GPL-2.0-only
"""Turn two configurations of one data path into what has to be done about its parts (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from mrcd.config.config import Config, Peer, with_endpoint
from mrcd.fabric.hosts import Address


@dataclass(frozen=True, slots=True)
class Change:
    """What differs between the configuration before and the one from now on.

    gone: peers, as they were, whose sessions end. new: peers whose sessions begin; one that is
    elsewhere in the fabric, or has other keys, is in both. changed: peers of which anything is
    different, the new ones among them. readdressed: peers whose sessions stay, as they were and as
    they are, that have other addresses in a network. tick, survey: whether the clock's period and
    what the survey goes by have changed.
    """

    gone: tuple[Peer, ...]
    new: tuple[Peer, ...]
    changed: tuple[Peer, ...]
    readdressed: tuple[tuple[Peer, Peer], ...]
    tick: bool
    survey: bool

    @classmethod
    def between(cls, old: Config, new: Config) -> Change:
        """Return what differs."""
        before, after = old.by_name, new.by_name
        others = _with_other_keys(old, new)

        def elsewhere(peer: Peer, other: Peer | None) -> bool:
            return peer.name in others or other is None or _place(peer) != _place(other)

        stay = [
            (peer, after[peer.name])
            for peer in old.peers
            if not elsewhere(peer, after.get(peer.name))
        ]
        return cls(
            tuple(peer for peer in old.peers if elsewhere(peer, after.get(peer.name))),
            tuple(peer for peer in new.peers if elsewhere(peer, before.get(peer.name))),
            tuple(p for p in new.peers if p.name in others or before.get(p.name) != p),
            tuple((a, b) for a, b in stay if _ways(a) != _ways(b)),
            old.transport.tick_us != new.transport.tick_us,
            _surveyed(old) != _surveyed(new),
        )


def _surveyed(config: Config) -> tuple[object, ...]:
    """Return what the survey goes by. Where peers are in a network it finds out by itself."""
    if config.fabric.described:
        return config.fabric, config.peers, config.transport
    fabric = config.fabric
    names = tuple(peer.name for peer in config.peers)
    return fabric.planes, fabric.routing, fabric.classes, names, config.transport


def _place(peer: Peer) -> tuple[int, int]:
    return peer.host.t0, peer.host.port


def _ways(peer: Peer) -> tuple[object, ...]:
    """Return how a peer is reached in a network."""
    return peer.host.endpoints, peer.host.vias, peer.host.spare


def _with_other_keys(old: Config, new: Config) -> set[str]:
    """Return the peers that count as others from now on, since they have other keys than before."""
    if (old.keyring is None) != (new.keyring is None):
        return {peer.name for peer in (*old.peers, *new.peers)}
    if old.keyring is None or new.keyring is None:
        return set()
    before, after = old.keyring.peers, new.keyring.peers
    return {name for name in before.keys() & after.keys() if before[name] != after[name]}


def planes_readdressed(old: Config, new: Config) -> list[int]:
    """Return our planes that have another address than before.

    One that has lost its address keeps its sockets, which may serve again.
    """
    both = zip(old.host.endpoints, new.host.endpoints, strict=True)
    return [
        plane
        for plane, (before, after) in enumerate(both)
        if before != after and not after.is_unspecified
    ]


class Roamed:
    """The addresses at which peers were found that had another one in the configuration.

    A peer stays where it was found when the configuration is read again, as long as that says of
    it what it said then.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], tuple[Address, Address]] = {}  # configured, found

    def moved(self, config: Config, name: str, plane: int, address: Address) -> Config:
        """Return the configuration with a peer at another address of a plane, and remember it."""
        now = config.by_name[name].host.endpoints[plane]
        configured, _ = self._found.get((name, plane), (now, now))
        self._found[name, plane] = configured, address
        return with_endpoint(config, name, plane, address)

    def applied(self, config: Config) -> Config:
        """Return a configuration that was read again, with peers where they were found."""
        peers = config.by_name
        for (name, plane), (configured, address) in self._found.items():
            peer = peers.get(name)
            if peer is not None and peer.host.endpoints[plane : plane + 1] == (configured,):
                config = with_endpoint(config, name, plane, address)
        return config

    def forget(self, config: Config) -> None:
        """Forget what a configuration that is in force now says otherwise."""
        endpoints = {peer.name: peer.host.endpoints for peer in config.peers}
        self._found = {
            (name, plane): (configured, address)
            for (name, plane), (configured, address) in self._found.items()
            if endpoints.get(name, ())[plane : plane + 1] == (address,)
        }
