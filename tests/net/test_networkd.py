# SPDX-License-Identifier: GPL-2.0-only
"""Run systemd-networkd, with the files of packaging/examples, beside mrcd."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rigs import lab_hosts
from rigs.daemons import log_of
from rigs.lab_hosts import eventually
from rigs.networkd import EXAMPLES, networkd
from rigs.traffic import transfer

Lab = Any  # conftest.RunningLab
SETTLED_S = 30.0
OURS = ("mrc0", "mrc0p", "mrc0d", "mrc0c", "mrc0cp", "mrc0b", "mrc0bp")

pytestmark = pytest.mark.timeout(300)


def settled(log: Path, states: dict[str, str]) -> None:
    """Wait until networkd has brought each of these interfaces to a state."""

    def states_now() -> dict[str, str]:
        return dict(re.findall(r"^(\w+): State changed: \w+ -> (\w+)$", log.read_text(), re.M))

    eventually(
        lambda: states.items() <= states_now().items(),
        lambda: f"{states} in place of {states_now()}: {log.read_text()[-1500:]}",
        SETTLED_S,
    )


def seen(running: Lab, host: str) -> dict[str, Any]:
    """Return what a host has of addresses, MTUs and routes."""
    found: dict[str, Any] = {}
    for link in json.loads(running.run(host, "ip", "-j", "-d", "addr")):
        addresses = {(a["local"], a["prefixlen"]) for a in link["addr_info"]}
        found[link["ifname"]] = addresses, link["mtu"], link.get("inet6_addr_gen_mode")
    for family in ("-4", "-6"):
        routes = json.loads(running.run(host, "ip", "-j", family, "route", "show", "table", "all"))
        found[family] = {
            (r["dst"], r.get("gateway"), r.get("dev"), r.get("metric")) for r in routes
        }
    return found


def lacks(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what is not as before: anything of ours, and what planes and routes have lost."""
    wrong = {
        name: f"{after.get(name)} in place of {before[name]}"
        for name in OURS
        if after.get(name) != before[name]
    }
    for name in ("plane0", "plane1"):
        if not before[name][0] <= after[name][0] or before[name][1] != after[name][1]:
            wrong[name] = after[name]
    return wrong | {
        family: gone for family in ("-4", "-6") if (gone := before[family] - after[family])
    }


@pytest.fixture
def running(make_lab: Any) -> Lab:
    made = make_lab(daemons=True, hosts=2, planes=2, t1=2)
    for host in ("h1", "h2"):
        lab_hosts.until_ok(made.name, host, SETTLED_S)
    return made


def test_networkd_with_the_examples_takes_nothing_away(running: Lab, tmp_path: Path) -> None:
    before, noted = seen(running, "h1"), log_of(running, "h1")
    for turn in ("first", "second"):  # the second start finds what the first one left
        folder = tmp_path / turn
        shutil.copytree(EXAMPLES, folder)
        with networkd(running, "h1", folder) as log:
            settled(log, {"plane0": "configured", "plane1": "configured", "mrc0": "unmanaged"})
            transfer(running, "h1", "h2", "10.99.0.2", 4 << 20)
            assert lacks(before, seen(running, "h1")) == {}
        assert lacks(before, seen(running, "h1")) == {}
    assert lab_hosts.ok(running.name, "h1")
    assert log_of(running, "h1") == noted, "mrcd had nothing to put right"


def test_networkd_without_them_changes_what_is_mrcds(running: Lab, tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    before = seen(running, "h1")
    (tmp_path / "all.network").write_text("[Match]\nName=*\n\n[Network]\nIPv6AcceptRA=no\n")
    (tmp_path / "none.conf").write_text("[Network]\n")
    with networkd(running, "h1", tmp_path) as log:
        settled(log, {"plane0": "configured", "plane1": "configured"})
        eventually(
            lambda: "mrc0" in lacks(before, seen(running, "h1")), "mrc0 is as before", SETTLED_S
        )
