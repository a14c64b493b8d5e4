# SPDX-License-Identifier: GPL-2.0-only
"""Test ``mrcctl fault list`` and ``mrcctl fabric map`` against a control server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli.console import exits
from cli.fabric import drawing
from cli.quick import watch
from cli.state.faults import PROBE_PORT, sentence, summary
from mrcd.model import ElementInfo, ElementState, FaultKind, HostSpot, MapReply, WayInfo
from mrcd.survey import probesockets
from rigs.control_double import FakeSource
from tests.unit.command_line import run


def test_faults_say_what_how_much_since_when_and_why(server: Path) -> None:
    result = run(server, "fault", "list")
    assert result.exit_code == exits.DONE
    assert result.output.splitlines() == [
        "p0t1-1 is dead, for 12 s",
        "    cannot be told from: p0t0-1:p0t1-1 and p0t0-2:p0t1-1",
        "    h1 - p1t0-1 - p1t1-2 and back: lost 21 of 264",
        "p1t0-1:p1t1-2 loses 4.1 % (3.2 % to 10 %), for 12 s",
        "    h1 - p1t0-1 - p1t1-2 and back: lost 21 of 264",
        "h2:p1 is slow: 5.4 ms too long, for 12 s",
        "    h1 - p1t0-1 - p1t1-2 and back: lost 21 of 264",
        "survey: 10 loops here, 200 probes/s; 1 of 2 peers report theirs",
    ]


def test_no_faults(server: Path, source: FakeSource) -> None:
    source.healthy_fabric, source.rejected = True, 3
    result = run(server, "fault", "list", "--check")
    assert result.exit_code == exits.DONE
    first, second = result.output.splitlines()
    assert first == "no faults"
    assert second.endswith("; 3 messages rejected")


def test_check_fails_on_faults_after_printing_them(server: Path) -> None:
    result = run(server, "fault", "list", "--check")
    assert result.exit_code == exits.FAILED
    assert "p0t1-1 is dead" in result.output


def test_wait_returns_at_once_where_there_is_a_fault(server: Path) -> None:
    result = run(server, "fault", "list", "--wait")
    assert (result.exit_code, result.output) == (exits.DONE, run(server, "fault", "list").output)


def test_wait_returns_when_a_fault_is_named(server: Path, source: FakeSource) -> None:
    source.healthy_until = 3
    result = run(server, "fault", "list", "--wait", "20", "--json")
    assert result.exit_code == exits.DONE
    assert json.loads(result.output)["faults"][0]["element"] == "p0t1-1"
    assert source.asked_for_faults == 3


def test_wait_without_a_fault_exits_1(server: Path, source: FakeSource) -> None:
    source.healthy_fabric = True
    result = run(server, "fault", "list", "--wait", "0.3")
    assert result.exit_code == exits.FAILED
    assert result.stderr == "mrcctl: no fault was named within 0.3 s\n"
    assert result.stdout.startswith("no faults\n")
    assert 2 <= source.asked_for_faults <= 4  # at an interval of 200 ms


def test_wait_without_a_survey_exits_1_at_once(server: Path, source: FakeSource) -> None:
    source.survey_off, source.healthy_fabric = "[transport] survey_pps is 0", True
    result = run(server, "fault", "list", "--wait")
    assert result.exit_code == exits.FAILED
    assert "no fault can be named: no survey: [transport] survey_pps is 0" in result.stderr


@pytest.mark.parametrize("words", [["--wait", "--check"], ["--wait", "soon"], ["--wait=-1"]])
def test_wait_that_means_nothing_exits_2(server: Path, words: list[str]) -> None:
    assert run(server, "fault", "list", *words).exit_code == exits.USAGE


def test_json_is_the_reply(server: Path) -> None:
    reply = json.loads(run(server, "fault", "list", "--json").output)
    assert reply["schema_version"] == 1
    assert [fault["element"] for fault in reply["faults"]] == ["p0t1-1", "p1t0-1:p1t1-2", "h2:p1"]
    assert reply["survey"]["enabled"]


def test_without_a_survey_nothing_is_claimed(server: Path, source: FakeSource) -> None:
    source.survey_off, source.healthy_fabric = "[transport] survey_pps is 0", True
    assert run(server, "fault", "list").output == "no survey: [transport] survey_pps is 0\n"


def test_map_draws_a_block_for_each_plane(server: Path) -> None:
    result = run(server, "fabric", "map")
    assert result.exit_code == exits.DONE
    blocks = result.output.split("\n\n")
    assert blocks[0].splitlines() == [
        "plane 0: 1 at fault",
        "            p0t1-1 x p0t1-2   hosts",
        "p0t0-1      23       23       h1 12",
        "p0t0-2      23       23       h2 12",
    ]
    assert blocks[1].splitlines()[:2] == [
        "plane 1: 2 at fault",
        "            p1t1-1   p1t1-2   hosts",
    ]
    assert "p1t0-1      23       4.1%     h1 12" in blocks[1]
    assert "h2 ~12" in blocks[1]
    assert blocks[2].startswith(drawing.LEGEND)


@pytest.mark.parametrize(("planes", "t0s", "t1s"), [(4, 2, 2), (8, 2, 32), (8, 40, 4)])
def test_map_fits_eighty_columns(source: FakeSource, planes: int, t0s: int, t1s: int) -> None:
    source.fabric_planes, source.t0s, source.t1s = planes, t0s, t1s
    lines = drawing.render(source.fabric_map(), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("plane ") for line in lines) == planes


def test_a_wide_fabric_is_summed_up_and_its_faults_named(source: FakeSource) -> None:
    source.t1s = 32
    text = drawing.render(source.fabric_map(), 80)
    assert "p0t0-1      32 of 32 T1 links ok 23 to 23 us   h1 12" in text
    assert "p1t0-1      31 of 32 T1 links ok 23 to 23 us   h1 12" in text
    assert "  p1t0-1:p1t1-2 4.1%" in text
    assert "  p0t1-1 x" in text


def test_map_as_json(server: Path) -> None:
    reply = json.loads(run(server, "fabric", "map", "--json").output)
    assert (reply["planes"], reply["t0"], reply["t1"]) == (2, 2, 2)
    assert len(reply["elements"]) == 2 * (2 + 2 + 4 + 2)


def nic(name: str, plane: int, state: ElementState = "ok", loss: float = 0.0) -> ElementInfo:
    return ElementInfo(
        name=name, kind="nic", plane=plane, state=state, loss=loss, sent=100, latency_us=None
    )


def test_without_a_fabric_the_map_is_a_table(source: FakeSource) -> None:
    pair = replace(nic("a:eth1 to b:eth1", 0, "dead"), kind="pair")
    reply: MapReply = {
        **source.fabric_map(),
        "t0": 0,
        "hosts": [HostSpot(name=name, t0=0) for name in ("a", "bb")],
        "elements": [
            nic("a:eth1", 0), nic("a:eth2", 1, "loss", 0.02), nic("bb:eth1", 0, "unseen"),
            nic("bb:eth2", 1, "slow"), pair,
        ],
        "ways": [WayInfo(sender="a", receiver="bb", plane=1, sent=100, lost=2)],
    }  # fmt: skip
    assert drawing.render(reply, 80).splitlines()[:-2] == [
        "host  plane 0  plane 1",
        "a     ok       2.0%",
        "bb    ?        ~ slow",
        "  a:eth1 to b:eth1 x",
        "  a to bb on plane 1: 2 of 100 lost",
    ]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("damage", "a:eth1 damages 4.1 % (3.2 % to 10 %)"),
        ("repeat", "a:eth1 repeats 4.1 % (3.2 % to 10 %)"),
        ("reorder", "a:eth1 reorders 4.1 % (3.2 % to 10 %)"),
        ("flap", "a:eth1 flaps"),
    ],
)
def test_what_else_is_wrong_with_packets(source: FakeSource, kind: FaultKind, text: str) -> None:
    lossy = source.faults()["faults"][1]
    assert sentence(replace(lossy, element="a:eth1", kind=kind)) == text


def test_a_firewall_before_all_probes_is_suspected(source: FakeSource) -> None:
    survey = replace(source.faults()["survey"], trips="ways")
    assert "does a firewall of this host drop UDP port 4975?" in summary(survey)
    assert "firewall" not in summary(replace(survey, arrived=1))
    assert probesockets.PORT == PROBE_PORT


def test_watch_prints_a_line_with_the_numbers(source: FakeSource) -> None:
    lossy = source.faults()["faults"][1]
    found = replace(lossy, element="a:eth1 sending", evidence=["21 of 264 probes lost"])
    text = watch.line(replace(found, alternatives=[["x", "y"], ["z"]]))
    assert text.startswith(
        "a:eth1 sending loses 4.1 % (3.2 % to 10 %) (21 of 264 probes lost; since "
    )
    assert text.endswith("; cannot be told from x and y, or from z)")


def test_watch_needs_a_nic_that_is_there(server: Path) -> None:
    result = run(server, "watch", "--insecure", "no-such-nic")
    assert result.exit_code == exits.NO_SUCH_OBJECT
    assert "no-such-nic" in result.stderr
    assert run(server, "watch", "lo").exit_code == exits.USAGE
    assert run(server, "watch", "eth1", "eth1").exit_code == exits.USAGE
