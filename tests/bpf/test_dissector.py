# SPDX-License-Identifier: GPL-2.0-only
"""Wireshark dissects the programs' packets without complaint and finds their ICRC words right."""

from __future__ import annotations

from pathlib import Path

from mrcd.wire.packet import WIRE
from tests.bpf.packets import Far, ip4, numbered, trimmed
from tests.bpf.rig import Rig
from tests.tshark import EXPERTS, tshark

FIRST_TX, FIRST_RX = 1000, 5000
OUT = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")


def test_packets_of_every_kind_are_dissected_without_complaint(
    each_rig: Rig, each_far: Far, tmp_path: Path
) -> None:
    rig, far = each_rig, each_far
    rig.tune(reo_min_ns=0, reo_max_ns=0, sack_packets=1)
    frames = [rig.spray(OUT).frame for _ in range(3)]
    rig.arrive(far.sack(FIRST_TX - 1, 0b10))  # the first one is lost
    rig.arrive(far.data(FIRST_RX, numbered(1)))
    rig.arrive(far.data(FIRST_RX + 2, numbered(3)))
    rig.tick()
    frames += [frame for _plane, frame in rig.sent()]
    frames.append(rig.receive(far.probe(0x1234)).frame)
    frames.append(rig.receive(trimmed(far.data(FIRST_RX + 5, numbered(6, 1000)))).frame)
    frames.append(rig.receive(far.endpoint_request(WIRE.MRC_ENDPOINT_EV_PROBE, 7)).frame)

    rows = tshark(frames, tmp_path)
    opcodes = [int(row["mrc.bth.opcode"], 0) for row in rows]
    assert opcodes[:3] == [WIRE.MRC_OP_WRITE_ONLY] * 3
    assert opcodes[-3:] == [WIRE.MRC_OP_SACK, WIRE.MRC_OP_NACK, WIRE.MRC_OP_ENDPOINT_RSP]
    assert WIRE.MRC_OP_SACK in opcodes[3:-3]
    again = [row for row in rows if row.get("mrc.bth.rtx") in ("1", "True")]
    assert [int(row["mrc.bth.psn"], 0) for row in again] == [FIRST_TX]
    expected = {"mrc.retransmission", "mrc.refused"}
    for row in rows:
        assert row["mrc.icrc.good"] in ("1", "True")
        assert {expert for expert in EXPERTS if expert in row} <= expected
        assert int(row["mrc.encap"], 0) == rig.config.fabric.routing.code
        assert int(row["mrc.ev.spare"], 0) == 0
