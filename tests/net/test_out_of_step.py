# SPDX-License-Identifier: GPL-2.0-only
"""Test a receiver that is ahead of its sender; without recovery no packet would arrive again."""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest

from cli.lab import state
from mrcd.linux import bpf
from mrcd.wire.abi import ABI
from rigs.lab_hosts import eventually, maps_of, ok
from rigs.traffic import transfer

Lab = Any  # conftest.RunningLab
H2 = "10.99.0.2"
QPS = 4
pytestmark = pytest.mark.timeout(120)  # daemons compile, slowly on a busy machine


def run_ahead(name: str, host: str, packets: int) -> None:
    """Make the host expect PSNs that were never sent, as a damaged PSN and an abandoned gap do."""
    kind = ABI.structs["mrc_rx"]
    handle = bpf.get(maps_of(name, host) / "rxs")
    try:
        for qp in range(QPS):
            key = struct.pack("=I", qp)
            raw = bpf.lookup(handle, key, kind.size)
            assert raw is not None
            changed = bytearray(raw)
            for member in ("next", "high"):
                at = kind.fields[member].offset
                (value,) = struct.unpack_from("=I", changed, at)
                struct.pack_into("=I", changed, at, (value + packets) & 0xFFFFFFFF)
            bpf.update(handle, key, bytes(changed))
    finally:
        os.close(handle)


def test_new_qps_are_set_up_and_connections_live(shared_lab: Lab) -> None:
    name = shared_lab.name
    transfer(shared_lab, "h1", "h2", H2)
    run_ahead(name, "h2", 5000)
    eventually(lambda: shared_lab.pings("h1", H2, "-c", "1", "-W", "1"), "h2 answers again", 30)
    assert '"peer.out_of_step"' in state.places(name, "h1").log.read_text()
    transfer(shared_lab, "h1", "h2", H2)
    eventually(lambda: ok(name, "h1") and ok(name, "h2"), "both are well")
