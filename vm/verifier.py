# SPDX-License-Identifier: GPL-2.0-only
"""Give all programs that are kept to the verifiers of several kernels: `make check-verifier`.

A kernel is `running`, this machine's own, or a suite of Debian's, whose kernel boots in a virtual
machine without a disk. Fails when a kernel refuses a program, or walks more than 700,000
instructions in one; it refuses a million. With --record, vm/results/verifier.json keeps the
figures, which docs/platforms.md shows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mrcd.wire.sources import bpf_dir
from rigs.kept_programs import Report
from vm import initramfs, results
from vm.qemu import MachineFailed

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "build" / "vm" / "kernels"
COMPILED = ROOT / "build" / "vm" / "compiled"
RUNNING = "running"
SUITES = ("bookworm", "trixie", "trixie-backports")
_WITHIN_S = 1500
_MODULE = "rigs.kept_programs"


def on_this_machine() -> Report:
    """Load all on the running kernel; the report has the files that this takes."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", _MODULE, "--files", str(COMPILED)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        sys.exit(f"check-verifier: python -m {_MODULE} failed on this machine's own kernel")
    return Report(**json.loads(done.stdout))


def fill(root: Path, files: Sequence[str]) -> None:
    """Put Python, the loader and all compiled programs into the folder of an initramfs."""
    sources = bpf_dir()
    headers = [str(file) for file in sources.iterdir() if file.suffix in {".c", ".h"}]
    initramfs.copy_python(root, Path(sys.executable))
    objects = [file for file in files if file.endswith(".so")]
    initramfs.copy_files(root, [*files, *headers, *initramfs.libraries(objects)])
    # Where a package has them.
    shutil.copytree(COMPILED, root / str(sources).lstrip("/") / "compiled", dirs_exist_ok=True)


def on_suite(suite: str, files: Sequence[str], within_s: float) -> Report:
    """Load all on the kernel of a suite."""
    folder = KERNELS / suite
    subprocess.run([str(ROOT / "vm" / "kernel.sh"), str(folder), suite], check=True)
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    task = initramfs.Task(
        [["/usr/bin/python3", "-m", _MODULE, f"{bpf_dir()}/compiled"]],
        environment={"PYTHONPATH": ":".join(paths)},
    )
    with tempfile.TemporaryDirectory(dir=folder) as made:
        root, archive = Path(made, "root"), Path(made, "initramfs")
        fill(root, files)
        initramfs.pack(root, task, archive)
        (done,) = initramfs.run(folder / "vmlinuz", archive, within_s=within_s)
    if done["status"]:
        raise MachineFailed(f"{suite}: {done['err']}")
    return Report(**json.loads(done["out"]))


def main() -> int:
    """Check the kernels; return 1 if one of them does not take all programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", nargs="*", default=[RUNNING, *SUITES], metavar="KERNEL")
    parser.add_argument("--record", action="store_true", help="keep the figures in vm/results")
    parser.add_argument("--within", type=float, default=_WITHIN_S, help="seconds for each kernel")
    options = parser.parse_args()
    if unknown := set(options.kernels) - {RUNNING, *SUITES}:
        known = ", ".join((RUNNING, *SUITES))
        sys.exit(f"check-verifier: kernel {', '.join(sorted(unknown))}: must be of {known}")
    if os.geteuid() != 0:
        sys.exit("check-verifier: needs root to load programs: run it with sudo")
    COMPILED.mkdir(parents=True, exist_ok=True)
    here = on_this_machine()
    good = True
    for kernel in options.kernels:
        began = time.monotonic()
        try:
            report = here if kernel == RUNNING else on_suite(kernel, here.files, options.within)
            faults = report.faults()
        except MachineFailed as error:
            print(f"check-verifier: {kernel}: FAILED: {error}", flush=True)
            good = False
            continue
        longest = max(report.walked, key=lambda name: report.walked[name])
        print(
            f"{kernel:17} Linux {report.kernel}: {report.loads} programs, the longest walk is"
            f" {report.walked[longest]:,} ({longest}, {report.where[longest]}),"
            f" {time.monotonic() - began:.0f} s",
            *faults,
            sep="\n  ",
            flush=True,
        )
        good &= not faults
        if options.record:
            kept = asdict(report)
            del kept["files"]
            results.record("verifier", kernel, kept)
    return not good


if __name__ == "__main__":
    sys.exit(main())
