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
    assert carried.plane_mbps(found) == 10_000


@pytest.mark.parametrize(
    ("rate_mbps", "speeds", "expected"),
    [
        (250, (10_000, 10_000, 10_000, 10_000), 250),
        (0, (25_000, 10_000, 25_000, 25_000), 10_000),
        (0, (0, 25_000, 0, 40_000), 25_000),  # links that are down have no speed
        (0, (0, 0, 0, 0), 0),
    ],
)
def test_plane_mbps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rate_mbps: int,
    speeds: tuple[int, ...], expected: int,
) -> None:  # fmt: skip
    found = a_config(tmp_path, "auto", rate_mbps)
    by_name = dict(zip(found.interfaces, speeds, strict=True))
    monkeypatch.setattr(ethtool, "link_mbps", by_name.__getitem__)
    assert carried.plane_mbps(found) == expected
    assert carried.plane_mbps(replace(found, interfaces=())) == rate_mbps
