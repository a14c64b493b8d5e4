# SPDX-License-Identifier: GPL-2.0-only
"""Compare two configurations and tell how each difference is applied (pure).

"live": the maps and interfaces of the running data path are changed, with no effect on the rest.
"restart": the data path is rebuilt, because the contents of its maps would change their meaning.
Applications' connections survive a rebuild as they survive a gap; QPs do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from mrcd.config import key
from mrcd.config.config import Config, Peer
from mrcd.config.sections import Transport
from mrcd.handshake.identity import encode_key
from mrcd.model import ConfigChange, ConfigChanges, HowApplied

LIVE_TRANSPORT = key.live(Transport)
LIVE_FABRIC = frozenset({"name", "t0", "hosts", "rate_mbps"})
"""Keys that no map depends on. Changes of hosts and T0s are listed under the peers they affect."""


class CannotApply(Exception):
    """A valid configuration cannot be applied now; the message says why and what to do."""


def needs_restart(changes: ConfigChanges) -> bool:
    """Return whether the changes need a rebuild of the data path."""
    return any(change.how == "restart" for change in changes.changes)


def diff(old: Config, new: Config, *, fits: bool) -> ConfigChanges:
    """Return the differences between two configurations.

    fits: whether the existing maps can hold the new configuration. Too many new peers may not fit,
    even though each single difference could be applied live.
    """
    found = ConfigChanges(changes=list(_differences(old, new)))
    if fits or needs_restart(found):
        return found
    return ConfigChanges(
        changes=[
            replace(change, how="restart") if change.path.startswith("peer.") else change
            for change in found.changes
        ]
        + [_change("datapath", "the current maps", "new maps", "restart")]
    )


def _change(path: str, old: str | None, new: str | None, how: HowApplied) -> ConfigChange:
    return ConfigChange(path=path, old=old, new=new, how=how)


def _differences(old: Config, new: Config) -> Iterator[ConfigChange]:
    def plain(path: str, before: object, after: object, how: HowApplied) -> Iterator[ConfigChange]:
        if before != after:
            yield _change(path, _text(before), _text(after), how)

    yield from plain("host.name", old.host.name, new.host.name, "restart")
    yield from plain("host.t0", old.host.t0, new.host.t0, "restart")
    yield from plain("host.port", old.host.port, new.host.port, "restart")
    for field in fields(old.fabric):
        if field.name in LIVE_FABRIC:
            continue  # relevant changes show up in the peers
        before, after = getattr(old.fabric, field.name), getattr(new.fabric, field.name)
        yield from plain(f"fabric.{field.name}", before, after, "restart")
    yield from plain("mrc0.name", old.mrc0.name, new.mrc0.name, "restart")
    yield from plain("mrc0.addresses", old.mrc0.addresses, new.mrc0.addresses, "live")
    yield from plain("mrc0.routed", old.mrc0.routed, new.mrc0.routed, "live")
    yield from plain("mrc0.redundant", old.mrc0.redundant, new.mrc0.redundant, "live")
    yield from plain("planes.interfaces", old.interfaces, new.interfaces, "restart")
    yield from plain("planes.standby", _standby(old), _standby(new), "live")
    for plane, (one, other) in enumerate(zip(old.nics, new.nics, strict=False)):
        yield from plain(f"plane[{plane + 1}].address", one.address, other.address, "restart")
        rates = one.rate_mbps, other.rate_mbps
        yield from plain(f"plane[{plane + 1}].rate_mbps", *rates, "restart")
    for field in fields(old.transport):
        before, after = getattr(old.transport, field.name), getattr(new.transport, field.name)
        how: HowApplied = "live" if field.name in LIVE_TRANSPORT else "restart"
        yield from plain(f"transport.{field.name}", before, after, how)
    for section in ("service", "metrics", "keys"):
        one, other = getattr(old, section), getattr(new, section)
        for field in fields(one):
            before, after = getattr(one, field.name), getattr(other, field.name)
            yield from plain(f"{section}.{field.name}", before, after, "live")
    yield from _own_key(old, new)
    yield from _peers(old, new)


def _standby(config: Config) -> tuple[str, ...]:
    return tuple(name for name in config.interfaces if name not in config.serving)


def _own_key(old: Config, new: Config) -> Iterator[ConfigChange]:
    """Yield changes of this host's own keys; of a private one, the public one is shown."""
    before, after = old.keyring, new.keyring
    if before is None or after is None:
        return
    if before.public != after.public:
        shown = encode_key(before.public), encode_key(after.public)
        yield _change("keys.public_key", *shown, "live")
    if before.psk != after.psk:
        yield _change("keys.preshared_key", "(hidden)", "(hidden)", "live")


def key_of(config: Config, peer: str) -> str | None:
    """Return the public key that a peer is known by; None without keys."""
    ring = config.keyring
    return None if ring is None or peer not in ring.peers else encode_key(ring.peers[peer])


def _peers(old: Config, new: Config) -> Iterator[ConfigChange]:
    before = {peer.name: peer for peer in old.peers}
    after = {peer.name: peer for peer in new.peers}
    for name in sorted(before.keys() | after.keys()):
        was, will = before.get(name), after.get(name)
        if was is None or will is None:
            yield _change(f"peer.{name}", _peer(was), _peer(will), "live")
            continue
        if was != will:
            yield from _peer_changes(name, was, will)
        if old.keyring is not None and new.keyring is not None:
            known = key_of(old, name), key_of(new, name)
            if known[0] != known[1]:
                yield _change(f"peer.{name}.public_key", *known, "live")


def _peer_changes(name: str, was: Peer, will: Peer) -> Iterator[ConfigChange]:
    if was.host.endpoints != will.host.endpoints:
        shown = _text(was.host.endpoints), _text(will.host.endpoints)
        yield _change(f"peer.{name}.endpoints", *shown, "live")
    if _place(was) != _place(will):
        yield _change(f"peer.{name}.host", _place(was), _place(will), "live")
    if was.allowed != will.allowed:
        yield _change(f"peer.{name}.allowed", _text(was.allowed), _text(will.allowed), "live")


def _peer(peer: Peer | None) -> str | None:
    return None if peer is None else _text(peer.allowed)


def _place(peer: Peer) -> str:
    return f"T0 {peer.host.t0}, port {peer.host.port}"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    shown = getattr(value, "shown", None)  # a Routing has a display name
    return str(value if shown is None else shown)
