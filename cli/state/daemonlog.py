# SPDX-License-Identifier: GPL-2.0-only
"""The end of the daemon's log, wherever the daemon writes it: a file, or systemd's journal."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

from cli.console.exits import CommandError

LINES = 2000
BYTES = 1 << 20
"""The most that is read of a log: from its end, in whole lines."""
UNIT = "mrcd"
PROC = Path("/proc")
SOUNDS = r"(?<!public_)(?:secret|password|passphrase|token|psk|private|key)"
"""Matches a part of a name that sounds like that of a secret; public keys are none."""

_SECRET = re.compile(
    rf"({SOUNDS}[\w.-]*[\"']?[ \t]*[=:][ \t]*)(?:\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'|[^\s,}}]+)",
    re.IGNORECASE,
)


def read(pid: int | None) -> bytes:
    """Return the end of the log of the daemon with this process id, without secrets.

    None stands for a daemon that does not answer: the log is then that of its unit. Raises
    CommandError, which says where the log is, or OSError.
    """
    return without_secrets(_cut(_read(pid))).encode()


def _read(pid: int | None) -> bytes:
    process = PROC / str(pid)
    if pid is None or not _is_mrcd(process):
        return _journal("--unit", UNIT)
    output = process / "fd" / "2"
    kind = os.stat(output).st_mode
    if stat.S_ISREG(kind):
        return _end_of(output)
    target = os.readlink(output)
    if stat.S_ISSOCK(kind):
        unit = _unit(process)
        return _journal("--unit", unit) if unit else _journal(f"_PID={pid}")
    raise CommandError(
        f"mrcd (pid {pid}) logs to {target}, which cannot be read again; add what it printed there"
    )


def _is_mrcd(process: Path) -> bool:
    """Return whether a process is mrcd; the pid may be one of another container."""
    try:
        return b"mrcd" in (process / "cmdline").read_bytes()
    except OSError:
        return False


def _unit(process: Path) -> str | None:
    """Return the systemd service that a process belongs to, if any."""
    found = re.search(r"/([^/\n]+\.service)$", (process / "cgroup").read_text(), re.MULTILINE)
    return found[1] if found else None


def _end_of(file: Path) -> bytes:
    with file.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - BYTES - 1))
        return log.read()


def _journal(*whose: str) -> bytes:
    if shutil.which("journalctl") is None:
        raise CommandError("there is no journalctl")
    found = subprocess.run(
        ["journalctl", *whose, "--lines", str(LINES), "--no-pager", "-o", "short-iso-precise"],
        capture_output=True,
        timeout=30,
        check=False,
    )
    if found.returncode != 0:
        raise CommandError(found.stderr.decode(errors="replace").strip() or "journalctl failed")
    if found.stdout.strip() in (b"", b"-- No entries --"):
        raise CommandError(f"the journal has no entries of {' '.join(whose)}")
    return found.stdout


def _cut(data: bytes) -> str:
    """Return the last LINES lines, at most BYTES of them, and say so if there were more."""
    whole = data[-BYTES:]
    if len(data) > len(whole):
        whole = whole[whole.find(b"\n") + 1 :]
    lines = whole.decode(errors="replace").splitlines(keepends=True)
    text = "".join(lines[-LINES:])
    cut = len(data) > len(whole) or len(lines) > LINES
    return f"(earlier lines are left out)\n{text}" if cut else text


def without_secrets(text: str) -> str:
    """Replace the value of every field of a log line that sounds like a secret."""
    return _SECRET.sub(r"\1(left out)", text)
