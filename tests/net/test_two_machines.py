# SPDX-License-Identifier: GPL-2.0-only
"""Type docs/two-machines.md on two machines with two cables between them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rigs.lab_hosts import ROOT
from rigs.reader import Reader, at_two_machines

pytestmark = pytest.mark.timeout(600)

PAGE = ROOT / "docs" / "two-machines.md"


@pytest.fixture
def reader() -> Iterator[Reader]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root: run the tests as root")
    yield from at_two_machines(f"t{os.getpid()}")


def test_the_page_is_true(reader: Reader) -> None:
    before = {host: reader.ip(host, "-br address show") for host in "ab"}
    reader.follow(PAGE.read_text())
    assert not reader.begun, "the page leaves something running"
    for host in "ab":
        assert reader.ip(host, "-br address show") == before[host]
        assert reader.pids(host) == [reader.seats[host].pid]
