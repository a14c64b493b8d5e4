# SPDX-License-Identifier: GPL-2.0-only
"""Measure writes to Ceph that wait for the OSD of another host (librados)."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.compare import libraries
from bench.instruments.flow import BenchFailed
from bench.recipes import storage
from bench.recipes.outcome import Outcome
from bench.recipes.stage import HOSTS, Running, Stage, program

UNIT = storage.UNIT
_POOL = "recipe"
_PLACEMENT_GROUPS = "8"
_ANSWER_S = 60.0
_CONFIGURATION = """\
[global]
fsid = {fsid}
mon_host = {monitor}
mon_initial_members = a
public_network = {networks}
cluster_network = {networks}
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
osd_objectstore = memstore
memstore_device_bytes = 1G
osd_pool_default_size = 2
osd_pool_default_min_size = 2
run_dir = {here}
admin_socket =
pid_file =
log_file =
mon_cluster_log_file =
crash_dir = {here}
mon_data = {here}/$name
osd_data = {here}/$name
[osd.0]
crush_location = root=default host=h1
[osd.1]
crush_location = root=default host=h2
"""


def measure(stage: Stage) -> Outcome:
    """Write 64 KiB at a time on h1; each write waits until the OSDs of h1 and h2 have it.

    At the end, h2's OSD must have all objects while that of h1 is no more.
    """
    cluster = _Cluster(stage, stage.folder / f"ceph-{time.monotonic_ns()}")
    cluster.prepare()
    client = (
        *(libraries.interpreter("rados"), "-m", "bench.recipes.ceph_client"),
        *(str(cluster.configuration), _POOL),
    )
    with cluster.monitor(), cluster.osd(1):
        with cluster.osd(0):
            cluster.ask("osd", "pool", "create", _POOL, _PLACEMENT_GROUPS)
            written = storage.write(stage, HOSTS[0], (*client, "write"))
        cluster.ask("osd", "down", "0")
        cluster.ask("osd", "pool", "set", _POOL, "min_size", "1")
        check = (*client, "check", str(written.folder))
        with stage.running(HOSTS[1], check, name="check") as checking:
            return written.outcome(int(checking.wait(_ANSWER_S).split()[-1]))


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A monitor in h1, and an OSD in each host; all that they keep is in a folder of memory."""

    stage: Stage
    here: Path

    @property
    def configuration(self) -> Path:
        """Return the file that all programs read."""
        return self.here / "ceph.conf"

    def prepare(self) -> None:
        """Write the configuration, and make the monitor's store."""
        self.here.mkdir()
        addresses = [self.stage.address(host) for host in HOSTS]
        text = _CONFIGURATION.format(
            fsid=uuid.uuid4(), monitor=addresses[0], here=self.here,
            networks=", ".join(f"{address}/32" for address in addresses),
        )  # fmt: skip
        self.configuration.write_text(text)
        self._run("h1", "ceph-mon", "--id", "a", "--mkfs")

    @contextlib.contextmanager
    def monitor(self) -> Iterator[None]:
        """Run the monitor; the block begins when it answers."""
        with self._running("h1", "ceph-mon", "--id", "a", "--foreground") as server:
            server.until("the start", self._answers)
            yield

    @contextlib.contextmanager
    def osd(self, number: int) -> Iterator[None]:
        """Make the OSD of a host, and run it; the block begins when the monitor has it as up."""
        host, name, identity = HOSTS[number], ("ceph-osd", "--id", str(number)), str(uuid.uuid4())
        (self.here / f"osd.{number}").mkdir()
        self.ask("osd", "new", identity, str(number))
        self._run(host, *name, "--mkfs", "--osd-uuid", identity)
        with self._running(host, *name, "--foreground") as server:
            server.until("up", lambda: f"osd.{number} up" in self.ask("osd", "dump"))
            yield

    def ask(self, *words: str) -> str:
        """Return the monitor's answer to a command."""
        return self._run("h1", "ceph", "--connect-timeout", "5", *words)

    def _answers(self) -> bool:
        try:
            self.ask("osd", "ls")
        except BenchFailed:
            return False
        return True

    def _run(self, host: str, name: str, *words: str) -> str:
        with self._running(host, name, *words) as running:
            return running.wait(_ANSWER_S)

    def _running(
        self, host: str, name: str, *words: str
    ) -> contextlib.AbstractContextManager[Running]:
        return self.stage.running(host, (program(name), "-c", str(self.configuration), *words))
