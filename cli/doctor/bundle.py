# SPDX-License-Identifier: GPL-2.0-only
"""Gather the parts of a debug bundle and pack them.

Each part is gathered independently. A part that fails is left out, and the manifest gives the
reason. docs/troubleshooting.md lists the same parts; a test compares the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import os
import platform
import re
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from cli.console.client import Client
from cli.console.exits import CommandError
from cli.doctor import checks, facts
from cli.state import daemonlog
from mrcd import __version__
from mrcd.linux.netlink import Netlink
from mrcd.model import SCHEMA_VERSION

SECRET = re.compile(
    # The key, at the beginning of a line or inside an inline table.
    rf"((?:^|[{{,])[ \t]*[\w.\"'-]*{daemonlog.SOUNDS}[\w-]*[\"']?[ \t]*=[ \t]*)"
    # Its value, which may span several lines.
    r"(?:\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|\[[^\]]*\]|\"(?:\\.|[^\"\\])*\"|'[^'\n]*'|[^,}\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
SOUNDS_SECRET = re.compile(daemonlog.SOUNDS, re.IGNORECASE)
PROC = ("net/dev", "net/snmp", "net/snmp6", "net/softnet_stat", "meminfo", "loadavg", "interrupts")
SYSCTLS = ("forwarding", "rp_filter", "seg6_enabled", "disable_ipv6", "accept_ra", "mtu")


@dataclass(frozen=True, slots=True)
class Place:
    """The control socket to ask, and the seconds to watch for path events."""

    socket: str
    seconds: float


Gather = Callable[[Place], bytes]


def json_of(value: Any) -> bytes:
    """Encode a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _asked(ask: Callable[[Client], Any]) -> Gather:
    def gather(place: Place) -> bytes:
        with Client(place.socket) as client:
            return json_of(ask(client))

    return gather


def _configuration(place: Place) -> bytes:
    with Client(place.socket) as client:
        return without_secrets(client.config_text()["text"]).encode()


def _files(place: Place) -> bytes:
    """Read mrcd.toml and the fabric file it names, as they are on disk now."""
    with Client(place.socket) as client:
        path = Path(client.status().config)
        text = client.config_text()["text"]
    found = [path]
    if named := re.search(r'^fabric = "(.*)"$', text, re.MULTILINE):
        found.append(path.parent / named[1])
    parts = [f"# ---- {file}\n{without_secrets(file.read_text())}" for file in found]
    return "\n".join(parts).encode()


def without_secrets(text: str) -> str:
    """Replace the value of every TOML key that sounds like a secret."""
    return SECRET.sub(r'\1"(left out)"', text)


def _samples(place: Place) -> bytes:
    with Client(place.socket) as client:
        samples = islice(client.monitor(1000), 3)
        return b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples)


def _events(place: Place) -> bytes:
    with Client(place.socket) as client:
        events = client.watch_paths(place.seconds)
        return b"".join(msgspec.json.encode(event) + b"\n" for event in events if event)


def _doctor(place: Place) -> bytes:
    found = facts.gather(None, place.socket, None)
    # A configuration problem quotes the wrong value, which may be a secret.
    told = (line for line in found.problems if not SOUNDS_SECRET.search(line))
    found = replace(found, problems=tuple(told))
    findings = checks.examine(found, checks.HOST)
    return json_of(
        {
            "schema_version": SCHEMA_VERSION,
            "findings": [asdict(finding) for finding in findings],
            "facts": {**asdict(found), "filesystems": sorted(found.filesystems)},
        }
    )


def _host(_place: Place) -> bytes:
    parts = {f"/proc/{name}": _read(f"/proc/{name}") for name in PROC}
    parts["/etc/os-release"] = _read("/etc/os-release")
    shown = [f"==== {name}\n{text}" for name, text in parts.items()]
    uname = " ".join(platform.uname())
    return "\n".join([f"{uname}\ncpus {os.cpu_count()}\n", *shown]).encode()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        return f"{error}\n"


def _sysctls(_place: Place) -> bytes:
    lines = []
    for version in ("ipv4", "ipv6"):
        for folder in sorted(Path(f"/proc/sys/net/{version}/conf").iterdir()):
            for key in SYSCTLS:
                if (folder / key).exists():
                    name = f"net.{version}.conf.{folder.name}.{key}"
                    lines.append(f"{name} = {_read(str(folder / key)).strip()}")
    return ("\n".join(lines) + "\n").encode()


def _network(_place: Place) -> bytes:
    async def ask() -> dict[str, Any]:
        async with Netlink() as nl:
            links = await nl.links()
            addresses = {name: await nl.addresses(name) for name in links}
            routes = await nl.fib()
        return {
            "links": [
                {**asdict(link), "mac": link.mac.hex(":"), "addresses": addresses[name]}
                for name, link in links.items()
            ],
            "routes": [asdict(route) for route in routes],
        }

    return json_of(asyncio.run(ask()))


def _log(place: Place) -> bytes:
    pid = None
    with contextlib.suppress(CommandError), Client(place.socket) as client:
        pid = client.status().pid
    return daemonlog.read(pid)


PARTS: Mapping[str, tuple[str, Gather]] = {
    "status.json": ("state, planes, data path", _asked(lambda client: client.status())),
    "config.toml": ("the running configuration, without secrets", _configuration),
    "files.toml": ("mrcd.toml and the fabric file as they are on disk, without secrets", _files),
    "peers.json": ("peers", _asked(lambda client: client.peers())),
    "paths.json": ("every path with its counts", _asked(lambda client: client.paths(None))),
    "connections.json": ("every QP", _asked(lambda client: client.connections(None))),
    "stats.json": ("all counters with their meaning", _asked(lambda client: client.stats())),
    "denied.json": ("the denylist", _asked(lambda client: client.denied())),
    "faults.json": ("what the survey names", _asked(lambda client: client.faults())),
    "map.json": ("the fabric as the survey sees it", _asked(lambda client: client.fabric_map())),
    "samples.jsonl": ("three samples, a second apart", _samples),
    "events.jsonl": ("path events of a few seconds", _events),
    "doctor.json": ("what `mrcctl doctor` finds, and its facts", _doctor),
    "host.txt": ("kernel, distribution, /proc/net counters, memory, interrupts", _host),
    "sysctls.txt": ("forwarding, rp_filter, seg6 and the like of each interface", _sysctls),
    "network.json": ("links, addresses, routes", _network),
    "log.txt": (
        "the end of mrcd's log, a file or the journal: 2000 lines, at most 1 MiB, without secrets",
        _log,
    ),
}


@dataclass(frozen=True, slots=True)
class Bundle:
    """The gathered parts by name, and the reason for each missing part."""

    parts: Mapping[str, bytes]
    missing: Mapping[str, str]


def gather(place: Place) -> Bundle:
    """Gather every part that is available."""
    parts: dict[str, bytes] = {}
    missing: dict[str, str] = {}
    for name, (_meaning, get) in PARTS.items():
        try:
            parts[name] = get(place)
        except (CommandError, OSError, subprocess.SubprocessError) as error:
            text = error.format_message() if isinstance(error, CommandError) else str(error)
            missing[name] = text.splitlines()[0] if text else type(error).__name__
    return Bundle(parts, missing)


def pack(bundle: Bundle, folder: str, now_s: int) -> bytes:
    """Pack a bundle and its manifest as a tar.gz of one folder; only the owner can read the files.

    now_s is the files' modification time, in seconds since the epoch.
    """
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "mrcctl": __version__,
        "time": now_s,
        "contents": {name: PARTS[name][0] for name in bundle.parts},
        "missing": bundle.missing,
    }
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=now_s) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, data in {"manifest.json": json_of(manifest), **bundle.parts}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime, member.mode = len(data), now_s, 0o600
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()
