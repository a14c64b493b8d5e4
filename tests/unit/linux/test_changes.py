# SPDX-License-Identifier: GPL-2.0-only
"""Test that whatever the daemon changes by netlink is a request, and who carries it out."""

from __future__ import annotations

import ast
import asyncio
import errno
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mrcd.linux.netlink import Netlink, NetlinkFailed, changes
from mrcd.linux.privileged import client, requests, server
from mrcd.linux.privileged.requests import AttachClsact, DeleteLink, Request

MRCD = Path(__file__).parents[3] / "mrcd"
READING = {
    "addresses",
    "change",
    "clsact_before",
    "clsact_program",
    "exists",
    "fib",
    "index",
    "leads",
    "links",
    "neighbor",
    "nudge_neighbor",
    "qdiscs",
    "resolve_neighbor",
    "routes",
    "rules",
    "watch",
    "way_to",
    "xdp_program",
}
WITH_FDS = {requests.CreateLink, requests.RawSocket, requests.ForceBuffer, requests.Load}
DELETE = DeleteLink("mrc0p")


def test_every_request_has_work() -> None:
    known = changes.KINDS | server.OTHERS.keys() | WITH_FDS
    assert known == set(requests.KINDS.values())
    assert not changes.KINDS & server.OTHERS.keys()


def calls(tree: ast.AST) -> Iterator[str]:
    """Yield the names of the methods that are called in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr


def test_the_daemon_changes_nothing_but_by_requests() -> None:
    methods = {
        name for name, _ in inspect.getmembers(Netlink, inspect.isfunction) if name[0] != "_"
    }
    changing = methods - READING
    assert {"set_link", "replace_route", "attach_clsact"} <= changing
    found = {
        (file.name, name)
        for file in MRCD.rglob("*.py")
        if "linux" not in file.parts
        for name in calls(ast.parse(file.read_text()))
        if name in changing
    }
    assert found == set()


class Channel:
    """A privileged process that refuses what it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Request, Sequence[int]]] = []
        self.refusal: OSError | None = None

    def ask(self, request: Request, fds: Sequence[int] = ()) -> Any:
        self.asked.append((request, fds))
        if self.refusal is not None:
            raise self.refusal

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def channel() -> Iterator[Channel]:
    double = Channel()
    with client.use(double):  # type: ignore[arg-type]
        yield double


def test_change__asks_the_privileged_process(channel: Channel) -> None:
    attach = AttachClsact("eth1", "mrc_receive", "ingress")
    asyncio.run(Netlink().change(DELETE))
    asyncio.run(Netlink().change(attach, [7]))
    assert channel.asked == [(DELETE, ()), (attach, [7])]


def test_change__says_what_was_refused(channel: Channel) -> None:
    channel.refusal = OSError(errno.EBUSY, "could not delete link mrc0p: Device or resource busy")
    with pytest.raises(NetlinkFailed, match="could not delete link mrc0p") as refused:
        asyncio.run(Netlink().change(DELETE))
    assert refused.value.errno == errno.EBUSY


def test_change__of_another_namespace_is_no_matter_of_the_privileged_process(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Request] = []

    async def carry_out(_nl: Netlink, request: Request, _fds: Sequence[int]) -> None:
        await asyncio.sleep(0)
        done.append(request)

    monkeypatch.setattr(changes, "carry_out", carry_out)
    asyncio.run(Netlink("elsewhere").change(DELETE))
    assert (done, channel.asked) == ([DELETE], [])
