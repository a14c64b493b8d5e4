# SPDX-License-Identifier: GPL-2.0-only
"""Write packaging/vendor-ARCH.txt: the PyPI packages in the Debian package, by version and hash.

    make lock

Run it when the dependencies in pyproject.toml change, or to take newer versions. Every architecture
(ARCHITECTURES) and every version of Python that the Debian package runs on (PYTHONS) gets the same
versions, each in a wheel of its own where the wheel is compiled. `packaging/lock.py --download ARCH
FOLDER` fetches those of an architecture.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_DEBIAN = {"cryptography"}
"""Dependencies that the Debian package takes from Debian, whose security team mends them."""
PYTHONS = ("3.11", "3.12", "3.13")
"""Of Debian 12 and 13, and Python 3.12."""
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's names of the architectures, and those of wheels."""
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
HEAD = """\
# SPDX-License-Identifier: GPL-2.0-only
# PyPI packages inside the Debian package, for CPython 3.11 to 3.13 on {arch}: made by `make lock`.
"""


def file_of(arch: str) -> Path:
    """Return the lock file of an architecture."""
    return ROOT / "packaging" / f"vendor-{arch}.txt"


def pip(command: str, arch: str, python: str, *words: str) -> bytes:
    """Have pip choose wheels for an architecture and a version of Python; return what it prints."""
    machine = ARCHITECTURES[arch]
    platforms = (word for name in PLATFORMS for word in ("--platform", f"{name}_{machine}"))
    return subprocess.run(
        [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check",
         "--only-binary", ":all:", "--implementation", "cp", "--python-version", python,
         *platforms, *words],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout  # fmt: skip


def resolve(arch: str, python: str, requirements: list[str]) -> list[tuple[str, str, str]]:
    """Return name, version and hash of every wheel that the requirements need."""
    report = pip(
        "install", arch, python, "--dry-run", "--ignore-installed", "--target", "unused",
        "--report", "-", *requirements,
    )  # fmt: skip
    return sorted(
        (
            wheel["metadata"]["name"].lower(),
            wheel["metadata"]["version"],
            "sha256:" + wheel["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for wheel in json.loads(report)["install"]
    )


def lock() -> dict[str, str]:
    """Return the texts of the files, resolved from the dependencies of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        one for one in project["dependencies"] if re.split(r"[^\w-]", one)[0] not in OF_DEBIAN
    ]
    texts: dict[str, str] = {}
    for arch in ARCHITECTURES:
        digests: dict[str, list[str]] = {}
        for python in PYTHONS:
            for name, version, digest in resolve(arch, python, wanted):
                known = digests.setdefault(f"{name}=={version}", [])
                known += [digest] * (digest not in known)
            wanted = sorted(digests)  # the same versions for all
        lines = [
            " \\\n    ".join([one, *(f"--hash={digest}" for digest in digests[one])])
            for one in sorted(digests)
        ]
        texts[arch] = HEAD.format(arch=arch) + "".join(f"{line}\n" for line in lines)
    return texts


def main() -> None:
    """Write the files, or fetch what one of them names."""
    if sys.argv[1:2] == ["--download"]:
        arch, folder = sys.argv[2:]
        for python in PYTHONS:
            pip("download", arch, python, "--require-hashes", "--no-deps", "--dest", folder,
                "--requirement", str(file_of(arch)))  # fmt: skip
        return
    for arch, text in lock().items():
        file_of(arch).write_text(text)
        print(f"{file_of(arch).relative_to(ROOT)}: for Python {', '.join(PYTHONS)}")


if __name__ == "__main__":
    main()
