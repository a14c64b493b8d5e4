# SPDX-License-Identifier: GPL-2.0-only
"""mrc0 and the interfaces beside it, and what the programs are told of this host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from mrcd.config.config import Config, Current
from mrcd.datapath import carried, host, mrc0
from mrcd.datapath.cellsize import CellSize
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.mrc0 import Ends
from mrcd.linux.netlink import Netlink
from mrcd.repair.reading import Made
from mrcd.service.log import get_logger

log = get_logger()


class OurInterfaces:
    """The interfaces of one data path. `config` returns the engine's, which may change.

    on_resized: is awaited when cells have another length, and tells the connections.
    """

    def __init__(
        self,
        nl: Netlink,
        config: Current,
        datapath: Datapath,
        records: Path,
        on_resized: Callable[[Config], Awaitable[None]],
    ) -> None:
        self._nl = nl
        self._config = config
        self._dp = datapath
        self._records = records
        self._on_resized = on_resized
        self.made = Made(bytes(6), {}, {})
        self._ends = Ends(0)
        self.cells: CellSize | None = None  # None without cells
        self._carry: tuple[int, ...] | None = None  # what planes carry, where it was found out

    async def make(self) -> None:
        """Make or take over mrc0, and tell it how long cells may be."""
        config, nl = self._config(), self._nl
        self.made = Made.now(config, await self._ensure())
        if config.cells:
            told = host.cell_bytes(self._dp)
            self.cells = CellSize(nl, config, self._dp, told, self.rates, self._resized)
            await self.cells.start()

    async def remake(self) -> bool:
        """Make what is missing of mrc0; return whether some interface is another one now."""
        before = self.made
        mac = await self._ensure()
        made = Made.now(self._config(), mac)
        if made.indices == before.indices:
            self.made = Made(before.mac, made.indices, before.offloads)
            return False
        self.made = made
        if self.cells is not None:
            await self.cells.start()
        self.write_host(host.planes_told(self._dp))
        return True

    async def reconfigure(self) -> None:
        """Give mrc0 what the present configuration says, and tell the programs."""
        config = self._config()
        await mrc0.give_addresses(self._nl, config, self._records)
        await mrc0.retune(self._nl, config, self.mbps)
        if self.cells is not None:
            self.cells.reconfigure(config)
        self.write_host(host.planes_told(self._dp))

    async def carry(self, rates: tuple[int, ...] | None) -> None:
        """Follow what each plane carries, Mb/s, or, for None, what their NICs say."""
        self._carry = rates
        self.write_host(host.planes_told(self._dp))
        try:
            await mrc0.retune(self._nl, self._config(), self.mbps)
        except OSError as error:  # an interface has just gone; the repair makes it anew
            log.warning("interface.untuned", interface=self._config().mrc0.name, error=str(error))

    @property
    def says(self) -> tuple[int, ...]:
        """What each plane should carry, Mb/s, by what is written or its NIC says; 0: unknown."""
        return carried.says(self._config())

    @property
    def rates(self) -> tuple[int, ...]:
        """What each plane carries, as far as it is known; else 0."""
        return self.says if self._carry is None else self._carry

    @property
    def mbps(self) -> int:
        """What a plane that serves carries in the mean, as far as it is known; else 0."""
        return carried.mean_mbps(self.rates, self._config().standby)

    def write_host(self, mask: int) -> None:
        """Tell the programs of this host, and on which planes packets are sent."""
        host.write(
            self._dp,
            self._config(),
            self._ends,
            mac=self.made.mac,
            planes=mask,
            mbps=self.mbps,
            cells=0 if self.cells is None else self.cells.bytes,
        )

    @property
    def gso(self) -> tuple[int, int]:
        """The bounds of TCP's segments on mrc0: bytes and packets."""
        return mrc0.GSO if self.cells is None else self.cells.gso

    async def _ensure(self) -> bytes:
        config = self._config()
        mac = await mrc0.ensure(self._nl, config, self._records, self.mbps)
        self._ends = mrc0.ends(self._nl, config)
        return mac

    async def _resized(self) -> None:
        self.write_host(host.planes_told(self._dp))
        await self._on_resized(self._config())
