# SPDX-License-Identifier: GPL-2.0-only
"""Write packaging/vendor.txt: the PyPI packages inside the Debian package, by version and hash.

    make lock

Run it when the dependencies in pyproject.toml change, or to take newer versions. Use the Python
version that the Debian package runs on, because wheels are chosen for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "packaging" / "vendor.txt"
HEAD = """\
# SPDX-License-Identifier: GPL-2.0-only
# PyPI packages inside the Debian package: wheels for CPython 3.11 on amd64. Made by `make lock`.
"""


def resolve(requirements: list[str]) -> list[tuple[str, str, str]]:
    """Return name, version and hash of every wheel that the requirements need."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", "-",
         *requirements],
        stdout=subprocess.PIPE,
        check=True,
    )  # fmt: skip
    return sorted(
        (
            wheel["metadata"]["name"].lower(),
            wheel["metadata"]["version"],
            "sha256:" + wheel["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for wheel in json.loads(done.stdout)["install"]
    )


def main() -> None:
    """Resolve the dependencies of pyproject.toml and write the file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wheels = resolve(project["dependencies"])
    lines = [f"{name}=={version} --hash={digest}\n" for name, version, digest in wheels]
    LOCK.write_text(HEAD + "".join(lines))
    print(f"{LOCK.relative_to(ROOT)}: {len(lines)} packages")


if __name__ == "__main__":
    main()
