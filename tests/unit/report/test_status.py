# SPDX-License-Identifier: GPL-2.0-only
"""Test what status warns of on this host."""

from __future__ import annotations

from ipaddress import ip_network

from mrcd.report.status import unforwarded

ROUTED = [ip_network(each) for each in ("10.244.1.0/24", "10.244.2.0/24", "fd44::/64")]


def test_host_that_does_not_forward_to_what_is_behind_it() -> None:
    assert unforwarded(ROUTED, {4: True, 6: True}) == []
    assert unforwarded(ROUTED, {}) == [], "it has neither version"
    assert unforwarded([], {4: False, 6: False}) == []
    assert unforwarded(ROUTED, {4: False, 6: True}) == [
        "peers cannot reach 10.244.1.0/24, 10.244.2.0/24 behind this host: net.ipv4.ip_forward is "
        "0; remedy: `sysctl -w net.ipv4.ip_forward=1`"
    ]
    assert len(unforwarded(ROUTED, {4: False, 6: False})) == 2
