# SPDX-License-Identifier: GPL-2.0-only
"""The receiver's penalty: a reorder ring that fills up makes windows smaller, for a time."""

from __future__ import annotations

import pytest

from mrcd.handshake import LocalQp, RemoteQp
from mrcd.wire.packet import Sack, decode_frame
from rigs.packets import QPN, REMOTE_QPN, Far, numbered, sent_at
from rigs.rig import CELL_SLOTS, MPR, RING_SLOTS, Rig
from tests.bpf.cells import CellRig
from tests.bpf.test_sack import FIRST, outgoing

FIRST_RX = 5000
LOW, AMPLE = RING_SLOTS // 4, RING_SLOTS // 2
SHORT = len(outgoing(0))
NO_PENALTY = (0, False)
TARGET_NS = 1_000_000
WIDE = 60_000


def asked(frame: bytes) -> tuple[int, bool]:
    """Return what a SACK asks of the sender's window: the penalty, and whether it may return."""
    sack = decode_frame(frame)
    assert isinstance(sack, Sack)
    return sack.cc_state.penalty, sack.cc_state.restore_cwnd


# ---- the receiver's side


class Receiver:
    """The receiving side of QP 0, where a packet is missing and `waits` packets wait behind it."""

    def __init__(self, rig: Rig, far: Far, waits: int = 2) -> None:
        self.rig, self.far = rig, far
        for number in range(waits):
            rig.arrive(far.data(FIRST_RX + 2 + number, numbered(number)))

    def asks(self, free: int) -> tuple[int, bool]:
        """Say that so many slots are free, and return what the SACK for a copy asks for."""
        self.rig.set_room(free, CELL_SLOTS)
        return asked(self.rig.arrive(self.far.data(FIRST_RX + 2, numbered(0))).frame)


@pytest.fixture
def receiver(rig: Rig, far: Far) -> Receiver:
    return Receiver(rig, far)


@pytest.mark.parametrize(
    ("free", "penalty"),
    [(RING_SLOTS, 0), (LOW, 0), (LOW - 1, 2), (LOW // 2, 32), (10, 51), (1, 62), (0, 64)],
)
def test_penalty_grows_as_the_ring_fills_up(receiver: Receiver, free: int, penalty: int) -> None:
    assert receiver.asks(free) == (penalty, False)
    assert receiver.rig.counted().get("penalty_tx", 0) == bool(penalty)


def test_penalty_is_over_when_half_of_the_ring_is_free(receiver: Receiver) -> None:
    assert receiver.asks(RING_SLOTS) == NO_PENALTY  # there was no penalty that could end
    assert receiver.asks(0) == (64, False)
    assert receiver.asks(LOW) == NO_PENALTY
    assert receiver.asks(AMPLE - 1) == NO_PENALTY
    assert [receiver.asks(free) for free in (AMPLE, RING_SLOTS)] == [(0, True)] * 2
    assert receiver.asks(LOW // 2) == (32, False)


def test_qp_in_order_has_no_penalty(rig: Rig, far: Far) -> None:
    """It takes no slots, whoever fills the ring."""
    rig.set_room(0, 0)
    frame = far.data(FIRST_RX, numbered(0), ackreq=True)
    assert asked(rig.arrive(frame).frame) == NO_PENALTY
    assert "penalty_tx" not in rig.counted()


def test_qp_whose_whole_window_finds_room_has_no_penalty(rig: Rig, far: Far) -> None:
    """A loss on a long path makes much wait, which nobody else has to make room for."""
    waits = 100
    receiver = Receiver(rig, far, waits)
    assert receiver.asks(MPR - waits) == NO_PENALTY
    assert receiver.asks(MPR - waits - 1)[0] > 0


def test_other_qp_has_its_own_end_of_the_penalty(rig: Rig, far: Far) -> None:
    receiver = Receiver(rig, far)
    assert receiver.asks(0) == (64, False)
    rig.connect(index=1, qpn=QPN, remote_qpn=REMOTE_QPN)
    frame = far.data(FIRST_RX, numbered(0), ackreq=True, qpn=QPN | 1)
    rig.set_room(RING_SLOTS, CELL_SLOTS)
    assert asked(rig.arrive(frame).frame) == NO_PENALTY


def test_the_clocks_sack_and_answers_to_probes_ask_too(receiver: Receiver) -> None:
    rig, far = receiver.rig, receiver.far
    rig.set_room(0, CELL_SLOTS)
    rig.tick()
    sacks = [decode_frame(frame) for _plane, frame in rig.sent()]
    assert [sack.cc_state.penalty for sack in sacks if isinstance(sack, Sack)] == [64]
    assert asked(rig.receive(far.probe(7)).frame) == (64, False)


@pytest.mark.parametrize(
    ("packets", "slots", "expected"),
    [
        (RING_SLOTS, CELL_SLOTS, 0),
        (RING_SLOTS, 4, 0),
        (RING_SLOTS, 3, 16),
        (RING_SLOTS, 0, 64),
        (0, CELL_SLOTS, 64),
        (LOW // 2, 3, 32),  # the larger one
    ],
)
def test_either_ring_of_cells_counts(
    cells: CellRig, rig: Rig, packets: int, slots: int, expected: int
) -> None:
    for number in (2, 3):
        cells.arrive(cells.far.cell(FIRST_RX + number, numbered(number)))
    rig.set_room(packets, slots)
    sack = cells.arrive(cells.far.cell(FIRST_RX + 2, numbered(2))).frame
    assert asked(sack) == (expected, False)


def test_both_rings_of_cells_have_to_be_free(cells: CellRig, rig: Rig) -> None:
    for number in (2, 3):
        cells.arrive(cells.far.cell(FIRST_RX + number, numbered(number)))
    found = []
    for packets, slots in ((0, 0), (RING_SLOTS, 7), (AMPLE - 1, 8), (AMPLE, 8)):
        rig.set_room(packets, slots)
        found.append(asked(cells.arrive(cells.far.cell(FIRST_RX + 2, numbered(2))).frame))
    assert found == [(64, False), NO_PENALTY, NO_PENALTY, (0, True)]


def test_ring_of_cells_is_nothing_to_other_framings(receiver: Receiver) -> None:
    receiver.rig.set_room(RING_SLOTS, 0)
    frame = receiver.far.data(FIRST_RX + 2, numbered(0))
    assert asked(receiver.rig.arrive(frame).frame) == NO_PENALTY


def test_new_session_has_no_penalty_to_end(receiver: Receiver) -> None:
    rig, far = receiver.rig, receiver.far
    assert receiver.asks(0) == (64, False)
    rig.set_room(RING_SLOTS, CELL_SLOTS)
    rig.table.configure("h2", ((LocalQp(0, QPN, FIRST), RemoteQp(REMOTE_QPN, FIRST_RX)),), MPR)
    frame = far.data(FIRST_RX, numbered(0), ackreq=True)
    assert asked(rig.arrive(frame).frame) == NO_PENALTY


# ---- the sender's side


class Sender:
    """The sending side of QP 0 under control, with packets on their way that SACKs tell of."""

    def __init__(self, rig: Rig, far: Far, cwnd: int = WIDE, inflight: int = 2 * WIDE) -> None:
        self.rig, self.far = rig, far
        self.least = 2 * rig.config.mtu
        rig.tune(cc_target_ns=TARGET_NS, cc_rate=25_000)
        self.sent = [rig.spray(outgoing(number)).frame for number in range(40)]
        self.next = FIRST
        self.set(cwnd, inflight)
        rig.counted()

    def set(self, cwnd: int, inflight: int) -> None:
        self.rig.edit("txs", 0, "mrc_tx", cwnd=cwnd, inflight=inflight)

    def hears(
        self, packets: int, penalty: int = 0, *, restore: bool = False, timed: bool = False
    ) -> int:
        """Have a SACK tell of so many more packets; return the window. Only if `timed` it grows."""
        self.next += packets
        stamp = sent_at(self.sent[self.next - 1 - FIRST]) if timed else 0
        self.rig.arrive(
            self.far.sack(
                self.next - 1, trigger=self.next - 1, delayed=not timed, ts=stamp,
                penalty=penalty, restore=restore, received=self.next - FIRST,
            )
        )  # fmt: skip
        return self.cwnd

    @property
    def cwnd(self) -> int:
        return self.rig.tx()["cwnd"]


@pytest.fixture
def sender(rig: Rig, far: Far) -> Sender:
    return Sender(rig, far)


@pytest.mark.parametrize("packets", [1, 10])
@pytest.mark.parametrize("penalty", [1, 64, 127])
def test_window_shrinks_by_the_penaltys_part_of_what_arrived(
    sender: Sender, packets: int, penalty: int
) -> None:
    took = packets * SHORT * penalty // 128
    assert sender.hears(packets, penalty) == WIDE - took
    assert sender.rig.counted()["penalty_rx"] == 1


def test_sacks_without_penalty_take_nothing(sender: Sender) -> None:
    assert sender.hears(10) == WIDE
    assert not {"penalty_rx", "penalty_over"} & sender.rig.counted().keys()


def test_window_shrinks_from_what_is_in_flight(sender: Sender) -> None:
    """As it was before the SACK: what it acknowledges filled the window until then."""
    sender.set(WIDE, 20_000)
    assert sender.hears(10, 64) == 20_000 - 10 * SHORT // 2
    assert sender.rig.tx()["inflight"] == 20_000 - 10 * SHORT


@pytest.mark.parametrize("inflight", [0, 2 * WIDE])
def test_smallest_window_stays(sender: Sender, inflight: int) -> None:
    sender.set(sender.least + 10, inflight)
    assert sender.hears(10, 127) == sender.least
    assert sender.hears(10, 127) == sender.least


def test_penalty_for_nothing_takes_nothing(sender: Sender) -> None:
    assert sender.hears(2, 64) == WIDE - SHORT
    assert sender.hears(0, 127) == WIDE - SHORT
    assert sender.rig.counted()["penalty_rx"] == 1


def test_window_returns_once(sender: Sender) -> None:
    assert sender.hears(2, 64) == WIDE - SHORT
    assert sender.hears(2, 64) == WIDE - 2 * SHORT
    assert sender.hears(2) == WIDE - 2 * SHORT  # neither penalty nor end
    assert sender.hears(2, restore=True) == WIDE
    sender.set(WIDE // 2, WIDE)
    assert sender.hears(2, restore=True) == WIDE // 2
    assert sender.rig.counted()["penalty_over"] == 1


def test_penalty_forbids_the_return(sender: Sender) -> None:
    assert sender.hears(2, 64) == WIDE - SHORT
    assert sender.hears(2, 64, restore=True) == WIDE - 2 * SHORT
    assert sender.hears(0, 64, restore=True) == WIDE - 2 * SHORT


def test_nothing_returns_that_no_penalty_took(sender: Sender) -> None:
    assert sender.hears(2, restore=True) == WIDE
    assert "penalty_over" not in sender.rig.counted()


def test_window_that_grew_meanwhile_stays(sender: Sender) -> None:
    sender.hears(2, 64)
    sender.set(2 * WIDE, 2 * WIDE)
    assert sender.hears(2, restore=True) == 2 * WIDE


def test_window_that_congestion_shrank_does_not_return(sender: Sender) -> None:
    left = sender.hears(2, 64)
    sender.set(left // 2, WIDE)
    assert sender.hears(2, restore=True) == left // 2
    assert "penalty_over" not in sender.rig.counted()


def test_penalty_after_congestion_gives_back_only_its_own(sender: Sender) -> None:
    left = sender.hears(2, 64)
    sender.set(left // 2, WIDE)
    assert sender.hears(2, 64) == left // 2 - SHORT
    assert sender.hears(2, restore=True) == left // 2


@pytest.mark.parametrize("penalty", [0, 1])
def test_window_does_not_grow_by_a_sack_with_a_penalty(sender: Sender, penalty: int) -> None:
    """A round trip without delay adds an eighth of what arrived, which is more than 1 / 128."""
    sender.hears(1, timed=True)  # the first round trip is the base
    before = sender.cwnd
    sender.rig.edit("balances", 0, "mrc_balance", base_ns=(1 << 30,) * 4)
    after = sender.hears(10, penalty, timed=True)
    assert after - before == (-(10 * SHORT // 128) if penalty else 10 * SHORT // 8)


def test_what_returns_is_bounded(sender: Sender) -> None:
    sender.hears(2, 64)
    sender.rig.edit("txs", 0, "mrc_tx", saved=1 << 31)
    assert sender.hears(2, restore=True, timed=True) < 1 << 20


def test_without_control_there_is_no_penalty(sender: Sender) -> None:
    sender.rig.tune(cc_target_ns=0)
    assert sender.hears(10, 127) == WIDE
    assert sender.hears(10, restore=True) == WIDE
    assert not {"penalty_rx", "penalty_over"} & sender.rig.counted().keys()


def test_only_the_newest_sack_has_a_say(sender: Sender) -> None:
    rig, far = sender.rig, sender.far
    sender.hears(10)
    rig.arrive(far.sack(FIRST + 4, bitmap=0b11 << 9, delayed=True, received=1, penalty=127))
    assert sender.cwnd == WIDE
    assert sender.hears(2, 64) == WIDE - SHORT
    rig.arrive(far.sack(FIRST + 4, delayed=True, received=1, restore=True))
    assert sender.cwnd == WIDE - SHORT


def test_new_session_has_nothing_to_return(sender: Sender) -> None:
    sender.hears(10, 64)
    pair = (LocalQp(0, QPN, FIRST), RemoteQp(REMOTE_QPN, FIRST_RX))
    sender.rig.table.configure("h2", (pair,), MPR)
    assert (sender.rig.tx()["saved"], sender.rig.tx()["left"]) == (0, 0)


def test_cells_have_a_penalty_too(cells: CellRig, rig: Rig) -> None:
    sender = Sender(rig, cells.far)
    assert sender.hears(10, 64) == WIDE - 5 * SHORT
