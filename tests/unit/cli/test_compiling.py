# SPDX-License-Identifier: GPL-2.0-only
"""Test that a daemon's compiling is said once, and that old lines of its log say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.console.compiling import Compiling

LINE = b'{"event": "datapath.compiling", "mtu": 1422}\n'


def test_nothing_is_said_of_an_earlier_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "mrcd.log"
    log.write_bytes(LINE)
    with Compiling([log, tmp_path / "none"]) as compiling:
        compiling.look()
    assert capsys.readouterr().err == ""


def test_compiling_is_said_with_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "mrcd.log"
    with Compiling([log]) as compiling:
        compiling.look()
        log.write_bytes(b"{}\n" + LINE)
        compiling.look()
        compiling.look()
    said = capsys.readouterr().err
    assert said.count("mrcd compiles its programs, once, for about 8 s") >= 1
