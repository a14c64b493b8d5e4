# SPDX-License-Identifier: GPL-2.0-only
"""Take the data path down: what `mrcctl datapath detach` does.

Works without a daemon, from what is pinned and recorded in the bpffs folder
alone, in the network namespace of the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mrcd import pins
from mrcd.model import DetachReport

if TYPE_CHECKING:
    from mrcd.netlink import Netlink


def detach(folder: Path) -> DetachReport:
    """Detach programs, remove pins, delete the interfaces that the daemon made."""
    from mrcd.netlink import Netlink  # noqa: PLC0415  # mrcctl starts without it

    async def work() -> DetachReport:
        async with Netlink() as nl:
            return await detach_with(nl, folder)

    return asyncio.run(work())


async def detach_with(nl: Netlink, folder: Path) -> DetachReport:
    """The same, in a running event loop and with a conversation that is open."""
    detached: list[str] = []
    failed: list[str] = []
    try:
        detached += [f"pin {name}" for name in pins.clear(folder)]
    except OSError as error:
        failed.append(f"{folder}: {error}")

    async def undo(kind: str, take: Callable[[str], Awaitable[str]]) -> None:
        for name in pins.recorded(folder, kind):
            try:
                detached.append(await take(name))
                pins.forget(folder, kind, name)
            except OSError as error:
                failed.append(str(error))

    async def clsact(name: str) -> str:
        if nl.exists(name):
            await nl.detach_clsact(name, prio=pins.PRIO)
        return f"clsact filter of {name}"

    async def route(record: str) -> str:
        name, prefix = pins.given(record)
        if nl.exists(name):
            await nl.delete_route(prefix, dev=name)
        return f"route {prefix} dev {name}"

    async def address(record: str) -> str:
        name, cidr = pins.given(record)
        if nl.exists(name):
            await nl.delete_address(name, cidr)
        return f"address {cidr} of {name}"

    async def device(name: str) -> str:
        await nl.delete_link(name)
        return f"interface {name}"

    await undo("clsact", clsact)
    await undo("route", route)
    await undo("address", address)
    await undo("device", device)
    return DetachReport(detached=detached, failed=failed)
