# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcctl doctor: each check on a good machine and on a bad one, and the command."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.console import exits
from cli.doctor import checks, facts
from cli.doctor.checks import HOST, SWITCH, Check, Facts, Finding, Nic
from cli.main import mrcctl
from mrcd.config import keyfiles
from mrcd.config.sections import Transport
from mrcd.fabric.shape import MTU_MAX
from mrcd.handshake import identity
from mrcd.linux.neighbortable import Table
from rigs.control_double import FakeSource, serving

GOOD = Facts(
    uid=0,
    lacking=(),
    kernel="6.6.1-amd64",
    distribution="debian",
    headers=True,
    bcc=True,
    brought=False,
    filesystems=frozenset({"bpf", "ext4"}),
    bpffs=True,
    pins="/sys/fs/bpf/mrcd",
    jit=1,
    options=dict.fromkeys(
        (
            *checks.OPTIONS,
            *checks.CLSACT_OPTIONS,
            *checks.CELL_OPTIONS,
            *checks.PORT_OPTIONS,
            *checks.SWITCH_OPTIONS,
        ),
        "y",
    ),
    nohz_full="",
    config="/etc/mrcd/mrcd.toml",
    problems=(),
    mtu=9000,
    ipv4=True,
    framing="auto",
    nics=(Nic("eth2", mtu=9000, xdp="mrc_receive"), Nic("eth3", mtu=9216)),
    native=True,
    rp_filter={"all": 0, "mrc0": 2},
    rings=150 << 20,
    free=4 << 30,
    group=True,
    daemon="ok",
    reasons=(),
    sysctls={
        "net.ipv6.conf.all.forwarding": 1,
        "net.ipv6.conf.up1.seg6_enabled": 1,
        "net.ipv4.conf.up1.rp_filter": 0,
    },
    control_port=4972,
    udp_ports=(4971, 4972, 4974),
    closed=(),
)


def nic(**changed: Any) -> tuple[Nic, ...]:
    return (GOOD.nics[0], replace(GOOD.nics[1], **changed))


def test_a_good_machine_is_good() -> None:
    for role in (HOST, SWITCH):
        found = checks.examine(GOOD, role)
        assert {finding.state for finding in found} == {"ok"}
        assert not any(finding.fix for finding in found)


ALL = GOOD.options
BAD: list[tuple[Check, dict[str, Any], str, str, str]] = [
    (checks.privileges, {"uid": 1000, "lacking": ("CAP_NET_ADMIN", "CAP_BPF")}, "warn",
     "uid 1000 lacks CAP_NET_ADMIN, CAP_BPF", "sudo mrcctl doctor"),
    (checks.privileges, {"daemon": None, "lacking": ("CAP_BPF",)}, "wrong",
     "CAP_BPF", "--cap-add BPF"),
    (checks.kernel, {"kernel": "5.4.0-1"}, "wrong", "5.4.0-1", "6.6"),
    (checks.kernel, {"kernel": "weird"}, "wrong", "weird", "6.6"),
    (checks.features, {"daemon": None, "options": {"VETH": "y"}}, "wrong",
     "CONFIG_BPF_SYSCALL", "CONFIG_BPF_JIT"),
    (checks.headers, {"daemon": None, "headers": False}, "wrong", "6.6.1-amd64/build",
     "apt-get install linux-headers-6.6.1-amd64"),
    (checks.headers, {"daemon": None, "headers": False, "distribution": "fedora"}, "wrong",
     "compiled",
     "dnf install kernel-devel-6.6.1-amd64"),
    (checks.headers, {"daemon": None, "headers": False, "distribution": "else"}, "wrong",
     "compiled", "headers"),
    (checks.compiler, {"daemon": None, "bcc": False}, "wrong",
     "bcc", "apt-get install python3-bpfcc"),
    (checks.bpffs, {"bpffs": False}, "warn", "none is mounted", "mount -t bpf bpf /sys/fs/bpf"),
    (checks.bpffs, {"daemon": None, "filesystems": frozenset()}, "wrong",
     "support the bpf filesystem", "kernel"),
    (checks.jit, {"jit": 0}, "warn", "interpreted", "sysctl -w net.core.bpf_jit_enable=1"),
    (checks.membarrier, {"nohz_full": "2-3"}, "warn", "CPUs 2-3", "nohz_full"),
    (checks.headers, {"headers": False, "brought": True}, "warn", "not needed for",
     "linux-headers"),
    (checks.compiler, {"bcc": False, "brought": True}, "warn", "not needed for", "python3-bpfcc"),
    (checks.memory, {"daemon": None, "free": 100 << 20}, "wrong", "150 MB of 100 MB", "ring_slots"),
    (checks.memory, {"daemon": None, "free": 200 << 20}, "warn", "150 MB of 200 MB", "ring_slots"),
    (checks.neighbors, {"neighbors": ((Table("ipv4", 9, 0, 1024), 1000),)}, "warn",
     "ipv4: 1000 entries for peers of 1024 for the whole machine",
     "sysctl -w net.ipv4.neigh.default.gc_thresh1=4096\n"
     "sysctl -w net.ipv4.neigh.default.gc_thresh2=8192\n"
     "sysctl -w net.ipv4.neigh.default.gc_thresh3=16384"),
    (checks.neighbors,
     {"neighbors": ((Table("ipv4", 9, 0, 1024), 1), (Table("ipv6", 9, 0, 1024), 5000))}, "wrong",
     "ipv6: 5000 entries for peers of 1024 for the whole machine",
     "sysctl -w net.ipv6.neigh.default.gc_thresh1=8192"),
    (checks.neighbors, {"neighbors": ((Table("ipv6", 9, 7, None), 3),)}, "warn",
     "ipv6: was full 7 times", "net.ipv6.neigh.default.gc_thresh3=16384"),
    (checks.keys, {"daemon": None, "keys": {"/etc/k": "root", "/etc/l": "mrcd"},
                   "service_user": "mrcd"}, "wrong", "/etc/k belongs to user root: mrcd.service",
     "chown mrcd /etc/k"),
    (checks.features, {"daemon": None, "kernel": "6.1.0", "options": {**ALL, "NET_CLS_BPF": "n"}},
     "wrong", "NET_CLS_BPF", "NET_CLS_BPF"),
    (checks.features, {"daemon": None, "options": {**ALL, "MACVLAN": "n"}}, "wrong",
     "CONFIG_MACVLAN", "CONFIG_MACVLAN"),
    (checks.configuration, {"problems": ("a: b", "c: d")}, "wrong", "a: b (and 1 more)",
     "mrcctl config check /etc/mrcd/mrcd.toml"),
    (checks.configuration,
     {"problems": ("no file",), "missing": ("/etc/mrcd/mrcd.toml", "/etc/mrcd/fabric.toml"),
      "examples": "/x"}, "wrong", "no file",
     "mkdir -p /etc/mrcd\ncp /x/mrcd.toml /etc/mrcd/mrcd.toml\n"
     "cp /x/fabric.toml /etc/mrcd/fabric.toml\nmrcctl config check /etc/mrcd/mrcd.toml"),
    (checks.configuration,
     {"problems": ("no file",), "missing": ("/etc/mrcd/our.toml",), "examples": "/x"}, "wrong",
     "no file", "cp /x/fabric.toml /etc/mrcd/our.toml"),
    (checks.headers, {"daemon": None, "headers": False, "packaged": False}, "wrong",
     "apt knows no package linux-headers-6.6.1-amd64", "make setup"),
    (checks.headers, {"daemon": None, "headers": False, "packaged": True}, "wrong",
     "cannot be compiled",
     "apt-get install linux-headers-6.6.1-amd64"),
    (checks.interfaces, {"nics": nic(present=False)}, "wrong", "no interface eth3", "[planes]"),
    (checks.interfaces, {"nics": nic(up=False)}, "wrong", "eth3 down", "ip link set eth3 up"),
    (checks.interfaces, {"nics": nic(carrier=False)}, "warn", "eth3 without carrier", "cable"),
    (checks.mtu, {"nics": nic(mtu=1500)}, "wrong", "eth3 has 1500: less than the fabric's 9000",
     "ip link set eth3 mtu 9000"),
    (checks.ipv6, {"nics": nic(disable_ipv6=True), "ipv4": False}, "wrong", "off on eth3",
     "sysctl -w net.ipv6.conf.eth3.disable_ipv6=0"),
    (checks.reverse_path, {"rp_filter": {"all": 1, "mrc0": 0}, "ipv4": False}, "warn", "mrc0",
     "sysctl -w net.ipv4.conf.mrc0.rp_filter=2"),
    (checks.reverse_path, {"nics": nic(rp_filter=1)}, "warn", "strict on eth3",
     "sysctl -w net.ipv4.conf.eth3.rp_filter=2"),
    (checks.foreign_xdp, {"nics": nic(xdp="katran")}, "wrong", "katran on eth3",
     "ip link set dev eth3 xdp off"),
    (checks.cutting, {"nics": nic(cuts=False)}, "warn", "off on eth3: the kernel cuts",
     "ethtool -K eth3 tx-ipxip6-segmentation on"),
    (checks.cutting, {"nics": nic(cuts=False), "envelope": "udp"}, "warn",
     "tx-udp_tnl-segmentation is off on eth3", "ethtool -K eth3 tx-udp_tnl-segmentation on"),
    (checks.features, {"daemon": None, "options": {**ALL, "VXLAN": "n"}, "envelope": "udp"},
     "wrong", "CONFIG_VXLAN", "CONFIG_VXLAN"),
    (checks.firewall, {"daemon": None, "closed": ("inet filter input",)}, "warn",
     "inet filter input drops what comes to UDP port 4972",
     "nft insert rule inet filter input udp dport 4972 accept"),
    (checks.gateway, {"routed": ("10.244.1.0/24",), "forwarding": {4: False}}, "wrong",
     "peers cannot reach 10.244.1.0/24", "sysctl -w net.ipv4.ip_forward=1"),
    (checks.merging, {"nics": nic(merges=False)}, "warn", "GRO is off on eth3",
     "ethtool -K eth3 gro on"),
    (checks.receive_queues, {"nics": nic(queues=8)}, "warn", "several on eth3, chosen by a hash",
     "ethtool -N eth3 flow-type ip6 l4proto 41 action 1\n"
     "ethtool -N eth3 flow-type ip6 l4proto 4 action 1\nethtool -L eth3 combined 1"),
    (checks.receive_queues, {"nics": nic(queues=2, by_source=True, ruled=frozenset({41}))}, "warn",
     "overtake", "ethtool -N eth3 flow-type ip6 l4proto 4 action 1\nethtool -L eth3 combined 1"),
    (checks.queueing, {"nics": nic(qdiscs=frozenset({"mq", "fq"}))}, "warn",
     "fq on eth3 paces a connection on each plane as if there were no other: with BBR or "
     "SO_MAX_PACING_RATE it sends up to 2 times", "tc qdisc replace dev eth3 root pfifo_fast"),
    (checks.queueing, {"nics": nic(qdiscs=frozenset({"mq", "fq_codel"}))}, "warn",
     "fq_codel on eth3: packets of one path overtake each other",
     "tc qdisc replace dev eth3 root pfifo_fast"),
    (checks.foreign_xdp, {"nics": nic(xdp="katran", generic=True), "native": False}, "warn",
     "in generic mode, which switches GRO off and copies large packets: katran on eth3",
     "ip link set dev eth3 xdp off"),
    (checks.group, {"group": False}, "warn", "only root", "groupadd --system mrcd"),
    (checks.daemon, {"daemon": None}, "warn", "does not answer", "systemctl start mrcd"),
    (checks.daemon, {"daemon": None, "unit": False}, "warn", "does not answer",
     "mrcd --config /etc/mrcd/mrcd.toml"),
    (checks.daemon, {"daemon": "degraded", "reasons": ("plane 1: sick", "b", "c", "d")}, "wrong",
     "is degraded: plane 1: sick; b; c; and 1 more", "mrcctl status"),
    (checks.switch_kernel, {"kernel": "6.0.9"}, "wrong", "plain End", "6.1"),
    (checks.switch_features, {"options": {"IPV6": "y"}}, "wrong", "CONFIG_IPV6_SEG6_LWTUNNEL",
     "CONFIG_IPV6_SEG6_LWTUNNEL"),
    (checks.switch_sysctls, {"sysctls": {**GOOD.sysctls, "net.ipv6.conf.up1.seg6_enabled": 0}},
     "wrong", "net.ipv6.conf.up1.seg6_enabled", "sysctl -w net.ipv6.conf.up1.seg6_enabled=1"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "changed", "state", "found", "fix"), BAD)
def test_a_bad_machine_is_told_the_fix(
    check: Check, changed: dict[str, Any], state: str, found: str, fix: str
) -> None:
    finding = check(replace(GOOD, **changed))
    assert finding is not None
    assert finding.state == state
    assert found in finding.found
    assert fix in "\n".join(finding.fix)


def test_no_command_is_named_that_cannot_work() -> None:
    no_headers = checks.headers(replace(GOOD, headers=False, packaged=False))
    assert not any(command.startswith("apt-get install") for command in no_headers.fix)
    no_examples = checks.configuration(replace(GOOD, problems=("x",), missing=("/etc/a.toml",)))
    assert not any(command.startswith("cp") for command in no_examples.fix)


def test_missing_files_and_examples_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> tuple[str, ...]:
        return facts.gather(own, str(tmp_path / "nobody"), tmp_path).missing

    own = tmp_path / "mrcd.toml"
    assert missing() == (str(own), str(tmp_path / "fabric.toml"))
    own.write_text('[host]\nname = "a"\nfabric = "our.toml"\n')
    assert missing() == (str(tmp_path / "our.toml"),)
    own.write_text("[[plane]]\n")
    assert missing() == ()
    own.write_text("host = 3\n")
    assert missing() == ()
    for folder, found in ((tmp_path, str(tmp_path)), (tmp_path / "nowhere", "")):
        monkeypatch.setattr(facts, "EXAMPLES", (folder,))
        assert facts.gather(own, str(tmp_path / "nobody"), tmp_path).examples == found


def test_the_checkout_has_both_examples() -> None:
    checkout = facts.EXAMPLES[-1]
    assert {file.name for file in checkout.iterdir()} >= {"mrcd.toml", "fabric.toml"}


def test_packages_that_apt_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert facts._packaged("linux-headers-1") is None
    apt = tmp_path / "apt-cache"
    apt.write_text('#!/bin/sh\n[ "$2" = linux-headers-1 ] || exit 100\n')
    apt.chmod(0o755)
    assert facts._packaged("linux-headers-1") is True
    assert facts._packaged("linux-headers-2") is False


def test_every_check_is_seen_bad() -> None:
    assert {check for check, *_ in BAD} == {*HOST, *SWITCH}


@pytest.mark.parametrize(
    ("check", "changed"),
    [
        (checks.features, {"daemon": None, "options": {}}),
        (checks.jit, {"jit": None}),
        (checks.configuration, {"uid": 7, "problems": ("x",), "unreadable": ("/etc/mrcd.toml",)}),
    ],
)
def test_what_cannot_be_seen_is_unknown(check: Check, changed: dict[str, Any]) -> None:
    finding = check(replace(GOOD, **changed))
    assert finding is not None
    assert finding.state == "unknown"


@pytest.mark.parametrize("check", [checks.interfaces, checks.mtu, checks.ipv6, checks.foreign_xdp])
def test_without_a_configuration_planes_are_not_judged(check: Check) -> None:
    assert check(replace(GOOD, nics=())) is None


def test_offloads_do_not_matter_where_there_are_no_cells() -> None:
    bare = replace(GOOD, nics=nic(cuts=False, merges=False), framing="mrc")
    assert not any(check(bare) for check in (checks.cutting, checks.merging))


@pytest.mark.parametrize(
    "changed",
    [
        {"queues": 8, "by_source": False},
        {"queues": 8, "by_source": True, "ruled": frozenset({4, 41})},
        {"queues": 8, "present": False},
        {"qdiscs": frozenset({"mq", "pfifo_fast"})},
        {"qdiscs": frozenset({"tbf", "bfifo"})},
    ],
)
def test_queues_that_keep_paths_in_order_are_good(changed: dict[str, Any]) -> None:
    facts = replace(GOOD, nics=nic(**changed))
    assert not any(check(facts) for check in (checks.receive_queues, checks.queueing))


def test_receive_queues_do_not_matter_where_there_are_no_cells() -> None:
    assert checks.receive_queues(replace(GOOD, nics=nic(queues=8), framing="mrc")) is None


def test_receive_queues_do_not_matter_to_cells_in_udp() -> None:
    """A path has one pair of addresses and ports."""
    spread = replace(GOOD, nics=nic(queues=8), envelope="udp")
    assert checks.receive_queues(spread) is None


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, "none here drops UDP port 4972; those between hosts must pass UDP ports 4971, 4972 and"
             " 4974"),
        ({"udp_ports": ()}, "none here drops UDP port 4972"),
        ({"closed": None, "daemon": None, "udp_ports": (4971, 4972)},
         "one here must let UDP port 4972 in; those between hosts must pass UDP ports 4971 and"
         " 4972"),
        ({"closed": None, "udp_ports": ()}, "none here drops UDP port 4972"),
        ({"closed": ("ip filter INPUT",), "udp_ports": ()}, "none here drops UDP port 4972"),
    ],
)  # fmt: skip
def test_firewalls_that_let_hand_shakes_in_are_good(changed: dict[str, Any], found: str) -> None:
    assert checks.firewall(replace(GOOD, **changed)) == Finding("firewall", "ok", found)


def test_without_a_configuration_no_port_is_known() -> None:
    assert checks.firewall(replace(GOOD, control_port=0)) is None


def test_without_xdp_of_ours_other_native_programs_are_welcome() -> None:
    finding = checks.foreign_xdp(replace(GOOD, nics=nic(xdp="katran"), native=False))
    assert finding is not None
    assert finding.state == "ok"


def test_a_plane_that_is_not_there_is_one_finding() -> None:
    absent = replace(GOOD, nics=(Nic("eth2", present=False),))
    wrong = [finding for finding in checks.examine(absent, HOST) if finding.state != "ok"]
    assert [finding.check for finding in wrong] == ["plane NICs"]


def test_a_user_with_the_capabilities_is_good() -> None:
    assert checks.privileges(replace(GOOD, uid=998)).state == "ok"


def test_interfaces_of_a_switch_that_are_no_part_of_the_fabric_are_not_wrong() -> None:
    other = {
        **GOOD.sysctls,
        "net.ipv6.conf.all.seg6_enabled": 1,
        "net.ipv6.conf.eth0.seg6_enabled": 0,
        "net.ipv4.conf.eth0.rp_filter": 1,
    }
    finding = checks.switch_sysctls(replace(GOOD, sysctls=other))
    assert (finding.state, "eth0" in finding.found) == ("warn", True)
    for key in ("forwarding", "seg6_enabled"):
        off = {**other, f"net.ipv6.conf.all.{key}": 0}
        assert checks.switch_sysctls(replace(GOOD, sysctls=off)).state == "wrong"


def test_older_kernels_with_clsact_are_good() -> None:
    finding = checks.kernel(replace(GOOD, kernel="5.15.0-1"))
    assert finding is not None
    assert (finding.state, "clsact" in finding.found) == ("ok", True)


def doctor(monkeypatch: pytest.MonkeyPatch, found: Facts, *args: str) -> Any:
    monkeypatch.setattr(facts, "gather", lambda *_: found)
    return CliRunner().invoke(mrcctl, ["doctor", *args])


@pytest.mark.parametrize(
    ("check", "changed"),
    [
        (checks.ipv6, {"nics": nic(disable_ipv6=True), "ipv4": True}),
        (checks.features, {"framing": "mrc", "options": {**ALL, "MACVLAN": "n", "VXLAN": "n"}}),
        (checks.features, {"envelope": "ipv6", "options": {**ALL, "VXLAN": "n"}}),
        (checks.features, {"options": {**ALL, "NET_CLS_BPF": "n", "NET_SCH_INGRESS": "n"}}),
        (checks.keys, {"daemon": None, "keys": {"/k": "mrcd"}, "service_user": "mrcd"}),
    ],
)
def test_what_a_configuration_does_not_need_is_good(check: Check, changed: dict[str, Any]) -> None:
    finding = check(
        replace(GOOD, daemon=None, **{k: v for k, v in changed.items() if k != "daemon"})
    )
    assert finding is not None
    assert (finding.state, finding.fix) == ("ok", ())


def test_nothing_that_only_a_start_needs_is_wrong_while_mrcd_runs() -> None:
    running = replace(
        GOOD, lacking=("CAP_BPF",), options={"VETH": "y"}, headers=False, bcc=False,
        filesystems=frozenset(), rings=8 << 30, keys={"/k": "root"}, service_user="mrcd",
    )  # fmt: skip
    found = {each.check: each.state for each in checks.examine(running, HOST)}
    assert "wrong" not in found.values(), found
    stopped = {
        each.check: each.state for each in checks.examine(replace(running, daemon=None), HOST)
    }
    wrong = {check for check, state in stopped.items() if state == "wrong"}
    assert wrong >= {"privileges", "kernel features", "kernel headers", "bcc", "bpffs", "memory",
                     "key files"}  # fmt: skip


def test_programs_and_rings_that_are_there_need_no_compiler_and_no_memory() -> None:
    kept = replace(GOOD, daemon=None, headers=False, bcc=False, cached=True, kept=True, free=1)
    states = {finding.state for finding in checks.examine(kept, HOST)}
    assert states == {"ok", "warn"}


def test_key_files_do_not_matter_without_the_service() -> None:
    """An mrcd that root starts reads root's."""
    assert checks.keys(replace(GOOD, daemon=None, keys={"/k": "root"})) is None


def test_files_that_only_root_reads_are_unknown_to_others(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may become another user: run the tests as root")
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "mrcd.toml"
        file.write_text('[host]\nname = "a"\n[keys]\nsecret_file = "secret"\n')
        file.chmod(0o600)
        Path(name).chmod(0o755)
        os.seteuid(65534)
        try:
            found = facts.gather(file, str(tmp_path / "nobody"), tmp_path)
        finally:
            os.seteuid(0)
    assert found.unreadable == (str(file),)
    finding = checks.configuration(found)
    assert finding is not None
    assert finding.state == "unknown"


def test_exit_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor(monkeypatch, GOOD).exit_code == exits.DONE
    assert doctor(monkeypatch, replace(GOOD, group=False)).exit_code == exits.DONE
    assert doctor(monkeypatch, replace(GOOD, headers=False)).exit_code == exits.DONE
    result = doctor(monkeypatch, replace(GOOD, daemon=None, headers=False), "--quiet")
    assert result.exit_code == exits.DEGRADED
    assert result.output.splitlines()[0].startswith("WRONG  kernel headers")
    assert "fix: apt-get install linux-headers-6.6.1-amd64" in result.output
    assert "17 checks: 1 wrong, 1 to look at" in result.output


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    result = doctor(monkeypatch, replace(GOOD, daemon=None, bcc=False), "--json")
    assert result.exit_code == exits.DEGRADED
    printed = json.loads(result.output)
    assert printed["schema_version"] == 1
    (wrong,) = (each for each in printed["findings"] if each["state"] == "wrong")
    assert wrong["fix"] == ["apt-get install python3-bpfcc"]


def test_the_facts_of_this_machine(tmp_path: Path) -> None:
    found = facts.gather(tmp_path / "none.toml", str(tmp_path / "nobody"), tmp_path)
    assert found.daemon is None
    assert found.problems
    assert found.nics == ()
    assert found.free > 0
    assert found.pins == str(tmp_path)
    assert "bpf" in found.filesystems or checks.bpffs(found)


def test_the_daemons_own_configuration_is_checked(tmp_path: Path) -> None:
    with serving(tmp_path / "sock", FakeSource()):
        found = facts.gather(None, str(tmp_path / "sock"), tmp_path)
    assert (found.config, found.daemon) == ("/nowhere/mrcd.toml", "ok")


def test_without_a_fabric_the_mtu_is_that_of_the_nics(tmp_path: Path) -> None:
    keyfiles.write(tmp_path / "s", identity.Secret(bytes(range(32))))

    def rings(nics: str) -> tuple[int, tuple[int, ...], str]:
        (tmp_path / "mrcd.toml").write_text(
            '[host]\nname = "a"\n[mrc0]\naddresses = ["10.99.0.1/24"]\n[keys]\n'
            f'secret_file = "s"\n[[plane]]\ninterface = "{nics}"\n'
            '[[peer]]\nname = "b"\nendpoints = ["192.0.2.2"]\nallowed = ["10.99.0.2/32"]\n'
        )
        found = facts.gather(tmp_path / "mrcd.toml", str(tmp_path / "nobody"), tmp_path)
        assert not found.problems
        return found.rings, found.udp_ports, found.envelope

    assert rings("nosuch9") == (0, (4971, 4972, 4974), "udp")
    assert rings("lo")[0] == 2 * Transport().ring_slots * (MTU_MAX - 50)


def test_planes_are_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "fabric.toml").write_text(
        "fabric = { planes = 2, t0 = 2, t1 = 1 }\n"
        'host = [{ name = "a", t0 = 1, port = 1, addresses = ["10.99.0.1/24"] }]\n'
    )
    (tmp_path / "mrcd.toml").write_text(
        '[host]\nname = "a"\nfabric = "fabric.toml"\n[planes]\ninterfaces = ["lo", "nosuch9"]\n'
    )
    found = facts.gather(tmp_path / "mrcd.toml", str(tmp_path / "nobody"), tmp_path)
    lo, absent = found.nics
    assert (lo.name, lo.present, lo.mtu, lo.xdp) == ("lo", True, 65536, None)
    assert (absent.name, absent.present) == ("nosuch9", False)
    assert found.mtu == 9000


def test_gateway__only_hosts_with_prefixes_behind_them_forward() -> None:
    assert checks.gateway(GOOD) is None


def test_gateway__names_what_keeps_packets_back() -> None:
    forwards = replace(GOOD, routed=("10.244.1.0/24",), forwarding={4: True, 6: False})
    finding = checks.gateway(forwards)
    assert finding is not None
    assert finding.state == "ok"
    finding = checks.gateway(
        replace(forwards, forwarding={4: False, 6: False}, barred=("ip filter FORWARD",))
    )
    assert finding is not None
    assert (finding.state, finding.fix) == (
        "wrong",
        (
            "sysctl -w net.ipv4.ip_forward=1",
            "nft insert rule ip filter FORWARD iifname mrc0 accept",
        ),
    )
    assert "10.244.1.0/24" in finding.found
    assert "ip filter FORWARD drops what is forwarded from mrc0" in finding.found
    finding = checks.gateway(replace(forwards, routed=("10.244.1.0/24", "fd44::/64")))
    assert finding is not None
    assert finding.fix == ("sysctl -w net.ipv6.conf.all.forwarding=1",)


def test_neighbour_tables_that_are_large_enough_are_right() -> None:
    tables = ((Table("ipv4", 900, 0, 1024), 12), (Table("ipv6", 3, 0, None), 12))
    finding = checks.neighbors(replace(GOOD, neighbors=tables))
    assert finding is not None
    assert (finding.state, finding.found) == (
        "ok", "ipv4: 12 entries for peers of 1024 for the whole machine"
    )  # fmt: skip
    assert checks.neighbors(GOOD) is None, "without a configuration nothing is known"
