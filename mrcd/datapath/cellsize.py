# SPDX-License-Identifier: GPL-2.0-only
"""Keep the length of cells at what the planes carry (mrcd/datapath/dial.py).

mrc0 tells TCP how long its segments may be, and the kernel cuts longer ones into single packets on
their way to mrc0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from mrcd.config.config import Config
from mrcd.config.sections import CELL_MAX
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.dial import Dial
from mrcd.linux import interfaces
from mrcd.linux.interfaces import Traffic
from mrcd.linux.netlink import Netlink
from mrcd.linux.privileged.requests import SetLink
from mrcd.service.log import get_logger
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE

log = get_logger()

BUSY_S = 0.1
IDLE_S = 0.5
"""Time between two looks at the planes, with and without traffic."""
QUIET_BYTES = 100_000
"""Applications that send less than this a second show nothing of what planes can carry."""
_MBPS = 125_000  # bytes a second in 1 Mb/s
_QUEUE_SIGNALS = (ABI.MRC_C_TX_CE, ABI.MRC_C_DROP_EARLY)
"""Counters of what the programs do when queues are long (bpf/aqm.c)."""


class CellSize:
    """The length of the cells of one data path."""

    def __init__(
        self,
        nl: Netlink,
        config: Config,
        datapath: Datapath,
        start: int,
        rates: Sequence[int],
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        """Begin with the length that the programs have, or 0 for the first one.

        `rates` is what each plane carries at most, Mb/s, 0 if unknown. `on_change` is awaited after
        each change; it gives the length to the programs and to connections.
        """
        transport = config.transport
        self._datapath = datapath
        self._signals = 0
        self._nl = nl
        self._mrc0 = config.mrc0.name
        self._planes = config.interfaces
        self._on_change = on_change
        self._dial = Dial(
            config.mtu, transport.cell_min, transport.cell_max, start or None, _bytes(rates)
        )
        self._before: tuple[int, dict[str, Traffic]] = (0, {})

    @property
    def bytes(self) -> int:
        """The longest cell, an application's IP packet of this length."""
        return self._dial.bytes

    @property
    def gso(self) -> tuple[int, int]:
        """The bounds of TCP's segments on mrc0: bytes and packets.

        Where cells are as long as they can be, only bytes count: what this host forwards, for a
        container or from a NIC that merges packets, may have shorter packets, and so more of them.
        The kernel would cut it into single ones.
        """
        longest = self._dial.bytes == CELL_MAX
        return CELL_MAX, WIRE.MRC_CELL_PACKETS - 1 if longest else self._dial.packets

    def reconfigure(self, config: Config) -> None:
        """Use the bounds of a configuration."""
        self._dial.reconfigure(config.transport.cell_min, config.transport.cell_max)

    async def start(self) -> None:
        """Give the length to mrc0."""
        size, segs = self.gso
        await self._nl.change(SetLink(self._mrc0, gso_size=size, gso_segs=segs))

    async def follow(self) -> None:
        """Follow what the planes carry; runs until cancelled."""
        self._before = time.monotonic_ns(), interfaces.traffic()
        while True:
            await asyncio.sleep(BUSY_S if await self._look() else IDLE_S)

    async def _look(self) -> bool:
        """Measure what was carried since the last look; return whether there was traffic."""
        (then, before), now = self._before, time.monotonic_ns()
        after = interfaces.traffic()
        self._before = now, after
        signals = self._datapath.count(*_QUEUE_SIGNALS)
        queued, self._signals = signals != self._signals, signals

        def rate(name: str) -> float:
            sent = after.get(name, Traffic()).tx_bytes - before.get(name, Traffic()).tx_bytes
            return max(0, sent) * 1e9 / max(1, now - then)

        if rate(self._mrc0) < QUIET_BYTES:
            return False
        rates = [rate(name) for name in self._planes]
        if self._dial.measured(rates, queued=queued, now_ns=now):
            log.info("cells.resized", bytes=self.bytes)
            try:
                await self.start()
                await self._on_change()
            except OSError as error:  # the programs cut what is too long for them
                log.warning("interface.untuned", interface=self._mrc0, error=str(error))
        return True


def _bytes(rates: Sequence[int]) -> list[int]:
    return [rate * _MBPS for rate in rates]
