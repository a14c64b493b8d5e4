# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures: the packages of this checkout, built once for all their tests and all workers."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.lab.state import CACHE_DIR, locked
from scripts import version
from tests.package import releases
from tests.package.releases import Repository

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
# Of all workers, although somebody may change a file meanwhile; packaging/build.sh takes it.
VERSION = os.environ.setdefault("MRCD_VERSION", version.of(ROOT))
DEB_VERSION = version.debian(VERSION)
NEWER_VERSION = f"{VERSION}.1" if "+" in VERSION else f"{VERSION}+1"
NEWER_DEB_VERSION = version.debian(NEWER_VERSION)
DEB = DIST / f"mrcd_{DEB_VERSION}_amd64.deb"
ARM64_DEB = DIST / f"mrcd_{DEB_VERSION}_arm64.deb"

# Workers take one file after the other: first the longest, and beside its beginning, in which
# it builds the packages, what does not need them.
FIRST = ("test_ansible", "test_report_browser", "test_manifests", "test_upgrade", "test_boot")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(FIRST)))


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return the package for amd64; that for arm64, the wheel and the lists are beside it."""
    if os.geteuid() != 0:
        pytest.skip("installing packages needs root: run the tests as root")
    if "overlay" not in Path("/proc/filesystems").read_text():
        pytest.skip("this kernel has no overlay file system to copy the machine with")
    with once(tmp_path_factory, worker_id, "packages-built") as first:
        if first:
            build()
    return DEB


@pytest.fixture(scope="session")
def old_package(package: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return the last package of 0.1."""
    with once(tmp_path_factory, worker_id, "old-built"):
        return releases.build_old(CACHE_DIR)


@pytest.fixture(scope="session")
def newer_package(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return this checkout's package as if built from a later commit."""
    return releases.later(package, NEWER_VERSION, tmp_path_factory.mktemp("newer"))


@pytest.fixture(scope="session")
def repository(
    package: Path, old_package: Path, newer_package: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Repository]:
    """Return a repository with the old, the new and the newer package."""
    with releases.repository(tmp_path_factory.mktemp("apt") / "repository") as made:
        for each in (old_package, package, newer_package):
            done = made.publish(each)
            assert done.returncode == 0, done.stdout + done.stderr
        yield made


@contextlib.contextmanager
def once(factory: pytest.TempPathFactory, worker_id: str, name: str) -> Iterator[bool]:
    """Exclude other workers, and yield whether none has been here before."""
    # Workers' folders are in one folder of the run.
    run = factory.getbasetemp()
    run = run if worker_id == "master" else run.parent
    with locked(run):
        yield not (run / name).exists()
        (run / name).touch()


def build() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "sbom", "ARCH=amd64 arm64"],
        cwd=ROOT,
        # Labs have compiled some of the package's programs already; 6 s each.
        env=os.environ | {"COMPILED": str(CACHE_DIR)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
