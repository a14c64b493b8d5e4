# SPDX-License-Identifier: GPL-2.0-only
"""Run the unit tests with other interpreters than Debian 12's: `make check-python`.

An interpreter is found by its version: on PATH, or where pyenv keeps its own. What is not there
cannot be tried, and is named. Each gets an environment of its own in build/python, with the
versions that the Debian package carries. With --record, vm/results/python.json keeps the outcome,
which docs/platforms.md shows.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from scripts import audit
from vm import results

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "python"
LOCKED = ROOT / "packaging" / "vendor-amd64.txt"
VERSIONS = ("3.12", "3.13")
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))


def interpreter(version: str) -> Path | None:
    """Return an interpreter of a version, like 3.13; None if there is none."""
    if found := shutil.which(f"python{version}"):
        done = subprocess.run([found, "--version"], capture_output=True, check=False)
        if done.returncode == 0:  # pyenv's own command exists for versions that are switched off
            return Path(found)
    kept = sorted((PYENV / "versions").glob(f"{version}.*/bin/python{version}"))
    return kept[-1] if kept else None


def environment(python: Path, version: str) -> Path:
    """Make an environment with what the tests need; return its interpreter."""
    folder = WORK / version
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    own, carried = folder / "bin" / "python", folder / "versions.txt"
    carries = audit.locked(LOCKED.read_text())  # the same for all architectures
    carried.write_text("".join(f"{name}=={version}\n" for name, version in carries.items()))
    install = [str(own), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    install += ["-c", str(carried)]
    subprocess.run([*install, "-e", f"{ROOT}[dev]"], check=True, stderr=subprocess.DEVNULL)
    return own


def outcome(report: Path) -> dict[str, Any]:
    """Return how many tests ran, failed and were skipped, from pytest's report."""
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return {
        "good": total > skipped and not failed,
        "ran": total - skipped,
        "failed": failed,
        "skipped": skipped,
        "seconds": round(float(suite.get("time", 0))),
    }


def unit_tests(python: Path, version: str) -> dict[str, Any]:
    """Run the unit tests; return their outcome."""
    report = WORK / f"{version}.xml"
    report.unlink(missing_ok=True)
    command = [
        str(python),
        "-m",
        "pytest",
        "tests/unit",
        "-q",
        "-n",
        "auto",
        f"--junitxml={report}",
    ]
    subprocess.run(command, cwd=ROOT, check=False)
    return outcome(report)


def main() -> int:
    """Try each version; return 1 if one is missing or a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--record", action="store_true", help="keep the outcome in vm/results")
    options = parser.parse_args()
    good, libc = True, " ".join(platform.libc_ver())
    seen: dict[str, dict[str, Any]] = {}
    for version in options.versions:
        python = interpreter(version)
        if python is None:
            where = f"python{version} on PATH, or {PYENV}/versions/{version}.*"
            print(f"check-python: {version}: NOT TRIED: there is no {where}", flush=True)
            good = False
            continue
        found = unit_tests(environment(python, version), version)
        exact = subprocess.run([python, "--version"], capture_output=True, text=True, check=True)
        found["python"] = exact.stdout.split()[1]
        good &= bool(found["good"])
        words = ", ".join(f"{name} {value}" for name, value in found.items() if name != "good")
        print(
            f"check-python: {version}: {'ok' if found['good'] else 'FAILED'}: {words}", flush=True
        )
        seen[version] = {**found, "libc": libc}
    if options.record:  # at the end: a test compares what is recorded with the page
        for version, found in seen.items():
            results.record("python", version, found)
    return not good


if __name__ == "__main__":
    sys.exit(main())
