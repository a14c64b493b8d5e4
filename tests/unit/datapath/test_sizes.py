# SPDX-License-Identifier: GPL-2.0-only
"""Test the sizes of maps, and the fingerprints that identify a running data path."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.datapath import sizes
from mrcd.datapath.sizes import Sizes
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE
from mrcd.wire.sources import bpf_dir

SIZES = Sizes(8872, 4096, 8192, 4, 16, 64, 1024, 64, 0)
MAPS = (bpf_dir() / "maps.c").read_text()
TREATY = {"abi": ABI, "wire": WIRE}
IDENTITY: dict[str, object] = {"host": ["h1", 1, 1], "planes": 4}


def key(
    size: Sizes = SIZES,
    maps: str = MAPS,
    identity: dict[str, object] = IDENTITY,
) -> str:
    return sizes.layout_key(size, maps, TREATY, identity)


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


# ---- the layout


def test_layout__is_the_same_each_time_and_whatever_the_capacities() -> None:
    assert key() == key()
    assert key(replace(SIZES, peers=100, qps=400, prefixes=9, loops=99)) == key()
    assert re.fullmatch(r"[0-9a-f]{16}", key())


@pytest.mark.parametrize(
    "other",
    [{"mtu": 1500}, {"window": 2048}, {"ring_slots": 4096}, {"evs": 32}, {"encap": 1}],
    ids=lambda other: next(iter(other)),
)
def test_layout__depends_on_what_is_compiled_in(other: dict[str, int]) -> None:
    assert key(replace(SIZES, **other)) != key()


def test_layout__depends_on_who_this_host_is() -> None:
    assert key(identity={**IDENTITY, "host": ["h1", 1, 2]}) != key()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("BPF_ARRAY(qps, struct mrc_qp, CFG_MAX_QPS)", "BPF_ARRAY(qps, u64, CFG_MAX_QPS)"),
        ("BPF_ARRAY(qps, struct mrc_qp, CFG_MAX_QPS)", "BPF_HASH(qps, struct mrc_qp, CFG_MAX_QPS)"),
        ("CFG_MAX_PEERS * MRC_MAX_PLANES", "CFG_MAX_PEERS * 9"),
        ("	__u64 tag; ", "	__u32 tag; "),
        ("BPF_RINGBUF_OUTPUT(events, 16);", "BPF_RINGBUF_OUTPUT(events, 32);"),
    ],
)
def test_layout__depends_on_every_map(old: str, new: str) -> None:
    assert old in MAPS
    assert key(maps=MAPS.replace(old, new)) != key()


def test_layout__does_not_depend_on_comments_white_space_or_code() -> None:
    text = re.sub(r"/\*.*?\*/", "/* other words */", MAPS, flags=re.S)
    text = text.replace("BPF_ARRAY(host,", "BPF_ARRAY(host, ").replace(
        "return chains", "return  chains"
    )
    assert key(maps=text) == key()


def test_layout__depends_on_the_treaty() -> None:
    def with_header(name: str, **change: object) -> str:
        treaty = {**TREATY, name: replace(TREATY[name], **change)}  # type: ignore[arg-type]
        return sizes.layout_key(SIZES, MAPS, treaty, IDENTITY)

    structs = {**ABI.structs, "mrc_qp": replace(ABI.structs["mrc_qp"], size=64)}
    assert with_header("abi", structs=structs) != key()
    assert with_header("abi", constants={**ABI.constants, "MRC_QP_READY": 9}) != key()
    assert with_header("wire", constants={**WIRE.constants, "MRC_QPN_ENDPOINT": 3}) != key()


def test_definitions__finds_every_map_that_is_loaded() -> None:
    from mrcd.datapath.loader import MAPS as names

    found = "\n".join(sizes.definitions(MAPS))
    for name in names:
        assert re.search(rf"\b{name}\b", found), name


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
