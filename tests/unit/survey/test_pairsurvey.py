# SPDX-License-Identifier: GPL-2.0-only
"""Test which peers the survey without a fabric compares with each other."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from mrcd.config.config import Peer
from mrcd.fabric.hosts import Host
from mrcd.fabric.numbering import ALIKE, Numbering
from mrcd.survey.pairsurvey import _shares_all, _why_not, paired


@pytest.mark.parametrize(
    ("ends", "vias", "shares"),
    [
        (("fe80::1", "fe80::2"), (), True),
        (("fe80::1", "fe80::2"), ("::", "::"), True),
        (("fe80::1", "::"), (), False),
        (("fe80::1", "fe80::2"), ("::", "fe80::9"), False),
    ],
)
def test_only_hosts_on_the_networks_of_all_planes_are_compared(
    ends: tuple[str, ...], vias: tuple[str, ...], shares: bool
) -> None:
    """A way through another host is no network of theirs."""
    there = tuple(map(ip_address, ends))
    host = Host("b", 1, 1, (), endpoints=there, vias=tuple(map(ip_address, vias)))
    assert _shares_all(Peer(host, ())) == shares


@pytest.mark.parametrize(
    ("ends", "vias", "numbering", "expected"),
    [
        (("fe80::1", "fe80::2"), (), ALIKE, (0, 1)),
        (("fe80::1", "fe80::2"), ("::", "fe80::9"), ALIKE, (0, -1)),
        (("fe80::1", "fe80::2"), (), Numbering((1, 0)), (1, 0)),
        (("::", "fe80::2"), (), Numbering((None, None, 1)), (-1, 2)),
        (("::", "fe80::2"), (), None, (-1, -1)),
    ],
)
def test_nics_that_lead_to_each_other(
    ends: tuple[str, ...],
    vias: tuple[str, ...],
    numbering: Numbering | None,
    expected: tuple[int, ...],
) -> None:
    there = tuple(map(ip_address, ends))
    host = Host("b", 1, 1, (), endpoints=there, vias=tuple(map(ip_address, vias)))
    assert paired(Peer(host, ()), numbering, 2) == expected


def test_reason_why_there_is_none() -> None:
    assert _why_not(200, 3) == ""
    assert "survey_pps" in _why_not(0, 3)
    assert _why_not(200, 0) == "there is no peer"
