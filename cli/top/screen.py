# SPDX-License-Identifier: GPL-2.0-only
"""The screen of ``mrcctl top``: read samples and draw a frame for each."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cli.console.client import Client
from cli.state.shownpaths import shown_paths
from cli.top import view
from cli.top.frame import HISTORY, Frame, Reading, frame
from cli.top.view import View
from mrcd.model import MonitorSample, PathInfo

PEERS_READ = 128
"""The number of peers to request; it is larger than a screen can show."""

LATE_S = 5
"""A sample may be this much later than its interval before the daemon is asked why."""


class Screen:
    """A terminal, or another output, on which frames are drawn.

    `asking` is a connection for paths, besides the one of the samples.
    """

    def __init__(self, console: Console, asking: Client) -> None:
        self._console = console
        self._asking = asking
        self._live = Live(
            Text("the first frame needs two samples ..."),
            console=console,
            screen=console.is_terminal,
            auto_refresh=False,
        )
        self._history: dict[int, deque[float]] = {}
        self._before: Reading | None = None
        self._now: Reading | None = None
        self._frame = Frame(Text(""), 0, 0)
        self._view = View()

    def run(self, watching: Client, interval_s: float, count: int | None, keys: int | None) -> None:
        """Draw frames until the daemon or the user ends it, or `count` frames have been drawn.

        `watching` carries the stream of samples; keys are read from the file descriptor `keys`.
        """
        terminal = self._console.is_terminal
        with self._live if terminal else contextlib.nullcontext():
            frames = 0
            samples = watching.monitor(round(interval_s * 1000), PEERS_READ)
            for sample in samples:
                self._take(sample)
                self._draw()
                frames += self._before is not None
                if frames == count:
                    return
                while keys is not None and not watching.replies_before(keys, interval_s + LATE_S):
                    typed = os.read(keys, 1024)
                    if not typed:  # the terminal is gone
                        return
                    self._press(typed)
                    if self._view.ended:
                        return
                    self._draw()

    def _take(self, sample: MonitorSample) -> None:
        self._before = self._now
        wanted = self._view.wanted
        self._now = Reading(sample, _paths(self._asking, sample, self._before, wanted))
        if self._before is not None:
            _remember(self._history, self._before, self._now)

    def _press(self, typed: bytes) -> None:
        for key in view.keys(typed):
            frame_ = self._frame
            self._view = view.pressed(self._view, key, page=frame_.page, rows=frame_.rows)

    def _draw(self) -> None:
        if self._before is None or self._now is None:
            if self._console.is_terminal:
                self._live.refresh()
            return
        size = self._console.size
        self._frame = frame(
            self._before,
            self._now,
            self._history,
            width=size.width,
            height=size.height,
            clock=time.strftime("%H:%M:%S"),
            view=self._view,
        )
        if self._console.is_terminal:
            self._live.update(self._frame.shown, refresh=True)
        else:
            self._console.print(self._frame.shown)


def _paths(
    asking: Client, sample: MonitorSample, before: Reading | None, wanted: str
) -> list[PathInfo]:
    earlier = {} if before is None else {peer.name: peer for peer in before.sample.peers}
    return shown_paths(asking, sample.status.peers_total, sample.peers, earlier, wanted)


def _remember(history: dict[int, deque[float]], before: Reading, now: Reading) -> None:
    seconds = max(1e-9, (now.sample.monotonic_ns - before.sample.monotonic_ns) / 1e9)
    earlier = {plane.index: plane for plane in before.sample.status.planes}
    for plane in now.sample.status.planes:
        was = earlier.get(plane.index, plane)
        rates = history.setdefault(plane.index, deque(maxlen=HISTORY))
        rates.append(8 * max(0, plane.tx_bytes - was.tx_bytes) / seconds)
