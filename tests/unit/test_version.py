# SPDX-License-Identifier: GPL-2.0-only
"""Test the versions of builds: how they sort for pip and dpkg, and what a tree tells of itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.version import Version

import mrcd
from scripts import version
from scripts.version import Commit, VersionError, computed, debian

ROOT = Path(__file__).parents[2]
NEXT, RELEASED = '__version__ = "0.2.0.dev0"\n', '__version__ = "0.2.0"\n'
NAME = "098a4d8f" + 32 * "0"
TAGGED = frozenset({"v0.2.0"})
AT, LATER = 1_796_000_000, 1_796_000_060

IN_ORDER = [
    "0.1.0",
    computed(NEXT, None),
    computed(NEXT, Commit(NAME, AT)),
    computed(NEXT, Commit(NAME, AT, changed_s=AT + 5)),
    computed(NEXT, Commit(NAME, AT, changed_s=AT + 9)),
    computed(NEXT, Commit("00" + NAME, LATER)),
    computed(RELEASED, Commit(NAME, LATER + 1)),
    computed(RELEASED, Commit(NAME, LATER + 2, TAGGED, TAGGED)),
    computed(RELEASED, Commit(NAME, LATER + 2, TAGGED, TAGGED, changed_s=LATER + 9)),
    computed(RELEASED, Commit(NAME, LATER + 3, frozenset(), TAGGED)),
    computed(NEXT.replace("0.2.0", "0.3.0"), Commit(NAME, LATER + 4, frozenset(), TAGGED)),
]
"""Versions of builds, each of which is an upgrade of the one before."""


def test_versions_are_written_as_documented() -> None:
    assert IN_ORDER[1:4] == [
        "0.2.0.dev0",
        "0.2.0.dev20261130005320+g098a4d8f",
        "0.2.0.dev20261130005320+g098a4d8f.dirty20261130005325",
    ]
    assert debian(IN_ORDER[2]) == "0.2.0~dev20261130005320+g098a4d8f"
    assert IN_ORDER[7] == debian(IN_ORDER[7]) == "0.2.0"
    assert IN_ORDER[9].startswith("0.2.0.post2026")
    assert computed(NEXT, Commit(NAME, AT, changed_s=0)).endswith("+g098a4d8f.dirty")


@pytest.mark.parametrize(("older", "newer"), list(pairwise(IN_ORDER)))
def test_a_newer_build_is_an_upgrade(older: str, newer: str) -> None:
    assert Version(older) < Version(newer)
    assert str(Version(newer)) == newer, "pip writes it in the same way"
    done = subprocess.run(
        ["dpkg", "--compare-versions", debian(older), "lt", debian(newer)], check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize("text", ["", '__version__ = "0.2"\n', '__version__ = "0.2.0.dev7"\n'])
def test_a_line_that_is_no_version_is_named(text: str) -> None:
    with pytest.raises(VersionError, match=r"mrcd/__init__\.py"):
        computed(text, Commit(NAME, AT))


# ---- trees


def git(tree: Path, *args: str) -> str:
    return subprocess.run(
        ["git", *args], cwd=tree, capture_output=True, text=True, check=True,
        env=os.environ | {
            "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
            "GIT_COMMITTER_DATE": f"{AT} +0200",
        },
    ).stdout.strip()  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a checkout with the files that say the version, committed."""
    made = tmp_path / "tree"
    (made / "mrcd").mkdir(parents=True)
    (made / "packaging").mkdir()
    (made / version.SOURCE).write_text(NEXT)
    shutil.copy(ROOT / version.ARCHIVED, made / version.ARCHIVED)
    shutil.copy(ROOT / ".gitattributes", made / ".gitattributes")
    git(made, "init", "-q")
    git(made, "add", ".")
    git(made, "commit", "-q", "-m", "one")
    return made


def archived(tree: Path, folder: Path) -> Path:
    """Return a tree as `git archive` writes it."""
    folder.mkdir()
    done = subprocess.run(["git", "archive", "HEAD"], cwd=tree, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=folder, input=done.stdout, check=True)
    return folder


def test_a_checkout_says_its_commit(tree: Path) -> None:
    name = git(tree, "rev-parse", "HEAD")
    assert version.of(tree) == f"0.2.0.dev20261130005320+g{name[:8]}"


def test_a_changed_checkout_says_when(tree: Path) -> None:
    clean = version.of(tree)
    (tree / "new").mkdir()
    (tree / "new" / "file").touch()
    os.utime(tree / "new" / "file", (LATER, LATER))
    assert version.of(tree) == f"{clean}.dirty20261130005420"
    shutil.rmtree(tree / "new")
    assert version.of(tree) == clean
    (tree / ".gitattributes").unlink()
    assert version.of(tree) == f"{clean}.dirty"


def test_a_release_is_what_its_tag_names(tree: Path, tmp_path: Path) -> None:
    (tree / version.SOURCE).write_text(RELEASED)
    git(tree, "commit", "-q", "-a", "-m", "two")
    assert version.of(tree).startswith("0.2.0.dev2026"), "nobody has tagged it"
    git(tree, "tag", "v0.2.0")
    assert version.of(tree) == "0.2.0"
    assert version.of(archived(tree, tmp_path / "release")) == "0.2.0"
    git(tree, "commit", "-q", "--allow-empty", "-m", "three")
    assert version.of(tree).startswith("0.2.0.post2026")
    assert version.of(archived(tree, tmp_path / "after")) == version.of(tree)


def test_a_source_archive_knows_its_commit(tree: Path, tmp_path: Path) -> None:
    assert version.of(archived(tree, tmp_path / "archive")) == version.of(tree)


def test_a_copy_without_git_says_the_next_release(tree: Path, tmp_path: Path) -> None:
    """Also where it lies within the checkout of something else."""
    shutil.rmtree(tree / ".git")
    assert version.of(tree) == "0.2.0.dev0"
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "of something else")
    assert version.of(tree) == "0.2.0.dev0"


def test_a_checkout_that_git_refuses_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all its builds would have one version."""
    (tree / ".git" / "HEAD").write_text("nothing\n")
    with pytest.raises(VersionError, match="git cannot read the checkout"):
        version.of(tree)
    monkeypatch.setenv("PATH", str(tree))
    with pytest.raises(VersionError, match="Install git"):
        version.of(tree)


def test_a_build_says_its_version(tree: Path) -> None:
    version.write(tree, "0.2.0.dev20261130005320+g098a4d8f")
    text = (tree / version.SOURCE).read_text()
    assert text == '__version__ = "0.2.0.dev20261130005320+g098a4d8f"\n'


def test_the_checkout_has_a_version() -> None:
    assert version.written((ROOT / version.SOURCE).read_text()) == mrcd.__version__
    assert Version(version.of(ROOT)) > Version("0.1.0")
