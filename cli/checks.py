# SPDX-License-Identifier: GPL-2.0-only
"""What ``mrcctl doctor`` looks for: each check is a pure function of gathered facts.

A check returns a Finding, or None where it does not apply. ``wrong`` keeps mrcd from working or
its packets from arriving; ``warn`` works, but not as well as it could. Either has the fix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "wrong", "unknown"]

OPTIONS = (
    "BPF_SYSCALL",
    "BPF_JIT",
    "NET_CLS_ACT",
    "NET_CLS_BPF",
    "NET_SCH_INGRESS",
    "VETH",
    "IPV6",
)
SWITCH_OPTIONS = ("IPV6", "IPV6_SEG6_LWTUNNEL")
XDP_LINKS = (5, 9)
TCX = (6, 6)
NEXT_CSID = (6, 1)
OUR_XDP = "mrc_receive"
RING_SHARE = 0.5  # of the free memory that the rings may take


@dataclass(frozen=True, slots=True)
class Nic:
    """A plane's NIC; `present` is False where there is no such interface."""

    name: str
    present: bool = True
    mtu: int = 0
    up: bool = True
    carrier: bool = True
    xdp: str | None = None  # name of the program on it
    rp_filter: int = 0
    disable_ipv6: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found on this machine."""

    uid: int
    lacking: tuple[str, ...]  # capabilities that mrcd needs and this process has not
    kernel: str
    distribution: str  # ID of os-release
    headers: bool
    bcc: bool
    filesystems: frozenset[str]  # that the kernel knows
    bpffs: bool  # one is mounted where programs are pinned, or above
    pins: str  # that folder
    jit: int | None  # net.core.bpf_jit_enable
    options: Mapping[str, str]  # of the kernel, without CONFIG_; empty: unknown
    nohz_full: str
    config: str
    problems: tuple[str, ...]  # of the configuration
    mtu: int  # that the fabric wants
    ipv4: bool  # the planes speak IPv4
    nics: tuple[Nic, ...]
    rp_filter: Mapping[str, int]  # all, mrc0 where it is there
    rings: int  # bytes that the rings take
    free: int  # bytes of memory that are free
    group: bool  # mrcd exists
    daemon: str | None  # state of mrcd, None: it does not answer
    sysctls: Mapping[str, int]  # of a switch: forwarding, seg6_enabled, rp_filter by interface


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and the commands that mend it."""

    check: str
    state: State
    found: str
    fix: tuple[str, ...] = ()


Check = Callable[[Facts], Finding | None]


def _ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def version(kernel: str) -> tuple[int, int]:
    """The first two numbers of a kernel's release."""
    found = re.match(r"(\d+)\.(\d+)", kernel)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def privileges(facts: Facts) -> Finding:
    """Root or its capabilities, and what containers take away from it."""
    missing = facts.lacking
    if not missing:
        return _ok("privileges", f"uid {facts.uid} with all capabilities that mrcd needs")
    if facts.uid != 0:
        found = (
            f"uid {facts.uid} has no {', '.join(missing)}: mrcd needs them or root, and some "
            "checks see less"
        )
        return Finding("privileges", "warn", found, ("sudo mrcctl doctor",))
    flags = " ".join(f"--cap-add {name.removeprefix('CAP_')}" for name in missing)
    return Finding(
        "privileges",
        "wrong",
        f"root without {', '.join(missing)}: a container or unit takes them away",
        (f"run the container with {flags}, or the unit without CapabilityBoundingSet=",),
    )


def kernel(facts: Facts) -> Finding:
    """How new the kernel is."""
    have = version(facts.kernel)
    if have < XDP_LINKS:
        found = f"Linux {facts.kernel} has no XDP links; 5.9 is the oldest that can, 6.6 better"
        return Finding("kernel", "wrong", found, ("boot a kernel from 6.6 on",))
    if have < TCX:
        return _ok("kernel", f"Linux {facts.kernel}: programs attach by clsact, from 6.6 on by tcx")
    return _ok("kernel", f"Linux {facts.kernel}")


def features(facts: Facts) -> Finding:
    """What the kernel was built with."""
    return _options(facts, OPTIONS)


def _options(facts: Facts, wanted: tuple[str, ...]) -> Finding:
    if not facts.options:
        found = "no /proc/config.gz and no /boot/config-*: not known"
        return Finding("kernel features", "unknown", found)
    missing = [f"CONFIG_{name}" for name in wanted if facts.options.get(name) not in ("y", "m")]
    if missing:
        return Finding(
            "kernel features",
            "wrong",
            f"the kernel was built without {', '.join(missing)}",
            ("boot a distribution's kernel, or build one with " + " ".join(missing),),
        )
    return _ok("kernel features", "all that mrcd uses are built in or modules")


def headers(facts: Facts) -> Finding:
    """What bcc compiles against."""
    if facts.headers:
        return _ok("kernel headers", f"/lib/modules/{facts.kernel}/build")
    install = {
        "debian": f"apt-get install linux-headers-{facts.kernel}",
        "ubuntu": f"apt-get install linux-headers-{facts.kernel}",
        "fedora": f"dnf install kernel-devel-{facts.kernel}",
        "rhel": f"dnf install kernel-devel-{facts.kernel}",
        "centos": f"dnf install kernel-devel-{facts.kernel}",
        "arch": "pacman -S linux-headers",
    }.get(facts.distribution, f"install the headers of kernel {facts.kernel}")
    return Finding(
        "kernel headers",
        "wrong",
        f"none in /lib/modules/{facts.kernel}/build: the programs cannot be compiled",
        (install, "make setup   # in a checkout: borrows headers where there are none"),
    )


def compiler(facts: Facts) -> Finding:
    """bcc."""
    if facts.bcc:
        return _ok("bcc", "Python finds it")
    return Finding(
        "bcc",
        "wrong",
        "this Python has no module bcc (PyPI's package of that name is something else)",
        ("apt-get install python3-bpfcc",),
    )


def bpffs(facts: Facts) -> Finding:
    """Where programs are pinned."""
    if "bpf" not in facts.filesystems:
        found = "the kernel knows no bpf filesystem"
        return Finding("bpffs", "wrong", found, ("boot a kernel with CONFIG_BPF_SYSCALL",))
    if facts.bpffs:
        return _ok("bpffs", f"{facts.pins} lies in one")
    return Finding(
        "bpffs",
        "warn",
        f"none is mounted at {facts.pins} or above: mrcd mounts one there, which a unit with "
        "mounts of its own loses when it stops",
        ("mount -t bpf bpf /sys/fs/bpf",),
    )


def jit(facts: Facts) -> Finding:
    """Whether BPF programs are compiled."""
    if facts.jit is None:
        return Finding("BPF JIT", "unknown", "net.core.bpf_jit_enable cannot be read")
    if facts.jit == 0:
        found = "off: every packet is interpreted"
        return Finding("BPF JIT", "warn", found, ("sysctl -w net.core.bpf_jit_enable=1",))
    return _ok("BPF JIT", "on")


def membarrier(facts: Facts) -> Finding | None:
    """Waiting for running programs."""
    if not facts.nohz_full:
        return None
    return Finding(
        "nohz_full",
        "warn",
        f"CPUs {facts.nohz_full}: no global membarrier, so resetting a QP waits 20 ms",
        ("boot without nohz_full=, if that matters",),
    )


def configuration(facts: Facts) -> Finding:
    """mrcd.toml and the fabric file."""
    if not facts.problems:
        return _ok("configuration", f"{facts.config} is good")
    more = f" (and {len(facts.problems) - 1} more)" if len(facts.problems) > 1 else ""
    fix = (f"mrcctl config check {facts.config}",)
    return Finding("configuration", "wrong", facts.problems[0] + more, fix)


def interfaces(facts: Facts) -> Finding | None:
    """The planes' NICs are there and up."""
    if not facts.nics:
        return None
    absent = [nic.name for nic in facts.nics if not nic.present]
    if absent:
        look = f"ip link   # then name the planes' NICs in {facts.config}, [planes] interfaces"
        return Finding("plane NICs", "wrong", f"no interface {', '.join(absent)}", (look,))
    down = [nic.name for nic in facts.nics if not nic.up]
    if down:
        fix = tuple(f"ip link set {name} up" for name in down)
        return Finding("plane NICs", "wrong", f"{', '.join(down)} down", fix)
    dark = [nic.name for nic in facts.nics if not nic.carrier]
    if dark:
        found = f"{', '.join(dark)} without carrier"
        return Finding("plane NICs", "warn", found, ("check the cable and the switch's port",))
    return _ok("plane NICs", f"{len(facts.nics)} are up")


def mtu(facts: Facts) -> Finding | None:
    """The planes' MTU."""
    present = [nic for nic in facts.nics if nic.present]
    if not present:
        return None
    small = [nic for nic in present if nic.mtu < facts.mtu]
    if small:
        shown = ", ".join(f"{nic.name} has {nic.mtu}" for nic in small)
        fix = tuple(f"ip link set {nic.name} mtu {facts.mtu}" for nic in small)
        return Finding("MTU", "wrong", f"{shown}: less than the fabric's {facts.mtu}", fix)
    return _ok("MTU", f"at least the fabric's {facts.mtu} on every plane")


def ipv6(facts: Facts) -> Finding | None:
    """IPv6 on the planes."""
    off = [nic.name for nic in facts.nics if nic.present and nic.disable_ipv6]
    if off:
        fix = tuple(f"sysctl -w net.ipv6.conf.{name}.disable_ipv6=0" for name in off)
        found = f"off on {', '.join(off)}: gateways are asked for by IPv6"
        return Finding("IPv6", "wrong", found, fix)
    return _ok("IPv6", "on, on every plane") if facts.nics else None


def reverse_path(facts: Facts) -> Finding | None:
    """rp_filter where packets of peers arrive by IPv4. The larger of all and the own one counts."""
    everywhere = facts.rp_filter.get("all", 0)
    values = {name: value for name, value in facts.rp_filter.items() if name != "all"}
    if facts.ipv4:
        values |= {nic.name: nic.rp_filter for nic in facts.nics if nic.present}
    if not values:
        return None
    strict = [name for name, value in values.items() if max(everywhere, value) == 1]
    if strict:
        return Finding(
            "rp_filter",
            "warn",
            f"strict on {', '.join(strict)}: packets of a peer whose way back leads elsewhere "
            "vanish without a trace",
            tuple(f"sysctl -w net.ipv4.conf.{name}.rp_filter=2" for name in strict),
        )
    return _ok("rp_filter", "not strict where packets of peers arrive")


def foreign_xdp(facts: Facts) -> Finding | None:
    """Other programs where ours must be."""
    others = [(nic.name, nic.xdp) for nic in facts.nics if nic.xdp not in (None, OUR_XDP)]
    if others:
        shown = ", ".join(f"{program} on {name}" for name, program in others)
        fix = tuple(f"ip link set dev {name} xdp off" for name, _program in others)
        return Finding("XDP", "wrong", f"another program is attached: {shown}", fix)
    return _ok("XDP", "no other program on the planes") if facts.nics else None


def memory(facts: Facts) -> Finding | None:
    """Room for both rings."""
    if not facts.rings or facts.daemon is not None:  # else they are taken already
        return None
    needs, has = facts.rings >> 20, facts.free >> 20
    if facts.rings > RING_SHARE * facts.free:
        fix = (f"lower [transport] ring_slots or mpr in {facts.config}",)
        return Finding("memory", "wrong", f"the rings take {needs} MB of {has} MB free", fix)
    return _ok("memory", f"the rings take {needs} MB of {has} MB free")


def group(facts: Facts) -> Finding:
    """Who may use mrcctl without root."""
    if facts.group:
        return _ok("group mrcd", "its members may use mrcctl")
    found = "does not exist: only root may use mrcctl"
    return Finding("group mrcd", "warn", found, ("groupadd --system mrcd   # and restart mrcd",))


def daemon(facts: Facts) -> Finding:
    """mrcd itself."""
    if facts.daemon is None:
        return Finding("mrcd", "warn", "does not answer", ("systemctl start mrcd",))
    if facts.daemon == "degraded":
        return Finding("mrcd", "warn", "is degraded", ("mrcctl status   # says why",))
    return _ok("mrcd", f"answers: {facts.daemon}")


def switch_kernel(facts: Facts) -> Finding:
    """uN with NEXT-C-SID."""
    if version(facts.kernel) < NEXT_CSID:
        found = f"Linux {facts.kernel} makes a plain End of NEXT-C-SID, without an error"
        return Finding("kernel", "wrong", found, ("boot a kernel from 6.1 on",))
    return _ok("kernel", f"Linux {facts.kernel} knows NEXT-C-SID")


def switch_features(facts: Facts) -> Finding:
    """seg6local."""
    return _options(facts, SWITCH_OPTIONS)


def switch_sysctls(facts: Facts) -> Finding:
    """Forwarding and seg6, on every interface; and no rp_filter for the plain routes."""
    bad = []
    for name, value in sorted(facts.sysctls.items()):
        wanted = 0 if name.endswith(".rp_filter") else 1
        if value != wanted:
            bad.append(f"{name}={wanted}")
    if bad:
        shown = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
        fix = ("sysctl -w " + " ".join(bad),)
        return Finding("sysctls", "wrong", f"uSIDs are not forwarded everywhere: {shown}", fix)
    return _ok("sysctls", "forwarding and seg6 on everywhere, rp_filter off")


HOST: tuple[Check, ...] = (
    privileges,
    kernel,
    features,
    headers,
    compiler,
    bpffs,
    jit,
    membarrier,
    memory,
    configuration,
    interfaces,
    mtu,
    ipv6,
    reverse_path,
    foreign_xdp,
    group,
    daemon,
)
SWITCH: tuple[Check, ...] = (switch_kernel, switch_features, switch_sysctls)


def examine(facts: Facts, checks: tuple[Check, ...]) -> list[Finding]:
    """What the checks that apply have found."""
    return [finding for check in checks if (finding := check(facts)) is not None]
