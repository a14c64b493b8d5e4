#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only
"""Turn a Debian 12 machine into one of the fabric's: provision.py NAME FOLDER, as root.

FOLDER holds fabric.toml, machines.json and mrcd's package, and may hold the hosts' fabric.secret.
A host gets its NICs' names, the package and a configuration; only `systemctl enable --now mrcd` is
left to do. The machine of the switches gets a service, mrcd-switches, that makes them. qemu and
Vagrant use the same script, which may be repeated. It runs in the guest, so it uses only the
standard library.
"""

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

TOOLS = {"ethtool": "ethtool", "iperf3": "iperf3", "ping": "iputils-ping", "python3": "python3"}
CONFIG = """\
[host]
name = "{name}"
fabric = "fabric.toml"

[keys]
{keys}

[planes]
interfaces = "plane{{plane}}"
"""
SECRET = "fabric.secret"  # the name of a file
PLANES_UNIT = """\
[Unit]
Description=NICs of mrcd's planes
Before=mrcd.service network.target

[Service]
Type=oneshot
RemainAfterExit=yes
{starts}
[Install]
WantedBy=multi-user.target
"""
SWITCHES_UNIT = """\
[Unit]
Description=T0 and T1 switches of the fabric, each a network namespace
After=network.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/mrcctl lab up /etc/mrcd/fabric.toml --switches
ExecStop=/usr/bin/mrcctl lab down --name {fabric}

[Install]
WantedBy=multi-user.target
"""


def run(*command: str) -> None:
    """Print and run a command; CalledProcessError if it fails."""
    print("provision:", *command, flush=True)
    subprocess.run(command, check=True)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def install_packages(folder: Path) -> None:
    """Install the tools of the check, and mrcd's package with its dependencies."""
    packages = sorted(folder.glob("mrcd_*.deb"))
    if not packages:
        sys.exit(f"provision: no mrcd_*.deb in {folder}: run `make deb` first")
    missing = [package for program, package in TOOLS.items() if not shutil.which(program)]
    kernel = platform.release()
    if not Path(f"/lib/modules/{kernel}/build").exists():
        missing.append(f"linux-headers-{kernel}")
    if missing:
        run("apt-get", "update", "-q")
    apt = ("apt-get", "install", "-q", "-y", "--no-install-recommends", "--reinstall")
    run(*apt, *missing, str(packages[-1].resolve()))


def interface_of(mac: str) -> str | None:
    """Return the interface with this address; None if there is none."""
    for address in Path("/sys/class/net").glob("*/address"):
        if address.read_text().strip() == mac:
            return address.parent.name
    return None


def name_nics(nics: list[dict[str, Any]], mtu: int) -> None:
    """Name the planes' NICs plane0, ... and set them up, now and at each boot."""
    starts = ""
    for nic in nics:
        name, mac = nic["name"], nic["mac"]
        write(
            Path(f"/etc/systemd/network/10-{name}.link"),
            f"[Match]\nMACAddress={mac}\n[Link]\nName={name}\nMTUBytes={mtu}\n",
        )
        there = interface_of(mac)
        if there is None:
            sys.exit(f"provision: no NIC has the MAC address {mac} of {name}")
        if there != name:
            run("ip", "link", "set", there, "down")
            run("ip", "link", "set", there, "name", name)
        starts += f"ExecStart=/usr/sbin/ip link set {name} up mtu {mtu}\n"
    write(Path("/etc/systemd/system/mrcd-planes.service"), PLANES_UNIT.format(starts=starts))
    run("systemctl", "daemon-reload")
    run("systemctl", "enable", "--now", "mrcd-planes")


def take_keys(folder: Path) -> str:
    """Install the hosts' secret; return what [keys] says of it. Without one there are no keys."""
    if not (folder / SECRET).exists():
        return "insecure = true"
    target = Path("/etc/mrcd", SECRET)
    target.touch(0o600)
    target.chmod(0o600)
    target.write_text((folder / SECRET).read_text())
    shutil.chown(target, "mrcd")
    return f'secret_file = "{SECRET}"'


def main(name: str, folder: Path) -> None:
    facts = json.loads((folder / "machines.json").read_text())
    machine = next((entry for entry in facts["machines"] if entry["name"] == name), None)
    if machine is None:
        sys.exit(f"provision: no machine {name} in {folder}/machines.json")
    Path("/etc/hostname").write_text(f"{name}\n")
    run("hostname", name)
    install_packages(folder)
    write(Path("/etc/mrcd/fabric.toml"), (folder / "fabric.toml").read_text())
    if machine["role"] == "host":
        name_nics(machine["nics"], facts["mtu"])
        write(Path("/etc/mrcd/mrcd.toml"), CONFIG.format(name=name, keys=take_keys(folder)))
        return
    write(
        Path("/etc/systemd/system/mrcd-switches.service"),
        SWITCHES_UNIT.format(fabric=facts["fabric"]),
    )
    run("systemctl", "daemon-reload")
    run("systemctl", "enable", "--now", "mrcd-switches")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
