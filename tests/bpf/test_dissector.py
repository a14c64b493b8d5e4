# SPDX-License-Identifier: GPL-2.0-only
"""Wireshark dissects the programs' packets without complaint and finds their ICRC words right."""

from __future__ import annotations

from pathlib import Path

from mrcd.wire.packet import WIRE, Control, Neth, decode_frame
from rigs import oracle
from rigs.packets import EV, Far, ip4, numbered, trimmed
from rigs.rig import MPR, Rig
from tests.bpf.cells import CellRig
from tests.bpf.test_refuse import NOWHERE, write
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


def read_alike(answers: dict[tuple[int, int], bytes], folder: Path) -> None:
    """Check that codec, oracle and dissector find reason and PSN, the key of each NACK, in it."""
    rows = tshark(list(answers.values()), folder)
    for ((reason, psn), frame), row in zip(answers.items(), rows, strict=True):
        nack = decode_frame(frame)
        assert isinstance(nack, Control)
        assert isinstance(nack.body, Neth)
        assert (nack.body.reason, nack.body.psn, nack.body.entropy) == (reason, psn, EV)
        read = oracle.dissect_frame(frame)[oracle.Neth]
        assert (read.nack_reason, read.nack_psn, read.entropy) == (reason, psn, EV)
        assert (read.type, read.nxt, read.reserved, read.cc_type) == (0, 0, 0, 2)
        assert read.tx_timestamp == nack.body.tx_timestamp
        assert int(row["mrc.neth.reason"], 0) == reason
        assert int(row["mrc.neth.psn"], 0) == psn
        assert int(row["mrc.neth.entropy"], 0) == EV
        assert int(row["mrc.neth.cc_type"], 0) == 2
        assert int(row["mrc.neth.time"], 0) == nack.body.tx_timestamp


def test_each_reason_of_a_nack_is_read_alike(rig: Rig, far: Far, tmp_path: Path) -> None:
    answers = {
        (reason, FIRST_RX + 5): rig.receive(
            trimmed(far.data(FIRST_RX + 5, numbered(6, 1000), sent=7), dscp=dscp)
        ).frame
        for reason, dscp in (
            (WIRE.MRC_NACK_TRIMMED, WIRE.MRC_DSCP_TRIMMED),
            (WIRE.MRC_NACK_TRIMMED_LASTHOP, WIRE.MRC_DSCP_LASTHOP),
        )
    }
    outside, held = FIRST_RX + MPR, FIRST_RX + 2
    answers[WIRE.MRC_NACK_PSN_OOR_WINDOW, outside] = rig.arrive(
        far.data(outside, numbered(2), sent=7)
    ).frame
    answers[WIRE.MRC_NACK_UNEXP_EVENT, FIRST_RX] = rig.receive(write(far, 0xC6)).frame
    rig.take_slots("rx_free")
    answers[WIRE.MRC_NACK_NO_PKT_BUFFER, held] = rig.arrive(
        far.data(held, numbered(2), sent=7)
    ).frame
    read_alike(answers, tmp_path)


def test_nack_of_a_cell_is_read_alike(cells: CellRig, rig: Rig, tmp_path: Path) -> None:
    rig.tune(lower_ifindex=NOWHERE)
    refused = cells.arrive(cells.far.cell(FIRST_RX, numbered(2), attempt=3)).frame
    read_alike({(WIRE.MRC_NACK_NO_RESOURCE, FIRST_RX): refused}, tmp_path)
