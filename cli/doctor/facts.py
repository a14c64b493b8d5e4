# SPDX-License-Identifier: GPL-2.0-only
"""Gather the facts that ``mrcctl doctor`` judges.

Nothing is changed. A fact that this process may not read is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import gzip
import importlib.util
import json
import os
import platform
import pwd
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.console.client import Client
from cli.console.exits import CommandError
from cli.doctor import firewall
from cli.doctor.checks import CUTS, Facts, Nic
from mrcd.config import config
from mrcd.config.keyfiles import USER, service_user, with_keys
from mrcd.datapath.pins import is_bpffs
from mrcd.fabric.network import with_mtu
from mrcd.linux import bpf, ethtool, rss
from mrcd.linux.groupsocket import PORT
from mrcd.linux.kernel import forwarding
from mrcd.linux.neighbortable import Table, read_tables
from mrcd.linux.netlink import Netlink, NetlinkFailed
from mrcd.service import capabilities
from mrcd.wire.sources import bpf_dir

if TYPE_CHECKING:
    from mrcd.config.config import Config
    from mrcd.model import Status

PROC_SYS = Path("/proc/sys/net")


DEFAULT_CONFIG = Path("/etc/mrcd/mrcd.toml")
CACHE = Path("/var/cache/mrcd")
DEFAULT_PINS = Path("/sys/fs/bpf/mrcd")
EXAMPLES = (
    Path("/usr/share/doc/mrcd/examples"),
    Path(__file__).parents[2] / "packaging" / "examples",
)
"""Where examples of mrcd.toml and fabric.toml may be: of the package, and of a checkout."""


def gather(path: Path | None, socket: str, pins: Path | None) -> Facts:
    """Return this machine's facts for a configuration, a control socket and a bpffs folder.

    A `path` or `pins` of None means what the running daemon was started with, or the default.
    """
    status = _daemon(socket)
    if path is None:
        path = DEFAULT_CONFIG if status is None else Path(status.config)
    if pins is None:
        pins = DEFAULT_PINS if status is None else Path(status.datapath.bpffs)
    problems: tuple[str, ...] = ()
    found: Config | None = None
    try:
        found = config.load(path)
        if os.geteuid() == 0:  # nobody else may read key files
            with_keys(found)
    except config.ConfigError as error:
        problems = error.problems
    release = platform.release()
    headers = _headers(Path("/lib/modules", release))
    mrc0 = found.mrc0.name if found else "mrc0"
    nics = asyncio.run(_nics(found.interfaces, CUTS[_envelope(found)])) if found else ()
    return Facts(
        uid=os.geteuid(),
        lacking=tuple(capabilities.lacking()),
        kernel=release,
        distribution=_distribution(),
        headers=headers,
        bcc=importlib.util.find_spec("bcc") is not None,
        brought=(bpf_dir() / "compiled").is_dir(),
        filesystems=frozenset(line.split()[-1] for line in _lines("/proc/filesystems")),
        bpffs=is_bpffs(pins),
        pins=str(pins),
        jit=_number(PROC_SYS / "core/bpf_jit_enable"),
        options=_options(release),
        nohz_full=_text("/sys/devices/system/cpu/nohz_full")
        .strip()
        .strip("()")
        .replace("null", ""),
        config=str(path),
        problems=problems,
        mtu=found.fabric.mtu if found else 0,
        ipv4=found is not None and found.fabric.routing.underlay == 4,
        framing=_framing(found),
        nics=nics,
        native=found is not None and found.transport.xdp == "native",
        rp_filter={name: value for name in ("all", mrc0) if (value := _ipv4(name)) is not None},
        rings=_rings(found, nics),
        free=_free(),
        group=_group("mrcd"),
        daemon=None if status is None else status.state,
        reasons=() if status is None else tuple(status.reasons),
        sysctls=_switch(),
        missing=_missing(path),
        examples=next((str(each) for each in EXAMPLES if (each / "mrcd.toml").exists()), ""),
        unit=_unit("mrcd.service"),
        clsact=found is not None and found.transport.tc == "clsact",
        cached=bool(_entries(CACHE)),
        kept=any(name.startswith("layout-") for name in _entries(pins)),
        unreadable=tuple(str(file) for file in _files(path) if not _readable(file)),
        keys=_key_files(found),
        service_user=USER if _unit("mrcd.service") and service_user() is not None else None,
        packaged=None if headers else _packaged(f"linux-headers-{release}"),
        envelope=_envelope(found),
        udp_ports=_udp_ports(found),
        control_port=found.transport.control_port if found else 0,
        closed=closed(found.transport.control_port) if found else None,
        hello_port=PORT if found and found.keys.discover else 0,
        hushed=closed(PORT) if found and found.keys.discover else None,
        routed=tuple(map(str, found.mrc0.routed)) if found else (),
        mrc0=mrc0,
        neighbors=_neighbors(found),
        barred=_barred(mrc0) if found and found.mrc0.routed else (),
        forwarding=forwarding(),
    )


def _missing(path: Path) -> tuple[str, ...]:
    """Return the files of a configuration that do not exist: its own, and the fabric file."""
    found: list[Path] = []
    fabric: object = None
    if not path.exists():
        found, fabric = [path], "fabric.toml"
    else:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            fabric = tomllib.loads(path.read_text(encoding="utf-8")).get("host", {}).get("fabric")
    if isinstance(fabric, str) and fabric and not (path.parent / fabric).exists():
        found.append(path.parent / fabric)
    return tuple(map(str, found))


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # there is none, or only root may look
        return []


def _files(path: Path) -> list[Path]:
    """Return the configuration, and the fabric file if it names one."""
    files = [path]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        fabric = tomllib.loads(path.read_text(encoding="utf-8")).get("host", {}).get("fabric")
        files += [path.parent / fabric] if isinstance(fabric, str) and fabric else []
    return files


def _readable(file: Path) -> bool:
    """Return whether this user may read a file; that one does not exist is another matter."""
    try:
        return os.access(file, os.R_OK, effective_ids=True) or not file.exists()
    except PermissionError:  # of its folder
        return False


def _key_files(found: Config | None) -> dict[str, str]:
    """Return the owners of the key files that are there and may be seen."""
    if found is None:
        return {}
    keys, owners = found.keys, {}
    for name in (
        keys.private_key_file,
        keys.preshared_key_file,
        keys.secret_file,
        keys.invitation_file,
    ):
        if name is not None:
            file = found.path.parent / name
            with contextlib.suppress(OSError):
                owners[str(file)] = _user(file.stat().st_uid)
    return owners


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _unit(name: str) -> bool:
    """Return whether systemd runs and has a unit."""
    folders = ("/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
    found = any(Path(folder, name).exists() for folder in folders)
    return found and Path("/run/systemd/system").is_dir()


def _packaged(name: str) -> bool | None:
    """Return whether apt knows a package; None where there is no apt."""
    try:
        found = subprocess.run(
            ["apt-cache", "show", name], capture_output=True, timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.returncode == 0


def _rings(found: Config | None, nics: Iterable[Nic]) -> int:
    """Return the bytes of both rings; 0 while the MTU is unknown, which may be that of the NICs."""
    mtu = min((nic.mtu for nic in nics if nic.present), default=0)
    if found is None or not (fabric := with_mtu(found.fabric, mtu)).mtu:
        return 0
    return 2 * found.transport.ring_slots * replace(found, fabric=fabric).mtu


def _neighbors(found: Config | None) -> tuple[tuple[Table, int], ...]:
    """Return the kernel's tables of neighbours, and the entries that mrcd needs in each.

    mrc0 has an entry for each peer that is spoken to. Without a fabric each plane has one, too.
    """
    if found is None:
        return ()
    ours = {"ipv4": 0, "ipv6": 0}
    for family in ours:
        version = int(family[-1])
        if any(address.version == version for address in found.mrc0.addresses):
            ours[family] += len(found.peers)
        if not found.fabric.described and found.fabric.routing.underlay == version:
            ours[family] += len(found.peers) * found.fabric.planes
    return tuple((table, ours[table.family]) for table in read_tables())


def _envelope(found: Config | None) -> str:
    return "udp" if found is not None and found.cell_udp else "ipv6"


def _udp_ports(found: Config | None) -> tuple[int, ...]:
    if found is None or found.fabric.described:
        return ()
    ports = (found.transport.udp_port, found.transport.control_port)
    return (*ports, found.transport.cell_port) if found.cell_udp else ports


def closed(port: int) -> tuple[str, ...] | None:
    """Return the chains of nftables that drop what comes to a UDP port; None if none can be read.

    Without the tool there are no rules of nftables, unless another program made them.
    """
    return _of_ruleset(lambda ruleset: firewall.closed(ruleset, port))


def _barred(interface: str) -> tuple[str, ...]:
    """Return the chains of nftables that drop what is forwarded from an interface."""
    return _of_ruleset(lambda ruleset: firewall.barred(ruleset, interface)) or ()


def _of_ruleset(look: Callable[[Mapping[str, Any]], tuple[str, ...]]) -> tuple[str, ...] | None:
    try:
        done = subprocess.run(
            ["nft", "-j", "list", "ruleset"], capture_output=True, timeout=30, check=True
        )
        return look(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None


def _framing(found: Config | None) -> str:
    if found is None or not found.cells:
        return "mrc"
    return found.transport.framing


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _lines(path: str | Path) -> list[str]:
    return [line for line in _text(path).splitlines() if line.strip()]


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _distribution() -> str:
    found = re.search(r'^ID="?([a-z-]+)', _text("/etc/os-release"), re.MULTILINE)
    return found[1] if found else ""


def _headers(modules: Path) -> bool:
    """Return whether the kernel's headers are installed.

    Debian splits them into build and source; other distributions have everything in build.
    """
    return (modules / "build/include/generated/autoconf.h").exists() and any(
        (modules / part / "include/linux/kconfig.h").exists() for part in ("build", "source")
    )


def _options(release: str) -> dict[str, str]:
    text = _text(f"/boot/config-{release}")
    with contextlib.suppress(OSError):
        text = text or gzip.decompress(Path("/proc/config.gz").read_bytes()).decode()
    return dict(re.findall(r"^CONFIG_(\w+)=(\w)", text, re.MULTILINE))


def _free() -> int:
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def _group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _daemon(socket: str) -> Status | None:
    try:
        with Client(socket) as client:
            return client.status()
    except CommandError:
        return None


def _ipv4(name: str) -> int | None:
    return _number(PROC_SYS / "ipv4/conf" / name / "rp_filter")


async def _nics(names: Iterable[str], cuts: str) -> tuple[Nic, ...]:
    found = []
    async with Netlink() as nl:
        links = await nl.links()
        for name in names:
            if name not in links:
                found.append(Nic(name, present=False))
                continue
            link = links[name]
            program: str | None = None
            generic = False
            with contextlib.suppress(NetlinkFailed):
                there = await nl.xdp_program(name)
                program = None if there is None else _program(there.ident)
                generic = there is not None and there.mode == "generic"
            offloads: dict[str, bool] = {}
            with contextlib.suppress(OSError):
                offloads = ethtool.named_features(name)
            qdiscs: frozenset[str] = frozenset()
            with contextlib.suppress(NetlinkFailed):
                qdiscs = await nl.qdiscs(name)
            spreading = rss.of(name)
            found.append(
                Nic(
                    name,
                    mtu=link.mtu,
                    up=link.up,
                    carrier=link.carrier,
                    xdp=program,
                    generic=generic,
                    rp_filter=_ipv4(name) or 0,
                    disable_ipv6=bool(_number(PROC_SYS / "ipv6/conf" / name / "disable_ipv6")),
                    cuts=offloads.get(cuts, True),
                    merges=offloads.get("rx-gro", True),
                    queues=spreading.queues,
                    by_source=spreading.by_source,
                    ruled=spreading.ruled,
                    qdiscs=qdiscs,
                )
            )
    return tuple(found)


def _program(ident: int) -> str:
    try:
        return bpf.program_name(ident) or f"program {ident}"
    except OSError:  # not root
        return f"program {ident}"


def _switch() -> dict[str, int]:
    """Return the sysctls that matter to a Linux switch, for every interface."""
    found = {}
    for key in ("ipv6/conf/{}/forwarding", "ipv6/conf/{}/seg6_enabled", "ipv4/conf/{}/rp_filter"):
        folder = PROC_SYS / key.partition("/{}")[0]
        for name in sorted(each.name for each in folder.iterdir()) if folder.is_dir() else ():
            value = _number(PROC_SYS / key.format(name))
            if value is not None and name not in ("default", "lo"):
                found["net." + key.format(name).replace("/", ".")] = value
    return found
