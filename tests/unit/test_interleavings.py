# SPDX-License-Identifier: GPL-2.0-only
"""Both halves of a QP on two CPUs, through every interleaving of what happens under their locks.

tests/walks/ has the models. They call the same functions as the programs do (bpf/window.h,
loss.h, chain.h, learn.h, nscc.h), compiled for the host, and visit each state that can be reached.
After each end, and wherever nothing is under way, they look: does somebody come for what waits, is
outstanding or held; do the sums agree; was each packet delivered exactly once, and in order?
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from mrcd.wire.sources import bpf_dir

WALKS = Path(__file__).parents[1] / "walks"
LONGEST_S = 240  # on a machine that has other things to do


class Walk(NamedTuple):
    """What a model found."""

    states: int
    transitions: int
    interleavings: int  # at most 2**64 - 1
    fault: str
    trace: list[str]


def built(half: str, headers: Path, folder: Path, *options: str) -> Path:
    """Compile a model with the core in a folder."""
    program = folder / half
    subprocess.run(
        ["gcc", "-Wall", "-Werror", "-Wno-unknown-pragmas", *options, f"-I{headers}",
         "-o", program, WALKS / f"{half}.c"],
        check=True, timeout=LONGEST_S,
    )  # fmt: skip
    return program


def walk(program: Path, scenario: str) -> Walk:
    run = subprocess.run(
        [program, *scenario.split()], check=True, timeout=LONGEST_S, capture_output=True
    )
    return Walk(**json.loads(run.stdout))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both models, with undefined behaviour trapped."""
    folder = tmp_path_factory.mktemp("walks")
    trap = ("-O2", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
    return {half: built(half, bpf_dir(), folder, *trap) for half in ("sender", "receiver")}


@pytest.mark.parametrize(
    ("scenario", "states"),
    [
        ("sender 3 1500", 100_000),  # packets, and the congestion window in bytes
        ("sender 3 1500 losses=1", 150_000),
        ("sender 2 1500 ticks=1 late", 300_000),
        ("sender 2 500 losses=2 ticks=2", 20_000),
        ("sender 2 1500 away losses=1 ticks=1", 10_000),
        ("sender 3 500 away losses=1", 20_000),
        ("sender 4 1500 cells", 300_000),
        ("receiver 4 copies=1", 100_000),
        ("receiver 4 slots=1", 1_000),
        ("receiver 3 copies=1 ticks=1", 30_000),
        ("receiver 2 copies=1 refusals=1 slots=0", 1_000),
        ("receiver 3 refusals=1 ticks=1 slots=1", 10_000),
        ("receiver 2 holes copies=1 ticks=3", 20_000),
        ("receiver 2 cells refusals=1 ticks=1", 1_500),
        ("receiver 3 cells copies=1", 20_000),
        ("receiver 4 pairs copies=1 refusals=1 ticks=1", 200_000),
        ("receiver 4 pairs circles copies=1", 40_000),
        ("receiver 3 pairs holes ticks=3", 10_000),
    ],
)
def test_each_interleaving_ends_well(programs: dict[str, Path], scenario: str, states: int) -> None:
    half, arguments = scenario.split(maxsplit=1)
    found = walk(programs[half], arguments)
    assert not found.fault, "\n".join([found.fault, *found.trace])
    print(f"{scenario}: {found.interleavings:,} interleavings, {found.states:,} states")
    assert found.states >= states
    assert found.interleavings > found.states


@pytest.mark.parametrize(
    ("scenario", "header", "old", "new", "fault"),
    [
        (
            "sender 3 1500", "chain.h",
            "return chain->release.due ? TAIL_RELEASE : TAIL_COUNT;", "return TAIL_COUNT;",
            "the clock came and moved nothing",
        ),
        (
            "sender 3 1500", "window.h",
            "if (tx->held || planes_away(tx))", "if (planes_away(tx))",
            "the clock came and moved nothing",
        ),
        (
            "sender 2 1500 losses=1 ticks=1", "window.h",
            "return tx->una != tx->next || rx->pending_packets", "return rx->pending_packets",
            "the clock does not look after the QP",
        ),
        (
            "sender 2 1500", "window.h",
            "fresh = mask & ~tx->sacked[(word >> 6) & CFG_WORD_MASK];", "fresh = mask;",
            "a slot is given back twice",
        ),
        (
            "sender 2 1500", "window.h",
            "mask &= (s32)(tx->una - word) >= 64 ? 0 : ~0ull << ((tx->una - word) & 63);", ";",
            "a slot is given back twice",
        ),
        (
            "sender 2 1500 losses=1 ticks=1 late", "loss.h",
            "if (entry->sent_ns != r->sent_ns || r->psn", "if (r->psn",
            "a packet is sent twice for one finding",
        ),
        (
            "sender 2 1500 ticks=1 late", "loss.h",
            " ||\n\t    tx_bit(tx, r->psn))", ")",
            "a packet that has arrived is sent again",
        ),
        (
            "sender 4 1500 cells", "window.h",
            "if (tx->held && sent_up_to(tx) == r->psn &&", "if (tx->held &&",
            "a packet is sent without a reason",
        ),
        (
            "sender 3 1500 losses=1", "learn.h",
            "if ((s32)(in->next - tx->counted_from) <= 0)", "if (0)",
            "the bytes in flight are wrong",
        ),
        (
            "sender 4 1500 cells", "nscc.h",
            "tx->backlog += len;", "tx->backlog += len - 52;",
            "the bytes of what waits are wrong",
        ),
        (
            "receiver 2", "window.h",
            "if (!more)\n\t\trx->busy = 0;", "",
            "it has an owner that is gone",
        ),
        (
            "receiver 2", "window.h",
            "if (a->owner || !rx->busy) {", "if (a->owner) {",
            "a packet is left to the clock",
        ),
        (
            "receiver 2 copies=1", "window.h",
            "if (rx_disposition(rx, a->psn, 1) >= RX_DUPLICATE) {", "if (0) {",
            "the number of what waits is wrong",
        ),
        (
            "receiver 2 cells refusals=1 ticks=1", "window.h",
            "rx->busy = 1 + at->own;", "rx->busy = 1;",
            "a SACK told of a packet that is missing",
        ),
    ],
)  # fmt: skip
def test_model_sees_what_goes_wrong(
    tmp_path: Path, scenario: str, header: str, old: str, new: str, fault: str
) -> None:
    """Each part of a rule is there for a reason: without it, some interleaving ends badly."""
    headers = tmp_path / "bpf"
    shutil.copytree(bpf_dir(), headers, ignore=shutil.ignore_patterns("*.c", "compiled"))
    text = (headers / header).read_text()
    assert text.count(old) == 1
    (headers / header).write_text(text.replace(old, new))
    half, arguments = scenario.split(maxsplit=1)
    found = walk(built(half, headers, tmp_path, "-O1"), arguments)
    assert found.fault
    assert fault in found.fault
    assert found.trace
