# SPDX-License-Identifier: GPL-2.0-only
"""Test mrcctl plane measure against a double of the daemon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cli.console import exits
from cli.state import measure
from mrcd.model import PlaneRate
from mrcd.wording import falls_short
from rigs.control_double import FakeSource
from tests.unit.command_line import run, run_json


def rate() -> PlaneRate:
    return PlaneRate(
        peer="h2", plane=0, interface="eth1", direction="tx", nic_mbps=1000, peer_nic_mbps=1000,
        sent_mbps=990.0, mbps=940.0, at_least=False, loss=0.0, loss_mbps=752.0, rtt_us=200.0,
        queue_median_us=10.0, queue_p99_us=20.0, largest=1500,
    )  # fmt: skip


class TestCommand:
    def test_a_row_for_each_plane_and_direction_and_what_falls_short(self, server: Path) -> None:
        result = run(server, "plane", "measure", "h2")
        assert result.exit_code == exits.DONE
        head, out, back, *said = result.output.splitlines()
        assert head.split() == " ".join(measure.COLUMNS).split()
        assert " ".join(out.split()) == (
            "h2 0 (plane0) to 10000 Mb/s 95 Mb/s 0.0 % 210 us, full +20 ms 1500 B"
        )
        assert " ".join(back.split()).startswith("h2 0 (plane0) from 10000 Mb/s 9300 Mb/s - ")
        assert said[0] == "plane0 says 10000 Mb/s, 95 get through to h2"
        assert said[1].startswith("no LOSS")
        assert len(said) == 2

    def test_json_has_every_figure(self, server: Path) -> None:
        printed = run_json(server, "plane", "measure", "h2")
        assert [each["direction"] for each in printed["rates"]] == ["tx", "rx"]
        assert printed["rates"][0]["queue_p99_us"] == 21000.0

    def test_without_a_peer_all_that_are_up_are_measured(self, server: Path) -> None:
        printed = run_json(server, "plane", "measure")
        assert {each["peer"] for each in printed["rates"]} == {"h2"}

    def test_a_plane_by_its_nic(self, server: Path) -> None:
        printed = run_json(server, "plane", "measure", "h2", "--plane", "plane1")
        assert {each["plane"] for each in printed["rates"]} == {1}

    def test_a_plane_that_cannot_be_measured_fails_and_says_why(
        self, server: Path, source: FakeSource
    ) -> None:
        source.no_measure[0] = "plane 0 is being measured with h3 already"
        result = run(server, "plane", "measure", "h2")
        assert result.exit_code == exits.FAILED
        assert "plane 0 to h2: cannot measure: plane 0 is being measured with" in result.output

    def test_names_that_do_not_exist(self, server: Path) -> None:
        assert run(server, "plane", "measure", "h9").exit_code == exits.NO_SUCH_OBJECT
        words = ("plane", "measure", "h2", "--plane", "7")
        assert run(server, *words).exit_code == exits.NO_SUCH_OBJECT

    def test_a_peer_that_is_not_up(self, server: Path) -> None:
        result = run(server, "plane", "measure", "h3")
        assert result.exit_code == exits.FAILED
        assert "no plane is usable at this host and at h3" in result.output


def test_the_list_of_planes_says_what_falls_short(server: Path, source: FakeSource) -> None:
    source.measured[0] = "plane0 says 10000 Mb/s, 95 get through to h2"
    *_, last = run(server, "plane", "list").output.splitlines()
    assert last == "! plane 0: plane0 says 10000 Mb/s, 95 get through to h2"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"mbps": 799.0}, "eth1 says 1000 Mb/s, 799 get through to h2"),
        ({"mbps": 95.4, "direction": "rx"}, "eth1 says 1000 Mb/s, 95 get through from h2"),
        ({"mbps": 95.4, "at_least": True}, None),
        ({"mbps": 95.4, "nic_mbps": None}, None),
    ],
)
def test_what_falls_short(changes: dict[str, object], said: str | None) -> None:
    assert falls_short(replace(rate(), **changes)) == said  # type: ignore[arg-type]


def test_at_least_is_explained() -> None:
    busy = replace(rate(), at_least=True)
    assert "at least 940 Mb/s" in measure.render([busy])
    (said,) = measure.sentences([busy])
    assert said.startswith('"at least"')
