# SPDX-License-Identifier: GPL-2.0-only
"""Test that docs/api.md and the JSON Schema match the code, and that outputs match the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from cli.console import exits
from cli.describe.schema import OUTPUTS, meanings, schema
from cli.main import mrcctl
from cli.quick import undoing
from mrcd import model
from mrcd.model import SCHEMA_VERSION, PathEvent
from rigs.control_double import CONFIG, FakeSource, serving
from scripts import apidoc
from tests.unit.command_line import commands
from tests.unit.records import sent

DOCS = Path(__file__).parents[3] / "docs"
# Commands that print JSON but need no daemon, or several: versioned, but not a type of the API.
UNTYPED = {
    "config check", "config confirm", "datapath detach", "debug bundle", "doctor", "fabric check",
    "fabric digest", "fabric import", "fabric plan", "key generate", "key public", "lab down",
    "lab fault", "lab status", "lab up", "sid verify", "watch",
}  # fmt: skip
NO_JSON = {"api interface", "api schema", "completion", "lab exec", "top", "quick up",
           "quick down", "quick save", "report"}  # print no JSON  # fmt: skip
ARGUMENTS = {
    "plane drain": ["1"], "plane undrain": ["1"], "path deny": ["p1"], "path allow": ["p1"],
    "path probe": ["h2"], "ping": ["h2"], "config diff": ["-"], "config apply": ["-"],
    "monitor": ["--count", "1", "--interval", "0.01"], "capture": ["--count", "1"],
    "key rotate": ["h2"], "peer show": ["h2"], "peer forget": ["h2"],
    "peer revoke": ["h2"], "invite": ["h4"],
}  # fmt: skip
STREAMED = {"path watch"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sock"


def run(path: Path, *args: str) -> Result:
    text = CONFIG.replace("2000", "100")
    return CliRunner().invoke(mrcctl, ["--socket", str(path), *args], input=text)


def test_api_md_is_that_of_the_code() -> None:
    assert (DOCS / "api.md").read_text() == apidoc.api(), "run `make docs`"


def test_the_schema_in_docs_is_that_of_the_code(path: Path) -> None:
    text = (DOCS / "api.schema.json").read_text()
    assert text == apidoc.schema_text(), "run `make docs`"
    assert json.loads(run(path, "api", "schema").output).items() >= json.loads(text).items()


def test_every_command_that_prints_json_has_a_type() -> None:
    printing = {
        name
        for name, command in commands(mrcctl)
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert printing == {name.split(" --")[0] for name in OUTPUTS} | UNTYPED
    assert {name for name, _ in commands(mrcctl)} - printing == NO_JSON


def up(socket: Path, folder: Path) -> Path:
    """Return a folder like that of a `quick up` whose mrcd serves a socket."""
    folder.mkdir()
    undoing.write(folder, undoing.here(str(socket), None), [])
    return folder


@pytest.mark.parametrize("name", sorted(set(OUTPUTS) - STREAMED))
def test_output_is_of_its_type_and_says_its_version(path: Path, name: str) -> None:
    source = FakeSource()
    source.records = [sent()]
    with serving(path, source):
        if name == "path allow":
            run(path, "path", "deny", "p1")
        if name == "quick status":
            ARGUMENTS[name] = ["--folder", str(up(path, path.parent / "quick"))]
        result = run(path, *name.split(), *ARGUMENTS.get(name, []), "--json")
    assert result.exit_code == exits.DONE, result.output
    printed = json.loads(result.stdout)
    assert printed["schema_version"] == SCHEMA_VERSION
    again = msgspec.to_builtins(msgspec.convert(printed, OUTPUTS[name]))
    assert {"schema_version": SCHEMA_VERSION} | again == printed  # no member is added or missing


def test_an_event_of_a_path_says_its_version() -> None:
    event = PathEvent(
        time_ns=1, peer="h2", qp=0, ev=1, plane=0, t1=1, from_state="GOOD", to_state="SKIP",
        cause="mark", sent_ns=None, rtt_ns=None, missed=0,
    )  # fmt: skip
    with click.testing.CliRunner().isolation() as (out, *_):
        from cli.console.render import print_json_line

        print_json_line(event)
        assert json.loads(out.getvalue())["schema_version"] == SCHEMA_VERSION


def holds(value: Any, kind: dict[str, Any], defs: dict[str, Any]) -> bool:
    """Return whether a value matches a JSON Schema, for the keywords that our schema uses."""
    if "$ref" in kind:
        return holds(value, defs[kind["$ref"].removeprefix("#/$defs/")], defs)
    if "anyOf" in kind:
        return any(holds(value, one, defs) for one in kind["anyOf"])
    if "enum" in kind:
        return value in kind["enum"]
    if "const" in kind and value != kind["const"]:
        return False
    match kind["type"]:
        case "object":
            members = kind.get("properties", {})
            return (
                isinstance(value, dict)
                and set(kind.get("required", ())) <= set(value) <= set(members)
                and all(holds(value[name], members[name], defs) for name in value)
            )
        case "array":
            return isinstance(value, list) and all(holds(v, kind["items"], defs) for v in value)
        case "integer":
            return isinstance(value, int)
        case "number":
            return isinstance(value, int | float)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
    raise AssertionError(kind)


@pytest.mark.parametrize("name", ["status", "path list", "fault list", "fabric map", "monitor"])
def test_output_is_what_the_schema_says(path: Path, name: str) -> None:
    document = schema()
    with serving(path, FakeSource()):
        result = run(path, *name.split(), *ARGUMENTS.get(name, []), "--json")
    printed = json.loads(result.stdout)
    assert holds(printed, document["x-commands"][name], document["$defs"])
    printed["more"] = 1
    assert not holds(printed, document["x-commands"][name], document["$defs"])


def test_meanings_are_the_comments_behind_fields() -> None:
    assert meanings(model.PlaneInfo)["up"] == "administratively"
    assert meanings(model.PlaneInfo)["sick"] == "why its health is in doubt"


def test_the_running_interface_is_shown(path: Path) -> None:
    with serving(path, FakeSource()):
        output = run(path, "api", "interface").output
    assert output.startswith("# What mrcd on this host is doing")
    assert "method GetStatus() -> (status: Status)" in output
