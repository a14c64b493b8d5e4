# SPDX-License-Identifier: GPL-2.0-only
"""Hosts of which one has the secret, and the others were invited by it."""

from __future__ import annotations

import os
import shutil
import subprocess

from rigs.bare_hosts import MIDDLE
from rigs.quick_hosts import Cluster, finished


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
            "nsenter", f"--net=/run/netns/{self.namespace(host)}",
            *self.daemon(), "--config", str(quick / "mrcd.toml"), "--state-dir", str(quick),
            "--socket", str(home / "mrcd.sock"), "--bpffs", str(self.folder / "bpf" / host),
            "--cache-dir", str(self.cache()),
        ]  # fmt: skip
        with (quick / "mrcd.log").open("ab") as log:
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def replug(self, host: str) -> None:
        """Have a host reboot: it keeps its files, and its NICs have other addresses."""
        kept = self.folder / f"{host}.kept"
        shutil.copytree(self.quick(host), kept)
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

    @staticmethod
    def daemon() -> list[str]:
        from cli.lab.processes import daemon_command

        return [*daemon_command()]

    @staticmethod
    def cache() -> os.PathLike[str]:
        from cli.lab import state

        return state.CACHE_DIR
