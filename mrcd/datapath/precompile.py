# SPDX-License-Identifier: GPL-2.0-only
"""Compile the programs of the usual configurations, for a package to bring.

    python -m mrcd.datapath.precompile FOLDER [KEPT]     (as root, with bcc)

What is in the folder KEPT, where daemons on this machine have kept what they compiled, is taken
from there.

A host whose configuration is one of these needs neither bcc nor a compiler nor kernel headers:
mrcd/datapath/loader.py finds the programs in `shipped()`. Any other configuration is compiled at
its first start. What is compiled in is the MTU of the planes, routing, framing, the size of the
window, and whether packets are recorded. The numbers of peers (up to 256), prefixes and paths
are not, nor what the kernel can do.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

from mrcd.config.sections import Transport
from mrcd.datapath import bytecode, loader
from mrcd.datapath.sizes import Sizes
from mrcd.fabric.routing import ENCAP_ECMP4, ENCAP_ECMP6, ENCAP_FULL
from mrcd.wire.envelope import cell_overhead, overhead
from mrcd.wire.packet import WIRE

MTUS = (1500, 9000)
"""MTUs of planes."""


def usual() -> Iterator[Sizes]:
    """Yield what is compiled in, by default, for each usual MTU, routing and framing.

    Fabrics of uSIDs with cells and in MRC's framing, and networks without a fabric, by IPv6 and by
    IPv4 with cells in UDP.
    """
    routes = (  # encapsulation, headers, a next hop for each peer and cells in UDP
        (ENCAP_FULL, cell_overhead(ENCAP_FULL, WIRE.MRC_CELL_IP6), False),
        (ENCAP_FULL, overhead(ENCAP_FULL), False),
        (ENCAP_ECMP6, cell_overhead(ENCAP_ECMP6, WIRE.MRC_CELL_UDP), True),
        (ENCAP_ECMP4, cell_overhead(ENCAP_ECMP4, WIRE.MRC_CELL_UDP), True),
    )
    for mtu, (encap, headers, network), capture in product(MTUS, routes, (False, True)):
        yield Sizes(
            mtu=mtu - headers,
            window=2 * Transport().mpr,
            ring_slots=1,
            peers=1,
            qps=1,
            evs=1,
            prefixes=1,
            encap=encap,
            capture=capture,
            next_hops=network,
            cell_udp=network,
        ).compiled()


def compile_into(folder: Path, kept: Path | None, sizes: Sizes) -> float:
    """Compile for these sizes and leave the result in a folder; return the seconds it took.

    What is in the folder `kept` is only copied. Raises RuntimeError when bcc cannot compile,
    OSError when the folder cannot be written.
    """
    began, text = time.monotonic(), loader.source()
    key = bytecode.key_of(text, sizes.defines())
    code = bytecode.read(kept, key) if kept is not None else None
    bytecode.write(folder, key, code or loader.compilation(text, sizes))
    return time.monotonic() - began


def main() -> int:
    """Compile them all, as many at a time as there are CPUs."""
    if len(sys.argv) not in (2, 3):
        print("usage: python -m mrcd.datapath.precompile FOLDER [KEPT]", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    kept = Path(sys.argv[2]) if len(sys.argv) == 3 else None
    wanted = list(usual())
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        seconds = list(pool.map(partial(compile_into, folder, kept), wanted))
    for path in folder.iterdir():  # what a package brings may be read by everybody
        path.chmod(0o644)
    folder.chmod(0o755)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{len(wanted)} compilations, {sum(seconds):.0f} s, {size >> 10} KB in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
