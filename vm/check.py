# SPDX-License-Identifier: GPL-2.0-only
"""Check mrcd's package on virtual machines, from the first boot to its removal: `make check-vm`.

With --readme (`make check-readme`), type what docs/quickstart.md says about two hosts
(vm/readme.py). With --network, two hosts have an ordinary network between them (vm/plain.py). With
--plane-nics, two hosts have NICs of a model (vm/planenics.py).

There are two hosts with a NIC for each plane, and a third machine with the fabric's switches. Every
step has a verdict and figures, which are printed and written to build/vm/RELEASE/result.json
(readme.json). With --record, vm/results keeps the verdicts, which docs/platforms.md shows.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from mrcd.fabric import description
from rigs import kept_programs
from vm import machines, measure, plain, planenics, provision, readme, results, steps, taps
from vm.clock import CLOCK
from vm.machines import Machine
from vm.qemu import NICS, Image, MachineFailed, Vm, accelerator
from vm.steps import Step
from vm.verdict import Check

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "vm"
PAYLOAD_MB = 64
CPUS = 2
MEMORY_MB = {"host": 1024, "switches": 512}
# Tests that a guest runs with the package's Python.
GUEST_TESTS = ("rigs/rig.py", "rigs/packets.py", "tests/bpf/interrupted.py")
# Compiling the programs takes 2 s on a real processor. An emulated one exceeds the time-outs
# of systemd and its watchdog. The guest's clock also keeps running while qemu is stopped.
SLOW_UNIT = "[Service]\nTimeoutStartSec=1h\nTimeoutStopSec=10min\nWatchdogSec=1h\n"


def make_payload(folder: Path, deb: Path, compiled: Path | None) -> Path:
    """Make a disk with the package, the fabric file and all else that the machines need.

    compiled: programs that the package does not bring.
    """
    with tempfile.TemporaryDirectory(dir=folder) as made:
        script = Path(__file__).with_name("provision.py")
        for file in (machines.FABRIC, machines.MACHINES, script, deb):
            shutil.copy(file, made)
        Path(made, "slow.conf").write_text(SLOW_UNIT)
        secret = base64.b64encode(secrets.token_bytes(32)).decode()
        Path(made, provision.SECRET).write_text(f"{secret}\n")
        for name in GUEST_TESTS:
            Path(made, name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, Path(made, name))
        if compiled is not None:
            shutil.copytree(compiled, Path(made, planenics.COMPILED))
        disk = folder / "payload.img"
        disk.unlink(missing_ok=True)
        subprocess.run(
            ["mke2fs", "-q", "-t", "ext4", "-d", made, str(disk), f"{PAYLOAD_MB}M"], check=True
        )
    return disk


def _compiled() -> Path:
    """Compile what hosts with native XDP need, which the package does not bring."""
    folder = BUILD / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    kept_programs.compile_all(folder, list(kept_programs.kept()))
    return folder


def explain(check: Check, folder: Path) -> None:
    """Write the state of the machines to NAME.txt while they are still running."""
    for vm in check.vms.values():
        with contextlib.suppress(MachineFailed, AssertionError, OSError, ConnectionError):
            (folder / f"{vm.name}.txt").write_text(measure.state(vm))


@contextlib.contextmanager
def running(
    fleet: Sequence[Machine], image: Image, deb: Path, options: argparse.Namespace
) -> Iterator[Check]:
    """Yield a check with all machines of the fabric, not yet started; stop them at the end."""
    # The path of a unix socket has at most 107 characters, so the folder is in /tmp.
    cables = {nic.cable for machine in fleet for nic in machine.nics}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mrcd-vm-")))
        nic, queues, space = options.nic, options.queues, None
        if options.plane_nics or queues > 1:
            space = stack.enter_context(taps.made(cables, several=queues > 1))
        payload = make_payload(folder, deb, _compiled() if options.plane_nics else None)
        vms: dict[str, Vm] = {}
        cabled: set[int] = set()
        for machine in fleet:
            near = frozenset(nic.cable for nic in machine.nics) - cabled
            memory_mb = MEMORY_MB[machine.role]
            vms[machine.name] = Vm(
                *(machine, image, payload, folder, memory_mb, near, nic, queues, space),
                cpus=max(CPUS, queues),
            )
            cabled |= near
        check = Check(vms, CLOCK.deadline(options.minutes * 60))

        def ended(*_: object) -> None:
            """Kill the machines, so that no thread keeps waiting for one of them."""
            for vm in vms.values():
                vm.kill()
            sys.exit(128 + signal.SIGTERM)

        signal.signal(signal.SIGTERM, ended)
        try:
            yield check
        finally:
            try:
                if not all(verdict.good for verdict in check.verdicts):
                    explain(check, image.folder)
            finally:
                for vm in vms.values():
                    vm.stop()
                    if vm.console.exists():
                        shutil.copy(vm.console, image.folder / vm.console.name)


def chosen(todo: Sequence[Step], only: Collection[str]) -> tuple[Step, ...]:
    """The steps that `only` names, and the essential ones before the last of them."""
    if unknown := set(only) - {name for name, _what, _essential in todo}:
        sys.exit(f"check-vm: no step is called {', '.join(sorted(unknown))}")
    last = max(at for at, step in enumerate(todo) if step[0] in only)
    return tuple(step for step in todo[: last + 1] if step[2] or step[0] in only)


def newest_package() -> Path:
    """Return the package that `make deb` built last."""
    found = sorted((ROOT / "dist").glob("mrcd_*_amd64.deb"), key=lambda file: file.stat().st_mtime)
    if not found:
        sys.exit("check-vm: no dist/mrcd_*_amd64.deb: run `make deb` first")
    return found[-1]


def named(options: argparse.Namespace) -> str:
    """Return the name of a check, for its result."""
    if options.plane_nics:
        queues = f"-{options.queues}" if options.queues > 1 else ""
        return f"nics-{options.nic}{queues}"
    network: str | None = options.network
    return "readme" if options.readme else network or "result"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", choices=["bookworm", "trixie"], default="bookworm")
    parser.add_argument("--minutes", type=float, default=120, help="time limit of the whole check")
    parser.add_argument(
        "--readme", action="store_true", help="type the commands of docs/quickstart.md"
    )
    parser.add_argument(
        "--network", choices=plain.NETWORKS, help="two hosts without a fabric, on this network"
    )
    parser.add_argument(
        "--plane-nics", action="store_true", help="two hosts with two NICs of the model --nic"
    )
    parser.add_argument(
        "--only", action="append", metavar="STEP", help="run only STEP and the essential steps"
    )
    parser.add_argument(
        "--nic", choices=NICS, default=NICS[0], help="the hosts' NICs; default: %(default)s"
    )
    parser.add_argument(
        "--queues", type=int, default=1, help="queues of these NICs, over taps; default: 1"
    )
    parser.add_argument("--record", action="store_true", help="keep the verdicts in vm/results")
    parser.add_argument("--deb", type=Path, help="the package; default: the newest in dist/")
    return parser.parse_args(given)


def main() -> int:
    """Run all steps; return 1 if one of them failed."""
    options = arguments()
    if os.geteuid() != 0:
        sys.exit("check-vm: needs root to make a disk with a root file system: run it with sudo")
    # Two hosts on any network have what the package depends on, and neither compiler nor headers.
    kind = "bare" if options.network or options.plane_nics else "full"
    image = Image(BUILD / (options.release if kind == "full" else f"{options.release}-{kind}"))
    make = [str(ROOT / "vm" / "image.sh"), str(image.folder), options.release, kind]
    subprocess.run(make, check=True)
    deb = options.deb or newest_package()
    if options.readme:
        todo, fleet = readme.STEPS, readme.fleet(readme.QUICKSTART.read_text())
    elif options.plane_nics:
        todo, fleet = planenics.STEPS, planenics.fleet()
    elif options.network:
        todo, fleet = plain.steps(options.network), plain.fleet(options.network)
    else:
        todo, fleet = steps.STEPS, machines.of(description.load(machines.FABRIC))
    if options.only:
        todo = chosen(todo, options.only)
    with running(fleet, image, deb, options) as check:
        for name, what, essential in todo:
            if not check.step(name, functools.partial(what, check)) and essential:
                break
    good = all(verdict.good for verdict in check.verdicts) and len(check.verdicts) == len(todo)
    report = {
        "good": good,
        "package": deb.name,
        "machine": f"{accelerator()}, {max(CPUS, options.queues)} CPUs a guest on"
        f" {os.cpu_count()}, {platform.machine()}",
        "steps": [asdict(verdict) for verdict in check.verdicts],
    }
    name = named(options)
    result = image.folder / f"{name}.json"
    result.write_text(json.dumps(report, indent=1) + "\n")
    if options.record:
        results.record(*results.kept(name, options.release, report))
    shown = result.relative_to(ROOT)
    print(f"check-vm: {'passed' if good else 'FAILED'}; {shown} has the figures")
    return not good


if __name__ == "__main__":
    sys.exit(main())
