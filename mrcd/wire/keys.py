# SPDX-License-Identifier: GPL-2.0-only
"""Keys of tags, from the secret that two hosts share for an epoch.

Each QP has a key for each direction, and so have the endpoint packets of each host. A key is
BLAKE2s (RFC 7693) of its receiver or sender, keyed with the secret and personalized by its use.
"""

from __future__ import annotations

import hashlib
from typing import Final

from mrcd.wire.tag import KEY_BYTES

SECRET_BYTES: Final = 32
_QP: Final = b"mrcd QP "
_ENDPOINT: Final = b"mrcd EP "


def qp_key(secret: bytes, receiver_qpn: int, receiver: str = "") -> bytes:
    """Return the 16 bytes that key the tags of packets to a QPN.

    `receiver` is the name of the host that has the QPN: both ends of a QP may have the same number,
    and then only the name tells the directions apart. Raises ValueError for a QPN or a secret that
    is none.
    """
    if not 0 < receiver_qpn < 1 << 24:
        raise ValueError(f"QPN {receiver_qpn:#x} is not 24 bits, or 0")
    return _packet_key(secret, _QP, receiver_qpn.to_bytes(3, "big") + receiver.encode())


def endpoint_key(secret: bytes, sender: str) -> bytes:
    """Return the 16 bytes that key the tags of a host's packets outside QPs.

    Raises ValueError for a secret that is none.
    """
    return _packet_key(secret, _ENDPOINT, sender.encode())


def _packet_key(secret: bytes, label: bytes, whose: bytes) -> bytes:
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes, not {SECRET_BYTES}")
    return hashlib.blake2s(whose, key=secret, person=label, digest_size=KEY_BYTES).digest()
