# SPDX-License-Identifier: GPL-2.0-only
"""Digests by which two hosts find out whether their fabric files agree (pure).

There are two. `of_frame` covers what all hosts and switches of a fabric must agree on. `of_hosts`
covers what two hosts must agree on about each other. What neither covers may differ while a change
is rolled out: which other hosts there are, how many T0s, names and public keys. A host that is
added thereby changes no digest between those that were there before.
"""

from __future__ import annotations

import hashlib

from mrcd.fabric import classes
from mrcd.fabric.description import Fabric, Host

NONE = 0
"""The digest of a host without a fabric file."""


def frame(fabric: Fabric) -> dict[str, str]:
    """Return what all hosts must agree on, as key and value; empty without a fabric file."""
    if not fabric.described:
        return {}
    found = {
        "block": fabric.block,
        "underlay6": fabric.underlay6,
        "gateway": fabric.gateway,
        "planes": fabric.planes,
        "t1": fabric.t1,
        "mtu": fabric.mtu,
        "routing": fabric.routing.mode,
        "encap": fabric.routing.encap,
        "underlay": fabric.routing.underlay,
        "trim": str(fabric.trim).lower(),
        **{f"dscp.{key}": value for key, value in classes.keys(fabric.classes).items()},
    }
    return {key: str(value) for key, value in found.items()}


def place(host: Host) -> str:
    """Return what another host must know of a host, in words."""
    shown = " ".join(sorted(map(str, host.addresses)))
    behind = " routed ".join(["", *sorted(map(str, host.routed))])
    return f"{host.name}: T0 {host.t0}, port {host.port}, {shown}{behind}"


def of_frame(fabric: Fabric) -> int:
    """Return the digest, 64 bits, of what all hosts must agree on; NONE without a fabric file."""
    values = frame(fabric)
    return _digest("frame", *(f"{key} = {value}" for key, value in values.items())) if values else 0


def of_hosts(fabric: Fabric, one: Host, other: Host) -> int:
    """Return the digest, 64 bits, of two hosts in a fabric file, in either order."""
    if not fabric.described:
        return NONE
    return _digest("hosts", *sorted((place(one), place(other))))


def shown(digest: int) -> str:
    """Return a digest as people compare it: 16 hexadecimal digits."""
    return f"{digest:016x}"


def differences(peer: str, theirs: tuple[int, int], ours: tuple[int, int]) -> str | None:
    """Say what the files of a peer and this host do not agree on; None if there is nothing.

    Both pairs are the digests of the frame and of the two hosts. A digest of NONE compares with
    nothing: the peer does not say.
    """
    entry = "has another entry for itself or for this host in its fabric file"
    what = ("has another fabric file", entry)
    for text, there, here in zip(what, theirs, ours, strict=True):
        if there != here and NONE not in (there, here):
            return f"peer {peer} {text}: digest {shown(there)} there, {shown(here)} here"
    return None


def _digest(*lines: str) -> int:
    """Return 64 bits of BLAKE2b of the lines; never NONE."""
    found = hashlib.blake2b("\n".join(lines).encode(), digest_size=8, person=b"mrcd fabric")
    return int.from_bytes(found.digest(), "big") or 1
