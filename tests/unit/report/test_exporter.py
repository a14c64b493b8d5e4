# SPDX-License-Identifier: GPL-2.0-only
"""Test the metrics over HTTP: the content of a scrape, and the answers to other requests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import CapturingLogger

from mrcd.report import exporter
from mrcd.report.exporter import PIECE, Exporter, ExporterError, exposition, pieces
from mrcd.report.metrics import FAMILIES, Snapshot, collect
from rigs.metrics_double import snapshot

Take = Callable[[], Awaitable[Snapshot]]


async def made_up() -> Snapshot:
    return snapshot()


async def ask(port: int, request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Send a request, and return the status line, headers and body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines if line), body


def served(request: bytes, take: Take = made_up) -> tuple[str, dict[str, str], bytes]:
    async def main() -> tuple[str, dict[str, str], bytes]:
        async with Exporter(("127.0.0.1", 0), take) as serving:
            return await ask(serving.port, request)

    return asyncio.run(main())


def get(target: str = "/metrics", method: str = "GET") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n".encode()


def test_scrape__has_every_family_as_the_librarys_parser_reads_it() -> None:
    status, headers, body = served(get())
    assert status == "HTTP/1.1 200 OK"
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert int(headers["Content-Length"]) == len(body)
    parsed = {family.name: family for family in text_string_to_metric_families(body.decode())}
    for family, rows in collect(snapshot()):
        read = parsed.pop(family.name.removesuffix("_total"))
        assert (read.type, read.documentation) == (family.kind, family.help)
        found = {
            tuple(sample.labels[label] for label in family.labels): sample.value
            for sample in read.samples
        }
        assert found == dict(rows)
        assert {sample.name for sample in read.samples} == {family.name}
    assert all(name.startswith("process_") for name in parsed)
    assert "process_resident_memory_bytes" in parsed


def test_scrape__query_is_ignored_and_head_has_no_body() -> None:
    assert served(get("/metrics?name=x"))[0] == "HTTP/1.1 200 OK"
    status, headers, body = served(get(method="HEAD"))
    assert (status, body) == ("HTTP/1.1 200 OK", b"")
    assert int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/"), "404 Not Found"),
        (get("/metricsx"), "404 Not Found"),
        (get(method="POST"), "405 Method Not Allowed"),
        (b"hello\r\n\r\n", "400 Bad Request"),
        (b"GET /metrics SPDY/3\r\n\r\n", "400 Bad Request"),
        (b"\r\n\r\n", "400 Bad Request"),
        (b"\xff\xfe\x00 \x00 HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
    ],
)
def test_other_requests_are_refused(request_: bytes, status: str) -> None:
    first, headers, body = served(request_)
    assert first == f"HTTP/1.1 {status}"
    assert body.endswith(b"\n")
    assert ("Allow" in headers) == ("405" in status)


def test_request_without_an_end_is_cut_off() -> None:
    assert served(b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 70_000) == ("", {}, b"")


def test_silent_client_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "PATIENCE_S", 0.05)
    assert served(b"GET /metr") == ("", {}, b"")


def test_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "PATIENCE_S", 0.1)

    async def large() -> Snapshot:
        return snapshot(peers=200)

    async def main() -> None:
        async with Exporter(("127.0.0.1", 0), large) as serving:
            with socket.socket() as lazy:
                lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                lazy.connect(("127.0.0.1", serving.port))
                lazy.sendall(get())
                async with asyncio.timeout(10):
                    while not serving._tasks:
                        await asyncio.sleep(0.01)
                    while serving._tasks:
                        await asyncio.sleep(0.01)
            assert (await ask(serving.port, get()))[0] == "HTTP/1.1 200 OK"

    asyncio.run(main())


def test_broken_scrape_is_logged_and_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = CapturingLogger()
    monkeypatch.setattr(exporter, "log", said)

    async def main() -> tuple[str, str]:
        answers = [ValueError("broken"), None]

        async def take() -> Snapshot:
            if (error := answers.pop(0)) is not None:
                raise error
            return snapshot()

        async with Exporter(("127.0.0.1", 0), take) as serving:
            first = (await ask(serving.port, get()))[0]
            return first, (await ask(serving.port, get()))[0]

    assert asyncio.run(main()) == ("", "HTTP/1.1 200 OK")
    assert [(call.method_name, call.args) for call in said.calls] == [
        ("info", ("metrics.serving",)),
        ("error", ("metrics.failed",)),
    ]


def test_too_many_at_once_are_refused() -> None:
    async def main() -> list[str]:
        go = asyncio.Event()

        async def take() -> Snapshot:
            await go.wait()
            return snapshot()

        async with Exporter(("127.0.0.1", 0), take) as serving:
            waiting = [
                asyncio.create_task(ask(serving.port, get()))
                for _ in range(exporter.CONNECTIONS_MAX)
            ]
            async with asyncio.timeout(10):
                while len(serving._tasks) < exporter.CONNECTIONS_MAX:
                    await asyncio.sleep(0.001)
            refused = (await ask(serving.port, get()))[0]
            go.set()
            return [refused, *[(await each)[0] for each in waiting]]

    first, *others = asyncio.run(main())
    assert first == "HTTP/1.1 503 Service Unavailable"
    assert set(others) == {"HTTP/1.1 200 OK"}


def test_taken_port_is_an_error_that_says_what_to_do() -> None:
    async def main() -> None:
        async with Exporter(("127.0.0.1", 0), made_up) as first:
            with pytest.raises(ExporterError, match=r"port \d+: .*use.*\[metrics\] listen"):
                await Exporter(("127.0.0.1", first.port), made_up).__aenter__()

    asyncio.run(main())


def test_end_does_not_wait_for_clients() -> None:
    async def main() -> None:
        async with asyncio.timeout(5), Exporter(("127.0.0.1", 0), made_up) as serving:
            await asyncio.open_connection("127.0.0.1", serving.port)
            while not serving._tasks:
                await asyncio.sleep(0.001)

    asyncio.run(main())


@pytest.mark.parametrize("rows", [0, 1, PIECE, PIECE + 1, 3 * PIECE])
def test_pieces__join_to_what_the_library_makes_of_the_whole(rows: int) -> None:
    (family,) = [each for each in FAMILIES if each.name == "mrcd_peer_mtu_bytes"]
    some = [((f"h{i}",), float(i)) for i in range(rows)]
    found = list(pieces(family, iter(some)))
    assert sum(count for count, _text in found) == rows
    assert all(count <= PIECE for count, _text in found)
    whole = exporter.generate_latest(exporter._Given([exporter._metric(family, some)]))
    assert b"".join(text for _count, text in found) == whole


def test_exposition__lets_others_work_after_every_piece() -> None:
    async def main() -> tuple[int, int]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        lines, longest, before = 0, 0, 0
        async for text in exposition(snapshot(peers=100)):
            lines += text.count(b"\n")
            if turns != before:
                before, lines = turns, text.count(b"\n")
            longest = max(longest, lines)
        task.cancel()
        return longest, turns

    longest, turns = asyncio.run(main())
    assert longest < 4 * PIECE
    assert turns > 10
