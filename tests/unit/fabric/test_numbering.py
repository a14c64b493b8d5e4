# SPDX-License-Identifier: GPL-2.0-only
"""Test which of a peer's planes are found to be which of ours."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from mrcd.fabric.hosts import Address
from mrcd.fabric.numbering import ALIKE, PLANES, Numbering, between
from mrcd.wire.abi import ABI

NOT = ABI.MRC_NOT_OURS


def at(*texts: str) -> list[Address]:
    return [ip_address(text or "::") for text in texts]


def test_hosts_that_number_alike() -> None:
    assert ALIKE.word == ABI.MRC_OURS_ALIKE
    assert between(at("fe80::1", "fe80::2"), at("fe80::1", "fe80::2")) is ALIKE
    assert [ALIKE.mask(mask) for mask in (0, 5, 255, 256)] == [0, 5, 255, 0]


def test_peer_that_says_nothing_numbers_as_we_do() -> None:
    assert between(at("fe80::1", "fe80::2"), []) is ALIKE


def test_planes_in_another_order() -> None:
    found = between(at("fe80::1", "fe80::2", "fe80::3"), at("fe80::3", "fe80::1", "fe80::2"))
    assert found.ours[:4] == (2, 0, 1, None)
    assert found.mask(0b011) == 0b101
    assert [found.word >> 4 * theirs & 15 for theirs in range(16)] == [2, 0, 1, *[NOT] * 13]


def test_numbers_by_our_planes() -> None:
    assert ALIKE.by_ours((25_000, 1_000))[:3] == (25_000, 1_000, 0)
    assert Numbering((2, None, 0)).by_ours((1, 2, 3, 4))[:4] == (3, 0, 1, 0)
    assert Numbering((1,)).by_ours(()) == (0,) * PLANES


def test_peer_that_is_on_fewer_networks() -> None:
    found = between(at("", "fe80::2", ""), at("fe80::2"))
    assert found.ours[0] == 1
    assert found.mask(0xFF) == 0b010


def test_peer_that_is_on_more_networks() -> None:
    found = between(at("fe80::5"), at("fe80::9", "fe80::5", ""))
    assert found.ours[:3] == (None, 0, None)
    assert found.mask(0b111) == 0b001


def test_alike_in_what_both_have() -> None:
    assert between(at("fe80::1", ""), at("fe80::1", "fe80::2")) is ALIKE


def test_one_address_on_several_planes() -> None:
    """As behind a router that leads to one address of the peer by each NIC."""
    assert between(at("192.0.2.1", "192.0.2.1"), at("192.0.2.1", "192.0.2.1")) is ALIKE


@pytest.mark.parametrize("known", ["fe80::1", "fe80::77"])
def test_address_that_has_just_changed_keeps_its_number(known: str) -> None:
    found = between(at(known, "fe80::2", "fe80::3"), at("fe80::1", "fe80::3", "fe80::2"))
    assert found.ours[:3] == (0, 2, 1)


def test_number_that_is_taken_is_given_to_nobody_else() -> None:
    found = between(at("fe80::2", "fe80::9"), at("fe80::1", "fe80::2"))
    assert found.ours[:2] == (None, 0)
    assert Numbering((None, 0)).mask(0b10) == 0b01
