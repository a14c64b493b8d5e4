# SPDX-License-Identifier: GPL-2.0-only
"""Test that imports between modules run one way, and that files follow the project's format."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    file
    for folder in (
        "bench",
        "bpf",
        "cli",
        "mrcd",
        "packaging",
        "rigs",
        "scripts",
        "tests",
        "vm",
        ".ci",
    )
    for file in (ROOT / folder).rglob("*")
    if file.suffix in {".py", ".c", ".h", ".sh"} or file.name == "run"
)
PYTHON = [file for file in SOURCES if file.suffix == ".py"]
LICENCES = {"GPL-2.0-only", "GPL-2.0-only OR BSD-2-Clause"}
VAGUE = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
LINES_MAX = 800  # the aim is 400; a file far beyond it should be split

# The rooms of each product, from the ground up. The one rule: a module imports from its own room
# and from lower floors. Rooms of one floor do not import each other.
MRCD = (
    {"fabric", "linux", "model", "service", "wire"},
    {"handshake", "paths", "shortlist", "wording"},
    {"config"},
    {"datapath", "rules"},
    {"peers", "planes"},
    {"measure", "repair", "survey"},
    {"engine"},
    {"running"},
    {"report"},
    {"control"},
    {"daemon"},
    {"main"},
    {"__main__"},
)
CLI = (
    {"console"},
    {"lab", "state"},
    {"capture", "describe", "doctor", "fabric", "host", "report", "top"},
    {"quick"},
    {"main"},
    {"__main__"},
)
BENCH = (
    {"instruments"},
    {"compare", "demo", "paper", "soak", "transport"},
    {"fastpath", "faults", "recipes"},
    {"scale"},
)
FLOORS = {"mrcd": MRCD, "cli": CLI, "bench": BENCH}
FLOOR = {
    (product, room): floor
    for product, floors in FLOORS.items()
    for floor, rooms in enumerate(floors)
    for room in rooms
}

# Pure modules use no clock, socket, process or log. Time and packets are arguments. A room stands
# for all of its modules.
PURE = {
    "cli.fabric.inventory",
    "cli.fabric.placing",
    "cli.fabric.planning",
    "cli.lab.intent",
    "cli.lab.shape",
    "cli.quick.discovery",
    "cli.quick.files",
    "cli.quick.gathering",
    "mrcd.config.change",
    "mrcd.config.config",
    "mrcd.config.diff",
    "mrcd.config.inforce",
    "mrcd.config.key",
    "mrcd.config.network",
    "mrcd.config.overlap",
    "mrcd.config.redundant",
    "mrcd.config.reserved",
    "mrcd.config.sections",
    "mrcd.config.table",
    "mrcd.datapath.census",
    "mrcd.datapath.layoutkey",
    "mrcd.datapath.sizes",
    "mrcd.fabric",
    "mrcd.handshake",
    "mrcd.linux.interfaces",
    "mrcd.measure.estimate",
    "mrcd.measure.messages",
    "mrcd.measure.question",
    "mrcd.measure.tally",
    "mrcd.model",
    "mrcd.paths.evset",
    "mrcd.paths.largest",
    "mrcd.paths.states",
    "mrcd.peers.evprobe",
    "mrcd.peers.heard",
    "mrcd.peers.lines",
    "mrcd.peers.meeting",
    "mrcd.peers.peer",
    "mrcd.peers.portcheck",
    "mrcd.peers.portupdates",
    "mrcd.peers.schedule",
    "mrcd.peers.seeds",
    "mrcd.planes.usable",
    "mrcd.repair.nexthops",
    "mrcd.repair.repeats",
    "mrcd.repair.wanted",
    "mrcd.report.metrics",
    "mrcd.rules.elements",
    "mrcd.shortlist",
    "mrcd.survey.arrivals",
    "mrcd.survey.cables",
    "mrcd.survey.carriers",
    "mrcd.survey.evidence",
    "mrcd.survey.history",
    "mrcd.survey.hoststate",
    "mrcd.survey.inference",
    "mrcd.survey.likelihood",
    "mrcd.survey.matrix",
    "mrcd.survey.messages",
    "mrcd.survey.named",
    "mrcd.survey.nichealth",
    "mrcd.survey.pairs",
    "mrcd.survey.shots",
    "mrcd.survey.told",
    "mrcd.survey.ways",
    "mrcd.wire",
    "mrcd.wording",
}
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
# What of the daemon's package mrcctl may import: types, words and the choice of peers to show at
# once; the fabric arithmetic and the labs, the configuration's checks, what the doctor looks at,
# detaching a data path that no daemon serves, keys as people write them, what reads a capture's
# records, and by what hosts find each other, when a command needs them.
CLI_MAY_IMPORT = {
    "mrcd",
    "mrcd.linux.kernel",
    "mrcd.linux.neighbortable",
    "mrcd.model",
    "mrcd.shortlist",
    "mrcd.wording",
}
CLI_MAY_IMPORT_LATE = {
    "mrcd.config",
    "mrcd.datapath.detach",
    "mrcd.datapath.pins",
    "mrcd.fabric",
    "mrcd.handshake.certificate",
    "mrcd.handshake.hello",
    "mrcd.handshake.identity",
    "mrcd.handshake.invitation",
    "mrcd.handshake.revocation",
    "mrcd.handshake.voice",
    "mrcd.linux.bpf",
    "mrcd.linux.ethtool",
    "mrcd.linux.groupsocket",
    "mrcd.linux.netlink",
    "mrcd.linux.ringbuf",
    "mrcd.linux.rss",
    "mrcd.peers.admitted",
    "mrcd.peers.membership",
    "mrcd.service.capabilities",
    "mrcd.service.statefile",
    "mrcd.wire",
}
# These are imported late, so their top level may import what others must import late.
IMPORTED_LATE = {
    "cli.capture.packets",
    "cli.doctor.bundle",
    "cli.doctor.facts",
    "cli.fabric.inventory",
    "cli.fabric.placing",
    "cli.fabric.planning",
}
APART = {"lab", "quick"}
"""Rooms of cli/ that do more than talk to a daemon: they build labs, and find hosts."""


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in PYTHON if file.parts[-2] != "tests"}


def imports(file: Path, *, late: bool) -> Iterator[str]:
    """Yield the full names of imported modules; without ``late`` only those of the top level."""
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


def room(name: str) -> tuple[str, str]:
    """Return product and room of a module: its package, or a top-level module itself."""
    product, own = name.split(".")[:2]
    return product, own


def within(name: str, allowed: set[str]) -> bool:
    """Return whether a module, or a package that contains it, is in `allowed`.

    The package mrcd itself does not count as a room.
    """
    parts = name.split(".")
    parents = {".".join(parts[:end]) for end in range(2, len(parts) + 1)}
    return name in allowed or bool(parents & allowed)


def inside(name: str) -> bool:
    """Return whether a module is in a product that has floors, and not that package itself."""
    return top(name) in FLOORS and "." in name


OURS = sorted(name for name in MODULES if inside(name))


@pytest.mark.parametrize(
    ("library", "owner"), [("pyroute2", "mrcd.linux"), ("bcc", "mrcd.datapath.compiler")]
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


def test_every_room_has_a_floor() -> None:
    assert {room(name) for name in OURS} == set(FLOOR)


@pytest.mark.parametrize("name", OURS)
def test_module_imports_from_its_room_and_from_lower_floors(name: str) -> None:
    own = room(name)
    found = (each for each in imports(MODULES[name], late=True) if inside(each))
    below = ((each, room(each)) for each in found if top(each) == top(name))
    assert {each for each, of in below if of != own and FLOOR[of] >= FLOOR[own]} == set()


def documented() -> dict[tuple[str, str], tuple[int, set[str]]]:
    """Return the floor and the modules of each room in the tables of docs/architecture.md."""
    rows = {}
    product = ""
    for line in (ROOT / "docs" / "architecture.md").read_text().splitlines():
        head = re.fullmatch(r"\| floor \| room of `(\w+)/` \| holds \| modules \|", line)
        product = head[1] if head else product
        row = re.fullmatch(r"\| (\d+) \| `(\w+)/?` \| [^|]+ \| ([^|]+) \|", line)
        if row:
            modules = set(re.findall(r"`([\w/]+)`", row[3]))
            rows[product, row[2]] = int(row[1]), {each.replace("/", ".") for each in modules}
    return rows


def test_document_lists_each_module_in_its_room() -> None:
    there: dict[tuple[str, str], set[str]] = {}
    for name in OURS:
        if MODULES[name].name != "__init__.py":
            product, own = room(name)
            known = name.removeprefix(f"{product}.").removeprefix(f"{own}.")
            there.setdefault((product, own), set()).add(known)
    for product in ("mrcd", "cli"):
        there[product, "main"] |= there.pop((product, "__main__"))
    assert {own: modules for own, (_, modules) in documented().items()} == there


@pytest.mark.parametrize(
    ("product", "own"), sorted(at for at in FLOOR if ROOT.joinpath(*at).is_dir())
)
def test_package_names_its_floor(product: str, own: str) -> None:
    text = ast.get_docstring(ast.parse(MODULES[f"{product}.{own}"].read_text())) or ""
    assert f"\nFloor {FLOOR[product, own] + 1}: imports " in text


def test_document_shows_each_room_on_its_floor() -> None:
    floors = {at: floor for at, (floor, _) in documented().items()}
    assert floors == {at: floor + 1 for at, floor in FLOOR.items() if at[1] != "__main__"}


def test_no_module_imports_itself_by_way_of_others() -> None:
    arrows = {
        name: {found for found in imports(file, late=True) if found in MODULES}
        for name, file in MODULES.items()
        if top(name) in {"mrcd", "cli"}
    }
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("name", sorted(name for name in MODULES if top(name) == "bench"))
def test_benchmark_borrows_no_test(name: str) -> None:
    assert "tests" not in map(top, imports(MODULES[name], late=True))


@pytest.mark.parametrize("name", sorted(name for name in MODULES if top(name) == "rigs"))
def test_rig_knows_neither_tests_nor_benchmarks(name: str) -> None:
    assert not {"tests", "bench"} & set(map(top, imports(MODULES[name], late=True)))


@pytest.mark.parametrize("name", [name for name in OURS if within(name, PURE)])
def test_pure_module_imports_nothing_of_the_shell(name: str) -> None:
    found = set(imports(MODULES[name], late=True))
    assert {m for m in found if inside(m) and not within(m, PURE)} == set()
    assert set(map(top, found)) & IMPURE_LIBRARIES == set()


def test_pure_names_what_there_is() -> None:
    assert {name for name in PURE if name not in MODULES} == set()


@pytest.mark.parametrize("name", sorted(name for name in MODULES if top(name) == "mrcd"))
def test_daemon_does_not_import_the_command_line(name: str) -> None:
    assert "cli" not in map(top, imports(MODULES[name], late=True))


def is_command(name: str) -> bool:
    """Return whether a module is of mrcctl, and not of what builds labs or finds hosts."""
    return top(name) == "cli" and (room(name)[1] not in APART or name.endswith(".command"))


@pytest.mark.parametrize(
    "name", sorted(name for name in MODULES if "." in name and is_command(name))
)
def test_command_line_talks_to_the_daemon_over_its_socket(name: str) -> None:
    def foreign(allowed: set[str], *, late: bool) -> set[str]:
        found = {module for module in imports(MODULES[name], late=late) if top(module) == "mrcd"}
        return {m for m in found if not within(m, allowed)}

    at_once = CLI_MAY_IMPORT | CLI_MAY_IMPORT_LATE if name in IMPORTED_LATE else CLI_MAY_IMPORT
    assert foreign(at_once, late=False) == set()
    assert foreign(CLI_MAY_IMPORT | CLI_MAY_IMPORT_LATE, late=True) == set()


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
