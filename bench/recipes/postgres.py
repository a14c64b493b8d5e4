# SPDX-License-Identifier: GPL-2.0-only
"""Measure commits of PostgreSQL that wait for a standby on another host (pgbench)."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.compare.steps import Steps
from bench.instruments.flow import BenchFailed
from bench.instruments.metrics import Ints
from bench.recipes.outcome import Outcome, judge
from bench.recipes.stage import LASTS_S, Running, Stage, program

UNIT = "commits/s"
_PORT, _STANDBY_PORT = 5440, 5441
_CLIENTS = 4
_WANTED = 200  # transactions a second: what the CPUs of one machine can do for both hosts
_SCALE = 10  # rows of pgbench_accounts, in 100,000
_USER = "postgres"  # servers refuse to run as root
_SETTINGS = {
    "listen_addresses": "*",
    "wal_keep_size": "1GB",
    "max_wal_size": "4GB",
    "shared_buffers": "128MB",
    "log_min_messages": "fatal",
}
_SLACK_S = 30.0
_US = 1000
_COLUMNS = (2, 4, 5)  # of pgbench's log: latency in us, and the time of the end in s and us


def measure(stage: Stage) -> Outcome:
    """Commit with four clients on h1, each commit waiting for the standby on h2."""
    here = stage.folder / "postgres"
    if not here.exists():
        here.mkdir()
        try:
            _create(here)
        except BenchFailed:
            shutil.rmtree(here)
            raise
    with _primary(stage, here) as primary, _standby(stage, here) as standby:

        def synchronous() -> bool:
            return _ask(here, _PORT, "select sync_state from pg_stat_replication") == "sync"

        standby.until("synchronous replication", synchronous)
        already = _rows(here, _PORT)
        began_ns = time.monotonic_ns()
        log = here / f"log-{began_ns}"
        line = (
            *("pgbench", "-n", "-N", "-c", str(_CLIENTS), "-T", f"{LASTS_S:.0f}"),
            *("-R", str(_WANTED)),
            *("-l", f"--log-prefix={log}", "-h", str(here), "-p", str(_PORT), "-U", _USER),
            _USER,
        )
        with stage.running("h1", _as_user(*line), name="pgbench") as bench:
            when = stage.strike(began_ns)
            said = bench.wait(LASTS_S + _SLACK_S)
        ended_wall_ns, ended_ns = time.time_ns(), time.monotonic_ns()
        done = commits(_log_of(log), ended_wall_ns - ended_ns)
        wanted = already + len(done.took_ns)
        primary.until("every commit", lambda: _rows(here, _PORT) >= wanted)
        with contextlib.suppress(BenchFailed):
            standby.until("every commit", lambda: _rows(here, _STANDBY_PORT) >= wanted)
        lost = max(0, wanted - _rows(here, _STANDBY_PORT))
    return judge(done, when, failed(said) + lost)


def commits(log: str, offset_ns: int) -> Steps:
    """Return the transactions of pgbench's log; `offset_ns` is what its clock is ahead by."""
    lines = [line.split() for line in log.splitlines()]
    whole = [[int(words[i]) for i in _COLUMNS] for words in lines if words[2].isdigit()]
    table: Ints = np.array(whole, np.int64).reshape(-1, len(_COLUMNS))
    took = table[:, 0] * _US
    ended = (table[:, 1] * 1_000_000 + table[:, 2]) * _US - offset_ns
    return Steps(ended - took, took)


def failed(said: str) -> int:
    """Return the transactions that pgbench says have failed, and clients that were aborted."""
    count = re.search(r"number of failed transactions: (\d+)", said)
    if count is None:
        raise BenchFailed(f"pgbench gave no result: {said.strip()[-300:]}")
    return int(count[1]) + len(re.findall(r"client \d+ aborted", said))


def _log_of(prefix: Path) -> str:
    return "".join(file.read_text() for file in prefix.parent.glob(f"{prefix.name}.*"))


def _programs() -> list[Path]:
    """Return the folders of the programs, the newest version first."""
    found = Path("/usr/lib/postgresql").glob("*/bin")
    return sorted(found, key=lambda folder: float(folder.parent.name), reverse=True)


def _as_user(name: str, *arguments: str) -> list[str]:
    switch = ("--reuid", _USER, "--regid", _USER, "--clear-groups", "--no-new-privs")
    return ["setpriv", *switch, program(name, *_programs()), *arguments]


def _run(*line: str) -> str:
    done = subprocess.run(
        _as_user(*line), capture_output=True, text=True, timeout=60, check=False, cwd="/"
    )
    if done.returncode:
        raise BenchFailed(f"{line[0]}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout.strip()


def _ask(here: Path, port: int, query: str) -> str:
    """Return the answer to a query; empty while the server does not take any."""
    line = ("psql", "-AtX", "-h", str(here), "-p", str(port), "-U", _USER, "-c", query, _USER)
    try:
        return _run(*line)
    except BenchFailed:
        return ""


def _rows(here: Path, port: int) -> int:
    return int(_ask(here, port, "select count(*) from pgbench_history") or 0)


def _create(here: Path) -> None:
    """Make a primary with pgbench's tables, and a standby that is a copy of it."""
    shutil.chown(here, _USER, _USER)
    os.chmod(here.parent, 0o711)  # the user must reach the folder in the one of the run
    primary, standby = here / "primary", here / "standby"
    _run("initdb", "-D", str(primary), "-A", "trust", "--no-sync", "-U", _USER)
    with (primary / "pg_hba.conf").open("a") as rules:
        rules.write("host replication all 0.0.0.0/0 trust\n")
    where = ("-h", str(here), "-p", str(_PORT), "-U", _USER)
    options = f"-c port={_PORT} -c listen_addresses= -c unix_socket_directories={here}"
    _run("pg_ctl", "start", "-w", "-D", str(primary), "-l", str(here / "log"), "-o", options)
    try:
        _run("pgbench", "-i", "-q", "-s", str(_SCALE), *where, _USER)
        _run("pg_basebackup", "-D", str(standby), "-c", "fast", "--no-sync", *where)
    finally:
        _run("pg_ctl", "stop", "-w", "-m", "fast", "-D", str(primary))
    (standby / "standby.signal").touch()


@contextlib.contextmanager
def _server(
    stage: Stage, host: str, here: Path, name: str, port: int, **more: str
) -> Iterator[Running]:
    """Run a server in a host; the block begins when it takes queries."""
    settings = {**_SETTINGS, "port": str(port), "unix_socket_directories": str(here), **more}
    words = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    command = _as_user("postgres", "-D", str(here / name), *words)
    with stage.running(host, command, name=name, last=signal.SIGINT) as server:
        server.until("the start", lambda: _ask(here, port, "select 1") == "1")
        yield server


def _primary(stage: Stage, here: Path) -> contextlib.AbstractContextManager[Running]:
    return _server(stage, "h1", here, "primary", _PORT, synchronous_standby_names="*")


def _standby(stage: Stage, here: Path) -> contextlib.AbstractContextManager[Running]:
    source = f"host={stage.address('h1')} port={_PORT} user={_USER} application_name=standby"
    return _server(stage, "h2", here, "standby", _STANDBY_PORT, primary_conninfo=source)
