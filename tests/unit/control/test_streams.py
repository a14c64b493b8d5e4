# SPDX-License-Identifier: GPL-2.0-only
"""Test several clients at once, and that a bad one harms neither the others nor the daemon."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from mrcd.control import access, methods, streams
from mrcd.control.access import Caller
from mrcd.control.methods import Control
from mrcd.control.server import WATCHERS_MAX
from mrcd.model import INTERFACE, PathEvent
from mrcd.paths import feed
from mrcd.paths.feed import PathFeed
from mrcd.service import log
from mrcd.wire.abi import ABI
from rigs.control_double import NOBODY, FakeSource, server_of

DEADLINE_S = 20


class FedSource(FakeSource):
    """A source whose path events come from a real feed."""

    def __init__(self) -> None:
        super().__init__()
        self.feed = PathFeed(lambda qp: ("h2", "h3")[qp // 4], 4)

    def watch_paths(self) -> AsyncGenerator[PathEvent | None, None]:
        return self.feed.watch()


def event(number: int) -> dict[str, int]:
    return {
        "qp": 0, "ev": 0x1001_0000, "time_ns": number, "from_state": ABI.MRC_PATH_GOOD,
        "state": ABI.MRC_PATH_ASSUMED_BAD, "cause": ABI.MRC_ON_LOSS, "sent_ns": 0, "rtt_ns": 0,
    }  # fmt: skip


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, method: str, *, more: bool = False, **parameters: Any) -> None:
        call = {"method": f"{INTERFACE}.{method}", "parameters": parameters, "more": more}
        self.writer.write(json.dumps(call).encode() + b"\0")

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            reply = json.loads((await self.reader.readuntil(b"\0"))[:-1])
        assert "error" not in reply, reply
        parameters: dict[str, Any] = reply["parameters"]
        return parameters

    async def hung_up_on(self) -> bool:
        """Return whether the daemon closes the connection."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except ConnectionError:
                pass
        return True


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_unix_connection(path, limit=1 << 24)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sock"


@pytest.fixture(autouse=True)
def logged() -> StringIO:
    stream = StringIO()
    log.configure("json", stream=stream, strict=True)
    return stream


def serve(path: Path, source: FakeSource, talk: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with server_of(path, source):
            await talk()

    asyncio.run(run())


def never_reads(path: Path, *calls: tuple[str, dict[str, Any]]) -> socket.socket:
    """Return a client that calls and then reads nothing, with the smallest receive buffer."""
    client = socket.socket(socket.AF_UNIX)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    client.connect(os.fspath(path))
    for method, parameters in calls:
        call = {"method": f"{INTERFACE}.{method}", "parameters": parameters, "more": True}
        client.sendall(json.dumps(call).encode() + b"\0")
    return client


def test_every_client_gets_every_sample_beside_one_that_never_reads(path: Path) -> None:
    source = FakeSource()

    async def talk() -> None:
        with never_reads(path, ("Monitor", {"interval_ms": 10})):
            async with connected(path) as one, connected(path) as two:
                for client in (one, two):
                    client.send("Monitor", more=True, interval_ms=10)
                for client in (one, two):
                    samples = [(await client.receive())["sample"] for _ in range(60)]
                    times = [sample["monotonic_ns"] for sample in samples]
                    assert times == sorted(set(times))  # strictly increasing

    serve(path, source, talk)


def test_a_sample_serves_the_callers_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "SHARED_NS", 3600 * 1_000_000_000)
    source = FakeSource()
    control = Control(source, source.configuration)

    async def talk() -> None:
        first = await control._sample(None)
        assert await control._sample(None) is first
        assert await control._sample(first) is not first

    asyncio.run(talk())
    assert source.readings == 2


def test_list_of_many_peers_leaves_turns_for_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "SLICE_S", -1.0)
    source = FakeSource()
    control = Control(source, source.configuration)
    turns = []

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def talk() -> None:
        task = asyncio.create_task(other())
        assert await control._peers() == source.peers()
        task.cancel()

    asyncio.run(talk())
    assert len(turns) >= len(source.peers())


def test_a_slow_client_is_told_how_many_samples_it_missed(path: Path) -> None:
    async def run() -> None:
        source = FakeSource()
        control = Control(source, source.configuration)
        samples = control.Monitor(interval_ms=10)
        first = (await anext(samples)).parameters["sample"]
        assert first.missed == 0
        time.sleep(0.1)  # the caller is busy
        late = (await anext(samples)).parameters["sample"]
        assert late.missed >= 8
        await samples.aclose()

    asyncio.run(run())


def test_every_watcher_gets_every_event_beside_one_that_never_reads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "WAITING_MAX", 256)
    source = FedSource()
    total = 3000  # more than the kernel's buffers and the feed hold for a stuck client

    async def talk() -> None:
        with never_reads(path, ("WatchPaths", {})) as stuck:
            async with connected(path) as one, connected(path) as two:
                for client in (one, two):
                    client.send("WatchPaths", more=True)
                    assert (await client.receive())["event"] is None
                for number in range(total):
                    source.feed.publish(event(number))
                    if number % 64 == 0:  # let the readers run
                        for client in (one, two):
                            await seen_up_to(client, number)
                for client in (one, two):
                    await seen_up_to(client, total - 1)
                    assert client.next_time == total  # type: ignore[attr-defined]
            await read_behind(stuck, total)

    async def seen_up_to(client: Any, number: int) -> None:
        while getattr(client, "next_time", 0) <= number:
            found = (await client.receive())["event"]
            assert (found["time_ns"], found["missed"]) == (getattr(client, "next_time", 0), 0)
            client.next_time = found["time_ns"] + 1

    async def read_behind(stuck: socket.socket, total: int) -> None:
        """Read at last: missing events are counted, and none arrives twice."""
        stuck.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=stuck)
        client = Client(reader, writer)
        assert (await client.receive())["event"] is None
        got, missed, last = 0, 0, -1
        while last < total:
            found = (await client.receive())["event"]
            assert found["time_ns"] > last
            got, missed, last = got + 1, missed + found["missed"], found["time_ns"]
            if got == 100:  # there is room again, so this event arrives with the count
                source.feed.publish(event(total))
        assert missed > 0
        assert got + missed == total + 1
        writer.transport.abort()

    serve(path, source, talk)


def test_replies_wait_for_their_reader(path: Path) -> None:
    source = FakeSource()

    async def talk() -> None:
        # The kernel buffers some hundred kilobytes of replies; no further ones may be made.
        client = never_reads(path)
        client.setblocking(False)
        call = json.dumps({"method": f"{INTERFACE}.GetStatus"}).encode() + b"\0"
        loop = asyncio.get_running_loop()
        sent = 0
        with client:
            while True:
                try:
                    async with asyncio.timeout(1):
                        await loop.sock_sendall(client, call)
                    sent += 1
                except (TimeoutError, ConnectionError):
                    break
            answered = source.readings
            assert answered < sent
            async with connected(path) as other:
                other.send("GetStatus")
                assert (await other.receive())["status"]["host"] == "h1"
            assert source.readings == answered + 1

    serve(path, source, talk)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"x" * (streams.CALL_MAX_BYTES + 2), "a call of more than"),
        (b"{\0", "no call"),
        (b"[]\0", "no call"),
        (b"{\xe9}\0", "no call"),
        (b"[" * 100_000 + b"\0", "no call"),
        (b'{"method":"io.mrcd.Control.Deny","parameters":{"element":"\\ud800"}}\0', "no call"),
    ],
    ids=["endless", "broken", "array", "no text", "deep", "half a character"],
)
def test_nonsense_is_hung_up_on_and_logged(
    path: Path, logged: StringIO, sent: bytes, reason: str
) -> None:
    async def talk() -> None:
        async with connected(path) as vandal, connected(path) as other:
            vandal.writer.write(sent)
            assert await vandal.hung_up_on()
            other.send("GetStatus")
            assert (await other.receive())["status"]["host"] == "h1"

    serve(path, FakeSource(), talk)
    (line,) = map(json.loads, logged.getvalue().splitlines())
    assert line["event"] == "control.client_dropped"
    assert reason in line["reason"]
    assert line["pid"] == os.getpid()


def test_list_that_nobody_reads_to_its_end_is_no_failure(
    path: Path, logged: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "SLICE_S", -1.0)  # a part for each row

    async def talk() -> None:
        for _ in range(20):
            async with connected(path) as caller:
                caller.send("ListPaths", more=True)
                caller.send("ListPeers", more=True)
                await caller.receive()
        async with connected(path) as other:
            other.send("GetStatus")
            await other.receive()

    serve(path, FakeSource(), talk)
    assert "control.call_failed" not in logged.getvalue()


@pytest.mark.parametrize(
    ("at_once", "calls", "reason"),
    [(True, streams.CALLS_MAX + 1, "without waiting"), (False, 1, "a connection that streams")],
)
def test_calls_behind_a_stream_do_not_pile_up(
    path: Path, logged: StringIO, at_once: bool, calls: int, reason: str
) -> None:
    async def talk() -> None:
        async with connected(path) as client:
            client.send("Monitor", more=True, interval_ms=3_600_000)
            if not at_once:
                await client.receive()
            for _ in range(calls):
                client.send("GetStatus")
            assert await client.hung_up_on()

    serve(path, FakeSource(), talk)
    assert reason in logged.getvalue()


def test_watchers_cannot_keep_writers_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, writer = Caller(9, 1000, frozenset({1000})), Caller(1, 0, frozenset({0}))
    who = [watcher]
    monkeypatch.setattr(access, "caller_of", lambda _: who[0])

    async def run() -> None:
        async with server_of(path, FakeSource(), rule=NOBODY):
            held = []
            for _ in range(WATCHERS_MAX):
                held.append(never_reads(path))
            async with connected(path) as late:
                assert await late.hung_up_on()
            who[0] = writer
            async with connected(path) as operator:
                operator.send("Drain", plane=1)
                assert (await operator.receive())["plane"]["drained"] is True
            for one in held:
                one.close()

    asyncio.run(run())


def test_no_task_is_left_of_clients_that_vanish(path: Path) -> None:
    async def run() -> None:
        async with server_of(path, FedSource()) as server:
            before = asyncio.all_tasks()
            for method in ("Monitor", "WatchPaths", "GetStatus"):
                never_reads(path, (method, {})).close()
            async with asyncio.timeout(DEADLINE_S):
                while server._clients or asyncio.all_tasks() != before:
                    await asyncio.sleep(0)

    asyncio.run(run())


def test_close_does_not_wait_for_a_client_that_never_reads(path: Path) -> None:
    source = FakeSource()

    async def run() -> None:
        server = server_of(path, source)
        await server.start()
        with never_reads(path, ("Monitor", {"interval_ms": 10})):
            async with asyncio.timeout(DEADLINE_S):
                while source.readings < 2:
                    await asyncio.sleep(0)
                await server.close()
        assert not path.exists()

    asyncio.run(run())
