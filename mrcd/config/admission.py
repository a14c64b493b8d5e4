# SPDX-License-Identifier: GPL-2.0-only
"""Hosts that are taken as peers although no file lists them: `admit` and `discover` (pure).

An admitted host can take only what is free: its name, its place and its addresses are nobody's. It
has no prefixes beyond its addresses. A file that lists what it has taken counts more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_network

from mrcd.config.config import QPS_MAX_ALL, Config, Peer
from mrcd.config.overlap import Prefix
from mrcd.fabric import digest
from mrcd.fabric import hosts as of
from mrcd.fabric.hosts import Host
from mrcd.fabric.shape import ELEMENT, NAME, NAME_RULE, PORT_MAX


@dataclass(frozen=True, slots=True)
class Joined:
    """A configuration with the admitted hosts in it.

    listed: hosts that the files list by now, with the same entry. left_out: why a host that was
    admitted before is not in it.
    """

    config: Config
    listed: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)


def without_admitted(config: Config) -> Config:
    """Return what the files say: the configuration without the admitted hosts."""
    if not config.admitted:
        return config
    return without(config, config.admitted)


def without(config: Config, names: Iterable[str]) -> Config:
    """Return the configuration without some of the admitted hosts."""
    gone = {*names} & {*config.admitted}
    ring, fabric = config.keyring, config.fabric
    if ring is not None:
        ring = replace(ring, peers={n: key for n, key in ring.peers.items() if n not in gone})
    hosts = tuple(host for host in fabric.hosts if host.name not in gone)
    return replace(
        config,
        fabric=replace(fabric, hosts=hosts),
        peers=tuple(peer for peer in config.peers if peer.name not in gone),
        keyring=ring,
        admitted=tuple(name for name in config.admitted if name not in gone),
    )


def with_host(config: Config, host: Host) -> Config:
    """Return the configuration with one more host as a peer, for which `conflict` found nothing."""
    assert config.keyring is not None, "only who has keys admits anybody"
    return replace(
        config,
        fabric=replace(config.fabric, hosts=(*config.fabric.hosts, host)),
        peers=(*config.peers, Peer(host, host.prefixes)),
        keyring=config.keyring.with_peer(host.name, host.public_key),
        admitted=(*config.admitted, host.name),
    )


def with_ways(config: Config, hosts: Iterable[Host]) -> Config:
    """Return the configuration with admitted hosts reached in other ways than before."""
    by_name = {host.name: host for host in hosts}

    def now(host: Host) -> Host:
        return by_name.get(host.name, host)

    return replace(
        config,
        fabric=replace(config.fabric, hosts=tuple(map(now, config.fabric.hosts))),
        peers=tuple(replace(peer, host=now(peer.host)) for peer in config.peers),
    )


def joined(config: Config, hosts: Sequence[Host]) -> Joined:
    """Add the hosts that were admitted before to what the files say.

    Without one secret for all hosts, or a certificate, none has a key, and none is added.
    """
    if config.keyring is None or not config.keyring.admits:
        return Joined(config)
    described = config.fabric.described
    if not described and not config.keys.discover:
        return Joined(config)
    listed, left_out = [], {}
    by_secret = config.keyring.secret is not None
    for host in hosts:
        known = of.find(config.fabric.hosts, host.name)
        if known is not None and (not described or same(known, host)):
            listed.append(host.name)
        elif not by_secret and not host.public_key:
            left_out[host.name] = f"the public key of {host.name} is not known"
        elif why := conflict(config, host):
            left_out[host.name] = why
        else:
            config = with_host(config, host)
    return Joined(config, tuple(listed), left_out)


def same(one: Host, other: Host) -> bool:
    """Return whether two entries are the same in what a host states of itself."""
    return replace(one, public_key="", routed=()) == replace(other, public_key="", routed=())


def why_not(config: Config, host: Host, frame: int) -> str | None:
    """Return why a host cannot be admitted, with the remedy; None if it can.

    `frame` is the digest that the host states of its fabric file's frame; without one it is 0.
    """
    ours = digest.of_frame(config.fabric) if config.fabric.described else 0
    if frame != ours:
        there, here = digest.shown(frame), digest.shown(ours)
        return (
            f"{host.name} has another fabric file: digest {there} there, {here} here; compare both "
            "by `mrcctl fabric digest FILE`"
        )
    return _too_many_admitted(config) or conflict(config, host)


def _too_many_admitted(config: Config) -> str | None:
    if len(config.admitted) < config.keys.admit_max:
        return None
    where = "the fabric file" if config.fabric.described else "mrcd.toml"
    return (
        f"{len(config.admitted)} hosts are admitted already, as many as [keys] admit_max "
        f"allows; list them in {where}, or raise admit_max"
    )


def conflict(config: Config, host: Host) -> str | None:
    """Return what is wrong with a host's entry, or whose it takes; None if it can be added."""
    if not config.fabric.described:
        return (
            _unfit_in_network(config, host) or _unfit_addresses(config, host) or _too_many(config)
        )
    return (
        _malformed(config, host)
        or _taken(config, host)
        or _unfit_addresses(config, host)
        or _too_many(config)
    )


def _unfit_in_network(config: Config, host: Host) -> str | None:
    """Return why a host cannot be in a network without a fabric file: its name, or its NICs."""
    name = host.name
    if wrong := _misnamed(name):
        return wrong
    if name == config.host.name or name in config.by_name:
        return f"{name} is here already"
    if len(host.endpoints) != config.fabric.planes:
        return f"{name} has addresses on {len(host.endpoints)} planes of {config.fabric.planes}"
    at = config.claimed.at
    for where, other in sorted((str(e), at[e]) for _plane, e in host.places if e in at):
        return f"{name} is at {where}, where {other} is; {_mend(config, other)}"
    return None


def _misnamed(name: str) -> str | None:
    if NAME.fullmatch(name) and not ELEMENT.fullmatch(name):
        return None
    return f"{name!r} is no name of a host: it must be {NAME_RULE}, and unlike p0 and p0t1-2"


def _malformed(config: Config, host: Host) -> str | None:
    fabric, name = config.fabric, host.name
    if wrong := _misnamed(name):
        return wrong
    if not 1 <= host.t0 <= fabric.t0:
        return (
            f"{name} is at T0 {host.t0}, and the fabric file has t0 = {fabric.t0}; raise t0 in "
            "the fabric file"
        )
    if not 1 <= host.port <= PORT_MAX:
        return f"{name} is at port {host.port} of its T0; ports are 1 to {PORT_MAX}"
    if fabric.ipv4 != replace(fabric, hosts=(*fabric.hosts, host)).ipv4:
        return (
            f"{name} is at port {host.port} of its T0, which changes the planes' addresses of all "
            "hosts; list it in the fabric file"
        )
    return None


def _taken(config: Config, host: Host) -> str | None:
    name, place = host.name, (host.t0, host.port)
    for other in config.fabric.hosts:
        if other.name == name:
            if same(other, host) and name not in config.admitted:
                return f"{name} is in the fabric file, but no [[peer]] of mrcd.toml names it"
            return (
                f"{name} is {_described(host)}, and {_described(other)} {known_by(config, name)}; "
                f"{_mend(config, name)}"
            )
        if (other.t0, other.port) == place:
            return (
                f"port {host.port} of T0 {host.t0}, where {name} says to be, is that of "
                f"{other.name} {known_by(config, other.name)}; {_mend(config, other.name)}"
            )
    return None


def _unfit_addresses(config: Config, host: Host) -> str | None:
    reserved, used, name = config.claimed.reserved, config.claimed.networks, host.name
    seen: set[Prefix] = set()
    for address in host.addresses:
        route, ip = ip_network(address.ip), address.ip
        if address.network not in used:
            nets = " ".join(sorted(map(str, used)))
            return f"{name}'s address {address} is in none of the networks in use ({nets})"
        if address.network.prefixlen < route.prefixlen - 1 and (
            ip == address.network.network_address
            or (ip.version == 4 and ip == address.network.broadcast_address)
        ):
            return f"{name}'s address {address} is that of the network itself"
        if ip.is_multicast or ip.is_loopback or ip.is_unspecified or ip.is_link_local:
            return f"{name}'s address {address} is none that an interface may have"
        if clash := reserved.clash(route):
            return f"{name}'s address {address} lies in {clash}"
        if route in seen:
            return f"{name} has the address {address} twice"
        seen.add(route)
        if owner := config.claimed.owners.of(route):
            return f"{name}'s address {address} belongs to {owner}; {_mend(config, owner)}"
    return None if host.addresses else f"{name} has no address of mrc0"


def _too_many(config: Config) -> str | None:
    qps = config.transport.qps_per_peer
    if (len(config.peers) + 1) * qps <= QPS_MAX_ALL:
        return None
    return f"QPNs can number no more than {len(config.peers)} peers with {qps} QPs each"


def _described(host: Host) -> str:
    addresses = " ".join(map(str, host.addresses))
    return f"at port {host.port} of T0 {host.t0} with {addresses}"


def known_by(config: Config, name: str) -> str:
    """Return from where a host of this configuration is known, for a message."""
    return "as admitted before" if name in config.admitted else "in the fabric file"


def _mend(config: Config, name: str) -> str:
    if name in config.admitted:
        return f"if {name} has gone or has changed, run `mrcctl peer forget {name}`"
    if not config.fabric.described:
        return "correct one of the two configurations"
    return "correct one of the two fabric files"
