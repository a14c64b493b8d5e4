# SPDX-License-Identifier: GPL-2.0-only
"""A configuration as text: TOML that loads to an equal Config (pure).

What the fabric file says, and what is the default, is left out where leaving it out means the
same; keys of sections are all written, so that the text tells what is in force.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from ipaddress import ip_network

from mrcd.config.config import Config, Mrc0, Peer
from mrcd.config.overlap import Prefix
from mrcd.fabric.hosts import Host

_RESOLVED = {"path", "fabric_path", "fabric", "host", "mrc0", "interfaces", "peers"}


def render(config: Config) -> str:
    """The text of `config`, for a file in the folder of `config.path`."""
    parts = ["\n".join(_host(config))]
    if addresses := list(_mrc0(config)):
        parts.append("\n".join(["[mrc0]", *addresses]))
    parts.append(f"[planes]\ninterfaces = {value(list(config.interfaces))}")
    for field in fields(config):
        section = getattr(config, field.name)
        if field.name not in _RESOLVED and is_dataclass(section):
            held = {key.name: getattr(section, key.name) for key in fields(section)}
            lines = (f"{name} = {value(of)}" for name, of in held.items() if of is not None)
            parts.append("\n".join([f"[{field.name}]", *lines]))
    if not _every_other_host(config):
        parts += ["\n".join(_peer(peer)) for peer in config.peers]
    return "\n\n".join(parts) + "\n"


def value(of: object) -> str:
    """A value as it stands in a TOML file."""
    if isinstance(of, bool):
        return "true" if of else "false"
    if isinstance(of, int | float):
        return str(of)
    if isinstance(of, list | tuple):
        return "[" + ", ".join(map(value, of)) + "]"
    # JSON's escapes are TOML's; but DEL must be escaped in TOML, too.
    return json.dumps(str(of), ensure_ascii=False).replace("\x7f", "\\u007f")


def _host(config: Config) -> Iterator[str]:
    folder, fabric = config.path.parent, config.fabric_path
    # As it was written, if it lies in the folder: then both files can move together.
    inside = fabric.relative_to(folder) if fabric.is_relative_to(folder) else fabric
    yield "[host]"
    yield f"name = {value(config.host.name)}"
    yield f"fabric = {value(inside)}"


def _mrc0(config: Config) -> Iterator[str]:
    if config.mrc0.name != "mrc0":
        yield f"name = {value(config.mrc0.name)}"
    if config.mrc0 != Mrc0(config.mrc0.name, config.host.addresses):
        yield f"addresses = {value(config.mrc0.addresses)}"


def _every_other_host(config: Config) -> bool:
    """Whether the peers are what they are without any [[peer]]."""
    hosts = config.fabric.hosts
    if len(hosts) != len(config.peers) + 1:  # told first: a pattern may stand for 100,000
        return False
    others = [host for host in hosts if host.name != config.host.name]
    return config.peers == tuple(Peer(host, _routes(host)) for host in others)


def _peer(peer: Peer) -> Iterator[str]:
    yield "[[peer]]"
    yield f"name = {value(peer.name)}"
    if peer.allowed != _routes(peer.host):
        yield f"allowed = {value(peer.allowed)}"


def _routes(host: Host) -> tuple[Prefix, ...]:
    """What is sent to a host unless its [[peer]] says otherwise."""
    return tuple(ip_network(address.ip) for address in host.addresses)
