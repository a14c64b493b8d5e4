# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures: a control server for mrcctl to talk to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs.control_double import FakeSource, serving


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the socket, which may not exist yet."""
    return tmp_path / "mrcd.sock"


@pytest.fixture
def source() -> FakeSource:
    """Return the server's source of answers; a test may change it."""
    return FakeSource()


@pytest.fixture
def server(path: Path, source: FakeSource) -> Iterator[Path]:
    """Run a server, and return its socket."""
    with serving(path, source):
        yield path
