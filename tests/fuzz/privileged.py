# SPDX-License-Identifier: GPL-2.0-only
"""Requests to the privileged process, up to the kernel, which is left out.

The first byte says what the configuration calls for; the second is not used.
What passes the checks is looked at once more, by a rule that is written otherwise than they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any
from unittest import mock

from mrcd.linux.privileged import requests, server
from mrcd.linux.privileged.permits import SUFFIXES, Permits, Plane, Undone, loads
from mrcd.linux.privileged.requests import KINDS, Request
from tests.fuzz.words import JSON

FOLDER = "/sys/fs/bpf/mrcd"
FABRIC = Permits(
    "mrc0", {"nic0": Plane("fdcb::1:0/64", "fdcb::/32", "fdcb::2:0")}, ("0.0.0.0/0",), FOLDER
)
NETWORK = Permits(
    "mrc0", {"nic0": Plane("192.0.2.1", None, None), "nic1": Plane(None, None, None)}, (), FOLDER
)
UNDONE = Undone(
    frozenset({"former"}), frozenset({"former"}), frozenset({("former", "10.0.0.1/24")}),
    frozenset({("former", "10.0.0.0/8")}),
)  # fmt: skip
OURS = {f"mrc0{suffix}" for suffix in SUFFIXES}
TAKEN_AWAY = (
    requests.DeleteLink,
    requests.DetachClsact,
    requests.DeleteAddress,
    requests.DeleteRoute,
)
NEW_NAMES = ("other",)


def _touched(request: Request) -> Iterator[str]:
    """Yield the interfaces that a request is about."""
    for field in ("name", "dev", "lower", *NEW_NAMES):
        if (name := getattr(request, field, None)) is not None:
            yield name


def _looked_at(request: Request, permits: Permits) -> None:
    """Assert that nothing but ours is touched."""
    allowed = OURS | permits.planes.keys()
    allowed |= {"former"} if isinstance(request, TAKEN_AWAY) else set()
    for name in _touched(request):
        assert name in allowed, f"{request} is about {name}"
    if isinstance(request, requests.SetLink | requests.SetFeatures | requests.DeleteLink):
        assert not set(_touched(request)) & permits.planes.keys(), request
    if isinstance(request, requests.Load):
        order = json.loads(request.order)
        assert str(order["folder"]).startswith(f"{FOLDER}/layout-")
        assert ".." not in order["folder"]
    if isinstance(request, requests.AddAddress | requests.ReplaceRoute):
        for value in asdict(request).values():
            assert not isinstance(value, str) or value.isascii(), request


class _Server(server.Server):
    """A server whose requests end before the kernel."""

    def __init__(self, permits: Permits) -> None:
        self.done: list[Request] = []
        self._permits = permits
        self._undone = UNDONE
        self._called = {7: "mrc0"}
        self._config = "/nowhere"
        self._stamp: list[tuple[int, int]] = []

    def _carry_out(self, request: Request, fds: list[int]) -> tuple[Any, list[int]]:
        self.done.append(request)
        return None, []


def check(data: bytes) -> None:
    """Answer one request."""
    if len(data) < 2:
        return
    permits = (FABRIC, NETWORK)[data[0] & 1]
    serving = _Server(permits)
    with mock.patch.object(server, "_index", lambda name: 7 if name == "renamed" else 0):
        answer, passed = serving._answer(data[2:], [])
        for request in serving.done:
            _looked_at(serving._as_configured(request), permits)
    assert passed == []
    assert ("error" in answer) == (not serving.done), answer
    assert len(json.dumps(answer).encode()) < requests.BYTES_MAX
    for request in serving.done:
        assert requests.decode(requests.encode(request)) == request
    assert loads(permits.dumps()) == permits


WORDS = JSON
"""What fuzzers are to try in place of anything."""
_SAMPLES: dict[str, Any] = {
    "name": "mrc0", "other": "mrc0p", "lower": "mrc0p", "dev": "mrc0", "mtu": 1500,
    "mac": "02:00:00:00:00:01", "other_mac": "02:00:00:00:00:02", "port": 4974, "index": 7,
    "cidr": "10.99.0.1/24", "dst": "10.99.0.0/24", "ip": "fe80::1", "rate": 1000, "burst": 100,
    "limit": 1000, "program": "mrc_spray", "direction": "ingress", "attach": 46, "flags": 0,
    "protocol": 17, "address": "192.0.2.1", "size": 4096, "ident": 5, "ifindex": 7,
}  # fmt: skip
_ORDER = {"folder": f"{FOLDER}/layout-0a", "code": "abc", "sizes": {"mtu": 1500, "xdp": False},
          "adopt": True}  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Yield a request of each kind, on each kind of interface."""
    for kind in KINDS.values():
        names = {field.name for field in fields(kind)}
        given: dict[str, Any] = {name: _SAMPLES.get(name) for name in names}
        for flag in ("nodad", "prefix_route", "ecn"):
            if flag in names:
                given[flag] = False
        if "order" in names:
            given["order"] = json.dumps(_ORDER)
        for name in ("mrc0", "nic0", "nic1", "former", "renamed", "mrc0b", "mrc0u"):
            changed = {key: name for key in ("name", "dev") if key in names}
            for first in (b"\0\0", b"\1\0"):
                yield first + requests.encode(kind(**{**given, **changed}))
    for word in WORDS:
        yield b"\0\0" + word.encode()
        yield b"\0\0" + f'{{"do": "NameProgram", "ident": {word}, "ifindex": 1}}'.encode()
        yield b"\0\0" + f'{{"do": "DeleteLink", "name": {word}}}'.encode()
        yield b"\0\0" + requests.encode(requests.Load(word))
        sizes = json.dumps(_ORDER).replace("1500", word)
        yield b"\0\0" + requests.encode(requests.Load(sizes))
