# SPDX-License-Identifier: GPL-2.0-only
"""The window that SACKs grant: reorder rings have room for it, and senders keep to it."""

from __future__ import annotations

import pytest

from mrcd.handshake import LocalQp, RemoteQp
from mrcd.wire.packet import Sack, decode_frame
from rigs.packets import QPN, REMOTE_QPN, Far, numbered
from rigs.rig import CELL_SLOTS, MPR, RING_SLOTS, TC_REDIRECT, TC_SHOT, Ran, Rig
from tests.bpf.cells import MSS, CellRig, noise, tcp
from tests.bpf.test_sack import FIRST as FIRST_TX
from tests.bpf.test_sack import outgoing, spray

FIRST = 5000
UNIT = 128


def granted(ran: Ran) -> int:
    """Return the window that a SACK grants, in units of 128 PSNs."""
    sack = decode_frame(ran.frame)
    assert isinstance(sack, Sack)
    return sack.body.mpr


def wide(rig: Rig, mpr: int = 8 * UNIT) -> None:
    """Agree on a wider window than the rig's usual one."""
    rig.edit("qps", 0, "mrc_qp", mpr=mpr)


# ---- the receiver's side


@pytest.mark.parametrize(
    ("free", "waits", "expected"),
    [
        (0, 0, 1),  # never 0
        (127, 0, 1),
        (255, 0, 1),
        (256, 0, 2),
        (254, 2, 2),  # what waits has its slots
        (8 * UNIT, 0, 8),
        (100 * UNIT, 0, 8),  # never more than agreed
    ],
)
def test_sack_grants_what_there_is_room_for(
    rig: Rig, far: Far, free: int, waits: int, expected: int
) -> None:
    wide(rig)
    for number in range(waits):
        rig.arrive(far.data(FIRST + 2 + number, numbered(number)))
    rig.set_room(free, 0)
    ran = rig.arrive(far.data(FIRST, numbered(0), ackreq=True))
    assert granted(ran) == expected
    assert granted(rig.receive(far.probe(7))) == expected


def test_the_clocks_sack_grants_a_window_too(rig: Rig, far: Far) -> None:
    wide(rig)
    rig.set_room(3 * UNIT, 0)
    rig.arrive(far.data(FIRST, numbered(0)))
    rig.tick()
    sacks = [decode_frame(frame) for _plane, frame in rig.sent()]
    assert [sack.body.mpr for sack in sacks if isinstance(sack, Sack)] == [3]


@pytest.mark.parametrize(("free", "expected"), [(CELL_SLOTS, 8), (CELL_SLOTS // 2, 4), (0, 1)])
def test_slot_for_cells_counts_as_its_part_of_the_window(
    cells: CellRig, rig: Rig, free: int, expected: int
) -> None:
    wide(rig)
    rig.set_room(100 * UNIT, free)
    assert granted(cells.arrive(cells.far.cell(FIRST, numbered(0), ackreq=True))) == expected


def test_slots_are_counted_as_they_come_and_go(rig: Rig, far: Far) -> None:
    for number in (3, 2, 5):
        rig.arrive(far.data(FIRST + number, numbered(number)))
    rig.arrive(far.data(FIRST + 5, numbered(5)))  # a copy
    assert rig.room() == (RING_SLOTS - 3, CELL_SLOTS)
    rig.arrive(far.data(FIRST, numbered(0)))
    rig.arrive(far.data(FIRST + 1, numbered(1)))
    assert rig.room() == (RING_SLOTS - 1, CELL_SLOTS)
    rig.arrive(far.data(FIRST + 4, numbered(4)))
    assert rig.room() == (RING_SLOTS, CELL_SLOTS)
    assert rig.free_slots("rx_free") == RING_SLOTS


def test_slots_that_a_reset_gives_back_are_counted(cells: CellRig, rig: Rig) -> None:
    packet = tcp(noise(3 * MSS), inward=True)
    cells.take(FIRST + 1, packet, MSS, 0, 3)
    cells.arrive(cells.far.cell(FIRST + 9, numbered(9)))
    assert rig.room() == (RING_SLOTS - 1, CELL_SLOTS - 1)
    rig.table.reset((0,))
    assert rig.room() == (RING_SLOTS, CELL_SLOTS)
    assert cells.slots()[2:] == (RING_SLOTS, CELL_SLOTS)


def test_full_ring_takes_no_count_below_nothing(rig: Rig, far: Far) -> None:
    slots = rig.take_slots("rx_free")
    rig.set_room(0, 0)
    rig.arrive(far.data(FIRST + 2, numbered(2)))
    assert rig.room() == (0, 0)
    rig.give_slots("rx_free", slots)


# ---- the sender's side


def answered(rig: Rig, far: Far, cack: int, mpr: int, received: int) -> None:
    """Have a SACK arrive that grants `mpr` units."""
    rig.arrive(far.sack(cack, received=received, mpr=mpr))


def sends(rig: Rig, count: int) -> list[int]:
    return [rig.spray(outgoing(i)).verdict for i in range(count)]


def test_window_follows_what_is_granted(rig: Rig, far: Far) -> None:
    wide(rig)
    spray(rig, 1)
    answered(rig, far, FIRST_TX, 1, 1)
    assert rig.tx()["granted"] == UNIT
    assert sends(rig, UNIT + 2) == [TC_REDIRECT] * (UNIT + 2)
    assert (rig.counted()["tx_held"], rig.tx()["held"]) == (2, 2)  # what exceeds it waits
    answered(rig, far, FIRST_TX + 1, 1, 2)
    assert (rig.counted()["tx_packets"], rig.tx()["held"]) == (1, 1)
    answered(rig, far, FIRST_TX + 2, 2, 3)
    assert (rig.counted()["tx_packets"], rig.tx()["held"]) == (1, 0)
    assert rig.spray(outgoing(0)).verdict == TC_REDIRECT
    assert not any(name.startswith("drop_") for name in rig.counted())


def test_what_was_agreed_on_bounds_what_waits_for_a_grant(rig: Rig, far: Far) -> None:
    wide(rig)
    spray(rig, 1)
    answered(rig, far, FIRST_TX, 1, 1)
    rig.edit("txs", 0, "mrc_tx", next=FIRST_TX + 1 + 8 * UNIT, held=7 * UNIT)
    before = rig.tx()["next"]
    assert rig.spray(outgoing(0)).verdict == TC_SHOT
    assert (rig.counted()["drop_window"], rig.tx()["next"]) == (1, before)


def test_only_the_newest_sack_grants(rig: Rig, far: Far) -> None:
    wide(rig)
    spray(rig, 3)
    answered(rig, far, FIRST_TX + 1, 4, 20)
    answered(rig, far, FIRST_TX, 1, 10)
    assert rig.tx()["granted"] == 4 * UNIT


@pytest.mark.parametrize("mpr", [0, 2, 255])
def test_peer_grants_no_more_than_agreed_and_0_says_nothing(rig: Rig, far: Far, mpr: int) -> None:
    spray(rig, 1)
    answered(rig, far, FIRST_TX, mpr, 1)
    assert sends(rig, MPR // 2) == [TC_REDIRECT] * (MPR // 2)
    rig.edit("txs", 0, "mrc_tx", next=FIRST_TX + 1 + MPR)
    assert rig.spray(outgoing(0)).verdict == TC_SHOT


def test_narrow_window_never_stalls(rig: Rig, far: Far) -> None:
    """A sender with nothing on its way hears nothing, and may send all the same."""
    wide(rig)
    for number in range(5):
        (sent,) = spray(rig, 1)
        assert sent.psn == FIRST_TX + number
        answered(rig, far, sent.psn, 1, 1 + number)
    assert rig.tx()["una"] == rig.tx()["next"] == FIRST_TX + 5


def test_new_session_forgets_what_was_granted(rig: Rig, far: Far) -> None:
    spray(rig, 1)
    answered(rig, far, FIRST_TX, 1, 1)
    pair = (LocalQp(0, QPN, FIRST_TX), RemoteQp(REMOTE_QPN, FIRST))
    rig.table.configure("h2", (pair,), MPR)
    assert rig.tx()["granted"] == 0
