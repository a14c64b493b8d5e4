# SPDX-License-Identifier: GPL-2.0-only
"""Take the data path down: what `mrcctl datapath detach` does.

Works without a daemon, from what is pinned and recorded in the bpffs folder
alone, in the network namespace of the caller.
"""

from __future__ import annotations

import asyncio
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
    for name in pins.recorded(folder, "clsact"):
        try:
            if nl.exists(name):
                await nl.detach_clsact(name, prio=pins.PRIO)
                detached.append(f"clsact filter of {name}")
            pins.forget(folder, "clsact", name)
        except OSError as error:
            failed.append(str(error))
    for name in pins.recorded(folder, "device"):
        try:
            await nl.delete_link(name)
            pins.forget(folder, "device", name)
            detached.append(f"interface {name}")
        except OSError as error:
            failed.append(str(error))
    return DetachReport(detached=detached, failed=failed)
