# SPDX-License-Identifier: GPL-2.0-only
"""Calls of the control API, on a connection of its own for each input.

The lowest bit of the first byte says whether the caller may write, the next one whether every row
of a list is a part of its own, as on a slow host.
"""

from __future__ import annotations

import asyncio
import copy
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog
from asyncvarlink import VarlinkTransport

from mrcd.control import methods
from mrcd.control.access import Access, Caller
from mrcd.control.streams import CALL_MAX_BYTES, CALLS_MAX, ControlProtocol
from mrcd.model import INTERFACE
from rigs.control_double import FakeSource, server_of
from tests.fuzz.words import JSON

RULE = Access(uid=1, group="nosuch", gid=None)
PATIENCE_S = 5.0
TURNS = 1000
SLICE_S = methods.SLICE_S
_ANSWER_BYTES = 1 << 20


class _Service:
    """The server of a double; the double is as new for each input."""

    def __init__(self) -> None:
        structlog.configure(processors=[self._log], logger_factory=structlog.ReturnLoggerFactory())
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._fail)
        self.source = FakeSource()
        self.configuration = self.source.configuration
        place = Path(tempfile.gettempdir()) / "never.sock"  # nothing listens there
        self.registry = server_of(place, self.source)._registry
        self.wrong: list[str] = []

    def _log(self, _logger: object, _level: str, event: dict[str, Any]) -> dict[str, Any]:
        if event["event"] == "control.call_failed":
            self.wrong.append(str(event["error"]))
        return event

    def _fail(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), asyncio.CancelledError):
            return  # as mrcd has it (mrcd/main.py): the caller has left
        self.wrong.append(f"{context['message']}: {context.get('exception')!r}")

    def reset(self) -> None:
        self.source.__init__()  # type: ignore[misc]
        self.configuration.__init__()  # type: ignore[misc]
        self.source.configuration = self.configuration
        self.wrong.clear()

    def state(self) -> Any:
        """Return what a call may change."""
        source, own = self.source, self.configuration
        return copy.deepcopy(
            (source.rules, source.drained, own.current, own.unconfirmed, own.forgotten)
        )

    async def talk(self, data: bytes, *, writer: bool) -> bytes:
        """Send a text and hang up behind it; return what is answered."""
        self.before = asyncio.all_tasks()
        ours, theirs = socket.socketpair()
        gone = self.loop.create_future()
        caller = Caller(pid=1, uid=1 if writer else 2, groups=frozenset())
        client = ControlProtocol(
            self.registry, RULE, caller, lambda _client: gone.done() or gone.set_result(None)
        )
        theirs.setblocking(False)
        ours.setblocking(False)
        VarlinkTransport(self.loop, theirs, theirs, client, boundary_predictor=None)
        answer = b""
        with ours:
            ours.send(data)
            ours.shutdown(socket.SHUT_WR)
            while len(answer) < _ANSWER_BYTES:
                try:
                    more = await self.loop.sock_recv(ours, 1 << 16)
                except ConnectionError:
                    break
                if not more:
                    break
                answer += more
        await gone
        await client.ended()
        for _turn in range(TURNS):  # calls that wait are still taken, and answered to nobody
            if not (left := asyncio.all_tasks() - self.before):
                break
            await asyncio.sleep(0)
        self.wrong += [f"is left: {task!r}" for task in left]
        return answer


_service: list[_Service] = []


def check(data: bytes) -> None:
    """Send calls; each answer is JSON, and none says that the daemon has failed."""
    if not data:
        return
    if not _service:
        _service.append(_Service())
    service = _service[0]
    service.reset()
    before = service.state()
    writer = bool(data[0] & 1)
    methods.SLICE_S = -1.0 if data[0] & 2 else SLICE_S
    talk = asyncio.wait_for(service.talk(data[1:], writer=writer), PATIENCE_S)
    answer = service.loop.run_until_complete(talk)
    assert not service.wrong, service.wrong
    replies = [json.loads(part) for part in answer.split(b"\0") if part]
    errors = [reply for reply in replies if "error" in reply]
    assert not any(reply["error"] == f"{INTERFACE}.Internal" for reply in errors), errors
    calls = data[1:].count(b"\0")
    assert len(data) < CALL_MAX_BYTES
    if not writer or (len(errors) == calls <= CALLS_MAX and errors == replies):
        assert service.state() == before, "a refused call has changed something"


WORDS = (*JSON, '""')
"""What fuzzers are to try in place of anything."""
_PARAMETERS: dict[str, Any] = {
    "element": "t1:1", "plane": 1, "peer": "h2", "name": "h2",
    "text": "[transport]\nprobe_pps = 1\n", "force": True, "seconds": 1, "interval_ms": 100,
    "count": 1, "level": "debug", "confirm_s": 5, "hours": 1.0, "since": 0, "direction": "rx",
}  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Yield a call of each method with parameters and without, by callers that may write or not."""
    import inspect

    names = [name for name in vars(methods.Control) if not name.startswith("_")]
    for name in names:
        method = getattr(methods.Control, name)
        try:
            wanted = [key for key in inspect.signature(method).parameters if key != "self"]
        except (TypeError, ValueError):
            wanted = list(_PARAMETERS)
        given = {key: _PARAMETERS[key] for key in wanted if key in _PARAMETERS}
        for parameters in ({}, given):
            for more in ({}, {"more": True}):
                call = {"method": f"{INTERFACE}.{name}", "parameters": parameters, **more}
                for first in (b"\0", b"\1", b"\2"):
                    yield first + json.dumps(call).encode() + b"\0"
    for word in WORDS:
        yield b"\1" + word.encode() + b"\0"
        for method, key in (
            ("Drain", "plane"),
            ("Deny", "element"),
            ("Invite", "hours"),
            ("DiffConfig", "text"),
            ("SetLogLevel", "seconds"),
            ("Monitor", "interval_ms"),
            ("Invite", "name"),
        ):
            more = '"more":true,' if method == "Monitor" else ""
            call = f'{{"method":"{INTERFACE}.{method}",{more}"parameters":{{"{key}":{word}}}}}'
            yield b"\1" + call.encode() + b"\0"
    for name in ("GetInfo", "GetInterfaceDescription"):
        call = {"method": f"org.varlink.service.{name}", "parameters": {"interface": INTERFACE}}
        yield b"\0" + json.dumps(call).encode() + b"\0"
    yield b"\1" + b'{"method":"io.mrcd.Control.GetStatus","oneway":true}\0' * 3
