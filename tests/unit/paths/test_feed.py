# SPDX-License-Identifier: GPL-2.0-only
"""Test path events on their way from the ring buffer to watchers."""

from __future__ import annotations

import asyncio

from mrcd.model import PathEvent
from mrcd.paths.feed import WAITING_MAX, PathFeed
from mrcd.wire.abi import ABI


def event(**values: int) -> dict[str, int]:
    """Return an event as in the ring buffer: a path of h3's second QP was lost."""
    raw = ABI.structs["mrc_event"].pack(
        **{
            "kind": ABI.MRC_EVENT_PATH,
            "qp": 5,
            "ev": 0x2003_0000,
            "path": 2 << 8 | 7,
            "from_state": ABI.MRC_PATH_GOOD,
            "state": ABI.MRC_PATH_ASSUMED_BAD,
            "cause": ABI.MRC_ON_LOSS,
            "rtt_ns": 80_000,
            "sent_ns": 1_000,
            "time_ns": 91_000,
            **values,
        }
    )
    return ABI.structs["mrc_event"].unpack(raw)


def test_watch__tells_what_happened() -> None:
    async def main() -> PathEvent | None:
        feed = PathFeed(lambda qp: ("h2", "h3")[qp // 4], 4)
        feed.publish(event())  # without a watcher
        watch = feed.watch()
        assert await anext(watch) is None
        feed.publish(event())
        told = await anext(watch)
        await watch.aclose()
        return told

    assert asyncio.run(main()) == PathEvent(
        time_ns=91_000,
        peer="h3",
        qp=1,
        ev=0x2003_0000,
        plane=2,
        t1=3,
        from_state="GOOD",
        to_state="ASSUMED_BAD",
        cause="loss",
        sent_ns=1_000,
        rtt_ns=80_000,
        missed=0,
    )


def test_watch__what_is_not_known_is_none() -> None:
    async def main() -> PathEvent | None:
        feed = PathFeed(lambda qp: ("h2", "h3")[qp // 4], 4)
        watch = feed.watch()
        await anext(watch)
        feed.publish(event(sent_ns=0, rtt_ns=0, cause=ABI.MRC_ON_DENY, state=ABI.MRC_PATH_DENIED))
        told = await anext(watch)
        await watch.aclose()
        return told

    told = asyncio.run(main())
    assert told is not None
    assert (told.sent_ns, told.rtt_ns, told.cause, told.to_state) == (None, None, "deny", "DENIED")


def test_watch__one_that_does_not_read_learns_how_much_it_missed() -> None:
    async def main() -> list[PathEvent | None]:
        feed = PathFeed(lambda qp: "h2", 8)
        slow, quick = feed.watch(), feed.watch()
        await anext(slow)
        await anext(quick)
        for number in range(WAITING_MAX + 3):
            feed.publish(event(time_ns=number))
            assert await anext(quick) is not None
        waiting = [await anext(slow) for _ in range(WAITING_MAX)]
        feed.publish(event(time_ns=99_999))
        waiting.append(await anext(slow))
        await slow.aclose()
        await quick.aclose()
        return waiting

    waiting = asyncio.run(main())
    assert [told.time_ns for told in waiting[:-1] if told] == list(range(WAITING_MAX))
    assert waiting[-1] is not None
    assert (waiting[-1].time_ns, waiting[-1].missed) == (99_999, 3)


def test_watch__who_leaves_is_forgotten() -> None:
    async def main() -> int:
        feed = PathFeed(lambda qp: "h2", 8)
        watch = feed.watch()
        await anext(watch)
        await watch.aclose()
        feed.publish(event())
        return len(feed._watchers)

    assert asyncio.run(main()) == 0
