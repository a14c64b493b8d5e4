# SPDX-License-Identifier: GPL-2.0-only
"""Run what fuzzers have found again: each promise holds for each kept input (docs/security.md)."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.fuzz import corpus
from tests.fuzz.__main__ import IN_C, TARGETS
from tests.fuzz.translate import decoded, function

ROOT = Path(__file__).parents[2]
IN_PYTHON = sorted(TARGETS.keys() - IN_C)


@pytest.mark.parametrize("target", IN_PYTHON)
def test_no_kept_input_breaks_a_promise(target: str) -> None:
    module = importlib.import_module(f"tests.fuzz.{target}")
    inputs = [*module.seeds(), *corpus.read(target)]
    assert len(inputs) > 30
    for data in inputs:
        try:
            module.check(data)
        except Exception as error:
            raise AssertionError(f"{target}: {error!r} for {data!r}") from error


@pytest.mark.parametrize("target", TARGETS)
def test_corpus_is_there_and_small(target: str) -> None:
    path = corpus.FOLDER / f"{target}.txt"
    assert corpus.read(target)
    assert path.stat().st_size <= corpus.FILE_BYTES + sum(map(len, corpus.faults(target))) * 2


def test_documents_have_the_figures_of_each_target() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert [row for row in rows if row in TARGETS] == list(TARGETS)


def test_corpus_keeps_faults_and_the_shortest_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "FOLDER", tmp_path / "corpus")
    monkeypatch.setattr(corpus, "FILE_BYTES", 120)
    assert corpus.read("x") == []
    corpus.write("x", [b"long" * 20, b"", b"a"], [b"fault"])
    assert corpus.faults("x") == [b"fault"]
    assert sorted(corpus.read("x")) == [b"", b"a", b"fault"]
    corpus.write("x", [b"b"])
    assert sorted(corpus.read("x")) == [b"b", b"fault"]


# ---- the translation of programs

PROGRAM = bytes.fromhex(
    "b700000005000000"  # r0 = 5
    "1801000000000080"  # r1 = 0x7fffffff80000000 ...
    "00000000ffffff7f"  # ... which takes two
    "6501010000000000"  # if r1 s> 0 goto +1
    "b700000007000000"  # r0 = 7
    "0400000001000000"  # w0 += 1
    "9500000000000000"  # exit
)


def test_instructions_become_statements() -> None:
    assert sorted(decoded(PROGRAM)) == [0, 1, 3, 4, 5, 6]
    text = function("program", PROGRAM, [])
    assert "r1 = 0x7fffffff80000000ull;" in text
    assert "if ((s64)r1 > (s64)(s64)0)\n\t\tgoto L5;" in text
    assert "L5:;\n\tr0 = (u32)((u32)r0 + (u32)(s64)1);" in text


def test_unknown_instruction_is_named() -> None:
    with pytest.raises(ValueError, match="instruction 0x20 at 0 is not known"):
        function("program", bytes([0x20]) + bytes(7), [])
