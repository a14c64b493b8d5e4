# SPDX-License-Identifier: GPL-2.0-only
"""A receiver without room refuses by NACKs, and a QP that gives up is set up anew."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any

import pytest

from cli.lab import state
from mrcd.linux import bpf
from mrcd.wire.abi import ABI
from rigs.lab_hosts import counters, eventually, maps_of, mrcctl_json, ok, status
from rigs.traffic import transfer, udp_sequence

Lab = Any  # conftest.RunningLab
MakeLab = Any
H2 = "10.99.0.2"
LEFT = 3
_LOOKUP_AND_DELETE = 21
pytestmark = pytest.mark.timeout(180)  # daemons compile, slowly on a busy machine


def leave_slots(name: str, host: str, count: int) -> None:
    """Take all but `count` free slots out of a host's reorder ring, while nothing is held."""
    stack, rooms = (bpf.get(maps_of(name, host) / each) for each in ("rx_free", "rooms"))
    room, packets = ABI.structs["mrc_room"], struct.pack("=I", ABI.MRC_ROOM_PACKETS)
    value = ctypes.create_string_buffer(4)
    attr = struct.pack("=IIQQQ", stack, 0, 0, bpf.address_of(value), 0)
    try:
        taken = 0
        while True:
            try:
                bpf.call(_LOOKUP_AND_DELETE, attr, "pop rx_free")
            except bpf.BpfError:
                break
            taken += 1
        assert taken > count
        for slot in range(count):
            bpf.update(stack, None, struct.pack("=I", slot))
        bpf.update(rooms, packets, room.pack(free=count, all=taken))
    finally:
        os.close(stack)
        os.close(rooms)


def test_full_reorder_ring_costs_no_data_and_no_order(make_lab: MakeLab) -> None:
    """One plane is late, so almost everything on the others is early, and finds three slots."""
    running: Lab = make_lab(daemons=True, settings='[transport]\nframing = "mrc"\n')
    name = running.name
    eventually(lambda: ok(name, "h1") and ok(name, "h2"), "both are well", 30)
    transfer(running, "h1", "h2", H2, 1 << 20)
    leave_slots(name, "h2", LEFT)
    before = counters(name, "h1"), counters(name, "h2")
    for t1 in range(1, running.fabric.t1 + 1):
        running.fault(f"p0t1-{t1}", "delay=3ms")
    # Far fewer are ahead than the 128 that are always granted: what exceeds them is dropped.
    arrived = udp_sequence(running, "h1", "h2", H2, count=2000, ahead=40, within_s=60)
    after = counters(name, "h1"), counters(name, "h2")
    rose = [{key: b[key] - a[key] for key in b} for a, b in zip(before, after, strict=True)]
    lost = {side: {k: v for k, v in one.items() if v} for side, one in zip("12", rose, strict=True)}
    assert arrived == list(range(2000)), lost
    assert rose[1]["nack_tx_buffer"] > 0
    assert rose[1]["drop_buffer"] >= rose[1]["nack_tx_buffer"]
    assert rose[0]["nack_rx_short"] > 0
    assert rose[0]["rtx_nack"] > 0
    assert rose[1]["hole_skipped"] == 0
    assert rose[1]["penalty_tx"] > 0  # next to nothing is free
    assert rose[0]["penalty_rx"] > 0
    assert rose[0]["penalty_over"] == 0
    conns = mrcctl_json(name, "h1", "conn", "list")["connections"]
    assert {conn["granted"] for conn in conns} & {128}


def test_qp_that_gives_up_is_set_up_anew(make_lab: MakeLab) -> None:
    settings = "[transport]\nretry_limit = 2\nretry_s = 1\n"
    running: Lab = make_lab(daemons=True, planes=2, settings=settings)
    name = running.name
    eventually(lambda: ok(name, "h1") and ok(name, "h2"), "both are well", 30)
    transfer(running, "h1", "h2", H2, 1 << 20)
    for plane in range(2):
        for t1 in range(1, running.fabric.t1 + 1):
            running.fault(f"p{plane}t1-{t1}", "blackhole")

    def failed() -> list[Any]:
        """Ping into the void, and return the QPs that gave up."""
        running.pings("h1", H2, "-W", "1")
        conns = mrcctl_json(name, "h1", "conn", "list")["connections"]
        return [conn for conn in conns if conn["state"] == "ERROR"]

    (conn, *_) = eventually(failed, "a QP gives up", 60)
    assert "acknowledged" in conn["error"]
    now = status(name, "h1")
    assert now is not None
    assert any("gave up" in reason for reason in now.reasons)
    seen = counters(name, "h1")
    assert seen["qp_failed"] >= 1
    assert seen["given_up"] >= 1
    eventually(
        lambda: not running.pings("h1", H2, "-W", "1") and counters(name, "h1")["drop_qp_error"],
        "new packets are dropped for that reason",
        30,
    )
    assert '"qp.failed"' in state.places(name, "h1").log.read_text()
    for plane in range(2):
        for t1 in range(1, running.fabric.t1 + 1):
            running.fault(f"p{plane}t1-{t1}", "clear")
    eventually(lambda: ok(name, "h1") and ok(name, "h2"), "both are well again", 60)
    transfer(running, "h1", "h2", H2)
    conns = mrcctl_json(name, "h1", "conn", "list")["connections"]
    assert {conn["state"] for conn in conns} == {"RTS"}
