# SPDX-License-Identifier: GPL-2.0-only
"""Test what a release needs: its section of the changelog, a clean tree, its tag, equal builds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from scripts import release, version
from scripts.release import ReleaseError

CHANGES = """\
# Changelog

## [Unreleased]

### Added

- A thing.

## [0.1.0] - 2026-11-01

### Added

- Everything.
"""
DATE = "2026-12-01"


def test_what_is_unreleased_becomes_the_section() -> None:
    text = release.prepared(CHANGES, "0.2.0", DATE)
    assert release.sections(text) == {
        "Unreleased": ("", ""),
        "0.2.0": (DATE, "### Added\n\n- A thing."),
        "0.1.0": ("2026-11-01", "### Added\n\n- Everything."),
    }
    release.check_changelog(text, "0.2.0")
    assert text.replace(f"\n\n## [0.2.0] - {DATE}", "") == CHANGES


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CHANGES.replace("[0.1.0]", "[0.2.0]"), r"has a section \[0.2.0\] already"),
        (CHANGES.replace("## [Unreleased]", "## [Later]"), "has no line"),
        (CHANGES.replace("### Added\n\n- A thing.", ""), "nothing to release"),
    ],
)
def test_a_changelog_that_cannot_be_released(text: str, says: str) -> None:
    with pytest.raises(ReleaseError, match=says):
        release.prepared(text, "0.2.0", DATE)


@pytest.mark.parametrize("text", [CHANGES, CHANGES.replace("2026-11-01", "unreleased")])
def test_a_section_without_a_date_is_refused(text: str) -> None:
    with pytest.raises(ReleaseError, match="release prepare"):
        release.check_changelog(text, "0.1.0" if "unreleased" in text else "0.2.0")


def test_the_changelog_can_be_released() -> None:
    text = (version.ROOT / release.CHANGELOG).read_text()
    next_one = version.base((version.ROOT / version.SOURCE).read_text())
    if next_one not in release.sections(text):
        text = release.prepared(text, next_one, DATE)
    release.check_changelog(text, next_one)


# ---- trees


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout of a version on the way to 0.2.0, in which everything is committed."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@b")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    made = tmp_path / "tree"
    (made / "mrcd").mkdir(parents=True)
    (made / version.SOURCE).write_text('__version__ = "0.2.0.dev0"\n')
    (made / release.CHANGELOG).write_text(CHANGES)
    for name in release.IMAGED:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text("image: mrcd:0.1.0\n")
    release.git(made, "init", "-q")
    commit(made)
    return made


def commit(tree: Path) -> None:
    release.git(tree, "add", ".")
    release.git(tree, "commit", "-q", "-m", "one")


def test_from_a_tree_to_a_release_and_on(tree: Path) -> None:
    with pytest.raises(ReleaseError, match=r"says 0\.2\.0\.dev0, which is no release"):
        release.releasable(tree)
    release.prepare(tree, "0.2.0", DATE)
    assert release.releasable(tree) == "0.2.0"
    with pytest.raises(ReleaseError, match=r"not committed:\n.*CHANGELOG"):
        release.check_tree(tree)
    commit(tree)
    release.check_tree(tree)
    with pytest.raises(ReleaseError, match=r"no tag v0\.2\.0 is here: `make release TAG=1`"):
        release.tag(tree, "0.2.0", make=False, key="")
    release.tag(tree, "0.2.0", make=True, key="")
    release.tag(tree, "0.2.0", make=False, key="")
    assert version.of(tree) == "0.2.0"
    assert {(tree / name).read_text() for name in release.IMAGED} == {"image: mrcd:0.2.0\n"}
    release.begin_next(tree, "0.3.0")
    commit(tree)
    assert version.of(tree).startswith("0.3.0.dev2")
    assert {(tree / name).read_text() for name in release.IMAGED} == {"image: mrcd:0.3.0\n"}
    with pytest.raises(ReleaseError, match="is at another commit"):
        release.tag(tree, "0.2.0", make=True, key="")


@pytest.mark.parametrize("name", ["0.2", "0.2.0.dev0", "v0.2.0", ""])
def test_what_is_no_version_of_a_release_is_refused(tree: Path, name: str) -> None:
    with pytest.raises(ReleaseError, match="is no version of a release"):
        release.prepare(tree, name, DATE)
    with pytest.raises(ReleaseError, match="is no version of a release"):
        release.begin_next(tree, name)
    release.check_tree(tree)


def test_builds_that_differ_are_named(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / "same").write_text("a")
    assert list(release.compare(one, other)) == ["same"]
    (one / "package").write_text("a")
    with pytest.raises(ReleaseError, match="differ: package;"):
        release.compare(one, other)
    (other / "package").write_text("b")
    with pytest.raises(ReleaseError, match="differ: package;"):
        release.compare(one, other)


def test_two_empty_builds_are_no_release(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="both made nothing"):
        release.compare(tmp_path, tmp_path)


def test_the_source_archive_is_the_same_each_time(tree: Path, tmp_path: Path) -> None:
    packed = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        release.pack_source(tree, "0.2.0", tmp_path / name)
        packed.append((tmp_path / name / "mrcd-0.2.0.tar.gz").read_bytes())
    assert packed[0] == packed[1]
    listed = subprocess.run(["tar", "-tz"], input=packed[0], capture_output=True, check=True)
    assert "mrcd-0.2.0/mrcd/__init__.py" in listed.stdout.decode().splitlines()


BUILD = """\
#!/bin/sh
set -e
mkdir -p "$DIST"
for arch in "${2}" "${3}"; do
	echo "$MRCD_VERSION $SOURCE_DATE_EPOCH" >"$DIST/mrcd_${MRCD_VERSION}_$arch.deb"
done
%s
"""
SBOM = """\
import pathlib, sys
for arch in sys.argv[1:]:
    pathlib.Path("dist", f"mrcd-{arch}.cdx.json").write_text("{}")
"""


@pytest.fixture
def buildable(tree: Path) -> Path:
    """Return the checkout with scripts that stand for the build and the bill of materials."""
    folder = tree / "packaging"
    folder.mkdir(exist_ok=True)
    for arch in ("amd64", "arm64"):
        (folder / f"vendor-{arch}.txt").touch()
    (folder / "sbom.py").write_text(SBOM)
    (folder / "build.sh").write_text(BUILD % "")
    (folder / "build.sh").chmod(0o755)
    (tree / ".gitignore").write_text("dist\nbuild\n.venv\n")
    (tree / "dist").mkdir()
    (tree / "dist" / "mrcd_0.1.0_amd64.deb").touch()
    commit(tree)
    return tree


def test_a_release_is_left_in_dist_with_its_sums(buildable: Path) -> None:
    release.make(buildable, {"MRCD_VERSION": "0.2.0"}, release="0.2.0", key="")
    dist = buildable / "dist"
    names = {
        "mrcd_0.2.0_amd64.deb", "mrcd_0.2.0_arm64.deb", "mrcd-0.2.0.tar.gz", "mrcd-amd64.cdx.json",
        "mrcd-arm64.cdx.json",
    }  # fmt: skip
    assert {file.name for file in dist.iterdir()} == names | {"SHA256SUMS"}
    epoch = release.git(buildable, "log", "-1", "--format=%ct")
    assert (dist / "mrcd_0.2.0_amd64.deb").read_text() == f"0.2.0 {epoch}\n"
    checked = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=dist, capture_output=True, text=True, check=True
    ).stdout
    assert {line.removesuffix(": OK") for line in checked.splitlines()} == names
    release.check_tree(buildable)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('pwd >"$DIST/mrcd-place"', "two builds of one commit differ: mrcd-place;"),
        ("exit 3", r"failed \(3\)"),
    ],
)
def test_a_build_that_fails_or_differs_replaces_nothing(
    buildable: Path, more: str, says: str
) -> None:
    (buildable / "packaging" / "build.sh").write_text(BUILD % more)
    commit(buildable)
    with pytest.raises(ReleaseError, match=says):
        release.make(buildable, {"MRCD_VERSION": "0.2.0"}, release="0.2.0", key="")
    assert [file.name for file in (buildable / "dist").iterdir()] == ["mrcd_0.1.0_amd64.deb"]


def test_every_architecture_with_a_lock_is_built() -> None:
    assert release.architectures(version.ROOT) == ["amd64", "arm64"]
