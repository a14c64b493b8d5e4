# SPDX-License-Identifier: GPL-2.0-only
"""mrcctl, run inside the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from cli import exits
from cli.main import mrcctl


def run(path: Path, *args: str) -> Result:
    """mrcctl with these arguments, talking to the socket at `path`."""
    return CliRunner().invoke(mrcctl, ["--socket", str(path), *args], prog_name="mrcctl")


def run_json(path: Path, *args: str) -> Any:
    """What it prints with --json; it must succeed."""
    result = run(path, *args, "--json")
    assert result.exit_code == exits.DONE, result.output
    return json.loads(result.output)
