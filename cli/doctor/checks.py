# SPDX-License-Identifier: GPL-2.0-only
"""The checks of ``mrcctl doctor``: each is a pure function of the gathered facts.

A check returns a Finding, or None where it does not apply. ``wrong`` means that mrcd cannot work
or that its packets do not arrive. ``warn`` means that it works, but not as well as it could. Both
come with a fix. Nothing is wrong that works: what a check asks for follows from the configuration,
and what only a start needs is no more than ``warn`` while mrcd runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from cli.doctor.firewall import opening
from mrcd.linux.kernel import FORWARDING, version
from mrcd.linux.neighbortable import Table

State = Literal["ok", "warn", "wrong", "unknown"]

OPTIONS = ("BPF_SYSCALL", "BPF_JIT", "NET_CLS_ACT", "VETH", "IPV6")
CLSACT_OPTIONS = ("NET_CLS_BPF", "NET_SCH_INGRESS")  # where programs attach by clsact
CELL_OPTIONS = ("MACVLAN",)  # where mrc0 is a macvlan
PORT_OPTIONS = ("VXLAN",)  # where a device owns the port of cells in UDP
CUTS = {"ipv6": "tx-ipxip6-segmentation", "udp": "tx-udp_tnl-segmentation"}
"""The offload that cuts cells into packets, by their envelope."""
SWITCH_OPTIONS = ("IPV6", "IPV6_SEG6_LWTUNNEL")
XDP_LINKS = (5, 9)
TCX = (6, 6)
NEXT_CSID = (6, 1)
OUR_XDP = "mrc_receive"
REASONS = 3  # of a degraded state that are shown
CELLS = {41: "IPv6", 4: "IPv4"}
"""Next headers of cells of IP in IPv6, whose source address differs from cell to cell."""
BY_FLOW = ("cake", "choke", "drr", "fq_codel", "fq_pie", "hhf", "sfb", "sfq")
"""Queueing disciplines that sort packets by flow, or keep some of them waiting."""
ENTRIES_OF_OTHERS = 256  # in a table of neighbours: containers, virtual machines, other hosts
ROOMY = 16384  # entries of neighbours, as the package sets them where mrcd is a service
RING_SHARE = 0.5  # the largest part of the free memory that the rings should take


@dataclass(frozen=True, slots=True)
class Nic:
    """A plane's NIC; `present` is False if the interface does not exist."""

    name: str
    present: bool = True
    mtu: int = 0
    up: bool = True
    carrier: bool = True
    xdp: str | None = None  # name of the attached XDP program
    generic: bool = False  # whether that runs in generic mode
    rp_filter: int = 0
    disable_ipv6: bool = False
    cuts: bool = True  # cells into packets (CUTS)
    merges: bool = True  # packets into cells (rx-gro)
    queues: int = 1  # receive queues
    by_source: bool | None = None  # whether the source chooses among them; None if unknown
    ruled: frozenset[int] = frozenset()  # IPv6 next headers that a rule puts into one of them
    qdiscs: frozenset[str] = frozenset()  # kinds of queueing disciplines, at its root and below


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about this machine that the checks judge."""

    uid: int
    lacking: tuple[str, ...]  # capabilities that mrcd needs and this process lacks
    kernel: str
    distribution: str  # ID of os-release
    headers: bool
    bcc: bool
    brought: bool  # whether a package has brought compiled programs
    filesystems: frozenset[str]  # types that the kernel supports
    bpffs: bool  # whether `pins` lies in a mounted bpffs
    pins: str  # the folder where programs are pinned
    jit: int | None  # net.core.bpf_jit_enable
    options: Mapping[str, str]  # the kernel's build options without CONFIG_; empty if unknown
    nohz_full: str
    config: str
    problems: tuple[str, ...]  # errors in the configuration
    mtu: int  # the fabric's MTU; 0 if unknown
    ipv4: bool  # whether the underlay is IPv4
    framing: str  # of [transport]; "mrc" where the routing knows no other
    nics: tuple[Nic, ...]
    native: bool  # whether planes receive at XDP
    rp_filter: Mapping[str, int]  # of "all", and of mrc0 if it exists
    rings: int  # bytes of memory that both rings need
    free: int  # bytes of memory available
    group: bool  # whether the group mrcd exists
    daemon: str | None  # state of mrcd; None if it does not answer
    reasons: tuple[str, ...]  # why it is degraded
    sysctls: Mapping[str, int]  # a switch's forwarding, seg6_enabled and rp_filter by interface
    missing: tuple[str, ...] = ()  # files of the configuration that do not exist
    examples: str = ""  # the folder with examples of both files; empty if there is none
    unit: bool = True  # whether systemd has mrcd.service
    packaged: bool | None = None  # whether apt has the kernel's headers; None: unknown
    clsact: bool = False  # whether the configuration asks for clsact
    cached: bool = False  # whether an earlier start has kept compiled programs
    kept: bool = False  # whether a data path is pinned, with its rings
    unreadable: tuple[str, ...] = ()  # files of the configuration that this user may not read
    keys: Mapping[str, str] = field(default_factory=dict)  # key files, and the users they belong to
    service_user: str | None = None  # that mrcd.service runs as; None without that unit or user
    envelope: str = "ipv6"  # of cells: a key of CUTS
    udp_ports: tuple[int, ...] = ()  # that a network between hosts must pass; none in a fabric
    control_port: int = 0  # the hand-shake's, the only one that packets reach through netfilter
    closed: tuple[str, ...] | None = None  # chains of nftables that drop it; None: unknown
    hello_port: int = 0  # by which hosts find each other; 0: they do not
    hushed: tuple[str, ...] | None = None  # chains of nftables that drop it; None: unknown
    mrc0: str = "mrc0"
    routed: tuple[str, ...] = ()  # prefixes to which this host forwards what peers send
    barred: tuple[str, ...] = ()  # chains of nftables that drop what is forwarded from mrc0
    forwarding: Mapping[int, bool] = field(default_factory=dict)  # by IP version
    neighbors: tuple[tuple[Table, int], ...] = ()  # the kernel's tables, and what mrcd needs there


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, and the commands that fix it."""

    check: str
    state: State
    found: str
    fix: tuple[str, ...] = ()


Check = Callable[[Facts], Finding | None]


def _ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def _at_start(facts: Facts, finding: Finding) -> Finding:
    """Return a finding about what only a start of mrcd needs: while it runs, nothing is wrong."""
    if facts.daemon is None or finding.state != "wrong":
        return finding
    found = f"{finding.found}; the mrcd that runs does without, the next start may not"
    return replace(finding, state="warn", found=found)


def privileges(facts: Facts) -> Finding:
    """Check for root or its capabilities, which a container may have removed."""
    missing = facts.lacking
    if not missing:
        return _ok("privileges", f"uid {facts.uid} with all capabilities that mrcd needs")
    if facts.uid != 0:
        found = (
            f"uid {facts.uid} lacks {', '.join(missing)}: mrcd needs them or root, and some "
            "checks see less without them"
        )
        return Finding("privileges", "warn", found, ("sudo mrcctl doctor",))
    flags = " ".join(f"--cap-add {name.removeprefix('CAP_')}" for name in missing)
    finding = Finding(
        "privileges",
        "wrong",
        f"root without {', '.join(missing)}: a container or unit removes them",
        (f"run the container with {flags}, or the unit without CapabilityBoundingSet=",),
    )
    return _at_start(facts, finding)


def kernel(facts: Facts) -> Finding:
    """Check that the kernel is new enough for a host."""
    have = version(facts.kernel)
    if have < XDP_LINKS:
        found = f"Linux {facts.kernel} has no XDP links; mrcd needs 5.9, and 6.6 is better"
        return Finding("kernel", "wrong", found, ("boot kernel 6.6 or newer",))
    if have < TCX:
        return _ok("kernel", f"Linux {facts.kernel}: programs attach by clsact; 6.6 has tcx")
    return _ok("kernel", f"Linux {facts.kernel}")


def features(facts: Facts) -> Finding:
    """Check that the kernel was built with the options that mrcd needs."""
    wanted: tuple[str, ...] = OPTIONS
    if facts.clsact or version(facts.kernel) < TCX:
        wanted += CLSACT_OPTIONS
    if facts.framing != "mrc":
        wanted += CELL_OPTIONS
        if facts.envelope == "udp":
            wanted += PORT_OPTIONS
    return _at_start(facts, _options(facts, wanted))


def _options(facts: Facts, wanted: tuple[str, ...]) -> Finding:
    if not facts.options:
        found = "unknown: there is neither /proc/config.gz nor /boot/config-*"
        return Finding("kernel features", "unknown", found)
    missing = [f"CONFIG_{name}" for name in wanted if facts.options.get(name) not in ("y", "m")]
    if missing:
        return Finding(
            "kernel features",
            "wrong",
            f"the kernel was built without {', '.join(missing)}",
            ("boot a distribution's kernel, or build one with " + " ".join(missing),),
        )
    return _ok("kernel features", "all that mrcd uses are built in or available as modules")


_EXAMPLES = ("mrcd.toml", "fabric.toml")
_UNLESS = "; not needed for planes of MTU 1500 or 9000, whose programs the package brings"
_CACHED = "; not needed for a configuration that mrcd was started with before"


def headers(facts: Facts) -> Finding:
    """Check for the kernel headers that bcc compiles against."""
    if facts.headers:
        return _ok("kernel headers", f"/lib/modules/{facts.kernel}/build")
    state, unless = _uncompiled(facts)
    make = "make setup   # in a checkout: uses another kernel's headers if there are none"
    found = f"none in /lib/modules/{facts.kernel}/build: the BPF programs cannot be compiled"
    if facts.packaged is False:
        return Finding(
            "kernel headers",
            state,
            f"{found}, and apt knows no package linux-headers-{facts.kernel}{unless}",
            ("apt-get update   # if its lists are old", make, "boot a kernel of the distribution"),
        )
    install = {
        "debian": f"apt-get install linux-headers-{facts.kernel}",
        "ubuntu": f"apt-get install linux-headers-{facts.kernel}",
        "fedora": f"dnf install kernel-devel-{facts.kernel}",
        "rhel": f"dnf install kernel-devel-{facts.kernel}",
        "centos": f"dnf install kernel-devel-{facts.kernel}",
        "arch": "pacman -S linux-headers",
    }.get(facts.distribution, f"install the headers of kernel {facts.kernel}")
    return Finding("kernel headers", state, found + unless, (install, make))


def _uncompiled(facts: Facts) -> tuple[State, str]:
    """Return how bad it is that nothing can be compiled, and what works nevertheless."""
    if facts.brought:
        return "warn", _UNLESS
    if facts.cached or facts.daemon is not None:
        return "warn", _CACHED
    return "wrong", ""


def compiler(facts: Facts) -> Finding:
    """Check that Python finds bcc."""
    if facts.bcc:
        return _ok("bcc", "Python finds it")
    state, unless = _uncompiled(facts)
    found = "this Python has no module bcc (PyPI's package of that name is something else)"
    return Finding("bcc", state, found + unless, ("apt-get install python3-bpfcc",))


def bpffs(facts: Facts) -> Finding:
    """Check for a bpffs where programs are pinned."""
    if "bpf" not in facts.filesystems:
        found = "the kernel does not support the bpf filesystem"
        fix = ("boot a kernel with CONFIG_BPF_SYSCALL",)
        return _at_start(facts, Finding("bpffs", "wrong", found, fix))
    if facts.bpffs:
        return _ok("bpffs", f"{facts.pins} is in one")
    return Finding(
        "bpffs",
        "warn",
        f"none is mounted at {facts.pins} or above: mrcd mounts one there, but a unit with a "
        "private mount namespace loses it when it stops",
        ("mount -t bpf bpf /sys/fs/bpf",),
    )


def jit(facts: Facts) -> Finding:
    """Check that the kernel compiles BPF programs."""
    if facts.jit is None:
        return Finding("BPF JIT", "unknown", "net.core.bpf_jit_enable cannot be read")
    if facts.jit == 0:
        found = "off: every packet is interpreted"
        return Finding("BPF JIT", "warn", found, ("sysctl -w net.core.bpf_jit_enable=1",))
    return _ok("BPF JIT", "on")


def membarrier(facts: Facts) -> Finding | None:
    """Check for nohz_full CPUs, which rule out a global membarrier.

    Without it mrcd cannot tell when running BPF programs have ended, and waits a fixed time.
    """
    if not facts.nohz_full:
        return None
    return Finding(
        "nohz_full",
        "warn",
        f"CPUs {facts.nohz_full}: no global membarrier, so resetting a QP waits 20 ms",
        ("boot without nohz_full= if that matters",),
    )


def configuration(facts: Facts) -> Finding:
    """Check mrcd.toml and the fabric file."""
    if facts.unreadable:
        found = f"uid {facts.uid} may not read {', '.join(facts.unreadable)}"
        return Finding("configuration", "unknown", found, ("sudo mrcctl doctor",))
    if not facts.problems:
        return _ok("configuration", f"{facts.config} is valid")
    more = f" (and {len(facts.problems) - 1} more)" if len(facts.problems) > 1 else ""
    fix = _examples(facts) or (f"mrcctl config check {facts.config}",)
    return Finding("configuration", "wrong", facts.problems[0] + more, fix)


def _examples(facts: Facts) -> tuple[str, ...]:
    """Return the commands that make missing files out of the examples; none without those."""
    if not facts.missing or not facts.examples:
        return ()
    folders = dict.fromkeys(str(Path(file).parent) for file in facts.missing)
    copies = [
        f"cp {facts.examples}/{_EXAMPLES[file != facts.config]} {file}" for file in facts.missing
    ]
    edit = f"mrcctl config check {facts.config}   # after editing what was copied"
    return (*(f"mkdir -p {folder}" for folder in folders), *copies, edit)


def keys(facts: Facts) -> Finding | None:
    """Check that the service can read its key files, since it has no capability to read others'."""
    if not facts.keys or facts.service_user is None or facts.daemon is not None:
        return None
    foreign = {file: owner for file, owner in facts.keys.items() if owner != facts.service_user}
    if foreign:
        shown = ", ".join(f"{file} belongs to user {owner}" for file, owner in foreign.items())
        found = f"{shown}: mrcd.service, which runs as user {facts.service_user}, cannot read it"
        fix = tuple(f"chown {facts.service_user} {file}" for file in foreign)
        return Finding("key files", "wrong", found, fix)
    return _ok("key files", f"belong to user {facts.service_user}, as mrcd.service needs")


def interfaces(facts: Facts) -> Finding | None:
    """Check that the planes' NICs exist and are up."""
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
        return Finding("plane NICs", "warn", found, ("check the cable and the switch port",))
    return _ok("plane NICs", f"{len(facts.nics)} are up")


def mtu(facts: Facts) -> Finding | None:
    """Check the planes' MTU."""
    present = [nic for nic in facts.nics if nic.present]
    if not present or not facts.mtu:  # without a fabric, that of the NICs is taken
        return None
    small = [nic for nic in present if nic.mtu < facts.mtu]
    if small:
        shown = ", ".join(f"{nic.name} has {nic.mtu}" for nic in small)
        fix = tuple(f"ip link set {nic.name} mtu {facts.mtu}" for nic in small)
        return Finding("MTU", "wrong", f"{shown}: less than the fabric's {facts.mtu}", fix)
    return _ok("MTU", f"at least the fabric's {facts.mtu} on every plane")


def ipv6(facts: Facts) -> Finding | None:
    """Check that IPv6 is on on the planes, unless they are IPv4."""
    off = [nic.name for nic in facts.nics if nic.present and nic.disable_ipv6]
    if off and facts.ipv4:
        return _ok("IPv6", f"off on {', '.join(off)}, and not needed: the planes are IPv4")
    if off:
        fix = tuple(f"sysctl -w net.ipv6.conf.{name}.disable_ipv6=0" for name in off)
        found = f"off on {', '.join(off)}, and the addresses of the planes are IPv6"
        return Finding("IPv6", "wrong", found, fix)
    return _ok("IPv6", "on on every plane") if facts.nics else None


def reverse_path(facts: Facts) -> Finding | None:
    """Check rp_filter where peers' packets arrive by IPv4.

    The kernel uses the larger of the value for "all" and the interface's own.
    """
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
            f"strict on {', '.join(strict)}: the kernel silently drops packets of a peer whose "
            "return route uses another interface",
            tuple(f"sysctl -w net.ipv4.conf.{name}.rp_filter=2" for name in strict),
        )
    return _ok("rp_filter", "not strict where peers' packets arrive")


def foreign_xdp(facts: Facts) -> Finding | None:
    """Check for other XDP programs on the planes: in the place of ours, or in generic mode."""
    others = [nic for nic in facts.nics if nic.xdp not in (None, OUR_XDP)]
    shown = ", ".join(f"{nic.xdp} on {nic.name}" for nic in others)
    fix = tuple(f"ip link set dev {nic.name} xdp off" for nic in others)
    if others and facts.native:
        return Finding("XDP", "wrong", f"another program is attached: {shown}", fix)
    if any(nic.generic for nic in others):
        found = f"in generic mode, which switches GRO off and copies large packets: {shown}"
        return Finding("XDP", "warn", found, fix)
    return _ok("XDP", "no other program in the way on the planes") if facts.nics else None


def _lacking(facts: Facts, lacks: Callable[[Nic], bool]) -> str:
    """Return the plane NICs with a shortcoming that matters to cells."""
    if facts.framing == "mrc":
        return ""
    return ", ".join(nic.name for nic in facts.nics if nic.present and lacks(nic))


def cutting(facts: Facts) -> Finding | None:
    """Check that the planes' NICs cut cells into packets."""
    if not (names := _lacking(facts, lambda nic: not nic.cuts)):
        return None
    offload = CUTS[facts.envelope]
    found = (
        f"{offload} is off on {names}: the kernel cuts cells into packets, which "
        "takes about half of the rate (at MTU 1500 on two cores 4.9 Gb/s instead of 8 to 9)"
    )
    fix = tuple(f"ethtool -K {name} {offload} on" for name in names.split(", "))
    return Finding("cell cutting", "warn", found, fix)


def merging(facts: Facts) -> Finding | None:
    """Check that the kernel merges packets into cells where the planes receive."""
    if not (names := _lacking(facts, lambda nic: not nic.merges)):
        return None
    found = (
        f"GRO is off on {names}: cells arrive in packets, and nothing is gained (at MTU 1500 on "
        "two cores 2.2 Gb/s instead of 6.2)"
    )
    fix = tuple(f"ethtool -K {name} gro on" for name in names.split(", "))
    return Finding("cell merging", "warn", found, fix)


def receive_queues(facts: Facts) -> Finding | None:
    """Check that NICs put the cells of IP in IPv6 of a path into one receive queue.

    ethtool has no word for the hash of what is neither TCP nor UDP, so a rule goes before it. The
    addresses and ports of cells in UDP are the same for all that take a path.
    """
    if facts.envelope == "udp":
        return None

    def spreads(nic: Nic) -> bool:
        ruled = CELLS.keys() <= nic.ruled
        return nic.queues > 1 and nic.by_source is not False and not ruled

    if not (names := _lacking(facts, spreads)):
        return None
    fix = []
    for place, nic in enumerate(facts.nics):
        if nic.name in names.split(", "):
            queue = place % nic.queues  # planes take different ones, and so different CPUs
            fix += [
                f"ethtool -N {nic.name} flow-type ip6 l4proto {header} action {queue}"
                for header in CELLS
                if header not in nic.ruled
            ]
    found = (
        f"several on {names}, chosen by a hash with the source address, which differs from cell "
        "to cell: cells of one path overtake each other, and count as lost until they arrive"
    )
    without = "   # if the NIC has no such rules"
    fix += [f"ethtool -L {name} combined 1{without}" for name in names.split(", ")]
    return Finding("receive queues", "warn", found, tuple(fix))


def firewall(facts: Facts) -> Finding | None:
    """Check that this host's firewall lets hand-shakes in; say what those between hosts must pass.

    Programs on the planes take data before the firewall, and send it behind.
    """
    port = facts.control_port
    if not port:
        return None
    if facts.closed and facts.daemon != "ok":
        return _dropped(facts.closed, port, "to which peers send hand-shakes")
    if facts.hushed:
        return _dropped(facts.hushed, facts.hello_port, "by which hosts find each other")
    unknown = facts.closed is None and facts.daemon != "ok"
    here = (
        f"one here must let UDP port {port} in" if unknown else f"none here drops UDP port {port}"
    )
    *some, last = map(str, facts.udp_ports) if facts.udp_ports else ("",)
    between = f"; those between hosts must pass UDP ports {', '.join(some)} and {last}"
    return _ok("firewall", here + (between if some else ""))


def _dropped(chains: tuple[str, ...], port: int, what: str) -> Finding:
    found = f"{', '.join(chains)} drops what comes to UDP port {port}, {what}"
    return Finding("firewall", "warn", found, opening(chains, port))


def gateway(facts: Facts) -> Finding | None:
    """Check that this host forwards what peers send to the prefixes behind it."""
    if not facts.routed:
        return None
    versions = {6 if ":" in prefix else 4 for prefix in facts.routed}
    off = [FORWARDING[v] for v in sorted(versions) if not facts.forwarding.get(v, True)]
    wrong = [f"{key} is 0" for key in off]
    wrong += [f"{chain} drops what is forwarded from {facts.mrc0}" for chain in facts.barred]
    behind = f"{', '.join(facts.routed)}, which [mrc0] routed says is behind this host"
    if not wrong:
        return _ok("gateway", f"forwards to {behind}")
    fix = [f"sysctl -w {key}=1" for key in off]
    fix += [f"nft insert rule {chain} iifname {facts.mrc0} accept" for chain in facts.barred]
    return Finding(
        "gateway", "wrong", f"peers cannot reach {behind}: {'; '.join(wrong)}", tuple(fix)
    )


def queueing(facts: Facts) -> Finding | None:
    """Check that queueing disciplines of planes neither pace by connection nor sort by flow.

    pfifo_fast does neither: its bands go by a priority that packets lose before they leave.
    """
    present = [nic for nic in facts.nics if nic.present]
    pace = [nic.name for nic in present if "fq" in nic.qdiscs]
    sort = {nic.name: kinds for nic in present if (kinds := sorted(nic.qdiscs & {*BY_FLOW}))}
    said = []
    if pace:
        said.append(
            f"fq on {', '.join(pace)} paces a connection on each plane as if there were no other: "
            f"with BBR or SO_MAX_PACING_RATE it sends up to {len(present)} times its rate"
        )
    if sort:
        shown = ", ".join(f"{' and '.join(kinds)} on {name}" for name, kinds in sort.items())
        said.append(
            f"{shown}: packets of one path overtake each other, and count as lost until they arrive"
        )
    if not said:
        return None
    fix = tuple(
        f"tc qdisc replace dev {nic.name} root pfifo_fast"
        for nic in present
        if nic.name in pace or nic.name in sort
    )
    return Finding("queueing", "warn", "; ".join(said), fix)


def memory(facts: Facts) -> Finding | None:
    """Check that both rings fit into the free memory."""
    # A data path has its rings already, whether a daemon runs or not.
    if not facts.rings or facts.daemon is not None or facts.kept:
        return None
    needs, has = facts.rings >> 20, facts.free >> 20
    if facts.rings > RING_SHARE * facts.free:
        state: State = "wrong" if facts.rings > facts.free else "warn"
        fix = (f"lower [transport] ring_slots or mpr in {facts.config}",)
        return Finding("memory", state, f"the rings need {needs} MB of {has} MB free", fix)
    return _ok("memory", f"the rings need {needs} MB of {has} MB free")


def neighbors(facts: Facts) -> Finding | None:
    """Check that the kernel's tables of neighbours hold all peers, beside what others have."""
    shown = [(table, need) for table, need in facts.neighbors if table.limit is not None]
    short = [
        (table, need) for table, need in shown if need + ENTRIES_OF_OTHERS > (table.limit or 0)
    ]
    said = [
        f"{table.family}: {need} entries for peers of {table.limit} for the whole machine"
        for table, need in short or shown
    ]
    full = [table for table, _need in facts.neighbors if table.fulls]
    said += [f"{table.family}: was full {table.fulls} times since the start" for table in full]
    if not said:
        return None
    if not short and not full:
        return _ok("neighbour tables", "; ".join(said))
    roomy = max(ROOMY, *(1 << (4 * need).bit_length() for _table, need in facts.neighbors))
    fix = tuple(
        f"sysctl -w net.{table.family}.neigh.default.gc_thresh{number}={roomy >> 3 - number}"
        for table in dict.fromkeys([*(table for table, _need in short), *full])
        for number in (1, 2, 3)
    )
    worse = any(need > (table.limit or 0) for table, need in short)
    return Finding("neighbour tables", "wrong" if worse else "warn", "; ".join(said), fix)


def group(facts: Facts) -> Finding:
    """Check for the group whose members may use mrcctl without root."""
    if facts.group:
        return _ok("group mrcd", "its members may use mrcctl")
    found = "does not exist: only root may use mrcctl"
    return Finding("group mrcd", "warn", found, ("groupadd --system mrcd   # and restart mrcd",))


def daemon(facts: Facts) -> Finding:
    """Check that mrcd answers and is healthy."""
    if facts.daemon is None:
        by_hand = f"mrcd --config {facts.config}   # systemd has no mrcd.service here"
        start = "systemctl start mrcd" if facts.unit else by_hand
        return Finding("mrcd", "warn", "does not answer", (start,))
    if facts.daemon == "degraded":
        why = "; ".join(facts.reasons[:REASONS])
        if (more := len(facts.reasons) - REASONS) > 0:
            why += f"; and {more} more"
        return Finding("mrcd", "wrong", f"is degraded: {why}", ("mrcctl status   # shows all",))
    return _ok("mrcd", f"answers: {facts.daemon}")


def switch_kernel(facts: Facts) -> Finding:
    """Check that a switch's kernel supports uN, which is End with the NEXT-C-SID flavour."""
    if version(facts.kernel) < NEXT_CSID:
        found = f"Linux {facts.kernel} ignores NEXT-C-SID without an error and installs plain End"
        return Finding("kernel", "wrong", found, ("boot kernel 6.1 or newer",))
    return _ok("kernel", f"Linux {facts.kernel} supports NEXT-C-SID")


def switch_features(facts: Facts) -> Finding:
    """Check that a switch's kernel was built with seg6local."""
    return _options(facts, SWITCH_OPTIONS)


def switch_sysctls(facts: Facts) -> Finding:
    """Check a switch's sysctls.

    Forwarding and seg6 must be on on every interface of the fabric. rp_filter must be off there,
    for plain IPv4 routes. Which those are is not known here, and a switch has others, too.
    """
    bad = []
    for name, value in sorted(facts.sysctls.items()):
        wanted = 0 if name.endswith(".rp_filter") else 1
        if value != wanted:
            bad.append(f"{name}={wanted}")
    if bad:
        shown = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
        fix = ("sysctl -w " + " ".join(bad),)
        if not _forwards(facts):
            return Finding("sysctls", "wrong", f"uSIDs are not forwarded: {shown}", fix)
        found = f"uSIDs are not forwarded where this is an interface of the fabric: {shown}"
        return Finding("sysctls", "warn", found, fix)
    return _ok("sysctls", "forwarding and seg6 on everywhere, rp_filter off")


def _forwards(facts: Facts) -> bool:
    """Return whether a switch forwards uSIDs between any interfaces."""
    for key in ("forwarding", "seg6_enabled"):
        here = {k: v for k, v in facts.sysctls.items() if k.endswith(f".{key}")}
        if not here.get(f"net.ipv6.conf.all.{key}", 1) or not any(here.values()):
            return False
    return True


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
    neighbors,
    configuration,
    keys,
    interfaces,
    mtu,
    ipv6,
    reverse_path,
    foreign_xdp,
    cutting,
    merging,
    receive_queues,
    queueing,
    firewall,
    gateway,
    group,
    daemon,
)
SWITCH: tuple[Check, ...] = (switch_kernel, switch_features, switch_sysctls)


def examine(facts: Facts, checks: tuple[Check, ...]) -> list[Finding]:
    """Run the checks and return the findings of those that apply."""
    return [finding for check in checks if (finding := check(facts)) is not None]
