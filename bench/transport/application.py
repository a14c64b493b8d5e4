# SPDX-License-Identifier: GPL-2.0-only
"""Run an unmodified rsync over mrc0 while planes are killed and revived at random."""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.instruments import counters, flow
from bench.instruments.flow import BenchFailed
from bench.instruments.result import Line, Target, at_least, at_most
from bench.transport.steady import PLANES
from cli.lab import lab, processes

SEED = 20251120
_PORT = 5310
_FILES = 24
_BYTES = 256 << 20
_MOST_DEAD = 2
_STALL_S = 20


@dataclass(slots=True)
class _Copies:
    """The results of rsync so far."""

    done: int = 0
    moved: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)


def application(name: str, mtu: int, _rounds: int, seconds: float) -> Iterator[Line]:
    """Copy the same files repeatedly for `seconds` and check every copy."""
    if shutil.which("rsync") is None:
        raise BenchFailed("rsync is not installed: `apt-get install rsync`")
    shared = Path("/dev/shm")  # keeps the disk out of the measurement
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        sums = _make_files(source)
        target.mkdir()
        copies, stop = _Copies(), threading.Event()
        before = counters.tcp_retransmits(f"{name}-h1")
        began = time.monotonic()
        with _server(name, target):
            copier = threading.Thread(
                target=_copy_again_and_again, args=(name, source, target, sums, copies, stop)
            )
            copier.start()
            try:
                faults = _chaos(name, seconds, copier.is_alive)
            finally:
                stop.set()
                copier.join()
        took = time.monotonic() - began
        resent = counters.tcp_retransmits(f"{name}-h1") - before
    for error in copies.errors:
        print(f"  rsync: {error}")

    def line(what: str, value: float, target: Target | None = None, unit: str = "") -> Line:
        return Line("rsync", f"MTU {mtu}", what, unit, (value,), target)

    yield line("seconds under fire", took, None, "s")
    yield line("faults injected and cleared", float(faults), at_least(1))
    yield line("whole copies", float(copies.done), at_least(1))
    yield line("mean rate, checking included", copies.moved * 8 / took / 1e6, None, "Mb/s")
    yield line("errors", float(len(copies.errors)), at_most(0))
    yield line("files whose checksum differs", float(copies.wrong), at_most(0))
    yield line("TCP retransmits", float(resent))


def _make_files(folder: Path) -> dict[str, str]:
    """Write random files of many sizes; return their checksums."""
    folder.mkdir()
    chance = random.Random(SEED)
    shares = [chance.random() ** 2 for _ in range(_FILES)]
    sums = {}
    for i, share in enumerate(shares):
        data = chance.randbytes(int(_BYTES * share / sum(shares)) + 1)
        name = f"file{i}"
        (folder / name).write_bytes(data)
        sums[name] = hashlib.sha256(data).hexdigest()
    return sums


@contextmanager
def _server(name: str, target: Path) -> Iterator[None]:
    """Run an rsync daemon in h2."""
    config = target.parent / "rsyncd.conf"
    config.write_text(
        f"use chroot = no\nuid = 0\ngid = 0\n[files]\npath = {target}\nread only = no\n"
    )
    listen = ("--daemon", "--no-detach", f"--config={config}", f"--port={_PORT}")
    address = flow.mrc0_route(name).address
    server = processes.spawn(
        f"{name}-h2", ["rsync", *listen, f"--address={address}"], stderr=subprocess.DEVNULL
    )
    with server:
        try:
            flow.wait_listening(f"{name}-h2", _PORT)
            yield
        finally:
            server.terminate()


def _copy_again_and_again(
    name: str, source: Path, target: Path, sums: dict[str, str], copies: _Copies,
    stop: threading.Event,
) -> None:  # fmt: skip
    """Copy until told to stop, or until an error: a retry would hide what a user would see."""
    url = f"rsync://{flow.mrc0_route(name).address}:{_PORT}/files/"
    while not stop.is_set() and not copies.errors:
        for old in target.iterdir():
            old.unlink()
        try:
            flow.inside(
                name, "h1", "rsync", "-a", "--whole-file", f"--timeout={_STALL_S}",
                f"{source}/", url,
            )  # fmt: skip
        except (BenchFailed, subprocess.TimeoutExpired) as problem:
            copies.errors.append(str(problem))
            return
        copies.done += 1
        copies.moved += sum(file.stat().st_size for file in source.iterdir())
        for file, wanted in sums.items():
            copied = target / file
            good = copied.exists() and _sum(copied) == wanted
            copies.wrong += not good


def _sum(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _chaos(name: str, seconds: float, going: Callable[[], bool]) -> int:
    """Kill and revive planes at random times; return how often. All planes live at the end."""
    chance = random.Random(SEED)
    dead: set[str] = set()
    count = 0
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end and going():
            time.sleep(min(chance.uniform(0.3, 2.0), max(0.0, end - time.monotonic())))
            alive = [f"p{plane}" for plane in range(PLANES) if f"p{plane}" not in dead]
            if len(dead) < _MOST_DEAD and (not dead or chance.random() < 0.5):
                plane, action = chance.choice(alive), chance.choice(("blackhole", "down"))
                dead.add(plane)
            else:
                plane, action = chance.choice(sorted(dead)), "clear"
                dead.remove(plane)
            lab.fault(name, plane, action)
            count += 1
    finally:
        for plane in sorted(dead):
            lab.fault(name, plane, "clear")
    return count
