# SPDX-License-Identifier: GPL-2.0-only
"""`make check-vm`: mrcd's package on virtual machines, from the first boot to its removal.

Two hosts with a NIC for each plane, and the switches of the fabric in a third machine. Every step
has a verdict and what it measured; all of it is printed and written to build/vm/result.json.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mrcd.fabric import description
from vm import machines, measure
from vm.machines import SWITCHES
from vm.measure import Figures
from vm.qemu import Image, MachineFailed, Vm, accelerator

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "vm"
PAYLOAD_MB = 64
MEMORY_MB = {"host": 1024, "switches": 512}
# Compiling the programs takes 2 s of a real processor. An emulated one has neither the time for
# systemd's defaults nor for a watchdog's.
SLOW_UNIT = "[Service]\nTimeoutStartSec=20min\nTimeoutStopSec=5min\nWatchdogSec=10min\n"


def patience() -> int:
    """By what times are stretched: on an emulated processor a command takes a minute, not one
    second, and has to be over while the traffic still runs.
    """
    return 1 if accelerator() == "kvm" else 6


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a step went. `reason` is empty when it went well."""

    step: str
    good: bool
    seconds: float
    figures: Figures
    reason: str


@dataclass(slots=True)
class Check:
    """The machines and what is known of them so far."""

    vms: dict[str, Vm]
    deadline: float
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def hosts(self) -> list[Vm]:
        return [vm for vm in self.vms.values() if vm.machine.role == "host"]

    @property
    def switches(self) -> Vm:
        return self.vms[SWITCHES]

    def left_s(self) -> float:
        """Time that the whole check has left; MachineFailed when there is none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise MachineFailed("the time of the whole check is over")
        return left

    def together(self, what: Callable[[Vm], object], vms: list[Vm]) -> None:
        """Do something on several machines at once."""
        with ThreadPoolExecutor(len(vms)) as pool:
            for done in [pool.submit(what, vm) for vm in vms]:
                done.result()

    def step(self, name: str, what: Callable[[], Figures]) -> bool:
        """Run one step, keep its verdict and tell of it."""
        began = time.monotonic()
        figures: Figures = {}
        reason = ""
        try:
            self.left_s()
            figures = what()
        except (MachineFailed, AssertionError, OSError, ValueError, KeyError) as error:
            reason = str(error) or type(error).__name__
        seconds = round(time.monotonic() - began, 1)
        verdict = Verdict(name, not reason, seconds, figures, reason)
        self.verdicts.append(verdict)
        print(line(verdict), flush=True)
        return verdict.good


def line(verdict: Verdict) -> str:
    """A verdict as a row of the table."""
    words = ", ".join(f"{key} {value}" for key, value in verdict.figures.items())
    outcome = "ok" if verdict.good else "FAILED"
    return f"{verdict.step:16} {outcome:7} {verdict.seconds:6.1f} s  {verdict.reason or words}"


# ---- steps


def boot(check: Check) -> Figures:
    """Start all machines."""
    for vm in check.vms.values():
        vm.start()
    check.together(lambda vm: vm.wait_for_boot(900), [*check.vms.values()])
    kernels = {vm.run("uname -r").out.strip() for vm in check.vms.values()}
    return {"kernel": " ".join(sorted(kernels)), "accelerator": accelerator()}


def provision(check: Check) -> Figures:
    """Install the package, name the NICs, build the switches."""

    def one(vm: Vm) -> None:
        vm.run("mkdir -p /mnt/payload && mount -o ro /dev/vdb /mnt/payload")
        vm.run(f"python3 /mnt/payload/provision.py {vm.name} /mnt/payload", 900)

    check.together(one, [*check.vms.values()])
    version = check.hosts[0].run("dpkg-query -W -f '${Version}' mrcd").out.strip()
    return {"package": version}


def fabric(check: Check) -> Figures:
    """The switches hold what the fabric file says."""
    plan = check.switches.run("mrcctl sid verify --lab vm", 300).out.strip()
    return {"verified": plan.splitlines()[-1]}


def start(check: Check) -> Figures:
    """`systemctl enable --now mrcd` with ten lines of configuration."""

    def one(vm: Vm) -> None:
        vm.run("mkdir -p /etc/systemd/system/mrcd.service.d")
        vm.run("cp /mnt/payload/slow.conf /etc/systemd/system/mrcd.service.d")
        vm.run("systemctl daemon-reload")
        done = vm.run("systemctl enable --now mrcd", 1300, check=False)
        if done.status:
            raise MachineFailed(f"{vm.name}: {done.err}\n{measure.journal(vm)[-1500:]}")

    check.together(one, check.hosts)
    for vm in check.hosts:
        measure.serve(vm)
    lines = check.hosts[0].run("grep -c . /etc/mrcd/mrcd.toml").out.strip()
    return {"configuration_lines": int(lines)}


def reach(check: Check) -> Figures:
    """The hosts reach each other through mrc0, and the daemons say that all is well."""
    one, other = check.hosts
    target = other.machine.address
    within = min(check.left_s(), 300)
    took = measure.wait_until(
        lambda: one.run(f"ping -c 1 -W 1 {target}", check=False).status == 0,
        within,
        f"no answer of {target} through mrc0",
    )
    measure.wait_until(
        lambda: all(measure.status(vm)["state"] == "ok" for vm in check.hosts),
        within,
        "mrcctl status does not become ok",
    )
    state = measure.status(one)
    rtt = measure.ping(one, target, count=50, interval_s=0.05)
    assert rtt["lost"] == 0, f"{rtt['lost']} of 50 pings lost"
    return {
        "first_answer_s": round(took, 1),
        "median_ms": rtt["median_ms"],
        "tc": state["datapath"]["tc"],
        "xdp": state["datapath"]["xdp"],
        "mtu": state["mrc0"]["mtu"],
    }


def throughput(check: Check) -> Figures:
    """One TCP connection over mrc0."""
    one, other = check.hosts
    flow = measure.end_flow(measure.begin_flow(one, other.machine.address, 10))
    assert flow.bytes > 0, "iperf3 moved nothing"
    return flow.figures()


def cut_cable(check: Check) -> Figures:
    """A plane's cable is pulled out of the receiver under load, and plugged in again."""
    cable = check.hosts[1].machine.nics[1].cable
    return _plane_dies(
        check,
        lambda: check.hosts[1].set_link(cable, up=False),
        lambda: check.hosts[1].set_link(cable, up=True),
    )


def silence_plane(check: Check) -> Figures:
    """A plane's switches drop everything under load, while links stay up."""
    fault = "mrcctl lab fault --name vm p0"
    return _plane_dies(
        check,
        lambda: check.switches.run(f"{fault} blackhole", 300),
        lambda: check.switches.run(f"{fault} clear", 300),
    )


def _plane_dies(check: Check, kill: Callable[[], object], heal: Callable[[], object]) -> Figures:
    one, other = check.hosts
    flow = measure.begin_flow(one, other.machine.address, 30 * patience())
    try:
        time.sleep(10)  # the flow is to be at work
        kill()
        result = measure.end_flow(flow)
    finally:
        heal()
    last = result.last_mbps(5)
    assert last > 0, "nothing moves any more"
    measure.wait_until(
        lambda: all(measure.status(vm)["state"] == "ok" for vm in check.hosts),
        60 * patience(),
        "the plane does not come back",
    )
    return result.figures() | {"last_5_s_mbps": last}


def restart(check: Check) -> Figures:
    """`systemctl restart mrcd` under load: no packet of an application is lost."""
    one, other = check.hosts
    flow = measure.begin_flow(one, other.machine.address, 60 * patience())
    pings = measure.begin_ping(one, other.machine.address, 250, 0.2 * patience())
    before = measure.status(one)["pid"]
    took = one.run("systemctl restart mrcd", 1300).seconds
    lost = measure.end_ping(pings)["lost"]
    result = measure.end_flow(flow)
    assert measure.status(one)["pid"] != before, "it is the same process"
    figures = result.figures() | {"restart_s": round(took, 1), "pings_lost": lost}
    assert lost == 0, f"not hitless: {figures}"
    return figures


def journal(check: Check) -> Figures:
    """systemd and the journal have nothing to complain of."""
    lines = 0
    for vm in check.hosts:
        shown = vm.run("systemctl show mrcd -p ActiveState -p NRestarts -p UnitFileState").out
        facts = dict(entry.split("=", 1) for entry in shown.split())
        assert facts["ActiveState"] == "active", f"{vm.name}: {shown}"
        assert facts["UnitFileState"] == "enabled", f"{vm.name}: {shown}"
        assert facts["NRestarts"] == "0", (
            f"{vm.name}: mrcd was restarted {facts['NRestarts']} times"
        )
        entries = measure.log_events(vm)
        bad = [entry for entry in entries if entry.get("level") in ("error", "critical")]
        assert not bad, f"{vm.name}: {bad[0]}"
        lines += len(entries)
    return {"log_events": lines}


def other_programs(check: Check) -> Figures:
    """The programs of the other ways to cross a fabric pass this kernel's verifier too."""
    walked: dict[str, int] = {}

    def one(vm: Vm) -> None:
        own = range(1 + check.hosts.index(vm), 4, len(check.hosts))  # 0 is what mrcd runs with
        for encap in own:
            for report in measure.load_programs(vm, encap, 1200):
                name = f"{report['name']} (encap {encap})"
                walked[name] = measure.instructions_walked(report["verifier"])

    check.together(one, check.hosts)
    longest = max(walked, key=walked.__getitem__)
    return {"programs": len(walked), "longest_walk": f"{walked[longest]} by {longest}"}


def remove(check: Check) -> Figures:
    """Removing the package leaves no interface, program or pin behind."""
    vm = check.hosts[0]
    vm.run("dpkg --remove mrcd", 300)
    left = vm.run(
        "ip -o link show mrc0 2>/dev/null; ls -A /sys/fs/bpf/mrcd 2>/dev/null;"
        " ip -d link show plane0 | grep -o 'prog/xdp.*'",
        check=False,
    ).out.strip()
    assert not left, f"left behind: {left}"
    return {}


STEPS = (
    ("boot", boot, True),
    ("provision", provision, True),
    ("fabric", fabric, False),
    ("start", start, True),
    ("reach", reach, True),
    ("throughput", throughput, False),
    ("cut a cable", cut_cable, False),
    ("silence a plane", silence_plane, False),
    ("restart", restart, False),
    ("journal", journal, False),
    ("other programs", other_programs, False),
    ("remove", remove, False),
)
"""Name, what is done, and whether the rest makes no sense without it."""


# ---- the whole


def make_payload(folder: Path, deb: Path) -> Path:
    """A disk with all that machines need to know."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        script = Path(__file__).with_name("provision.py")
        for file in (machines.FABRIC, machines.MACHINES, script, deb):
            shutil.copy(file, made)
        Path(made, "slow.conf").write_text(SLOW_UNIT)
        disk = folder / "payload.img"
        disk.unlink(missing_ok=True)
        subprocess.run(
            ["mke2fs", "-q", "-t", "ext4", "-d", made, str(disk), f"{PAYLOAD_MB}M"], check=True
        )
    return disk


def explain(check: Check) -> None:
    """Write down what the machines know, while they are still there: build/vm/NAME.txt."""
    for vm in check.vms.values():
        with contextlib.suppress(MachineFailed, AssertionError, OSError, ConnectionError):
            (BUILD / f"{vm.name}.txt").write_text(measure.state(vm))


@contextlib.contextmanager
def running(image: Image, deb: Path, minutes: float) -> Iterator[Check]:
    """All machines of the fabric, not started yet; ended in any case."""
    fabric_file = description.load(machines.FABRIC)
    BUILD.mkdir(parents=True, exist_ok=True)
    # Names of sockets may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="mrcd-vm-") as name:
        folder = Path(name)
        payload = make_payload(folder, deb)
        vms = {
            machine.name: Vm(machine, image, payload, folder, MEMORY_MB[machine.role])
            for machine in machines.of(fabric_file)
        }
        check = Check(vms, time.monotonic() + minutes * 60)
        try:
            yield check
        finally:
            if not all(verdict.good for verdict in check.verdicts):
                explain(check)
            for vm in vms.values():
                vm.stop()
                if vm.console.exists():
                    shutil.copy(vm.console, BUILD / vm.console.name)


def newest_package() -> Path:
    """The package that `make deb` has built."""
    found = sorted((ROOT / "dist").glob("mrcd_*.deb"), key=lambda file: file.stat().st_mtime)
    if not found:
        sys.exit("check-vm: no dist/mrcd_*.deb: run `make deb`")
    return found[-1]


def main() -> int:
    """Run all steps; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", choices=["stable", "backports"], default="stable")
    parser.add_argument("--minutes", type=float, default=60, help="at most so long")
    parser.add_argument("--deb", type=Path, help="default: the newest in dist/")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("check-vm: needs root: it makes a disk with a root file system")
    image = Image(BUILD / options.kernel)
    subprocess.run([str(ROOT / "vm" / "image.sh"), str(image.folder), options.kernel], check=True)
    deb = options.deb or newest_package()
    with running(image, deb, options.minutes) as check:
        for name, what, essential in STEPS:
            if not check.step(name, functools.partial(what, check)) and essential:
                break
    good = all(verdict.good for verdict in check.verdicts) and len(check.verdicts) == len(STEPS)
    report = {
        "good": good,
        "package": deb.name,
        "machine": f"{accelerator()}, 2 CPUs a guest on {os.cpu_count()}, {platform.machine()}",
        "steps": [asdict(verdict) for verdict in check.verdicts],
    }
    (BUILD / "result.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"check-vm: {'passed' if good else 'FAILED'}; build/vm/result.json has the figures")
    return not good


if __name__ == "__main__":
    sys.exit(main())
