# SPDX-License-Identifier: GPL-2.0-only
"""Events from the programs to the daemon: one for each path that comes into or goes out of use.

SKIP causes no event. It comes and goes with every mark, so it is only counted.
"""

from __future__ import annotations

from mrcd.wire.abi import ABI
from rigs.packets import Far, ip4
from rigs.rig import Rig

OUT = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")
FIRST = 1000


def events(rig: Rig) -> list[dict[str, int]]:
    return [ABI.structs["mrc_event"].unpack(raw) for raw in rig.events.take()]


def deny(rig: Rig, denied: bool) -> None:
    rig.table.deny(0, 0, 0, denied=denied)


def test_event_says_which_path_moved_and_why(rig: Rig) -> None:
    rig.connect()
    deny(rig, True)
    deny(rig, False)
    ev = next(path.ev for path in rig.paths(0) if (path.plane, path.slot) == (0, 0))
    first, second = events(rig)
    moved = ("kind", "qp", "ev", "path", "from_state", "state", "cause")
    assert [first[name] for name in moved] == [
        ABI.MRC_EVENT_PATH, 0, ev, 0, ABI.MRC_PATH_GOOD, ABI.MRC_PATH_DENIED, ABI.MRC_ON_DENY,
    ]  # fmt: skip
    assert [second[name] for name in moved] == [
        ABI.MRC_EVENT_PATH, 0, ev, 0, ABI.MRC_PATH_DENIED, ABI.MRC_PATH_GOOD, ABI.MRC_ON_ALLOW,
    ]  # fmt: skip
    assert first["time_ns"] < second["time_ns"]
    assert first["sent_ns"] == 0


def test_event_of_a_loss_says_when_the_packet_was_sent(rig: Rig, far: Far) -> None:
    rig.connect()
    rig.tune(reo_min_ns=0, reo_max_ns=0)
    rig.spray(OUT)
    rig.spray(OUT)
    rig.arrive(far.sack(FIRST - 1, 0b10))
    (event,) = [e for e in events(rig) if e["kind"] == ABI.MRC_EVENT_PATH]
    assert (event["state"], event["cause"]) == (ABI.MRC_PATH_ASSUMED_BAD, ABI.MRC_ON_LOSS)
    assert 0 < event["sent_ns"] < event["time_ns"]


def test_events_that_find_no_room_are_counted(rig: Rig) -> None:
    rig.connect()
    rig.counted()
    moves = 0
    while not (lost := rig.counted().get("event_lost", 0)):
        deny(rig, moves % 2 == 0)
        moves += 1
        assert moves < 10_000
    assert (lost, len(events(rig))) == (1, moves - 1)
    deny(rig, moves % 2 == 0)  # there is room again
    assert rig.counted() == {}
    assert len(events(rig)) == 1
