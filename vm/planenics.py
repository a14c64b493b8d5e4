# SPDX-License-Identifier: GPL-2.0-only
"""Plane NICs of a model: `make check-vm NIC=MODEL`.

Two hosts are cabled back to back, with two such NICs each. Cables are taps, so that queues and
segments of the NICs are used. The steps: order, cells with and without offloads, a plane that dies,
what `mrcctl doctor` says, and native XDP: a driver has it, or mrcd says that it has not.
"""

from __future__ import annotations

import json
import time
from typing import Any

from mrcd.linux.kernel import version
from vm import cells, measure, plain
from vm.machines import Machine
from vm.measure import Figures
from vm.plain import NICS
from vm.qemu import MachineFailed, Vm
from vm.steps import (
    AFTER_S,
    BLOCKS,
    LONG_CELLS,
    LONG_S,
    SEGMENT,
    Step,
    boot,
    patience,
    wait_for_framing,
    wait_until_ok,
)  # fmt: skip
from vm.verdict import Check

COMPILED = "compiled"
"""The folder of the payload with programs that are compiled for native XDP."""
CACHE = "/var/cache/mrcd"
CUT = 1
"""The plane whose cable is pulled."""
OFFLOADS = (
    "tcp-segmentation-offload",
    "generic-segmentation-offload",
    "generic-receive-offload",
    "large-receive-offload",
    "rx-checksumming",
    "tx-checksumming",
)
SWITCHED = ("tso", "gso", "gro", "rx", "tx")
"""Offloads as `ethtool -K` calls them, which a step turns off."""
NATIVE_XDP = {"virtio_net": (4, 10), "vmxnet3": (6, 6), "igb": (5, 10)}
"""The first Linux whose driver has native XDP."""
CONFIG = """\
[host]
name = "{name}"
[mrc0]
addresses = ["10.99.0.{number}/24"]
[keys]
secret_file = "fabric.secret"
discover = true
[[plane]]
interface = "eth1"
[[plane]]
interface = "eth2"
"""
_PORT = 7002
_DATAGRAMS = 3000
_SENDER = f"""
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    for number in range({_DATAGRAMS}):
        sock.sendto(number.to_bytes(4, "big") + bytes(1000), (sys.argv[1], {_PORT}))
        if number % 8 == 7:
            time.sleep(0.02)  # what a slow receiver takes without loss
"""
# Ends with the last datagram, or when none has come for long.
_RECEIVER = f"""
import json, socket, sys
newest, count, late = -1, 0, 0
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 23)  # SO_RCVBUFFORCE
    sock.bind((sys.argv[1], {_PORT}))
    sock.settimeout(60)
    try:
        while newest < {_DATAGRAMS - 1}:
            number = int.from_bytes(sock.recv(2048)[:4], "big")
            count, late, newest = count + 1, late + (number < newest), max(newest, number)
    except TimeoutError:
        pass
print(json.dumps(dict(datagrams=count, late=late)))
"""


def fleet() -> list[Machine]:
    """Return both hosts."""
    return plain.fleet("cables")


def lay(check: Check) -> Figures:
    """Prepare the hosts, and look at their NICs."""
    plain.lay(check, "cables")
    for vm in check.hosts:
        vm.run("; ".join(f"ip link set {nic} up" for nic in NICS))
    return looks(check.hosts[0])


def looks(vm: Vm) -> Figures:
    """Return the driver, queues and offloads of a host's first plane NIC."""
    nic = NICS[0]
    driver = vm.run(f"ethtool -i {nic} | sed -n 's/^driver: //p'").out.strip()
    queues = vm.run(f"ls -d /sys/class/net/{nic}/queues/[rt]x-*").out
    shown = vm.run(f"ethtool -k {nic}").out
    on = [name for name in OFFLOADS if f"{name}: on" in shown]
    return {
        "driver": driver,
        "receive_queues": queues.count("/rx-"),
        "transmit_queues": queues.count("/tx-"),
        "offloads": " ".join(on),
    }


def connect(check: Check) -> Figures:
    """Write a configuration that names the NICs, and start the service on both hosts."""

    def one(vm: Vm) -> None:
        number = 1 + plain.HOSTS.index(vm.name)
        plain.configure(vm, CONFIG.format(name=vm.name, number=number))
        _systemctl(vm, "start")

    check.together(one, check.hosts)
    return {}


def _systemctl(vm: Vm, verb: str) -> None:
    done = vm.run(f"systemctl {verb} mrcd", LONG_S * patience(), check=False)
    if done.status:
        raise MachineFailed(f"{vm.name}: {done.err}\n{measure.journal(vm)[-1500:]}")


def order(check: Check) -> Figures:
    """Nothing overtakes anything: TCP sends nothing again for that, and no datagram comes late."""
    one, other = check.hosts
    measure.serve(other)
    target = plain.target(other)
    flow = measure.end_flow(measure.begin_flow(one, target, 10))
    assert flow.bytes > 0, "iperf3 moved nothing"
    limit = f"exec timeout {LONG_S} python3 -"
    server = other.begin(f"{limit} {target} <<'END'\n{_RECEIVER}END")
    measure.wait_until(
        lambda: other.run(f"ss -Hlun 'sport = :{_PORT}' | grep -q .", check=False).status == 0,
        LONG_S,
        "nothing listens for datagrams",
    )
    one.run(f"{limit} {target} <<'END'\n{_SENDER}END", LONG_S)
    found = json.loads(other.end(server, LONG_S).out)
    assert found["late"] == 0, f"{found['late']} of {found['datagrams']} datagrams arrived late"
    lost = _DATAGRAMS - found["datagrams"]
    assert lost < _DATAGRAMS / 2, f"{lost} of {_DATAGRAMS} datagrams did not arrive"
    return flow.figures() | {"datagrams": found["datagrams"], "lost_datagrams": lost}


def in_cells(check: Check) -> Figures:
    """Data goes in cells, and arrives as it was sent, with the NICs' offloads and without."""
    one, other = check.hosts
    for vm in check.hosts:
        cells.configure(vm, **LONG_CELLS)
        vm.run(f"echo {SEGMENT} > /proc/sys/net/ipv4/tcp_min_tso_segs")
    wait_for_framing(check, "cell")
    figures = _crossed(one, other, "with offloads")
    for vm in check.hosts:
        _offload(vm, "off")
    try:
        figures |= _crossed(one, other, "without")
    finally:
        for vm in check.hosts:
            _offload(vm, "on")
    return figures


def _offload(vm: Vm, state: str) -> None:
    for nic in NICS:
        words = " ".join(f"{name} {state}" for name in SWITCHED)
        # A driver lacks one or the other, and ethtool changes the rest.
        vm.run(f"ethtool -K {nic} {words}", check=False)


def _crossed(one: Vm, other: Vm, how: str) -> Figures:
    before = cells.counts(one), cells.counts(other)
    cells.transfer(one, other, plain.target(other), BLOCKS, LONG_S)
    sent, received = cells.counts(one).since(before[0]), cells.counts(other).since(before[1])
    seen = cells.merging(sent, received)
    assert seen["cells"] > 0, f"no cell was sent {how}"
    skipped = received.counters["hole_skipped"]
    assert skipped == 0, f"the receiver gave {skipped} packets up {how}"
    shown = ("cells", "packets_of_a_sent_skb", "packets_of_a_received_skb")
    return {f"{name} {how}": seen[name] for name in shown} | {
        f"tcp_retransmits {how}": sent.tcp_retransmits
    }


def cut(check: Check) -> Figures:
    """Pull a cable out under load: the connection continues, and the plane comes back."""
    one, other = check.hosts
    cable = other.machine.nics[CUT].cable
    flow = measure.begin_flow(one, plain.target(other))
    try:
        time.sleep(AFTER_S)  # let the flow reach its rate
        other.set_link(cable, up=False)
        named = measure.wait_until(
            lambda: any(
                line.startswith(f"plane {CUT}:")
                for vm in check.hosts
                for line in measure.status(vm)["reasons"]
            ),
            10 * patience(),
            f"mrcctl status did not name plane {CUT}",
        )
        time.sleep(AFTER_S)
        result = measure.stop_flow(flow)
    finally:
        other.set_link(cable, up=True)
    assert result.last_mbps(AFTER_S / 2) > 0, "no data arrives any more"
    wait_until_ok(check)
    return result.figures() | {"named_s": round(named, 1)}


def doctor(check: Check) -> Figures:
    """`mrcctl doctor` finds nothing wrong; what it says beside that is shown."""
    done = check.hosts[0].run("mrcctl doctor --json", LONG_S, check=False)
    found: list[dict[str, Any]] = json.loads(done.out)["findings"]
    said = [f"{each['state']}: {each['check']}: {each['found']}" for each in found]
    wrong = [line for line in said if line.startswith("wrong")]
    assert not wrong, "; ".join(wrong)
    other = [line for line in said if not line.startswith("ok")]
    return {"checks": len(found), "says": "; ".join(other) or "all ok"}


def native(check: Check) -> Figures:
    """`xdp = "native"`: the driver has it, and data crosses; or the refusal says what to do."""
    one, other = check.hosts
    driver = looks(one)["driver"]
    release = one.run("uname -r").out.strip()
    expected = version(release) >= NATIVE_XDP.get(driver, (1 << 30, 0))
    # Such a host compiles them, and these machines have no compiler.
    one.run(f"mkdir -p {CACHE} && cp /mnt/payload/{COMPILED}/* {CACHE}")
    cells.write(one, **LONG_CELLS, xdp="native")
    done = one.run("systemctl restart mrcd", LONG_S * patience(), check=False)
    if done.status:
        log = measure.journal(one)
        why = next((line for line in reversed(log.splitlines()) if "xdp" in line.lower()), log)
        cells.write(one, **LONG_CELLS)
        one.run("systemctl reset-failed mrcd", check=False)
        _systemctl(one, "restart")
        wait_until_ok(check)
        assert not expected, f"{driver} of Linux {release} has native XDP: {why}"
        return {"native": "refused", "says": why[-300:]}
    wait_until_ok(check)
    mode = measure.status(one)["datapath"]["xdp"]
    assert mode == "native", f"mrcd is attached as {mode}"
    there = one.run(f"ip -d link show {NICS[0]}").out
    assert "prog/xdp" in there, there
    assert "xdpgeneric" not in there, there
    assert expected, f"{driver} of Linux {release} is not known to have native XDP"
    return {"native": mode} | _crossed(other, one, "native")


def take_away(check: Check) -> Figures:
    """Stop and remove the package; no program may be left on the NICs."""
    one = check.hosts[0]
    one.run("dpkg --remove mrcd", 300)
    shown = "; ".join(
        f"ip -d link show {nic} | grep -o 'prog/xdp.*'; tc filter show dev {nic} ingress"
        for nic in NICS
    )
    left = one.run(f"ip -o link show mrc0 2>/dev/null; {shown}", check=False).out.strip()
    assert not left, f"left behind: {left}"
    return {}


STEPS: tuple[Step, ...] = (
    ("boot", boot, True),
    ("network", lay, True),
    ("install", plain.install, True),
    ("connect", connect, True),
    ("ping", plain.ping, True),
    ("order", order, False),
    ("cells", in_cells, False),
    ("cut a cable", cut, False),
    ("doctor", doctor, False),
    ("native XDP", native, False),
    ("remove", take_away, False),
)
"""The steps: name, function, and whether the check ends if the step fails."""
