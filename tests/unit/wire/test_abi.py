# SPDX-License-Identifier: GPL-2.0-only
"""Test the header of the maps: counters, and the sizes that C's arithmetic relies on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from mrcd.wire.abi import ABI, COUNTERS
from mrcd.wire.packet import WIRE


def test_counters_are_numbered_without_gaps() -> None:
    assert [index for index, _name, _text in COUNTERS] == list(range(ABI.MRC_C_COUNT))


def test_counters_have_names_of_their_own_and_meanings() -> None:
    names = [name for _index, name, _text in COUNTERS]
    assert len(set(names)) == len(COUNTERS)
    for _index, name, text in COUNTERS:
        assert re.fullmatch(r"[a-z][a-z0-9_]+", name)
        assert len(text) > 10
        assert text.startswith("dropped: ") == name.startswith("drop_"), name


def test_every_counter_is_used() -> None:
    sources = "".join(path.read_text() for path in ABI.path.parent.glob("*.[ch]"))
    for _index, name, _text in COUNTERS:
        assert len(re.findall(rf"\bMRC_C_{name.upper()}\b", sources)) > 1, name


def test_sizes_that_index_arithmetic_relies_on() -> None:
    assert ABI.MRC_WINDOW_MAX == 64 * ABI.MRC_WINDOW_WORDS
    assert ABI.MRC_WINDOW_MAX & (ABI.MRC_WINDOW_MAX - 1) == 0
    assert ABI.MRC_MAX_PLANES == 8  # a path is plane << 8 | index, and a mask has 8 bits
    assert ABI.MRC_EVS_PER_PLANE == 64 * ABI.MRC_EV_WORDS  # slot k is bit k & 63 of word k >> 6
    assert ABI.MRC_SET_WORDS == ABI.MRC_MAX_PLANES * ABI.MRC_EV_WORDS
    sets = ("use", "skip", "slow", "spare", "denied", "all")
    assert {ABI.structs["mrc_tx"].fields[name].count for name in sets} == {ABI.MRC_SET_WORDS}
    assert ABI.MRC_SHARE_FULL == 128  # bit 7 of a byte of `thin` marks a plane's turn


def test_locks_stand_first() -> None:
    """The kernel requires a spin lock on a multiple of four; ours are first in their structs."""
    for name in ("mrc_tx", "mrc_rx"):
        assert ABI.structs[name].fields["lock"].offset == 0


def test_64_bit_members_are_aligned() -> None:
    """Atomic instructions require alignment, and no struct is packed."""
    for layout in ABI.structs.values():
        for field in layout.fields.values():
            assert field.offset % field.item_size == 0, f"{layout.name}.{field.name}"


def test_mark_fits_over_the_ethernet_addresses_and_cannot_be_forged() -> None:
    mark = ABI.structs["mrc_mark"]
    assert mark.size == 12
    assert mark.fields["magic0"].offset == 6  # the first byte of the source address ...
    assert ABI.MRC_MARK_MAGIC0 & 1  # ... has the group bit, which mrc_receive drops
    flags = (
        ABI.MRC_MARK_CE,
        ABI.MRC_MARK_SACK,
        ABI.MRC_MARK_NACK,
        WIRE.MRC_BTH_ACKREQ,
        WIRE.MRC_BTH_RTX,
    )
    assert sum(flag.bit_count() for flag in flags) == len(flags)
    assert sum(flags).bit_count() == len(flags)  # no two share a bit


def test_the_host_compiler_agrees_on_every_offset(tmp_path: Path) -> None:
    asserts = []
    for name, layout in ABI.structs.items():
        asserts.append(f'_Static_assert(sizeof(struct {name}) == {layout.size}, "{name}");')
        asserts += [
            f"_Static_assert(__builtin_offsetof(struct {name}, {field.name}) == {field.offset},"
            f' "{name}.{field.name}");'
            for field in layout.fields.values()
        ]
    source = tmp_path / "abi.c"
    source.write_text(
        "#include <linux/types.h>\nstruct bpf_spin_lock { __u32 val; };\n"
        f'#include "{ABI.path}"\n' + "\n".join(asserts) + "\n"
    )
    command = ["gcc", "-fsyntax-only", "-Wall", "-Werror", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    source.write_text(source.read_text() + '_Static_assert(sizeof(struct mrc_qp) == 1, "");\n')
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("kind", ["mrc_tx", "mrc_rx"])
def test_window_bitmaps_have_a_bit_for_each_psn(kind: str) -> None:
    fields = ABI.structs[kind].fields
    bitmap = fields["sacked" if kind == "mrc_tx" else "received"]
    assert bitmap.size * 8 == ABI.MRC_WINDOW_MAX
