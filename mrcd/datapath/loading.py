# SPDX-License-Identifier: GPL-2.0-only
"""Run the loader, which is a process of its own: as a child, or by the privileged process."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrcd.linux.privileged import client
from mrcd.linux.privileged.client import Channel
from mrcd.linux.privileged.requests import Load

_KILLED_MS = 5000


async def run(order: Mapping[str, Any], cache: Path | None) -> tuple[bytes, bytes]:
    """Give the loader an order; return what it wrote to its standard output and error.

    `cache` is the folder of compiled programs; the privileged process knows it already. A loader
    that is no longer wanted is killed.
    """
    channel = client.current()
    if channel is not None:
        return await _ask(channel, json.dumps(order))
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mrcd.datapath.loader",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    whole = {**order, "cache": str(cache) if cache else None}
    try:
        return await child.communicate(json.dumps(whole).encode())
    except asyncio.CancelledError:
        child.kill()
        await child.wait()
        raise


async def _ask(channel: Channel, order: str) -> tuple[bytes, bytes]:
    pipes = [os.pipe(), os.pipe()]
    try:
        loader = channel.ask_fd(Load(order), [theirs for _ours, theirs in pipes])
    except OSError:
        for ours, _theirs in pipes:
            os.close(ours)
        raise
    finally:
        for _ours, theirs in pipes:
            os.close(theirs)
    try:
        out, err = await asyncio.gather(*(_read(ours) for ours, _theirs in pipes))
        return out, err
    except asyncio.CancelledError:
        _kill(loader)
        raise
    finally:
        os.close(loader)


async def _read(pipe: int) -> bytes:
    """Read a pipe to its end, and close it."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _protocol = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb")
    )
    try:
        return await reader.read()
    finally:
        transport.close()


def _kill(loader: int) -> None:
    signal.pidfd_send_signal(loader, signal.SIGKILL)
    poll = select.poll()
    poll.register(loader, select.POLLIN)
    poll.poll(_KILLED_MS)
