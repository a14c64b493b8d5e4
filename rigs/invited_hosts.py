# SPDX-License-Identifier: GPL-2.0-only
"""Hosts of which one has the secret, and the others were invited by it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from typing import Any

from cli.lab import processes, state
from rigs.bare_hosts import MIDDLE
from rigs.lab_hosts import eventually
from rigs.quick_hosts import Cluster, finished, inner
from rigs.traffic import open_in

EVERY_S = 0.001


class Trickle:
    """Datagrams from one host to another, one each millisecond; notes when the last arrived."""

    def __init__(self, running: Any, source: str, target: str) -> None:
        address = inner(running, target)
        self._in = open_in(running.namespace(target), address, socket.SOCK_DGRAM)
        self._in.bind((address, 0))
        self._in.settimeout(0.1)
        self._out = open_in(running.namespace(source), address, socket.SOCK_DGRAM)
        self._out.connect(self._in.getsockname()[:2])
        self._stop = threading.Event()
        self.arrived = 0
        self.last_s = 0.0
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)
        ]
        for thread in self._threads:
            thread.start()
        eventually(lambda: self.arrived > 100, f"{target} hears {source}")

    def _send(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                self._out.send(bytes(100))
            except OSError:  # there is no route any more
                continue

    def _receive(self) -> None:
        while not self._stop.is_set():
            try:
                self._in.recv(2048)
            except TimeoutError:
                continue
            self.arrived, self.last_s = self.arrived + 1, time.monotonic()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(5)
        self._in.close()
        self._out.close()


class Invited(Cluster):
    """Host `a` has the secret and is alone at first; others are plugged in and invited."""

    def build(self) -> None:
        self.add(MIDDLE)
        for plane in range(self.planes):
            self.ip(MIDDLE, f"link add br{plane} type bridge")
            self.ip(MIDDLE, f"link set br{plane} up")
        self.plug("a")
        process = self.up("a", "eth1", "eth2", more=("--hosts", "1"))
        code, out, error = finished(process)
        assert code == 0, error
        self.secret = out
        assert len(self.secret) == 44

    def invite(self, name: str, *more: str, on: str = "a") -> str:
        """Return an invitation that a host makes."""
        code, out, error = finished(self.mrcctl(on, "invite", name, *more))
        assert code == 0, error
        return out

    def try_use(
        self, host: str, invitation: str, *more: str, nics: tuple[str, ...] = ("eth1", "eth2")
    ) -> tuple[int, str]:
        """Bring a host up by an invitation. Return the exit code and the messages."""
        folder = str(self.quick(host))
        arguments = ("quick", "up", *nics, "--folder", folder, "--invitation", "-", *more)
        code, _out, error = finished(self.mrcctl(host, *arguments, secret=invitation))
        return code, error

    def use(self, host: str, invitation: str, *more: str) -> None:
        code, error = self.try_use(host, invitation, *more)
        assert code == 0, error

    def enter(self, name: str) -> None:
        """Plug a host in, invite it, and bring it up."""
        self.plug(name)
        self.use(name, self.invite(name))

    def start_again(self, host: str) -> None:
        """Start the mrcd of a host that `quick` had started, with its files."""
        home, quick = self.folder / host, self.quick(host)
        command = [
            *processes.daemon_command(), "--config", str(quick / "mrcd.toml"),
            "--state-dir", str(quick), "--socket", str(home / "mrcd.sock"),
            "--bpffs", str(self.folder / "bpf" / host), "--cache-dir", str(state.CACHE_DIR),
        ]  # fmt: skip
        with (quick / "mrcd.log").open("ab") as log:
            self.processes[host] = processes.spawn(
                self.namespace(host), command, stdout=log, stderr=subprocess.STDOUT
            )

    def kill(self, host: str) -> None:
        """Kill the mrcd of a host; its files stay."""
        self.kill_daemon(host)
        if (process := self.processes.pop(host, None)) is not None:
            process.wait(10)

    def replug(self, host: str) -> None:
        """Have a host reboot: it keeps its files, and its NICs have other addresses."""
        kept = self.folder / f"{host}.kept"
        shutil.copytree(self.quick(host), kept)
        self.kill(host)
        self.power_off(host)
        self.plug(host)
        self.quick(host).parent.mkdir(exist_ok=True)
        kept.rename(self.quick(host))
        self.start_again(host)

    def revoke(self, name: str, *more: str, on: str = "a") -> tuple[int, str]:
        """Revoke a host. Return the exit code, and all that is said."""
        code, out, error = finished(self.mrcctl(on, "peer", "revoke", name, *more))
        return code, out + error

    def journal(self, host: str) -> str:
        return (self.quick(host) / "mrcd.log").read_text(errors="replace")
