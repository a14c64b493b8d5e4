# SPDX-License-Identifier: GPL-2.0-only
"""Test the control socket at the level of bytes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from mrcd.control.server import ControlError
from mrcd.model import INTERFACE, PathInfo
from mrcd.service import log
from rigs.control_double import FakeSource, server_of

DEADLINE_S = 10


class Caller:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def call(self, method: str, *, more: bool = False, **parameters: Any) -> dict[str, Any]:
        message: dict[str, Any] = {"method": method, "parameters": parameters}
        if more:
            message["more"] = True
        self.writer.write(json.dumps(message).encode() + b"\0")
        return await self.receive()

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            data = await self.reader.readuntil(b"\0")
        reply: dict[str, Any] = json.loads(data[:-1])
        return reply


@asynccontextmanager
async def calling(path: Path) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_unix_connection(path)
    yield Caller(reader, writer)
    writer.close()
    await writer.wait_closed()


def converse(path: Path, source: FakeSource, talk: Callable[[Caller], Awaitable[None]]) -> None:
    """Serve ``source``, connect, and run ``talk``."""

    async def run() -> None:
        async with server_of(path, source), calling(path) as caller:
            await talk(caller)

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "mrcd.sock"


def test_every_method_answers_with_a_schema_version(path: Path) -> None:
    async def talk(caller: Caller) -> None:
        status = await caller.call(f"{INTERFACE}.GetStatus")
        assert status["parameters"]["status"]["schema_version"] == 1
        assert status["parameters"]["status"]["planes"][1]["carrier"] is False
        for method, key in (
            ("ListPeers", "peers"),
            ("ListPaths", "paths"),
            ("ListConnections", "connections"),
        ):
            reply = await caller.call(f"{INTERFACE}.{method}")
            assert reply["parameters"]["schema_version"] == 1
            assert len(reply["parameters"][key]) == 2
        stats = await caller.call(f"{INTERFACE}.GetStats")
        assert stats["parameters"]["stats"]["schema_version"] == 1

    converse(path, FakeSource(), talk)


def test_lists_can_be_narrowed_to_a_peer(path: Path) -> None:
    async def talk(caller: Caller) -> None:
        for method, key in (("ListPaths", "paths"), ("ListConnections", "connections")):
            reply = await caller.call(f"{INTERFACE}.{method}", peer="h3")
            assert [item["peer"] for item in reply["parameters"][key]] == ["h3"]

    converse(path, FakeSource(), talk)


def test_paths_can_be_narrowed_to_a_plane_and_a_state(path: Path) -> None:
    async def talk(caller: Caller) -> None:
        for asked, count in (
            ({"plane": 1}, 2),
            ({"plane": 0}, 0),
            ({"state": "ASSUMED_BAD"}, 2),
            ({"state": "GOOD", "plane": 1}, 0),
        ):
            reply = await caller.call(f"{INTERFACE}.ListPaths", **asked)
            assert len(reply["parameters"]["paths"]) == count, asked
        reply = await caller.call(f"{INTERFACE}.ListPaths", state="BROKEN")
        assert reply["error"] == "org.varlink.service.InvalidParameter"

    converse(path, FakeSource(), talk)


class Crowd(FakeSource):
    """A source with many peers, each of which takes a while to read; counts others' turns."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.seen: list[int] = []

    def peer_names(self) -> list[str]:
        return [f"h{number}" for number in range(200)]

    def paths(self, peer: str | None) -> list[PathInfo]:
        time.sleep(0.0005)
        self.seen.append(self.turns)
        return [replace(found, peer=str(peer)) for found in super().paths("h2")]


def test_long_list_leaves_turns_to_others(path: Path) -> None:
    crowd = Crowd()

    async def talk(caller: Caller) -> None:
        async def count() -> None:
            while True:
                crowd.turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(count())
        reply = await caller.call(f"{INTERFACE}.ListPaths")
        beside.cancel()
        assert len({found["peer"] for found in reply["parameters"]["paths"]}) == 200

    converse(path, crowd, talk)
    assert crowd.seen[-1] - crowd.seen[0] > 10


def test_long_list_comes_in_parts_to_those_who_ask_with_more(path: Path) -> None:
    async def talk(caller: Caller) -> None:
        whole = await caller.call(f"{INTERFACE}.ListPaths")
        replies = [await caller.call(f"{INTERFACE}.ListPaths", more=True)]
        while replies[-1].get("continues"):
            replies.append(await caller.receive())
        assert len(replies) > 10
        rows = [row for reply in replies for row in reply["parameters"]["paths"]]
        assert rows == whole["parameters"]["paths"]
        assert len(rows) == 200
        after = await caller.call(f"{INTERFACE}.GetStatus")  # the connection takes other calls
        assert after["parameters"]["status"]["schema_version"] == 1

    converse(path, Crowd(), talk)


def test_error_comes_in_place_of_the_first_part(path: Path) -> None:
    async def talk(caller: Caller) -> None:
        reply = await caller.call(f"{INTERFACE}.ListConnections", more=True, peer="h9")
        assert reply["error"] == f"{INTERFACE}.NoSuchPeer"

    converse(path, FakeSource(), talk)


@pytest.mark.parametrize("method", ["ListPaths", "ListConnections"])
def test_unknown_peer_is_an_error_that_names_the_known(path: Path, method: str) -> None:
    async def talk(caller: Caller) -> None:
        reply = await caller.call(f"{INTERFACE}.{method}", peer="h9")
        assert reply == {
            "error": f"{INTERFACE}.NoSuchPeer",
            "parameters": {"name": "h9", "known": ["h2", "h3"]},
        }

    converse(path, FakeSource(), talk)


def test_the_interface_describes_itself(path: Path) -> None:
    async def talk(caller: Caller) -> None:
        info = await caller.call("org.varlink.service.GetInfo")
        assert info["parameters"]["interfaces"] == [INTERFACE, "org.varlink.service"]
        described = await caller.call(
            "org.varlink.service.GetInterfaceDescription", interface=INTERFACE
        )
        text = described["parameters"]["description"]
        assert "method GetStatus() -> (status: Status)" in text
        assert "error NoSuchPeer (name: string, known: []string)" in text

    converse(path, FakeSource(), talk)


def test_a_failing_source_is_answered_and_logged_and_the_next_call_works(path: Path) -> None:
    source = FakeSource()
    source.broken = RuntimeError("map is gone")
    stream = StringIO()
    log.configure("json", stream=stream, strict=True)

    async def talk(caller: Caller) -> None:
        reply = await caller.call(f"{INTERFACE}.ListConnections")
        assert reply["error"] == f"{INTERFACE}.Internal"
        assert "map is gone" in reply["parameters"]["message"]
        source.broken = None
        assert "error" not in await caller.call(f"{INTERFACE}.ListConnections")

    converse(path, source, talk)
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "control.call_failed"


def test_monitor_sends_samples_until_the_caller_hangs_up(path: Path) -> None:
    async def run() -> None:
        async with server_of(path, FakeSource()):
            before = asyncio.all_tasks()
            async with calling(path) as caller:
                first = await caller.call(f"{INTERFACE}.Monitor", more=True, interval_ms=10)
                second = await caller.receive()
                assert first["continues"]
                assert second["continues"]
                early, late = (reply["parameters"]["sample"] for reply in (first, second))
                assert late["monotonic_ns"] > early["monotonic_ns"]
                assert late["stats"]["counters"][0]["value"] == 2000
            await until(lambda: asyncio.all_tasks() == before)

    asyncio.run(run())


def test_level_of_the_log_is_set_and_told(path: Path) -> None:
    async def talk(caller: Caller) -> None:
        reply = await caller.call(f"{INTERFACE}.SetLogLevel", level="warning", seconds=60)
        assert reply["parameters"]["before"] == "info"
        assert log.current_level() == "warning"
        for wrong in ({"level": "loud"}, {"level": "debug", "seconds": 0}):
            reply = await caller.call(f"{INTERFACE}.SetLogLevel", **wrong)
            assert reply["error"] == "org.varlink.service.InvalidParameter"
        reply = await caller.call(f"{INTERFACE}.SetLogLevel", level="info")
        assert reply["parameters"]["before"] == "warning"

    converse(path, FakeSource(), talk)
    assert log.current_level() == "info"


@pytest.mark.parametrize("interval_ms", [0, 9, 3_600_001, "soon"])
def test_monitor_refuses_a_bad_interval(path: Path, interval_ms: object) -> None:
    async def talk(caller: Caller) -> None:
        reply = await caller.call(f"{INTERFACE}.Monitor", more=True, interval_ms=interval_ms)
        assert reply["error"] == "org.varlink.service.InvalidParameter"
        assert reply["parameters"] == {"parameter": "interval_ms"}

    converse(path, FakeSource(), talk)


def test_monitor_lists_as_many_peers_as_are_asked_for(path: Path) -> None:
    async def talk(caller: Caller) -> None:
        first = await caller.call(f"{INTERFACE}.Monitor", more=True, interval_ms=10, peers=1)
        for reply in (first, await caller.receive()):
            sample = reply["parameters"]["sample"]
            assert [peer["name"] for peer in sample["peers"]] == ["h2"]
            assert sample["status"]["peers_total"] == 2

    converse(path, FakeSource(), talk)


def test_monitor_refuses_fewer_peers_than_none(path: Path) -> None:
    async def talk(caller: Caller) -> None:
        reply = await caller.call(f"{INTERFACE}.Monitor", more=True, peers=-1)
        assert reply["error"] == "org.varlink.service.InvalidParameter"
        assert reply["parameters"] == {"parameter": "peers"}

    converse(path, FakeSource(), talk)


def test_monitor_needs_more(path: Path) -> None:
    async def talk(caller: Caller) -> None:
        reply = await caller.call(f"{INTERFACE}.Monitor")
        assert reply["error"] == "org.varlink.service.ExpectedMore"

    converse(path, FakeSource(), talk)


def test_close_ends_streams_and_removes_the_socket(path: Path) -> None:
    async def run() -> None:
        server = server_of(path, FakeSource())
        await server.start()
        async with calling(path) as caller:
            await caller.call(f"{INTERFACE}.Monitor", more=True, interval_ms=3_600_000)
            await server.close()
            async with asyncio.timeout(DEADLINE_S):
                assert await caller.reader.read() == b""
        assert not path.exists()

    asyncio.run(run())


@pytest.mark.parametrize("message", [b"{\0", b"[]\0", b'{"method":"x"}\0', b"\xff\xfe\0", b"\0\0"])
def test_garbage_on_one_connection_leaves_others_alone(path: Path, message: bytes) -> None:
    log.configure("json", stream=StringIO(), strict=True)

    async def talk(caller: Caller) -> None:
        async with calling(path) as vandal:
            vandal.writer.write(message)
            await vandal.writer.drain()
            assert "error" not in await caller.call(f"{INTERFACE}.GetStatus")

    converse(path, FakeSource(), talk)


def test_socket_is_for_owner_and_group_whatever_the_umask(path: Path) -> None:
    async def run() -> None:
        async with server_of(path, FakeSource()):
            assert path.stat().st_mode & 0o777 == 0o660

    for mask in (0o000, 0o077):
        before = os.umask(mask)
        try:
            asyncio.run(run())
        finally:
            os.umask(before)


def test_stale_socket_is_replaced(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(path))

    async def talk(caller: Caller) -> None:
        assert "error" not in await caller.call(f"{INTERFACE}.GetStatus")

    converse(path, FakeSource(), talk)


def test_live_socket_is_an_error_and_stays(path: Path) -> None:
    async def talk(caller: Caller) -> None:
        with pytest.raises(ControlError, match="another mrcd answers"):
            await server_of(path, FakeSource()).start()
        assert "error" not in await caller.call(f"{INTERFACE}.GetStatus")

    converse(path, FakeSource(), talk)
    assert not path.exists()


def test_a_file_in_the_way_is_an_error_and_stays(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(ControlError, match="not a socket"):
        asyncio.run(server_of(path, FakeSource()).start())
    assert path.read_text() == "precious"


def test_close_leaves_the_socket_of_a_successor(path: Path) -> None:
    async def run() -> None:
        server = server_of(path, FakeSource())
        await server.start()
        path.rename(path.with_name("old"))
        path.write_text("the successor's")
        await server.close()
        assert path.exists()

    asyncio.run(run())
