# SPDX-License-Identifier: GPL-2.0-only
"""The files of `mrcctl quick`: a configuration without a fabric, from what the hosts agreed on."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_interface, ip_network

from cli.quick.discovery import Plan
from mrcd.fabric import network
from mrcd.fabric.hosts import Host

NETWORK4 = IPv4Network("10.99.0.0/16")
NETWORK6 = IPv6Network("fd99::/64")
SECRET = "fabric.secret"  # the name of a file
INVITATION = "invitation"  # of another one
KEYS = {SECRET: "secret_file", INVITATION: "invitation_file"}
_NAME_MAX = 31


def name_of(hostname: str) -> str:
    """Return a host's name as configurations have it: its first label, in lower case."""
    label = re.sub(r"[^a-z0-9-]+", "-", hostname.split(".")[0].lower()).strip("-")
    return (label if re.match(r"[a-z]", label) else f"h{label}")[:_NAME_MAX]


def addresses_of(name: str) -> tuple[str, ...]:
    """Return the addresses of a host's mrc0 that follow from its name, with prefix lengths."""
    digest = hashlib.blake2s(name.encode(), person=b"mrcd mrc").digest()
    last4 = 1 + int.from_bytes(digest[:2], "big") % (NETWORK4.num_addresses - 2)
    last6 = int.from_bytes(digest[8:16], "big") or 1
    four = ip_address(int(NETWORK4.network_address) + last4)
    six = ip_address(int(NETWORK6.network_address) + last6)
    return f"{four}/{NETWORK4.prefixlen}", f"{six}/{NETWORK6.prefixlen}"


def configuration(
    name: str,
    addresses: Sequence[str],
    nics: Sequence[str],
    plan: Plan,
    *,
    by: str,
    forward: bool = False,
    seeds: Sequence[str] = (),
) -> str:
    """Return the mrcd.toml of a host; `nics` are its interfaces in the order that was given.

    by: the file that it is known by, SECRET or INVITATION: hosts go on finding each other, and the
    peers are in the state file (`admitted`). "": insecure. `seeds` are addresses of members, where
    there are routers in between.
    """
    planes = [nics[place] for place in plan.planes]
    lines = [
        "# written by mrcctl quick",
        "[host]",
        f"name = {json.dumps(name)}",
        "[mrc0]",
        f"addresses = {json.dumps([str(ip_interface(each)) for each in addresses])}",
        "[keys]",
        *([f'{KEYS[by]} = "{by}"', "discover = true"] if by else ["insecure = true"]),
        *(["forward = true"] if forward else []),
        *([f"seeds = {json.dumps(list(seeds))}"] if seeds else []),
        "[service]",
        'on_stop = "detach"',
    ]
    for plane in planes:
        lines += ["[[plane]]", f"interface = {json.dumps(plane)}"]
    for peer in () if by else plan.peers:
        both = zip(peer.endpoints, planes, strict=True)
        endpoints = [each and f"{each}%{nic}" for each, nic in both]
        lines += [
            "[[peer]]",
            f"name = {json.dumps(peer.name)}",
            f"endpoints = {json.dumps(endpoints)}",
            f"allowed = {json.dumps([str(ip_network(each)) for each in peer.inner])}",
        ]
    return "\n".join(lines) + "\n"


def admitted(addresses: Sequence[str], plan: Plan, public_keys: Mapping[str, str]) -> list[Host]:
    """Return the other hosts, as the daemon remembers hosts that it has found.

    `addresses` are this host's of mrc0, with the lengths of their networks. `public_keys` are of
    those hosts whose key does not follow from a secret.
    """
    networks = [ip_interface(each).network for each in addresses]
    found = [
        network.found(
            peer.name, [ip_address(e or "::") for e in peer.endpoints], peer.inner, networks
        )
        for peer in plan.peers
    ]
    return [replace(host, public_key=public_keys.get(host.name, "")) for host in found]
