# SPDX-License-Identifier: GPL-2.0-only
"""Test the sizes of maps, and the key of programs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.datapath import sizes
from mrcd.datapath.sizes import Sizes

SIZES = Sizes(8872, 4096, 8192, 4, 16, 64, 1024, 64, 0)

# ---- room


@pytest.mark.parametrize(
    ("count", "room"), [(0, 4), (1, 4), (3, 4), (4, 8), (10, 12), (100, 104), (10_000, 10_240)]
)
def test_room_for_peers(count: int, room: int) -> None:
    assert sizes.room_for_peers(count) == room


@given(st.integers(0, 200_000))
def test_there_is_always_room_for_one_more_and_never_for_many(count: int) -> None:
    room = sizes.room_for_peers(count)
    assert count < room <= max(count + 4, count + count // 8 + 1)
    assert sizes.room_for_loops(count) > count
    assert sizes.room_for_prefixes(count) > count


def test_lacking__says_what_does_not_fit() -> None:
    assert SIZES.lacking(SIZES) == []
    assert SIZES.lacking(replace(SIZES, peers=1, qps=4, prefixes=0, loops=1)) == []
    assert SIZES.lacking(replace(SIZES, peers=5, qps=20)) == [
        "peers: 4 fit, 5 are wanted",
        "qps: 16 fit, 20 are wanted",
    ]


# ---- the code


def test_code__depends_on_source_constants_and_kernel() -> None:
    base = sizes.code_key("int x;", SIZES, "6.18")
    assert sizes.code_key("int x;", SIZES, "6.18") == base
    assert base not in {
        sizes.code_key("int y;", SIZES, "6.18"),
        sizes.code_key("int x;", replace(SIZES, qps=17), "6.18"),
        sizes.code_key("int x;", SIZES, "6.19"),
        sizes.code_key("int x;", replace(SIZES, xdp=True), "6.18"),
    }
