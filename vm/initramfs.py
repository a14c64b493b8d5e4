# SPDX-License-Identifier: GPL-2.0-only
"""Machines without a disk: boot a kernel with an initramfs that does one task (vm/first.py).

Such a machine needs no modules, no service manager and no network. It boots in seconds also where
the processor is emulated.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vm import first
from vm.clock import CLOCK
from vm.qemu import MachineFailed, accelerator

# What of Python's library no program needs; a third of it.
_LEFT_OUT = shutil.ignore_patterns(
    "test", "tests", "config-*", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "turtledemo"
)
_MERGED = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
_CONSOLES = {"amd64": "ttyS0", "arm64": "ttyAMA0"}
# Python does not start before there is randomness, and nothing gathers it here but the processor.
_OPTIONS = "quiet panic=-1 mitigations=off no_timer_check random.trust_cpu=on rdinit=/init"
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Task:
    """What a machine is to do: commands, one after the other, until one fails."""

    commands: Sequence[Sequence[str]]
    folder: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict)


def copy_python(root: Path, python: Path) -> None:
    """Put an interpreter of this machine and its library into the folder of an initramfs."""
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, root / library.relative_to("/"), ignore=_LEFT_OUT, symlinks=True)
    place = root / "usr/bin/python3"
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(python.resolve(), place)
    objects = (str(path) for path in library.rglob("*.so"))
    copy_files(root, libraries([str(python.resolve()), *objects]))


def copy_files(root: Path, files: Iterable[str]) -> None:
    """Copy files of this machine to the same places in the folder of an initramfs."""
    merge(root)
    for name in files:
        place = root / name.lstrip("/")
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, place)


def merge(root: Path) -> None:
    """Make /bin, /lib and the like links into /usr, as Debian has them."""
    for name, leads_to in _MERGED.items():
        (root / leads_to).mkdir(parents=True, exist_ok=True)
        if not (root / name).exists():
            (root / name).symlink_to(leads_to)


def libraries(objects: Sequence[str]) -> list[str]:
    """Return the shared libraries that programs or other libraries need, by the names they use."""
    done = subprocess.run(["ldd", *objects], capture_output=True, text=True, check=False)
    return sorted(set(re.findall(r"(/\S+) \(0x", done.stdout)))


def pack(root: Path, task: Task, target: Path) -> None:
    """Make an initramfs of a folder, with a task; the folder gets what the first process needs."""
    merge(root)
    shutil.copy(first.__file__, root / "init")
    (root / "init").chmod(0o755)
    environment = {"PATH": "/usr/sbin:/usr/bin", "HOME": "/", "LANG": "C.UTF-8"}
    environment |= task.environment
    (root / "task.json").write_text(
        json.dumps(
            {
                "commands": [list(command) for command in task.commands],
                "folder": task.folder,
                "environment": environment,
            }
        )
    )
    names = subprocess.run(["find", "."], cwd=root, capture_output=True, check=True).stdout
    with target.open("wb") as archive:
        subprocess.run(
            ["cpio", "--quiet", "--create", "--format=newc"],
            cwd=root,
            input=names,
            stdout=archive,
            check=True,
        )


def run(
    kernel: Path, initramfs: Path, *, arch: str = "amd64", memory_mb: int = 1024, within_s: float
) -> list[dict[str, Any]]:
    """Boot a machine, and return what its commands printed, with their status and seconds.

    Raises MachineFailed where it did not come to an end in time, or did not run its task.
    """
    with tempfile.TemporaryDirectory(prefix="mrcd-vm-") as made:
        console, errors = Path(made, "console"), Path(made, "stderr")
        command = [
            *_emulator(arch),
            *("-smp", "2", "-m", str(memory_mb), "-display", "none", "-no-reboot", "-nodefaults"),
            *("-kernel", str(kernel), "-initrd", str(initramfs)),
            *("-append", f"console={_CONSOLES[arch]} {_OPTIONS}"),
            *("-serial", f"file:{console}"),
        ]
        with errors.open("wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=file)
        CLOCK.watch(process.pid)
        try:
            until = CLOCK.deadline(within_s)
            while process.poll() is None and CLOCK.now() < until:
                time.sleep(_LOOK_S)
            ended = process.poll() is not None
        finally:
            CLOCK.forget(process.pid)
            process.kill()
            process.wait()
        said = console.read_text(errors="replace") if console.exists() else ""
        found = reports(said)
        if not ended or not found:
            words = errors.read_text(errors="replace").strip()
            why = f"not done within {within_s:.0f} s" if not ended else "ran no command"
            raise MachineFailed(f"{kernel}: {why}; console:\n{words}{said[-3000:]}")
        return found


def reports(console: str) -> list[dict[str, Any]]:
    """Return what vm/first.py reported on a console."""
    lines = (line.partition(first.MARK)[2] for line in console.splitlines() if first.MARK in line)
    return [json.loads(line) for line in lines]


def _emulator(arch: str) -> list[str]:
    if arch == "arm64":
        return [
            "qemu-system-aarch64",
            "-M",
            "virt",
            "-cpu",
            "cortex-a72",
            "-accel",
            "tcg,thread=multi",
        ]
    if accelerator() == "kvm":
        return ["qemu-system-x86_64", "-accel", "kvm", "-cpu", "host"]
    return ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "Nehalem,+rdrand"]


def host_arch() -> str:
    """Return Debian's name of this machine's architecture."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
