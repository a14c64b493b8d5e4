# SPDX-License-Identifier: GPL-2.0-only
"""What was sent again needlessly: the path it was withdrawn for is cleared."""

from __future__ import annotations

import pytest

from mrcd.abi import ABI
from mrcd.pathstate import State
from mrcd.wire import Data, decode_frame
from tests.bpf.packets import Far, ip4
from tests.bpf.rig import TC_REDIRECT, Rig

_BALANCE = ABI.structs["mrc_balance"]
FIRST = 1000
OUT = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")


def spray(rig: Rig) -> int:
    """One packet of ours; the EV it took."""
    ran = rig.spray(OUT)
    assert ran.verdict == TC_REDIRECT
    data = decode_frame(ran.frame)
    assert isinstance(data, Data)
    return data.envelope.ev


def state(rig: Rig, ev: int) -> State:
    return State(rig.path(ev)["state"])


def sent_again(rig: Rig) -> list[int]:
    """PSNs of what left in answer to a SACK."""
    frames = [decode_frame(frame) for _plane, frame in rig.sent()]
    return [packet.bth.psn for packet in frames if isinstance(packet, Data)]


@pytest.fixture
def lost(rig: Rig, far: Far) -> int:
    """The EV of a path that was withdrawn for packet FIRST; three more are on their way."""
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    ev = spray(rig)
    for _ in range(3):
        spray(rig)
    rig.arrive(far.sack(FIRST - 1, 0b10))
    assert sent_again(rig) == [FIRST]
    assert state(rig, ev) is State.ASSUMED_BAD
    return ev


def test_path_of_a_packet_that_arrives_twice_comes_back(rig: Rig, far: Far, lost: int) -> None:
    before, all_before = rig.path(lost)["loss_ppm"], rig.tx()["loss_ppm"]
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=True))
    assert state(rig, lost) is State.GOOD
    assert rig.path(lost)["loss_ppm"] < before
    assert rig.tx()["loss_ppm"] < all_before


def test_its_plane_did_not_lose_it(rig: Rig, far: Far, lost: int) -> None:
    assert plane_lost(rig)[lost >> 28] == 1
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=True))
    assert plane_lost(rig) == (0,) * 8


def plane_lost(rig: Rig) -> tuple[int, ...]:
    """What the balance of the peer says was lost on each plane."""
    raw = rig.dp.read_raw("balances", rig.table.indices["h2"], _BALANCE.size)
    return _BALANCE.unpack_array(raw, "lost")


def test_arrival_of_the_copy_alone_clears_nothing(rig: Rig, far: Far, lost: int) -> None:
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST))
    assert state(rig, lost) is State.ASSUMED_BAD


def test_path_that_kept_silent_since_stays_away(rig: Rig, far: Far, lost: int) -> None:
    """It delivered then; now it does not."""
    silent = rig.path(lost)
    index = silent["plane"] * rig.dp.sizes.evs + silent["slot"]
    rig.edit("paths", index, "mrc_path", misses=1)
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=True))
    assert state(rig, lost) is State.ASSUMED_BAD


def test_two_of_three_sendings_that_arrive_clear_no_path(rig: Rig, far: Far, lost: int) -> None:
    """Which two, nobody knows."""
    spray(rig)
    rig.arrive(far.sack(FIRST - 1, 0b11110))
    assert sent_again(rig) == [FIRST]
    spray(rig)
    rig.arrive(far.sack(FIRST + 4, trigger=FIRST, duplicate=True))
    assert state(rig, lost) is State.ASSUMED_BAD


def test_denied_path_stays_denied(rig: Rig, far: Far, lost: int) -> None:
    path = rig.path(lost)
    rig.table.deny(0, path["plane"], path["slot"], denied=True)
    rig.arrive(far.sack(FIRST + 1, trigger=FIRST, duplicate=True))
    assert state(rig, lost) is State.DENIED
