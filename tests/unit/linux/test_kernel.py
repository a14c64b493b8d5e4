# SPDX-License-Identifier: GPL-2.0-only
"""Test what a kernel's release says of its abilities."""

from __future__ import annotations

import pytest

from mrcd.linux import kernel


@pytest.mark.parametrize(
    ("release", "cells"),
    [
        ("6.3.0", True),
        ("6.18.44-fc-v657", True),
        ("7.0", True),
        ("6.2.16-1-pve", False),
        ("6.1.0-18-amd64", False),
        ("5.15.0-101-generic", False),
        ("weird", False),
    ],
)
def test_cells(release: str, cells: bool) -> None:
    why = kernel.why_no_cells(release)
    assert (why is None) == cells
    if why is not None:
        assert release in why
        assert "6.3" in why
