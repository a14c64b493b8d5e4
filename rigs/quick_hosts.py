# SPDX-License-Identifier: GPL-2.0-only
"""Hosts on which `mrcctl quick` is run, as users do: two of them, or many that come and go."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from cli.lab import processes, state
from mrcd.linux import mounts, netns
from rigs.bare_hosts import MIDDLE, Bare
from rigs.lab_hosts import ROOT, eventually


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=300)
    return process.returncode, out.strip(), error


class Quick(Bare):
    """Two hosts on which `mrcctl quick` is run."""

    def mrcctl(self, host: str, *arguments: str, secret: str = "") -> subprocess.Popen[str]:
        """Start mrcctl on a host, as a user would, with the secret on its standard input."""
        home = self.folder / host
        home.mkdir(exist_ok=True)
        pins = self.folder / "bpf"
        pins.mkdir(exist_ok=True)
        if not mounts.is_mounted(pins):
            mounts.mount_bpffs(pins)
        environment = {
            **os.environ,
            "MRCD_SOCKET": str(home / "mrcd.sock"),
            "MRCD_BPFFS": str(pins / host),
            "MRCD_CACHE_DIR": str(state.CACHE_DIR),
            "PYTHONPATH": str(ROOT),
        }
        # Unlike `ip netns exec`, nsenter keeps our mounts, and so our bpffs.
        enter = ["nsenter", f"--net=/run/netns/{self.namespace(host)}"]
        command = [*enter, sys.executable, "-m", "cli"]
        process = subprocess.Popen(
            [*command, *arguments], cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(f"{secret}\n")
        process.stdin.flush()
        return process

    def up(
        self, host: str, *nics: str, secret: str = "", more: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        folder = str(self.folder / host / "quick")
        arguments = ("quick", "up", *nics, "--folder", folder, "--name", host, *more)
        return self.mrcctl(host, *arguments, secret=secret)

    def quick(self, host: str) -> Path:
        """Return where `quick` has its files on a host."""
        return self.folder / host / "quick"

    def down(self, host: str) -> None:
        assert self.try_down(host) == (0, "")

    def try_down(self, host: str, where: str | None = None) -> tuple[int, str]:
        """Run `quick down` for a host, perhaps elsewhere. Return its exit code and its messages."""
        done = self.mrcctl(where or host, "quick", "down", "--folder", str(self.quick(host)))
        code, _out, error = finished(done)
        return code, error

    def state(self, host: str) -> dict[str, str]:
        """Return what `quick` may change in a host's namespace, once its addresses may be used.

        Until then they are shown in another way.
        """
        for line in self.ip(host, "-br link show up").splitlines():
            nic, carrier, *_ = line.split()
            if nic.startswith("eth") and carrier == "UP":
                self.link_local(host, nic.partition("@")[0])
        words = ("-br link show", "address show", "route show table all", "-6 route show table all")
        return {each: self.ip(host, each) for each in words}

    def pids(self, host: str) -> list[int]:
        """Return the processes of a host: mrcd first, then the process with its capabilities."""
        return sorted(processes.inside([self.namespace(host)]))

    def kill_daemon(self, host: str) -> None:
        """Kill mrcd and its privileged process, as the kernel does where memory runs out."""
        for pid in self.pids(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not self.pids(host), f"mrcd of {host} is gone")

    def assert_nothing_left(self, host: str, before: dict[str, str]) -> None:
        assert self.state(host) == before
        assert [*(self.folder / "bpf" / host).glob("*")] == []
        assert not (self.folder / host / "mrcd.sock").exists()
        assert not self.quick(host).exists()
        assert self.pids(host) == []

    def close(self) -> None:
        """Remove everything, whether it was taken down or not."""
        running = processes.inside(self.namespace(node) for node in self.spaces)
        for pid in running:
            os.kill(pid, 9)
        eventually(
            lambda: not processes.inside(self.namespace(node) for node in self.spaces), "all ended"
        )
        super().close()


class Cluster(Quick):
    """Hosts on two bridges, which come and go."""

    def build(self) -> None:
        self.add(MIDDLE)
        for plane in range(self.planes):
            self.ip(MIDDLE, f"link add br{plane} type bridge")
            self.ip(MIDDLE, f"link set br{plane} up")
        self.secret = ""
        for host in ("a", "b"):
            self.plug(host)
        self.secret = both_up(self)

    def plug(self, host: str) -> None:
        """Make a host, with new NICs, and plug it in."""
        self.add(host)
        for plane in range(self.planes):
            self.cable(host, f"eth{plane + 1}", MIDDLE, f"{host}{plane}")
            self.ip(MIDDLE, f"link set {host}{plane} master br{plane}")
        for plane in range(self.planes):
            self.link_local(host, f"eth{plane + 1}")

    def power_off(self, host: str) -> None:
        """Have a host vanish with all that it knew, and without a word."""
        self.kill_daemon(host)
        for plane in range(self.planes):
            self.ip(MIDDLE, f"link del {host}{plane}")
        netns.delete(self.namespace(host))
        self.spaces.remove(host)
        subprocess.run(
            ["rm", "-rf", str(self.folder / host), str(self.folder / "bpf" / host)], check=True
        )

    def join(self, host: str, *nics: str, more: tuple[str, ...] = ()) -> None:
        nics = nics or ("eth1", "eth2")
        code, _out, error = finished(self.up(host, *nics, secret=self.secret, more=more))
        assert code == 0, error

    def peers(self, host: str) -> dict[str, Any]:
        done = self.mrcctl(host, "peer", "list", "--json")
        code, out, error = finished(done)
        assert code in (0, 6), error
        return {each["name"]: each for each in json.loads(out)["peers"]}

    def established(self, host: str) -> set[str]:
        found = self.peers(host).items()
        return {name for name, peer in found if peer["state"] == "established"}

    def warnings(self, host: str) -> str:
        _code, out, _error = finished(self.mrcctl(host, "status"))
        return out


def both_up(quick: Quick) -> str:
    """Bring both hosts up; a makes the secret. Return it."""
    first = quick.up("a", "eth1", "eth2", more=("--wait", "240"))
    assert first.stdout is not None
    secret = first.stdout.readline().strip()
    assert len(secret) == 44
    second = quick.up("b", "eth1", "eth2", secret=secret, more=("--wait", "240"))
    for process in (second, first):
        code, _out, error = finished(process)
        assert code == 0, error
    return secret


def inner(quick: Quick, host: str) -> str:
    status = quick.status(host)
    assert status is not None
    return next(each for each in status.mrc0.addresses if "." in each).partition("/")[0]
