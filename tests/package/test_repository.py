# SPDX-License-Identifier: GPL-2.0-only
"""Test the apt repository as a maintainer makes it, and builds that are the same each time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import release
from tests.package import releases
from tests.package.conftest import (
    DEB_VERSION,
    DIST,
    NEWER_DEB_VERSION,
    NEWER_VERSION,
    ROOT,
    VERSION,
)
from tests.package.releases import OLD, Repository
from tests.package.test_deb import IN_A_COPY

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Repository]:
    """Return a repository of which there is nothing yet."""
    with releases.repository(tmp_path / "repository") as made:
        yield made


def tiny(folder: Path, version: str = "1", name: str = "mrcd", more: str = "") -> Path:
    """Return a package without content."""
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: a <a@b.invalid>\n"
        f"Description: nothing{more}\n"
    )
    made = folder / f"{name}_{version}_amd64.deb"
    subprocess.run(["dpkg-deb", "--build", tree, made], check=True, capture_output=True)
    shutil.rmtree(tree)
    return made


def keys(found: Repository) -> list[str]:
    """Return the fingerprints of the keys in the keyring."""
    listed = subprocess.run(
        ["gpg", "--batch", "--list-secret-keys", "--with-colons"],
        env=os.environ | {"GNUPGHOME": str(found.keyring)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return re.findall(r"^fpr:+(\w+):", listed, re.MULTILINE)


def make_key(found: Repository, owner: str) -> None:
    subprocess.run(
        ["gpg", "--batch", "--passphrase", "", "--quick-generate-key", owner, "ed25519", "sign"],
        env=os.environ | {"GNUPGHOME": str(found.keyring)}, capture_output=True, check=True,
    )  # fmt: skip


def test_a_key_is_made_once_and_kept(empty: Repository, tmp_path: Path) -> None:
    first = empty.publish(tiny(tmp_path))
    assert first.returncode == 0, first.stderr
    assert "made a key that signs" in first.stderr
    (key,) = keys(empty)
    second = empty.publish(tiny(tmp_path, "2"))
    assert "made a key" not in second.stderr
    assert second.stdout.endswith(f"2 packages, signed by {key}\n")
    index = (empty.folder / "dists" / "stable" / "main" / "binary-amd64" / "Packages").read_text()
    assert re.findall(r"^Version: (.+)$", index, re.MULTILINE) == ["1", "2"]
    shutil.rmtree(empty.keyring)
    empty.keyring.mkdir(mode=0o700)
    third = empty.publish(tiny(tmp_path, "3"))
    assert third.returncode == 1
    assert f"is signed by the key {key}, whose secret part is not in the keyring" in third.stderr


def test_the_maintainer_names_a_key(empty: Repository, tmp_path: Path) -> None:
    for owner in ("one <one@mrcd.invalid>", "other <other@mrcd.invalid>"):
        make_key(empty, owner)
    package = tiny(tmp_path)
    missing = empty.publish(package, key="nobody@mrcd.invalid")
    assert missing.returncode == 1
    assert "gpg has no secret key nobody@mrcd.invalid here" in missing.stderr
    several = empty.publish(package, key="mrcd.invalid")
    assert several.returncode == 1
    assert (
        "has several secret keys mrcd.invalid here: name one by its fingerprint" in several.stderr
    )
    done = empty.publish(package, key="other@mrcd.invalid")
    assert done.stdout.endswith(f"signed by {keys(empty)[1]}\n"), done.stderr


def test_a_version_is_published_once(empty: Repository, tmp_path: Path) -> None:
    assert empty.publish(tiny(tmp_path)).returncode == 0
    before = {file: file.read_bytes() for file in empty.folder.rglob("*.deb")}
    again = empty.publish(tiny(tmp_path, more=", or something"))
    assert again.returncode == 1
    assert "is published with another content" in again.stderr
    assert {file: file.read_bytes() for file in empty.folder.rglob("*.deb")} == before


def test_what_is_no_package_of_mrcd_is_refused(empty: Repository, tmp_path: Path) -> None:
    for other in (tiny(tmp_path, name="other"), Path("/etc/hostname")):
        done = empty.publish(other)
        assert done.returncode == 1
        assert f"{other} is no package of mrcd" in done.stderr


# ---- hosts

COPY = IN_A_COPY.replace("cp {deb}", "cp -r {repository}").replace("run/mrcd.deb", "run/repository")
BEFORE = """
cd /
rm -rf /etc/apt/sources.list.d/mrcd.sources
install -D -m 0644 /run/repository/mrcd.asc /etc/apt/keyrings/mrcd.asc
cat >/etc/apt/sources.list.d/mrcd.sources <<END
Types: deb
URIs: file:/run/repository
Suites: stable
Components: main
Signed-By: /etc/apt/keyrings/mrcd.asc
END
export DEBIAN_FRONTEND=noninteractive
apt-get -q update -o APT::Update::Error-Mode=any >/run/log 2>&1 || { cat /run/log; exit 1; }
"""


def in_a_copy(scratch: Path, repository: Repository, script: str) -> str:
    """Run a shell script on a copy of this machine that has the repository as a folder."""
    outer = COPY.format(scratch=scratch, checkout=ROOT, repository=repository.folder)
    script = BEFORE + script
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", outer, "sh", script],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_unattended_upgrades_take_a_newer_build(repository: Repository, tmp_path: Path) -> None:
    """As docs/install.md allows it to; nothing else of this machine is upgraded."""
    (allowed,) = re.findall(
        r"^echo '(.+)' >/etc/apt/apt.conf.d/52mrcd$",
        (ROOT / "docs" / "install.md").read_text(),
        re.MULTILINE,
    )
    output = in_a_copy(
        tmp_path,
        repository,
        f"""
        apt-get -q -y install --no-install-recommends mrcd={DEB_VERSION} unattended-upgrades \
            >/run/log 2>&1 || {{ cat /run/log; exit 1; }}
        printf '%s\\n' '#clear Unattended-Upgrade::Origins-Pattern;' '{allowed}' \
            >/etc/apt/apt.conf.d/52mrcd
        unattended-upgrade --verbose >/run/log 2>&1 || {{ cat /run/log; exit 1; }}
        cat /run/log
        dpkg-query -W mrcd
        mrcctl --version
        echo versions
        apt-cache madison mrcd
        """,
    )
    output, _, listed = output.partition("versions\n")
    assert "Packages that will be upgraded: mrcd\n" in output
    assert f"mrcd\t{NEWER_DEB_VERSION}\n" in output
    assert f"mrcctl, version {NEWER_VERSION}\n" in output
    found = [line.split("|")[1].strip() for line in listed.splitlines()]
    assert found == [NEWER_DEB_VERSION, DEB_VERSION, OLD], "one can go back to all"


# ---- builds


def test_two_builds_are_the_same_byte_for_byte(package: Path, tmp_path: Path) -> None:
    """The second is of a copy elsewhere, and compiles one program; `make release` compiles all."""
    (compiled,) = (ROOT / "build" / "package" / "deb").glob("mrcd-*/compiled")
    kept = Path(shutil.copytree(compiled, tmp_path / "compiled"))
    largest = max(kept.iterdir(), key=lambda file: file.stat().st_size)
    largest.unlink()
    tree = tmp_path / "tree"
    tree.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout  # fmt: skip
    packed = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-", "--ignore-failed-read"],
        cwd=ROOT, input=listed, capture_output=True, check=True,
    ).stdout  # fmt: skip
    subprocess.run(["tar", "--extract"], cwd=tree, input=packed, check=True)
    (tree / ".venv").symlink_to(ROOT / ".venv")
    epoch = release.git(ROOT, "log", "-1", "--format=%ct")
    done = subprocess.run(
        ["packaging/build.sh", "deb", "amd64"],
        cwd=tree, capture_output=True, text=True, check=False,
        env=os.environ | {
            "MRCD_VERSION": VERSION, "SOURCE_DATE_EPOCH": epoch, "COMPILED": str(kept),
            "TZ": "Pacific/Auckland", "LC_ALL": "C.UTF-8", "HOME": str(tmp_path),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    made = release.digests((tree / "dist").iterdir())
    assert len(made) == 2
    assert made == release.digests(DIST / name for name in made)
