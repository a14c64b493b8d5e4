# SPDX-License-Identifier: GPL-2.0-only
"""Test what a kernel's release says of its abilities."""

from __future__ import annotations

import pytest

from mrcd.linux import kernel


@pytest.mark.parametrize(
    ("release", "decap"),
    [
        ("6.3.0", True),
        ("6.18.44-fc-v657", True),
        ("7.0", True),
        ("6.2.16-1-pve", False),
        ("6.1.0-18-amd64", False),
        ("weird", False),
    ],
)
def test_decap(release: str, decap: bool) -> None:
    assert kernel.has_decap(release) == decap
