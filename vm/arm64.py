# SPDX-License-Identifier: GPL-2.0-only
"""Run mrcd's package for arm64 on an emulated machine: `make check-arm`.

The machine has no disk and no service manager (vm/first.py). Its kernel takes all programs that the
package brings; then `mrcctl lab up` connects two hosts of a lab, which ping each other and send by
TCP. With --record, vm/results/arm64.json keeps the verdicts, which docs/platforms.md shows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrcd import __version__
from rigs.kept_programs import Report
from vm import initramfs, results
from vm.qemu import MachineFailed

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "vm" / "arm64"
MEMORY_MB = 3072
WITHIN_S = 2400
# An emulated processor needs longer than `mrcctl lab up` waits for its daemons.
START = """/usr/lib/mrcd/bin/python3 -c '
from cli.lab import lab
for host in ("h1", "h2"):
    lab.start_daemon("lab", host)
'"""
REACH = """began=$(date +%s)
until mrcctl lab exec h1 -- ping -q -c 1 -W 2 10.99.0.2 >/dev/null 2>&1; do
    if [ $(($(date +%s) - began)) -gt 600 ]; then
        tail -n 20 /run/mrcd-lab/lab/h1/mrcd.log
        exit 1
    fi
done"""
PING = "mrcctl lab exec h1 -- ping -q -c 20 -i 0.3 10.99.0.2"
SERVE = "mrcctl lab exec h2 -- iperf3 --server --one-off --daemon"
SEND = "mrcctl lab exec h1 -- iperf3 -c 10.99.0.2 -t 10 --json"
Figures = dict[str, Any]


def loaded(out: str) -> Figures:
    """Return what the verifier said of all programs; AssertionError if it refused one."""
    report = Report(**json.loads(out))
    faults = report.faults()
    assert not faults, "; ".join(faults)
    longest = max(report.walked, key=lambda name: report.walked[name])
    return {"loads": report.loads, "longest_walk": f"{report.walked[longest]:,} by {longest}"}


def brought_up(out: str) -> Figures:
    """Return nothing: that the command succeeded is enough."""
    del out
    return {}


def pinged(out: str) -> Figures:
    """Return the figures of 20 pings; AssertionError if one was lost."""
    assert " 0% packet loss" in out, out
    return {"rtt": out.strip().splitlines()[-1].partition("= ")[2]}


def sent(out: str) -> Figures:
    """Return the rate of a TCP connection; AssertionError if nothing arrived."""
    end = json.loads(out)["end"]
    assert end["sum_received"]["bytes"] > 0, "nothing arrived"
    return {
        "mbps": round(end["sum_received"]["bits_per_second"] / 1e6, 1),
        "tcp_retransmits": end["sum_sent"]["retransmits"],
    }


Step = tuple[str, str, Callable[[str], Figures]]
STEPS: tuple[Step, ...] = (
    ("programs", "/usr/lib/mrcd/bin/python3 -m rigs.kept_programs", loaded),
    ("version", "mrcctl --version", brought_up),
    ("lab", "mrcctl lab up --no-daemon", brought_up),
    ("daemons", START, brought_up),
    ("reach", REACH, brought_up),
    ("ping", PING, pinged),
    ("server", SERVE, brought_up),
    ("TCP", SEND, sent),
    ("down", "mrcctl lab down", brought_up),
)
"""Name, command, and what makes figures of its output, or raises."""


def fill(root: Path, debian: Path, kernel: Path, deb: Path) -> None:
    """Put Debian's files, the kernel's modules and the package into the folder of an initramfs."""
    subprocess.run(["cp", "-a", "--reflink=auto", f"{debian}/.", root], check=True)
    release = (kernel / "release").read_text().strip()
    modules = root / "usr/lib/modules"
    modules.mkdir(parents=True, exist_ok=True)
    shutil.copytree(kernel / "modules" / release, modules / release, symlinks=True)
    subprocess.run(["depmod", "--basedir", root, release], check=True)
    package = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], capture_output=True, check=True)
    unpack = ["tar", "--extract", "--keep-directory-symlink", "--directory", str(root)]
    subprocess.run(unpack, input=package.stdout, check=True)
    for name in ("__init__.py", "kept_programs.py"):
        place = root / "check" / "rigs" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "rigs" / name, place)


def run(suite: str, deb: Path, within_s: float) -> dict[str, Any]:
    """Run all steps on the kernel and files of a suite; return the report."""
    kernel, debian = WORK / f"kernel-{suite}", WORK / suite
    subprocess.run([str(ROOT / "vm" / "kernel.sh"), str(kernel), suite, "arm64"], check=True)
    subprocess.run([str(ROOT / "vm" / "arm64.sh"), str(debian), suite], check=True)
    task = initramfs.Task(
        [["/bin/sh", "-c", command] for _name, command, _judge in STEPS],
        environment={"PYTHONPATH": "/check"},
    )
    with tempfile.TemporaryDirectory(dir=WORK) as made:
        root, archive = Path(made, "root"), Path(made, "initramfs")
        root.mkdir()
        fill(root, debian, kernel, deb)
        initramfs.pack(root, task, archive)
        shutil.rmtree(root)
        done = initramfs.run(
            kernel / "vmlinuz", archive, arch="arm64", memory_mb=MEMORY_MB, within_s=within_s
        )
    steps = judged(done)
    return {
        "good": len(steps) == len(STEPS) and all(step["good"] for step in steps.values()),
        "kernel": (kernel / "release").read_text().strip(),
        "steps": steps,
    }


def judged(done: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the verdict on each step from what the machine reported."""
    steps: dict[str, dict[str, Any]] = {}
    for (name, _command, judge), report in zip(STEPS, done, strict=False):
        figures: Figures = {"good": True, "seconds": report["seconds"]}
        try:
            assert report["status"] == 0, (report["out"] + report["err"])[-1500:]
            figures |= judge(report["out"])
        except (AssertionError, ValueError, KeyError) as error:
            figures |= {"good": False, "reason": str(error)}
        steps[name] = figures
    return steps


def main() -> int:
    """Run the check; return 1 if a step failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", choices=["bookworm", "trixie"], default="bookworm")
    parser.add_argument("--record", action="store_true", help="keep the verdicts in vm/results")
    parser.add_argument("--within", type=float, default=WITHIN_S, help="seconds for all steps")
    parser.add_argument("--deb", type=Path, help="the package; default: this version's in dist/")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("check-arm: needs root to make a root file system: run it with sudo")
    deb = options.deb or ROOT / "dist" / f"mrcd_{__version__}_arm64.deb"
    if not deb.exists():
        sys.exit(f"check-arm: no {deb}: run `make deb ARCH=arm64` first")
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        report = run(options.release, deb, options.within)
    except MachineFailed as error:
        sys.exit(f"check-arm: FAILED: {error}")
    for name, step in report["steps"].items():
        words = ", ".join(f"{key} {value}" for key, value in step.items() if key != "good")
        print(f"{name:10} {'ok' if step['good'] else 'FAILED':7} {words}")
    if options.record:
        results.record("arm64", options.release, report)
    print(f"check-arm: {'passed' if report['good'] else 'FAILED'} on Linux {report['kernel']}")
    return not report["good"]


if __name__ == "__main__":
    sys.exit(main())
