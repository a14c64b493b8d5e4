# SPDX-License-Identifier: GPL-2.0-only
"""Test that no change of the bytes on the wire goes unnoticed.

A daemon that takes a data path over goes on with QPs that were agreed with peers of other builds.
It relies on the version (mrcd/handshake/versions.py): what both speak has the same bytes in both.
"""

from __future__ import annotations

import hashlib
import json

from mrcd.handshake import versions
from mrcd.wire.packet import WIRE

KNOWN = {4: "3eca01778c3de39a"}
"""What mrc_wire.h says, by version."""


def digest() -> str:
    """Return a digest of the structs and constants of mrc_wire.h; comments are not in it."""
    structs = {
        name: [[f.name, f.offset, f.item_size, f.count] for f in struct.fields.values()]
        for name, struct in WIRE.structs.items()
    }
    text = json.dumps([structs, dict(WIRE.constants)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_bytes_on_the_wire_change_with_the_version_only() -> None:
    assert versions.OLDEST <= versions.NEWEST
    assert KNOWN.get(versions.NEWEST) == digest(), (
        "mrc_wire.h has changed. If peers that speak the version of before do not understand it, "
        "raise versions.NEWEST (and OLDEST, unless the former version is still spoken). "
        f"Then note here that version {versions.NEWEST} has the digest {digest()}"
    )
