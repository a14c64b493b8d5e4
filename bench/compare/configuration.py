# SPDX-License-Identifier: GPL-2.0-only
"""Set up competitors in the namespaces of a lab, and remove them again."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.compare.routes import Competitor
from bench.instruments.flow import BenchFailed
from cli.lab import state, topology
from cli.lab.topology import Topology
from mrcd.linux import netns


class Unavailable(Exception):
    """A competitor that this machine does not support; the message says what is missing."""


def prepare(name: str, competitor: Competitor) -> None:
    """Set up a competitor in a lab; if that fails, remove it and raise Unavailable."""
    lacking = competitor.missing()
    if lacking is not None:
        raise Unavailable(lacking)
    plan = topology.plan(state.read_fabric(name))
    try:
        _apply(plan, competitor.lines(plan))
    except BenchFailed as problem:
        remove(name, competitor)
        raise Unavailable(f"{competitor.title} cannot be set up here: {problem}") from None


def repair(name: str, competitor: Competitor, plane: int) -> None:
    """Restore the routes of a plane's switches that were removed with a link that went down."""
    plan = topology.plan(state.read_fabric(name))
    lines = competitor.lines(plan)
    _apply(plan, {node: lines[node] for node in lines if plan.nodes[node].plane == plane})


def remove(name: str, competitor: Competitor) -> None:
    """Remove all parts of a competitor that exist in a lab."""
    plan = topology.plan(state.read_fabric(name))
    for node, lines in competitor.undo(plan).items():
        _in_namespace(plan.namespace(node), lines, force=True)


def usable(name: str, wanted: Sequence[Competitor]) -> tuple[list[Competitor], dict[str, str]]:
    """Set up the supported competitors; return them, and the reasons for the others by title."""
    found, refused = [], {}
    for competitor in wanted:
        try:
            prepare(name, competitor)
        except Unavailable as problem:
            refused[competitor.title] = str(problem)
        else:
            found.append(competitor)
    return found, refused


def _apply(plan: Topology, lines: Mapping[str, Sequence[str]]) -> None:
    for node, wanted in lines.items():
        _in_namespace(plan.namespace(node), wanted)


def _in_namespace(namespace: str, lines: Sequence[str], *, force: bool = False) -> None:
    """Run lines in order; consecutive lines for one tool share a process."""
    for tool, group in itertools.groupby(lines, key=lambda line: line.split()[0]):
        rest = [line.removeprefix(f"{tool} ") for line in group]
        if tool == "sysctl":
            _write_sysctls(namespace, rest)
        else:
            _batch(tool, namespace, rest, force)


def _write_sysctls(namespace: str, settings: Sequence[str]) -> None:
    with netns.entered(namespace):
        for setting in settings:
            key, value = setting.split()
            try:
                Path("/proc/sys", key).write_text(value)
            except OSError as problem:
                raise BenchFailed(f"{key} in {namespace}: {problem.strerror}") from None


def _batch(tool: str, namespace: str, lines: Sequence[str], force: bool) -> None:
    command = [tool, *(["-force"] if force else []), "-n", namespace, "-batch", "-"]
    text = "\n".join(lines) + "\n"
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode and not force:
        raise BenchFailed(f"{tool} in {namespace}: {done.stderr.strip().splitlines()[0]}")
