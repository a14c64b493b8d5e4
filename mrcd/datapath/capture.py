# SPDX-License-Identifier: GPL-2.0-only
"""Captures: for a while, recording programs replace the ordinary ones.

Recording programs are the ordinary ones compiled with CFG_CAPTURE (bpf/capture.c) and loaded over
the same maps. So any program can be replaced between two packets, in any order: first the targets
of tail calls and the programs that the clock runs, then link by link; the way back is the reverse.
Records go into a ring buffer whose descriptor the caller receives. No packet passes through this
process: a caller that is slow or stopped loses records and nothing else.

A daemon that is killed leaves recording programs in place. The next daemon replaces them, as it
replaces those of any other build (mrcd/datapath/adoption.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from mrcd.datapath import loader, pins
from mrcd.datapath.attachment import Attachment, Hook
from mrcd.datapath.datapath import Datapath, DatapathError
from mrcd.linux import bpf, bpfmap
from mrcd.linux.ringbuf import RingBuffer
from mrcd.model import Direction
from mrcd.service.log import get_logger
from mrcd.service.tasks import Tasks
from mrcd.wire.abi import CAPTURE

log = get_logger()

LINGER_S = 60.0
"""Recording programs stay loaded this long after a capture, to save the next one compiling them."""
HEADERS_BYTES = 192
"""At least this much of each packet is recorded: it shows which path the packet took, and why."""
ANY = CAPTURE.MRC_CAPTURE_NONE
_STATE = CAPTURE.structs["mrc_capturing"]
_FIRST = struct.pack("=I", 0)


class CannotCapture(Exception):
    """No capture can begin; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The packets to record, and how much of each. None stands for any."""

    snaplen: int = CAPTURE.MRC_CAPTURE_BYTES
    plane: int | None = None
    peer: str | None = None
    direction: Direction | None = None
    survey: bool = False  # survey probes, too

    def packed(self, index_of: Callable[[str], int]) -> bytes:
        """Return the entry that the programs read. `index_of` gives the index of a peer."""
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
    """Descriptors of a capture's maps. The reader maps them; the daemon closes them."""

    records: int
    state: int
    size: int  # of the ring buffer, bytes


class Capture:
    """The captures of one data path, one at a time.

    `run` makes the clock and the survey run other programs. `index_of` gives a peer's index.
    """

    def __init__(
        self,
        datapath: Datapath,
        attachment: Callable[[Datapath], Attachment],
        hooks: Sequence[Hook],
        run: Callable[[Mapping[str, int]], None],
        index_of: Callable[[str], int],
    ) -> None:
        self._ordinary = datapath
        self._attachment = attachment
        self._hooks = hooks
        self._run = run
        self._index_of = index_of
        self._changing = asyncio.Lock()
        self._recording: Datapath | None = None  # loaded, in place or not
        self._in_place = False
        self._busy = False
        self._over = asyncio.Event()  # set when this data path ends
        self._forgetting: asyncio.TimerHandle | None = None
        self._work = Tasks(_failed)

    @property
    def in_place(self) -> Datapath | None:
        """The data path whose programs are on the interfaces; None while they are replaced."""
        if self._changing.locked():
            return None
        return self._recording if self._in_place else self._ordinary

    async def watch(self, wanted: Wanted) -> AsyncGenerator[Rings, None]:
        """Capture until closed; yield once, when recording has begun. Raise CannotCapture."""
        if self._busy:
            raise CannotCapture("another capture runs: one at a time, end that one first")
        if self._over.is_set():
            raise CannotCapture("the data path is being taken down or made anew")
        self._busy = True
        try:
            # Shielded: a change of programs that has begun is completed, and then undone.
            yield await asyncio.shield(self._work.spawn(self._begin(wanted)))
            await self._over.wait()
            raise CannotCapture("the data path is being taken down or made anew")
        finally:
            self._busy = False
            self._work.spawn(self._end())

    async def close(self) -> None:
        """End a running capture. On return all ordinary programs are back in place."""
        self._over.set()
        await self._end()

    def forget(self) -> None:
        """Close the recording programs unless they are in place."""
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
                bpf.update(recording.maps["capturing"], _FIRST, bytes(_STATE.size))
                log.info("capture.ended")
            loop = asyncio.get_running_loop()
            self._forgetting = loop.call_later(LINGER_S, self.forget)

    async def _load(self) -> Datapath:
        """Compile and load the recording programs; they do not stay pinned."""
        ordinary = self._ordinary
        recording = Datapath(ordinary.folder, replace(ordinary.sizes, capture=True), ordinary.cache)
        code = pins.code(ordinary.folder, "capture")
        with contextlib.ExitStack() as undo:
            undo.callback(recording.close)
            await recording.build("capture", adopt=True)
            try:
                recording.open(code)
                for name in loader.CAPTURE_MAPS:
                    recording.maps[name] = bpf.get(code / name)
            finally:
                pins.remove(code)
            undo.pop_all()
        return recording

    def _ready(self, recording: Datapath, wanted: Wanted) -> Rings:
        """Discard an earlier capture's records, and tell the programs what to record."""
        records, state = (recording.maps[name] for name in ("captures", "capturing"))
        size = bpfmap.described(records).entries
        ring = RingBuffer(records, size)
        ring.skip()
        ring.close()
        bpf.update(state, _FIRST, wanted.packed(self._index_of))
        return Rings(records, state, size)


def _failed(error: BaseException) -> None:
    log.error("capture.failed", error=str(error))
