# SPDX-License-Identifier: GPL-2.0-only
"""Remember the hosts that were admitted, and what was refused lately; keep the pace.

The state file has a copy, and is named if it is damaged or cannot be written (keptfile.py).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any, Final

from mrcd.fabric.hosts import Host
from mrcd.handshake.identity import decode_key
from mrcd.handshake.ratelimit import Allowance
from mrcd.service.findings import Findings
from mrcd.service.keptfile import KeptFile
from mrcd.service.log import get_logger

log = get_logger()

NAME: Final = "admitted.json"
BURST: Final = 16
"""So many hosts may be admitted at once ..."""
GAP_NS: Final = 1_000_000_000
"""... and one more each second."""
REFUSED_MAX: Final = 16
"""So many refused hosts are named."""
REFUSED_NS: Final = 60 * 1_000_000_000
"""A refused host is named for this time after its last attempt."""


class Admitted:
    """The admitted hosts of one daemon."""

    def __init__(self, folder: Path) -> None:
        self.findings = Findings()
        self._file = KeptFile(folder / NAME, "the admitted hosts", self.findings)
        self._hosts: dict[str, Host] = {}
        self.certificates: dict[str, bytes] = {}
        self._refused: dict[str, tuple[str, int]] = {}
        self._pace = Allowance(GAP_NS, BURST)

    def load(self) -> None:
        """Read the hosts that an earlier daemon admitted."""
        found = self._file.load(_hosts) or []
        self._hosts = {host.name: host for host, _certificate in found}
        self.certificates = {host.name: shown for host, shown in found if shown}

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The admitted hosts, the first one first."""
        return tuple(self._hosts.values())

    def add(self, hosts: Iterable[Host], certificates: Mapping[str, bytes] | None = None) -> None:
        """Remember hosts that are peers from now on, and the certificates that they have shown."""
        shown = certificates or {}
        for host in hosts:
            self._hosts[host.name] = host
            self._refused.pop(host.name, None)
            self.certificates.pop(host.name, None)
            if host.name in shown:
                self.certificates[host.name] = shown[host.name]
        self._save()

    def moved(self, hosts: Iterable[Host]) -> None:
        """Remember where these of the hosts are from now on."""
        for host in hosts:
            if host.name in self._hosts:
                self._hosts[host.name] = host
        self._save()

    def drop(self, names: Iterable[str]) -> None:
        """Remember these hosts no longer."""
        gone = self._hosts.keys() & {*names}
        if gone:
            self._hosts = {name: host for name, host in self._hosts.items() if name not in gone}
            for name in gone:
                self.certificates.pop(name, None)
            self._save()

    def _save(self) -> None:
        shown = self.certificates
        entries = [_entry(host, shown.get(host.name, b"")) for host in self._hosts.values()]
        self._file.save({"hosts": entries})

    def save_again(self) -> None:
        """Try again to write what could not be written."""
        self._file.save_again()

    @property
    def unsaved(self) -> str | None:
        """Why the admitted hosts would not survive a restart; None if they would."""
        return self._file.unsaved

    # ---- the pace

    def may(self, *, now_ns: int) -> bool:
        """Return whether another host may be admitted now, and count it."""
        return self._pace.take(now_ns)

    # ---- what was refused

    def refuse(self, name: str, reason: str) -> None:
        """Note that a host was refused; log it unless that is known."""
        now = time.monotonic_ns()
        known = self._refused.pop(name, None)
        while len(self._refused) >= REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[name] = reason, now
        if known is None or known[0] != reason or now - known[1] >= REFUSED_NS:
            log.warning("host.refused", host=name, reason=reason)

    @property
    def warnings(self) -> list[str]:
        """What was refused lately, a line for each host."""
        oldest = time.monotonic_ns() - REFUSED_NS
        return [
            f"host {name} is not admitted: {reason}"
            for name, (reason, when) in self._refused.items()
            if when > oldest
        ]


def _entry(host: Host, certificate: bytes) -> dict[str, Any]:
    keys = {"public_key": host.public_key, "certificate": base64.b64encode(certificate).decode()}
    return {
        "name": host.name,
        "t0": host.t0,
        "port": host.port,
        "addresses": list(map(str, host.addresses)),
        "endpoints": list(map(str, host.endpoints)),
        **{key: text for key, text in keys.items() if text},
    }


def _hosts(content: Any) -> list[tuple[Host, bytes]]:
    return [
        (
            Host(
                str(entry["name"]),
                int(entry["t0"]),
                int(entry["port"]),
                tuple(map(ip_interface, entry["addresses"])),
                public_key=_checked(entry.get("public_key", "")),
                endpoints=tuple(map(ip_address, entry.get("endpoints", ()))),
            ),
            base64.b64decode(entry.get("certificate", ""), validate=True),
        )
        for entry in content["hosts"]
    ]


def _checked(public_key: str) -> str:
    """Return a public key, or ""; raise ValueError if it is none."""
    if public_key:
        decode_key(public_key)
    return public_key
