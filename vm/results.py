# SPDX-License-Identifier: GPL-2.0-only
"""Results that the repository keeps: vm/results/NAME.json, with the day, the build and the machine.

docs/platforms.md is written from them (scripts/platforms.py).
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from mrcd.wire.sources import bpf_dir
from vm.qemu import accelerator

FOLDER = Path(__file__).with_name("results")
_ROOT = Path(__file__).resolve().parents[1]


def sources() -> str:
    """Return a digest of the programs' sources: results of others are of another build."""
    digest = hashlib.sha256()
    for file in sorted(bpf_dir().glob("*.[ch]")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def build() -> str:
    """Return the commit of the checkout, with a plus sign if it has been changed since."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{git('rev-parse', '--short=8', 'HEAD') or 'no git'}{'+' * bool(changed)}"


def read(name: str) -> dict[str, dict[str, Any]]:
    """Return the results of a kind by what was tried; none if there are none yet."""
    file = FOLDER / f"{name}.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def record(name: str, key: str, figures: dict[str, Any]) -> None:
    """Keep a result, in place of an earlier one of the same key."""
    kept = read(name)
    kept[key] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "build": build(),
        "sources": sources(),
        "machine": f"{accelerator()}, {os.cpu_count()} CPUs, {platform.machine()}",
        **figures,
    }
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def kept(name: str, release: str, report: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return kind, key and figures of a check of virtual machines (vm/check.py), to record."""
    steps = {each["step"]: each for each in report["steps"]}
    kernel = steps.get("boot", {}).get("figures", {}).get("kernel", "")
    figures = {
        "good": report["good"],
        "kernel": kernel,
        "machine": report["machine"],
        "steps": {
            step: {
                "good": each["good"],
                "seconds": each["seconds"],
                **each["figures"],
                **({"reason": each["reason"][:500]} if each["reason"] else {}),
            }
            for step, each in steps.items()
        },
    }
    kind = "nics" if name.startswith("nics-") else "vm"
    return kind, f"{release} {name.removeprefix('nics-')}", figures
