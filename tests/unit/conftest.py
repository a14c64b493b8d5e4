# SPDX-License-Identifier: GPL-2.0-only
"""A control server for mrcctl to talk to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.control_double import FakeSource, serving


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the socket is, once there is one."""
    return tmp_path / "mrcd.sock"


@pytest.fixture
def source() -> FakeSource:
    """What the server tells; a test may change it."""
    return FakeSource()


@pytest.fixture
def server(path: Path, source: FakeSource) -> Iterator[Path]:
    """The socket of a server that runs."""
    with serving(path, source):
        yield path
