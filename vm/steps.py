# SPDX-License-Identifier: GPL-2.0-only
"""The steps of `make check-vm`. A step returns its figures, or raises."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from mrcd.fabric import description
from vm import cells, measure, secrecy
from vm.machines import FABRIC
from vm.measure import Figures
from vm.qemu import MachineFailed, Vm, accelerator
from vm.verdict import Check

AFTER_S = 10  # how long traffic is observed after an event
LONG_S = 600  # a time limit that no command reaches
TURN_S = 20  # a flow whose rate is compared with another's
BLOCKS = 64  # of 64 KiB, in a transfer that is checked byte by byte
# TCP and mrcd make segments and cells as long as fills a part of a millisecond. An emulated
# processor's rate is low, and they would be single packets.
SEGMENT = 8  # least packets of TCP's segments
MERGED = 0.7  # least part of what the sender put into one skb that GRO puts together again
LONG_CELLS: dict[str, str | int] = {"cell_min": 16384}  # [transport]
BCC = "/usr/lib/python3/dist-packages/bcc"
ERROR, WARNING = 3, 4  # the journal's priorities


def patience() -> int:
    """Return the factor that stretches times.

    On an emulated processor a command takes a minute instead of a second.
    """
    return 1 if accelerator() == "kvm" else 6


def boot(check: Check) -> Figures:
    """Start all machines."""
    for vm in check.vms.values():
        vm.start()
    check.together(lambda vm: vm.wait_for_boot(300 * patience()), [*check.vms.values()])
    kernels = {vm.run("uname -r").out.strip() for vm in check.vms.values()}
    return {"kernel": " ".join(sorted(kernels)), "accelerator": accelerator()}


def provision(check: Check) -> Figures:
    """Install the package, name the NICs, build the switches."""

    def one(vm: Vm) -> None:
        open_payload(vm)
        vm.run(f"python3 /mnt/payload/provision.py {vm.name} /mnt/payload", LONG_S * patience())

    check.together(one, [*check.vms.values()])
    version = check.hosts[0].run("dpkg-query -W -f '${Version}' mrcd").out.strip()
    return {"package": version}


def open_payload(vm: Vm) -> None:
    """Mount the disk with the package and the machine's other files."""
    vm.run("mkdir -p /mnt/payload && mount -o ro /dev/vdb /mnt/payload")


def interrupts(check: Check) -> Figures:
    """Packets that interrupt the clock's program on its CPU do not disturb it, nor it them."""
    found = measure.interrupted(check.hosts[0], LONG_S * patience())
    wrong = found.pop("wrong")
    assert not wrong, f"{'; '.join(wrong)} (within {found['seconds']} s)"
    return found


def fabric(check: Check) -> Figures:
    """Check that the switches have the addresses and routes of the fabric file."""
    plan = check.switches.run("mrcctl sid verify --lab vm", 300).out.strip()
    return {"verified": plan.splitlines()[-1]}


def start(check: Check) -> Figures:
    """Run `systemctl enable --now mrcd` with ten lines of configuration, and without bcc."""

    def one(vm: Vm) -> None:
        give_time(vm)
        vm.run(f"mount -t tmpfs hidden {BCC}")
        done = vm.run("systemctl enable --now mrcd", LONG_S * patience(), check=False)
        if done.status:
            raise MachineFailed(f"{vm.name}: {done.err}\n{measure.journal(vm)[-1500:]}")

    check.together(one, check.hosts)
    for vm in check.hosts:
        measure.serve(vm)
    lines = check.hosts[0].run("grep -c . /etc/mrcd/mrcd.toml").out.strip()
    loaded = check.hosts[0].run("journalctl -u mrcd -o cat | grep -c datapath.loaded").out.strip()
    return {"configuration_lines": int(lines), "programs_without_a_compiler": int(loaded)}


def give_time(vm: Vm) -> None:
    """Give the service longer time-outs if the processor is emulated."""
    if accelerator() == "tcg":
        folder = "/etc/systemd/system/mrcd.service.d"
        vm.run(f"mkdir -p {folder} && cp /mnt/payload/slow.conf {folder}")
        vm.run("systemctl daemon-reload")


def reach(check: Check) -> Figures:
    """Check that the hosts reach each other through mrc0, and that the daemons report ok."""
    one, other = check.hosts
    target = other.machine.address
    within = min(check.left_s(), 300)
    took = measure.wait_until(
        lambda: one.run(f"ping -c 1 -W 1 {target}", check=False).status == 0,
        within,
        f"no answer from {target} through mrc0",
    )
    measure.wait_until(
        lambda: all(measure.status(vm)["state"] == "ok" for vm in check.hosts),
        within,
        "mrcctl status did not become ok",
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
    """Measure one TCP connection over mrc0."""
    one, other = check.hosts
    flow = measure.end_flow(measure.begin_flow(one, other.machine.address, 10))
    assert flow.bytes > 0, "iperf3 moved nothing"
    return flow.figures()


def in_cells(check: Check) -> Figures:
    """Check that GRO merges cells, and that data arrives as it was sent, even by a bad link."""
    other = check.hosts[1]
    for vm in check.hosts:
        cells.configure(vm, **LONG_CELLS)
        vm.run(f"echo {SEGMENT} > /proc/sys/net/ipv4/tcp_min_tso_segs")
    wait_for_framing(check, "cell")
    figures: Figures = {}
    for family, address in addresses(other).items():
        sent, received = _transferred(check, address)
        seen = cells.merging(sent, received)
        assert seen["cells"] > 0, f"no cell was sent over {family}"
        merged, sent_as = seen["packets_of_a_received_skb"], seen["packets_of_a_sent_skb"]
        assert merged > max(1, MERGED * sent_as), f"GRO merges too little: {seen}"
        figures |= {f"{family} {key}": value for key, value in seen.items()}
    link = "mrcctl lab fault --name vm p0t0-1:p0t1-1"
    check.switches.run(f"{link} loss=10%", 300)
    try:
        sent, received = _transferred(check, other.machine.address)
    finally:
        check.switches.run(f"{link} clear", 300)
    assert sent.sent_again > 0, "nothing was lost, or nothing was sent again"
    assert received.counters["hole_skipped"] == 0, "the receiver gave packets up"
    wait_until_ok(check)
    return figures | {"sent_again": sent.sent_again, "tcp_retransmits": sent.tcp_retransmits}


def addresses(vm: Vm) -> dict[str, str]:
    """Return a host's addresses on mrc0 by their family."""
    host = next(host for host in description.load(FABRIC).hosts if host.name == vm.name)
    return {f"IPv{address.version}": str(address.ip) for address in host.addresses}


def _transferred(check: Check, address: str) -> tuple[cells.Counts, cells.Counts]:
    """Send bytes from the first host to the second; return what both have counted meanwhile."""
    one, other = check.hosts
    sent, received = cells.counts(one), cells.counts(other)
    cells.transfer(one, other, address, BLOCKS, LONG_S)
    return cells.counts(one).since(sent), cells.counts(other).since(received)


def wait_for_framing(check: Check, framing: str) -> None:
    measure.wait_until(
        lambda: all(cells.framings(vm) == {framing} for vm in check.hosts),
        LONG_S * patience(),
        f"data does not go in framing {framing}",
    )


def wait_until_ok(check: Check) -> None:
    measure.wait_until(
        lambda: all(measure.status(vm)["state"] == "ok" for vm in check.hosts),
        60 * patience(),
        "mrcctl status did not become ok",
    )


def framings(check: Check) -> Figures:
    """Change the framing of a running mrcd, and compare the rates of one TCP connection."""
    one, other = check.hosts
    rates: dict[str, list[float]] = {"cell": [], "mrc": []}
    turns: tuple[dict[str, str | int], ...] = (LONG_CELLS, {"framing": "mrc"}, LONG_CELLS)
    for transport in turns:
        framing = str(transport.get("framing", "cell"))
        for vm in check.hosts:
            cells.configure(vm, **transport)
        wait_for_framing(check, framing)
        wait_until_ok(check)
        flow = measure.end_flow(measure.begin_flow(one, other.machine.address, TURN_S))
        assert flow.bytes > 0, f"nothing arrives in framing {framing}"
        rates[framing].append(flow.figures()["mbps"])
    figures: Figures = {f"{framing}_mbps": found for framing, found in rates.items()}
    for vm in check.hosts:
        cells.configure(vm)
    ratio = statistics.median(rates["cell"]) / statistics.median(rates["mrc"])
    return figures | {"cell_to_mrc": round(ratio, 2)}


def secret(check: Check) -> Figures:
    """Encrypt what crosses mrc0 by WireGuard, and by TLS in the kernel."""
    one, other = check.hosts
    address = other.machine.address
    figures = secrecy.tunnel(one, other, address, TURN_S)
    found = secrecy.kernel_tls(one, other, address, BLOCKS, LONG_S)
    return figures | {f"tls_{key}": value for key, value in found.items()}


def cut_cable(check: Check) -> Figures:
    """Pull a plane's cable out of the receiver under load, and plug it in again."""
    cable = check.hosts[1].machine.nics[1].cable
    return _plane_dies(
        check,
        lambda: check.hosts[1].set_link(cable, up=False),
        lambda: check.hosts[1].set_link(cable, up=True),
    )


def silence_plane(check: Check) -> Figures:
    """Make a plane's switches drop everything under load while the links stay up."""
    fault = "mrcctl lab fault --name vm p0"
    return _plane_dies(
        check,
        lambda: check.switches.run(f"{fault} blackhole", 300),
        lambda: check.switches.run(f"{fault} clear", 300),
    )


def _plane_dies(check: Check, kill: Callable[[], object], heal: Callable[[], object]) -> Figures:
    one, other = check.hosts
    flow = measure.begin_flow(one, other.machine.address)
    try:
        time.sleep(10)  # let the flow reach its rate
        kill()
        time.sleep(AFTER_S * patience())
        result = measure.stop_flow(flow)
    finally:
        heal()
    last = result.last_mbps(AFTER_S * patience() / 2)
    assert last > 0, "no data arrives any more"
    wait_until_ok(check)
    return result.figures() | {"afterwards_mbps": last}


def restart(check: Check) -> Figures:
    """Run `systemctl restart mrcd` under load; applications must not lose a packet."""
    one, other = check.hosts
    flow = measure.begin_flow(one, other.machine.address)
    pings = measure.begin_ping(one, other.machine.address, 0.2 * patience())
    before = measure.status(one)["pid"]
    took = one.run("systemctl restart mrcd", LONG_S * patience()).seconds
    time.sleep(AFTER_S * patience())
    counted = measure.stop_ping(pings)
    result = measure.stop_flow(flow)
    assert measure.status(one)["pid"] != before, "it is the same process"
    figures = result.figures() | {"restart_s": round(took, 1)} | counted
    assert counted["lost"] == 0, f"not hitless: {figures}"
    return figures


def journal(check: Check) -> Figures:
    """Check that systemd and the journal show no errors or restarts of mrcd."""
    events: list[str] = []
    warned: dict[str, list[str]] = {}
    for vm in check.hosts:
        shown = vm.run("systemctl show mrcd -p ActiveState -p NRestarts -p UnitFileState").out
        facts = dict(entry.split("=", 1) for entry in shown.split())
        assert facts["ActiveState"] == "active", f"{vm.name}: {shown}"
        assert facts["UnitFileState"] == "enabled", f"{vm.name}: {shown}"
        assert facts["NRestarts"] == "0", (
            f"{vm.name}: mrcd was restarted {facts['NRestarts']} times"
        )
        entries = measure.journal_entries(vm)
        bad = [entry["MESSAGE"] for entry in entries if int(entry["PRIORITY"]) <= ERROR]
        assert not bad, f"{vm.name}: {bad[0]}"
        own = [entry for entry in entries if "MRCD_EVENT" in entry]
        events += [entry["MRCD_EVENT"] for entry in own]
        for entry in own:
            if int(entry["PRIORITY"]) == WARNING:
                warned.setdefault(entry["MRCD_EVENT"], []).append(entry["MESSAGE"])
    for event in ("daemon.ready", "peer.established", "datapath.adopted"):
        assert event in events, f"no {event} among {sorted(set(events))}"
    shown = "; ".join(f"{len(said)} x {said[0]}" for _event, said in sorted(warned.items()))
    return {"log_events": len(events), "warnings": shown or "none"}


def other_programs(check: Check) -> Figures:
    """Check that the programs of the other encapsulations pass this kernel's verifier, too."""
    walked: dict[str, int] = {}

    def one(vm: Vm) -> None:
        vm.run(f"umount {BCC}", check=False)  # to compile what no package brings
        own = range(1 + check.hosts.index(vm), 4, len(check.hosts))  # mrcd already runs with 0
        for encap in own:
            for report in measure.load_programs(vm, encap, LONG_S * patience()):
                name = f"{report['name']} (encap {encap})"
                walked[name] = measure.instructions_walked(report["verifier"])

    check.together(one, check.hosts)
    longest = max(walked, key=walked.__getitem__)
    return {"programs": len(walked), "longest_walk": f"{walked[longest]} by {longest}"}


def remove(check: Check) -> Figures:
    """Remove the package; no interface, program or pin may be left behind."""
    vm = check.hosts[0]
    vm.run("dpkg --remove mrcd", 300)
    left = vm.run(
        "ip -o link show mrc0 2>/dev/null; ls -A /sys/fs/bpf/mrcd 2>/dev/null;"
        " ip -d link show plane0 | grep -o 'prog/xdp.*';"
        " tc filter show dev plane0 ingress",
        check=False,
    ).out.strip()
    assert not left, f"left behind: {left}"
    return {}


Step = tuple[str, Callable[[Check], Figures], bool]
"""Name, what is done, and whether the rest makes no sense without it."""
STEPS: tuple[Step, ...] = (
    ("boot", boot, True),
    ("provision", provision, True),
    ("interrupts", interrupts, False),
    ("fabric", fabric, False),
    ("start", start, True),
    ("reach", reach, True),
    ("throughput", throughput, False),
    ("cells", in_cells, False),
    ("framings", framings, False),
    ("secrecy", secret, False),
    ("cut a cable", cut_cable, False),
    ("silence a plane", silence_plane, False),
    ("restart", restart, False),
    ("journal", journal, False),
    ("other programs", other_programs, False),
    ("remove", remove, False),
)
"""The steps: name, function, and whether the check ends if the step fails."""
