# SPDX-License-Identifier: GPL-2.0-only
"""Paths that lose data while probes are answered, and trials, probes that look like data."""

from __future__ import annotations

import time

import pytest

from mrcd.datapath.control import CommandRefused, Commands
from mrcd.paths.states import State
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE, Data, Peth, Sack, decode_frame
from rigs.packets import Far, ip4
from rigs.rig import PLANES, Rig, clock_passes
from tests.bpf.cells import CellRig
from tests.bpf.test_expiry import overdue, stub_frame, stub_of
from tests.bpf.test_paths import FIRST, OUT, answer_probe, lose_first, spray, state

DEAF_AFTER = ABI.MRC_DEAF_AFTER
LONG = 1000


def trials(rig: Rig) -> list[Data]:
    """Return the trials in MRC's framing that left since the last call."""
    frames = [decode_frame(frame) for _plane, frame in rig.sent()]
    return [packet for packet in frames if isinstance(packet, Data) and packet.body.stub]


@pytest.fixture
def deaf(rig: Rig) -> int:
    """Return the EV of a path that lost packets of LONG bytes in a row, and is away."""
    ev = spray(rig).envelope.ev
    rig.edit_path(ev, gone=DEAF_AFTER, gone_len=LONG)
    rig.withdraw(ev)
    rig.counted()
    return ev


def answer(rig: Rig, far: Far, trial: Data, ev: int) -> None:
    """Answer a trial by the path `ev`."""
    sack = far.sack(FIRST - 1, trigger=trial.bth.psn, duplicate=True, ev=ev)
    rig.arrive(sack, f"plane{ev >> WIRE.MRC_EV_PLANE_SHIFT}")


def next_trial(rig: Rig) -> Data:
    """Let the clock send the trial that follows an answered probe."""
    rig.tune(probe_interval_ns=1)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        rig.tick()
        if found := trials(rig):
            return found[0]
    raise AssertionError("no trial")


# ---- which paths lose data


def test_several_losses_in_a_row_are_reported_once(rig: Rig, far: Far) -> None:
    ev = spray(rig).envelope.ev
    rig.edit_path(ev, gone=DEAF_AFTER - 1, gone_len=LONG)
    spray(rig)
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    rig.arrive(far.sack(FIRST - 1, 0b10))
    assert rig.counted()["path_deaf"] == 1
    assert rig.path(ev)["gone"] == DEAF_AFTER
    assert rig.path(ev)["gone_len"] == len(OUT)


@pytest.mark.parametrize(("shortest", "left"), [(20, 0), (LONG, 5)])
def test_only_arrivals_as_long_as_what_was_lost_end_the_row(
    rig: Rig, far: Far, shortest: int, left: int
) -> None:
    ev = spray(rig).envelope.ev
    rig.edit_path(ev, gone=5, gone_len=shortest)
    rig.arrive(far.sack(FIRST))
    assert rig.path(ev)["gone"] == left


def test_answered_probe_brings_back_a_path_that_lost_a_few(rig: Rig, far: Far) -> None:
    lost = lose_first(rig, far)
    assert rig.path(lost)["gone"] == 1
    answer_probe(rig, far, lost)
    assert state(rig, lost) is State.GOOD


# ---- how it comes back


def test_answered_probe_does_not_bring_back_a_path_that_loses_data(
    rig: Rig, far: Far, deaf: int
) -> None:
    answer_probe(rig, far, deaf)
    assert state(rig, deaf) is State.ASSUMED_BAD


def test_answered_trial_brings_it_back(rig: Rig, far: Far, deaf: int) -> None:
    answer_probe(rig, far, deaf)
    trial = next_trial(rig)
    assert (trial.envelope.ev, len(trial.payload)) == (deaf, LONG)
    assert trial.bth.psn < FIRST
    assert rig.counted()["trial_tx"] == 1
    answer(rig, far, trial, deaf)
    assert state(rig, deaf) is State.GOOD
    assert (rig.path(deaf)["gone"], rig.path(deaf)["fits"]) == (0, LONG)
    counted = rig.counted()
    assert counted["trial_reply"] == 1
    assert "rtx_needless" not in counted


def test_answer_by_another_path_brings_nothing_back(rig: Rig, far: Far, deaf: int) -> None:
    answer_probe(rig, far, deaf)
    trial = next_trial(rig)
    other = next(path.ev for path in rig.paths(0) if path.ev != deaf)
    answer(rig, far, trial, other)
    assert state(rig, deaf) is State.ASSUMED_BAD


def test_trial_without_answer_is_missed(rig: Rig, far: Far, deaf: int) -> None:
    answer_probe(rig, far, deaf)
    next_trial(rig)
    clock_passes(200_000_000)
    rig.tick(8)
    assert rig.path(deaf)["misses"] == 1
    assert state(rig, deaf) is State.ASSUMED_BAD


# ---- trials that the daemon asks for


def place(rig: Rig, ev: int) -> tuple[int, int]:
    path = rig.path(ev)
    return path["plane"], path["slot"]


@pytest.mark.parametrize("length", [64, LONG])
def test_daemon_learns_what_fits(rig: Rig, far: Far, length: int) -> None:
    ev = spray(rig).envelope.ev
    plane, slot = place(rig, ev)
    Commands(rig.dp).try_path(0, plane, slot, length, ABI.MRC_FRAMING_MRC)
    (trial,) = trials(rig)
    assert (trial.envelope.ev, len(trial.payload)) == (ev, length)
    assert rig.path(ev)["fits"] == 0
    answer(rig, far, trial, ev)
    assert rig.path(ev)["fits"] == length


def test_trial_that_is_too_long_does_no_harm_to_its_path(rig: Rig, far: Far) -> None:
    ev = spray(rig).envelope.ev
    rig.arrive(far.sack(FIRST))
    Commands(rig.dp).try_path(0, *place(rig, ev), LONG, ABI.MRC_FRAMING_MRC)
    clock_passes(200_000_000)
    rig.tune(probe_interval_ns=1, probe_idle_ns=2)
    rig.tick(8)
    assert state(rig, ev) is State.GOOD


def test_daemon_asks_whether_a_probe_gets_through(rig: Rig, far: Far) -> None:
    ev = spray(rig).envelope.ev
    qp_path = place(rig, ev)
    Commands(rig.dp).probe(0, *qp_path)
    ((plane, frame),) = rig.sent()
    probe = decode_frame(frame)
    assert isinstance(probe.body, Peth)
    assert probe.envelope.ev == ev
    assert rig.path(ev)["answered_ns"] == 0
    rig.receive(far.probe_reply(probe.body.probe_id, ev), f"plane{plane}")
    assert rig.path(ev)["answered_ns"] > 0
    with pytest.raises(CommandRefused, match="no path 63 of plane 0"):
        Commands(rig.dp).probe(0, 0, 63)


def test_no_trial_of_what_is_not_there(rig: Rig) -> None:
    commands = Commands(rig.dp)
    with pytest.raises(CommandRefused, match="no path 0 of plane 7, QP 0"):
        commands.try_path(0, 7, 0, LONG, ABI.MRC_FRAMING_MRC)
    rig.set_state(ABI.MRC_QP_RECEIVE)
    with pytest.raises(CommandRefused):
        commands.try_path(0, 0, 0, LONG, ABI.MRC_FRAMING_MRC)


def test_peer_answers_a_trial_as_a_copy(rig: Rig, far: Far) -> None:
    trial = stub_frame(far, 4990, ip4(b"x"), ackreq=True)
    sack = decode_frame(rig.arrive(trial).frame)
    assert isinstance(sack, Sack)
    assert sack.body.cc_flags & WIRE.MRC_CC_FLAG_DUPLICATE
    assert sack.body.ack_psn_offset == 4990 - 4999
    assert rig.counted() == {"trial_rx": 1, "sack_tx": 1}
    assert rig.delivered() == []


def test_cell__peer_answers_a_trial_as_a_copy(cells: CellRig, rig: Rig) -> None:
    stub = cells.far.cell(4990, stub_of(ip4(b"x")), mss=WIRE.MRC_CELL_STUB, first=0, ackreq=True)
    cells.arrive(stub)
    counted = rig.counted()
    assert (counted["trial_rx"], counted["sack_tx"]) == (1, 1)
    assert cells.delivered() == []


@pytest.mark.parametrize(("psn", "counter"), [(4990, "trial_rx"), (5000, "drop_framing")])
def test_cell__trial_is_answered_where_data_comes_in_packets(
    cells: CellRig, rig: Rig, psn: int, counter: str
) -> None:
    """So the sender learns that cells get through again; none is taken in the other framing."""
    rig.edit("qps", 0, "mrc_qp", framing=ABI.MRC_FRAMING_MRC)
    cells.arrive(cells.far.cell(psn, stub_of(ip4(b"x")), mss=WIRE.MRC_CELL_STUB, first=0))
    assert rig.counted()[counter] == 1


# ---- packets that are too long for a plane


def test_what_is_too_long_for_every_plane_ends_as_a_stub(rig: Rig) -> None:
    commands = Commands(rig.dp)
    for plane in range(PLANES):
        commands.set_most(0, plane, len(OUT) - 1)
    rig.tune(rto_min_ns=1)
    spray(rig)
    rig.sent()
    overdue(rig)
    (stub,) = trials(rig)
    assert stub.payload == stub_of(OUT)
    assert rig.counted()["drop_too_long"] == 1


def test_what_is_too_long_for_one_plane_goes_by_another(rig: Rig) -> None:
    commands = Commands(rig.dp)
    for plane in range(PLANES - 1):
        commands.set_most(0, plane, len(OUT) - 1)
    rig.tune(rto_min_ns=1)
    for _ in range(4):
        spray(rig)
    rig.sent()
    overdue(rig)
    again = [decode_frame(frame) for plane, frame in rig.sent() if plane == PLANES - 1]
    assert [packet.payload for packet in again if isinstance(packet, Data)] == [OUT] * 4
    assert "drop_too_long" not in rig.counted()


def test_any_length_again(rig: Rig) -> None:
    commands = Commands(rig.dp)
    commands.set_most(0, 0, 10)
    balance = ABI.structs["mrc_balance"]
    raw = rig.dp.read("balances", 0, balance)
    assert (raw["most_all"], raw["narrow"]) == (10, 1)
    commands.set_most(0, 0, 0)
    raw = rig.dp.read("balances", 0, balance)
    assert (raw["most_all"], raw["narrow"]) == (0, 0)
