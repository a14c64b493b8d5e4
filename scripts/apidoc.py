# SPDX-License-Identifier: GPL-2.0-only
# ruff: noqa: E501  # rows of Markdown tables
"""Write docs/api.md and docs/api.schema.json from the control interface and its types.

Run it (`make docs`) when a method, a type or a command's output changes. A test compares.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from asyncvarlink.interface import varlinksignature

from cli.describe.schema import OUTPUTS, meanings, schema
from mrcd import model
from mrcd.control.access import is_writing
from mrcd.control.methods import Control
from mrcd.control.parts import comes_in_parts
from mrcd.control.server import WATCHERS_MAX
from mrcd.control.streams import CALL_MAX_BYTES, CALLS_MAX
from mrcd.model import SCHEMA_VERSION

DOCS = Path(__file__).parents[1] / "docs"
METHOD = re.compile(r"^method (\w+)\((.*)\) -> \((.*)\)$", re.MULTILINE)
TYPE = re.compile(r"^type (\w+) \((.*)\)$", re.MULTILINE)
ERROR = re.compile(r"^error (\w+) \((.*)\)$", re.MULTILINE)

INTRODUCTION = f"""\
<!-- SPDX-License-Identifier: GPL-2.0-only -->
<!-- Written by `make docs` (scripts/apidoc.py); do not edit. -->
# Control API

[Methods](#methods) · [Types](#types) · [Errors](#errors) · [What --json prints](#what---json-prints)

mrcd serves the [varlink](https://varlink.org) interface `io.mrcd.Control` on a unix socket,
`/run/mrcd/mrcd.sock`. Calls and replies are JSON objects, each followed by a NUL byte. `mrcctl` uses
only this interface. The interface describes itself:

```
varlinkctl introspect unix:/run/mrcd/mrcd.sock io.mrcd.Control
varlinkctl call unix:/run/mrcd/mrcd.sock io.mrcd.Control.ListPaths '{{"peer": "h2"}}'
mrcctl api interface
```

| rule | |
|---|---|
| permissions | a method is open to *everybody* who can connect, or to *writers* only: root, the user that mrcd runs as, and members of group `mrcd`, by the kernel's credentials of the process that connected. Others get `NotPermitted` |
| versions | `schema_version` is {SCHEMA_VERSION}. Fields and methods are only ever added within a version; be prepared for unknown ones. `?` marks what may be null or left out |
| streams | called with `"more": true`; replies come until the caller hangs up. A connection that streams takes no other calls |
| long lists | called with `"more": true`, they come in several replies whose lists are to be joined, and the daemon does other work between them. Without it they come in one reply, which for thousands of peers keeps the daemon from other work for some tenths of a second |
| slow callers | do not affect others. Samples and events that `Monitor` and `WatchPaths` could not deliver are left out and counted in `missed`. The next call of a connection is handled after the reply to the one before has been sent |
| limits | a call has at most {CALL_MAX_BYTES >> 20} MiB; {CALLS_MAX} calls may wait on a connection; {WATCHERS_MAX} connections of callers that may only watch. A connection that exceeds a limit, or sends anything but a JSON object, is closed |
| units | in the names: `_us`, `_ns`, `_s`; times are CLOCK_MONOTONIC; `_psn` has 24 bits. Counters count since the data path was attached |
"""


def words(text: str | None) -> str:
    """Return a docstring on one line."""
    return " ".join((text or "").split())


def api() -> str:
    """Return the text of docs/api.md."""
    described = Control.render_interface_description(comments=False)
    parts = [INTRODUCTION, "## Methods\n", "| method | who | parameters and reply | |"]
    parts.append("|---|---|---|---|")
    for name, given, reply in sorted(METHOD.findall(described)):
        method = getattr(Control, name)
        who = "writers" if is_writing(method) else "everybody"
        told = varlinksignature(method)
        assert told is not None
        stream = "; a stream" if told.more else ""
        stream = "; in parts with `more`" if comes_in_parts(method) else stream
        parts.append(
            f"| `{name}` | {who} | `({given})` -> `({reply})`{stream} | {words(method.__doc__)} |"
        )
    parts += ["", "## Types\n"]
    for name, members in sorted(TYPE.findall(described)):
        parts += type_(name, members)
    parts += ["## Errors\n", "| error | parameters | |", "|---|---|---|"]
    docs = {error.__name__: words(error.__doc__) for error in Control.errors}
    for name, members in sorted(ERROR.findall(described)):
        parts.append(f"| `{name}` | `({members})` | {docs[name]} |")
    parts += ["", "The errors of `org.varlink.service` occur as well: `InvalidParameter`,"]
    parts += ["`MethodNotFound`, `InterfaceNotFound`, `ExpectedMore`.\n"]
    parts += ["## What --json prints\n"]
    parts.append(
        "One object of this type, with `schema_version` beside its members; `path watch`,\n"
        "`capture` and `monitor` print one on each line. [api.schema.json](api.schema.json) is the\n"
        "JSON Schema of all, which `mrcctl api schema` prints. The table of methods has the replies of\n"
        "methods without a row here. The output of `lab`, `fabric plan`, `fabric check`,\n"
        "`fabric digest`, `fabric import`, `sid verify`, `doctor` and `datapath detach` has a `schema_version`, too.\n"
    )
    parts += ["| command | type |", "|---|---|"]
    parts += [f"| `mrcctl {name}` | `{kind.__name__}` |" for name, kind in OUTPUTS.items()]
    replies = [kind for kind in dict.fromkeys(OUTPUTS.values()) if not is_dataclass(kind)]
    parts += ["", "| type | members |", "|---|---|"]
    parts += [f"| `{kind.__name__}` | {members_of(kind)} |" for kind in replies]
    return "\n".join(parts) + "\n"


def type_(name: str, members: str) -> list[str]:
    """Return a section on a type: its docstring, and a row for each member."""
    kind = getattr(model, name)
    parts = [f"### {name}\n", f"{words(kind.__doc__)}\n", "| member | type | |", "|---|---|---|"]
    meaning = meanings(kind)
    kinds = dict(re.findall(r"(\w+): ((?:\([^)]*\)|[^,(]+)+)", members))
    assert list(kinds) == [field.name for field in fields(kind)], name
    parts += [f"| `{member}` | `{kinds[member]}` | {meaning.get(member, '')} |" for member in kinds]
    return [*parts, ""]


def members_of(kind: Any) -> str:
    """Return the members of a reply that is not a type of the interface."""
    annotations = inspect.get_annotations(kind).items()
    return ", ".join(f"`{name}: {_shown(annotation)}`" for name, annotation in annotations)


def _shown(annotation: Any) -> str:
    """Return a type as the interface writes it: `[]Peer` for a list, `?str` for what may be null."""
    if isinstance(annotation, UnionType):
        (kind,) = [each for each in get_args(annotation) if each is not NoneType]
        return f"?{_shown(kind)}"
    if get_origin(annotation) is list:
        return f"[]{_shown(get_args(annotation)[0])}"
    return str(getattr(annotation, "__name__", annotation))


def schema_text() -> str:
    """Return the text of docs/api.schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (DOCS / "api.md").write_text(api())
    (DOCS / "api.schema.json").write_text(schema_text())
