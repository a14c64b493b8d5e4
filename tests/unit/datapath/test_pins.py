# SPDX-License-Identifier: GPL-2.0-only
"""Test the pin folder: what is recorded, what is cleared, and in which order."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from mrcd.datapath import pins


def test_records_by_kind(tmp_path: Path) -> None:
    for kind, name in (("device", "mrc0"), ("clsact", "plane1"), ("clsact", "plane0")):
        pins.record(tmp_path, kind, name)
    pins.record(tmp_path, "device", "mrc0")  # recording twice has no further effect
    assert pins.recorded(tmp_path, "device") == ["mrc0"]
    assert pins.recorded(tmp_path, "clsact") == ["plane0", "plane1"]


def test_names_with_hyphens_come_back_whole(tmp_path: Path) -> None:
    pins.record(tmp_path, "device", "mrc-0-a")
    assert pins.recorded(tmp_path, "device") == ["mrc-0-a"]


def test_forget(tmp_path: Path) -> None:
    pins.record(tmp_path, "device", "mrc0")
    pins.forget(tmp_path, "device", "mrc0")
    pins.forget(tmp_path, "device", "mrc0")  # forgetting an absent entry is no error
    assert pins.recorded(tmp_path, "device") == []


def test_folder_that_does_not_exist_holds_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    assert pins.recorded(missing, "device") == []
    assert pins.clear(missing) == []


def test_clear_takes_links_first_and_keeps_records(tmp_path: Path) -> None:
    """A program must be off its interface before the maps that it uses are released."""
    for name in ("host", "mrc_spray", "link_xdp_plane0", "a_map", "link_tc_mrc0p"):
        (tmp_path / name).touch()
    pins.record(tmp_path, "device", "mrc0")
    removed = pins.clear(tmp_path)
    assert removed == ["link_tc_mrc0p", "link_xdp_plane0", "a_map", "host", "mrc_spray"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["device-mrc0"]
    assert pins.recorded(tmp_path, "device") == ["mrc0"]


def test_clear_goes_into_layouts(tmp_path: Path) -> None:
    code = tmp_path / "layout-1" / "code-2"
    code.mkdir(parents=True)
    for path in (tmp_path / "link_tc_mrc0p", tmp_path / "layout-1" / "qps", code / "mrc_tick"):
        path.touch()
    pins.record_given(tmp_path, "address", "mrc0", ip_address("10.99.0.1"), 24)
    removed = pins.clear(tmp_path)
    assert removed == ["link_tc_mrc0p", "layout-1/qps", "layout-1/code-2/mrc_tick"]
    assert pins.recorded(tmp_path, "address") == ["mrc0~0a630001~24"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_draft_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    folder = pins.layout(tmp_path, "77")
    left = pins.draft(folder)
    (left / "half").touch()
    draft = pins.draft(folder)  # a daemon died while making the first
    assert list(draft.iterdir()) == []
    (draft / "qps").touch()
    assert not folder.exists()
    assert pins.complete(draft) == folder
    assert [path.name for path in folder.iterdir()] == ["qps"]


def test_what_had_the_name_before_is_set_aside(tmp_path: Path) -> None:
    folder = pins.layout(tmp_path, "77")
    folder.mkdir()
    (folder / "old").touch()
    pins.complete(pins.draft(folder))
    assert list(folder.iterdir()) == []
    assert [path.name for path in pins.strays(tmp_path, folder)] == ["replaced-layout-77"]


def test_strays_are_neither_links_nor_records_nor_what_is_used(tmp_path: Path) -> None:
    used = pins.layout(tmp_path, "1")
    for name in ("layout-1", "layout-2", "building-layout-3"):
        (tmp_path / name).mkdir()
    (used / "code-1").mkdir()
    (used / "code-2").mkdir()
    (used / "qps").touch()
    for name in ("link_xdp_plane0", "qps"):  # as pinned by builds before layouts existed
        (tmp_path / name).touch()
    for name in ("maps.debug", "progs.debug"):  # the kernel's, in the root of a bpffs
        (tmp_path / name).touch()
    pins.record(tmp_path, "device", "mrc0")
    names = [path.name for path in pins.strays(tmp_path, used)]
    assert names == ["building-layout-3", "layout-2", "qps"]
    assert [path.name for path in pins.stray_code(used, used / "code-1")] == ["code-2"]


def test_clear_leaves_what_the_kernel_keeps_in_a_bpffs(tmp_path: Path) -> None:
    for name in ("maps.debug", "progs.debug", "link_xdp_plane0"):
        (tmp_path / name).touch()
    assert pins.clear(tmp_path) == ["link_xdp_plane0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["maps.debug", "progs.debug"]


def test_prepare_says_where_it_failed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(pins.PinError, match="file/pins: cannot prepare a bpffs"):
        pins.prepare(tmp_path / "file" / "pins")


def test_a_folder_of_an_ordinary_file_system_is_no_bpffs(tmp_path: Path) -> None:
    assert not pins.is_bpffs(tmp_path)
