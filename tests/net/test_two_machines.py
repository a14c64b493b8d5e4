# SPDX-License-Identifier: GPL-2.0-only
"""Type docs/two-machines.md on two machines, with cables or a router between their NICs.

`pytest -s` prints how long its reader waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rigs.bare_hosts import HOSTS, Bare, cables, router4, subnet
from rigs.lab_hosts import ROOT
from rigs.reader import Reader, at_two_machines

pytestmark = pytest.mark.timeout(600)

PAGE = (ROOT / "docs" / "two-machines.md").read_text()


def new_cables(bare: Bare) -> None:
    """Lay cables between NICs that nobody has set up."""
    cables(bare)
    for host in HOSTS:
        for nic in ("eth1", "eth2"):
            bare.ip(host, f"link set {nic} down")


@pytest.fixture
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    yield from at_two_machines(f"t{os.getpid()}", request.param)


def tell(reader: Reader) -> None:
    """Print how long the reader waited, and for what."""
    for step, took_s in reader.took_s:
        print(f"{took_s:6.1f} s  {step}")
    print(f"{sum(took_s for _step, took_s in reader.took_s):6.1f} s  in all")


@pytest.mark.parametrize("reader", [new_cables], indirect=True)
def test_the_page_is_true(reader: Reader) -> None:
    before = {host: reader.ip(host, "-br address show") for host in HOSTS}
    reader.follow(PAGE)
    tell(reader)
    assert not reader.begun, "the page leaves something running"
    for host in HOSTS:
        assert reader.ip(host, "-br address show") == before[host]
        assert reader.pids(host) == [reader.seats[host].pid]


@pytest.mark.parametrize("reader", [router4], indirect=True)
def test_the_page_is_true_through_a_router(reader: Reader) -> None:
    """With the one word more: up to the ping, and a plane that dies with its link up."""
    first, _four, rest = PAGE.partition("## 4.")
    _pulled, mute, rest = rest.partition("A plane that dies while")
    last = rest.partition("`a` knows it, too")[0]
    seed = f"{subnet('a', 0)}.2"
    page = (first + mute + last).replace("up eth1 eth2", f"up eth1 eth2 --seed {seed}")
    assert page.count(seed) == 2
    reader.follow(page.replace("mtu 1430", "mtu 1450"))  # cells in UDP over IPv4
    tell(reader)
