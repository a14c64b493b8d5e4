# SPDX-License-Identifier: GPL-2.0-only
"""Test what status warns of on this host."""

from __future__ import annotations

from ipaddress import ip_network

from mrcd.report.status import own_deaths, unforwarded
from mrcd.rules.elements import Element
from mrcd.survey.inference import Fault, FaultKind

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


def fault(name: str, plane: int = 1, kind: FaultKind = "dead") -> Fault:
    return Fault(Element(name, "link", plane), kind, 1.0, 1.0, 1.0, 0.0, 9.0, (), ())


def test_deaths_that_only_others_see_are_this_hosts_too() -> None:
    between, sending = fault("between a:eth2 and b:eth2"), fault("a:eth2 sending", 0)
    others = [fault("c:eth2"), fault("aa:eth2"), fault("network of plane 1"), fault("host b")]
    slow = fault("a:eth1", kind="slow")
    named = [between, sending, *others, slow]
    assert own_deaths(named, "a", ()) == [between, sending]
    assert own_deaths(named, "a", {1}) == [sending], "the plane says so itself"
    assert own_deaths(named, "b", ()) == [between]
    assert own_deaths(named, "eth2", ()) == []
