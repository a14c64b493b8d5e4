# SPDX-License-Identifier: GPL-2.0-only
"""Captures: programs that also record packets take the places of the ordinary ones for a while.

They are the same programs, compiled once more with CFG_CAPTURE (bpf/capture.c) and loaded over the
maps there are, so each can take the other's place between two packets, in whatever order: first the
tails that others end in and the clock's, then link by link; and back the other way round. What they
record goes into a ring buffer whose descriptor is handed to the caller. No packet visits this
process: a caller that is slow, or stopped, loses records and nothing else.

A daemon that is killed leaves them in place; the next one puts its ordinary ones there, as it does
with those of any other build (mrcd/adoption.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from mrcd import bpfsys, loader, pins
from mrcd.abi import CAPTURE
from mrcd.attachment import Attachment, Hook
from mrcd.datapath import Datapath, DatapathError
from mrcd.log import get_logger
from mrcd.model import Direction
from mrcd.ringbuf import RingBuffer
from mrcd.tasks import Tasks

log = get_logger()

LINGER_S = 60.0
"""Programs stay loaded for so long after a capture: the next one need not compile them."""
HEADERS_BYTES = 192
"""Of each packet so much is recorded at least: what says which path it took, and why."""
ANY = CAPTURE.MRC_CAPTURE_NONE
_STATE = CAPTURE.structs["mrc_capturing"]
_FIRST = struct.pack("=I", 0)


class CannotCapture(Exception):
    """No capture can begin; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which packets, and how much of each. None is any."""

    snaplen: int = CAPTURE.MRC_CAPTURE_BYTES
    plane: int | None = None
    peer: str | None = None
    direction: Direction | None = None
    survey: bool = False  # survey probes, too

    def packed(self, index_of: Callable[[str], int]) -> bytes:
        """As the programs read it. index_of: a peer's."""
        kinds = CAPTURE.MRC_CAPTURE_TX * (self.direction != "rx")
        kinds |= CAPTURE.MRC_CAPTURE_RX * (self.direction != "tx")
        return _STATE.pack(
            bytes=min(max(self.snaplen, HEADERS_BYTES), CAPTURE.MRC_CAPTURE_BYTES - 1),
            kinds=kinds | CAPTURE.MRC_CAPTURE_SURVEY * self.survey,
            only_planes=0xFF if self.plane is None else 1 << self.plane,
            only_peer=ANY if self.peer is None else index_of(self.peer),
        )


@dataclass(frozen=True, slots=True)
class Rings:
    """Descriptors of the maps of a capture, which the reader maps; they stay the daemon's."""

    records: int
    state: int
    size: int  # of the ring buffer, bytes


class Capture:
    """The captures of one data path, one at a time.

    run: makes the clock and the survey run other programs. index_of: a peer's.
    """

    def __init__(
        self,
        datapath: Datapath,
        attachment: Callable[[Datapath], Attachment],
        hooks: Sequence[Hook],
        run: Callable[[Mapping[str, int]], None],
        index_of: Callable[[str], int],
        *,
        xdp_frags: bool,
    ) -> None:
        self._ordinary = datapath
        self._attachment = attachment
        self._hooks = hooks
        self._run = run
        self._index_of = index_of
        self._frags = xdp_frags
        self._changing = asyncio.Lock()
        self._recording: Datapath | None = None  # loaded, whether in place or not
        self._in_place = False
        self._busy = False
        self._over = asyncio.Event()  # with this data path
        self._forgetting: asyncio.TimerHandle | None = None
        self._work = Tasks(_failed)

    async def watch(self, wanted: Wanted) -> AsyncGenerator[Rings, None]:
        """Capture until closed; yields once, when it has begun. CannotCapture when it cannot."""
        if self._busy:
            raise CannotCapture("another capture runs: one at a time, end that one first")
        if self._over.is_set():
            raise CannotCapture("the data path is being taken down or made anew")
        self._busy = True
        try:
            # Shielded: what has begun to change is changed to the end, and then back.
            yield await asyncio.shield(self._work.spawn(self._begin(wanted)))
            await self._over.wait()
            raise CannotCapture("the data path is being taken down or made anew")
        finally:
            self._busy = False
            self._work.spawn(self._end())

    async def close(self) -> None:
        """End what runs; ordinary programs are in their places when this returns."""
        self._over.set()
        await self._end()

    def forget(self) -> None:
        """Let go of the programs that record, which nobody may be about to run."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        if self._recording is not None and not self._in_place:
            self._recording.close()
            self._recording = None

    # ---- there and back

    async def _begin(self, wanted: Wanted) -> Rings:
        async with self._changing:
            if self._forgetting is not None:
                self._forgetting.cancel()
            try:
                if self._recording is None:
                    self._recording = await self._load()
                rings = self._ready(self._recording, wanted)
                self._in_place = True
                self._recording.point_tails()
                self._run(self._recording.programs)
                await self._attachment(self._recording).replace(self._hooks)
            except (OSError, DatapathError) as error:
                raise CannotCapture(f"the programs that record cannot be used: {error}") from error
            log.info("capture.began", **asdict(wanted))
            return rings

    async def _end(self) -> None:
        async with self._changing:
            recording = self._recording
            if recording is None:
                return
            if self._in_place:
                await self._attachment(self._ordinary).replace(self._hooks[::-1])
                self._run(self._ordinary.programs)
                self._ordinary.point_tails()
                self._in_place = False
                bpfsys.update(recording.maps["capturing"], _FIRST, bytes(_STATE.size))
                log.info("capture.ended")
            loop = asyncio.get_running_loop()
            self._forgetting = loop.call_later(LINGER_S, self.forget)

    async def _load(self) -> Datapath:
        """Compile and load the programs that record; nothing of them stays pinned."""
        ordinary = self._ordinary
        recording = Datapath(ordinary.folder, replace(ordinary.sizes, capture=True))
        code = pins.code(ordinary.folder, "capture")
        with contextlib.ExitStack() as undo:
            undo.callback(recording.close)
            for report in await recording.build("capture", adopt=True, xdp_frags=self._frags):
                log.info("datapath.compiled", **report)
            try:
                recording.open(code)
                for name in loader.CAPTURE_MAPS:
                    recording.maps[name] = bpfsys.get(code / name)
            finally:
                pins.remove(code)
            undo.pop_all()
        return recording

    def _ready(self, recording: Datapath, wanted: Wanted) -> Rings:
        """Forget what an earlier capture left, and say what is wanted."""
        records, state = (recording.maps[name] for name in loader.CAPTURE_MAPS)
        size = bpfsys.map_info(records)[3]
        ring = RingBuffer(records, size)
        ring.skip()
        ring.close()
        bpfsys.update(state, _FIRST, wanted.packed(self._index_of))
        return Rings(records, state, size)


def _failed(error: BaseException) -> None:
    log.error("capture.failed", error=str(error))
