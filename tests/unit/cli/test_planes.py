# SPDX-License-Identifier: GPL-2.0-only
"""Test ``mrcctl plane`` and ``mrcctl path probe`` against a control server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import pytest

from cli.console import exits
from cli.console.planeargument import plane_named
from rigs.control_double import FakeSource
from tests.unit.command_line import run, run_json


def test_list_says_what_keeps_a_plane_from_use(server: Path, source: FakeSource) -> None:
    source.drained.add(0)
    lines = run(server, "plane", "list").output.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["0", "plane0", "drained"],
        ["1", "plane1", "no"],
    ]
    assert [plane["drained"] for plane in run_json(server, "plane", "list")["planes"]] == [
        True,
        False,
    ]


def test_list_says_what_a_plane_does_not_reach(server: Path, source: FakeSource) -> None:
    source.wrong[0] = "no path gets through, for 9.0 s; fault map: h1:p0 dead"
    lines = run(server, "plane", "list").output.splitlines()
    assert lines[1].split()[:4] == ["0", "plane0", "no", "path"]
    assert lines[-1] == f"! plane 0: {source.wrong[0]}"
    assert run_json(server, "plane", "list")["planes"][0]["unreached"] == 1


def test_list_says_which_planes_are_on_standby(server: Path, source: FakeSource) -> None:
    source.standby[0] = 0
    lines = run(server, "plane", "list").output.splitlines()
    assert lines[1].split()[:4] == ["0", "plane0", "standby", "fe80::1"]
    source.standby[0] = 2
    lines = run(server, "plane", "list").output.splitlines()
    assert " ".join(lines[1].split()[:5]) == "0 plane0 standby, in use"
    shown = run_json(server, "plane", "list")["planes"][0]
    assert (shown["standby"], shown["standing_in"]) == (True, 2)


def test_drain_and_undrain(server: Path, source: FakeSource) -> None:
    assert run(server, "plane", "drain", "1").output == "plane 1 (plane1): drained\n"
    assert source.drained == {1}
    assert run_json(server, "plane", "undrain", "1")["drained"] is False
    assert source.drained == set()


def test_last_plane_is_drained_by_force_only(server: Path, source: FakeSource) -> None:
    refused = run(server, "plane", "drain", "0")
    assert refused.exit_code == exits.FAILED
    assert "last usable" in refused.output
    assert "--force" in refused.output
    assert source.drained == set()
    assert run(server, "plane", "drain", "0", "--force").exit_code == exits.DONE
    assert source.drained == {0}


@pytest.mark.parametrize(
    "words",
    [
        ("plane", "drain"),
        ("plane", "undrain"),
        ("path", "probe", "h2", "--plane"),
        ("path", "list", "--plane"),
        ("ping", "h2", "--plane"),
        ("capture", "--plane"),
    ],
)
@pytest.mark.parametrize("word", ["7", "p7", "eth7", "1.5", "01"])
def test_unknown_plane_lists_what_there_is(server: Path, words: tuple[str, ...], word: str) -> None:
    result = run(server, *words, word)
    assert result.exit_code == exits.NO_SUCH_OBJECT
    assert result.output == f"mrcctl: no plane '{word}'; known: 0 (plane0), 1 (plane1)\n"


@pytest.mark.parametrize("word", ["1", "p1", "plane1"])
def test_plane_is_a_number_an_element_or_a_nic(server: Path, source: FakeSource, word: str) -> None:
    assert run(server, "plane", "drain", word).output == "plane 1 (plane1): drained\n"
    assert source.drained == {1}
    assert run_json(server, "plane", "undrain", word)["index"] == 1
    assert {found["plane"] for found in run_json(server, "path", "list", "--plane", word)["paths"]}
    probes = run_json(server, "path", "probe", "h2", "--plane", word)["probes"]
    assert [found["plane"] for found in probes] == [1]
    assert [
        found["plane"] for found in run_json(server, "ping", "h2", "--plane", word)["probes"]
    ] == [1]


def test_nic_that_is_called_like_another_plane_is_not_guessed(source: FakeSource) -> None:
    zero, one = source.status().planes
    with pytest.raises(click.UsageError, match="names planes 0 and 1: give the plane's number"):
        plane_named([replace(zero, interface="p1"), one], "p1")
    assert plane_named([replace(zero, interface="p0"), one], "p0") == 0


def test_without_a_daemon_the_plane_is_not_what_is_wrong(path: Path) -> None:
    assert run(path, "plane", "drain", "7").exit_code == exits.UNREACHABLE


def test_probe_shows_each_path(server: Path) -> None:
    result = run(server, "path", "probe", "h2", "--count", "3")
    assert result.exit_code == exits.DONE
    _, first, second = result.output.splitlines()
    assert first.split()[:9] == ["0x00010000", "0", "1", "3", "3", "0", "%", "30", "us"]
    assert second.split()[1] == "1"
    reply = run_json(server, "path", "probe", "h2", "--plane", "1")
    assert [(found["plane"], found["sent"]) for found in reply["probes"]] == [(1, 10)]


@pytest.mark.parametrize(("lost", "shown"), [(1, "10"), (10, "100")])
def test_lost_probe_exits_1(server: Path, source: FakeSource, lost: int, shown: str) -> None:
    source.lost = lost
    result = run(server, "path", "probe", "h2")
    assert result.exit_code == exits.FAILED
    assert f" {shown} %" in result.output


def test_probe_of_an_unknown_peer(server: Path) -> None:
    result = run(server, "path", "probe", "h9")
    assert result.exit_code == exits.NO_SUCH_OBJECT
    assert "h2, h3" in result.output
