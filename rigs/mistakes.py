# SPDX-License-Identifier: GPL-2.0-only
"""Operators' mistakes on a running host: how each is made, and how it is put right or named.

The net test makes each once and waits; `bench.faults.repair` makes them again and measures.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cli.lab import state
from mrcd.linux import bpf, ethtool, netns, rtnl, sysfs
from mrcd.linux.interfaces import LinkState
from rigs import lab_hosts
from rigs.assembler import finish

Lab = Any  # conftest.RunningLab
HOST, OTHER = "h1", "h2"
PLANE = "plane1"
BORROWED = "borrowed"
_TC_ACT_OK = 0
Do = Callable[[Lab], object]


def command(*words: str) -> Do:
    """Return what runs a command on the host."""
    return lambda lab: lab.run(HOST, *words)


def commands(*lines: str) -> Do:
    """Return what runs several commands on the host, one after another."""

    def run(lab: Lab) -> None:
        for line in lines:
            lab.run(HOST, *line.split())

    return run


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake. If it is put right, everything is as before, and `about` is in the log.

    If it is named, `named` is part of a reason in status until `undo` has been done. `remade`: mrc0
    has another link-layer address afterwards. `remedy` is done by hand at the end in any case.
    """

    name: str
    make: Do
    does: str
    about: str = ""
    named: str = ""
    undo: Do | None = None
    remade: bool = False
    cells_only: bool = field(default=False)


def take_program_off(pin: str) -> Do:
    """Return what detaches the program of a pinned link, as `bpftool link detach` does."""

    def run(lab: Lab) -> None:
        with bpf.opened(state.places(lab.name, HOST).bpffs / pin) as link:
            bpf.detach_link(link)

    return run


_AHEAD: list[int] = []  # links of programs that stand before mrcd's


def put_ahead(name: str) -> Do:
    """Return what attaches a program that takes everything before all that is there."""

    def run(lab: Lab) -> None:
        program, _ = bpf.load_program(bpf.PROG_TYPE_SCHED_CLS, finish(_TC_ACT_OK), name="agent")
        with netns.entered(lab.namespace(HOST)):
            index = socket.if_nametoindex(name)
            attach = bpf.ATTACH_TCX_INGRESS
            _AHEAD.append(bpf.create_link(program, index, attach, flags=bpf.F_BEFORE))
        os.close(program)

    return run


def take_away(_lab: Lab) -> None:
    """Detach what `put_ahead` has attached."""
    while _AHEAD:
        os.close(_AHEAD.pop())


def remove_pin(pin: str) -> Do:
    """Return what removes the pin of a link, which takes the program off with it."""
    return lambda lab: (state.places(lab.name, HOST).bpffs / pin).unlink()


def move_away(name: str) -> Do:
    """Return what moves an interface to another host's namespace."""

    def run(lab: Lab) -> None:
        lab.run(HOST, "ip", "link", "set", name, "netns", lab.namespace(OTHER), "name", BORROWED)

    return run


def move_back(name: str) -> Do:
    """Return what moves it back and sets it up. In labs hosts make no link-local addresses."""

    def run(lab: Lab) -> None:
        there = lab.namespace(HOST)
        lab.run(OTHER, "ip", "link", "set", BORROWED, "netns", there, "name", name)
        lab.run(HOST, "ip", "link", "set", name, "up")
        lab.run(HOST, "ip", "address", "add", "fe80::2/64", "dev", name, "nodad")

    return run


def delete_borrowed(lab: Lab) -> None:
    """Delete an interface that was moved away and made anew here."""
    lab.run(OTHER, "ip", "link", "delete", BORROWED)


def take_name(lab: Lab) -> None:
    """Delete mrc0 and give its name to a bridge, if need be more than once: mrcd is quick."""
    lab.run(HOST, "ip", "link", "add", "foo", "type", "bridge")
    both = "printf 'link delete mrc0\\nlink set foo name mrc0\\n' | ip -batch -"
    lab_hosts.eventually(
        lambda: (
            lab.run(HOST, "sh", "-c", both, check=False)
            or "foo" not in lab.run(HOST, "ip", "-br", "link")
        ),
        "mrc0's name is taken",
    )


def stop_spreading(name: str) -> Do:
    """Return what has all packets of an interface handled by the CPU that they arrive on."""

    def run(lab: Lab) -> None:
        with netns.entered(lab.namespace(HOST)):
            sysfs.write_interfaces([name], "queues/rx-0/rps_cpus", "0")

    return run


REPAIRED = (
    Mistake(
        "receive packet steering switched off",
        stop_spreading("mrc0p"),
        "switches it on",
        "mrc0p steering",
    ),
    Mistake(
        "a program put before mrcd's",
        put_ahead(PLANE),
        "puts its own first again",
        f"programs of {PLANE}",
        undo=take_away,
    ),
    Mistake(
        "mrc0's MTU lowered",
        command("ip", "link", "set", "mrc0", "mtu", "1400"),
        "sets it back",
        "mrc0 MTU",
    ),
    Mistake(
        "mrc0's MTU too small for IPv6",
        command("ip", "link", "set", "mrc0", "mtu", "1000"),
        "sets it back, with the IPv6 address and routes",
        "mrc0 MTU",
    ),
    Mistake(
        "mrc0 set down",
        command("ip", "link", "set", "mrc0", "down"),
        "sets it up, with addresses and routes",
        "mrc0 state",
    ),
    Mistake(
        "mrc0 deleted",
        command("ip", "link", "delete", "mrc0"),
        "makes it anew, with addresses and routes",
        "mrc0",
        remade=True,
    ),
    Mistake(
        "mrc0p deleted",
        command("ip", "link", "delete", "mrc0p"),
        "makes it and mrc0 anew, with programs, addresses and routes",
        "mrc0p",
        remade=True,
    ),
    Mistake(
        "mrc0c deleted",
        command("ip", "link", "delete", "mrc0c"),
        "makes the pair anew, with programs",
        "mrc0c",
        cells_only=True,
    ),
    Mistake(
        "mrc0 renamed",
        command("ip", "link", "set", "mrc0", "name", "foo"),
        "gives it its name back",
        "mrc0 name",
    ),
    Mistake(
        "mrc0 moved to another namespace",
        move_away("mrc0"),
        "makes it anew",
        "mrc0",
        undo=delete_borrowed,
        remade=True,
        cells_only=True,
    ),
    Mistake(
        "mrc0's link-layer address changed",
        command("ip", "link", "set", "mrc0", "address", "02:00:00:00:00:99"),
        "sets it back",
        "mrc0 address",
    ),
    Mistake(
        "ARP switched on",
        command("ip", "link", "set", "mrc0", "arp", "on"),
        "switches it off",
        "mrc0 ARP",
    ),
    Mistake(
        "mrc0 put into a bridge",
        commands("ip link add foo type bridge", "ip link set mrc0 master foo"),
        "takes it out",
        "mrc0 master",
        undo=command("ip", "link", "delete", "foo"),
    ),
    Mistake(
        "offloads switched off",
        command("ethtool", "-K", "mrc0p", "gro", "off", "tx", "off"),
        "switches them on",
        "mrc0p offloads",
        cells_only=True,
    ),
    Mistake(
        "mrc0's segment bounds changed",
        command("ip", "link", "set", "mrc0", "gso_max_size", "2000"),
        "sets them back",
        "mrc0 GSO",
    ),
    Mistake(
        "mrc0's addresses flushed",
        command("ip", "address", "flush", "dev", "mrc0"),
        "gives them back",
        "10.99.0.1/24",
    ),
    Mistake(
        "route to a peer deleted",
        command("ip", "route", "delete", "10.99.0.2", "dev", "mrc0"),
        "installs it",
        "10.99.0.2/32",
    ),
    Mistake(
        "IPv6 route to a peer deleted",
        command("ip", "-6", "route", "delete", "fd99::2", "dev", "mrc0"),
        "installs it",
        "fd99::2/128",
    ),
    Mistake(
        "MTU of a route changed",
        command("ip", "route", "replace", "10.99.0.2", "dev", "mrc0", "mtu", "1000"),
        "installs it with the peer's MTU",
        "10.99.0.2/32",
    ),
    Mistake(
        "program detached from mrc0p",
        take_program_off("link_tc_mrc0p"),
        "attaches it",
        "link_tc_mrc0p",
    ),
    Mistake(
        "program detached from a plane NIC",
        take_program_off(f"link_tc_{PLANE}"),
        "attaches it",
        f"link_tc_{PLANE}",
    ),
    Mistake(
        "pin of a program removed",
        remove_pin(f"link_tc_{PLANE}"),
        "attaches and pins it",
        f"link_tc_{PLANE}",
    ),
    Mistake(
        "address of a plane NIC deleted",
        command("ip", "-6", "address", "flush", "dev", PLANE, "scope", "global"),
        "gives it back",
        "plane 1 address",
    ),
    Mistake(
        "route into the fabric deleted",
        command("ip", "-6", "route", "delete", "fcbb:bb00:2000::/35", "dev", PLANE),
        "installs it",
        "plane 1 route",
    ),
)
NAMED = (
    Mistake(
        "plane NIC put into a bridge",
        commands("ip link add br9 type bridge", f"ip link set {PLANE} master br9"),
        "names it",
        named=f"plane 1: {PLANE} is a port of br9 (a bridge)",
        undo=commands(f"ip link set {PLANE} nomaster", "ip link del br9"),
    ),
    Mistake(
        "MTU of a plane NIC lowered",
        command("ip", "link", "set", PLANE, "mtu", "1500"),
        "leaves the plane while there is another, and names it",
        named=f"plane 1: {PLANE} has MTU 1500",
        undo=command("ip", "link", "set", PLANE, "mtu", "9000"),
    ),
    Mistake(
        "plane NIC renamed",
        command("ip", "link", "set", PLANE, "name", "foo"),
        "follows it and names it",
        named="plane 1: plane1 is now called foo",
        undo=command("ip", "link", "set", "foo", "name", PLANE),
    ),
    Mistake(
        "plane NIC moved away, and back",
        move_away(PLANE),
        "names it; uses it again when it is back",
        named=f"plane 1: {PLANE} is missing",
        undo=move_back(PLANE),
    ),
    Mistake(
        "plane NIC set down",
        command("ip", "link", "set", PLANE, "down"),
        "leaves the plane and names it; restores address and route when it is up",
        named=f"plane 1: {PLANE} is down",
        undo=commands(f"ip link set {PLANE} up", f"ip address add fe80::2/64 dev {PLANE} nodad"),
    ),
    Mistake(
        "a queue put in front of mrc0",
        command("tc", "qdisc", "add", "dev", "mrc0", "root", "pfifo", "limit", "5"),
        "names it",
        named="mrc0 has a queue that is not mrcd's (pfifo)",
        undo=command("tc", "qdisc", "delete", "dev", "mrc0", "root"),
    ),
    Mistake(
        "mrc0 deleted, and its name taken",
        take_name,
        "names it; makes mrc0 anew when the name is free",
        named="another interface (a bridge) has its name",
        undo=command("ip", "link", "delete", "mrc0"),
        remade=True,
    ),
)


# ---- what can be seen from outside


def seen(lab: Lab) -> dict[str, Any]:
    """Return everything that mrcd looks after, as the kernel has it; comparable."""
    places = state.places(lab.name, HOST)
    with netns.entered(lab.namespace(HOST)):
        links = {link.name: link for link in rtnl.links().values()}
        given = rtnl.addresses()
        ours = [name for name in links if name.startswith(("mrc0", "plane"))]
        found: dict[str, Any] = {
            name: (
                link.mtu, link.up, link.arp, link.master, link.qdisc, link.kind, link.gso[0],
                _addresses(link, given), _routes(link),
                ethtool.get_features(name) if name.startswith("mrc0") else None,
            )
            for name, link in links.items() if name in ours
        }  # fmt: skip
    for pin in sorted(places.bpffs.glob("link_*")):
        with bpf.opened(pin) as link:
            there = bpf.link_info(link)
            placed = [each.name for each in links.values() if each.index == there.ifindex]
            found[pin.name] = placed, there.program
    return found


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Say what of two results of `seen` differs, for a message; empty if nothing does."""
    changed = sorted(
        name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
    )
    return "; ".join(f"{name}: {before.get(name)} -> {now.get(name)}" for name in changed)


def _addresses(link: LinkState, given: dict[int, set[str]]) -> list[str]:
    """Return the addresses of an interface that mrcd looks after."""
    found = sorted(given.get(link.index, ()))
    return [each for each in found if link.name.startswith("mrc0") or each.startswith("fdcb:")]


def _routes(link: LinkState) -> dict[str, int]:
    """Return the routes over an interface that mrcd looks after; labs give planes others, too."""
    found, _hops = rtnl.routes(link.index)
    if link.name.startswith("mrc0"):
        return found
    return {prefix: mtu for prefix, mtu in found.items() if prefix.startswith("fcbb:")}


def mac(lab: Lab) -> str:
    """Return mrc0's link-layer address."""
    shown = json.loads(lab.run(HOST, "ip", "-j", "link", "show", "mrc0"))
    return str(shown[0]["address"])


def repairs(lab: Lab, about: str) -> int:
    """Return how often the log says that something was put right."""
    log = state.places(lab.name, HOST).log.read_text()
    wanted = f'"event": "interface.repaired", "about": "{about}"'
    return log.count(wanted)


def named(lab: Lab, text: str) -> bool:
    """Return whether a reason in status contains a text, and the daemon counts as degraded."""
    status = lab_hosts.status(lab.name, HOST)
    if status is None or status.state == "ok":
        return False
    return any(text in reason for reason in status.reasons)
