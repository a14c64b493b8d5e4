# SPDX-License-Identifier: GPL-2.0-only
"""Test `mrcctl quick`: two hosts that know nothing of each other but a secret."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.console import exits
from cli.lab import processes, state
from mrcd.linux.groupsocket import PORT
from rigs.bare_hosts import HOSTS, MIDDLE
from rigs.lab_hosts import eventually, powerless
from rigs.quick_hosts import Quick, both_up, finished, inner
from rigs.traffic import transfer

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def hosts() -> Iterator[Quick]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    quick = Quick(f"q{os.getpid()}", 2)
    try:
        for host in HOSTS:
            quick.add(host)
        yield quick
    finally:
        quick.close()


OPEN = ("--insecure",)


def cross(quick: Quick) -> None:
    """Lay cables that cross: eth1 of a leads to eth2 of b."""
    quick.cable("a", "eth1", "b", "eth2")
    quick.cable("a", "eth2", "b", "eth1")


def test_two_commands_connect_two_hosts(hosts: Quick) -> None:
    cross(hosts)
    before = {host: hosts.state(host)["address show"] for host in HOSTS}
    both_up(hosts)
    transfer(hosts, "a", "b", inner(hosts, "b"), 4 << 20)
    transfer(hosts, "b", "a", inner(hosts, "a"), 4 << 20)
    status = hosts.status("b")
    assert status is not None
    assert status.secured
    pid = int((hosts.folder / "b" / "quick" / "pid").read_text())
    assert powerless(pid), "the two processes are those of the service"
    assert [plane.interface for plane in status.planes] == ["eth2", "eth1"], "a leads"
    assert all(plane.tx_packets > 100 for plane in status.planes)
    saved = hosts.folder / "saved"
    done = hosts.mrcctl(
        "b", "quick", "save", str(saved), "--folder", str(hosts.folder / "b" / "quick")
    )
    assert finished(done)[0] == 0
    check = hosts.mrcctl("b", "config", "check", str(saved / "mrcd.toml"))
    assert finished(check)[0] == 0
    assert (saved / "fabric.secret").stat().st_mode & 0o777 == 0o600
    for host in HOSTS:
        hosts.down(host)
        assert not (hosts.folder / host / "quick").exists()
        assert hosts.ip(host, "address show") == before[host]
        assert [*(hosts.folder / "bpf" / host).iterdir()] == []
    assert not processes.inside(hosts.namespace(host) for host in HOSTS)


def test_nics_that_are_down_are_set_up_and_down_again(hosts: Quick) -> None:
    cross(hosts)
    for host in HOSTS:
        for nic in ("eth1", "eth2"):
            hosts.ip(host, f"link set {nic} down")
    both_up(hosts)
    transfer(hosts, "a", "b", inner(hosts, "b"), 1 << 20)
    for host in HOSTS:
        hosts.down(host)
        assert "UP" not in hosts.ip(host, "-br link show dev eth1").split()[-1]


def settled(quick: Quick) -> dict[str, dict[str, str]]:
    """Return the states of both hosts once the kernel has given their NICs all addresses."""
    for host in HOSTS:
        for nic in ("eth1", "eth2"):
            quick.link_local(host, nic)
    return {host: quick.state(host) for host in HOSTS}


def test_down_takes_down_what_a_killed_mrcd_has_left(hosts: Quick) -> None:
    cross(hosts)
    before = settled(hosts)
    both_up(hosts)
    for host in HOSTS:
        hosts.kill_daemon(host)
        assert "mrc0" in hosts.state(host)["-br link show"]
        assert [*(hosts.folder / "bpf" / host).glob("link_*")]
    code, error = hosts.try_down("a", where="b")
    assert code == 1
    assert "another network namespace" in error
    assert f"nsenter --net=/run/netns/{hosts.namespace('a')} mrcctl quick down" in error
    for host in HOSTS:
        code, error = hosts.try_down(host)
        assert code == 0, error
        assert "mrcd had ended and left its data path; taken down: pin link_" in error
        assert "interface mrc0p" in error
        hosts.assert_nothing_left(host, before[host])
    code, error = hosts.try_down("a")
    assert (code, "nothing is up" in error) == (1, True)


def test_down_leaves_the_data_path_of_another_mrcd(hosts: Quick) -> None:
    """The service may have taken it over, with what `quick save` wrote."""
    cross(hosts)
    before = settled(hosts)
    both_up(hosts)
    hosts.kill_daemon("a")
    saved = hosts.folder / "saved"
    done = hosts.mrcctl("a", "quick", "save", str(saved), "--folder", str(hosts.quick("a")))
    assert finished(done)[0] == 0
    command = [
        *processes.daemon_command(), "--config", str(saved / "mrcd.toml"),
        "--socket", str(hosts.folder / "a" / "mrcd.sock"), "--state-dir", str(saved),
        "--cache-dir", str(state.CACHE_DIR), "--bpffs", str(hosts.folder / "bpf" / "a"),
    ]  # fmt: skip
    with (saved / "mrcd.log").open("ab") as log:
        hosts.processes["a"] = processes.spawn(
            hosts.namespace("a"), command, stdout=log, stderr=subprocess.STDOUT
        )
    eventually(lambda: hosts.status("a"), "the other mrcd answers", 240)
    eventually(lambda: hosts.ok("a"), "the other mrcd is ok", 60)
    there = hosts.state("a")
    code, error = hosts.try_down("a")
    assert code == 1
    assert "another mrcd has taken over the data path" in error
    assert (hosts.state("a"), hosts.ok("a")) == (there, True)
    assert (hosts.quick("a") / "fabric.secret").exists()
    hosts.stop("a", signal.SIGKILL)
    eventually(lambda: not hosts.pids("a"), "the other mrcd is gone")
    code, error = hosts.try_down("a")
    assert code == 0, error
    hosts.assert_nothing_left("a", before["a"])
    hosts.down("b")


def test_down_after_an_up_that_was_killed(hosts: Quick) -> None:
    """While it searches, and while its mrcd starts."""
    cross(hosts)
    hosts.ip("a", "link set eth1 down")
    hosts.ip("a", "link set eth2 down")
    before = hosts.state("a")
    first = hosts.up("a", "eth1", "eth2", more=("--wait", "240"))
    eventually(
        lambda: len(hosts.ip("a", "-br link show up").split("\n")) > 3, "it has set the NICs up", 60
    )
    first.kill()
    first.communicate()
    hosts.down("a")
    assert hosts.state("a") == before
    assert not hosts.quick("a").exists()

    first = hosts.up("a", "eth1", "eth2", more=("--wait", "240"))
    assert first.stdout is not None
    secret = first.stdout.readline().strip()
    second = hosts.up("b", "eth1", "eth2", secret=secret, more=("--wait", "240"))
    eventually(lambda: (hosts.quick("a") / "pid").exists(), "its mrcd starts", 240)
    first.kill()
    first.communicate()
    code, error = hosts.try_down("a")
    assert code == 0, error
    hosts.assert_nothing_left("a", before)
    second.kill()
    second.communicate()
    code, error = hosts.try_down("b")
    assert code == 0, error


def test_down_ends_an_mrcd_that_hangs(hosts: Quick) -> None:
    cross(hosts)
    before = settled(hosts)
    both_up(hosts)
    os.kill(int((hosts.quick("a") / "pid").read_text()), signal.SIGSTOP)
    code, error = hosts.try_down("a")
    assert code == 0, error
    hosts.assert_nothing_left("a", before["a"])
    hosts.down("b")


def test_host_with_another_secret_is_refused(hosts: Quick) -> None:
    cross(hosts)
    first = hosts.up("a", "eth1", "eth2", more=("--wait", "8"))
    second = hosts.up("b", "eth1", "eth2", more=("--wait", "8"))
    for host, process in (("a", first), ("b", second)):
        code, _out, error = finished(process)
        assert code == 1
        assert "its host has another secret, or none" in error
        assert "no other host is heard" in error
        assert not (hosts.folder / host / "quick").exists()


def test_insecure_has_to_be_said(hosts: Quick) -> None:
    hosts.add(MIDDLE)
    hosts.ip(MIDDLE, "link add br0 type bridge")
    hosts.ip(MIDDLE, "link set br0 up")
    for host in HOSTS:  # all NICs on one network
        for number in (1, 2):
            hosts.cable(host, f"eth{number}", MIDDLE, f"{host}{number}")
            hosts.ip(MIDDLE, f"link set {host}{number} master br0")
    more = ("--insecure", "--wait", "240")
    started = [hosts.up(host, "eth1", "eth2", more=more) for host in HOSTS]
    for process in started:
        code, _out, error = finished(process)
        assert code == 0, error
    transfer(hosts, "a", "b", inner(hosts, "b"), 1 << 20)
    status = hosts.status("a")
    assert status is not None
    assert not status.secured
    for host in HOSTS:
        hosts.down(host)


def test_second_one_is_refused(hosts: Quick, tmp_path: Path) -> None:
    cross(hosts)
    (hosts.folder / "a" / "quick").mkdir(parents=True)
    code, _out, error = finished(hosts.up("a", "eth1"))
    assert code == 1
    assert "`mrcctl quick down` removes it" in error
    done = hosts.mrcctl("a", "quick", "down", "--folder", str(tmp_path / "none"))
    code, _out, error = finished(done)
    assert code == 1
    assert "nothing is up" in error
    (hosts.folder / "a" / "quick").rmdir()


def searches(hosts: Quick, host: str) -> bool:
    """Return whether a host listens for others."""
    return f":{PORT} " in hosts.run(host, "ss", "-Hulan")


def test_what_can_never_be_is_said_at_once(hosts: Quick) -> None:
    """On both hosts, and nothing is left of either."""
    cross(hosts)
    took_s = 0.0
    for more, said in (
        (("--name", "x"), "another host at .* is called x, too: give --name"),
        (("--address", "10.99.0.7/16"), "has the address 10.99.0.7 of our mrc0: give --address"),
    ):
        more = (*OPEN, "--wait", "600", *more)  # longer than finished() waits
        started = {host: hosts.up(host, "eth1", "eth2", more=more) for host in ("a", "b")}
        for host, process in started.items():  # starting Python takes its time
            eventually(
                lambda h=host, p=process: searches(hosts, h) or p.poll() is not None,
                f"{host} searches",
                60,
            )
        began = time.monotonic()
        for process in started.values():
            code, _out, error = finished(process)
            assert (code, bool(re.search(said, error))) == (1, True), error
        took_s += time.monotonic() - began
    assert took_s < 20
    for nics, words in ((("eth1", "eth1"), "named twice"), (("lo",), "loopback")):
        code, _out, error = finished(hosts.up("a", *nics))
        assert (code, words in error) == (exits.USAGE, True), error
    assert not (hosts.folder / "a" / "quick").exists()


def test_ipv6_that_is_off_is_named_at_once(hosts: Quick) -> None:
    cross(hosts)
    hosts.run("a", "sysctl", "-qw", "net.ipv6.conf.eth2.disable_ipv6=1")
    code, _out, error = finished(hosts.up("a", "eth1", "eth2"))
    assert code == 1
    assert "sysctl -w net.ipv6.conf.eth2.disable_ipv6=0" in error


def test_what_is_missing_is_said_while_it_waits(hosts: Quick) -> None:
    """Two of three hosts: what they have made is taken down again, and each says why."""
    cross(hosts)
    for host in ("a", "b"):
        for nic in ("eth1", "eth2"):
            hosts.link_local(host, nic)
    before = {host: hosts.state(host) for host in ("a", "b")}
    more = (*OPEN, "--hosts", "3", "--wait", "30")  # to start two daemons may take half of it
    started = [hosts.up(host, "eth1", "eth2", more=more) for host in ("a", "b")]
    for process in started:
        code, _out, error = finished(process)
        assert code == 1
        assert "waiting: 2 of 3 hosts are here: a, b" in error
        assert "2 of 3 hosts are connected" in error
    for host, as_before in before.items():
        hosts.assert_nothing_left(host, as_before)


def test_nic_that_hears_nobody_is_named(hosts: Quick) -> None:
    hosts.cable("a", "eth1", "b", "eth1")
    hosts.cable("a", "eth2", "b", "eth2")
    started = [hosts.up("a", "eth1", "eth2", more=OPEN), hosts.up("b", "eth1", more=OPEN)]
    for process, named in zip(started, (True, False), strict=True):
        code, _out, error = finished(process)
        assert code == 0, error
        assert ("eth2: nobody is heard there so far" in error) == named


def test_firewall_that_drops_the_search_is_named_at_once(hosts: Quick) -> None:
    """It would end after the whole wait, and say that nobody is heard."""
    cross(hosts)
    before = hosts.state("a")
    hosts.run(
        "a", "nft", "table inet f { chain i { type filter hook input priority 0; policy drop; }; }"
    )
    code, _out, error = finished(hosts.up("a", "eth1", "eth2", secret="x" * 43 + "="))
    assert code == 1
    assert "this host's firewall (inet f i) drops UDP port 4973" in error
    assert "`nft insert rule inet f i udp dport 4973 accept`" in error
    hosts.assert_nothing_left("a", before)
