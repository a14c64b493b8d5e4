# SPDX-License-Identifier: GPL-2.0-only
"""Which QP takes a flow's packets: the one of its hash, or one in which nothing waits."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from mrcd.wire.abi import ABI
from rigs.packets import Far, ip4
from rigs.rig import Rig

QPS = 4
FIRST = 1000
SHORT = len(ip4(b"payload"))


def packet(port: int) -> bytes:
    """Return a packet of a flow, which its port tells apart."""
    return ip4(b"payload", src="10.99.0.1", dst="10.99.0.2", port=port)


def connect(rig: Rig) -> None:
    """Set up QPs of which nothing has been sent yet."""
    for index in range(QPS):
        rig.connect("h2", index, qpn=0x770000, remote_qpn=0x880000 | index, tx_psn=FIRST)
    rig.spread("h2", 0, QPS)


def nexts(rig: Rig) -> list[int]:
    return [rig.tx(index)["next"] for index in range(QPS)]


def taken_by(rig: Rig, port: int) -> int:
    """Send a packet; return the QP that gave it a PSN, or QPS if it was refused."""
    before = nexts(rig)
    rig.spray(packet(port))
    changed = [index for index, (was, now) in enumerate(zip(before, nexts(rig), strict=True))
               if was != now]  # fmt: skip
    assert len(changed) <= 1
    return changed[0] if changed else QPS


def acknowledge(rig: Rig, far: Far, index: int, psn: int | None = None) -> None:
    """Acknowledge what a QP has sent, up to a PSN or all of it."""
    tx = rig.tx(index)
    rig.arrive(far.sack(tx["next"] - tx["held"] - 1 if psn is None else psn, qpn=0x770000 | index))


def narrow(rig: Rig, index: int, packets: int) -> None:
    """Give a QP's congestion window room for so many packets."""
    rig.tune(cc_target_ns=1_000_000, cc_rate=25_000)
    rig.edit("txs", index, "mrc_tx", cwnd=packets * SHORT)


@pytest.fixture
def flows(rig: Rig) -> list[int]:
    """Return ports of flows that QP 0 takes and tells apart; the QPs are as new."""
    connect(rig)
    found, seats = [], 0
    for port in range(100):
        if taken_by(rig, port) == 0 and rig.tx()["flows"] != seats:
            seats = rig.tx()["flows"]
            found.append(port)
    connect(rig)
    assert len(found) >= 3
    return found


def fill(rig: Rig, port: int) -> None:
    """Have two packets of a flow wait in QP 0, behind one that is on its way."""
    narrow(rig, 0, 1)
    assert [taken_by(rig, port) for _ in range(3)] == [0, 0, 0]
    assert rig.tx()["held"] == 2


def release(rig: Rig) -> None:
    """Send what waits in QP 0."""
    rig.edit("txs", 0, "mrc_tx", cwnd=1 << 20)
    rig.tick(2 * QPS)
    assert rig.tx()["held"] == 0


def test_flow_leaves_a_qp_in_which_packets_of_others_wait(rig: Rig, flows: list[int]) -> None:
    bulk, sparse, third = flows[:3]
    fill(rig, bulk)
    there = taken_by(rig, sparse)
    assert there in (1, 2, 3)
    assert taken_by(rig, sparse) == there
    assert taken_by(rig, bulk) == 0
    assert taken_by(rig, third) not in (0, there)  # the others have less on their way


def test_flow_stays_until_its_packets_are_acknowledged(
    rig: Rig, far: Far, flows: list[int]
) -> None:
    bulk, sparse = flows[:2]
    fill(rig, bulk)
    there = taken_by(rig, sparse)
    release(rig)
    acknowledge(rig, far, 0)
    assert rig.tx()["una"] == rig.tx()["next"]
    assert taken_by(rig, sparse) == there
    acknowledge(rig, far, there)
    assert taken_by(rig, sparse) == 0
    assert rig.dp.read("balances", 0, ABI.structs["mrc_balance"])["away"] == 0


def test_flow_may_leave_a_busy_qp_when_its_own_packets_are_acknowledged(
    rig: Rig, far: Far, flows: list[int]
) -> None:
    bulk, sparse = flows[:2]
    narrow(rig, 0, 100)
    assert [taken_by(rig, port) for port in (sparse, bulk)] == [0, 0]
    narrow(rig, 0, 1)
    assert [taken_by(rig, port) for port in (bulk, sparse)] == [0, 0]  # both wait
    release(rig)
    acknowledge(rig, far, 0, FIRST + 1)
    narrow(rig, 0, 1)
    assert [taken_by(rig, port) for port in (bulk, sparse)] == [0, 0]
    release(rig)
    acknowledge(rig, far, 0, FIRST + 5)
    narrow(rig, 0, 1)
    assert [taken_by(rig, port) for port in (bulk, bulk, bulk)] == [0, 0, 0]
    acknowledge(rig, far, 0, FIRST + 6)
    assert rig.tx()["held"]
    assert taken_by(rig, sparse) != 0


def test_qps_that_are_not_ready_are_passed_over(rig: Rig, flows: list[int]) -> None:
    fill(rig, flows[0])
    for index in (1, 3):
        rig.set_state(ABI.MRC_QP_ERROR, index)
    assert taken_by(rig, flows[1]) == 2
    rig.set_state(ABI.MRC_QP_ERROR, 2)
    assert taken_by(rig, flows[2]) == 0


def test_flow_stays_where_packets_wait_everywhere(rig: Rig, flows: list[int]) -> None:
    fill(rig, flows[0])
    for index in (1, 2, 3):
        rig.edit("txs", index, "mrc_tx", held=1)
    assert taken_by(rig, flows[1]) == 0


@pytest.mark.parametrize("seed", range(5))
def test_all_packets_of_a_flow_on_their_way_are_in_one_qp(
    rig: Rig, far: Far, flows: list[int], seed: int
) -> None:
    """Whatever is sent, waits and is acknowledged, no flow can overtake itself."""
    rng = random.Random(seed)
    on_their_way: dict[int, set[tuple[int, int]]] = defaultdict(set)  # QP and PSN, of each flow
    last: dict[int, int] = {}
    moves = 0
    for _ in range(400):
        index = rng.randrange(QPS)
        if rng.random() < 0.55:
            narrow(rig, index, 4)
            port = flows[0] if rng.random() < 0.5 else rng.randrange(40)
            before = nexts(rig)
            index = taken_by(rig, port)
            if index < QPS:
                assert {qp for qp, _ in on_their_way[port]} <= {index}
                moves += last.get(port, index) != index
                last[port] = index
                on_their_way[port].add((index, before[index]))
            continue
        tx = rig.tx(index)
        if tx["next"] - tx["held"] == tx["una"]:
            continue
        psn = rng.randrange(tx["una"], tx["next"] - tx["held"])
        acknowledge(rig, far, index, psn)
        for packets in on_their_way.values():
            packets -= {each for each in packets if each[0] == index and each[1] <= psn}
    assert moves
