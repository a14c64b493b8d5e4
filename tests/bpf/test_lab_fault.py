# SPDX-License-Identifier: GPL-2.0-only
"""The program behind a lab's faults on made packets: drops, damage, redirects, what it spares."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator

import pytest

from cli.lab import holding, impair
from cli.lab.faults import PPM, Impairment
from mrcd.linux import bpf
from tests.bpf.test_marking import UNSPEC, ipv6

SHOT, REDIRECT = 2, 7
PACKET = ipv6(0, 400)
HEADERS = 54
_AT_MARK, _CONTEXT = 8, 192

Run = Callable[..., tuple[int, bytes]]


@pytest.fixture
def loaded() -> Iterator[Callable[..., Run]]:
    """Return what loads the program for a fault, and returns what runs it on a packet."""
    if os.geteuid() != 0:
        pytest.skip("loading BPF programs needs root")
    handles: list[int] = []

    def load(impairment: Impairment, to: int = 0, *, once: bool = False) -> Run:
        handles.append(impair.load(impairment, to, once=once))
        program = handles[-1]

        def run(packet: bytes = PACKET, mark: int = 0) -> tuple[int, bytes]:
            context = bytearray(_CONTEXT)
            struct.pack_into("=I", context, _AT_MARK, mark)
            test = bpf.TestRun(program, packet, out_size=len(packet), context=bytes(context))
            return test.run(), test.output

        return run

    yield load
    for handle in handles:
        os.close(handle)


@pytest.mark.parametrize(("ppm", "verdict"), [(0, UNSPEC), (PPM, SHOT)])
def test_none_or_all_are_dropped(loaded: Callable[..., Run], ppm: int, verdict: int) -> None:
    run = loaded(Impairment(drop_ppm=ppm))
    assert {run() for _ in range(200)} == {(verdict, PACKET)}


def test_a_part_is_dropped(loaded: Callable[..., Run]) -> None:
    run = loaded(Impairment(drop_ppm=300_000))
    dropped = sum(run()[0] == SHOT for _ in range(4000))
    assert 1000 < dropped < 1400  # 1,200, and 29 in a standard deviation


def test_one_bit_behind_the_outer_headers_is_flipped(loaded: Callable[..., Run]) -> None:
    run = loaded(Impairment(corrupt_ppm=PPM))
    places = set()
    for _ in range(500):
        verdict, packet = run()
        assert verdict == UNSPEC
        changed = int.from_bytes(packet, "big") ^ int.from_bytes(PACKET, "big")
        assert changed.bit_count() == 1
        places.add(len(PACKET) - 1 - (changed.bit_length() - 1) // 8)
    assert min(places) >= HEADERS
    assert len(places) > 200
    short = PACKET[:HEADERS]
    assert run(short) == (UNSPEC, short)


def test_what_survives_is_redirected_once(loaded: Callable[..., Run]) -> None:
    run = loaded(Impairment(), 1, once=True)
    assert run()[0] == REDIRECT
    assert run(mark=holding.MARK)[0] == UNSPEC
    assert loaded(Impairment(), 1)(mark=holding.MARK)[0] == REDIRECT
