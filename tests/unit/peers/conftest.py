# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures: the log, as a stream."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import structlog

from mrcd.service import log


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Write the log to this stream, a JSON object for each line."""
    stream = io.StringIO()
    log.configure("json", stream=stream, strict=True)
    yield stream
    structlog.reset_defaults()
