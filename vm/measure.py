# SPDX-License-Identifier: GPL-2.0-only
"""Measurements in virtual machines: pings, TCP flows, and the state that mrcd reports."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vm.clock import CLOCK
from vm.qemu import MachineFailed, Vm

Figures = dict[str, Any]
INTERVAL_S = 0.2
_PING_NUMBER = re.compile(r"icmp_seq=(\d+) ttl")
_PING_TIME = re.compile(r"time=([0-9.]+) ms")


def wait_until(condition: Callable[[], bool], within_s: float, otherwise: str) -> float:
    """Wait for a condition and return the seconds it took; MachineFailed with `otherwise`."""
    began = CLOCK.now()
    until = CLOCK.deadline(within_s)
    while not condition():
        if CLOCK.now() > until:
            raise MachineFailed(f"{otherwise} within {CLOCK.now() - began:.0f} s")
        time.sleep(0.5)
    return CLOCK.now() - began


def status(vm: Vm) -> dict[str, Any]:
    """Return `mrcctl status` of a host; the state is "no answer" if mrcd does not answer."""
    done = vm.run("mrcctl status --json", check=False)
    try:
        found: dict[str, Any] = json.loads(done.out)
    except ValueError:
        return {"state": "no answer"}
    return found


def journal(vm: Vm) -> str:
    """Return the messages that mrcd has written to the journal."""
    return vm.run("journalctl -u mrcd -o cat --no-pager", check=False).out


def journal_entries(vm: Vm) -> list[dict[str, Any]]:
    """Return mrcd's journal entries with all fields; mrcd's own events have an MRCD_EVENT."""
    lines = vm.run("journalctl -u mrcd -o json --no-pager", 300).out.splitlines()
    return [json.loads(line) for line in lines]


_LOAD = """
import dataclasses, json
from mrcd.datapath import loader
sizes = loader.Sizes(
    mtu=1372, window=4096, ring_slots=8192, peers=4, qps=16, evs=128, prefixes=64, encap={encap}
)
_maps, _programs, report = loader.load(sizes)
print(json.dumps([dataclasses.asdict(entry) for entry in report]))
"""


_LOAD_KEPT = """
import dataclasses, json, os
from mrcd.datapath import bytecode, loader, precompile
text, reports = loader.source(), []
for sizes in precompile.usual():
    code = bytecode.read(loader.shipped(), bytecode.key_of(text, sizes.defines()))
    assert code is not None, f"the package does not bring {sizes}"
    maps, programs, report = loader.given_to_kernel(code, {}, sizes, compiled=False)
    for fd in (*maps.values(), *programs.values()):
        os.close(fd)
    reports += map(dataclasses.asdict, report)
print(json.dumps(reports))
"""


# The interpreter that the command mrcd names in its first line.
PYTHON = "$(sed -n '1s/^#!//p' \"$(readlink -f /usr/sbin/mrcd)\")"


def load_programs(vm: Vm, encap: int, within_s: float) -> list[dict[str, Any]]:
    """Compile and load every program with the package's Python; return the loader's report."""
    return _reported(vm, _LOAD.format(encap=encap), within_s)


def load_kept_programs(vm: Vm, within_s: float) -> list[dict[str, Any]]:
    """Load all programs that the package brings, for each configuration; the loader's reports."""
    return _reported(vm, _LOAD_KEPT, within_s)


def _reported(vm: Vm, script: str, within_s: float) -> list[dict[str, Any]]:
    """Run a script with the package's Python, and return the JSON that it prints."""
    command = f"cat >/tmp/load.py <<'END'\n{script}END\nexec {PYTHON} /tmp/load.py"
    report: list[dict[str, Any]] = json.loads(vm.run(command, within_s).out)
    return report


def interrupted(vm: Vm, within_s: float) -> Figures:
    """Run tests/bpf/interrupted.py, as the package's Python does it; its figures."""
    command = f"env PYTHONPATH=/mnt/payload {PYTHON} -m tests.bpf.interrupted"
    done = vm.run(command, within_s, check=False)
    try:
        found: Figures = json.loads(done.out)
    except ValueError:
        raise MachineFailed(f"{vm.name}: the test did not end: {done.err[-1500:]}") from None
    return found


def instructions_walked(summary: str) -> int:
    """Return the number of instructions that the verifier processed, from its last line."""
    found = re.search(r"processed (\d+) insns", summary)
    if found is None:
        raise ValueError(f"no count in {summary!r}")
    return int(found[1])


_STATE = (
    "systemctl --no-pager --full status mrcd mrcd-switches mrcd-planes",
    "ip -s -d addr",
    "ip -6 route; ip -6 neigh",
    "mrcctl status; mrcctl peer list; mrcctl conn list; mrcctl path list; mrcctl stats --nonzero",
    "journalctl -b --no-pager -n 400",
)


def state(vm: Vm) -> str:
    """Return everything that may explain a failure."""
    parts = []
    for command in _STATE:
        done = vm.run(command, 300, check=False)
        parts.append(f"# {command}\n{done.out}{done.err}")
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Running:
    """A command that is running in a machine."""

    vm: Vm
    pid: int
    within_s: float


def begin_ping(vm: Vm, address: str, interval_s: float, count: int = 7200) -> Running:
    """Start `count` pings, which end early with `stop_ping`."""
    pid = vm.begin(f"exec ping -c {count} -i {interval_s} -W 5 {address}")
    return Running(vm, pid, count * interval_s + 60)


def end_ping(running: Running) -> Figures:
    """Wait for the end of pings; return how many were lost, and the median round trip."""
    out = running.vm.end(running.pid, running.within_s).out
    found = re.search(r"(\d+) packets transmitted, (\d+) received", out)
    if found is None:
        raise MachineFailed(f"{running.vm.name}: ping says {out!r}")
    times = [float(text) for text in _PING_TIME.findall(out)]
    median = round(statistics.median(times), 1) if times else None
    return {"lost": int(found[1]) - int(found[2]), "median_ms": median}


def stop_ping(running: Running) -> Figures:
    """Stop pings; return how many there were up to the last answer, and how many of them were lost.

    Pings still on their way at the end do not count as lost.
    """
    # If ping has ended already, its output gives the reason.
    running.vm.run(f"kill -INT {running.pid}", check=False)
    out = running.vm.end(running.pid, running.within_s).out
    answered = {int(number) for number in _PING_NUMBER.findall(out)}
    if not answered:
        raise MachineFailed(f"{running.vm.name}: ping says {out!r}")
    return {"pings": max(answered), "lost": max(answered) - len(answered)}


def ping(vm: Vm, address: str, *, count: int, interval_s: float) -> Figures:
    """Ping and wait for the end."""
    return end_ping(begin_ping(vm, address, interval_s, count))


@dataclass(frozen=True, slots=True)
class Flow:
    """A TCP connection that has ended, with the bytes of each interval and retransmissions."""

    intervals: tuple[tuple[float, int], ...]  # seconds, bytes
    bytes: int
    seconds: float
    retransmits: int

    def longest_gap_s(self) -> float:
        """Return the longest run of intervals in which nothing was sent, in seconds."""
        longest = now = 0.0
        for seconds, moved in self.intervals:
            now = 0.0 if moved else now + seconds
            longest = max(longest, now)
        return round(longest, 1)

    def last_mbps(self, seconds: float) -> float:
        """Return the rate of the last seconds in Mb/s."""
        count = max(1, round(seconds / INTERVAL_S))
        last = self.intervals[-count:]
        return round(sum(moved for _s, moved in last) * 8 / sum(s for s, _m in last) / 1e6, 1)

    def figures(self) -> Figures:
        return {
            "mbps": round(self.bytes * 8 / self.seconds / 1e6, 1),
            "longest_gap_s": self.longest_gap_s(),
            "tcp_retransmits": self.retransmits,
        }


def serve(vm: Vm) -> None:
    """Start an iperf3 server without a time-out, because a pause is to be measured, not to fail."""
    vm.run("systemd-run --quiet --unit=check-iperf3 iperf3 --server --rcv-timeout 86400000")


def begin_flow(vm: Vm, address: str, seconds: int = 7200) -> Running:
    """Start a TCP connection that sends for `seconds`, or until `stop_flow`."""
    command = f"exec iperf3 -c {address} -t {seconds} -i {INTERVAL_S} -C cubic --json"
    return Running(vm, vm.begin(command), seconds + 120)


def stop_flow(running: Running) -> Flow:
    """Stop a connection and return its figures."""
    running.vm.run(f"kill -INT {running.pid}", check=False)
    return end_flow(running)


def end_flow(running: Running) -> Flow:
    """Wait for the end of a connection; MachineFailed if it broke."""
    out = running.vm.end(running.pid, running.within_s).out
    report = json.loads(out or "{}")
    error = report.get("error", "" if "end" in report else "it says nothing")
    if error and not error.startswith("interrupt"):
        raise MachineFailed(f"iperf3: {error}")
    return flow(report)


def flow(report: dict[str, Any]) -> Flow:
    """Return the flow that iperf3's JSON report of the sender describes."""
    parts = (part["sum"] for part in report["intervals"])
    intervals = tuple((part["seconds"], part["bytes"]) for part in parts)
    sent = report["end"]["sum_sent"]
    # An interrupted iperf3 has no figures from the receiver.
    moved = report["end"]["sum_received"]["bytes"] or sent["bytes"]
    return Flow(intervals, moved, sent["seconds"], sent["retransmits"])
