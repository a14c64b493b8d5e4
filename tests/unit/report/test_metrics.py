# SPDX-License-Identifier: GPL-2.0-only
"""Test the table of metrics: names, units, meanings, and the number of series."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from mrcd.config import config
from mrcd.report.metrics import FAMILIES, Family, collect
from mrcd.wire.abi import COUNTERS
from rigs.metrics_double import snapshot
from tests.unit.test_docs_reference import between, cells, section

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
BOUNDED = {"plane", "interface", "peer", "state", "reason", "rule", "ring", "map", "kind"}
OF_THE_DAEMON = {"host", "version", "routing", "xdp", "tc"}


def rows_of(name: str, **options: int) -> dict[tuple[str, ...], float]:
    (rows,) = [rows for family, rows in collect(snapshot(**options)) if family.name == name]
    return dict(rows)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_family_is_named_as_prometheus_wants_it(family: Family) -> None:
    assert re.fullmatch(r"mrcd_[a-z][a-z0-9_]*", family.name)
    assert (family.kind == "counter") == family.name.endswith("_total")
    assert not re.search(r"_(us|ms|ns|ppm|percent|kb|mb)(_|$)", family.name)
    assert not family.help.startswith((" ", ".")) | family.help.endswith(".")
    assert "\n" not in family.help
    allowed = BOUNDED | (OF_THE_DAEMON if family.name == "mrcd_info" else set())
    assert set(family.labels) <= allowed, "a label must be bounded by the configuration"


def test_families_differ_in_name() -> None:
    assert [name for name, n in Counter(f.name for f in FAMILIES).items() if n > 1] == []


def test_collect__every_row_fits_its_family_and_is_there_once() -> None:
    for family, rows in collect(snapshot()):
        found = list(rows)
        assert found, family.name
        assert {len(labels) for labels, _value in found} == {len(family.labels)}
        assert len(dict(found)) == len(found), family.name


def test_collect__every_counter_of_the_data_path_is_there_once_with_its_meaning() -> None:
    # Counter i of the snapshot has value i, so a row's value identifies its counter.
    of_the_data_path = {f"mrcd_{name}_total": name for _index, name, _text in COUNTERS}
    grouped = {"mrcd_drops_total": "drop_", "mrcd_retransmissions_total": "rtx_"}
    shown: list[str] = []
    names = {index: name for index, name, _text in COUNTERS}
    meanings = {name: text.removeprefix("dropped: ") for _index, name, text in COUNTERS}
    for family, rows in collect(snapshot()):
        if family.name not in of_the_data_path and family.name not in grouped:
            continue
        for labels, value in rows:
            name = names[int(value)]
            assert "".join((grouped.get(family.name, ""), *labels)) in (name, "")
            assert meanings[name] in family.help
            shown.append(name)
    assert sorted(shown) == sorted(names.values())


def test_collect__retransmissions_by_rule_are_disjoint() -> None:
    rules = {labels[0] for labels in rows_of("mrcd_retransmissions_total")}
    assert rules == {"fifo", "guard", "timeout", "nack"}


def test_collect__values() -> None:
    assert rows_of("mrcd_peers") == {("connecting",): 1, ("established",): 1, ("silent",): 1}
    assert rows_of("mrcd_peer_heard_age_seconds") == {("h2",): 0.25, ("h4",): 0.25}
    assert rows_of("mrcd_peer_plane_rtt_seconds", peers=1) == {("h2", "0"): pytest.approx(81.5e-6)}
    assert rows_of("mrcd_peer_plane_usable", peers=1) == {
        ("h2", "0"): 1, ("h2", "1"): 0, ("h2", "2"): 1, ("h2", "3"): 1,
    }  # fmt: skip
    assert rows_of("mrcd_plane_usable")[("1", "plane1")] == 0
    assert rows_of("mrcd_ring_slots_used") == {("tx",): 21, ("rx",): 6}
    assert rows_of("mrcd_paths", planes=2)[("1", "SKIP")] == 1
    assert rows_of("mrcd_peer_paths", peers=1)[("h2", "ASSUMED_BAD")] == 10
    kinds = ("dead", "loss", "slow", "damage", "repeat", "reorder", "flap")
    assert rows_of("mrcd_faults") == {(kind,): 2 * (kind == "loss") for kind in kinds}


def test_collect__series_grow_with_peers_and_planes_only() -> None:
    def series(peers: int, planes: int) -> int:
        return sum(len(list(rows)) for _family, rows in collect(snapshot(peers, planes)))

    # heard_age and rtt are absent for every third peer and for all planes but one.
    one, two = series(3, 4), series(6, 4)
    assert two - one == series(9, 4) - two
    assert (two - one) / 3 < 14 + 5 * 4
    assert series(3, 8) - one < 4 * (14 + 3 * 5)


def test_reference__has_every_key_of_metrics_with_its_default() -> None:
    told = section(REFERENCE, "## Configuration").split("<!-- transport -->")[0]
    shown = {
        row[0].strip("`"): tomllib.loads(f"x = {row[1].strip('`')}")["x"] for row in cells(told)
    }
    keys = {field.name: getattr(config.Metrics(), field.name) for field in fields(config.Metrics)}
    assert keys.items() <= shown.items()


def test_reference__lists_every_metric() -> None:
    expected = [
        [
            f"`{family.name}`",
            ", ".join(family.labels),
            family.help.split(". ")[0],
        ]
        for family in FAMILIES
        if family.name not in {f"mrcd_{name}_total" for _index, name, _text in COUNTERS}
    ]
    shown = cells(between(REFERENCE, "metrics"))
    lines = ["| metric | labels | meaning |", "|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in expected]
    assert shown == expected, "it should be:\n" + "\n".join(lines)
