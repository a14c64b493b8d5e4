# SPDX-License-Identifier: GPL-2.0-only
"""Run mrcctl inside the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from cli.console import exits
from cli.main import mrcctl


def run(path: Path, *args: str, text: str | None = None) -> Result:
    """Run mrcctl with these arguments and `text` as input, on the socket at `path`."""
    words = ["--socket", str(path), *args]
    return CliRunner().invoke(mrcctl, words, input=text, prog_name="mrcctl")


def run_json(path: Path, *args: str) -> Any:
    """Return the output of a command with --json; it must succeed."""
    result = run(path, *args, "--json")
    assert result.exit_code == exits.DONE, result.output
    return json.loads(result.output)


def commands(group: click.Group, *above: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command below a group, with the words typed after `mrcctl`."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)
        else:
            yield " ".join([*above, name]), command
