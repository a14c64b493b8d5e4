# SPDX-License-Identifier: GPL-2.0-only
"""Test that operators' mistakes are put right or named while traffic flows."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cli.lab.lab import daemon_pid, start_daemon
from mrcd.linux import bpf
from mrcd.linux.netlink import Netlink
from mrcd.repair.repeats import WITHIN_S
from rigs import lab_hosts, mistakes
from rigs.assembler import finish
from rigs.daemons import log_of
from rigs.lab_hosts import eventually
from rigs.mistakes import HOST, NAMED, REPAIRED, Mistake
from rigs.traffic import Stream, transfer

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
H2, H2_6 = "10.99.0.2", "fd99::2"
MIB = 1 << 20

pytestmark = pytest.mark.timeout(240)
SOON_S = 15.0
"""mrcd takes far less than a second (docs/operations.md); a busy machine may take longer."""
CONTENT_S = WITHIN_S + 15
"""Status names for a minute what was put right often, and these tests may do that together."""


@pytest.fixture
def stream(shared_lab: Lab) -> Iterator[Stream]:
    """Return a TCP connection that has begun to send and survives the test."""
    found = Stream(shared_lab, "h1", "h2", H2).start()
    found.progress(MIB)
    yield found
    found.progress(4 * MIB, 20)
    found.finish()


def as_before(lab: Lab, before: dict[str, Any]) -> None:
    """Wait until everything that mrcd looks after is as before; name what is not."""
    eventually(
        lambda: mistakes.seen(lab) == before,
        lambda: f"everything is as before: {mistakes.difference(before, mistakes.seen(lab))}",
        SOON_S,
    )


def make_and_wait(lab: Lab, mistake: Mistake) -> None:
    """Make a mistake, and wait until everything is as before and the log says so."""
    before, done = mistakes.seen(lab), mistakes.repairs(lab, mistake.about)
    address = mistakes.mac(lab)
    mistake.make(lab)
    eventually(
        lambda: mistakes.repairs(lab, mistake.about) > done,
        f"the log says that {mistake.about} was put right",
        SOON_S,
    )
    if mistake.undo is not None:
        mistake.undo(lab)
    as_before(lab, before)
    assert (mistakes.mac(lab) != address) == mistake.remade
    lab_hosts.until_ok(lab.name, HOST, CONTENT_S)


def _is_move(entry: dict[str, Any]) -> bool:
    return bool(entry["event"] == "interface.moved")


@pytest.mark.parametrize("mistake", REPAIRED, ids=lambda mistake: mistake.name)
def test_mistake_is_put_right(shared_lab: Lab, stream: Stream, mistake: Mistake) -> None:
    moves = [entry["interface"] for entry in log_of(shared_lab, HOST) if _is_move(entry)]
    make_and_wait(shared_lab, mistake)
    if "to another namespace" in mistake.name:
        after = [entry["interface"] for entry in log_of(shared_lab, HOST) if _is_move(entry)]
        assert after == [*moves, "mrc0"]
    stream.progress(4 * MIB, 20)
    transfer(shared_lab, "h2", "h1", "10.99.0.1", MIB)
    transfer(shared_lab, "h1", "h2", H2_6, MIB)


@pytest.mark.parametrize("mistake", NAMED, ids=lambda mistake: mistake.name)
def test_mistake_is_named_until_it_is_undone(
    shared_lab: Lab, stream: Stream, mistake: Mistake
) -> None:
    before = mistakes.seen(shared_lab)
    mistake.make(shared_lab)
    eventually(lambda: mistakes.named(shared_lab, mistake.named), "status names it", SOON_S)
    assert mistake.undo is not None
    mistake.undo(shared_lab)
    as_before(shared_lab, before)
    lab_hosts.until_ok(shared_lab.name, HOST, CONTENT_S)
    stream.progress(4 * MIB, 20)
    transfer(shared_lab, "h1", "h2", H2_6, MIB)


def test_mrc0_that_was_renamed_while_mrcd_was_away(make_lab: MakeLab) -> None:
    lab = make_lab(daemons=True, planes=2, on_stop="keep")
    stream = Stream(lab, HOST, "h2", H2).start()
    stream.progress(MIB)
    pid = daemon_pid(lab.name, HOST)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: daemon_pid(lab.name, HOST) is None, "mrcd has ended")
    lab.run(HOST, "ip", "link", "set", "mrc0", "name", "foo")
    start_daemon(lab.name, HOST)
    lab_hosts.until_ok(lab.name, HOST, 60)
    assert "foo" not in lab.run(HOST, "ip", "-o", "link")
    stream.progress(4 * MIB, 20)
    stream.finish()


@pytest.mark.parametrize(
    ("harm", "says", "undo"),
    [
        (("name", "gone"), "plane 1: plane1 is missing", "gone name plane1"),
        (("down",), "plane 1: plane1 is down", "plane1 up"),
        (("mtu", "1500"), "plane 1: plane1 has MTU 1500", "plane1 mtu 9000"),
    ],
    ids=["missing", "down", "narrow"],
)
def test_start_without_one_of_the_nics(
    make_lab: MakeLab, harm: tuple[str, ...], says: str, undo: str
) -> None:
    """mrcd starts with the others, and uses it as soon as it is as it should be."""
    lab = make_lab(daemons=False, planes=2)
    lab.run(HOST, "ip", "link", "set", "plane1", "down")
    lab.run(HOST, "ip", "link", "set", "plane1", *harm)
    if harm != ("down",):
        lab.run(HOST, "ip", "link", "set", "gone" if "gone" in harm else "plane1", "up")
    for host in ("h1", "h2"):
        start_daemon(lab.name, host)
    eventually(lambda: mistakes.named(lab, says), f"status says {says}", 60)
    eventually(lambda: lab.pings(HOST, H2), "h2 answers", 60)
    transfer(lab, HOST, "h2", H2, MIB)
    lab.run(HOST, "ip", "link", "set", *undo.split())
    if "gone" in harm:
        lab.run(HOST, "ip", "link", "set", "plane1", "up")
    lab_hosts.until_ok(lab.name, HOST, 60)
    transfer(lab, HOST, "h2", H2, 4 * MIB)
    used = {path.plane for path in lab_hosts.paths(lab.name, HOST) if path.sent}
    assert used == {0, 1}


def test_repair_that_something_keeps_undoing_is_named(make_lab: MakeLab) -> None:
    lab = make_lab(daemons=True, planes=2)

    def again() -> bool:
        lab.run(HOST, "ip", "link", "set", "mrc0", "mtu", "1300")
        return mistakes.named(lab, "something else on this host keeps changing it")

    eventually(again, "status says that something keeps changing mrc0's MTU")


def test_without_cells(make_lab: MakeLab) -> None:
    """There mrc0 is an end of a pair, and a move takes half of it away."""
    lab = make_lab(daemons=True, planes=2, settings='[transport]\nframing = "mrc"\n')
    away = Mistake("moved", mistakes.move_away("mrc0"), "", "mrc0", remade=True)
    names = {"mrc0 deleted", "mrc0p deleted", "mrc0 set down", "program detached from mrc0p"}
    chosen = [mistake for mistake in REPAIRED if mistake.name in names]
    assert len(chosen) == len(names)
    for mistake in (*chosen, away):
        make_and_wait(lab, mistake)
        transfer(lab, "h1", "h2", H2, MIB)


def test_programs_of_clsact(make_lab: MakeLab) -> None:
    """Without tcx a filter is deleted by name, or with the whole queue."""
    lab = make_lab(daemons=True, planes=2, settings='[transport]\ntc = "clsact"\n')
    for interface, direction in (("plane1", "ingress"), ("mrc0p", "egress")):
        for words in (
            ("tc", "filter", "delete", "dev", interface, direction),
            ("tc", "qdisc", "delete", "dev", interface, "clsact"),
        ):
            about = f"link_tc_{interface}"
            done = mistakes.repairs(lab, about)
            lab.run(HOST, *words)
            eventually(lambda: mistakes.repairs(lab, about) > done, f"{words} is undone", SOON_S)  # noqa: B023
            shown = lab.run(HOST, "tc", "filter", "show", "dev", interface, direction)
            assert "mrc_" in shown
            lab_hosts.until_ok(lab.name, HOST, CONTENT_S)
            transfer(lab, "h1", "h2", H2, MIB)


def test_filter_before_ours_is_named_where_there_is_no_tcx(make_lab: MakeLab) -> None:
    lab = make_lab(daemons=True, planes=2, settings='[transport]\ntc = "clsact"\n')
    lab_hosts.until_ok(lab.name, HOST, 60)
    place = {"prio": 1, "direction": "ingress"}

    async def attach() -> None:
        program, _ = bpf.load_program(bpf.PROG_TYPE_SCHED_CLS, finish(0), name="agent")
        async with Netlink(lab.namespace(HOST)) as nl:
            await nl.attach_clsact(mistakes.PLANE, program, prog_name="agent", **place)
        os.close(program)

    async def detach() -> None:
        async with Netlink(lab.namespace(HOST)) as nl:
            await nl.detach_clsact(mistakes.PLANE, **place)

    asyncio.run(attach())
    what = "the program agent (filter of pref 1) of others stands before mrcd's on"
    eventually(lambda: mistakes.named(lab, f"{what} {mistakes.PLANE}"), "status names it", SOON_S)
    asyncio.run(detach())
    lab_hosts.until_ok(lab.name, HOST, CONTENT_S)


def test_rule_that_leads_packets_elsewhere_is_named(shared_lab: Lab) -> None:
    """As tunnels that have a table of their own do it."""
    rule = ("rule", "add", "pref", "5270", "lookup", "52")
    shared_lab.run(HOST, "ip", "route", "add", "10.96.0.0/12", "dev", "plane0", "table", "52")
    shared_lab.run(HOST, "ip", *rule)
    try:
        text = "leave by plane0 and not by mrc0: a routing rule"
        eventually(lambda: mistakes.named(shared_lab, text), "status names it", SOON_S)
    finally:
        shared_lab.run(HOST, "ip", "rule", "del", "pref", "5270")
        shared_lab.run(HOST, "ip", "route", "flush", "table", "52")
    lab_hosts.until_ok(shared_lab.name, HOST, CONTENT_S)


def test_firewall_of_the_host_that_drops_hand_shakes_is_named(make_lab: MakeLab) -> None:
    """Peers' packets arrive, and their sockets get none: from the start, and later on."""
    lab = make_lab(daemons=True, planes=2)
    lab_hosts.until_ok(lab.name, HOST, 60)
    lab.run(
        HOST, "nft", "table inet f { chain i { type filter hook input priority 0; policy drop; }; }"
    )
    eventually(lambda: mistakes.named(lab, "a firewall of this host drops UDP port"), "why", 30.0)
    lab.run(HOST, "nft", "delete table inet f")
    lab_hosts.until_ok(lab.name, HOST, CONTENT_S)
