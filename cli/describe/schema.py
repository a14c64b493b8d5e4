# SPDX-License-Identifier: GPL-2.0-only
"""Make the JSON Schema of the ``--json`` output from the types in ``mrcd.model``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from mrcd import model
from mrcd.model import SCHEMA_VERSION

OUTPUTS: Mapping[str, type] = {
    "status": model.Status,
    "quick status": model.Status,
    "plane list": model.PlanesReply,
    "plane drain": model.PlaneInfo,
    "plane measure": model.RatesReply,
    "plane undrain": model.PlaneInfo,
    "iface list": model.InterfacesReply,
    "peer list": model.PeersReply,
    "peer show": model.PeerInfo,
    "peer forget": model.ForgetReply,
    "peer revoke": model.RevokeReply,
    "invite": model.InviteReply,
    "path list": model.PathsReply,
    "path list --summary": model.PathSumsReply,
    "path deny": model.DenyReply,
    "path allow": model.DenyReply,
    "path denied": model.DeniedReply,
    "path probe": model.ProbesReply,
    "path watch": model.PathEvent,
    "ping": model.ProbesReply,
    "conn list": model.ConnectionsReply,
    "fault list": model.FaultsReply,
    "fabric map": model.MapReply,
    "key rotate": model.RotateReply,
    "log level": model.LogReply,
    "config show": model.ConfigReply,
    "config diff": model.ChangesReply,
    "config apply": model.ChangesReply,
    "stats": model.StatsInfo,
    "datapath show": model.DatapathReply,
    "capture": model.CapturedPacket,
    "monitor": model.MonitorSample,
}
"""The type that each command prints with --json; `path watch`, `capture` and `monitor` print one
on each line. Each output also has the member schema_version."""


def schema() -> dict[str, Any]:
    """Return a JSON Schema document: types under $defs, each command's type under x-commands."""
    kinds = list(dict.fromkeys(OUTPUTS.values()))
    refs, defs = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    commands = {name: refs[kinds.index(kind)] for name, kind in OUTPUTS.items()}
    for name, described in defs.items():
        kind = getattr(model, name)
        for one in described["properties"].values():
            if one.get("default") in ([], {}):  # said since msgspec 0.23, and of no use
                del one["default"]
        described["description"] = inspect.cleandoc(kind.__doc__ or "")
        for field, meaning in meanings(kind).items():
            described["properties"][field]["description"] = meaning
    for kind in kinds:
        described = defs[kind.__name__]
        described["properties"].setdefault("schema_version", {"type": "integer"})
        described["properties"]["schema_version"]["const"] = SCHEMA_VERSION
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:mrcd:api:{SCHEMA_VERSION}",
        "title": "What mrcctl prints with --json, and the replies of io.mrcd.Control",
        "x-commands": commands,
        "$defs": {name: defs[name] for name in sorted(defs)},
    }


def meanings(kind: type) -> dict[str, str]:
    """Return the trailing comment of each field of a class."""
    found: dict[str, str] = {}
    for line in inspect.getsource(kind).splitlines():
        if field := re.match(r"    (\w+): [^#]*?  # (.*)", line):
            found[field[1]] = field[2]
    return found
