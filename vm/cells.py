# SPDX-License-Identifier: GPL-2.0-only
"""Measurements of cells in virtual machines: what was cut and merged, and whether it is right."""

from __future__ import annotations

import json
from dataclasses import dataclass

from vm import measure
from vm.measure import Figures
from vm.qemu import MachineFailed, Vm

PORT = 7001
BLOCK_BYTES = 1 << 16
_RETRANSMISSIONS = ("rtx_fifo", "rtx_guard", "rtx_timeout", "rtx_nack")
# Each side prints the digest of what it has sent or received.
_SERVER = f"""
import hashlib, socket, sys
digest = hashlib.sha256()
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], {PORT}), family=family) as server:
    connection, _ = server.accept()
    while data := connection.recv(1 << 16):
        digest.update(data)
print(digest.hexdigest())
"""
_CLIENT = f"""
import hashlib, os, socket, sys
digest = hashlib.sha256()
with socket.create_connection((sys.argv[1], {PORT})) as connection:
    for _ in range(int(sys.argv[2])):
        data = os.urandom({BLOCK_BYTES})
        digest.update(data)
        connection.sendall(data)
print(digest.hexdigest())
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a host has counted: mrcd's counters, skbs that crossed mrc0, TCP's retransmissions."""

    counters: dict[str, int]
    skbs_sent: int
    skbs_received: int
    tcp_retransmits: int

    def since(self, before: Counts) -> Counts:
        """Return what was added."""
        return Counts(
            {name: value - before.counters[name] for name, value in self.counters.items()},
            self.skbs_sent - before.skbs_sent,
            self.skbs_received - before.skbs_received,
            self.tcp_retransmits - before.tcp_retransmits,
        )

    @property
    def sent_again(self) -> int:
        """Return the packets that were sent again."""
        return sum(self.counters[name] for name in _RETRANSMISSIONS)


def counts(vm: Vm) -> Counts:
    """Return the counts of a host as they are now."""
    stats = json.loads(vm.run("mrcctl stats --json").out)["counters"]
    folder = "/sys/class/net/mrc0/statistics"
    sent, received = vm.run(f"cat {folder}/tx_packets {folder}/rx_packets").out.split()
    names, values = vm.run("grep ^Tcp: /proc/net/snmp").out.splitlines()
    tcp = dict(zip(names.split(), values.split(), strict=True))
    counters = {counter["name"]: counter["value"] for counter in stats}
    return Counts(counters, int(sent), int(received), int(tcp["RetransSegs"]))


def merging(sender: Counts, receiver: Counts) -> Figures:
    """Return how data was cut and merged, from what was added on both sides of a transfer.

    Packets in a cell, pieces of several packets for each cell, and packets in an skb that mrc0
    received: the more packets a piece has, the better GRO merges. Zero where nothing was sent.
    """
    cells, skbs = sender.counters["tx_cells"], receiver.skbs_received
    return {
        "cells": cells,
        "packets_of_a_sent_skb": _ratio(sender.counters["tx_packets"], sender.skbs_sent),
        "pieces_of_a_cell": _ratio(receiver.counters["rx_cells"], cells),
        "packets_of_a_received_skb": _ratio(receiver.counters["rx_packets"], skbs),
    }


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 2) if whole else 0.0


def framings(vm: Vm) -> set[str | None]:
    """Return the framings of a host's QPs; {None} if mrcd does not answer, or there is no QP."""
    done = vm.run("mrcctl conn list --json", check=False)
    try:
        found = json.loads(done.out)["connections"]
    except (ValueError, KeyError):
        return {None}
    return {qp["framing"] for qp in found} or {None}


def transfer(sender: Vm, receiver: Vm, address: str, blocks: int, within_s: float) -> None:
    """Send random bytes by TCP; AssertionError unless they arrive as they were sent."""
    limit = f"exec timeout {within_s:.0f} python3 -"
    server = receiver.begin(f"{limit} {address} <<'END'\n{_SERVER}END")
    listening = f"ss -Hltn 'sport = :{PORT}' | grep -q ."
    measure.wait_until(
        lambda: receiver.run(listening, check=False).status == 0, within_s, "nothing listens"
    )
    sent = sender.run(f"{limit} {address} {blocks} <<'END'\n{_CLIENT}END", within_s).out
    done = receiver.end(server, within_s)
    if done.status:
        raise MachineFailed(f"{receiver.name}: the server failed: {done.err[-500:]}")
    assert sent == done.out, f"other bytes arrived at {address} than were sent"


def configure(vm: Vm, **transport: str | int) -> None:
    """Have mrcd take these settings of [transport], and no others."""
    write(vm, **transport)
    vm.run("systemctl reload mrcd")


def write(vm: Vm, **transport: str | int) -> None:
    """Write these settings of [transport], and no others, into the configuration."""
    file = "/etc/mrcd/mrcd.toml"
    vm.run(f"sed -i '/^\\[transport\\]$/,$d' {file}")
    lines = [f"{key} = {json.dumps(value)}" for key, value in transport.items()]
    if lines:
        vm.run(f"cat >>{file} <<'END'\n" + "\n".join(["[transport]", *lines, "END"]))
