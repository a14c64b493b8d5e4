# SPDX-License-Identifier: GPL-2.0-only
"""One virtual machine under qemu: its process, its monitor (QMP), commands in it (guest agent).

Cables are pairs of datagram sockets in a folder, so this machine's network is not involved.
Without KVM the processor is emulated, which is some 20 times slower.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vm import taps
from vm.clock import CLOCK, LOOK_S
from vm.machines import Machine

KVM = Path("/dev/kvm")
_AGENT = "org.qemu.guest_agent.0"
# An emulated timer may be late when the kernel tests it at boot, and the kernel would give up.
_KERNEL = (
    *("root=/dev/vda", "rw", "console=ttyS0", "panic=1"),
    *("mitigations=off", "no_timer_check", "net.ifnames=0"),
)


class MachineFailed(Exception):
    """A machine that did not do what it was asked; the message names the machine and the task."""


@dataclass(frozen=True, slots=True)
class Image:
    """A disk with its kernel, as image.sh makes it."""

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "disk.img"


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    status: int
    out: str
    err: str
    seconds: float


def accelerator() -> str:
    """Return "kvm" on a real machine that has it, else "tcg".

    Inside a virtual machine, KVM may be present but not work.
    """
    nested = re.search(r"^flags\b.*\bhypervisor\b", Path("/proc/cpuinfo").read_text(), re.M)
    return "kvm" if os.access(KVM, os.R_OK | os.W_OK) and not nested else "tcg"


class _Json:
    """A connection to a socket of qemu's that carries JSON lines."""

    def __init__(self, path: Path) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.connect(str(path))
        self._buffer = b""

    def send(self, **message: Any) -> None:
        self._sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next message; TimeoutError if CLOCK passes the deadline."""
        while b"\n" not in self._buffer:
            left = deadline - CLOCK.now()
            self._sock.settimeout(max(0.01, min(LOOK_S, left)))
            try:
                got = self._sock.recv(1 << 16)
            except TimeoutError:
                if left <= 0:
                    raise
                continue
            if not got:
                raise ConnectionError("qemu closed the connection")
            self._buffer += got
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line.lstrip(b"\xff") or b"{}")
        return message

    def close(self) -> None:
        self._sock.close()


NICS = ("virtio-net-pci", "e1000e", "vmxnet3")
"""Models of NICs: a driver of hypervisors, and those of two cards with queues and offloads."""


@dataclass(slots=True)
class Vm:
    """A virtual machine. Its console and sockets are in `folder`.

    near: those of its cables of which it has the near end; some other machine has the far one.
    nic: qemu's model of the NICs on cables, one of NICS.
    queues: of each NIC on a cable. space: the namespace of vm/taps.py if cables are taps; only then
    there may be several queues. cpus: of the machine, at least one for each queue.
    """

    machine: Machine
    image: Image
    payload: Path
    folder: Path
    memory_mb: int
    near: frozenset[int]
    nic: str = "virtio-net-pci"
    queues: int = 1
    space: str | None = None
    cpus: int = 2
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _agent: _Json | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def console(self) -> Path:
        return self.folder / f"{self.name}.console"

    def _path(self, kind: str) -> Path:
        return self.folder / f"{self.name}.{kind}"

    def _cable(self, cable: int, side: str) -> Path:
        return self.folder / f"cable{cable}.{side}"

    def start(self) -> None:
        """Start the machine; return before it has booted."""
        accel = accelerator()
        command = [
            *(("ip", "netns", "exec", self.space) if self.space else ()),
            "qemu-system-x86_64",
            *("-name", self.name, "-smp", str(self.cpus), "-m", str(self.memory_mb)),
            *(("-accel", "kvm", "-cpu", "host") if accel == "kvm" else ()),
            *(("-accel", "tcg,thread=multi", "-cpu", "Nehalem") if accel == "tcg" else ()),
            *("-display", "none", "-no-reboot", "-nodefaults"),
            *("-kernel", str(self.image.folder / "vmlinuz")),
            *("-initrd", str(self.image.folder / "initrd.img")),
            *("-append", " ".join(_KERNEL)),
            *("-drive", f"file={self.image.disk},if=virtio,format=raw,snapshot=on"),
            *("-drive", f"file={self.payload},if=virtio,format=raw,readonly=on"),
            *("-chardev", f"file,id=console,path={self.console}", "-serial", "chardev:console"),
            *("-qmp", f"unix:{self._path('qmp')},server=on,wait=off"),
            *("-device", "virtio-serial-pci"),
            *("-chardev", f"socket,id=agent,path={self._path('agent')},server=on,wait=off"),
            *("-device", f"virtserialport,chardev=agent,name={_AGENT}"),
            *("-object", "rng-random,id=rng,filename=/dev/urandom"),
            *("-device", "virtio-rng-pci,rng=rng"),
        ]
        # eth0 leads nowhere. It stands for the management NIC that real machines have.
        # All are of one model, or the order of drivers would decide which is eth1.
        command += ["-netdev", "hubport,id=spare,hubid=0", "-device", f"{self.nic},netdev=spare"]
        for nic in self.machine.nics:
            backend = self._tap(nic.cable) if self.space else self._datagrams(nic.cable)
            # Of each queue two interrupts, and two more: what virtio's driver asks for.
            several = ""
            if self.queues > 1 and self.nic == "virtio-net-pci":
                several = f",mq=on,vectors={2 * self.queues + 2}"
            command += [
                "-netdev",
                f"{backend},id=cable{nic.cable}",
                "-device",
                f"{self.nic},netdev=cable{nic.cable},mac={nic.mac}{several}",
            ]
        with self._path("stderr").open("wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
        CLOCK.watch(self.process.pid)

    def _datagrams(self, cable: int) -> str:
        """Return the end of a cable that is a pair of unix sockets: one queue, no segments."""
        sides = ("near", "far") if cable in self.near else ("far", "near")
        own, other = (self._cable(cable, side) for side in sides)
        return f"dgram,local.type=unix,local.path={own},remote.type=unix,remote.path={other}"

    def _tap(self, cable: int) -> str:
        """Return the end of a cable that is a tap: several queues, and segments cross whole."""
        name = taps.name(cable, "near" if cable in self.near else "far")
        return f"tap,ifname={name},script=no,downscript=no,vhost=off,queues={self.queues}"

    def kill(self) -> None:
        """Kill its process; a signal handler may call this."""
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        """Kill the machine at once and wait for its end."""
        if self._agent is not None:
            self._agent.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            CLOCK.forget(self.process.pid)

    def _alive(self) -> None:
        if self.process is None or self.process.poll() is not None:
            words = self._path("stderr").read_text(errors="replace").strip()
            raise MachineFailed(f"{self.name}: qemu has ended: {words or 'it printed nothing'}")

    def wait_for_boot(self, within_s: float) -> float:
        """Wait until commands can be run in the machine; return the seconds that took."""
        began = CLOCK.now()
        until = CLOCK.deadline(within_s)
        number = 0
        while CLOCK.now() < until:
            self._alive()
            number += 1
            with contextlib.suppress(OSError, ConnectionError, TimeoutError):
                if self._agent is None:
                    self._agent = _Json(self._path("agent"))
                self._agent.send(execute="guest-sync", arguments={"id": number})
                deadline = CLOCK.deadline(5)
                while self._agent.receive(deadline).get("return") != number:
                    pass
                return CLOCK.now() - began
        tail = self.console.read_text(errors="replace")[-1500:]
        raise MachineFailed(f"{self.name}: not up within {within_s:.0f} s; console:\n{tail}")

    def _ask(self, command: str, **arguments: Any) -> Any:
        assert self._agent is not None, "wait_for_boot comes first"
        self._alive()
        self._agent.send(execute=command, arguments=arguments)
        answer = self._agent.receive(CLOCK.deadline(120))
        if "error" in answer:
            raise MachineFailed(f"{self.name}: {command}: {answer['error'].get('desc')}")
        return answer["return"]

    def begin(self, command: str) -> int:
        """Start a shell command; return its process ID for `end`."""
        started = self._ask(
            "guest-exec",
            path="/bin/sh",
            arg=["-c", command],
            env=["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"],
            **{"capture-output": True},
        )
        return int(started["pid"])

    def end(self, pid: int, within_s: float) -> Done:
        """Wait for a command that was begun; MachineFailed if it takes too long."""
        began = CLOCK.now()
        until = CLOCK.deadline(within_s)
        pause_s = 0.2
        while True:
            status = self._ask("guest-exec-status", pid=pid)
            took = CLOCK.now() - began
            if status["exited"]:
                out, err = (
                    base64.b64decode(status.get(key, "")).decode(errors="replace")
                    for key in ("out-data", "err-data")
                )
                return Done(status.get("exitcode", 128), out, err, took)
            if CLOCK.now() > until:
                raise MachineFailed(f"{self.name}: a command ran longer than {took:.0f} s")
            time.sleep(pause_s)
            pause_s = min(2.0, pause_s * 1.2)  # the agent logs every query

    def run(self, command: str, within_s: float = 120, *, check: bool = True) -> Done:
        """Run a shell command in the machine; with `check`, MachineFailed if it fails."""
        done = self.end(self.begin(command), within_s)
        if check and done.status:
            raise MachineFailed(
                f"{self.name}: `{command}` failed ({done.status}):\n{done.out}{done.err}".rstrip()
            )
        return done

    def set_link(self, cable: int, *, up: bool) -> None:
        """Plug one of its cables in or pull it out; the guest sees the carrier come or go."""
        monitor = _Json(self._path("qmp"))
        try:
            deadline = CLOCK.deadline(60)
            monitor.receive(deadline)
            for command, arguments in (
                ("qmp_capabilities", {}),
                ("set_link", {"name": f"cable{cable}", "up": up}),
            ):
                monitor.send(execute=command, arguments=arguments)
                answer = monitor.receive(deadline)
                while "event" in answer:
                    answer = monitor.receive(deadline)
                if "error" in answer:
                    raise MachineFailed(f"{self.name}: {command}: {answer['error']['desc']}")
        finally:
            monitor.close()
