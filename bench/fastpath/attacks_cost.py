# SPDX-License-Identifier: GPL-2.0-only
"""Measure how long mrc_receive takes to drop a forged packet.

    python -m bench.fastpath.attacks_cost     (as root)

The real program runs on one packet over and over (PROG_TEST_RUN), at tc, in a rig of the tests
with keys. The least mean of some rounds counts: what else the machine does only adds to it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import tempfile
from pathlib import Path

from mrcd.handshake import sealing
from mrcd.linux import kernel, netns
from mrcd.wire.packet import WIRE
from rigs.packets import EV, Far, numbered, offer_frame, trimmed
from rigs.rig import DROPPED, Rig, arrival

ROUNDS, REPEAT = 15, 20_000
_DURATION_AT = 36  # of union bpf_attr: the mean of a test run's rounds
_PUBLIC = bytes(range(32))


def frames(far: Far) -> dict[str, bytes]:
    """Return forged packets that all checks but that of a key or of a number let pass."""
    init = sealing.INIT + bytes(sealing.INIT_BYTES - 4)
    return {
        "port status": far.endpoint_request(WIRE.MRC_ENDPOINT_PORT_STATUS, 1, 0),
        "sack, right QPN": far.sack(1000),
        "sack, wrong QPN": far.sack(1000, qpn=0x120000),
        "nack": far.nack(1000),
        "data": far.data(5000, numbered(1, 1000)),
        "trimmed": trimmed(far.data(5000, numbered(1, 1000))),
        "survey totals": offer_frame(far, EV, b"MRCf\0\1\x90" + bytes(80))[0],
        "init": offer_frame(far, EV, init)[0],
        "sealed": offer_frame(far, EV, sealing.SEALED + bytes(80))[0],
    }


def mean_ns(rig: Rig, frame: bytes) -> int:
    """Return the least mean time of mrc_receive on a frame that it drops."""
    assert rig.receive(frame).verdict == DROPPED
    run = arrival(rig.dp, frame, rig.ifindex["plane1"])
    found = []
    for _ in range(ROUNDS):
        run.run(REPEAT)
        found.append(int(struct.unpack_from("=I", run._attr, _DURATION_AT)[0]))
    return min(found)


def main() -> int:
    """Run the benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(f"cost{os.getpid()}", Path(folder), decap=kernel.has_decap())
        with contextlib.closing(rig), netns.entered(rig.namespace):
            rig.reset()
            rig.connect()
            rig.tune(keyed=1, mac1_key=struct.unpack("=QQ", sealing.mac1_key(_PUBLIC)))
            rig.table.keys.receive_key("h2", 1, 1, bytes(32))
            rig.table.keys.send_key("h2", 1)
            far = Far(rig.fabric, rig.fabric.host("h1"), rig.fabric.host("h2"))
            far.use(b"\x77" * 32, 1)
            for name, frame in frames(far).items():
                print(f"{name:16} {mean_ns(rig, frame):6} ns", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
