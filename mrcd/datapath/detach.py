# SPDX-License-Identifier: GPL-2.0-only
"""Take the data path down, as `mrcctl datapath detach` does.

This works without a daemon, in the network namespace of the caller: pins and records in the bpffs
folder tell all that is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from mrcd.datapath import pins
from mrcd.linux.privileged.requests import DeleteAddress, DeleteLink, DeleteRoute, DetachClsact
from mrcd.model import DetachReport

if TYPE_CHECKING:
    from mrcd.linux.netlink import Netlink


def detach(folder: Path) -> DetachReport:
    """Detach programs, remove pins, delete the interfaces that the daemon made."""
    from mrcd.linux.netlink import Netlink  # noqa: PLC0415  # keeps pyroute2 out of mrcctl's start

    async def work() -> DetachReport:
        async with Netlink() as nl:
            return await detach_with(nl, folder)

    return asyncio.run(work())


async def detach_with(nl: Netlink, folder: Path) -> DetachReport:
    """Do what `detach` does, in a running event loop and over an open netlink socket."""
    detached: list[str] = []
    failed: list[str] = []
    try:
        detached += [f"pin {name}" for name in pins.clear(folder)]
    except OSError as error:
        failed.append(f"{folder}: {error}")
    undone = await undo(nl, folder)
    return DetachReport(detached=detached + undone.detached, failed=failed + undone.failed)


async def undo(nl: Netlink, folder: Path, keep: Collection[str] = ()) -> DetachReport:
    """Undo everything recorded in the folder, except on the interfaces in `keep`."""
    detached: list[str] = []
    failed: list[str] = []

    async def undo_kind(kind: str, take: Callable[[str], Awaitable[str]]) -> None:
        for name in pins.recorded(folder, kind):
            if name.split("~")[0] in keep:
                continue
            try:
                detached.append(await take(name))
                pins.forget(folder, kind, name)
            except OSError as error:
                failed.append(str(error))

    async def clsact(name: str) -> str:
        if nl.exists(name):
            for direction in ("ingress", "egress"):
                await nl.change(DetachClsact(name, direction))
        return f"clsact filter of {name}"

    async def route(record: str) -> str:
        name, prefix = pins.given(record)
        if nl.exists(name):
            await nl.change(DeleteRoute(prefix, name))
        return f"route {prefix} dev {name}"

    async def address(record: str) -> str:
        name, cidr = pins.given(record)
        if nl.exists(name):
            await nl.change(DeleteAddress(name, cidr))
        return f"address {cidr} of {name}"

    async def device(name: str) -> str:
        await nl.change(DeleteLink(name))
        return f"interface {name}"

    await undo_kind("clsact", clsact)
    await undo_kind("route", route)
    await undo_kind("address", address)
    await undo_kind("device", device)
    return DetachReport(detached=detached, failed=failed)
