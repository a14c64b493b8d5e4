# SPDX-License-Identifier: GPL-2.0-only
"""Test when Offers that differ from Port Status Updates are trusted."""

from __future__ import annotations

import msgspec

from mrcd.handshake import Offer
from mrcd.peers.portcheck import PortDoubts
from tests.unit.handshake.test_session import offer

ALL, THREE = 0b1111, 0b1011


def said(seq: int, mask: int) -> Offer:
    return msgspec.structs.replace(offer(), seq=seq, port_mask=mask)


def test_corrections__two_offers_in_a_row_are_believed() -> None:
    doubts = PortDoubts()
    assert doubts.corrections([("b", said(1, THREE))], {"b": ALL}) == {}
    assert doubts.corrections([("b", said(2, THREE))], {"b": ALL}) == {"b": THREE}
    assert doubts.corrections([("b", said(2, THREE))], {"b": THREE}) == {}


def test_corrections__one_that_is_looked_at_twice_is_one() -> None:
    doubts = PortDoubts()
    for _ in range(3):
        assert doubts.corrections([("b", said(1, THREE))], {"b": ALL}) == {}
    assert doubts.corrections([("b", said(5, THREE))], {"b": ALL}) == {"b": THREE}


def test_corrections__an_update_or_agreement_between_them_begins_anew() -> None:
    doubts = PortDoubts()
    doubts.corrections([("b", said(1, THREE))], {"b": ALL})
    assert doubts.corrections([("b", said(2, THREE))], {"b": 0b0011}) == {}  # an update since
    assert doubts.corrections([("b", said(3, THREE))], {"b": THREE}) == {}
    assert doubts.corrections([("b", said(4, THREE))], {"b": 0b0011}) == {}
    assert doubts.corrections([("b", said(5, THREE))], {"b": 0b0011}) == {"b": THREE}


def test_corrections__each_peer_is_looked_at_for_itself_and_strangers_are_not() -> None:
    doubts = PortDoubts()
    masks = {"b": ALL, "c": ALL}
    offers = [("b", said(1, THREE)), ("c", said(1, ALL)), ("gone", said(1, THREE))]
    assert doubts.corrections(offers, masks) == {}
    offers = [("b", said(2, THREE)), ("c", said(2, THREE)), ("gone", said(2, THREE))]
    assert doubts.corrections(offers, masks) == {"b": THREE}
