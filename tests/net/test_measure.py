# SPDX-License-Identifier: GPL-2.0-only
"""Test measurements of planes between hosts on a bridge, one of whose planes is cut to a rate."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from cli.console.exits import CommandError
from mrcd.model import PlaneRate
from rigs.bare_hosts import HOSTS, INNER, MIDDLE, Bare, Make, bridge, building
from rigs.lab_hosts import eventually
from rigs.traffic import Stream
from tests.unit.command_line import run

pytestmark = [pytest.mark.alone, pytest.mark.timeout(400)]
CUT_MBPS = 100
CUT_PLANE = 0


@pytest.fixture(scope="module")
def make() -> Iterator[Make]:
    yield from building("ms", 2)


@pytest.fixture(scope="module")
def hosts(make: Make) -> Bare:
    """Two hosts; a token bucket cuts plane 0, both ways, and eth1 says far more."""
    bare = make(bridge)
    cut(bare, planes=(CUT_PLANE,))
    bare.begin()
    return bare


def cut(bare: Bare, planes: Sequence[int]) -> None:
    """Have token buckets cut planes, both ways."""
    for host, plane in itertools.product(HOSTS, planes):
        words = f"dev {host}{plane} root tbf rate {CUT_MBPS}mbit burst 32k latency 20ms"
        bare.run(MIDDLE, "tc", "qdisc", "add", *words.split())


def measured(bare: Bare, host: str, peer: str, plane: int) -> list[PlaneRate]:
    with bare.client(host) as client:
        return client.measure(peer, plane)["rates"]


def at_once(bare: Bare, wanted: list[tuple[str, str, int]]) -> tuple[int, list[str]]:
    """Measure several planes at the same time; return how many were, and why others were not."""

    def one(what: tuple[str, str, int]) -> str | None:
        try:
            measured(bare, *what)
        except CommandError as error:
            return error.format_message()
        return None

    with ThreadPoolExecutor(len(wanted)) as pool:
        reasons = list(pool.map(one, wanted))
    return reasons.count(None), [why for why in reasons if why is not None]


def test_planes_that_are_cut_are_named_by_what_data_does(make: Make) -> None:
    bare = make(bridge)
    cut(bare, planes=(0, 1))
    bare.begin()
    # A single TCP connection with ECN leaves queues empty for seconds: docs/operations.md.
    streams = [Stream(bare, "a", "b", INNER["b"]).start() for _ in range(4)]
    try:
        for plane in range(bare.planes):
            said = eventually(lambda plane=plane: measured_by(bare, plane), f"plane {plane}", 60)
            found = re.fullmatch(rf"eth{plane + 1} says 10000 Mb/s, (\d+) get through to b", said)
            assert found is not None, said
            assert int(found[1]) == pytest.approx(CUT_MBPS, rel=0.2)
            assert f"plane {plane}: {said}" in (bare.said("a") or ())
        eventually(lambda: "planes.carry" in bare.log("a"), "windows go by it", 10)
    finally:
        for stream in streams:
            stream.finish(40)
    assert "planes.carry" not in bare.log("b")  # acknowledgements fill nothing


def measured_by(bare: Bare, plane: int) -> str | None:
    """Return what status says of the rate of a plane."""
    found = bare.status("a")
    return None if found is None else found.planes[plane].measured


class TestMeasure:
    def test_a_plane_that_is_cut_carries_less_than_its_nic_says(self, hosts: Bare) -> None:
        def undisturbed() -> list[PlaneRate] | None:
            """Return the rates, if no host was too busy to read all that came."""
            found = measured(hosts, "a", "b", CUT_PLANE)
            return None if any(rate.at_least or rate.loss is None for rate in found) else found

        narrow = eventually(undisturbed, "the link is what limits the rate", 60)
        whole = measured(hosts, "a", "b", 1)
        assert [rate.direction for rate in narrow] == ["tx", "rx"]
        for rate in narrow:
            assert rate.mbps == pytest.approx(CUT_MBPS, rel=0.15)
            assert not rate.at_least
            assert rate.nic_mbps == 10000
            assert rate.sent_mbps > 2 * CUT_MBPS
            assert rate.loss is not None
            assert rate.loss < 0.02
            assert rate.largest == 1500
            assert 5_000 < rate.queue_median_us < 40_000  # the bucket's queue is 20 ms long
        with hosts.client("a") as client:
            status = client.status()
        said = status.planes[CUT_PLANE].measured
        assert said is not None
        assert said.startswith("eth1 says 10000 Mb/s, ")
        assert f"plane {CUT_PLANE}: {said}" in status.warnings
        assert status.planes[1].measured is None
        for rate in whole:
            assert rate.mbps > 3 * CUT_MBPS
            assert rate.largest == 1500

    def test_the_command_says_it_in_a_table_and_a_sentence(self, hosts: Bare) -> None:
        place = hosts.folder / "a" / "mrcd.sock"

        def said() -> str:
            done = run(place, "plane", "measure", "b")
            assert done.exit_code == 0
            return done.output

        # Where the machine was too busy to read all that came, the command says that instead.
        eventually(
            lambda: re.search(r"eth1 says 10000 Mb/s, \d+ get through to b", said()), "it", 60
        )
        printed = json.loads(run(place, "plane", "measure", "--plane", "eth2", "--json").output)
        assert [rate["interface"] for rate in printed["rates"]] == ["eth2", "eth2"]

    def test_one_measurement_at_a_time(self, hosts: Bare) -> None:
        done, refused = at_once(hosts, [("a", "b", 0), ("a", "b", 1)])
        assert done == 1
        (why,) = refused
        assert re.search(r"plane \d is being measured with b already", why)

    def test_a_host_serves_one_measurement_at_a_time(self, hosts: Bare) -> None:
        _done, refused = at_once(hosts, [("a", "b", 0), ("b", "a", 1)])
        assert refused
        assert all("is being measured with" in why for why in refused)

    def test_a_firewall_that_drops_everything_is_named_with_the_ports(self, hosts: Bare) -> None:
        rules = (
            "table inet t { chain c { type filter hook input priority 0;"
            " iifname eth2 udp dport 30000-65535 drop; }; }"
        )
        hosts.run("b", "nft", rules)
        try:
            with pytest.raises(CommandError, match=r"UDP port \d+ of b"):
                measured(hosts, "a", "b", 1)
        finally:
            hosts.run("b", "nft", "delete table inet t")
        measured(hosts, "a", "b", 1)
