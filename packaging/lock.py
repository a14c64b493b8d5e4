# SPDX-License-Identifier: GPL-2.0-only
"""Write packaging/vendor.txt: the PyPI packages inside the Debian package, by version and hash.

    make lock

Run it when the dependencies in pyproject.toml change, or to take newer versions. Every version of
Python that the Debian package runs on (PYTHONS) gets the same versions, each in a wheel of its own
where the wheel is compiled. `packaging/lock.py --download FOLDER` fetches them all.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "packaging" / "vendor.txt"
OF_DEBIAN = {"cryptography"}
"""Dependencies that the Debian package takes from Debian, whose security team mends them."""
PYTHONS = ("3.11", "3.12", "3.13")
"""Of Debian 12, Ubuntu 24.04 and Debian 13."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
HEAD = """\
# SPDX-License-Identifier: GPL-2.0-only
# PyPI packages inside the Debian package, for CPython 3.11 to 3.13 on amd64: made by `make lock`.
"""


def pip(command: str, python: str, *words: str) -> bytes:
    """Have pip choose wheels for a version of Python, and return what it prints."""
    platforms = (word for name in PLATFORMS for word in ("--platform", name))
    return subprocess.run(
        [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check",
         "--only-binary", ":all:", "--implementation", "cp", "--python-version", python,
         *platforms, *words],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout  # fmt: skip


def resolve(python: str, requirements: list[str]) -> list[tuple[str, str, str]]:
    """Return name, version and hash of every wheel that the requirements need."""
    report = pip(
        "install", python, "--dry-run", "--ignore-installed", "--target", "unused",
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


def lock() -> str:
    """Return the text of the file, resolved from the dependencies of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        one for one in project["dependencies"] if re.split(r"[^\w-]", one)[0] not in OF_DEBIAN
    ]
    digests: dict[str, list[str]] = {}
    for python in PYTHONS:
        for name, version, digest in resolve(python, wanted):
            known = digests.setdefault(f"{name}=={version}", [])
            known += [digest] * (digest not in known)
        wanted = sorted(digests)  # the same versions for all
    lines = [
        " \\\n    ".join([one, *(f"--hash={digest}" for digest in digests[one])])
        for one in sorted(digests)
    ]
    return HEAD + "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Write the file, or fetch what it names."""
    if sys.argv[1:2] == ["--download"]:
        for python in PYTHONS:
            pip("download", python, "--require-hashes", "--no-deps", "--dest", sys.argv[2],
                "--requirement", str(LOCK))  # fmt: skip
        return
    LOCK.write_text(lock())
    print(f"{LOCK.relative_to(ROOT)}: for Python {', '.join(PYTHONS)}")


if __name__ == "__main__":
    main()
