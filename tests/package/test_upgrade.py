# SPDX-License-Identifier: GPL-2.0-only
"""Test upgrades and downgrades of a pair under traffic, by apt from a signed repository.

The packages are real: the last one of 0.1, that of this checkout, and one as if of a later commit.
Both hosts are copies of this machine that systemd has booted. With MRCD_TEST_ROOT=FOLDER they are
copies of the system there, which debootstrap has made of another Debian.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab
from mrcd.fabric import description
from rigs.lab_hosts import eventually
from rigs.running_lab import RunningLab, deep_backlog
from rigs.traffic import Arrivals, Datagrams, transfer
from tests.package.conftest import DEB_VERSION, NEWER_DEB_VERSION, NEWER_VERSION, VERSION
from tests.package.releases import OLD, Repository
from tests.package.test_ansible import SECRET, booted
from tests.package.test_boot import JOURNAL, Machine

ADDRESSES = {"h1": "10.99.0.1", "h2": "10.99.0.2"}
GAP_MAX_S = 5.0
"""The longest time without data while a layout of maps is replaced by another one."""
APT = "DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0"

pytestmark = pytest.mark.timeout(600)

# As docs/install.md has it, with the key that the repository brings. This machine's other sources
# cannot be reached from the lab, and images of containers forbid packages to start services.
SOURCES = """\
rm -f /usr/sbin/policy-rc.d
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
install -D -m 0644 /run/mrcd.asc /etc/apt/keyrings/mrcd.asc
cat >/etc/apt/sources.list.d/mrcd.sources <<END
Types: deb
URIs: {uri}
Suites: stable
Components: main
Signed-By: /etc/apt/keyrings/mrcd.asc
END
apt-get -q update -o APT::Update::Error-Mode=any
"""
CONFIG = """\
mkdir -p /etc/mrcd
cat >/etc/mrcd/mrcd.toml <<END
[host]
name = "{host}"
fabric = "fabric.toml"
[keys]
secret_file = "fabric.secret"
END
cp /run/fabric.toml /etc/mrcd/fabric.toml
echo {secret} >/etc/mrcd/fabric.secret
chown mrcd:mrcd /etc/mrcd/fabric.secret
chmod 0600 /etc/mrcd/fabric.secret
systemctl start mrcd
"""


@dataclass(frozen=True, slots=True)
class Step:
    """What an upgrade or a downgrade of one host cost the traffic of both."""

    host: str
    to: str
    layout_kept: bool
    sent: int
    lost: int
    doubled: int
    overtaken: int
    udp_gap_ms: float
    tcp_gap_ms: dict[str, float]
    apt_s: float


class Pair:
    """Two booted machines, in the place of a lab's hosts."""

    def __init__(self, running: RunningLab, machines: dict[str, Machine]) -> None:
        self.running, self.machines = running, machines
        self.steps: list[Step] = []

    def run(self, host: str, script: str, *, check: bool = True) -> str:
        return self.machines[host].run(script, check=check)

    def put(self, host: str, source: Path) -> None:
        """Copy a file to /run of a machine."""
        target = Path(f"/proc/{self.machines[host].leader}/root/run") / source.name
        target.write_bytes(source.read_bytes())

    def settled(self) -> None:
        for host, machine in self.machines.items():
            eventually(
                machine.ok,
                lambda host=host: (
                    f"{host} is ok: "  # type: ignore[misc]
                    + self.run(host, f"mrcctl status; {JOURNAL}", check=False)
                ),
                60,
            )

    def versions(self) -> dict[str, str]:
        """Return the version that each running daemon says."""
        return {host: self.status(host)["version"] for host in self.machines}

    def status(self, host: str) -> dict[str, Any]:
        return dict(json.loads(self.run(host, "mrcctl status --json")))

    def peer(self, host: str) -> dict[str, Any]:
        (found,) = json.loads(self.run(host, "mrcctl peer list --json"))["peers"]
        return dict(found)

    def qps(self) -> dict[str, list[tuple[int, int]]]:
        """Return the QPs of each host, which a new session would change."""
        return {
            host: [
                (qp["qpn"], qp["remote_qpn"])
                for qp in json.loads(self.run(host, "mrcctl conn list --json"))["connections"]
            ]
            for host in self.machines
        }

    def layout(self, host: str) -> str:
        return self.run(host, "ls /sys/fs/bpf/mrcd | grep ^layout-")

    def step(self, host: str, to: str, command: str) -> Step:
        """Change a host's package under traffic; note what that cost, and check what holds always.

        Two layouts of maps cannot be one data path: then the QPs are new, and what is on its way
        is lost. TCP goes on in any case.
        """
        self.settled()
        before, layout = self.qps(), self.layout(host)
        streams = {
            "h1 to h2": Arrivals(self.running, "h1", "h2", ADDRESSES["h2"]),
            "h2 to h1": Arrivals(self.running, "h2", "h1", ADDRESSES["h1"]),
        }
        datagrams = Datagrams(self.running, "h1", "h2", ADDRESSES["h2"])
        since_ns = began_ns = time.monotonic_ns()
        self.run(host, command)  # raises unless apt-get exits with 0
        apt_s = (time.monotonic_ns() - began_ns) / 1e9
        self.settled()
        for stream in streams.values():
            stream.stream.progress(4 << 20, 30)
        arrived = datagrams.finish()
        gaps = {name: found.longest_ns(since_ns) / 1e6 for name, found in streams.items()}
        for stream in streams.values():
            stream.stream.finish(30)
        kept = self.layout(host) == layout
        found = Step(
            host, to, kept, arrived.sent, arrived.lost, arrived.doubled, arrived.overtaken,
            arrived.gap_ns / 1e6, gaps, round(apt_s, 1),
        )  # fmt: skip
        self.steps.append(found)
        if kept:
            assert self.qps() == before
            assert (found.lost, found.doubled) == (0, 0), found
        assert max(found.udp_gap_ms, *gaps.values()) < GAP_MAX_S * 1e3, found
        return found


@pytest.fixture(scope="module")
def pair(repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Return two machines with the old package from the repository, configured and ok."""
    name, folder = f"u{os.getpid()}", tmp_path_factory.mktemp("pair")
    fabric = description.generate(name=name, planes=2)
    lab.up(fabric, daemons=False, insecure=True)
    running = RunningLab(fabric)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(deep_backlog())
            machines = {host: stack.enter_context(booted(name, host, folder)) for host in ADDRESSES}
            uri = stack.enter_context(repository.served(*map(running.namespace, ADDRESSES)))
            made = Pair(running, machines)
            (folder / "fabric.toml").write_text(description.dumps(fabric))
            for host in ADDRESSES:
                made.put(host, repository.key)
                made.put(host, folder / "fabric.toml")
                made.run(host, SOURCES.format(uri=uri))
                made.run(host, f"{APT} install mrcd={OLD}")
                made.run(host, CONFIG.format(host=host, secret=SECRET))
            made.settled()
            yield made
    finally:
        lab.down(name)


@pytest.fixture(autouse=True)
def _figures(pair: Pair, record_property: Any) -> Iterator[None]:
    """Leave the figures of a test's steps in the report of the run."""
    before = len(pair.steps)
    yield
    for step in pair.steps[before:]:
        text = json.dumps(asdict(step))
        record_property("step", text)
        print(text)


def test_the_pair_runs_the_old_package(pair: Pair) -> None:
    assert pair.versions() == {"h1": OLD, "h2": OLD}
    assert f"version {OLD}" in pair.run("h1", "mrcctl --version")


def test_one_host_after_the_other_is_upgraded(pair: Pair) -> None:
    pair.step("h1", DEB_VERSION, f"{APT} install mrcd={DEB_VERSION}")
    assert pair.versions() == {"h1": VERSION, "h2": OLD}
    assert pair.peer("h1")["build"] is None, "the old one does not say it"
    pair.step("h2", DEB_VERSION, f"{APT} install mrcd={DEB_VERSION}")
    assert pair.versions() == {"h1": VERSION, "h2": VERSION}
    eventually(lambda: pair.peer("h1")["build"] == VERSION, "h1 knows h2's build")
    assert VERSION in pair.run("h2", "mrcctl peer show h1")


def test_apt_upgrade_takes_a_newer_build(pair: Pair) -> None:
    said = pair.run("h1", f"apt-get -q update && {APT} --simulate upgrade")
    assert f"Inst mrcd [{DEB_VERSION}] ({NEWER_DEB_VERSION} " in said
    pair.step("h1", NEWER_DEB_VERSION, f"{APT} upgrade")
    assert pair.versions() == {"h1": NEWER_VERSION, "h2": VERSION}
    assert "\n0 upgraded" in pair.run("h1", f"{APT} upgrade")


def test_one_host_after_the_other_is_downgraded(pair: Pair) -> None:
    back = f"{APT} --allow-downgrades install mrcd={OLD}"
    pair.step("h1", OLD, back)
    assert pair.versions() == {"h1": OLD, "h2": VERSION}
    pair.step("h2", OLD, back)
    assert pair.versions() == {"h1": OLD, "h2": OLD}


def test_old_and_new_agree_on_a_new_session(pair: Pair) -> None:
    """N and N-1: neither knows anything of an earlier session."""
    pair.run("h1", f"{APT} install mrcd={DEB_VERSION}")
    pair.settled()
    before = pair.qps()
    for host in ADDRESSES:
        pair.run(host, "systemctl stop mrcd.socket mrcd && mrcctl datapath detach")
        pair.run(host, "rm -f /var/lib/mrcd/sessions.json")
    for host in ADDRESSES:
        pair.run(host, "systemctl start mrcd")
    pair.settled()
    assert pair.versions() == {"h1": VERSION, "h2": OLD}
    assert pair.qps() != before
    assert pair.peer("h1")["version"] == pair.peer("h2")["version"] is not None
    assert pair.peer("h1")["framing"] == pair.peer("h2")["framing"] == "cell"
    transfer(pair.running, "h1", "h2", ADDRESSES["h2"], 16 << 20)
    transfer(pair.running, "h2", "h1", ADDRESSES["h1"], 16 << 20)


def test_a_package_that_is_not_signed_by_the_key_is_refused(
    pair: Pair, repository: Repository
) -> None:
    signed = repository.folder / "dists" / "stable" / "InRelease"
    text = signed.read_text()
    try:
        signed.write_text(text.replace("Origin: mrcd", "Origin: else"))
        said = pair.run(
            "h1", "apt-get -q update -o APT::Update::Error-Mode=any; echo ended with $?"
        )
    finally:
        signed.write_text(text)
    assert "ended with 100" in said
    assert "BADSIG" in said or "Message has been manipulated" in said  # gpgv; sqv of Debian 13
