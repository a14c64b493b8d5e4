# SPDX-License-Identifier: GPL-2.0-only
"""Test that a daemon without any capability does all that a daemon does, and what it may ask for.

The privileged process is the daemon's child. It holds the capabilities, and outlives nothing.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.lab import lab, state
from mrcd.linux import netns, rights
from mrcd.linux.privileged import server
from mrcd.linux.privileged.client import Channel
from mrcd.linux.privileged.permits import Permits, Plane
from mrcd.linux.privileged.requests import AddAddress, RenameLink, Request, SetLink
from rigs import lab_hosts
from rigs.lab_hosts import eventually
from rigs.traffic import transfer

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
H1, H2, H3 = "10.99.0.1", "10.99.0.2", "10.99.0.3"
SETTLED_S = 120.0  # compiling takes seconds, and far longer on a busy machine

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def three(module_labs: MakeLab) -> Lab:
    """Return a lab of three hosts, with daemons that leave their data path in place."""
    return module_labs(daemons=True, hosts=3, planes=2, t1=2, on_stop="keep")


@pytest.fixture
def running(three: Lab) -> Lab:
    """Return that lab with every daemon up and ok."""
    for host in ("h1", "h2", "h3"):
        if lab.daemon_pid(three.name, host) is None:
            lab.start_daemon(three.name, host)
    for host in ("h1", "h2", "h3"):
        lab_hosts.until_ok(three.name, host, SETTLED_S)
    return three


def daemon(running: Lab) -> int:
    """Return the pid of h1's daemon."""
    pid = lab.daemon_pid(running.name, "h1")
    assert pid is not None
    return pid


def privileged(pid: int) -> int:
    """Return the pid of the privileged process of a daemon."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (child,) = (
        int(child)
        for child in children
        if server.__name__.encode() in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    return child


def assert_powerless(pid: int) -> None:
    """Assert that no thread of the daemon has a capability, or can ever have one."""
    tasks = Path(f"/proc/{pid}/task")
    eventually(
        lambda: len(os.listdir(tasks)) > 1, "it has looked at its interfaces in a thread", SETTLED_S
    )
    assert lab_hosts.powerless(pid)


def configure(running: Lab, more: str, peers: tuple[str, ...] = ("h2", "h3")) -> None:
    """Have h1's daemon read another configuration."""
    text = '[host]\nname = "h1"\nfabric = "../fabric.toml"\n[service]\non_stop = "keep"\n'
    text += '[keys]\nsecret_file = "../fabric.secret"\n' + more
    text += "".join(f'[[peer]]\nname = "{name}"\n' for name in peers)
    state.places(running.name, "h1").config.write_text(text)
    os.kill(daemon(running), signal.SIGHUP)


def routes(running: Lab) -> str:
    return str(running.run("h1", "ip", "route", "show", "dev", "mrc0"))


def addresses(running: Lab) -> str:
    return str(running.run("h1", "ip", "address", "show", "dev", "mrc0"))


def test_a_daemon_without_capabilities_moves_data(running: Lab) -> None:
    assert_powerless(daemon(running))
    transfer(running, "h1", "h2", H2, 1 << 20)
    assert running.pings("h1", H3)
    assert_powerless(daemon(running))


def test_the_other_process_has_what_the_daemon_gave_up(running: Lab) -> None:
    held = rights.held(privileged(daemon(running)))
    assert held["CapEff"] == rights.mask(server.WORK)
    assert held["CapPrm"] == held["CapBnd"] == rights.mask({*server.WORK, *server.LOADING})
    assert not held["CapEff"] & rights.mask([rights.PERFMON]), "it is for the loader"
    assert held["CapAmb"] == 0, "nothing that it starts inherits a capability by chance"


def test_peers_come_and_go(running: Lab) -> None:
    pid = daemon(running)
    eventually(lambda: H3 in routes(running), "there is a route to h3")
    configure(running, "", peers=("h2",))
    eventually(lambda: H3 not in routes(running), "the route to h3 is gone", SETTLED_S)
    assert not running.pings("h1", H3)
    configure(running, "")
    eventually(lambda: running.pings("h1", H3), "h3 is a peer again", SETTLED_S)
    assert H3 in routes(running)
    assert daemon(running) == pid
    assert_powerless(pid)


def test_addresses_of_mrc0_change(running: Lab) -> None:
    pid = daemon(running)
    more = '[mrc0]\naddresses = ["10.99.0.1/24", "fd99::1/64", "10.97.0.1/24"]\n'
    configure(running, more)
    eventually(lambda: "10.97.0.1/24" in addresses(running), "there is a new address", SETTLED_S)
    configure(running, "")
    eventually(lambda: "10.97.0.1/24" not in addresses(running), "it is gone again", SETTLED_S)
    assert running.pings("h1", H2)
    assert_powerless(pid)


def test_a_planes_nic_goes_and_comes(running: Lab) -> None:
    """The kernel removes a NIC's address and route when it goes down."""
    pid = daemon(running)
    running.run("h1", "ip", "link", "set", "plane1", "down")
    eventually(lambda: not lab_hosts.ok(running.name, "h1"), "h1 says so", SETTLED_S)
    assert running.pings("h1", H2)
    assert "fdcb:" not in running.run("h1", "ip", "-6", "address", "show", "dev", "plane1")
    running.run("h1", "ip", "link", "set", "plane1", "up")
    # Lab hosts do not create link-local addresses; other hosts have one again by now.
    running.run("h1", "ip", "address", "add", "fe80::2/64", "dev", "plane1", "nodad")
    lab_hosts.until_ok(running.name, "h1", SETTLED_S)
    assert "fdcb:" in running.run("h1", "ip", "-6", "address", "show", "dev", "plane1")
    assert_powerless(pid)


def test_a_planes_nic_that_was_renamed_goes_and_comes(running: Lab) -> None:
    """The privileged process knows it by its index."""
    running.run("h1", "ip", "link", "set", "plane1", "name", "lan1")
    running.run("h1", "ip", "link", "set", "lan1", "down")
    eventually(lambda: not lab_hosts.ok(running.name, "h1"), "h1 says so", SETTLED_S)
    running.run("h1", "ip", "link", "set", "lan1", "up")
    running.run("h1", "ip", "address", "add", "fe80::2/64", "dev", "lan1", "nodad")

    def restored() -> bool:
        return "fdcb:" in running.run("h1", "ip", "-6", "address", "show", "dev", "lan1")

    eventually(restored, "lan1 has the address of plane 1", SETTLED_S)
    running.run("h1", "ip", "link", "set", "lan1", "name", "plane1")
    lab_hosts.until_ok(running.name, "h1", SETTLED_S)


@pytest.fixture
def asked(running: Lab) -> Iterator[Channel]:
    """Return a channel to a server in h2 for which `ours` is mrc0 and `nic` a plane NIC."""
    there = running.namespace("h2")
    for name in ("ours", "nic", "theirs"):
        running.run("h2", "ip", "link", "add", name, "type", "veth", "peer", f"{name}-")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    permits = Permits("ours", {"nic": Plane("fd01::1/64", "fd02::/32", "fe80::1")}, (), "/none")
    with netns.entered(there):  # which the thread inherits
        serving = server.Server(theirs, "/none", "/none", "")
        serving.permit(permits.dumps())
        thread = threading.Thread(target=serving.serve)
        thread.start()
    channel = Channel(ours)
    yield channel
    channel.close()
    thread.join()
    theirs.close()
    for name in ("ours-", "nic-", "theirs-"):
        running.run("h2", "ip", "link", "delete", name)


def test_what_was_renamed_is_known_and_nothing_else(running: Lab, asked: Channel) -> None:
    links = running.run("h2", "ip", "-o", "link").splitlines()
    index = {line.split()[1].split("@")[0]: int(line.split(":")[0]) for line in links}

    def refused(request: Request) -> None:
        with pytest.raises(OSError, match="refused to") as found:
            asked.ask(request)
        assert found.value.errno == errno.EPERM

    for name in ("ours", "nic"):
        running.run("h2", "ip", "link", "set", name, "name", f"{name}2")
    running.run("h2", "ip", "link", "set", "theirs", "up")
    refused(RenameLink(index["theirs"], "ours"))
    refused(RenameLink(index["nic"], "ours"))
    refused(RenameLink(index["nic"], "nic"))
    refused(AddAddress("theirs", "fd01::1/64"))
    refused(AddAddress("nic2", "fd01::2/64"))
    refused(SetLink("nic2", master=0))
    asked.ask(AddAddress("nic2", "fd01::1/64"))
    asked.ask(RenameLink(index["ours"], "ours"))
    asked.ask(SetLink("ours", master=0))
    assert "fd01::1/64" in running.run("h2", "ip", "address", "show", "dev", "nic2")
    assert "ours@" in running.run("h2", "ip", "-o", "link", "show", "dev", "ours")


def test_other_maps_are_made_while_the_daemon_runs(running: Lab) -> None:
    """The privileged process runs the loader again."""
    pid = daemon(running)
    configure(running, "[transport]\nmpr = 1024\n")

    def rebuilt() -> bool:
        return "datapath.restarting" in state.places(running.name, "h1").log.read_text()

    eventually(rebuilt, "the data path is made anew", SETTLED_S)
    eventually(lambda: running.pings("h1", H2), "h1 reaches h2 again", SETTLED_S)
    assert daemon(running) == pid
    assert_powerless(pid)


def test_the_privileged_process_ends_with_its_daemon(running: Lab) -> None:
    pid = daemon(running)
    child = os.pidfd_open(privileged(pid))
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: _ended(child), "the privileged process has ended")
    os.close(child)
    assert running.pings("h1", H2), "the data path needs neither"


def test_a_daemon_ends_without_its_privileged_process(running: Lab) -> None:
    """A service manager starts both again, and the data path runs on meanwhile."""
    pid = daemon(running)
    process = os.pidfd_open(pid)
    os.kill(privileged(pid), signal.SIGKILL)
    eventually(lambda: _ended(process), "the daemon has ended")
    os.close(process)
    assert "daemon.failed" in state.places(running.name, "h1").log.read_text()
    assert running.pings("h1", H2)
    lab.start_daemon(running.name, "h1")
    lab_hosts.until_ok(running.name, "h1", SETTLED_S)
    assert_powerless(daemon(running))


def _ended(process: int) -> bool:
    """Return whether the process of a pidfd has ended."""
    try:
        signal.pidfd_send_signal(process, 0)
    except ProcessLookupError:
        return True
    pid = next(
        int(line.split()[1])
        for line in Path(f"/proc/self/fdinfo/{process}").read_text().splitlines()
        if line.startswith("Pid:")
    )
    return pid == -1 or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
