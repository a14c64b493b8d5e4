#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only
"""Print the dependency on libc6 of the compiled modules in a folder, as dpkg-shlibdeps would.

It is for a package that is built for another architecture, whose libraries are not on this machine;
dpkg-shlibdeps would look into them.
"""

import re
import subprocess
import sys
from pathlib import Path

OF_LIBC = re.compile(r"(libc|libm|libdl|libpthread|librt|ld-linux-[\w-]+)\.so\.\d+")
"""Libraries of libc6."""


def main(folder: str) -> None:
    modules = sorted(str(path) for path in Path(folder).rglob("*.so"))
    if not modules:
        sys.exit(f"libc: no compiled module in {folder}")
    shown = subprocess.run(
        ["readelf", "--wide", "--dynamic", "--version-info", *modules],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", shown))
    if others := sorted(name for name in needed if not OF_LIBC.fullmatch(name)):
        sys.exit(f"libc: modules need {', '.join(others)}: name their packages in debian/control")
    versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", shown)
    if not versions:
        sys.exit(f"libc: no version of libc is in the modules of {folder}")
    major, minor = max((int(major), int(minor)) for major, minor in versions)
    print(f"libc6 (>= {major}.{minor})")


if __name__ == "__main__":
    main(sys.argv[1])
