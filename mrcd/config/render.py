# SPDX-License-Identifier: GPL-2.0-only
"""A configuration as text: TOML that loads to an equal Config (pure).

The text leaves out what the fabric file says, and defaults, where leaving them out means the same.
It contains every key of every section, so that it tells what is in force.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import tomli_w

from mrcd.config.admission import without_admitted
from mrcd.config.config import Config, Peer
from mrcd.config.network import Nic

_RESOLVED = {
    "path", "fabric_path", "fabric", "host", "mrc0", "interfaces", "peers", "keyring", "nics",
    "admitted",
}  # fmt: skip


def render(config: Config) -> str:
    """Return the text of `config`, for a file in the folder of `config.path`.

    Admitted hosts are not in it, since no file lists them.
    """
    config = without_admitted(config)
    described = config.fabric.described
    tables: dict[str, dict[str, Any]] = {
        "host": _host(config) if described else {"name": config.host.name}
    }
    if mrc0 := _mrc0(config):
        tables["mrc0"] = mrc0
    if described:
        tables["planes"] = {"interfaces": config.interfaces}
        if config.standby:
            spare = [name for name in config.interfaces if name not in config.serving]
            tables["planes"]["standby"] = spare
    else:
        tables["planes"] = {"paths": config.fabric.routing.paths}
    for field in fields(config):
        section = getattr(config, field.name)
        if field.name not in _RESOLVED and is_dataclass(section):
            held = {key.name: getattr(section, key.name) for key in fields(section)}
            tables[field.name] = {key: value for key, value in held.items() if value is not None}
    peers = () if described and _every_other_host(config) else config.peers
    shown = [("plane", _nic(nic)) for nic in config.nics]
    shown += [("peer", _peer(peer) if described else _endpoints(peer)) for peer in peers]
    # The headings are written here: as a list of tables, tomli_w would put them into one array
    # above all other keys.
    return tomli_w.dumps(tables) + "".join(
        f"\n[[{heading}]]\n{tomli_w.dumps(table)}" for heading, table in shown
    )


def _nic(nic: Nic) -> dict[str, Any]:
    table: dict[str, Any] = {"interface": nic.interface}
    if nic.address is not None:
        table["address"] = str(nic.address)
    if nic.mtu:
        table["mtu"] = nic.mtu
    if nic.rate_mbps:
        table["rate_mbps"] = nic.rate_mbps
    if nic.standby:
        table["standby"] = True
    return table


def _endpoints(peer: Peer) -> dict[str, Any]:
    """Return the [[peer]] of a configuration without a fabric file."""
    table: dict[str, Any] = {"name": peer.name}
    if peer.host.public_key:
        table["public_key"] = peer.host.public_key
    ends = peer.host.endpoints
    table["endpoints"] = ["" if address.is_unspecified else str(address) for address in ends]
    table["allowed"] = list(map(str, peer.allowed))
    return table


def _host(config: Config) -> dict[str, Any]:
    folder, fabric = config.path.parent, config.fabric_path
    # The path as it was written, if it lies in the folder: then both files can move together.
    inside = fabric.relative_to(folder) if fabric.is_relative_to(folder) else fabric
    return {"name": config.host.name, "fabric": str(inside)}


def _mrc0(config: Config) -> dict[str, Any]:
    table: dict[str, Any] = {}
    if config.mrc0.name != "mrc0":
        table["name"] = config.mrc0.name
    if config.mrc0.addresses != config.host.addresses:
        table["addresses"] = list(map(str, config.mrc0.addresses))
    if config.mrc0.routed != config.host.routed:
        table["routed"] = list(map(str, config.mrc0.routed))
    if config.mrc0.redundant:
        table["redundant"] = list(config.mrc0.redundant)
    return table


def _every_other_host(config: Config) -> bool:
    """Return whether the peers are those of a configuration without any [[peer]]."""
    hosts = config.fabric.hosts
    if len(hosts) != len(config.peers) + 1:  # compared first: a pattern may stand for 100,000
        return False
    others = [host for host in hosts if host.name != config.host.name]
    return config.peers == tuple(Peer(host, host.prefixes) for host in others)


def _peer(peer: Peer) -> dict[str, Any]:
    table: dict[str, Any] = {"name": peer.name}
    if peer.allowed != peer.host.prefixes:
        table["allowed"] = list(map(str, peer.allowed))
    return table
