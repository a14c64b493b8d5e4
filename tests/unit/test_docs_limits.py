# SPDX-License-Identifier: GPL-2.0-only
"""Test that limits in docs/limits.md are those of their constants, or of the pages they name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from mrcd.datapath.sizes import room_for_prefixes
from mrcd.wire.abi import ABI
from mrcd.wire.packet import WIRE
from tests.unit.test_docs_reference import anchor, cells, constants_of_the_programs, section

ROOT = Path(__file__).parents[2]
LIMITS = (ROOT / "docs" / "limits.md").read_text()
ROWS = [
    row
    for part in re.findall(r"<!-- limits -->\n(.*?)<!-- /limits -->", LIMITS, re.DOTALL)
    for row in cells(part)
]
LINK = re.compile(r"\[[^\]]+\]\(([\w-]+\.md)#([\w-]+)\)")
CONSTANTS = re.compile(r"((?:`\w+`(?:, )?)+) of `([\w/.]+)`")


def numbers(text: str) -> list[str]:
    """Return the numbers in a text, such as "1,024" and "98.0"."""
    return re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)


def constant(name: str, file: str) -> int:
    """Return the value of a constant of a module or of the programs."""
    assert re.search(rf"\b{name}\b", (ROOT / file).read_text()), f"{file} has no {name}"
    if not file.startswith("bpf/"):
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        return int(getattr(module, name))
    known = constants_of_the_programs() | ABI.constants | WIRE.constants
    return int(known[name])


def under(page: str, name: str) -> str:
    """Return the text under the heading of a page that has this anchor."""
    text = (ROOT / "docs" / page).read_text()
    (heading,) = [
        line for line in re.findall(r"^#+ .*$", text, re.M) if anchor(line.lstrip("# ")) == name
    ]
    return section(text, heading)


def test_every_row_has_a_limit_and_one_source() -> None:
    assert len(ROWS) > 60
    for what, limit, source in ROWS:
        assert what
        assert numbers(limit), what
        assert bool(LINK.fullmatch(source)) != bool(CONSTANTS.fullmatch(source)), what


@pytest.mark.parametrize(
    ("limit", "names", "file"),
    [(row[1], *found.groups()) for row in ROWS if (found := CONSTANTS.fullmatch(row[2]))],
)
def test_limits_are_those_of_the_code(limit: str, names: str, file: str) -> None:
    told = [int(number.replace(",", "")) for number in numbers(limit)]
    assert told == [constant(name, file) for name in re.findall(r"`(\w+)`", names)]


@pytest.mark.parametrize(
    ("limit", "page", "heading"),
    [(row[1], *found.groups()) for row in ROWS if (found := LINK.fullmatch(row[2]))],
)
def test_figures_stand_on_the_page_that_is_named(limit: str, page: str, heading: str) -> None:
    text = under(page, heading)
    for figure in limit.split("; "):
        for number in numbers(figure):
            unit = re.search(rf"{re.escape(number)} (%|ms|us|s|[KM]B)$", figure)
            short = len(re.sub(r"\D", "", number)) < 3  # which says little without its unit
            shown = unit[0] if unit is not None and short else number
            assert re.search(rf"(?<![\d.,]){re.escape(shown)}(?![\d])", text), shown


def test_room_for_prefixes_is_as_told() -> None:
    assert "four times as many as are\nconfigured, and for 1,024 at least" in LIMITS
    assert [room_for_prefixes(count) for count in (0, 256, 1000)] == [1024, 1024, 4000]
