# SPDX-License-Identifier: GPL-2.0-only
"""The pin folder: what is recorded, what is cleared, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrcd import pins


def test_records_by_kind(tmp_path: Path) -> None:
    for kind, name in (("device", "mrc0"), ("clsact", "plane1"), ("clsact", "plane0")):
        pins.record(tmp_path, kind, name)
    pins.record(tmp_path, "device", "mrc0")  # twice is once
    assert pins.recorded(tmp_path, "device") == ["mrc0"]
    assert pins.recorded(tmp_path, "clsact") == ["plane0", "plane1"]


def test_names_with_hyphens_come_back_whole(tmp_path: Path) -> None:
    pins.record(tmp_path, "device", "mrc-0-a")
    assert pins.recorded(tmp_path, "device") == ["mrc-0-a"]


def test_forget(tmp_path: Path) -> None:
    pins.record(tmp_path, "device", "mrc0")
    pins.forget(tmp_path, "device", "mrc0")
    pins.forget(tmp_path, "device", "mrc0")  # it is gone, that is what was asked for
    assert pins.recorded(tmp_path, "device") == []


def test_folder_that_does_not_exist_holds_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    assert pins.recorded(missing, "device") == []
    assert pins.clear(missing) == []


def test_clear_takes_links_first_and_keeps_records(tmp_path: Path) -> None:
    """A program must be off its interface before the maps it uses are let go."""
    for name in ("host", "mrc_spray", "link_xdp_plane0", "a_map", "link_tc_mrc0p"):
        (tmp_path / name).touch()
    pins.record(tmp_path, "device", "mrc0")
    removed = pins.clear(tmp_path)
    assert removed == ["link_tc_mrc0p", "link_xdp_plane0", "a_map", "host", "mrc_spray"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["device-mrc0"]
    assert pins.recorded(tmp_path, "device") == ["mrc0"]


def test_prepare_says_where_it_failed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(pins.PinError, match="file/pins: cannot prepare a bpffs"):
        pins.prepare(tmp_path / "file" / "pins")


def test_a_folder_of_an_ordinary_file_system_is_no_bpffs(tmp_path: Path) -> None:
    assert not pins._is_bpffs(tmp_path)
