# SPDX-License-Identifier: GPL-2.0-only
"""Test the metrics of running daemons: they match mrcctl, and traffic and faults change them."""

from __future__ import annotations

import re
import signal
import urllib.request
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.lab import lab, state
from mrcd.linux import netns
from mrcd.wire.abi import COUNTERS
from rigs import lab_hosts
from rigs.lab_hosts import eventually
from rigs.traffic import transfer
from tests.net.test_daemon import stop

MakeLab = Callable[..., Any]
SETTINGS = '[metrics]\nlisten = "127.0.0.1:9971"\n'
Series = dict[tuple[str, tuple[str, ...]], float]


def scrape(running: Any, host: str) -> Series:
    """Return a host's metrics: the value by name and label values in the scraped order."""
    with (
        netns.entered(running.namespace(host)),
        urllib.request.urlopen("http://127.0.0.1:9971/metrics", timeout=10) as answer,
    ):
        text = answer.read().decode()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def counter_key(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the key of the series that exposes a counter of the data path."""
    if name.startswith("drop_"):
        return "mrcd_drops_total", (name.removeprefix("drop_"),)
    if name.startswith("rtx_") and name != "rtx_needless":
        return "mrcd_retransmissions_total", (name.removeprefix("rtx_"),)
    return f"mrcd_{name}_total", ()


@pytest.fixture
def running(make_lab: MakeLab) -> Any:
    return make_lab(daemons=True, planes=2, t1=2, settings=SETTINGS)


def established(running: Any) -> None:
    for host in running.fabric.hosts:
        eventually(partial(lab_hosts.ok, running.name, host.name), f"{host.name} is ok", 30)


def test_metrics_say_what_mrcctl_says(running: Any) -> None:
    established(running)
    transfer(running, "h1", "h2", "10.99.0.2", 4 << 20)
    before = lab_hosts.counters(running.name, "h1")
    seen = scrape(running, "h1")
    after = lab_hosts.counters(running.name, "h1")
    for _index, name, _text in COUNTERS:
        assert before[name] <= seen[counter_key(name)] <= after[name], name
    assert seen["mrcd_peer_tx_packets_total", ("h2",)] > 400
    assert seen["mrcd_peer_established", ("h2",)] == 1
    assert seen["mrcd_peers", ("established",)] == 1
    assert seen["mrcd_degraded_reasons", ()] == 0
    assert seen["mrcd_map_entries", ("qps",)] == 4
    assert seen["mrcd_map_entries_max", ("qps",)] == 16  # room for four peers
    for plane in ("0", "1"):
        assert 0 < seen["mrcd_peer_plane_rtt_seconds", ("h2", plane)] < 1
        assert seen["mrcd_peer_plane_share_ratio", ("h2", plane)] > 0
        # Labels are sorted by name: interface, plane.
        assert seen["mrcd_plane_usable", (f"plane{plane}", plane)] == 1
        assert seen["mrcd_plane_tx_packets_total", (f"plane{plane}", plane)] > 30  # cells
        assert seen["mrcd_plane_tx_bytes_total", (f"plane{plane}", plane)] > 1 << 20


def paths_agree(running: Any) -> bool:
    listed = Counter((str(path.plane), path.state) for path in lab_hosts.paths(running.name, "h1"))
    seen = scrape(running, "h1")
    shown = {key: value for (name, key), value in seen.items() if name == "mrcd_paths"}
    return {key: value for key, value in shown.items() if value} == listed


def test_metrics_count_paths_of_a_dead_plane(running: Any) -> None:
    established(running)
    eventually(lambda: paths_agree(running), "paths are counted as they are listed")
    running.fault("p1", "blackhole")

    def plane_is_lost() -> bool:
        running.pings("h1", "10.99.0.2")
        return scrape(running, "h1")["mrcd_paths", ("1", "GOOD")] == 0

    eventually(plane_is_lost, "no path of plane 1 is GOOD", within_s=30)
    eventually(lambda: paths_agree(running), "paths are counted as they are listed")
    seen = scrape(running, "h1")
    assert seen["mrcd_paths", ("1", "ASSUMED_BAD")] > 0
    assert seen["mrcd_paths", ("0", "GOOD")] > 0


def counters_of(series: Series) -> Series:
    """Return the counters of the data path. The daemon's own begin with it."""
    return {
        key: value
        for key, value in series.items()
        if re.fullmatch(r"mrcd_\w+_total", key[0]) and key[0] != "mrcd_channel_drops_total"
    }


def test_counters_go_on_when_the_daemon_is_restarted(make_lab: MakeLab) -> None:
    running = make_lab(daemons=True, planes=2, t1=2, settings=SETTINGS, on_stop="keep")
    established(running)
    transfer(running, "h1", "h2", "10.99.0.2", 4 << 20)
    before = counters_of(scrape(running, "h1"))
    stop(running, "h1", signal.SIGTERM)
    lab.start_daemon(running.name, "h1")
    established(running)
    after = counters_of(scrape(running, "h1"))
    assert before.keys() <= after.keys()
    assert {key: (before[key], after[key]) for key in before if after[key] < before[key]} == {}
    assert before["mrcd_tx_packets_total", ()] > 400


def test_counters_of_a_peer_go_on_when_its_qps_are_new(running: Any) -> None:
    established(running)
    transfer(running, "h1", "h2", "10.99.0.2", 4 << 20)
    before = scrape(running, "h1")
    stop(running, "h2", signal.SIGTERM)  # this also removes its data path
    lab.start_daemon(running.name, "h2")
    established(running)
    transfer(running, "h1", "h2", "10.99.0.2", 1 << 20)
    after = scrape(running, "h1")
    for name in ("mrcd_peer_tx_packets_total", "mrcd_peer_rx_packets_total"):
        assert after[name, ("h2",)] > before[name, ("h2",)], name


def test_metrics_port_that_is_taken_ends_the_daemon_with_a_reason(make_lab: MakeLab) -> None:
    running = make_lab(daemons=False, planes=2)
    host = running.fabric.hosts[0].name
    places = state.places(running.name, host)
    with places.config.open("a") as config:
        config.write('[metrics]\nlisten = "192.0.2.1:9971"\n')  # not an address of any host
    process = lab.start_daemon(running.name, host)
    assert process.wait(50) == 1
    said = places.log.read_text()
    assert "cannot serve metrics on 192.0.2.1 port 9971" in said
    assert "[metrics] listen" in said
