# SPDX-License-Identifier: GPL-2.0-only
"""Test hosts that are taken as peers although no file of the others lists them (admit = true)."""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_interface
from typing import Any

import pytest

from cli.lab import lab, state
from mrcd.config import keyfiles
from mrcd.fabric import description
from mrcd.handshake import identity
from mrcd.handshake.identity import Secret
from rigs import lab_hosts
from rigs.daemons import Traffic, end, events, log_of
from rigs.lab_hosts import eventually, mrcctl
from rigs.traffic import transfer
from tests.net.test_fabric_files import Fleet

Lab = Any  # conftest.RunningLab
MakeLab = Callable[..., Lab]
SETTLED_S = 60.0
SETTINGS = "[keys]\nadmit = true\nrotate_s = 4\n"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def built(module_labs: MakeLab) -> Lab:
    return module_labs(daemons=True, hosts=3, planes=2, t1=2, on_stop="keep", settings=SETTINGS)


@pytest.fixture
def fleet(built: Lab) -> Iterator[Fleet]:
    """Return the hosts; h1 and h2 know each other only, and mrcd of h3 does not run."""
    found = Fleet(built)
    config = state.places(built.name, "h3").config
    before = config.read_text()
    _stop_h3(found)
    for host in ("h1", "h2"):
        found.give(host, found.without("h3"))
    eventually(lambda: set(found.peers("h1")) == {"h2"}, "h1 has forgotten h3", SETTLED_S)
    eventually(lambda: set(found.peers("h2")) == {"h1"}, "h2 has forgotten h3", SETTLED_S)
    eventually(lambda: found.well("h1", "h2"), "both are ok", SETTLED_S)
    yield found
    _stop_h3(found)
    config.write_text(before)
    for host in ("h1", "h2"):
        if lab.daemon_pid(found.name, host) is None:
            lab.start_daemon(found.name, host)
            lab_hosts.until_ok(found.name, host, SETTLED_S)
        if found.peers(host).get("h3", {}).get("admitted"):
            assert mrcctl(found.name, host, "peer", "forget", "h3").returncode == 0


def _stop_h3(fleet: Fleet) -> None:
    """End mrcd of h3 and take its data path away, as before its first start."""
    if lab.daemon_pid(fleet.name, "h3") is not None:
        end(fleet.running, "h3", signal.SIGTERM)


def _start_h3(fleet: Fleet) -> None:
    lab.start_daemon(fleet.name, "h3")
    eventually(lambda: lab_hosts.status(fleet.name, "h3"), "mrcd of h3 answers", SETTLED_S)


def _joined_s(fleet: Fleet, host: str) -> float:
    """Return the time from the start of h3's hand-shakes to its session with a host."""
    began = [each for each in log_of(fleet.running, "h3") if each["event"] == "daemon.ready"][-1]
    up = [
        each
        for each in log_of(fleet.running, host)
        if each["event"] == "peer.established" and each["peer"] == "h3"
    ][-1]
    times = (datetime.fromisoformat(each["time"]) for each in (up, began))
    return (next(times) - next(times)).total_seconds()


def _lacks_h3(fleet: Fleet, host: str) -> bool:
    return "h3" not in fleet.peers(host)


def test_host_with_the_secret_joins_and_disturbs_nobody(fleet: Fleet) -> None:
    """h1 and h2 have files of two; h3 has one of three. h1 is restarted, and h3 forgotten."""
    running, before = fleet.running, fleet.qpns()
    traffic = Traffic(running)
    _start_h3(fleet)
    eventually(lambda: running.pings("h3", "10.99.0.1"), "h3 reaches h1", SETTLED_S)
    eventually(lambda: running.pings("h2", "10.99.0.3"), "h2 reaches h3", SETTLED_S)
    eventually(lambda: fleet.well("h1", "h2", "h3"), "all are ok", SETTLED_S)
    for host in ("h1", "h2"):
        print(f"{host} had a session with h3 after {_joined_s(fleet, host):.2f} s")
        assert _joined_s(fleet, host) < 10
        assert fleet.peers(host)["h3"]["admitted"] is True
        assert "host.admitted" in events(running, host)
    assert fleet.peers("h1")["h2"]["admitted"] is False
    assert not any(map(fleet.warnings, ("h1", "h2", "h3")))
    assert "2 of 2 established, 1 of them admitted" in mrcctl(fleet.name, "h1", "status").stdout
    transfer(running, "h3", "h1", "10.99.0.1", 1 << 20)
    assert fleet.qpns() == before, "the session of h1 and h2 stays"

    kept = json.loads((state.places(fleet.name, "h1").folder / "admitted.json").read_text())
    assert [host["name"] for host in kept["hosts"]] == ["h3"]
    end(running, "h1", signal.SIGTERM)
    lab.start_daemon(fleet.name, "h1")
    eventually(lambda: lab_hosts.status(fleet.name, "h1"), "h1 answers again", SETTLED_S)
    assert fleet.peers("h1")["h3"]["admitted"] is True
    eventually(lambda: fleet.well("h1", "h2", "h3"), "all are ok", SETTLED_S)
    assert fleet.qpns() == before, "they stay over the restart, too"
    assert events(running, "h1").count("host.admitted") == events(running, "h2").count(
        "host.admitted"
    ), "h3 was admitted once, and not again after the restart"
    transfer(running, "h1", "h3", "10.99.0.3", 1 << 20)

    _stop_h3(fleet)
    for host in ("h1", "h2"):
        done = mrcctl(fleet.name, host, "peer", "forget", "h3", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["peer"] == "h3"
        assert _lacks_h3(fleet, host)
    refused = mrcctl(fleet.name, "h1", "peer", "forget", "h2")
    assert refused.returncode != 0
    assert "h2 was not admitted, but is in the files" in refused.stderr
    traffic.finish()
    assert fleet.qpns() == before


def test_file_that_lists_an_admitted_host_counts_more(fleet: Fleet) -> None:
    _start_h3(fleet)
    # h3 takes up the sessions of its last run at first, of which the others know nothing.
    eventually(lambda: fleet.up("h1") == {"h2", "h3"}, "h3 is in", SETTLED_S)
    eventually(lambda: fleet.up("h2") == {"h1", "h3"}, "h3 is in", SETTLED_S)
    eventually(lambda: fleet.well("h1", "h2", "h3"), "all are ok", SETTLED_S)
    begun = events(fleet.running, "h3").count("peer.established")
    fleet.give("h1", fleet.whole)
    eventually(lambda: not fleet.peers("h1")["h3"]["admitted"], "the file lists h3", SETTLED_S)
    assert "host.listed" in events(fleet.running, "h1")
    kept = json.loads((state.places(fleet.name, "h1").folder / "admitted.json").read_text())
    assert kept == {"hosts": []}
    eventually(lambda: fleet.well("h1", "h2", "h3"), "all are ok", SETTLED_S)
    assert events(fleet.running, "h3").count("peer.established") == begun, "sessions stay"


def test_entry_that_conflicts_is_refused_and_named_on_both_sides(fleet: Fleet) -> None:
    """h3's file gives it the address that h1 has."""
    hosts = list(fleet.whole.hosts)
    hosts[0] = replace(hosts[0], addresses=(ip_interface("10.99.0.33/24"),))
    hosts[2] = replace(hosts[2], addresses=(ip_interface("10.99.0.1/24"),))
    _give_stopped(fleet, replace(fleet.whole, hosts=tuple(hosts)))
    _start_h3(fleet)
    text = "h3's address 10.99.0.1/24 belongs to h1; correct one of the two fabric files"
    wanted = f"host h3 is not admitted: {text}"
    eventually(lambda: fleet.warnings("h1") == [wanted], "h1 warns", SETTLED_S)

    def told() -> bool:
        now = lab_hosts.status(fleet.name, "h3")
        return now is not None and f"peer h1 does not take this host: {text}" in now.reasons

    eventually(told, "h3 knows why", SETTLED_S)
    assert _lacks_h3(fleet, "h1")
    assert fleet.well("h1"), "a warning degrades nobody"
    said = [entry for entry in log_of(fleet.running, "h1") if entry["event"] == "host.refused"]
    assert said[-1]["reason"] == text


def _give_stopped(fleet: Fleet, fabric: Any, keys: str = "") -> None:
    """Give h3, whose mrcd does not run, a fabric file of its own, and other keys if any."""
    spot = state.places(fleet.name, "h3")
    (spot.folder / "fabric.toml").write_text(description.dumps(fabric))
    text = spot.config.read_text().replace("../fabric.toml", "fabric.toml")
    if keys:
        head, _, _tail = text.partition("[keys]")
        text = f"{head}[keys]\n{keys}"
    spot.config.write_text(text)


def test_stranger_without_the_secret_ends_in_the_kernel(fleet: Fleet) -> None:
    """h3 has another secret: it knows no key of h1, so the programs drop what it asks."""
    folder = state.places(fleet.name, "h3").folder
    keyfiles.write(folder / "other.secret", Secret(secrets.token_bytes(32)), replace=True)
    _give_stopped(fleet, fleet.whole, 'secret_file = "other.secret"\n')
    before, warned = lab_hosts.counters(fleet.name, "h1"), fleet.warnings("h1")
    _start_h3(fleet)

    def dropped() -> bool:
        return lab_hosts.counters(fleet.name, "h1")["drop_mac1"] >= before["drop_mac1"] + 8

    eventually(dropped, "h1 has dropped some of what h3 asks", SETTLED_S)
    assert _lacks_h3(fleet, "h1")
    assert fleet.well("h1")
    assert set(fleet.warnings("h1")) <= set(warned), "nothing is said of it"


def test_stranger_with_public_keys_only_is_answered_and_stays_out(fleet: Fleet) -> None:
    """h3 knows the public keys of h1 and h2, and has one of its own, but not the secret."""
    secret = keyfiles.read(state.secret(fleet.name))
    private = identity.private_key(secrets.token_bytes(32))
    keyfiles.write(state.places(fleet.name, "h3").folder / "own.key", private, replace=True)
    known = {
        name: identity.public_key(identity.host_key(secret, name)) for name in ("h1", "h2")
    } | {"h3": identity.public_key(private)}
    hosts = tuple(
        replace(host, public_key=identity.encode_key(known[host.name]))
        for host in fleet.whole.hosts
    )
    _give_stopped(fleet, replace(fleet.whole, hosts=hosts), 'private_key_file = "own.key"\n')
    _start_h3(fleet)
    eventually(
        lambda: lab_hosts.counters(fleet.name, "h3")["channel_handshake"] >= 4,
        "h1 and h2 have answered, and their answers do not open without the secret",
        SETTLED_S,
    )
    assert _lacks_h3(fleet, "h1")
    assert _lacks_h3(fleet, "h2")
    assert fleet.well("h1", "h2")
