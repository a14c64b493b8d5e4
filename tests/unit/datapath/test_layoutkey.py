# SPDX-License-Identifier: GPL-2.0-only
"""Test that a layout's key changes with what the maps' contents depend on, and with nothing else.

Each test alters the real sources as a developer would, and compares the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mrcd.datapath import layoutkey
from mrcd.datapath.layoutkey import LEFT, MEANING, MEANINGLESS
from mrcd.datapath.loader import MAPS, source
from mrcd.datapath.sizes import Sizes
from mrcd.wire.abi import ABI

SIZES = Sizes(8872, 4096, 8192, 4, 16, 64, 1024, 64, 0)
SOURCE = source()
IDENTITY: dict[str, object] = {"host": ["h1", 1, 1], "planes": 4}
STRUCT = re.compile(r"^struct (\w+) \{(.*?)^\};", re.M | re.S)
MAP = re.compile(r"^BPF_\w+\([^;]*\);", re.M)
MEMBER = re.compile(r"^\t(?:struct )?\w+ \w+(?:\[[^\]]*\])?;[^\S\n]*\n", re.M)
OTHER_TYPE = {"u8": "u16", "u16": "u32", "u32": "s32", "s32": "u32", "u64": "s64"}
NOT_IN_MAPS = {"mrc_beat", "mrc_command"}
"""The struct of mrc_abi.h that no map holds."""


def key(
    text: str = SOURCE,
    size: Sizes = SIZES,
    identity: dict[str, object] = IDENTITY,
) -> str:
    return layoutkey.layout_key(text, size, MAPS, identity)


KEY = key()


def altered(old: str, new: str) -> str:
    """Return the sources with one place altered."""
    assert SOURCE.count(old) == 1, old
    return SOURCE.replace(old, new)


# ---- structs


BARE = re.sub(r"^\s*\n", "", re.sub(r"/\*.*?\*/", "", SOURCE, flags=re.S), flags=re.M)
DECLARATIONS = "\n".join(
    [*re.findall(r"^#define.*", BARE, re.M), *MAP.findall(BARE)]
    + [f"struct {name} {{{body}}};" for name, body in STRUCT.findall(BARE)]
)
"""The sources without the functions, which is read many times faster."""


def structs() -> dict[str, str]:
    """Return the bodies of all structs in maps that outlive a daemon, by name."""
    bodies = dict(STRUCT.findall(BARE))
    found: dict[str, str] = {}

    def add(name: str) -> None:
        if name in bodies and name not in found:
            found[name] = bodies[name]
            for inner in re.findall(r"struct (\w+)", bodies[name]):
                add(inner)

    for declared in MAP.findall(BARE):
        if any(re.search(rf"[(,] ?{name}\b", declared) for name in MAPS):
            for name in re.findall(r"struct (\w+)", declared):
                add(name)
    for name in LEFT:
        add(name)
    return found


STRUCTS = structs()


def bodies_altered(name: str) -> Iterator[tuple[str, str]]:
    """Yield what was done to a struct, and its body afterwards, for each of its members."""
    body = STRUCTS[name]
    members = MEMBER.findall(body)
    assert members, name
    for i, member in enumerate(members):
        said = member.split(";")[0].strip()
        other = {
            "removed": "",
            "with another behind it": f"{member}\t__u64 another;\n",
            "renamed": re.sub(r"(\w+)(?=\[|;)", r"\1_", member, count=1),
        }
        kind = re.match(r"\t(?:__)?(\w+) ", member)
        if kind and kind[1] in OTHER_TYPE:
            other["of another type"] = re.sub(
                r"^\t(?:__)?\w+", "\t__" + OTHER_TYPE[kind[1]], member
            )
        if "[" in said:
            other["longer"] = member.replace("]", " + 1]", 1)
        for what, text in other.items():
            yield f"{said} {what}", body.replace(member, text, 1)
        if i:
            pair = members[i - 1] + member
            yield f"{said} moved", body.replace(pair, member + members[i - 1], 1)


def test_every_member_of_every_struct_is_looked_at() -> None:
    """The tests below would be empty if they did not find the members."""
    assert {*ABI.structs} - NOT_IN_MAPS <= STRUCTS.keys()
    ours = {"mrc_slot", "mrc_big", "mrc_chain", "learn_args", "judge_state", "cell"}
    assert ours <= STRUCTS.keys()
    for name in ABI.structs.keys() - NOT_IN_MAPS:
        assert len(MEMBER.findall(STRUCTS[name])) == len(ABI.structs[name].fields), name
    assert key(DECLARATIONS) == KEY


@pytest.mark.parametrize("name", STRUCTS)
def test_struct__each_change_of_a_member_changes_the_key(name: str) -> None:
    keys, whats = {KEY}, 0
    for what, body in bodies_altered(name):
        text = DECLARATIONS.replace(STRUCTS[name], body)
        assert text != DECLARATIONS, what
        found = key(text)
        assert found not in keys, f"struct {name}: {what}"
        keys.add(found)
        whats += 1
    assert whats >= 3 * len(MEMBER.findall(STRUCTS[name]))


def test_struct__that_no_map_holds_is_not_in_the_key() -> None:
    assert key(altered("\t__u32 path;\n\t__u32 value;\n", "\t__u32 value;\n")) == KEY
    assert key(SOURCE + "\nstruct mrc_news {\n\t__u32 a;\n};\n") == KEY


# ---- maps


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("BPF_ARRAY(qps, struct mrc_qp, CFG_MAX_QPS)", "BPF_ARRAY(qps, u64, CFG_MAX_QPS)"),
        ("BPF_ARRAY(qps, struct mrc_qp, CFG_MAX_QPS)", "BPF_HASH(qps, struct mrc_qp, CFG_MAX_QPS)"),
        ("CFG_MAX_QPS * MRC_MAX_PLANES * CFG_EVS", "CFG_MAX_QPS * 9 * CFG_EVS"),
        ("BPF_HASH(addresses, struct mrc_address", "BPF_HASH(addresses, struct mrc_prefix"),
        ("BPF_RINGBUF_OUTPUT(events, 16);", "BPF_RINGBUF_OUTPUT(events, 32);"),
        ("BPF_PERCPU_ARRAY(counters, u64,", "BPF_PERCPU_ARRAY(counters, u32,"),
        ("BPF_PERCPU_ARRAY(counters, u64,", "BPF_ARRAY(counters, u64,"),
        ("#define MRC_COUNTERS_ROOM 256", "#define MRC_COUNTERS_ROOM 512"),
        ("#define TAIL_COUNT 15", "#define TAIL_COUNT 16"),
        ("#define CHAIN_COUNT 2", "#define CHAIN_COUNT 3"),
        ("#define RESEND_MAX 16", "#define RESEND_MAX 32"),
        ("active, CFG_ACTIVE_WORDS, BPF_F_MMAPABLE", "active, CFG_ACTIVE_WORDS, 0"),
    ],
    ids=lambda text: text[:40],
)
def test_map__each_change_changes_the_key(old: str, new: str) -> None:
    assert key(altered(old, new)) != KEY


@pytest.mark.parametrize("name", MAPS)
def test_map__every_one_that_is_kept_is_in_the_key(name: str) -> None:
    assert layoutkey.layout_key(SOURCE, SIZES, [m for m in MAPS if m != name], IDENTITY) != KEY


def test_map__that_is_not_declared_is_an_error() -> None:
    with pytest.raises(KeyError, match="no_such_map"):
        layoutkey.layout_key(SOURCE, SIZES, ["no_such_map"], IDENTITY)


def test_struct__that_is_not_understood_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"struct mrc_qp: .*no plain member"):
        key(altered("\t__u32 framing; ", "\t__u32 framing : 4; "))
    with pytest.raises(ValueError, match="UNKNOWN"):
        key(altered("\t__u64 returned; ", "\t__u64 returned[UNKNOWN]; "))


# ---- constants


def test_constant__is_either_part_of_the_contents_or_known_not_to_be() -> None:
    """A new constant of mrc_abi.h: does what is in the maps change its meaning with it?"""
    undecided = {n for n in ABI.constants if not n.startswith((*MEANING, *MEANINGLESS))}
    assert undecided == set()


def test_constant__that_contents_are_made_of_changes_the_key() -> None:
    for old, new in (
        ("#define MRC_QP_READY 3", "#define MRC_QP_READY 4"),
        ("#define MRC_ABI_VERSION 1", "#define MRC_ABI_VERSION 2"),
        ("#define MRC_C_RTX_FIFO 6", "#define MRC_C_RTX_FIFO 9"),
        ("#define MRC_TAG_PARTIAL (1ull << 63)", "#define MRC_TAG_PARTIAL (1ull << 62)"),
        ("#define MRC_EV_PLANE_SHIFT 28", "#define MRC_EV_PLANE_SHIFT 29"),
        ("#define INNER_FOREIGN 1", "#define INNER_FOREIGN 3"),
        ("#define TAIL_LEARN 1", "#define TAIL_LEARN 9"),
    ):
        assert key(altered(old, new)) != KEY, old


def test_constant__that_contents_do_not_depend_on_is_not_in_the_key() -> None:
    for old, new in (
        ("#define MRC_DO_ROOM 4", "#define MRC_DO_ROOM 5"),
        ("#define MRC_QPN_ENDPOINT 2", "#define MRC_QPN_ENDPOINT 3"),
        ("#define MRC_KICK_MARK 0x6d6b0000", "#define MRC_KICK_MARK 0x6d6c0000"),
        ("#define MRC_PIECE_BYTES 15872", "#define MRC_PIECE_BYTES 15000"),
        ("#define MRC_ABI_H\n", "#define MRC_ABI_H\n#define MRC_DAEMON_ONLY 7\n"),
    ):
        assert key(altered(old, new)) == KEY, old


# ---- what may change


def test_counter__a_new_one_resets_no_qp() -> None:
    count = ABI.MRC_C_COUNT
    new = f"#define MRC_C_NEWS {count} /* news */\n#define MRC_C_COUNT {count + 1}\n"
    assert key(altered(f"#define MRC_C_COUNT {count}\n", new)) == KEY


def test_counter__one_less_or_other_numbers_reset_no_qp() -> None:
    last = list(ABI.comments)[-1]
    line = re.search(r"^#define MRC_C_DROP_NOT_HERE .*\n", SOURCE, re.M)
    assert line, last
    fewer = SOURCE.replace(line[0], "").replace(
        "#define MRC_C_COUNT 103", "#define MRC_C_COUNT 102"
    )
    assert fewer != SOURCE
    assert key(fewer) == KEY
    assert key(SOURCE.replace("MRC_C_DROP_TAG 99 ", "MRC_C_DROP_TAG 98 ")) == KEY


def test_comments_white_space_and_spelling_reset_no_qp() -> None:
    text = re.sub(r"/\*.*?\*/", "/* other words */", SOURCE, flags=re.S)
    assert key(text) == KEY
    assert key(re.sub(r"/\*.*?\*/", "", SOURCE, flags=re.S)) == KEY
    assert (
        key(altered("BPF_ARRAY(host, struct mrc_host, 1)", "BPF_ARRAY( host,struct mrc_host,\n1 )"))
        == KEY
    )
    assert key(altered("\t__u32 link_ifindex; ", "\tu32   link_ifindex ; ")) == KEY
    assert key(altered("#define CHAIN_COUNT 2", "#define CHAIN_COUNT (1 + 1)")) == KEY
    assert key(altered("#define MRC_WINDOW_MAX 8192", "#define MRC_WINDOW_MAX 0x2000")) == KEY


def test_text_of_programs_resets_no_qp() -> None:
    assert (
        key(altered("return chains.lookup(&chain);", "return chains.lookup(&chain) ?: 0;")) == KEY
    )
    assert key(SOURCE + "\nint mrc_new(struct __sk_buff *skb)\n{\n\treturn 0;\n}\n") == KEY
    assert key(altered("#define REVERSE_SACKS 4 ", "#define REVERSE_SACKS 8 ")) == KEY


def test_order_of_declarations_resets_no_qp() -> None:
    text = altered("BPF_ARRAY(txs, struct mrc_tx, CFG_MAX_QPS);\n", "")
    anchor = "BPF_ARRAY(host, struct mrc_host, 1);\n"
    assert (
        key(text.replace(anchor, anchor + "BPF_ARRAY(txs, struct mrc_tx, CFG_MAX_QPS);\n")) == KEY
    )


# ---- what is compiled in, and who this host is


def test_key__is_the_same_each_time_and_whatever_the_capacities() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", KEY)
    assert key() == KEY
    assert key(size=replace(SIZES, peers=100, qps=400, prefixes=9, loops=99)) == KEY
    assert key(size=replace(SIZES, decap=True, capture=True)) == KEY


@pytest.mark.parametrize(
    "other",
    [
        {"mtu": 1500},
        {"window": 2048},
        {"ring_slots": 4096},
        {"cell_slots": 64},
        {"evs": 32},
        {"encap": 1},
        {"xdp": True},
    ],
    ids=lambda other: next(iter(other)),
)
def test_key__depends_on_what_is_compiled_in(other: dict[str, int]) -> None:
    assert key(size=replace(SIZES, **other)) != KEY  # type: ignore[arg-type]


def test_key__depends_on_who_this_host_is() -> None:
    assert key(identity={**IDENTITY, "host": ["h1", 1, 2]}) != KEY
