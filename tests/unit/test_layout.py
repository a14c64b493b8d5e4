# SPDX-License-Identifier: GPL-2.0-only
"""The arrows between modules run one way, and files look as they should."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    file
    for folder in ("bench", "bpf", "cli", "mrcd", "packaging", "scripts", "tests", "vm", ".ci")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in {".py", ".c", ".h", ".sh"} or file.name == "run"
)
PYTHON = [file for file in SOURCES if file.suffix == ".py"]
LICENCES = {"GPL-2.0-only", "GPL-2.0-only OR BSD-2-Clause"}
VAGUE = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
LINES_MAX = 800  # 400 is the aim; far beyond it a noun was missed

# Pure: no clock, no socket, no process, no log. Time and packets come in as arguments.
PURE = {
    "mrcd.peers.peers.schedule",
    "mrcd.datapath.census",
    "mrcd.config.config.overlap",
    "mrcd.config.config.reserved",
    "mrcd.config.config",
    "mrcd.peers.peers.evprobe",
    "mrcd.wire.packet.envelope",
    "mrcd.survey.survey.evidence",
    "mrcd.survey.survey.named",
    "mrcd.survey.survey.inference",
    "mrcd.report.report.shortlist",
    "mrcd.handshake",
    "mrcd.wire.packet.headers",
    "mrcd.handshake.ratelimit",
    "mrcd.handshake.incarnation",
    "mrcd.handshake.offer",
    "mrcd.handshake.commands",
    "mrcd.handshake.pace",
    "mrcd.handshake.session",
    "mrcd.survey.survey.history",
    "mrcd.linux.interfaces",
    "mrcd.wire.packet.layout",
    "mrcd.survey.survey.likelihood",
    "mrcd.fabric.loops",
    "mrcd.report.report.metrics",
    "mrcd.model",
    "mrcd.survey.survey.nichealth",
    "mrcd.peers.peers.portcheck",
    "mrcd.planes.usable",
    "mrcd.config.config.diff",
    "mrcd.datapath.sizes",
    "mrcd.config.config.table",
    "mrcd.wire.packet",
    "mrcd.rules.elements",
    "mrcd.paths.evset",
    "mrcd.paths.states",
    "mrcd.fabric.description",
    "mrcd.fabric.hosts",
    "mrcd.lab.intent",
    "mrcd.fabric.naming",
    "mrcd.fabric.planning",
    "mrcd.fabric.routing",
    "mrcd.fabric.shape",
    "mrcd.fabric.underlay",
    "mrcd.fabric.usid",
}
PURE_MAY_IMPORT = PURE | {"mrcd", "mrcd.wire.abi", "mrcd.fabric", "mrcd.wire.packet.sources"}
IMPURE_LIBRARIES = {
    "asyncio",
    "asyncvarlink",
    "bcc",
    "click",
    "fcntl",
    "pyroute2",
    "select",
    "socket",
    "structlog",
    "subprocess",
    "threading",
    "time",
}
# What of the daemon's package mrcctl may import: types at once; the fabric arithmetic and the
# labs, the configuration's checks, what the doctor looks at, detaching a data path that no daemon
# serves, and what reads a capture's records, when a command needs them.
CLI_MAY_IMPORT = {"mrcd", "mrcd.model"}
CLI_MAY_IMPORT_LATE = CLI_MAY_IMPORT | {
    "mrcd.wire.abi",
    "mrcd.linux.bpf",
    "mrcd.service.capabilities",
    "mrcd.config.config",
    "mrcd.datapath.detach",
    "mrcd.fabric",
    "mrcd.linux.netlink",
    "mrcd.wire.packet.sources",
    "mrcd.datapath.pins",
    "mrcd.linux.ringbuf",
    "mrcd.wire.packet",
}


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in PYTHON if file.parts[-2] != "tests"}


def imports(file: Path, *, late: bool) -> Iterator[str]:
    """Full names of imported modules: all of them, or without ``late`` those of the top level."""
    tree = ast.parse(file.read_text())
    nodes = ast.walk(tree) if late else iter(tree.body)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


def top(name: str) -> str:
    return name.split(".")[0]


@pytest.mark.parametrize(
    ("library", "owner"), [("pyroute2", "mrcd.linux.netlink"), ("bcc", "mrcd.datapath.loader")]
)
def test_heavy_library_has_one_importer(library: str, owner: str) -> None:
    importers = {
        name
        for name, file in MODULES.items()
        if top(name) in {"mrcd", "cli"} and library in map(top, imports(file, late=True))
    }
    owners = {name for name in importers if name == owner or name.startswith(f"{owner}.")}
    assert importers == owners != set()


def test_every_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"])
    packages = {name for name, file in MODULES.items() if file.name == "__init__.py"}
    assert {name for name in packages if top(name) in {"mrcd", "cli"}} <= listed


@pytest.mark.parametrize("name", sorted(PURE))
def test_pure_module_imports_nothing_of_the_shell(name: str) -> None:
    found = set(imports(MODULES[name], late=True))
    assert {module for module in found if top(module) == "mrcd"} <= PURE_MAY_IMPORT
    assert set(map(top, found)) & (IMPURE_LIBRARIES | {"cli"}) == set()


@pytest.mark.parametrize("name", sorted(name for name in MODULES if top(name) == "mrcd"))
def test_daemon_does_not_import_the_command_line(name: str) -> None:
    assert "cli" not in map(top, imports(MODULES[name], late=True))


@pytest.mark.parametrize("name", sorted(name for name in MODULES if top(name) == "cli"))
def test_command_line_talks_to_the_daemon_over_its_socket(name: str) -> None:
    def foreign(allowed: set[str], *, late: bool) -> set[str]:
        found = {module for module in imports(MODULES[name], late=late) if top(module) == "mrcd"}
        # A package in the list stands for its modules, except for mrcd itself.
        return {
            m for m in found if m not in allowed and m.rpartition(".")[0] not in allowed - {"mrcd"}
        }

    # These are themselves imported late, so their own top level may have what others import late.
    at_once = (
        CLI_MAY_IMPORT_LATE
        if name in {"cli.lab", "cli.facts", "cli.bundle", "cli.packets"}
        else CLI_MAY_IMPORT
    )
    assert foreign(at_once, late=False) == set()
    assert foreign(CLI_MAY_IMPORT_LATE, late=True) == set()


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_source_file_names_its_licence(file: Path) -> None:
    lines = file.read_text().splitlines()
    line = lines[1] if lines[0].startswith("#!") else lines[0]
    marker = "SPDX-License-Identifier: "
    assert marker in line
    assert line.split(marker)[1].removesuffix("*/").strip() in LICENCES


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_source_file_is_about_one_noun(file: Path) -> None:
    assert file.stem not in VAGUE
    assert len(file.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("licence", ["GPL-2.0-only", "BSD-2-Clause"])
def test_licence_texts_are_there(licence: str) -> None:
    assert (ROOT / "LICENSES" / f"{licence}.txt").stat().st_size > 1000
