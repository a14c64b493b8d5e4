# SPDX-License-Identifier: GPL-2.0-only
"""Test sums over map entries against a plain look at each path and each PSN."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.datapath.census import PLANES, Census, PeerCount, planes_of
from mrcd.datapath.view import state_of
from mrcd.paths.states import State
from mrcd.wire.abi import ABI
from mrcd.wire.layout import picker

QP, TX, RX = (ABI.structs[name] for name in ("mrc_qp", "mrc_tx", "mrc_rx"))
SETS = ("use", "skip", "slow", "spare", "denied")
BITS = 64 * ABI.MRC_SET_WORDS


def words(value: int, count: int = ABI.MRC_SET_WORDS) -> tuple[int, ...]:
    return tuple(value >> 64 * word & (1 << 64) - 1 for word in range(count))


def counted(qp: bytes, tx: bytes, rx: bytes = RX.pack()) -> tuple[PeerCount, Census]:
    census = Census()
    census.add(7, qp, tx, rx)
    return census.peers[7], census


READY = QP.pack(state=ABI.MRC_QP_READY, peer=7, mpr=2048)


@given(
    st.lists(st.integers(0, (1 << BITS) - 1), min_size=len(SETS), max_size=len(SETS)),
    st.integers(0, (1 << BITS) - 1),
)
def test_add__counts_paths_as_they_are_listed(sets: list[int], every: int) -> None:
    # A slot without a path is in no set.
    given_sets = {name: one & every for name, one in zip(SETS, sets, strict=True)}
    tx = TX.pack(all=words(every), **{name: words(one) for name, one in given_sets.items()})
    count, census = counted(READY, tx)
    expected = dict.fromkeys(State, 0)
    by_plane = [dict.fromkeys(State, 0) for _ in range(PLANES)]
    for bit in range(BITS):
        if every >> bit & 1:
            state = state_of({name: bool(one >> bit & 1) for name, one in given_sets.items()})
            expected[state] += 1
            by_plane[bit // 128][state] += 1
    for paths, wanted in ((count.paths, expected), *zip(census.planes, by_plane, strict=True)):
        found = (paths.good, paths.denied, paths.skip, paths.assumed_bad)
        assert found == tuple(wanted[state] for state in State)
    assert count.paths.in_use == given_sets["use"].bit_count()
    assert count.paths.slow == (given_sets["slow"] & given_sets["use"]).bit_count()
    assert sum(plane.in_use for plane in census.planes) == count.paths.in_use


def test_add__counts_slots_of_both_rings() -> None:
    # 10 outstanding over the wrap of the 32-bit number, 3 of them reported by SACKs.
    sacked = (0b1011 << 2, *[0] * (ABI.MRC_WINDOW_WORDS - 1))
    tx = TX.pack(una=0xFFFFFFFA, next=4, packets=100, retransmits=5, sacked=sacked)
    count, _census = counted(READY, tx, RX.pack(waiting=6, packets=50))
    assert (count.outstanding, count.kept, count.waiting, count.window) == (10, 7, 6, 2048)
    assert (count.tx_packets, count.rx_packets, count.retransmits) == (100, 50, 5)
    assert (count.ready, count.receiving) == (1, 0)


def test_add__of_a_qp_that_is_down_only_what_it_carried_counts() -> None:
    tx = TX.pack(next=9, packets=100, retransmits=5, use=words(1), all=words(1))
    census = Census()
    assert not census.add(7, QP.pack(state=ABI.MRC_QP_DOWN), tx, RX.pack(packets=50, waiting=3))
    wanted = PeerCount(tx_packets=100, rx_packets=50, retransmits=5)
    assert census.peers[7] == wanted
    assert sum(plane.in_use for plane in census.planes) == 0


def test_add__of_a_qp_in_error_is_counted_as_one() -> None:
    census = Census()
    assert not census.add(7, QP.pack(state=ABI.MRC_QP_ERROR), TX.pack(next=9), RX.pack(waiting=3))
    assert census.peers[7] == PeerCount(failed=1)


def test_add__sums_up_the_qps_of_a_peer() -> None:
    census = Census()
    for state in (ABI.MRC_QP_READY, ABI.MRC_QP_RECEIVE, ABI.MRC_QP_READY):
        assert census.add(3, QP.pack(state=state, mpr=128), TX.pack(packets=2), RX.pack())
    census.add(4, READY, TX.pack(packets=9), RX.pack())
    count = census.peers[3]
    assert (count.ready, count.receiving, count.window, count.tx_packets) == (2, 1, 384, 6)
    assert census.peers[4].tx_packets == 9


def test_planes_of__reads_a_balance() -> None:
    balance = ABI.structs["mrc_balance"].pack(
        shares=int.from_bytes(bytes([128, 64, 0, 128, 0, 0, 0, 0]), "little"),
        ports=0b0111,
        heard_ports=0b1101,
        srtt_ns=(100, 200, 300, 400, 0, 0, 0, 0),
        loss_ppm=(0, 10_000, 0, 0, 0, 0, 0, 0),
        mark_ppm=(0, 0, 500_000, 0, 0, 0, 0, 0),
    )
    found = planes_of(balance, 4)
    assert [plane.open for plane in found] == [True, False, True, False]
    assert [plane.share for plane in found] == [1.0, 0.5, 0.0, 1.0]
    assert [plane.srtt_ns for plane in found] == [100, 200, 300, 400]
    assert [plane.loss for plane in found] == [0, 0.01, 0, 0]
    assert [plane.marked for plane in found] == [0, 0, 0.5, 0]


@pytest.mark.parametrize("names", [("una", "next"), ("sacked",)])
def test_picker__refuses_what_it_cannot_read(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="not a plain member behind"):
        picker(TX, *names)
