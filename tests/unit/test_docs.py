# SPDX-License-Identifier: GPL-2.0-only
"""Test that the links, commands, make targets and exit codes named in the documents exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.main import mrcctl
from tests.unit.command_line import commands as all_commands

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
INDEX = re.compile(r"^# .*\n\n((?:\[[^\]]+\]\(#[^)]+\)[ ·\n]*)+)\n", re.MULTILINE)
SOURCES = ("bench", "bpf", "cli", "mrcd", "observability", "packaging", "scripts", "systemd", "vm")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def ids(file: Path) -> str:
    return str(file.relative_to(ROOT))


def commands(text: str, program: str) -> Iterator[list[str]]:
    """Yield the words after ``program`` wherever a code block calls it."""
    for block in FENCE.findall(text):
        for line in block.splitlines():
            code = line.split(" #")[0]
            for call in re.findall(rf"(?:^|[\s/;&|]){program}((?: +[^\s;&|]+)+)", code):
                yield call.split()


def check_mrcctl(words: list[str]) -> None:
    """Follow ``words`` down the groups until one is not the name of a command."""
    command: click.Command = mrcctl
    options = {option for parameter in mrcctl.params for option in parameter.opts}
    while words and words[0] in options:
        words = words[2:]
    while isinstance(command, click.Group) and words:
        assert words[0] in command.list_commands(click.Context(command)), words
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    known = {option for parameter in command.params for option in parameter.opts} | {"-h", "--help"}
    before_arguments = words[: words.index("--")] if "--" in words else words
    for word in before_arguments:
        if word.startswith("--"):
            assert word.split("=")[0] in known, f"{command.name} has no {word}"


def test_the_documents_a_user_looks_for_are_there() -> None:
    names = {ids(file) for file in DOCUMENTS}
    assert {
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "docs/architecture.md",
        "docs/glossary.md",
        "docs/install.md",
        "docs/lab.md",
        "docs/limits.md",
        "docs/measurements.md",
        "docs/operations.md",
        "docs/protocol.md",
        "docs/quickstart.md",
        "docs/recipes.md",
        "docs/reference.md",
        "docs/troubleshooting.md",
    } <= names


@pytest.mark.parametrize("file", DOCUMENTS, ids=ids)
def test_links_lead_somewhere(file: Path) -> None:
    for target in LINK.findall(file.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (file.parent / target).exists(), target


@pytest.mark.parametrize("file", DOCUMENTS, ids=ids)
def test_mrcctl_commands_exist(file: Path) -> None:
    for words in commands(file.read_text(), "mrcctl"):
        check_mrcctl(words)


@pytest.mark.parametrize("file", DOCUMENTS, ids=ids)
def test_make_targets_exist(file: Path) -> None:
    for words in commands(file.read_text(), "make"):
        named = {word for word in shlex.split(" ".join(words)) if "=" not in word}  # no variables
        assert named <= TARGETS, words


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert ["test"] in list(commands(readme, "make"))
    assert re.search(r"^step make .*\btest$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_every_make_target_is_explained() -> None:
    text = (ROOT / "Makefile").read_text()
    explained = set(re.findall(r"^([a-z-]+):.*## .", text, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    assert explained == set(phony[1].split())


@pytest.mark.parametrize("file", DOCUMENTS, ids=ids)
def test_index_at_the_top_has_every_section(file: Path) -> None:
    text = file.read_text()
    if (index := INDEX.search(text)) is None:
        return
    headings = re.findall(r"^## (.*)$", FENCE.sub("", text), re.MULTILINE)
    shown = re.findall(r"\[([^\]]+)\]", index[1])
    assert [name.replace("\n", " ") for name in shown] == [
        re.sub(r"^(\d+)\.", r"\1", heading).replace("`", "") for heading in headings
    ]


@pytest.mark.parametrize("folder", SOURCES)
def test_documents_named_in_the_sources_exist(folder: str) -> None:
    for file in sorted((ROOT / folder).rglob("*")):
        if not file.is_file() or file.suffix in {".pyc", ".png", ".gz"}:
            continue
        for name in re.findall(r"\bdocs/[\w./-]+\.md\b", file.read_text(errors="replace")):
            assert (ROOT / name).exists(), f"{ids(file)} names {name}"


def test_reference_has_every_command() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    cells = re.findall(r"^\| (`mrcctl .*?) \|", text, re.MULTILINE)
    shown = {" ".join(call) for cell in cells for call in called(cell)}
    names = {name for name, _ in all_commands(mrcctl)}
    assert {name for name in names if not name.startswith("lab ")} == shown - {"lab"}


def called(cell: str) -> Iterator[list[str]]:
    """Yield the words of each command in a cell of the table, without arguments."""
    for code in re.findall(r"`mrcctl ([^`]+)`", cell):
        yield [word for word in code.split() if re.fullmatch(r"[a-z-]+", word)]


def test_glossary_is_in_order() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    terms = re.findall(r"^\| (?!term|---)(.*?) \| \S.*\. ?\|$", text, re.MULTILINE)
    assert len(terms) == text.count("\n| ") - 1
    order = [re.sub(r"\W+", " ", term.lower()) for term in terms]
    assert order == sorted(set(order))
    single = {name.strip() for term in order for name in re.split(r"[,(]", term)}
    assert {"ev", "qp", "psn", "plane", "usid", "cell", "sack", "nack", "nscc", "mpr"} <= single


def test_figures_of_the_readme_are_those_of_measurements() -> None:
    table = re.search(
        r"^made them are in .*?\n\n(.*?)\n\n", (ROOT / "README.md").read_text(), re.S | re.M
    )
    assert table is not None
    figures = [row.split("|")[2].strip() for row in table[1].splitlines()[2:]]
    spreads = [
        spread for figure in figures for spread in re.findall(r"\(([^)]* to [^)]*)\)", figure)
    ]
    assert len(spreads) > 4
    measured = (ROOT / "docs" / "measurements.md").read_text()
    assert [spread for spread in spreads if f"({spread})" not in measured] == []
