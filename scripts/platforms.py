# SPDX-License-Identifier: GPL-2.0-only
"""Write the tables of docs/platforms.md from the results in vm/results.

Run it (`make docs`) when a check has recorded a result; a test compares. With --stale, only name
the results of other BPF sources than the checkout's, which are to be tried again before a release.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rigs.kept_programs import PROGRAMS, WALKED_MAX
from vm import results

PAGE = Path(__file__).parents[1] / "docs" / "platforms.md"
KINDS = ("verifier", "vm", "nics", "python", "arm64")
SUITES = {
    "running": "this machine's own",
    "bookworm": "Debian 12",
    "trixie": "Debian 13",
    "trixie-backports": "Debian 13, backports",
}
_NAMES = {
    "result": "fabric with switches",
    "cables": "two hosts, cables",
    "switch": "two hosts, a switch",
    "router4": "two hosts, an IPv4 router",
    "readme": "the quickstart, typed",
}
_COMMANDS = {
    "verifier": 'make check-verifier KERNELS="{key}"',
    "vm": "make check-vm RELEASE={release}",
    "python": 'make check-python PYTHONS="{key}"',
    "arm64": "make check-arm",
    "nics": "make check-vm RELEASE={release} NIC={model}",
}


def _table(head: str, rows: list[list[str]]) -> str:
    columns = head.count("|") + 1
    lines = [f"| {head} |", f"|{'---|' * columns}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _said(found: dict[str, Any]) -> str:
    """Return the outcome of a check in steps."""
    steps: dict[str, dict[str, Any]] = found["steps"]
    bad = [name for name, step in steps.items() if not step["good"]]
    return (
        f"{len(steps)} steps: ok" if found["good"] else f"FAILED: {', '.join(bad) or 'unfinished'}"
    )


def _when(found: dict[str, Any]) -> str:
    return f"{found['date']}, {found['build']}"


def platforms() -> str:
    """Return the table of what was tried by hand, with its last result."""
    rows: list[list[str]] = []
    for key, found in sorted(results.read("vm").items()):
        release, name = key.split(" ", 1)
        command = _COMMANDS["vm"].format(release=release)
        if name != "result":
            command += f' ARGS="--network {name}"' if name != "readme" else ""
        if name == "readme":
            command = f"make check-readme RELEASE={release}"
        what = f"{SUITES[release]}: the package, {_NAMES[name]}"
        rows.append([what, found["kernel"], f"`{command}`", _when(found), _said(found)])
    for key, found in sorted(results.read("python").items()):
        said = f"{found['ran']} ran, {found['failed']} failed, {found['skipped']} skipped"
        command = _COMMANDS["python"].format(key=key)
        what = f"Python {found['python']}: unit tests"
        rows.append([what, "", f"`{command}`", _when(found), said])
    for key, found in sorted(results.read("arm64").items()):
        what = f"arm64, {SUITES[key]}: programs, two hosts in a lab"
        rows.append([what, found["kernel"], f"`{_COMMANDS['arm64']}`", _when(found), _said(found)])
    for key, found in _kernels():
        longest = max(found["walked"].values())
        command = _COMMANDS["verifier"].format(key=key)
        what = f"{SUITES[key]}: the verifier takes all programs"
        said = f"{found['loads']} loaded, {len(found['refused'])} refused, longest walk {longest:,}"
        rows.append([what, found["kernel"], f"`{command}`", _when(found), said])
    return _table("what | Linux | command | last | result", rows)


def _kernels() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the results of verifiers, in the order of SUITES."""
    kept = results.read("verifier")
    for key in SUITES:
        if key in kept:
            yield key, kept[key]


def verifier() -> str:
    """Return the table of instructions walked, the longest first."""
    kernels = list(_kernels())
    head = " | ".join(["program", *(_short(found["kernel"]) for _key, found in kernels)])

    def longest(name: str) -> int:
        return max((found["walked"].get(name, 0) for _key, found in kernels), default=0)

    rows = [
        [f"`{name}`", *(f"{found['walked'].get(name, 0):,}" for _key, found in kernels)]
        for name in sorted(PROGRAMS, key=longest, reverse=True)
    ]
    return _table(head, rows)


def _short(release: str) -> str:
    """Return a kernel's release without its flavour: 6.12.118."""
    found = re.match(r"[\d.]+(-\d+)?", release)
    return found[0] if found else release


def nics() -> str:
    """Return the table of NICs of virtual machines."""
    rows = []
    for key, found in sorted(results.read("nics").items()):
        steps = found["steps"]
        there = steps.get("network", {})
        xdp = steps.get("native XDP", {})
        cells = steps.get("cells", {})
        cut = steps.get("cut a cable", {})
        flow = steps.get("order", {})
        rows.append(
            [
                f"{there.get('driver', key)}, {_short(found['kernel'])}",
                f"{there.get('receive_queues', '')}/{there.get('transmit_queues', '')}",
                _figures(flow, "mbps", "tcp_retransmits", "datagrams", "lost_datagrams"),
                _figures(cells, "packets_of_a_sent_skb with offloads",
                         "packets_of_a_received_skb with offloads"),
                _figures(cut, "named_s", "longest_gap_s", "tcp_retransmits"),
                xdp.get("native", "failed" if xdp else "not tried"),
                _when(found),
                _said(found),
            ]
        )  # fmt: skip
    head = (
        "driver, Linux | queues, receive/transmit | Mb/s, TCP retransmissions, datagrams, lost"
        " | packets of an skb: sent, received | cable cut: named after, longest pause (s),"
        " retransmissions | native XDP | last | result"
    )
    return _table(head, rows)


def _figures(step: dict[str, Any], *names: str) -> str:
    return ", ".join(str(step[name]) for name in names if name in step)


TABLES = {"platforms": platforms, "verifier": verifier, "nics": nics}


def page(text: str) -> str:
    """Return the page with the tables as they should be."""
    for name, table in TABLES.items():
        place = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        made = table()
        text, found = re.subn(
            place, lambda match, made=made: match[1] + made + match[2], text, flags=re.DOTALL
        )
        assert found == 1, f"docs/platforms.md has no <!-- {name} --> ... <!-- /{name} -->"
    return text


def too_long() -> list[str]:
    """Name the recorded walks that are too long, and programs that a kernel was not given."""
    said = []
    for key, found in _kernels():
        said += [f"{key}: {where}: refused" for where in found["refused"]]
        for name in PROGRAMS:
            walked = found["walked"].get(name)
            if walked is None or walked > WALKED_MAX:
                said.append(f"{key}: {name}: {'not loaded' if walked is None else walked}")
    return said


def stale() -> list[str]:
    """Name the results of other BPF sources than these."""
    now = results.sources()
    return [
        f"{kind} {key}: of {_when(found)}"
        for kind in KINDS
        for key, found in sorted(results.read(kind).items())
        if found["sources"] != now
    ]


def main() -> int:
    """Write the page, or name stale results and return 1 if there are any."""
    if sys.argv[1:] == ["--stale"]:
        old = stale()
        print(*old, sep="\n", end="\n" if old else "")
        return bool(old)
    PAGE.write_text(page(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
