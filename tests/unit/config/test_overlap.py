# SPDX-License-Identifier: GPL-2.0-only
"""Test overlapping prefixes against a comparison of every pair."""

from __future__ import annotations

import time
from ipaddress import IPv4Network, IPv6Network, ip_network

from hypothesis import given
from hypothesis import strategies as st

from mrcd.config.overlap import Claim, Owners, Prefix, overlaps

narrow4 = st.tuples(st.integers(0, 7), st.integers(28, 32)).map(
    lambda pair: IPv4Network((0x0A000000 | pair[0], pair[1]), strict=False)
)
narrow6 = st.tuples(st.integers(0, 7), st.integers(124, 128)).map(
    lambda pair: IPv6Network((pair[0], pair[1]), strict=False)
)


def overlap(one: Prefix, other: Prefix) -> bool:
    if isinstance(one, IPv4Network):
        return isinstance(other, IPv4Network) and one.overlaps(other)
    return isinstance(other, IPv6Network) and one.overlaps(other)


@given(st.lists(narrow4 | narrow6, max_size=12))
def test_overlaps__finds_every_pair_in_order(networks: list[Prefix]) -> None:
    claims = [Claim(network, index) for index, network in enumerate(networks)]
    expected = [
        (i, j) for j in range(len(networks)) for i in range(j) if overlap(networks[i], networks[j])
    ]
    assert [(one.owner, other.owner) for one, other in overlaps(claims)] == expected


def test_overlaps__twenty_thousand_take_no_minutes() -> None:
    claims = [Claim(ip_network((0x0A000000 + i, 32)), i) for i in range(20_000)]
    began = time.process_time()
    assert overlaps(claims) == []
    assert time.process_time() - began < 5


def test_owner_is_that_of_the_first_claim() -> None:
    claims = [
        ("one", "10.9.0.1/32"),
        ("behind", "10.9.1.0/24"),
        ("two", "10.9.1.7/32"),
        ("again", "10.9.0.1/32"),
        ("six", "fd00::1/128"),
        ("early", "10.9.2.7/32"),
        ("late", "10.9.2.0/24"),
    ]
    owners = Owners(Claim(ip_network(text), owner) for owner, text in claims)

    def of(text: str) -> str | None:
        return owners.of(ip_network(text))

    assert of("10.9.0.1/32") == "one"
    assert of("10.9.1.7/32") == "behind", "claimed before the address alone"
    assert of("10.9.2.7/32") == "early"
    assert of("10.9.2.8/32") == "late"
    assert of("fd00::1/128") == "six"
    assert of("10.9.0.0/16") == "one", "a wide one meets addresses as well"
    assert of("10.9.3.1/32") is None
    assert of("fd00::2/128") is None
