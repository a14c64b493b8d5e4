# SPDX-License-Identifier: GPL-2.0-only
"""Type the commands of docs/quickstart.md on fresh virtual machines: `make check-readme`.

Invisible comments in the document name the machines on which a block is typed, the file that it
is written to, or a file that the reader copies from one machine to another. Nothing else is done on
the machines, except for longer time-outs where they are emulated.
"""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from mrcd.fabric import description
from vm import machines, measure
from vm.machines import Machine
from vm.measure import Figures
from vm.qemu import MachineFailed, Vm
from vm.steps import LONG_S, WARNING, Step, boot, give_time, open_payload, patience
from vm.verdict import Check

QUICKSTART = Path(__file__).resolve().parents[1] / "docs" / "quickstart.md"
FABRIC = "/etc/mrcd/fabric.toml"
_BLOCK = re.compile(
    r"^<!-- (?:type|write (?P<file>\S+)) on (?P<on>[a-z, ]+) -->\n```\w*\n(?P<text>.*?)^```",
    re.M | re.S,
)
_COPY = re.compile(r"^<!-- copy (?P<file>\S+) from (?P<source>\w+) to (?P<on>[a-z, ]+) -->$", re.M)


@dataclass(frozen=True, slots=True)
class Block:
    """Something to type, or the contents of a file, and on which machines.

    With a `source` the file is copied from that machine, with its owner and mode.
    """

    on: tuple[str, ...]
    file: str | None
    text: str
    source: str | None = None


def blocks(text: str) -> list[Block]:
    """The blocks of a document, in its order."""
    found = [
        (each.start(), Block(tuple(each["on"].split(", ")), each["file"], each["text"]))
        for each in _BLOCK.finditer(text)
    ]
    found += [
        (each.start(), Block(tuple(each["on"].split(", ")), each["file"], "", each["source"]))
        for each in _COPY.finditer(text)
    ]
    return [block for _at, block in sorted(found, key=lambda pair: pair[0])]


def fleet(text: str) -> list[Machine]:
    """The machines of the document's fabric, switches first. Their NICs have any MAC addresses."""
    source = next(block.text for block in blocks(text) if block.file == FABRIC)
    found = machines.of(description.parse(source, FABRIC))
    return [
        replace(
            machine,
            nics=tuple(
                replace(nic, mac=f"52:54:00:00:{number:02x}:{nic.cable:02x}")
                for nic in machine.nics
            ),
        )
        for number, machine in enumerate(found)
    ]


def _follow(vm: Vm, block: Block) -> None:
    if block.file is None:
        vm.run(f"cd && set -e\n{block.text}", LONG_S * patience())
        return
    text = block.text
    if block.file != FABRIC:  # the host's own name
        text = text.replace('name = "a"', f'name = "{vm.name}"')
    vm.run(f"printf %s {shlex.quote(text)} >{block.file}")


def _copy(check: Check, block: Block) -> None:
    """Copy a file as `scp -p` does, for the user that the service runs as."""
    assert block.source is not None
    assert block.file is not None
    text = check.vms[block.source].run(f"cat {block.file}").out
    quoted = shlex.quote(text)
    for name in block.on:
        check.vms[name].run(f"umask 077; printf %s {quoted} >{block.file}")
        check.vms[name].run(f"chown mrcd {block.file}")


def prepare(check: Check) -> Figures:
    """The package is there."""

    def one(vm: Vm) -> None:
        open_payload(vm)
        vm.run("cp /mnt/payload/mrcd_*.deb /root")
        give_time(vm)

    check.together(one, [*check.vms.values()])
    return {}


def typed(check: Check) -> Figures:
    """All blocks but the last."""
    for block in blocks(QUICKSTART.read_text())[:-1]:
        if block.source is not None:
            _copy(check, block)
            continue
        follow = functools.partial(_follow, block=block)
        try:
            check.together(follow, [check.vms[name] for name in block.on])
        except MachineFailed as failed:
            raise MachineFailed(f"{failed}\n{measure.journal(check.hosts[0])[-1500:]}") from None
    lines = check.hosts[0].run("cat /etc/mrcd/*.toml | grep -c .").out.strip()
    return {"configuration_lines": int(lines)}


def ping(check: Check) -> Figures:
    """The last block, once the peer is established."""
    last = blocks(QUICKSTART.read_text())[-1]
    vm = check.vms[last.on[0]]
    took = measure.wait_until(
        lambda: "established" in vm.run("mrcctl peer list", check=False).out,
        300,
        "no peer is established",
    )
    _follow(vm, last)
    said = [e["MESSAGE"] for e in measure.journal_entries(vm) if int(e["PRIORITY"]) <= WARNING]
    return {"established_s": round(took, 1), "warnings": "; ".join(said) or "none"}


STEPS: tuple[Step, ...] = (
    ("boot", boot, True),
    ("prepare", prepare, True),
    ("typed", typed, True),
    ("ping", ping, True),
)
