# SPDX-License-Identifier: GPL-2.0-only
"""Test that every figure of README stands beside the command that made it, its build and machine.

A figure is a number with a unit or a decimal one. What makes it stands in the same paragraph, list
item or row, or in the paragraph in front of the table.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.test_docs import FENCE, TARGETS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
UNITS = r"ns|us|ms|s|min|minutes|seconds|[KMG]B|[KMG]b/s"
FIGURE = re.compile(
    rf"(?<![\w.-])\d[\d,.]*(?: to \d[\d,.]*)? ?(?:%|(?:{UNITS})\b)"
    r"|(?<![\w.-])\d+\.\d+(?![\w.])"
)
VERSIONS = re.compile(r"\b(?:Linux|Python|Ubuntu|mrcd|to) \d+\.\d+\b")
COMMAND = re.compile(r"`((?:make|pytest|python -m) [^`]+)`")
BUILD = re.compile(r"\bbuild ([0-9a-f]{8})\b")
MACHINE = re.compile(
    r"\bcores\b.*(?:Xeon|EPYC|Linux \d)|(?:Xeon|EPYC).*\bcores\b|\bof an? (?:Xeon|EPYC)"
)


@dataclass(frozen=True, slots=True)
class Part:
    """A paragraph, list item or row, with what says how its figures were made."""

    text: str
    about: str


def parts(text: str) -> list[Part]:
    """Return the parts of a document's text, without its code and comments."""
    found: list[Part] = []
    before = ""
    for block in re.split(
        r"\n{2,}", re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL)
    ):
        if block.lstrip().startswith("|"):
            found += [Part(row, f"{before} {row}") for row in block.splitlines()]
            continue
        items = re.split(r"^(?=\* )", block, flags=re.MULTILINE)
        found += [Part(item, item) for item in items]
        if not block.startswith("!["):  # a picture may stand between a table and its paragraph
            before = block
    return found


def figures(text: str) -> list[str]:
    """Return the figures in a text; versions of programs are none."""
    return FIGURE.findall(VERSIONS.sub("", text))


def unfounded(text: str) -> list[str]:
    """Return what figures of a document lack, in words."""
    lacks = []
    for part in parts(text):
        if found := figures(part.text):
            about = " ".join(part.about.split())
            commands = COMMAND.findall(about)
            if not commands or not all(map(exists, commands)):
                lacks.append(f"{found[0]}: no command that exists: {commands}")
            if not BUILD.search(about):
                lacks.append(f"{found[0]}: no build")
            if not MACHINE.search(about):
                lacks.append(f"{found[0]}: no machine")
    return lacks


def exists(command: str) -> bool:
    """Return whether a target of make, a module that can be run or a test's file is there."""
    program, *words = shlex.split(command)
    if program == "make":
        return {word for word in words if "=" not in word} <= TARGETS
    if program == "pytest":
        files = [word for word in words if word.endswith(".py")]
        return bool(files) and all((ROOT / file).is_file() for file in files)
    spec = importlib.util.find_spec(words[1]) if words[1].split(".")[0] in PACKAGES else None
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{words[1]}.__main__")
    return spec is not None


PACKAGES = {folder.parent.name for folder in ROOT.glob("*/*.py")}


def test_every_figure_of_the_readme_names_its_command_build_and_machine() -> None:
    assert sum(bool(figures(part.text)) for part in parts(README)) > 10
    assert unfounded(README) == []


def test_builds_of_the_readme_are_commits() -> None:
    builds = set(BUILD.findall(README))
    assert builds
    shallow = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if shallow.stdout.strip() != "false":
        pytest.skip("the history is not here: no git, or a shallow clone")
    for build in builds:
        subprocess.run(["git", "cat-file", "-e", f"{build}^{{commit}}"], cwd=ROOT, check=True)


GOOD = "It takes 7 ms (`make demo`, build 01e9ece3, two cores of a Xeon).\n"


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (GOOD, []),
        (GOOD.replace("make demo", "python -m bench.demo --rounds 1"), []),
        (GOOD.replace("make demo", "python -m bench.transport"), []),
        (GOOD.replace("make demo", "pytest -s tests/unit/test_docs_readme.py -k good"), []),
        ("For Linux 6.1, Python 3.11 to 3.13 and Ubuntu 24.04, with 4 planes.\n", []),
        ("```\n7 ms\n```\n", []),
        (GOOD.replace("7 ms", "some time"), []),
        (f"{GOOD}\n| | |\n|---|---|\n| gap | 0.67 |\n", []),
        (f"{GOOD}\nThen:\n\n| | |\n|---|---|\n| gap | 98 % |\n", ["command", "build", "machine"]),
        (f"{GOOD}\nAnd 3 Gb/s.\n", ["command", "build", "machine"]),
        (f"* {GOOD}* 0.44 of TCP\n", ["command", "build", "machine"]),
        (GOOD.replace("make demo", "make tea"), ["command"]),
        (GOOD.replace("make demo", "python -m bench.tea"), ["command"]),
        (GOOD.replace("make demo", "python -m bench.instruments"), ["command"]),
        (GOOD.replace("make demo", "pytest -s tests/net/test_tea.py"), ["command"]),
        (GOOD.replace("build 01e9ece3", "of late"), ["build"]),
        (GOOD.replace("two cores of a Xeon", "here"), ["machine"]),
    ],
)
def test_what_a_figure_lacks_is_found(text: str, lacks: list[str]) -> None:
    found = unfounded(text)
    assert len(found) == len(lacks), found
    for word, line in zip(lacks, found, strict=True):
        assert f"no {word}" in line


def test_the_pictures_of_the_documents_are_small() -> None:
    """They are fetched with every clone."""
    pictures = [each for each in (ROOT / "docs").rglob("*") if each.suffix in {".png", ".svg"}]
    assert {"demo.png", "two-machines.svg"} <= {each.name for each in pictures}
    for picture in pictures:
        assert picture.stat().st_size < 256 << 10, picture
        assert picture.name in README or any(
            picture.name in page.read_text() for page in (ROOT / "docs").glob("*.md")
        )
