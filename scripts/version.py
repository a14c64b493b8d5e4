# SPDX-License-Identifier: GPL-2.0-only
"""Say which version a build of this checkout has: ``python -m scripts.version [--debian]``.

`mrcd/__init__.py` has the next release, such as 0.2.0.dev0; a build writes the version that this
module computes in its place. It is a release, 0.2.0, only in a clean tree at the tag v0.2.0. Any
other build has the time of its commit, so that a newer one is an upgrade for pip and for dpkg:

    0.2.0.dev20261130210512+g098a4d8f                    0.2.0~dev20261130210512+g098a4d8f
    0.2.0.dev20261130210512+g098a4d8f.dirty20261130211500

The latter is of a tree with changes that are not committed, with the time of the newest one. A tree
that `git archive` wrote knows its commit from `packaging/commit`. Without either, the version is
that of the file: 0.2.0.dev0. Commits are not counted, because a shallow clone lacks most of them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("mrcd") / "__init__.py"
ARCHIVED = Path("packaging") / "commit"
LINE = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
BASE = re.compile(r"(\d+\.\d+\.\d+)(\.dev0)?")
_HASH_CHARS = 8


class VersionError(Exception):
    """The version of a tree cannot be told; the text says why, and how to mend it."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What a tree was made of.

    committed_s: when, in seconds since 1970. tags: those of the commit. earlier: those before it,
    and its own. changed_s: the time of the newest change that is not committed, 0 if only removals
    are; None in a clean tree.
    """

    name: str
    committed_s: int
    tags: frozenset[str] = frozenset()
    earlier: frozenset[str] = frozenset()
    changed_s: int | None = None


def base(text: str) -> str:
    """Return the release in the text of `mrcd/__init__.py`: 0.2.0 for 0.2.0.dev0."""
    found = LINE.search(text)
    if found is None:
        raise VersionError(f'{SOURCE} has no line __version__ = "..."; write one')
    release = BASE.fullmatch(found[1])
    if release is None:
        raise VersionError(f"{SOURCE}: {found[1]} is neither like 0.2.0.dev0 nor like 0.2.0")
    return release[1]


def computed(text: str, commit: Commit | None) -> str:
    """Return the version of a build, of the text of `mrcd/__init__.py` and what is committed."""
    release = base(text)
    if commit is None:
        return written(text)
    tag = f"v{release}"
    if tag in commit.tags and commit.changed_s is None:
        return release
    # After a release, and before anybody has written the next one, builds are newer than it.
    step = "post" if tag in commit.earlier else "dev"
    version = f"{release}.{step}{stamp(commit.committed_s)}+g{commit.name[:_HASH_CHARS]}"
    if commit.changed_s is None:
        return version
    return f"{version}.dirty{stamp(commit.changed_s) if commit.changed_s else ''}"


def written(text: str) -> str:
    """Return the version that the text of `mrcd/__init__.py` has."""
    base(text)
    found = LINE.search(text)
    assert found is not None
    return found[1]


def debian(version: str) -> str:
    """Return the version of the Debian package; `~` sorts before the release."""
    return version.replace(".dev", "~dev")


def stamp(seconds: int) -> str:
    """Return a time in UTC as a number that grows: 20261130210512."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%d%H%M%S")


def commit_of(root: Path) -> Commit | None:
    """Return what a tree was made of; None where nothing tells."""
    return _checked_out(root) or _archived(root)


def _checked_out(root: Path) -> Commit | None:
    # A tree without git may be unpacked inside of another project's checkout.
    if not (root / ".git").exists():
        return None
    if _git(root, "rev-parse", "--show-toplevel") is None:
        raise VersionError(
            f"git cannot read the checkout {root}: see `git -C {root} status`. Install git, or, if "
            f"the checkout is another user's, `git config --global --add safe.directory {root}`"
        )
    found = _git(root, "log", "-1", "--format=%H %ct")
    if found is None:
        return None
    name, when = found.split()
    changes = (_git(root, "status", "--porcelain", "-z", "--no-renames") or "").split("\0")
    files = [root / change[3:] for change in changes if change]
    changed_s = max((_newest_s(file) for file in files), default=None)
    here = frozenset((_git(root, "tag", "--points-at", "HEAD") or "").split())
    earlier = frozenset((_git(root, "tag", "--merged", "HEAD") or "").split())
    return Commit(name, int(when), here, earlier, changed_s)


def _newest_s(file: Path) -> int:
    """Return when a file, or the newest one of a folder, was written; 0 if it is gone."""
    files = [each for each in file.rglob("*") if each.is_file()] if file.is_dir() else [file]
    return max((int(each.lstat().st_mtime) for each in files if each.exists()), default=0)


def _archived(root: Path) -> Commit | None:
    """Return what `git archive` wrote into a tree, or None."""
    try:
        text = (root / ARCHIVED).read_text()
    except FileNotFoundError:
        return None
    found = re.search(r"^([0-9a-f]{40}) (\d+) ?(\S*?)(-\d+-g[0-9a-f]+)?$", text, re.MULTILINE)
    if found is None:  # a checkout's file, which was copied without git
        return None
    name, when, tag, after = found.groups()
    earlier = frozenset({tag} if tag else ())
    return Commit(name, int(when), frozenset() if after else earlier, earlier)


def _git(root: Path, *args: str) -> str | None:
    """Return what git says; None if there is no git, or no checkout."""
    try:
        done = subprocess.run(
            ["git", *args], cwd=root, capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout


def of(root: Path) -> str:
    """Return the version of a build of a tree; raises VersionError."""
    return computed((root / SOURCE).read_text(), commit_of(root))


def write(root: Path, version: str) -> None:
    """Write a version into a tree's `mrcd/__init__.py`."""
    file = root / SOURCE
    file.write_text(LINE.sub(f'__version__ = "{version}"', file.read_text()))


def main() -> None:
    """Print the version, or write it into a copy of the tree."""
    parser = argparse.ArgumentParser(prog="scripts.version", description=__doc__.split("\n")[0])
    parser.add_argument("--debian", action="store_true", help="as the Debian package has it")
    parser.add_argument("--of", metavar="VERSION", help="this version, not the checkout's")
    parser.add_argument("--time", action="store_true", help="the time of the commit instead")
    parser.add_argument("--write", metavar="TREE", type=Path, help="write it into a copy")
    args = parser.parse_args()
    try:
        commit = commit_of(ROOT) if args.time else None
        version = args.of or of(ROOT)
    except VersionError as error:
        sys.exit(f"version: {error}")
    if args.time:
        if commit is None:
            sys.exit("version: no commit is known here")
        print(commit.committed_s)
    elif args.write:
        write(args.write, version)
    else:
        print(debian(version) if args.debian else version)


if __name__ == "__main__":
    main()
