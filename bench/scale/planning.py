# SPDX-License-Identifier: GPL-2.0-only
"""Check every EV between every two T0s, to its path and back: ``python -m bench.scale.planning``.

`mrcctl fabric plan --check` tries every EV at every T0 and infers the rest. This program tries all
535 million paths between the T0s of a planned fabric, with arrays. The uSIDs come from `usid.usid`.
The conversion to the wire and back is done here on whole arrays, and one path in each array is
compared with the result of the project's own functions.
"""

from __future__ import annotations

import argparse
import ipaddress
import time

import numpy as np

from cli.fabric import planning
from mrcd.fabric import usid
from mrcd.fabric.description import Fabric, Host


def paths_checked(fabric: Fabric) -> int:
    """Return how many (plane, T1, source T0, destination T0) are right; AssertionError at a wrong
    one."""
    count = 0
    for plane in range(fabric.planes):
        t0s = np.array(
            [usid.usid(plane, usid.ROLE_T0, j) for j in range(1, fabric.t0 + 1)], dtype=np.uint64
        )
        apart = ~np.eye(fabric.t0, dtype=bool)
        # Bytes 4 to 11 of the address: source T0, T1, destination T0, host port.
        ends = (t0s[:, None] << np.uint64(48)) | (t0s[None, :] << np.uint64(16))
        port = usid.usid(plane, usid.ROLE_HOST, 1)
        for t1 in range(1, fabric.t1 + 1):
            via = usid.usid(plane, usid.ROLE_T1, t1)
            wire = ends | np.uint64(via << 32 | port)
            right = (wire >> np.uint64(48) == t0s[:, None]) & (
                (wire >> np.uint64(16)) & np.uint64(0xFFFF) == t0s[None, :]
            )
            middle = (wire >> np.uint64(32)) & np.uint64(0xFFFF)
            back = (middle >> np.uint64(usid.PLANE_SHIFT) << np.uint64(usid.EV_PLANE_SHIFT)) | (
                (middle & np.uint64(usid.INDEX_MASK)) << np.uint64(usid.EV_T1_SHIFT)
            )
            right &= back == np.uint64(usid.ev(plane, t1))
            assert right.all(), f"EV {usid.ev(plane, t1):#010x}"
            count += int(apart.sum())
            near, far = t1 % fabric.t0, (t1 + 1) % fabric.t0
            _same(fabric, near + 1, far + 1, usid.ev(plane, t1), int(wire[near, far]))
    return count


def _same(fabric: Fabric, near: int, far: int, ev: int, wire: int) -> None:
    src, dst = Host("a", near, 1, ()), Host("b", far, 1, ())
    address = usid.da_bytes(fabric.block, usid.path_usids(src, dst, ev))
    assert address[4:12] == wire.to_bytes(8, "big"), ipaddress.IPv6Address(address)


def main() -> None:
    """Print how many paths were checked, and the seconds it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--radix", type=int, default=512)
    parser.add_argument("--planes", type=int, default=8)
    options = parser.parse_args()
    plan = planning.plan(radix=options.radix, planes=options.planes)
    fabric = planning.fabric(plan, name="bench", mtu=9000)
    began = time.monotonic()
    count = paths_checked(fabric)
    print(f"{plan.nics:,} NICs: {count:,} paths between T0s in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
