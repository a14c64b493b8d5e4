# SPDX-License-Identifier: GPL-2.0-only
"""Two hosts on a network that knows nothing of mrcd: `python -m vm.check --network NETWORK`.

Each host has two NICs, eth1 and eth2, and types what docs/quickstart.md says about any network:
`apt-get install`, `mrcctl quick up` and `ping`. Behind IPv4 routers it types a configuration and
`systemctl start` in place of the second. The network is there before: cables back to back, a switch
with a bridge for each plane, or a router.
"""

from __future__ import annotations

import json
import secrets
import shlex
import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from vm import measure
from vm.machines import SWITCHES, Machine, Nic
from vm.measure import Figures
from vm.qemu import MachineFailed, Vm
from vm.steps import AFTER_S, LONG_S, Step, boot, give_time, open_payload, patience
from vm.verdict import Check

NETWORKS = ("cables", "switch", "router4")
HOSTS = ("a", "b")
NICS = ("eth1", "eth2")
CUT = 1
"""The plane that is cut silently."""
_SECRET = b64encode(secrets.token_bytes(32)).decode()
CONFIG = """\
[host]
name = "{name}"
[mrc0]
addresses = ["10.99.0.{number}/24"]
[keys]
secret_file = "fabric.secret"
[[plane]]
interface = "eth1"
[[plane]]
interface = "eth2"
[[peer]]
name = "{peer}"
endpoints = ["{endpoints}"]
allowed = ["10.99.0.{peer_number}/32"]
"""


def fleet(network: str) -> list[Machine]:
    """Return the machines of a network, what is in the middle first."""
    if network == "cables":
        return [_host(name, (0, 1)) for name in HOSTS]
    ports = tuple(_nic(0, cable, f"eth{cable + 1}", HOSTS[cable // 2]) for cable in range(4))
    return [Machine(SWITCHES, "switches", "", ports), _host("a", (0, 1)), _host("b", (2, 3))]


def _host(name: str, cables: tuple[int, ...]) -> Machine:
    number = 1 + HOSTS.index(name)
    nics = tuple(
        _nic(number, cable, nic, SWITCHES) for cable, nic in zip(cables, NICS, strict=True)
    )
    return Machine(name, "host", f"10.99.0.{number}", nics)


def _nic(number: int, cable: int, name: str, leads_to: str) -> Nic:
    return Nic(cable, name, f"52:54:00:00:{number:02x}:{cable:02x}", leads_to)


def _address(host: str, plane: int) -> str:
    """Return a host's address behind the router; the router has .1 of each network."""
    return f"10.{HOSTS.index(host)}.{plane}.2"


def lay(check: Check, network: str) -> Figures:
    """Make the network, as it would be there already, and copy the package to the hosts."""
    for vm in check.hosts:
        vm.run("systemctl is-system-running --wait", LONG_S * patience(), check=False)
        open_payload(vm)
        vm.run(f"cp /mnt/payload/mrcd_*.deb /root && echo {vm.name} >/etc/hostname")
        vm.run("hostname -F /etc/hostname")
        give_time(vm)
    if network == "switch":
        for plane in range(len(NICS)):
            ports = (f"eth{plane + 1}", f"eth{plane + 3}")
            enslave = "; ".join(f"ip link set {port} master br{plane} up" for port in ports)
            check.switches.run(f"ip link add br{plane} up type bridge; {enslave}")
    if network == "router4":
        check.switches.run("sysctl -w net.ipv4.ip_forward=1")
        for number, host in enumerate(HOSTS):
            for plane, nic in enumerate(NICS):
                port = f"eth{2 * number + plane + 1}"
                check.switches.run(f"ip address add 10.{number}.{plane}.1/24 dev {port}")
                check.switches.run(f"ip link set {port} up")
                vm, there = check.vms[host], _address(HOSTS[1 - number], plane)
                vm.run(f"ip address add {_address(host, plane)}/24 dev {nic}; ip link set {nic} up")
                vm.run(f"ip route add {there}/32 via 10.{number}.{plane}.1 dev {nic}")
    vm = check.hosts[0]
    driver = vm.run(f"ethtool -i {NICS[0]} | sed -n 's/^driver: //p'").out.strip()
    queues = vm.run(f"ls -d /sys/class/net/{NICS[0]}/queues/rx-* | wc -l").out.strip()
    return {"network": network, "driver": driver, "receive_queues": int(queues)}


def install(check: Check) -> Figures:
    """The first command."""
    took: dict[str, float] = {}

    def one(vm: Vm) -> None:
        command = "apt-get install -q -y --no-install-recommends /root/mrcd_*.deb"
        took[vm.name] = vm.run(command, LONG_S * patience()).seconds

    check.together(one, check.hosts)
    return {f"{name}_s": round(seconds, 1) for name, seconds in sorted(took.items())}


def load(check: Check) -> Figures:
    """This kernel takes all programs that the package brings, for whatever configuration."""
    reports = measure.load_kept_programs(check.hosts[0], LONG_S * patience())
    longest = max(reports, key=_walked)
    return {"programs": len(reports), "longest_walk": f"{_walked(longest)} by {longest['name']}"}


def _walked(report: dict[str, Any]) -> int:
    return measure.instructions_walked(report["verifier"])


def connect(check: Check, network: str) -> Figures:
    """The second command, on both hosts at once."""
    took: dict[str, float] = {}

    def one(vm: Vm) -> None:
        if network == "router4":
            _configure_routed(vm)
            command = "systemctl start mrcd"
        else:
            wait = 60 * patience()
            command = (
                f"echo {shlex.quote(_SECRET)} | mrcctl quick up --wait {wait} {' '.join(NICS)}"
            )
        done = vm.run(command, LONG_S * patience(), check=False)
        if done.status:
            log = vm.run("tail -n 20 /run/mrcd/quick/mrcd.log", check=False).out
            raise MachineFailed(
                f"{vm.name}: {command}: {done.err}{log}{measure.journal(vm)[-1500:]}"
            )
        took[vm.name] = done.seconds

    check.together(one, check.hosts)
    return {f"{name}_s": round(seconds, 1) for name, seconds in sorted(took.items())}


def _configure_routed(vm: Vm) -> None:
    """Write what docs/quickstart.md says of a network with routers."""
    number = HOSTS.index(vm.name)
    peer = HOSTS[1 - number]
    text = CONFIG.format(
        name=vm.name,
        number=1 + number,
        peer=peer,
        peer_number=2 - number,
        endpoints='", "'.join(_address(peer, plane) for plane in range(len(NICS))),
    )
    configure(vm, text)


def configure(vm: Vm, text: str) -> None:
    """Write a configuration, and the secret that all hosts of a check have."""
    vm.run(f"printf %s {shlex.quote(text)} >/etc/mrcd/mrcd.toml")
    file = "/etc/mrcd/fabric.secret"
    vm.run(f"umask 077; echo {shlex.quote(_SECRET)} >{file}; chown mrcd {file}")


def target(vm: Vm) -> str:
    """Return the address of a host's mrc0."""
    addresses: list[str] = measure.status(vm)["mrc0"]["addresses"]
    return next(text.partition("/")[0] for text in addresses if ":" not in text)


def ping(check: Check) -> Figures:
    """The third command, as soon as it answers."""
    one, other = check.hosts
    address = target(other)
    took = measure.wait_until(
        lambda: one.run(f"ping -c 1 -W 1 {address}", check=False).status == 0,
        60 * patience(),
        f"no answer from {address}",
    )
    measure.wait_until(
        lambda: all(measure.status(vm)["state"] == "ok" for vm in check.hosts),
        60 * patience(),
        "mrcctl status did not become ok",
    )
    found = measure.ping(one, address, count=20, interval_s=0.2)
    assert found["lost"] == 0, f"{found['lost']} of 20 pings lost"
    return {"first_answer_s": round(took, 1), "daemon_mb": _resident_mb(one)} | found


def _resident_mb(vm: Vm, command: str = "mrcctl status --json") -> float:
    """Return the resident memory of the daemon whose status a command prints."""
    pid = json.loads(vm.run(command).out)["pid"]
    kb = vm.run(f"sed -n 's/^VmRSS:[^0-9]*//p' /proc/{pid}/status").out.split()[0]
    return round(int(kb) / 1024, 1)


def cut(check: Check, network: str) -> Figures:
    """Have what is in the middle drop everything of a plane, while all links stay up."""
    one, other = check.hosts
    if network == "switch":
        ports = (f"eth{CUT + 1}", f"eth{CUT + 3}")
        kill, heal = (
            "; ".join(f"bridge link set dev {port} state {state}" for port in ports)
            for state in (0, 3)
        )
    else:
        ways = [f"blackhole {_address(host, CUT)}/32" for host in HOSTS]
        kill, heal = (
            "; ".join(f"ip route {word} {way}" for way in ways) for word in ("add", "del")
        )
    measure.serve(other)
    flow = measure.begin_flow(one, target(other))
    try:
        time.sleep(AFTER_S)  # let the flow reach its rate
        check.switches.run(kill)
        named = measure.wait_until(
            lambda: any(
                line.startswith(f"plane {CUT}:") for line in measure.status(one)["reasons"]
            ),
            10 * patience(),
            f"mrcctl status did not name plane {CUT}",
        )
        time.sleep(AFTER_S)
        result = measure.stop_flow(flow)
    finally:
        check.switches.run(heal)
    assert result.last_mbps(AFTER_S / 2) > 0, "no data arrives any more"
    measure.wait_until(
        lambda: all(measure.status(vm)["state"] == "ok" for vm in check.hosts),
        60 * patience(),
        "mrcctl status did not become ok",
    )
    return result.figures() | {"named_s": round(named, 1)}


def down(check: Check) -> Figures:
    """`mrcctl quick down` leaves nothing."""
    vm = check.hosts[0]
    vm.run("mrcctl quick down", LONG_S)
    left = vm.run(
        "ip -o link show mrc0 2>/dev/null; find /sys/fs/bpf/mrcd/* /run/mrcd/quick 2>/dev/null",
        check=False,
    ).out.strip()
    assert not left, f"left behind: {left}"
    return {}


def in_a_lab(check: Check) -> Figures:
    """`mrcctl lab up` as it is typed first, on a machine with neither compiler nor headers."""
    vm = check.hosts[0]
    compiles = vm.run(
        "command -v clang gcc; python3 -c 'import bcc' 2>/dev/null && echo bcc;"
        " ls -d /lib/modules/*/build 2>/dev/null",
        check=False,
    ).out.strip()
    assert not compiles, f"this machine is to have no compiler: {compiles}"
    took = vm.run("mrcctl lab up", LONG_S).seconds
    counted = vm.run("mrcctl lab exec h1 -- ping -q -c 20 -i 0.2 10.99.0.2", LONG_S).out
    assert " 0% packet loss" in counted, counted
    memory = _resident_mb(vm, "mrcctl lab exec h1 -- mrcctl status --json")
    vm.run("mrcctl lab down", LONG_S)
    left = vm.run("ip netns list; ls -A /sys/fs/bpf/mrcd 2>/dev/null", check=False).out.strip()
    assert not left, f"left behind: {left}"
    return {"up_s": round(took, 1), "daemon_mb": memory}


def steps(network: str) -> tuple[Step, ...]:
    """Return the steps for a network."""

    def on(what: Callable[[Check, str], Figures]) -> Callable[[Check], Figures]:
        return lambda check: what(check, network)

    found: list[Step] = [
        ("boot", boot, True),
        ("network", on(lay), True),
        ("install", install, True),
        ("connect", on(connect), True),
        ("ping", ping, True),
    ]
    if network != "cables":
        found.append(("cut a plane", on(cut), False))
    if network != "router4":
        found.append(("down", down, False))
    if network == "cables":
        found += [("programs", load, False), ("lab", in_a_lab, False)]
    return tuple(found)
