# SPDX-License-Identifier: GPL-2.0-only
"""Test that the tables on the fabric file in docs/reference.md match what mrcd reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mrcd.fabric import description
from mrcd.fabric.description import Fabric, FabricError
from tests.unit.test_docs_reference import between, cells, section

ROOT = Path(__file__).parents[2]
SECTION = section((ROOT / "docs" / "reference.md").read_text(), "## Fabric file")
REQUIRED = {
    "fabric": "planes = 2\nt0 = 9\nt1 = 3\n",
    "host": 'name = "a"\nt0 = 1\nport = 1\naddresses = ["10.99.0.1/24"]\n',
    "hosts": 'count = 2\nper_t0 = 2\naddresses = ["10.99.0.0/16"]\n',
    "dscp": "",
}
KEYS = [
    (table, *(cell.strip("`") for cell in row[:3]))
    for table in REQUIRED
    for row in cells(between(SECTION, table))
]


def parsed(**tables: str) -> Fabric:
    """Return a small fabric with these tables in place of the usual ones."""
    fabric = tables.get("fabric", REQUIRED["fabric"])
    members = (
        f"[hosts]\n{tables['hosts']}"
        if "hosts" in tables
        else "[[host]]\n" + tables.get("host", REQUIRED["host"])
    )
    text = f"[fabric]\n{fabric}[dscp]\n{tables.get('dscp', '')}{members}"
    return description.parse(text, "fabric.toml")


def with_value(table: str, key: str, value: object) -> str:
    """Return a table in which a key has a value."""
    rest = re.sub(rf"^{key} = .*\n", "", REQUIRED[table], flags=re.MULTILINE)
    return f"{rest}{key} = {value}\n"


@pytest.mark.parametrize("table", REQUIRED)
def test_every_key_is_listed(table: str) -> None:
    with pytest.raises(FabricError, match="known: ") as refused:
        parsed(**{table: REQUIRED[table] + "unheard_of = 1\n"})
    (known,) = re.findall(r"known: (.*)", str(refused.value))
    assert known.split(", ") == [key for of, key, _, _ in KEYS if of == table]


@pytest.mark.parametrize(("table", "key", "default", "_values"), KEYS)
def test_defaults_are_those_of_the_code(table: str, key: str, default: str, _values: str) -> None:
    usual = parsed(**{table: REQUIRED[table]})
    if default == "required":
        without = re.sub(rf"^{key} = .*\n", "", REQUIRED[table], flags=re.MULTILINE)
        with pytest.raises(FabricError, match=key):
            parsed(**{table: without})
    else:
        assert parsed(**{table: with_value(table, key, default)}) == usual


@pytest.mark.parametrize(
    ("table", "key", "low", "high"),
    [
        (table, key, *map(int, found.groups()))
        for table, key, _default, values in KEYS
        if (found := re.fullmatch(r"(\d+) to (\d+)", values))
    ],
)
def test_bounds_are_those_of_the_code(table: str, key: str, low: int, high: int) -> None:
    # No two classes are alike, so no_trim leaves its 0 to the class that is tried.
    beside = "no_trim = 9\n" if table == "dscp" and key != "no_trim" else ""
    for value in (low, high):
        parsed(**{table: with_value(table, key, value) + beside})
    for value in (low - 1, high + 1):
        with pytest.raises(FabricError, match=key):
            parsed(**{table: with_value(table, key, value) + beside})


@pytest.mark.parametrize(
    ("key", "value", "beside"),
    [("routing", "ecmp", ""), ("encap", "reduced", ""), ("underlay", "4", 'routing = "ecmp"\n')],
)
def test_choices_are_those_of_the_code(key: str, value: str, beside: str) -> None:
    (values,) = [values for _, named, _, values in KEYS if named == key]
    assert value in values.split(", ")
    shown = value if value.isdigit() else f'"{value}"'
    parsed(fabric=with_value("fabric", key, shown) + beside)
    with pytest.raises(FabricError, match=key):
        parsed(fabric=with_value("fabric", key, '"other"'))


def test_example_is_valid() -> None:
    for block in re.findall(r"^```\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL):
        whole = "fabric" in block
        fabric = description.parse(
            block if whole else f"[fabric]\n{REQUIRED['fabric']}{block}", "x"
        )
        assert len(fabric.hosts) == (1 if whole else 600)
