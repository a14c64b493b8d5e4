# SPDX-License-Identifier: GPL-2.0-only
"""Test the list of what is wrong: by source, and logged when it changes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mrcd.service import findings
from mrcd.service.findings import Findings


def test_each_source_replaces_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str]] = []

    def tell(event: str, about: str, reason: str = "") -> None:
        said.append((event, about))

    monkeypatch.setattr(findings, "log", SimpleNamespace(error=tell, info=tell))
    found = Findings()
    found.replace("interfaces", {"mrc0": "mrc0 is missing"})
    found.put("files", "drained.json", "it is damaged")
    found.replace("interfaces", {"mrc0": "mrc0 is still missing"})
    assert found.lines == ["mrc0 is still missing", "it is damaged"]
    found.replace("interfaces", {})
    found.drop("files", "other.json")
    assert found.lines == ["it is damaged"]
    found.drop("files", "drained.json")
    assert found.lines == []
    assert said == [
        ("trouble.found", "mrc0"),
        ("trouble.found", "drained.json"),
        ("trouble.ended", "mrc0"),
        ("trouble.ended", "drained.json"),
    ]
