# SPDX-License-Identifier: GPL-2.0-only
"""Test the hosts' NICs of a lab: what they may be, where queues are chosen, and their record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.console import exits
from cli.lab import command as command
from cli.lab import lab, multiqueue, state, topology
from cli.lab.multiqueue import ONE_QUEUE, HostNics
from cli.lab.state import Lab, LabFailed
from cli.main import mrcctl
from mrcd.fabric import description

PLAN = topology.plan(description.generate(name="x", hosts=3, planes=2, t1=2, hosts_per_t0=2))


@pytest.mark.parametrize(
    ("nics", "rate_mbps", "reason"),
    [
        (HostNics(0), 0, "1 to 16 queues, not 0"),
        (HostNics(17), 0, "1 to 16 queues, not 17"),
        (HostNics(1, "mq"), 0, "give --queues, too"),
        (HostNics(4, "mq"), 100, "below the token bucket"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    nics: HostNics, rate_mbps: int, reason: str
) -> None:
    with pytest.raises(LabFailed, match=reason):
        nics.check(rate_mbps)


def test_a_number_of_queues_needs_nothing_of_the_kernel() -> None:
    for queues in range(1, multiqueue.QUEUES_MAX + 1):
        HostNics(queues).check(100)


def test_only_ports_to_hosts_choose_a_queue() -> None:
    to_hosts = {(f"p{plane}t0-{t0}", f"port{port}")
                for plane in (0, 1) for t0, port in ((1, 1), (1, 2), (2, 1))}  # fmt: skip
    assert multiqueue.ports(PLAN, HostNics(4)) == to_hosts
    assert multiqueue.ports(PLAN, ONE_QUEUE) == set()


def test_only_cables_of_hosts_have_several_queues() -> None:
    counts = {
        (cable.far.node[0], multiqueue.queues(PLAN, HostNics(4), cable)) for cable in PLAN.cables
    }
    assert counts == {("h", 4), ("p", 1)}


# ---- the record


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(state, "ROOT", tmp_path)
    (tmp_path / "x").mkdir()
    return tmp_path


def test_the_record_keeps_what_the_nics_are(root: Path) -> None:
    wanted = Lab("x", ("x-h1",), True, True, (), 4, "fq")
    state.write(wanted)
    assert state.read("x") == wanted


def test_a_record_of_before_has_one_queue(root: Path) -> None:
    state.write(Lab("x", ("x-h1",), True, True, ()))
    file = root / "x" / "lab.json"
    older = json.loads(file.read_text())
    del older["queues"], older["qdisc"]
    file.write_text(json.dumps(older))
    assert (state.read("x").queues, state.read("x").qdisc) == (1, "")


# ---- the command


def test_the_command_knows_what_the_lab_knows() -> None:
    assert (command.QUEUES_MAX, command.QDISCS) == (multiqueue.QUEUES_MAX, multiqueue.QDISCS)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, HostNics]]:
    """Return the planes and NICs of each lab that would be built."""
    found: list[tuple[int, HostNics]] = []

    def up(fabric: Any, *, host_nics: HostNics, **_options: Any) -> None:
        found.append((fabric.planes, host_nics))

    monkeypatch.setattr(lab, "up", up)
    return found


def test_options_reach_the_lab_with_and_without_a_file(
    built: list[tuple[int, HostNics]], tmp_path: Path
) -> None:
    file = tmp_path / "fabric.toml"
    file.write_text(description.dumps(description.generate(name="x", planes=3)))
    options = ["--queues", "4", "--qdisc", "pfifo_fast"]
    for given in (["--planes", "2", *options], [str(file), *options], []):
        done = CliRunner().invoke(mrcctl, ["lab", "up", *given])
        assert done.exit_code == exits.DONE, done.output
    four = HostNics(4, "pfifo_fast")
    assert built == [(2, four), (3, four), (4, ONE_QUEUE)]


@pytest.mark.parametrize(
    "wrong",
    [["--queues", "0"], ["--queues", "17"], ["--qdisc", "tbf"],
     ["--switches", "--queues", "2"], ["--switches", "--qdisc", "mq"]],
)  # fmt: skip
def test_wrong_options_build_nothing(built: list[tuple[int, HostNics]], wrong: list[str]) -> None:
    assert CliRunner().invoke(mrcctl, ["lab", "up", *wrong]).exit_code == exits.USAGE
    assert built == []


@pytest.mark.parametrize(
    ("nics", "lines"),
    [
        (ONE_QUEUE, []),
        (HostNics(4), ["hosts' NICs have 4 queues (--queues)"]),
        (HostNics(1, "fq"), ["hosts' NICs have the queueing discipline fq (--qdisc)"]),
    ],
)
def test_status_says_what_the_nics_are(
    monkeypatch: pytest.MonkeyPatch, nics: HostNics, lines: list[str]
) -> None:
    found = lab.LabStatus(
        name="x",
        folder="/x",
        planes=2,
        t0=1,
        t1=1,
        mtu=9000,
        rate_mbps=0,
        daemons=False,
        ecn=True,
        trim=False,
        queues=nics.queues,
        qdisc=nics.qdisc,
        hosts=(),
        switches=(),
        faults=(),
        ports=(),
    )
    monkeypatch.setattr(lab, "status", lambda _name: found)
    shown = CliRunner().invoke(mrcctl, ["lab", "status"]).output.splitlines()
    assert [line for line in shown if "NICs" in line] == lines
    answer = json.loads(CliRunner().invoke(mrcctl, ["lab", "status", "--json"]).output)
    assert (answer["queues"], answer["qdisc"]) == (nics.queues, nics.qdisc)
