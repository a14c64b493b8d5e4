# SPDX-License-Identifier: GPL-2.0-only
"""Make a release: ``python -m scripts.release prepare 0.2.0``, ``build``, ``next 0.3.0``.

prepare   turn CHANGELOG's section Unreleased into that of the release, and write the version into
          mrcd/__init__.py and the image's tag into what names it; commit all
build     check the tree and its tag, build twice, in the checkout and in an archive of its commit,
          compare the files byte for byte, and leave them in dist/ with the source archive, the
          bills of materials and SHA256SUMS: `make release`, `make release TAG=1` makes the tag, too
next      write the version of the release after this one into mrcd/__init__.py, and the image's
          tag; commit them
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from scripts import version
from scripts.version import BASE, ROOT, SOURCE, VersionError

CHANGELOG = Path("CHANGELOG.md")
SECTION = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>.+))?$", re.MULTILINE)
IMAGE = re.compile(r"\bmrcd:\d+\.\d+\.\d+\b")
IMAGED = (Path("packaging/kubernetes/daemonset.yaml"), Path("docs/install.md"))
DATE = re.compile(r"\d{4}-\d\d-\d\d")


class ReleaseError(Exception):
    """A release cannot be made of this tree; the text says why, and how to mend it."""


# ---- the changelog


def sections(text: str) -> dict[str, tuple[str, str]]:
    """Return the date and the content of each section of a changelog, by its name."""
    found = list(SECTION.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    return {
        match["name"]: (match["date"] or "", text[match.end() : end].strip())
        for match, end in zip(found, ends, strict=True)
    }


def prepared(text: str, release: str, date: str) -> str:
    """Return a changelog whose section Unreleased has become that of a release."""
    known = sections(text)
    if release in known:
        raise ReleaseError(f"{CHANGELOG} has a section [{release}] already")
    if "Unreleased" not in known:
        raise ReleaseError(f"{CHANGELOG} has no line `## [Unreleased]`")
    if not known["Unreleased"][1]:
        raise ReleaseError(f"{CHANGELOG}: [Unreleased] is empty: there is nothing to release")
    head = "## [Unreleased]"
    return text.replace(head, f"{head}\n\n## [{release}] - {date}", 1)


def check_changelog(text: str, release: str) -> None:
    """Raise ReleaseError unless a changelog has the dated section of a release."""
    date, content = sections(text).get(release, ("", ""))
    if not DATE.fullmatch(date) or not content:
        raise ReleaseError(
            f"{CHANGELOG} has no section `## [{release}] - YYYY-MM-DD` with content: "
            f"run `python -m scripts.release prepare {release}` and commit"
        )


# ---- the tree


def git(root: Path, *args: str) -> str:
    """Return what git says."""
    done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {args[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def check_tree(root: Path) -> None:
    """Raise ReleaseError unless everything in a checkout is committed."""
    if changed := git(root, "status", "--porcelain"):
        raise ReleaseError(f"not committed:\n{changed}\ncommit, ignore or remove these")


def releasable(root: Path) -> str:
    """Return the release that a checkout is; raises ReleaseError where it is none."""
    text = (root / SOURCE).read_text()
    release = version.base(text)
    if version.written(text) != release:
        raise ReleaseError(
            f"{SOURCE} says {version.written(text)}, which is no release: "
            f"run `python -m scripts.release prepare {release}` and commit"
        )
    check_changelog((root / CHANGELOG).read_text(), release)
    return release


def tag(root: Path, release: str, *, make: bool, key: str) -> None:
    """Check that the tag of a release is at this commit, or make it, signed if there is a key."""
    name = f"v{release}"
    if name in git(root, "tag", "--points-at", "HEAD").split():
        return
    if git(root, "tag", "--list", name):
        raise ReleaseError(f"the tag {name} is at another commit: check that one out")
    if not make:
        raise ReleaseError(f"no tag {name} is here: `make release TAG=1` makes it")
    signed = ["--local-user", key] if key else ["--annotate"]
    git(root, "tag", *signed, "--message", f"mrcd {release}", name)


# ---- the build


def architectures(root: Path) -> list[str]:
    """Return the architectures that there is a package for, by their lists of what it carries."""
    files = sorted((root / "packaging").glob("vendor-*.txt"))
    return [file.stem.removeprefix("vendor-") for file in files]


def build(tree: Path, dist: Path, work: Path, environment: dict[str, str]) -> None:
    """Build the wheel and all packages of a tree into a folder."""
    done = subprocess.run(
        ["packaging/build.sh", "deb", *architectures(tree)],
        cwd=tree,
        env=os.environ | {"DIST": str(dist), "WORK": str(work)} | environment,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"the build in {tree} failed ({done.returncode})")


def archive(root: Path, folder: Path) -> Path:
    """Unpack an archive of a checkout's commit into a folder, with the checkout's .venv."""
    folder.mkdir()
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=root, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=folder, input=packed.stdout, check=True)
    (folder / ".venv").symlink_to(root / ".venv")
    return folder


def digests(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files by their names."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(files)
        if file.is_file()
    }


def compare(one: Path, other: Path) -> dict[str, str]:
    """Return the digests of two folders' files; raises ReleaseError where they differ."""
    first, second = digests(one.iterdir()), digests(other.iterdir())
    different = [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]
    if different or not first:
        raise ReleaseError(
            f"two builds of one commit differ: {', '.join(different) or 'both made nothing'}; "
            f"`diffoscope {one}/NAME {other}/NAME` shows where"
        )
    return first


def pack_source(root: Path, release: str, dist: Path) -> None:
    """Write the source archive, the same for the same commit."""
    packed = subprocess.run(
        ["git", "archive", f"--prefix=mrcd-{release}/", "HEAD"],
        cwd=root, capture_output=True, check=True,
    ).stdout  # fmt: skip
    (dist / f"mrcd-{release}.tar.gz").write_bytes(gzip.compress(packed, mtime=0))


def make(root: Path, environment: dict[str, str], *, release: str, key: str) -> None:
    """Build twice, compare, and leave everything in dist/."""
    dist, first = root / "dist", root / "build" / "release"
    epoch = git(root, "log", "-1", "--format=%ct")
    environment = environment | {"SOURCE_DATE_EPOCH": epoch}
    shutil.rmtree(first, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="mrcd-release-") as scratch:
        build(root, first, root / "build" / "package", environment)
        again = Path(scratch) / "dist"
        tree = archive(root, Path(scratch) / "tree")
        build(tree, again, Path(scratch) / "work", environment)
        kept = root / "build" / "release-again"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(again, kept)
    same = compare(first, kept)
    print(f"release: two builds, byte for byte the same: {', '.join(same)}")
    dist.mkdir(exist_ok=True)
    for file in [*dist.glob("mrcd[-_]*"), *dist.glob("SHA256SUMS*")]:
        file.unlink()
    for file in first.iterdir():
        shutil.copy2(file, dist)
    pack_source(root, release, dist)
    subprocess.run(
        [sys.executable, "packaging/sbom.py", *architectures(root)],
        cwd=root, env=os.environ | environment, check=True,
    )  # fmt: skip
    sums = dist / "SHA256SUMS"
    lines = [f"{digest}  {name}\n" for name, digest in digests(dist.glob("mrcd[-_]*")).items()]
    sums.write_text("".join(lines))
    if key:
        subprocess.run(
            ["gpg", "--batch", "--yes", "--local-user", key, "--armor", "--detach-sign", sums],
            check=True,
        )
    print("".join(lines), end="")


# ---- commands


def prepare(root: Path, release: str, date: str) -> None:
    """Write the section of the changelog, and the version."""
    file = root / CHANGELOG
    text = prepared(file.read_text(), _plain(release), date)
    version.write(root, release)
    write_image(root, release)
    file.write_text(text)
    print(f"release: {CHANGELOG} and {SOURCE} say {release}: commit, then `make release TAG=1`")


def write_image(root: Path, release: str) -> None:
    """Write the tag of the image that a release builds into the files that name one."""
    for name in IMAGED:
        file = root / name
        file.write_text(IMAGE.sub(f"mrcd:{release}", file.read_text()))


def begin_next(root: Path, release: str) -> None:
    """Write the version of the next release, which builds from now on lead to."""
    version.write(root, f"{_plain(release)}.dev0")
    write_image(root, release)
    print(f"release: {SOURCE} says {release}.dev0: commit it")


def _plain(release: str) -> str:
    found = BASE.fullmatch(release)
    if found is None or found[2]:
        raise ReleaseError(f"{release} is no version of a release; one is like 0.2.0")
    return release


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts.release", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "next"):
        commands.add_parser(name).add_argument("release", metavar="VERSION")
    building = commands.add_parser("build")
    building.add_argument("--tag", action="store_true", help="make the tag if it is not there")
    building.add_argument("--key", default="", help="sign the tag and SHA256SUMS by this key")
    building.add_argument(
        "--rehearse", action="store_true", help="whatever the tree's version is, and without a tag"
    )
    args = parser.parse_args()
    try:
        if args.command == "prepare":
            prepare(ROOT, args.release, f"{datetime.now(UTC):%Y-%m-%d}")
        elif args.command == "next":
            begin_next(ROOT, args.release)
        else:
            check_tree(ROOT)
            if args.rehearse:
                release = version.of(ROOT)
            else:
                os.environ.pop("COMPILED", None)  # a release compiles all of its programs, twice
                release = releasable(ROOT)
                tag(ROOT, release, make=args.tag, key=args.key)
            make(ROOT, {"MRCD_VERSION": release}, release=release, key=args.key)
    except (ReleaseError, VersionError) as error:
        sys.exit(f"release: {error}")


if __name__ == "__main__":
    main()
