# SPDX-License-Identifier: GPL-2.0-only
"""Test the files of systemd/ with systemd 252 and its security analysis."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from mrcd import main
from mrcd.linux import sysfs
from mrcd.service import backoff, capabilities
from mrcd.wire.abi import ABI

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "systemd"
EXPOSURE_MAX = 2.0
PRIVILEGED = "mrcd-privileged@.service"


def settings(text: str) -> dict[str, list[str]]:
    """Return every value of every key of a unit, regardless of sections."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


SERVICE = settings((SYSTEMD / "mrcd.service").read_text())
SOCKET = settings((SYSTEMD / "mrcd.socket").read_text())
HELD = settings((SYSTEMD / PRIVILEGED).read_text())
CHANNEL = settings((SYSTEMD / "mrcd-privileged.socket").read_text())


def verify(folder: Path, service: str) -> str:
    """Return the complaints of systemd-analyze about the units, or an empty string."""
    # It also looks for the programs, and mrcd is not installed on this machine.
    (folder / "mrcd.service").write_text(service.replace("/usr/sbin/mrcd ", "/usr/bin/true "))
    program = "/usr/lib/mrcd/bin/mrcd-privileged "
    for name in ("mrcd.socket", "mrcd-privileged.socket", PRIVILEGED):
        text = (SYSTEMD / name).read_text()
        (folder / name).write_text(text.replace(program, "/usr/bin/true "))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(folder.glob("mrcd*")))],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stdout + done.stderr


def test_systemd_has_nothing_against_the_units(tmp_path: Path) -> None:
    assert verify(tmp_path, (SYSTEMD / "mrcd.service").read_text()) == ""


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("Type=notify", "Type=notify-reload", "Failed to parse"),  # new in systemd 253
        ("WatchdogSec=", "WatchdogSecs=", "Unknown key"),
        ("BindPaths=/", "BindPaths=", "not absolute"),
    ],
)
def test_systemd_would_complain(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    version = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True)
    if "notify-reload" in new and int(version.stdout.split()[1]) > 252:
        pytest.skip("this systemd is newer than 252 and knows notify-reload")
    service = (SYSTEMD / "mrcd.service").read_text()
    assert old in service
    assert complaint in verify(tmp_path, service.replace(old, new))


@pytest.mark.parametrize("unit", ["mrcd.service", PRIVILEGED])
def test_the_services_are_hardened(unit: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", str(SYSTEMD / unit)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert exposure is not None, done.stdout
    assert float(exposure[1]) <= EXPOSURE_MAX, done.stdout


def test_the_service_has_no_capability() -> None:
    assert SERVICE["CapabilityBoundingSet"] == [""]
    assert "AmbientCapabilities" not in SERVICE


def test_the_privileged_process_has_the_capabilities_that_mrcd_needs() -> None:
    assert HELD["CapabilityBoundingSet"] == HELD["AmbientCapabilities"]
    assert set(HELD["AmbientCapabilities"][0].split()) == set(capabilities.NEEDED)


def test_the_daemon_reaches_the_privileged_process_and_nobody_else_does() -> None:
    assert SERVICE["Requires"] == ["mrcd-privileged.socket"]
    (path,) = CHANNEL["ListenSequentialPacket"]
    (option,) = (each for each in main.main.params if each.name == "privileged")
    assert str(option.default) == path
    assert (CHANNEL["SocketUser"], CHANNEL["SocketMode"]) == (SERVICE["User"], ["0600"])
    assert CHANNEL["Accept"] == ["yes"]
    assert HELD["StandardInput"] == ["socket"]


def test_the_daemon_cannot_write_what_the_loader_loads() -> None:
    assert HELD["CacheDirectory"] == ["mrcd"]
    assert "CacheDirectory" not in SERVICE
    assert SERVICE["ProtectSystem"] == ["strict"]


def seconds(value: str) -> int:
    return int(value.removesuffix("s"))


def test_a_start_that_cannot_work_ends_once() -> None:
    """systemd asks for the status of ExecStart= only: whatever else fails is started again."""
    assert SERVICE["Restart"] == ["on-failure"]
    (prevented,) = SERVICE["RestartPreventExitStatus"]
    assert [*map(int, prevented.split())] == [main.EXIT_CONFIG, main.EXIT_NOT_PERMITTED]
    assert main.EXIT_FAILED not in map(int, prevented.split())
    for command in SERVICE["ExecStartPre"]:
        assert command.startswith("-"), "its failure would be started again each second"
    assert "--check-config" not in SERVICE["ExecStart"][0]


def test_a_reload_checks_the_files_first() -> None:
    check, signal = SERVICE["ExecReload"]
    assert check.endswith("--check-config")
    assert check.split()[:3] == SERVICE["ExecStart"][0].split()[:3], "the same file"
    assert signal == "/usr/bin/kill -HUP $MAINPID"


def test_what_fails_is_tried_again_without_end() -> None:
    """A daemon that waits does not reach the limit of starts, nor the limits of time."""
    interval, burst = (int(SERVICE[key][0]) for key in ("StartLimitIntervalSec", "StartLimitBurst"))
    assert interval > 0
    restart_s, passed, starts = seconds(SERVICE["RestartSec"][0]), 0, 0
    while passed < interval:
        starts += 1
        passed += restart_s + backoff.delay_s(starts)
    assert 2 * starts < burst
    assert backoff.delay_s(2) == 0, "the clock of the data path waits for a daemon that crashed"
    assert seconds(SERVICE["TimeoutStopSec"][0]) > backoff.MOST_S
    assert 2 * restart_s < backoff.ROW_S


def test_memory_is_limited_where_no_maps_are_counted() -> None:
    assert SERVICE["MemoryMax"]
    assert "MemoryMax" not in HELD
    assert (SERVICE["OOMPolicy"], HELD["OOMPolicy"]) == (["stop"], ["continue"])


def test_nothing_starts_without_a_configuration() -> None:
    for unit in (SERVICE, SOCKET, CHANNEL):
        assert unit["ConditionPathExists"] == ["/etc/mrcd/mrcd.toml"]


def test_the_control_socket_is_for_the_group() -> None:
    assert SOCKET["ListenStream"] == ["/run/mrcd/mrcd.sock"]
    assert SOCKET["SocketMode"] == ["0660"]
    assert SOCKET["SocketGroup"] == SERVICE["Group"] == ["mrcd"]


def test_the_user_of_the_service_is_made() -> None:
    done = subprocess.run(
        ["systemd-sysusers", "--dry-run", str(SYSTEMD / "mrcd.sysusers")],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    users = [line.split()[1] for line in (SYSTEMD / "mrcd.sysusers").read_text().splitlines()
             if line.startswith("u ")]  # fmt: skip
    assert users == SERVICE["User"]
    assert "mrcd" in done.stdout + done.stderr


def test_folders_belong_to_the_user_of_the_service() -> None:
    lines = [
        line.split()
        for line in (SYSTEMD / "mrcd.tmpfiles").read_text().splitlines()
        if line.startswith("d ")
    ]
    owners = {line[1]: (line[2], line[3]) for line in lines}
    assert owners["/run/mrcd"] == (SERVICE["RuntimeDirectoryMode"][0], "mrcd")
    assert owners["/var/lib/mrcd"] == (SERVICE["StateDirectoryMode"][0], "mrcd")


def test_udev_steers_the_interfaces_that_the_daemon_would_steer_as_root() -> None:
    """The pair that cuts is there with cells only."""
    rules = (SYSTEMD / "90-mrcd.rules").read_text().splitlines()
    (rule,) = (line for line in rules if not line.startswith("#"))
    assert re.findall(r'KERNEL=="([^"]*)"', rule) == ["mrc0p|mrc0cp"]
    assert ">/sys%p/queues/rx-0/rps_cpus" in rule


def test_sysctls_are_those_that_the_daemon_sets() -> None:
    text = (SYSTEMD / "90-mrcd.conf").read_text()
    for key, value in sysfs.MRC0_SYSCTLS.items():
        for interface in ("mrc0", "mrc0p", "mrc0d", "mrc0c", "mrc0cp", "mrc0u"):
            assert f"-net.ipv6.conf.{interface}.{key} = {value}\n" in text


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_neighbour_table_has_room_for_a_thousand_peers(family: str) -> None:
    """Each has an entry on mrc0 and on each plane. Below the second bound none is taken away."""
    text = (SYSTEMD / "90-mrcd.conf").read_text()
    bounds = [int(n) for n in re.findall(rf"-net\.{family}\.neigh\.\S+gc_thresh\d = (\d+)", text)]
    assert len(bounds) == 3
    assert bounds == sorted(bounds)
    assert bounds[1] >= 1000 * (1 + 4)
    assert bounds[2] >= 1000 * (1 + ABI.MRC_MAX_PLANES)
