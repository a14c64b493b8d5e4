# SPDX-License-Identifier: GPL-2.0-only
"""The reference tables in docs/ say what the code says, word for word and number for number."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pytest

from cli import exits
from mrcd import config, tuning
from mrcd.abi import COUNTERS
from mrcd.fabric import description
from mrcd.log import EVENTS

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
README = (ROOT / "README.md").read_text()
UNITS_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def cells(text: str) -> list[list[str]]:
    """The rows of all tables in a text, without their headings and rules."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    rules = {i for i, row in enumerate(rows) if set("".join(row)) <= set("-: ")}
    return [row for i, row in enumerate(rows) if i not in rules and i + 1 not in rules]


def between(text: str, name: str) -> str:
    """What stands between <!-- name --> and <!-- /name -->."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found is not None, f"no <!-- {name} --> ... <!-- /{name} -->"
    return found[1]


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level or above."""
    level = heading.split()[0]
    found = re.search(
        rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found is not None, f"no heading {heading!r}"
    return found[1]


def table(heading: str, rows: Iterable[tuple[str, str]]) -> str:
    """The table as it should stand in the document, to be pasted when it does not."""
    lines = [f"| {heading} | meaning |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in rows)]
    return "\n".join(lines) + "\n"


def test_operations__lists_every_counter() -> None:
    expected = table("counter", ((name, text) for _, name, text in COUNTERS))
    assert between(OPERATIONS, "counters") == expected, f"it should be:\n{expected}"


def test_operations__lists_every_log_event() -> None:
    expected = table("event", EVENTS.items())
    assert between(OPERATIONS, "events") == expected, f"it should be:\n{expected}"


def test_operations__says_which_events_are_not_logged_yet() -> None:
    # A registration is one quoted name; a line that logs it is another.
    source = "".join(file.read_text() for file in sorted((ROOT / "mrcd").rglob("*.py")))
    silent = {name for name in EVENTS if source.count(f'"{name}"') == 1}
    paragraph = re.search(r"^Registered, but not logged[^:]*:(.*?)\n\n", OPERATIONS, re.S | re.M)
    named = set(re.findall(r"`([a-z_.]+)`", paragraph[1])) if paragraph else set()
    assert named == silent


@pytest.mark.parametrize("text", ["exit code of mrcctl", "exit code of mrcd"])
def test_operations__has_exit_codes(text: str) -> None:
    rows = re.search(rf"^\| {text} \|.*?\n\n", OPERATIONS, re.MULTILINE | re.DOTALL)
    assert rows is not None
    found = [int(row[0]) for row in cells(rows[0])]
    whole = [
        exits.DONE,
        exits.FAILED,
        exits.USAGE,
        exits.UNREACHABLE,
        exits.NO_SUCH_OBJECT,
        exits.NOT_PERMITTED,
        exits.DEGRADED,
    ]
    if text.endswith("mrcctl"):
        assert found == whole
    else:
        main = (ROOT / "mrcd" / "main.py").read_text()
        assert found == [0, *map(int, re.findall(r"^EXIT_[A-Z_]+ = (\d+)", main, re.MULTILINE))]


def test_operations__has_every_key_of_transport_with_its_default() -> None:
    rows = cells(section(OPERATIONS, "## Configuration").split("<!-- transport -->")[1])
    shown = {row[0].strip("`"): row[1].strip("`") for row in rows}
    defaults = config.Transport()
    expected = {field.name: getattr(defaults, field.name) for field in fields(config.Transport)}
    assert {key: tomllib.loads(f"x = {value}")["x"] for key, value in shown.items()} == expected


def value_of(text: str) -> int:
    """ "1 ms" as nanoseconds, "8" as it is."""
    number, _, unit = text.partition(" ")
    return int(number) * (UNITS_NS[unit] if unit else 1)


def constants_of_the_programs() -> dict[str, int]:
    """Numeric #defines of the programs' own headers."""
    found = {}
    for file in sorted((ROOT / "bpf").glob("*.h")):
        for name, value in re.findall(
            r"^#define ([A-Z_]+) (\d+)(?:u?ll)?\b", file.read_text(), re.MULTILINE
        ):
            found[name] = int(value)
    return found


def test_protocol__constants_have_the_values_of_the_code() -> None:
    rows = cells(section(PROTOCOL, "## 7. Constants"))
    shown = {row[0].strip("`"): value_of(row[1]) for row in rows}
    tuned = {name: value for name, value in vars(tuning).items() if name.isupper()}
    units = {"US", "MS"}
    assert set(tuned) - units <= set(shown)
    known = constants_of_the_programs() | tuned
    assert shown == {name: known.get(name) for name in shown}


def test_protocol__every_timer_and_limit_of_the_programs_is_explained() -> None:
    shown = {row[0].strip("`") for row in cells(section(PROTOCOL, "## 7. Constants"))}
    wanted = {
        name
        for name in constants_of_the_programs()
        if re.search(r"_(NS|MAX|SHIFT)$", name) and not name.startswith("MRC_")
    }
    assert wanted <= shown


def examples(text: str) -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", [OPERATIONS, README], ids=["operations.md", "README.md"])
def test_examples_of_configuration_are_valid(document: str, tmp_path: Path) -> None:
    blocks = examples(document)
    fabrics = [block for block in blocks if "fabric" in block and "planes =" in block]
    configs = [block for block in blocks if block not in fabrics]
    assert len(fabrics) == 1
    assert configs
    (tmp_path / "fabric.toml").write_text(fabrics[0])
    fabric = description.load(tmp_path / "fabric.toml")
    for number, block in enumerate(configs):
        file = tmp_path / f"mrcd{number}.toml"
        file.write_text(block)
        loaded = config.load(file)
        assert len(loaded.interfaces) == fabric.planes
        assert loaded.peers
