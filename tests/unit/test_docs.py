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

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
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
        "docs/lab.md",
        "docs/measurements.md",
        "docs/operations.md",
        "docs/protocol.md",
        "docs/quickstart.md",
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
