# SPDX-License-Identifier: GPL-2.0-only
"""Test the Debian package for arm64, which is built on any machine: its content only.

Nothing of it is run here; docs/install.md says what has been run, and how.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.package.conftest import ARM64_DEB, DEB

pytestmark = [pytest.mark.usefixtures("package"), pytest.mark.timeout(600)]
SITE = "usr/lib/mrcd/lib/python3/site-packages"
_EM_AARCH64 = 183


def field(deb: Path, name: str) -> str:
    done = subprocess.run(
        ["dpkg-deb", "--field", deb, name], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the contents of the packages for arm64 and for amd64."""
    folders = []
    for deb in (ARM64_DEB, DEB):
        folders.append(tmp_path_factory.mktemp(deb.stem))
        subprocess.run(["dpkg-deb", "--extract", deb, folders[-1]], check=True)
    return folders[0], folders[1]


def contents(root: Path) -> dict[Path, bytes]:
    """Return the files of a package, and what is in them, by their paths."""
    return {
        file.relative_to(root): file.read_bytes()
        for file in root.rglob("*")
        if file.is_file() and not file.is_symlink()
    }


def test_its_fields_are_those_of_arm64() -> None:
    assert field(ARM64_DEB, "Architecture") == "arm64"
    assert field(ARM64_DEB, "Version") == field(DEB, "Version")
    # Other modules need another version of libc.
    mine, other = (
        re.sub(r"libc6 \(>= [\d.]+\)", "libc6", field(deb, "Depends")) for deb in (ARM64_DEB, DEB)
    )
    assert "libc6," in mine
    assert mine == other
    assert field(ARM64_DEB, "Recommends") == field(DEB, "Recommends").replace("amd64", "arm64")


def test_compiled_modules_are_for_its_processor_and_for_each_python(
    unpacked: tuple[Path, Path],
) -> None:
    mine, other = (sorted((root / SITE).rglob("*.so")) for root in unpacked)
    for module in mine:
        head = module.read_bytes()[:20]
        assert head[:6] == b"\x7fELF\x02\x01", module.name  # of 64 bits, little-endian
        assert int.from_bytes(head[18:20], "little") == _EM_AARCH64, module.name
    names = [str(module.relative_to(unpacked[0])) for module in mine]
    assert names == [
        str(module.relative_to(unpacked[1])).replace("x86_64", "aarch64") for module in other
    ]
    for minor in (11, 12, 13):
        assert f"{SITE}/_cffi_backend.cpython-3{minor}-aarch64-linux-gnu.so" in names


def test_all_else_is_the_same(unpacked: tuple[Path, Path]) -> None:
    """The BPF programs are, too: they are compiled once, for the kernel's own machine."""
    mine, other = map(contents, unpacked)

    def shared(files: dict[Path, bytes]) -> dict[Path, bytes]:
        return {
            path: content
            for path, content in files.items()
            # Lists of files have the names of compiled modules.
            if path.suffix != ".so" and path.name not in {"WHEEL", "RECORD", "copyright"}
        }

    assert shared(mine) == shared(other)
    assert any("compiled" in path.parts for path in mine)
