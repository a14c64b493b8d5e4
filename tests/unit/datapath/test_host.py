# SPDX-License-Identifier: GPL-2.0-only
"""The host's entry: what congestion control is told of the planes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from socket import htons

import pytest

from mrcd.config import config
from mrcd.config.config import Config
from mrcd.datapath import carried, host, tuning
from mrcd.fabric import description
from mrcd.linux import ethtool


def a_config(tmp_path: Path, control: str, rate_mbps: int = 0, mtu: int = 9000) -> Config:
    fabric = description.generate(name="f", hosts=2, planes=4, mtu=mtu, rate_mbps=rate_mbps)
    (tmp_path / "fabric.toml").write_text(description.dumps(fabric))
    file = tmp_path / "mrcd.toml"
    file.write_text(
        '[host]\nname = "h1"\nfabric = "fabric.toml"\n'
        f'[transport]\ncongestion_control = "{control}"\n[[peer]]\nname = "h2"\n'
    )
    return config.load(file)


@pytest.mark.parametrize(
    ("control", "mbps", "target_ns", "rate"),
    [
        ("auto", 250, 1_000_000, 125_000),
        ("auto", 50, 2_880_000, 25_000),  # two packets of 9000 bytes
        ("auto", 0, 0, 50_000_000),
        ("on", 0, 1_000_000, 50_000_000),
        ("off", 250, 0, 125_000),
    ],
)
def test_congestion(tmp_path: Path, control: str, mbps: int, target_ns: int, rate: int) -> None:
    found = host.congestion(a_config(tmp_path, control), mbps)
    assert found == {"cc_target_ns": target_ns, "cc_rate": rate}
    assert target_ns in (0, tuning.CC_TARGET_NS) or mbps == 50


def test_redundant() -> None:
    found = host.redundant(("udp/5000", "dscp/46", "udp/1"))
    assert (found["redundant"], found["redundant_dscps"]) == (1, 1 << 46)
    assert found["redundant_ports"] == (htons(5000), htons(1), *(0,) * 14)
    assert host.redundant(()) == {
        "redundant": 0, "redundant_dscps": 0, "redundant_ports": (0,) * 16
    }  # fmt: skip


def test_standby_planes_do_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = replace(a_config(tmp_path, "auto"), standby=0b1100)
    assert host.congestion(found, 250)["cc_rate"] == 62_500
    speeds = dict(zip(found.interfaces, (10_000, 25_000, 100, 100), strict=True))
    monkeypatch.setattr(ethtool, "link_mbps", speeds.__getitem__)
    assert carried.mean_mbps(carried.says(found), found.standby) == 17_500


@pytest.mark.parametrize(
    ("rate_mbps", "speeds", "expected"),
    [
        (250, (10_000, 10_000, 10_000, 10_000), (250, 250, 250, 250)),
        (0, (25_000, 10_000, 0, 25_000), (25_000, 10_000, 0, 25_000)),
        (0, (0, 0, 0, 0), (0, 0, 0, 0)),
    ],
)
def test_what_planes_should_carry_in_a_fabric(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rate_mbps: int,
    speeds: tuple[int, ...], expected: tuple[int, ...],
) -> None:  # fmt: skip
    found = a_config(tmp_path, "auto", rate_mbps)
    by_name = dict(zip(found.interfaces, speeds, strict=True))
    monkeypatch.setattr(ethtool, "link_mbps", by_name.__getitem__)
    assert carried.says(found) == expected


def test_rates_that_are_written_count_more_than_what_nics_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mrcd.toml").write_text(
        """
        [host]
        name = "a"
        [mrc0]
        addresses = ["10.99.0.1/24"]
        [keys]
        insecure = true
        [[plane]]
        interface = "eth1"
        rate_mbps = 250
        [[plane]]
        interface = "eth2"
        """
    )
    monkeypatch.setattr(ethtool, "link_mbps", {"eth1": 10_000, "eth2": 1_000}.__getitem__)
    assert carried.says(config.load(tmp_path / "mrcd.toml")) == (250, 1_000)


@pytest.mark.parametrize(
    ("rates", "standby", "expected"),
    [
        ((250, 250), 0, 250),
        ((25_000, 1_000), 0, 13_000),
        ((25_000, 1_000, 0), 0, 9_000),  # of what is not known, as little as of the slowest
        ((25_000, 1_000), 0b10, 25_000),
        ((0, 0), 0, 0),
        ((), 0, 0),
    ],
)
def test_mean_of_planes_that_serve(rates: tuple[int, ...], standby: int, expected: int) -> None:
    assert carried.mean_mbps(rates, standby) == expected


@pytest.mark.parametrize(
    ("rates", "standby", "expected"),
    [
        ((250, 250), 0, [128, 128]),
        ((1_000, 250, 25), 0, [128, 32, 3]),
        ((100_000, 100), 0, [128, 1]),
        ((1_000, 0, 500), 0, [128, 64, 64]),
        ((0, 0), 0, [128, 128]),
        ((1_000, 10, 100), 0b110, [128, 13, 128]),  # planes on standby serve without the others
    ],
)
def test_turns_go_by_what_planes_carry(
    rates: tuple[int, ...], standby: int, expected: list[int]
) -> None:
    found = carried.weights(rates, standby).to_bytes(8, "little")
    assert [*found] == [*expected, *[128] * (8 - len(expected))]


def test_the_lesser_of_two_hosts_rates_counts() -> None:
    assert carried.common((25_000, 1_000, 0, 0), (1_000, 0, 100)) == (1_000, 1_000, 100, 0)
    assert carried.common((25_000,), (1_000, 1_000)) == (1_000,)
    assert carried.common((25_000, 10), ()) == (25_000, 10)
