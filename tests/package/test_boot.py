# SPDX-License-Identifier: GPL-2.0-only
"""Test the service under systemd: a copy of this machine boots in place of a lab's host.

Only systemd itself can show whether the unit's sandbox leaves mrcd what it needs.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.lab import lab, processes, state
from mrcd.fabric import description
from mrcd.linux import netns
from rigs.lab_hosts import eventually
from tests.package.conftest import ROOT

HOST, FAR = "h1", "h2"
FAR_ADDRESS = "10.99.0.2"

pytestmark = pytest.mark.timeout(600)

JOURNAL = "journalctl --unit=mrcd --unit=mrcd-privileged@* --output=cat --no-pager | tail -n 40"
SPAWN = """\
# Not the checkout, which an installed mrcd must not need.
mount -t tmpfs hidden {scratch}/root{checkout}
exec systemd-nspawn --quiet --directory={scratch}/root --machine={name} --register=no --keep-unit \
    --network-namespace-path={netns} --capability=all --system-call-filter=bpf \
    --bind={scratch}/bpf:/sys/fs/bpf --bind-ro=/lib/modules \
    --boot systemd.unit=basic.target systemd.log_target=console
"""
BOOT = (
    """\
set -e
mount -t tmpfs scratch {scratch}
mkdir {scratch}/upper {scratch}/work {scratch}/root {scratch}/bpf {scratch}/etc
mount -t overlay -o lowerdir=/,upperdir={scratch}/upper,workdir={scratch}/work copy {scratch}/root
# As systemd mounts it where there is a machine to boot.
mount -t bpf -o mode=700 bpf {scratch}/bpf
mount -t tmpfs run {scratch}/root/run
cp {deb} {scratch}/root/run/mrcd.deb
chroot {scratch}/root dpkg --force-depends --install /run/mrcd.deb >&2
umount {scratch}/root/run
mkdir -p {scratch}/root/etc/mrcd
cp {config} {scratch}/root/etc/mrcd/mrcd.toml
cp {fabric} {scratch}/root/etc/mrcd/fabric.toml
# Neither bcc nor headers, nor what an earlier start has kept: the package brings the programs.
rm -rf {scratch}/root/usr/lib/python3/dist-packages/bcc {scratch}/root/var/cache/mrcd
mount -t tmpfs hidden {scratch}/root/usr/src
"""
    + SPAWN
)


class Machine:
    """A booted machine."""

    def __init__(self, name: str, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self._log = log
        self._process = process
        self.leader = 0

    def booted(self) -> bool:
        """Return whether its systemd answers."""
        assert self._process.poll() is None, self._log.read_text(errors="replace")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        pids = children.read_text().split()
        if not pids:
            return False
        self.leader = int(pids[0])
        return "running" in self.run("systemctl is-system-running", check=False)

    def run(self, script: str, *, check: bool = True) -> str:
        """Run a shell script in the machine, and return its output."""
        done = subprocess.run(
            ["nsenter", f"--target={self.leader}", "--mount", "--uts", "--ipc", "--pid", "--net",
             "--cgroup", "--root", "--wd", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
             "sh", "-c", script],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if check:
            assert done.returncode == 0, (
                f"{script}: {done.returncode}\n{done.stdout}{done.stderr}\n"
                + self.run(JOURNAL, check=False)
            )
        return done.stdout + done.stderr

    def ok(self) -> bool:
        """Return whether mrcd in the machine reports ok."""
        return " ok, up " in self.run("mrcctl status", check=False)


@pytest.fixture(scope="module")
def machine(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Return the machine in place of a lab's host, with mrcd installed and configured."""
    name = f"b{os.getpid()}"
    scratch = tmp_path_factory.mktemp("machine")
    lab.up(description.generate(name=name), daemons=False, insecure=True)
    try:
        far = lab.start_daemon(name, FAR)
        spot = state.places(name, HOST)
        config = scratch.parent / "mrcd.toml"
        config.write_text(
            f'[host]\nname = "{HOST}"\nfabric = "fabric.toml"\n[keys]\ninsecure = true\n'
        )
        script = BOOT.format(
            scratch=scratch, deb=package, config=config, fabric=spot.folder.parent / "fabric.toml",
            checkout=ROOT, name=name, netns=netns.path(f"{name}-{HOST}"),
        )  # fmt: skip
        log = scratch.parent / "console"
        with log.open("wb") as console:
            process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
                env=os.environ | {"SYSTEMD_NSPAWN_API_VFS_WRITABLE": "yes"},
            )  # fmt: skip
        try:
            booting = Machine(name, log, process)
            eventually(booting.booted, f"systemd runs, {log}", 120)
            yield booting
        finally:
            processes.stop([process.pid], 20)
            process.wait()
            processes.stop([far.pid])
    finally:
        lab.down(name)


@pytest.fixture
def serving(machine: Machine) -> Machine:
    """Return the machine with its service started and ok."""
    machine.run("systemctl start mrcd")
    eventually(machine.ok, "mrcd in the machine is ok", 30)
    return machine


def test_the_service_carries_packets(serving: Machine) -> None:
    assert " 0% packet loss" in serving.run(f"ping -q -c 20 -i 0.05 {FAR_ADDRESS}")


def test_the_service_needs_no_compiler(serving: Machine) -> None:
    assert "No module named" in serving.run("python3 -c 'import bcc'", check=False)
    assert not serving.run("ls /usr/src", check=False).strip()
    log = serving.run("journalctl --unit=mrcd --output=cat --no-pager")
    assert "datapath.loaded" in log
    assert "datapath.compiled" not in log


def fields_of(status: str) -> dict[str, str]:
    """Return the fields of /proc/PID/status."""
    return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)


def test_the_service_is_nobody_without_rights(serving: Machine) -> None:
    fields = fields_of(
        serving.run("cat /proc/$(systemctl show --property=MainPID --value mrcd)/status")
    )
    assert "0" not in fields["Uid"].split()
    assert {fields[f"Cap{name}"] for name in ("Eff", "Prm", "Inh", "Amb", "Bnd")} == {16 * "0"}
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"


def test_four_rights_are_in_a_process_of_its_own(serving: Machine) -> None:
    """One is there for each daemon, which ends with it."""
    show = "systemctl show --property=MainPID --value 'mrcd-privileged@*.service'"
    fields = fields_of(serving.run(f"cat /proc/$({show})/status"))
    assert "0" not in fields["Uid"].split()
    assert fields["CapBnd"] == fields["CapPrm"] == "000000c000003000"
    assert fields["CapEff"] == "0000008000003000", "CAP_PERFMON is for the loader"
    assert fields["CapAmb"] == 16 * "0"


def test_the_control_socket_is_for_root_and_the_group(serving: Machine) -> None:
    assert serving.run("stat -c '%U:%G %a' /run/mrcd/mrcd.sock") == "root:mrcd 660\n"
    refused = serving.run("setpriv --reuid=nobody --clear-groups mrcctl status; echo $?")
    assert refused.startswith("5\nmrcctl: no permission to open"), refused


@pytest.mark.parametrize(
    "what",
    [
        "systemctl restart mrcd",
        "systemctl reload mrcd",
        "systemctl kill --signal=KILL --kill-whom=main mrcd",
        "systemctl stop mrcd.socket mrcd && systemctl start mrcd",
    ],
)
def test_no_packet_is_lost_when(serving: Machine, what: str) -> None:
    log = "/run/ping"
    # Rounds of half a second: each waits for its last answer, which an interrupted one does not.
    rounds = f"until [ -e {log}.stop ]; do ping -q -c 25 -i 0.02 {FAR_ADDRESS}; done; echo over"
    serving.run(f"rm -f {log}.stop; ({rounds}) >{log} 2>&1 &")
    serving.run(what)
    eventually(serving.ok, f"mrcd in the machine is ok after {what}", 30)
    end = time.monotonic() + 10
    serving.run(f"touch {log}.stop")
    while "over" not in (text := serving.run(f"cat {log}")):
        assert time.monotonic() < end, text
    count = text.count(" 0% packet loss")
    assert count == text.count(" received") > 0, text + serving.run(f"{JOURNAL}; mrcctl conn list")


def test_a_daemon_that_hangs_is_started_again(serving: Machine) -> None:
    show = "systemctl show --property=MainPID --value mrcd"
    hung = serving.run(show)
    serving.run("systemctl kill --signal=STOP --kill-whom=main mrcd")
    eventually(lambda: serving.run(show) not in (hung, "0\n"), "the watchdog saw it", 40)
    eventually(serving.ok, "mrcd in the machine is ok again", 30)


CONFIG = "/etc/mrcd/mrcd.toml"
SHOWN = ("ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts", "MainPID")


def shown(machine: Machine) -> dict[str, str]:
    """Return some properties of the service."""
    asked = " ".join(f"--property={name}" for name in SHOWN)
    lines = machine.run(f"systemctl show {asked} mrcd").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def refusals(machine: Machine) -> int:
    """Return how often mrcd was started and refused the spoilt configuration."""
    return machine.run("journalctl --unit=mrcd --output=cat --no-pager").count("unknown key")


@pytest.fixture
def good_again(serving: Machine) -> Iterator[Machine]:
    """Return the machine, whose configuration the test may spoil."""
    serving.run(f"cp {CONFIG} /run/good.toml")
    try:
        yield serving
    finally:
        serving.run(f"cp /run/good.toml {CONFIG}; systemctl reset-failed; systemctl start mrcd")
        eventually(serving.ok, "mrcd in the machine is ok again", 60)


def test_reload_of_a_bad_configuration_fails_and_changes_nothing(good_again: Machine) -> None:
    before = shown(good_again)
    good_again.run(f"echo 'colour = 1' >>{CONFIG}")
    assert "failed" in good_again.run("systemctl reload mrcd && echo done", check=False)
    refused = good_again.run(f"mrcctl config apply {CONFIG}; echo $?", check=False)
    assert "2" in refused.split(), refused
    assert "colour" in refused
    assert shown(good_again) == before
    assert good_again.ok()
    assert " 0% packet loss" in good_again.run(f"ping -q -c 20 -i 0.05 {FAR_ADDRESS}")


def test_start_with_a_bad_configuration_ends_once(good_again: Machine) -> None:
    """Neither Restart= nor a call at the socket makes a loop of it."""
    good_again.run(f"echo 'colour = 1' >>{CONFIG}")
    before = refusals(good_again)
    assert "failed" in good_again.run("systemctl restart mrcd", check=False)
    found = shown(good_again)
    assert (found["ActiveState"], found["SubState"]) == ("failed", "failed"), found
    assert (found["ExecMainStatus"], found["NRestarts"]) == ("2", "0"), found
    eventually(lambda: refusals(good_again) > before, "the log says why", 20)
    assert refusals(good_again) == before + 1
    called = good_again.run("mrcctl status; echo $?", check=False)
    assert "closed the connection" in called, called
    assert "3" in called.split(), called
    eventually(lambda: refusals(good_again) > before + 1, "it was started for the call", 20)
    eventually(lambda: shown(good_again)["SubState"] == "failed", "it has ended again", 20)
    assert refusals(good_again) == before + 2, "once"
    assert "active" in good_again.run("systemctl is-active mrcd.socket mrcd-privileged.socket")
    good_again.run(f"cp /run/good.toml {CONFIG}; systemctl start mrcd")


def test_failure_that_passes_is_recovered_from(good_again: Machine) -> None:
    """It is tried again at growing intervals, which `systemctl status` shows."""
    good_again.run(f"echo '[metrics]' >>{CONFIG}; echo 'listen = \"192.0.2.1:9971\"' >>{CONFIG}")
    good_again.run("systemctl restart mrcd", check=False)
    status = "systemctl show --property=StatusText mrcd"
    for left in (2, 4):
        waits = f"next start in {left} s"
        eventually(lambda waits=waits: waits in good_again.run(status), waits, 120)
    assert "192.0.2.1" in good_again.run(status), "and the reason"
    assert int(shown(good_again)["NRestarts"]) >= 4
    good_again.run("ip address add 192.0.2.1/32 dev lo")
    try:
        eventually(good_again.ok, "mrcd has recovered by itself", 60)
    finally:
        good_again.run("ip address delete 192.0.2.1/32 dev lo")


def test_removing_the_package_takes_the_data_path_down(serving: Machine) -> None:
    said = serving.run("systemctl kill --signal=KILL --kill-whom=main mrcd; dpkg --remove mrcd")
    left = serving.run("find /sys/fs/bpf -mindepth 1 ! -name '*.debug'")
    assert left == "", said + serving.run(JOURNAL)
    assert "does not exist" in serving.run("ip link show mrc0", check=False)
