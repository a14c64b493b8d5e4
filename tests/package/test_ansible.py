# SPDX-License-Identifier: GPL-2.0-only
"""Test the Ansible role on two copies of this machine that boot in place of a lab's hosts.

Ansible reaches them as it reaches real hosts, by a program in the place of ssh.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab, processes
from mrcd.fabric import description
from mrcd.linux import netns
from rigs.lab_hosts import eventually
from rigs.running_lab import RunningLab
from rigs.traffic import Datagrams, Stream
from tests.package.conftest import (
    ARM64_DEB,
    DEB,
    DEB_VERSION,
    NEWER_DEB_VERSION,
    ROOT,
)
from tests.package.releases import OLD, Repository
from tests.package.test_boot import SPAWN, Machine

ROLE = ROOT / "packaging" / "ansible"
HOSTS = ("h1", "h2")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
SECRET = "bXJjZCBpbiBhIHRlc3Qgb2YgdGhlIEFuc2libGUgcm8="

pytestmark = pytest.mark.timeout(900)

BOOT = (
    """\
set -e
mount -t tmpfs scratch {scratch}
mkdir {scratch}/upper {scratch}/work {scratch}/root {scratch}/bpf
mount -t overlay -o lowerdir={lower},upperdir={scratch}/upper,workdir={scratch}/work copy \
    {scratch}/root
mkdir -p {scratch}/root{checkout}
mount -t bpf -o mode=700 bpf {scratch}/bpf
# What the package depends on, and this machine may lack: a package without content stands for it.
mount -t tmpfs run {scratch}/root/run
mkdir -p {scratch}/udev/DEBIAN
printf 'Package: udev\\nVersion: 999\\nArchitecture: all\\nMaintainer: x\\nDescription: x\\n' \
    >{scratch}/udev/DEBIAN/control
dpkg-deb --build {scratch}/udev {scratch}/root/run/udev.deb >&2
chroot {scratch}/root sh -c 'dpkg -s udev >/dev/null 2>&1 || dpkg --install /run/udev.deb' >&2
umount {scratch}/root/run
rm -rf {scratch}/root/etc/mrcd {scratch}/root/var/cache/mrcd
"""
    + SPAWN
)


class Fleet:
    """Two booted machines, and an inventory of them."""

    def __init__(
        self, folder: Path, machines: dict[str, Machine], deb: Path, running: RunningLab
    ) -> None:
        self.folder, self.machines, self.running = folder, machines, running
        self.variables: dict[str, Any] = {
            "ansible_connection": "ssh",
            "ansible_ssh_executable": str(ROOT / "tests" / "package" / "fleet_ssh.sh"),
            "ansible_ssh_args": "",
            "ansible_ssh_transfer_method": "piped",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_become": False,
            "mrcd_deb": str(deb),
            "mrcd_fabric": str(folder / "fabric.toml"),
            "mrcd_interfaces": "plane{plane}",
            "mrcd_secret": SECRET,
            "mrcd_settings": {"transport": {"qps_per_peer": 2}},
        }
        places = {name: {"mrcd_t0": number} for number, name in enumerate(HOSTS, 1)}
        inventory = {
            "all": {"children": {"mrcd": {"vars": self.variables, "hosts": places}}},
        }
        (folder / "hosts.json").write_text(json.dumps(inventory))

    def command(self, program: str, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [shutil.which(program, path=PATH) or program, *args],
            cwd=ROLE, capture_output=True, text=True, timeout=400, check=False,
            env=os.environ | {
                "PATH": PATH, "FLEET": str(self.folder), "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_HOME": str(self.folder / "home"), "LC_ALL": "C.UTF-8",
            },
        )  # fmt: skip

    def play(self, *args: str, check: bool = True) -> str:
        """Run the playbook, and return what it said."""
        done = self.command("ansible-playbook", "-i", str(self.folder / "hosts.json"), "--diff",
                            *args, "site.yml")  # fmt: skip
        said = done.stdout + done.stderr
        assert not check or done.returncode == 0, said
        assert check or done.returncode != 0, said
        assert SECRET not in said
        return said

    def run(self, host: str, script: str, *, check: bool = True) -> str:
        return self.machines[host].run(script, check=check)

    def changed(self, said: str) -> dict[str, int]:
        """Return how many tasks have changed something on each host."""
        return {name: int(n) for name, n in re.findall(r"^(\w+) +: ok=\d+ +changed=(\d+)", said,
                                                       re.MULTILINE)}  # fmt: skip


@contextlib.contextmanager
def booted(name: str, host: str, folder: Path) -> Iterator[Machine]:
    """Boot a copy of this machine, or of the system in MRCD_TEST_ROOT, as a lab's host."""
    scratch = folder / host
    scratch.mkdir()
    script = BOOT.format(
        scratch=scratch, checkout=ROOT, name=f"{name}{host}", netns=netns.path(f"{name}-{host}"),
        lower=os.environ.get("MRCD_TEST_ROOT", "/"),
    )  # fmt: skip
    log = folder / f"{host}.console"
    with log.open("wb") as console:
        process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
            env=os.environ | {"SYSTEMD_NSPAWN_API_VFS_WRITABLE": "yes"},
        )  # fmt: skip
    try:
        machine = Machine(name, log, process)
        eventually(machine.booted, f"systemd runs, {log}", 120)
        (folder / f"{host}.leader").write_text(str(machine.leader))
        yield machine
    finally:
        processes.stop([process.pid], 20)
        process.wait()


@pytest.fixture(scope="module")
def fleet(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Return two machines without mrcd in a lab whose hosts they are, and the fabric file."""
    if shutil.which("ansible-playbook", path=PATH) is None:
        pytest.skip("ansible-core is not installed: pip install 'mrcd[fleet]'")
    name, folder = f"f{os.getpid()}", tmp_path_factory.mktemp("fleet")
    fabric = description.generate(name=name, planes=2)
    lab.up(fabric, daemons=False, insecure=True)
    try:
        with contextlib.ExitStack() as stack:
            machines = {host: stack.enter_context(booted(name, host, folder)) for host in HOSTS}
            yield Fleet(folder, machines, package, RunningLab(fabric))
    finally:
        lab.down(name)


def test_inventory_becomes_the_fabric_file(fleet: Fleet) -> None:
    listed = fleet.command("ansible-inventory", "-i", str(fleet.folder / "hosts.json"), "--list")
    assert listed.returncode == 0, listed.stderr
    output = fleet.folder / "fabric.toml"
    done = subprocess.run(
        [sys.executable, "-m", "cli", "fabric", "import", "-", "--group", "mrcd", "--planes", "2",
         "--t1", "2", "--output", str(output)],
        cwd=ROOT, input=listed.stdout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    hosts = description.load(output).hosts
    assert [(host.name, host.t0, host.port) for host in hosts] == [("h1", 1, 1), ("h2", 2, 1)]


def test_a_new_fleet_is_rolled_out_one_by_one(fleet: Fleet) -> None:
    """The first host becomes healthy although the other is not there yet."""
    said = fleet.play()
    order = re.findall(r"TASK \[mrcd : Start mrcd\].*?\n(?:changed|ok): \[(\w+)\]", said, re.DOTALL)
    assert order == ["h1", "h2"]
    for host, other in zip(HOSTS, ("10.99.0.2", "10.99.0.1"), strict=True):
        assert " ok, up " in fleet.run(host, "mrcctl status")
        assert " 0% packet loss" in fleet.run(host, f"ping -q -c 5 -i 0.05 {other}")
        assert fleet.run(host, "stat -c '%U %a' /etc/mrcd/fabric.secret") == "mrcd 600\n"
        assert fleet.run(host, "systemctl is-enabled mrcd") == "enabled\n"
        assert "qps_per_peer = 2" in fleet.run(host, "mrcctl config show")


def test_a_second_run_changes_nothing(fleet: Fleet) -> None:
    assert fleet.changed(fleet.play()) == {"h1": 0, "h2": 0}


def test_a_change_is_applied_without_a_restart(fleet: Fleet) -> None:
    pids = [fleet.run(host, "systemctl show -p MainPID mrcd") for host in HOSTS]
    said = fleet.play("--extra-vars", json.dumps({"mrcd_settings": {
        "transport": {"qps_per_peer": 2, "survey_pps": 100}}}))  # fmt: skip
    assert fleet.changed(said) == {"h1": 2, "h2": 2}  # the file, and the reload
    for host in HOSTS:
        assert "survey_pps = 100" in fleet.run(host, "mrcctl config show")
    assert [fleet.run(host, "systemctl show -p MainPID mrcd") for host in HOSTS] == pids


def test_a_mistake_stops_before_it_is_installed(fleet: Fleet) -> None:
    wrong = json.dumps({"mrcd_settings": {"transport": {"qps_per_peer": 99}}})
    said = fleet.play("--extra-vars", wrong, check=False)
    assert "qps_per_peer" in said
    assert "h2" not in fleet.changed(said)
    assert "99" not in fleet.run("h1", "cat /etc/mrcd/mrcd.toml")


def test_a_host_that_is_not_healthy_ends_the_roll_out(fleet: Fleet) -> None:
    """h1 loses a plane: h2 is not touched."""
    fleet.run("h1", "ip link set plane1 down")
    eventually(lambda: "plane 1" in fleet.run("h1", "mrcctl status", check=False), "h1 sees it")
    try:
        settings = {"transport": {"qps_per_peer": 2, "survey_pps": 50}}
        extra = json.dumps({"mrcd_settings": settings, "mrcd_health_tries": 3})
        said = fleet.play("--extra-vars", extra, check=False)
        assert "Wait until every plane is usable that nobody drained" in said
        assert "h2" not in fleet.changed(said)
        assert "survey_pps = 50" not in fleet.run("h2", "cat /etc/mrcd/mrcd.toml")
    finally:
        fleet.run("h1", "ip link set plane1 up")


# ---- other versions


@pytest.fixture(scope="module")
def versions(fleet: Fleet, repository: Repository) -> Iterator[dict[str, str]]:
    """Return the variables by which the fleet takes its packages from the repository."""
    with repository.served(*map(fleet.running.namespace, HOSTS)) as uri:
        yield {
            "mrcd_deb": "",
            "mrcd_repository": uri,
            "mrcd_repository_key": str(repository.key),
        }


def installed(fleet: Fleet) -> list[str]:
    return [fleet.run(host, "dpkg-query -W -f '${Version}' mrcd") for host in HOSTS]


def test_a_fleet_under_load_goes_back_and_forth(
    fleet: Fleet, versions: dict[str, str], record_property: Any
) -> None:
    """To the last package of 0.1, to the newest one, and to that of a file, which is older."""
    wanted = [
        (versions | {"mrcd_version": OLD}, OLD),
        (versions | {"mrcd_version": "latest"}, NEWER_DEB_VERSION),
        ({"mrcd_deb": str(DEB), "mrcd_version": DEB_VERSION}, DEB_VERSION),
    ]
    streams = [
        Stream(fleet.running, *ends).start()
        for ends in (("h1", "h2", "10.99.0.2"), ("h2", "h1", "10.99.0.1"))
    ]
    datagrams = Datagrams(fleet.running, "h1", "h2", "10.99.0.2", rate=200)
    for variables, version in wanted:
        said = fleet.play("--extra-vars", json.dumps(variables))
        assert installed(fleet) == [version] * 2, said
        record_property(version, said[said.index("PLAY RECAP") :])
    for stream in streams:
        stream.progress(1 << 20, 30)
        stream.finish(30)
    arrived = datagrams.finish()
    record_property("datagrams", str(arrived))
    assert (arrived.lost, arrived.doubled) == (0, 0), arrived
    assert fleet.changed(said)["h1"] > 0


def test_the_version_that_is_there_changes_nothing(fleet: Fleet, versions: dict[str, str]) -> None:
    assert installed(fleet) == [DEB_VERSION] * 2
    assert fleet.changed(fleet.play("--extra-vars", json.dumps({"mrcd_deb": str(DEB)}))) == {
        "h1": 0, "h2": 0
    }  # fmt: skip
    pinned = json.dumps(versions | {"mrcd_version": DEB_VERSION})
    fleet.play("--extra-vars", pinned)
    assert fleet.changed(fleet.play("--extra-vars", pinned)) == {"h1": 0, "h2": 0}
    said = fleet.run("h1", "apt-get -q --simulate upgrade")
    assert "Inst mrcd" not in said, "it stays at the version that is wanted"


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"mrcd_version": "9.9"}, f"There is no mrcd 9.9 for this host: .* {DEB_VERSION}, {OLD}"),
        ({"mrcd_deb": str(ARM64_DEB)}, "for arm64; this host is amd64"),
        ({"mrcd_deb": str(DEB), "mrcd_version": OLD}, f"wanted is mrcd {OLD}"),
        ({"mrcd_health_tries": "often"}, "mrcd_health_tries"),
    ],
    ids=["no such version", "another architecture", "another file", "no number"],
)
def test_what_cannot_be_is_said(
    fleet: Fleet, versions: dict[str, str], variables: dict[str, str], reason: str
) -> None:
    """On the first host, and before anything is changed."""
    said = fleet.play("--extra-vars", json.dumps(versions | variables), check=False)
    found = re.escape(reason).replace(r"\.\*", ".*").replace(r"\ ", " ")
    assert re.search(found, " ".join(said.split())), said
    assert fleet.changed(said) in ({"h1": 0}, {"h1": 0, "h2": 0})
    assert installed(fleet) == [DEB_VERSION] * 2
