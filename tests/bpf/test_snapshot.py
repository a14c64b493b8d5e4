# SPDX-License-Identifier: GPL-2.0-only
"""The metrics' counts in the maps, against the programs' actions and the rings' free slots."""

from __future__ import annotations

import asyncio
from collections import Counter

from mrcd.datapath.census import Census
from mrcd.report.metrics import STATES
from mrcd.report.snapshot import balances_of, census_of
from rigs.packets import Far, ip4, numbered
from rigs.rig import MPR, PLANES, QPS_PER_PEER, RING_SLOTS, T1S, Rig

FIRST_TX, FIRST_RX = 1000, 5000
OUT = ip4(b"out", src="10.99.0.1", dst="10.99.0.2")


def counted(rig: Rig) -> Census:
    peers = len(rig.config.peers)
    owners = [peer for peer in range(peers) for _ in range(QPS_PER_PEER)]
    census, in_use = asyncio.run(census_of(rig.dp, owners))
    assert in_use == 1
    return census


def test_census__slots_are_those_the_rings_lack(rig: Rig, far: Far) -> None:
    for _ in range(20):
        rig.spray(OUT)
    rig.arrive(far.sack(FIRST_TX + 4, 0b1010 << 1))  # 5 in order, 2 of them ahead
    for psn in (2, 3, 7):
        rig.arrive(far.data(FIRST_RX + psn, numbered(psn)))
    peer = counted(rig).peers[0]
    assert peer.kept == RING_SLOTS - rig.free_slots("tx_free") == 13
    assert peer.waiting == RING_SLOTS - rig.free_slots("rx_free") == 3
    assert (peer.outstanding, peer.window, peer.ready) == (15, MPR, 1)
    assert (peer.tx_packets, peer.rx_packets) == (20, 3)


def test_census__paths_are_as_they_are_listed(rig: Rig) -> None:
    rig.reset(evs=2 * PLANES)
    rig.connect()
    paths = rig.paths(0)
    rig.withdraw(paths[0].ev, paths[-1].ev)
    rig.table.deny(0, 1, 0, denied=True)
    census = counted(rig)
    listed = Counter((path.plane, path.state.name) for path in rig.paths(0))
    for plane in range(PLANES):
        found = census.planes[plane]
        shown = (found.good, found.skip, found.assumed_bad, found.denied)
        assert shown == tuple(listed[plane, state] for state in STATES)
    total = census.peers[0].paths
    assert (total.assumed_bad, total.denied) == (2, 1)
    assert total.good + total.skip + total.assumed_bad + total.denied == PLANES * T1S
    assert total.in_use == sum(path.use for path in rig.paths(0))


def test_census__what_a_qp_carried_outlives_its_session(rig: Rig, far: Far) -> None:
    for _ in range(3):
        rig.spray(OUT)
    rig.arrive(far.data(FIRST_RX, numbered(1)))
    rig.connect(tx_psn=77, rx_psn=99)
    peer = counted(rig).peers[0]
    assert (peer.tx_packets, peer.rx_packets, peer.outstanding) == (3, 1, 0)
    rig.spray(OUT)
    assert counted(rig).peers[0].tx_packets == 4


def test_balances__are_those_of_the_table(rig: Rig) -> None:
    rig.table.peers.set_ports("h3", 0b0101)
    found = asyncio.run(balances_of(rig.dp, len(rig.config.peers), PLANES))
    for peer, planes in zip(rig.config.peers, found, strict=True):
        balance = rig.table.peers.balance(peer.name)
        assert [plane.share for plane in planes] == list(balance.shares)
        assert [plane.srtt_ns for plane in planes] == list(balance.srtt_ns)
        assert sum(1 << p for p, plane in enumerate(planes) if plane.open) == balance.ports & 0xF
    assert len(asyncio.run(balances_of(rig.dp, 1000, PLANES))) == rig.dp.sizes.peers
