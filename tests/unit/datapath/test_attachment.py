# SPDX-License-Identifier: GPL-2.0-only
"""Test what is said where an interface refuses a program."""

from __future__ import annotations

import errno

import pytest

from mrcd.datapath.attachment import xdp_remedy


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EEXIST])
def test_another_program_is_named_with_its_removal(code: int) -> None:
    said = xdp_remedy("eth1", code)
    assert "another XDP program on eth1" in said
    assert "`ip link set eth1 xdp off`" in said


def test_driver_without_native_xdp_is_not_taken_for_another_program() -> None:
    said = xdp_remedy("eth1", errno.EOPNOTSUPP)
    assert "the driver of eth1 (`ethtool -i eth1`) has no native XDP" in said
    assert 'xdp = "auto"' in said
    assert "another" not in said


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOMEM, 0])
def test_another_refusal_has_the_same_way_out(code: int) -> None:
    said = xdp_remedy("eth1", code)
    assert 'xdp = "auto"' in said
    assert "dmesg" in said
