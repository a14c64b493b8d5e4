# SPDX-License-Identifier: GPL-2.0-only
"""Test that an mrcd of root, without capabilities, can work where the service's user did."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mrcd import main
from mrcd.daemon import Places
from mrcd.datapath import pins
from mrcd.datapath.pins import PinError

SERVICE, OTHER = 64998, 64999


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Return places whose files belong to the service, except for one file."""
    if os.geteuid() != 0:
        pytest.skip("files of several users need root")
    found = Places(tmp_path / "run" / "mrcd.sock", tmp_path / "run", tmp_path / "bpf")
    (found.bpffs / "layout-1").mkdir(parents=True)
    found.state_dir.mkdir()
    (found.state_dir / "paths").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").touch()
    (found.state_dir / "foreign").touch()
    for path in (found.bpffs, found.bpffs / "layout-1", found.state_dir, tmp_path / "elsewhere"):
        os.chown(path, SERVICE, -1)
    os.chown(found.state_dir / "paths", SERVICE, -1, follow_symlinks=False)
    os.chown(found.state_dir / "foreign", OTHER, -1)
    return found


def owner(path: Path) -> int:
    return path.lstat().st_uid


def test_files_of_the_service_are_taken_over(places: Places) -> None:
    main._take_over(places, SERVICE)
    taken = (places.bpffs, places.bpffs / "layout-1", places.state_dir, places.state_dir / "paths")
    assert {owner(path) for path in taken} == {0}
    assert owner(places.state_dir / "foreign") == OTHER
    assert owner(places.state_dir.parent / "elsewhere") == SERVICE, "links are not followed"


def test_nothing_is_taken_from_a_daemon_that_runs(places: Places) -> None:
    with pins.owned(places.bpffs), pytest.raises(PinError, match="another mrcd"):
        main._take_over(places, SERVICE)
    assert owner(places.bpffs) == SERVICE
