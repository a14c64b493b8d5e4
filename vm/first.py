#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only
"""Be the first process of a machine whose whole disk is its initramfs: do one task, and end.

/task.json has the commands, one after the other, and their environment. What each printed goes to
the console, as one line of JSON after MARK; then the machine ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import time
import traceback
from pathlib import Path

MARK = "mrcd-task: "
_MOUNTS = (
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
    ("bpf", "/sys/fs/bpf"),
)
_RESTART = 0x01234567
"""qemu ends on that (-no-reboot); not every kernel can switch a machine off."""


def mount(libc: ctypes.CDLL) -> None:
    """Mount what programs expect of a machine."""
    for kind, where in _MOUNTS:
        os.makedirs(where, exist_ok=True)
        if libc.mount(kind.encode(), where.encode(), kind.encode(), 0, None):
            # A kernel may have mounted devtmpfs itself.
            print(f"mount {kind} on {where}: {os.strerror(ctypes.get_errno())}", flush=True)


def run(task: dict[str, object]) -> None:
    """Run the commands; stop at the first that fails."""
    commands = task["commands"]
    assert isinstance(commands, list)
    for command in commands:
        began = time.monotonic()
        done = subprocess.run(
            command, env=task["environment"], cwd=task["folder"], capture_output=True, check=False
        )  # type: ignore[call-overload]
        report = {
            "status": done.returncode,
            "out": done.stdout.decode(errors="replace"),
            "err": done.stderr.decode(errors="replace")[-4000:],
            "seconds": round(time.monotonic() - began, 1),
        }
        print(f"{MARK}{json.dumps(report)}", flush=True)
        if done.returncode:
            return


def main() -> None:
    """Do the task of /task.json."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        mount(libc)
        run(json.loads(Path("/task.json").read_text()))
    except Exception:  # the first process must not end without a word
        traceback.print_exc()
    os.sync()
    libc.reboot(_RESTART)


if __name__ == "__main__":
    main()
