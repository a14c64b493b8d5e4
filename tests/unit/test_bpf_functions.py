# SPDX-License-Identifier: GPL-2.0-only
"""How the programs are cut up: functions that fit in the head, map accesses in .c files only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mrcd.wire.sources import bpf_dir

LINES_MAX = 60
FILES = sorted(bpf_dir().glob("*.[ch]"))
_START = re.compile(r"^(?:static|int)\b[^;=]*?\b(\w+)\([^;{]*\)\n\{\n", re.MULTILINE)
_MAP_METHOD = re.compile(r"\b\w+\.(?:lookup|update|push|pop|call|ringbuf_output)\(")


def functions(text: str) -> dict[str, int]:
    """The lines of each function, from its first to its closing brace."""
    found = {}
    for match in _START.finditer(text):
        end = text.index("\n}\n", match.end() - 1) + 2
        found[match[1]] = text[match.start() : end].count("\n") + 1
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_function_fits_in_the_head(path: Path) -> None:
    long = {name: n for name, n in functions(path.read_text()).items() if n > LINES_MAX}
    assert not long, f"{path.name}: split by its steps what has more than {LINES_MAX} lines"


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".h"], ids=lambda path: path.name)
def test_headers_touch_no_map(path: Path) -> None:
    assert not _MAP_METHOD.findall(path.read_text()), f"{path.name} should end in .c"


def test_functions_are_found() -> None:
    text = (
        "static __always_inline int one(int a,\n\t\t int b)\n{\n\treturn 0;\n}\n\n"
        "int two(void)\n{\n}\n"
    )
    assert functions(text) == {"one": 5, "two": 3}
    assert sum(len(functions(path.read_text())) for path in FILES) > 200
