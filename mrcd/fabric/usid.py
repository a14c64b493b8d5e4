# SPDX-License-Identifier: GPL-2.0-only
"""Convert between EVs, uSID lists and addresses (pure).

A uSID (16 bits) names a switch or a host's port: plane 3 | role 2 | index 11. The path of an EV (32
bits: plane 4 | T1 12 | spare 16) is a list of uSIDs, and the outer destination address carries
block + list + zeros (F3216, RFC 9800). The widths are those of bpf/mrc_wire.h (MRC_USID_*,
MRC_EV_*); a test compares them.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from mrcd.fabric.description import Host

PLANE_SHIFT = 13
ROLE_SHIFT = 11
INDEX_MASK = 0x07FF
ROLE_T0 = 0
ROLE_T1 = 1
ROLE_HOST = 2
USID_MAX = 6
EV_PLANE_SHIFT = 28
EV_T1_SHIFT = 16
EV_T1_MASK = 0x0FFF
ECMP_EVS = 128  # of a plane whose switches hash the EV: enough to hit every T1 several times

_PLANE_MAX = 7
_BLOCK_BYTES = 4
_T1_FIELD = slice(6, 8)  # bytes of an address, after the block and our T0
_FIELDS = struct.Struct(f">{USID_MAX}H")
_EMPTY = (0,) * USID_MAX


@dataclass(frozen=True, slots=True)
class Usid:
    """The parts of one uSID."""

    plane: int
    role: int
    index: int


def usid(plane: int, role: int, index: int) -> int:
    """Return the uSID of a switch or of a host's port; `index` counts from 1.

    Index 0 is allowed as the empty field of a template. Raises ValueError when a part does not fit
    its field.
    """
    if not 0 <= plane <= _PLANE_MAX:
        raise ValueError(f"plane {plane} does not fit a uSID: 0 to {_PLANE_MAX}")
    if not ROLE_T0 <= role <= ROLE_HOST:
        raise ValueError(f"role {role} is none of T0 (0), T1 (1), host (2)")
    if not 0 <= index <= INDEX_MASK:
        raise ValueError(f"index {index} does not fit a uSID: 0 to {INDEX_MASK}")
    return plane << PLANE_SHIFT | role << ROLE_SHIFT | index


def split(value: int) -> Usid:
    """Return the parts of a uSID; raises ValueError if it has more than 16 bits."""
    if not 0 <= value <= 0xFFFF:
        raise ValueError(f"{value:#x} is not a 16-bit uSID")
    return Usid(value >> PLANE_SHIFT, value >> ROLE_SHIFT & 0x3, value & INDEX_MASK)


def ev(plane: int, t1: int) -> int:
    """Return the EV of the path over `plane` and `t1` (from 1; 0 if both hosts share a T0).

    Raises ValueError when a part does not fit its field.
    """
    if not 0 <= plane <= _PLANE_MAX:
        raise ValueError(f"plane {plane} is not one of 0 to {_PLANE_MAX}")
    if not 0 <= t1 <= EV_T1_MASK:
        raise ValueError(f"T1 {t1} does not fit an EV: 0 to {EV_T1_MASK}")
    return plane << EV_PLANE_SHIFT | t1 << EV_T1_SHIFT


def ev_plane(value: int) -> int:
    """Return the plane that an EV names."""
    return value >> EV_PLANE_SHIFT


def ev_t1(value: int) -> int:
    """Return the T1 that an EV names, or 0 if its path crosses none."""
    return value >> EV_T1_SHIFT & EV_T1_MASK


def path_usids(src: Host, dst: Host, value: int) -> list[int]:
    """Return the uSIDs that a packet of this EV visits from `src` to `dst`, the host's port last.

    Raises ValueError when the EV names a T1 although both hosts share a T0, or the reverse.
    """
    plane, t1 = ev_plane(value), ev_t1(value)
    last = [usid(plane, ROLE_T0, dst.t0), usid(plane, ROLE_HOST, dst.port)]
    if src.t0 == dst.t0:
        if t1 != 0:
            raise ValueError(
                f"EV {value:#010x} names T1 {t1}, but {src.name} and {dst.name} share T0 {src.t0}"
            )
        return last
    if t1 == 0:
        raise ValueError(
            f"EV {value:#010x} names no T1, but {src.name} is on T0 {src.t0}"
            f" and {dst.name} on T0 {dst.t0}"
        )
    return [usid(plane, ROLE_T0, src.t0), usid(plane, ROLE_T1, t1), *last]


def ev_of_path(usids: Sequence[int]) -> int:
    """Return the EV whose path is this uSID list: the inverse of `path_usids`.

    Raises ValueError when the list is not a path: wrong roles, an index 0, or several planes.
    """
    parts = [split(value) for value in usids]
    roles = [part.role for part in parts]
    if len({part.plane for part in parts}) != 1:
        raise ValueError(f"uSID list {_shown(usids)} does not stay in one plane")
    if any(part.index == 0 for part in parts):
        raise ValueError(f"uSID list {_shown(usids)} has an index 0")
    if roles == [ROLE_T0, ROLE_HOST]:
        return ev(parts[0].plane, 0)
    if roles == [ROLE_T0, ROLE_T1, ROLE_T0, ROLE_HOST] and parts[0].index != parts[2].index:
        return ev(parts[0].plane, parts[1].index)
    raise ValueError(f"uSID list {_shown(usids)} is neither T0, host nor T0, T1, another T0, host")


def _shown(usids: Sequence[int]) -> str:
    return ":".join(f"{value:04x}" for value in usids)


def da_bytes(block: ipaddress.IPv6Network, usids: Sequence[int]) -> bytes:
    """Return the 16 bytes of the outer destination address: block, list, zeros.

    Raises ValueError if the block is not a /32 or there are too many uSIDs.
    """
    if block.prefixlen != 8 * _BLOCK_BYTES:
        raise ValueError(f"block {block} is not a /32")
    if len(usids) > USID_MAX:
        raise ValueError(f"{len(usids)} uSIDs do not fit an address: at most {USID_MAX}")
    address = block.network_address.packed[:_BLOCK_BYTES]
    return address + _FIELDS.pack(*usids, *_EMPTY[len(usids) :])


def usids_of_da(block: ipaddress.IPv6Network, address: bytes) -> list[int]:
    """Return the uSID list in an outer destination address: the inverse of `da_bytes`."""
    if address[:_BLOCK_BYTES] != block.network_address.packed[:_BLOCK_BYTES]:
        raise ValueError(f"{ipaddress.IPv6Address(address)} is not in block {block}")
    values = list(_FIELDS.unpack_from(address, _BLOCK_BYTES))
    while values and values[-1] == 0:
        values.pop()
    return values


def template_da(block: ipaddress.IPv6Network, src: Host, dst: Host, plane: int) -> bytes:
    """Return the destination address of every path of a plane, with a T1 index of zero.

    The data path ORs the EV's T1 into bytes 6 and 7. Without a T1 between the two hosts, the
    template is the address itself.
    """
    last = [usid(plane, ROLE_T0, dst.t0), usid(plane, ROLE_HOST, dst.port)]
    if src.t0 == dst.t0:
        return da_bytes(block, last)
    return da_bytes(block, [usid(plane, ROLE_T0, src.t0), usid(plane, ROLE_T1, 0), *last])


def with_t1(template: bytes, t1: int) -> bytes:
    """Return a template's address over a T1 (from 1; 0 if both hosts share a T0)."""
    spine = int.from_bytes(template[_T1_FIELD], "big") | t1
    return template[: _T1_FIELD.start] + spine.to_bytes(2, "big") + template[_T1_FIELD.stop :]


def locator(block: ipaddress.IPv6Network, value: int) -> ipaddress.IPv6Network:
    """Return the /48 that a switch holds for one uSID."""
    return ipaddress.IPv6Network((da_bytes(block, [value]), 8 * _BLOCK_BYTES + 16))


def plane_prefix(block: ipaddress.IPv6Network, plane: int) -> ipaddress.IPv6Network:
    """Return the /35 that covers every uSID of one plane."""
    bits = 16 - PLANE_SHIFT
    return ipaddress.IPv6Network(
        (da_bytes(block, [usid(plane, ROLE_T0, 0)]), 8 * _BLOCK_BYTES + bits)
    )
