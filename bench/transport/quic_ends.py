# SPDX-License-Identifier: GPL-2.0-only
"""Both ends of a QUIC transfer by aioquic, as a process inside a host of a lab.

    quic_ends.py serve ADDRESS PORT CERTIFICATE KEY
    quic_ends.py fetch ADDRESS PORT SECONDS

The server sends a stream for as long as the client reads; the client prints one JSON object: bytes,
the longest time in which none came, and how the connection ended. The file is run by its path.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from typing import Any

from aioquic.asyncio import QuicConnectionProtocol, connect, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamDataReceived

_PIECE = bytes(64 << 10)
_AHEAD = 1 << 20


class Source(QuicConnectionProtocol):
    """Sends on each stream that a client opens, never much ahead of what is taken."""

    _sending: asyncio.Task[None] | None = None

    def quic_event_received(self, event: QuicEvent) -> None:
        """Begin to send when a client opens a stream."""
        if isinstance(event, StreamDataReceived) and self._sending is None:
            self._sending = asyncio.ensure_future(self._send(event.stream_id))
        if isinstance(event, ConnectionTerminated) and self._sending is not None:
            self._sending.cancel()

    async def _send(self, stream: int) -> None:
        while True:
            sender = self._quic._streams[stream].sender
            if len(sender._buffer) < _AHEAD:
                self._quic.send_stream_data(stream, _PIECE)
                self.transmit()
            await asyncio.sleep(0.0005)


class Sink(QuicConnectionProtocol):
    """Counts what arrives."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.taken = 0
        self.longest_s = 0.0
        self.ended = ""
        self._last = time.monotonic()

    def quic_event_received(self, event: QuicEvent) -> None:
        """Note what has arrived, and the time since the last."""
        if isinstance(event, StreamDataReceived):
            now = time.monotonic()
            if self.taken:
                self.longest_s = max(self.longest_s, now - self._last)
            self._last = now
            self.taken += len(event.data)
        if isinstance(event, ConnectionTerminated):
            self.ended = event.reason_phrase or f"error {event.error_code}"


async def _serve(address: str, port: int, certificate: str, key: str) -> None:
    settings = QuicConfiguration(is_client=False, alpn_protocols=["bench"])
    settings.load_cert_chain(certificate, key)
    await serve(address, port, configuration=settings, create_protocol=Source)
    print(json.dumps({"ready": True}), flush=True)
    await asyncio.Event().wait()


async def _fetch(address: str, port: int, seconds: float) -> None:
    settings = QuicConfiguration(alpn_protocols=["bench"], verify_mode=ssl.CERT_NONE)
    settings.max_data, settings.max_stream_data = 64 << 20, 16 << 20
    async with connect(address, port, configuration=settings, create_protocol=Sink) as made:
        assert isinstance(made, Sink)
        stream = made._quic.get_next_available_stream_id()
        made._quic.send_stream_data(stream, b"go")
        made.transmit()
        await asyncio.sleep(seconds)
        said = {"bytes": made.taken, "longest_s": made.longest_s, "ended": made.ended}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(_serve(sys.argv[2], int(sys.argv[3]), *sys.argv[4:6]))
    else:
        asyncio.run(_fetch(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
