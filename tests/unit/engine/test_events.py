# SPDX-License-Identifier: GPL-2.0-only
"""Test which part acts on what the programs report."""

from __future__ import annotations

from typing import Any

import pytest

from mrcd.datapath.view import WHY_FAILED
from mrcd.engine.events import Events
from mrcd.fabric import usid
from mrcd.wire.abi import ABI

NOBODY, OURS = 1, 5
EV = usid.ev(1, 2)
PATH, DEAF = ABI.MRC_EVENT_PATH, ABI.MRC_EVENT_DEAF
STEP, FAILED = ABI.MRC_EVENT_OUT_OF_STEP, ABI.MRC_EVENT_FAILED


def event(kind: int, *, qp: int = OURS, path: int = 3, cause: int = 0) -> dict[str, int]:
    state = ABI.MRC_PATH_GOOD
    return {"kind": kind, "qp": qp, "ev": EV, "path": path, "state": state, "cause": cause}


class Parts:
    """Sessions, trials and a feed that note what they are told."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.events = Events({OURS: "b"}.get, self)  # type: ignore[arg-type]

    def publish(self, told: dict[str, int]) -> None:
        self.done.append(("published", told["ev"]))

    def doubt(self, peer: str, plane: int | None) -> None:
        self.done.append(("doubted", peer, plane))

    def begin_anew(self, peer: str) -> None:
        self.done.append(("begun anew", peer))

    def replace_failed(self, peer: str, qp: int, why: str) -> None:
        self.done.append(("replaced", peer, qp, why))


@pytest.fixture
def parts() -> Parts:
    return Parts()


def begun(parts: Parts) -> Parts:
    parts.events.begin(parts, parts)  # type: ignore[arg-type]
    return parts


@pytest.mark.parametrize(
    ("told", "done"),
    [
        (event(PATH), ("published", EV)),
        (event(DEAF), ("doubted", "b", 1)),
        (event(DEAF, path=ABI.MRC_NO_PATH), ("doubted", "b", None)),
        (event(STEP), ("begun anew", "b")),
        *((event(FAILED, cause=n), ("replaced", "b", OURS, why)) for n, why in WHY_FAILED.items()),
        (event(FAILED, cause=99), ("replaced", "b", OURS, "cause 99")),
    ],
)
def test_event_reaches_the_part_that_it_concerns(
    parts: Parts, told: dict[str, int], done: tuple[Any, ...]
) -> None:
    begun(parts).events.act(told)
    assert parts.done == [done]


@pytest.mark.parametrize("kind", [PATH, DEAF, STEP, FAILED])
def test_nothing_acts_before_there_are_sessions(parts: Parts, kind: int) -> None:
    parts.events.act(event(kind))
    assert parts.done == []


@pytest.mark.parametrize("kind", [DEAF, STEP, FAILED])
def test_qp_of_a_peer_that_is_gone_concerns_nobody(parts: Parts, kind: int) -> None:
    begun(parts).events.act(event(kind, qp=NOBODY))
    assert parts.done == []
