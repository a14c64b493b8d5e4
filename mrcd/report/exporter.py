# SPDX-License-Identifier: GPL-2.0-only
"""Serve the metrics to Prometheus over HTTP: GET /metrics, and nothing else.

The server runs on the daemon's event loop, which owns the state that the metrics show. A server of
the standard library would need a thread, and a busy thread keeps the loop waiting for the
interpreter. Here text is made in small pieces with pauses between them, for one scrape at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Self

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mrcd.report.metrics import Family, Row, Snapshot, collect
from mrcd.report.snapshot import PAUSE_S
from mrcd.service.log import get_logger

log = get_logger()

PIECE = 128
"""Rows that are made into text without a pause, which takes about a millisecond."""
HEAD_MAX = 8192
CONNECTIONS_MAX = 8
PATIENCE_S = 10.0
"""Time for a request to arrive, and for a response to be taken."""
_TEXT = "text/plain; charset=utf-8"


class ExporterError(OSError):
    """The metrics cannot be served; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class _Response:
    status: str
    body: bytes
    kind: str = _TEXT
    allow: bool = False

    def encode(self, *, with_body: bool) -> bytes:
        head = [
            f"HTTP/1.1 {self.status}",
            f"Content-Type: {self.kind}",
            f"Content-Length: {len(self.body)}",
            *(["Allow: GET, HEAD"] if self.allow else []),
            "Connection: close",
        ]
        text = "".join(f"{line}\r\n" for line in head) + "\r\n"
        return text.encode() + (self.body if with_body else b"")


@dataclass(frozen=True, slots=True)
class _Given(Collector):
    """Given metrics in the shape of a registry, which generate_latest expects."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


def _metric(family: Family, rows: Iterable[Row]) -> Metric:
    metric: CounterMetricFamily | GaugeMetricFamily
    if family.kind == "counter":
        metric = CounterMetricFamily(family.name, family.help, labels=family.labels)
    else:
        metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in rows:
        metric.add_metric(labels, value)
    return metric


def pieces(family: Family, rows: Iterator[Row]) -> Iterator[tuple[int, bytes]]:
    """Yield a family in the text format, PIECE rows at a time: their number and their text."""
    first = True
    while (some := list(islice(rows, PIECE))) or first:
        text = generate_latest(_Given([_metric(family, some)]))
        if not first:  # HELP and TYPE stand above the first piece
            text = text.split(b"\n", 2)[2]
        yield len(some), text
        first = False


async def exposition(snapshot: Snapshot) -> AsyncIterator[bytes]:
    """Yield a snapshot in Prometheus' text format, in pieces, with pauses for other work."""
    made = 0
    for family, rows in collect(snapshot):
        for count, text in pieces(family, rows):
            yield text
            made += count + 1
            if made >= PIECE:
                made = 0
                await asyncio.sleep(PAUSE_S)
    yield generate_latest(ProcessCollector(registry=None))


class Exporter:
    """An async context manager that serves the snapshots of `take` on an address and a port."""

    def __init__(self, endpoint: tuple[str, int], take: Callable[[], Awaitable[Snapshot]]) -> None:
        self._address, self._port = endpoint
        self._take = take
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(
                self._serve, self._address, self._port, limit=HEAD_MAX
            )
        except OSError as error:
            raise ExporterError(
                f"cannot serve metrics on {self._address} port {self._port}: {error.strerror}; "
                "[metrics] listen chooses another address"
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]
        log.info("metrics.serving", address=self._address, port=self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        """Return the port on which the exporter listens."""
        return self._port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
            method, response = await self._answer(head)
            writer.write(response.encode(with_body=method != b"HEAD"))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # no request came, or the client left
        except Exception as error:  # a broken scrape must not break the daemon
            log.error("metrics.failed", error=repr(error))
        finally:
            self._tasks.discard(task)
            await _closed(writer)

    async def _answer(self, head: bytes) -> tuple[bytes, _Response]:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return b"", _Response("400 Bad Request", b"this is HTTP/1.1\n")
        method, target = words[0], words[1].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return method, _Response("405 Method Not Allowed", b"GET it\n", allow=True)
        if target != b"/metrics":
            return method, _Response("404 Not Found", b"only /metrics is here\n")
        if len(self._tasks) > CONNECTIONS_MAX:
            return method, _Response("503 Service Unavailable", b"too many at once\n")
        async with self._one_at_a_time:
            body = b"".join([text async for text in exposition(await self._take())])
        return method, _Response("200 OK", body, CONTENT_TYPE_LATEST)


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection after its data has left; abort it if the client does not read in time."""
    writer.close()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()
