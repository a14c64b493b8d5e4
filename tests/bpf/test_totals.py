# SPDX-License-Identifier: GPL-2.0-only
"""The totals of paths, QPs and peers never fall, even if one of them dies and comes back."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from mrcd.datapath import view as qpview
from mrcd.datapath.qptable import TOTALS, QpTable
from mrcd.handshake import LocalQp, RemoteQp
from mrcd.paths.states import State
from mrcd.wire.abi import ABI
from rigs.rig import MPR, RING_SLOTS, Rig

_PATH, _TX, _RX = (ABI.structs[name] for name in ("mrc_path", "mrc_tx", "mrc_rx"))
QPNS = itertools.count(0x110000)


def set_up(rig: Rig, psn: int, peer: str = "h2") -> None:
    indices = rig.table.qps_of(peer)
    rig.table.configure(
        peer,
        tuple((LocalQp(i, next(QPNS), psn), RemoteQp(next(QPNS), psn)) for i in indices),
        MPR,
    )


def counted(rig: Rig) -> list[tuple[int, ...]]:
    """Return the totals of every path."""
    return [
        tuple(path.values[name] for name in ("ev", *TOTALS))
        for index in rig.table.qps_of("h2")
        for path in rig.paths(index)
    ]


def count(rig: Rig, *, windows: bool) -> None:
    """Write the totals that traffic would have caused, a different number for each.

    `windows` also writes to the windows, whose sets of paths do not survive that.
    """
    numbers = itertools.count(1)
    for index in rig.table.qps_of("h2"):
        for path in rig.paths(index):
            at = qpview.path_index(rig.dp, index, path.plane, path.slot)
            more = {name: next(numbers) for name in TOTALS}
            rig.dp.write("paths", at, _PATH, ev=path.ev, loss_ppm=9, srtt_ns=8, **more)
        if not windows:
            continue
        tx, rx = rig.dp.read("txs", index, _TX), rig.dp.read("rxs", index, _RX)
        rig.dp.write("txs", index, _TX, **{**tx, "packets": next(numbers), "retransmits": 5})
        rig.dp.write("rxs", index, _RX, **{**rx, "packets": next(numbers)})


def test_totals_outlive_the_qp(rig: Rig) -> None:
    set_up(rig, 100)
    count(rig, windows=True)
    index = rig.table.qps_of("h2")[0]
    before, view = counted(rig), rig.view(index)
    assert view.tx["packets"] > 0
    rig.table.reset(tuple(rig.table.qps_of("h2")))
    assert rig.view(index).tx["packets"] == view.tx["packets"]  # while it is down, too
    set_up(rig, 7000)  # the peer came back
    after = rig.view(index)
    assert counted(rig) == before
    assert [after.tx[name] for name in ("packets", "retransmits")] == [view.tx["packets"], 5]
    assert after.rx["packets"] == view.rx["packets"]
    assert after.tx["next"] == 7000
    path = rig.paths(index)[0]
    assert (path.values["loss_ppm"], path.values["srtt_ns"]) == (0, 0)  # averages are not totals


def test_totals_of_another_ev_are_not_inherited(rig: Rig) -> None:
    set_up(rig, 100)
    index = rig.table.qps_of("h2")[0]
    rig.dp.write("paths", qpview.path_index(rig.dp, index, 0, 0), _PATH, ev=0x7777_0000, sent=5)
    set_up(rig, 200)
    assert rig.paths(index)[0].values["sent"] == 0


def test_a_path_that_leaves_and_comes_back_keeps_its_totals(rig: Rig) -> None:
    set_up(rig, 100)
    count(rig, windows=False)
    before = counted(rig)
    rig.table.ready("h2")
    index = rig.table.qps_of("h2")[0]
    for denied in (True, False):
        rig.table.deny(index, 0, 0, denied=denied)
        assert (rig.paths(index)[0].state is State.DENIED) is denied
        assert counted(rig) == before


def totals(rig: Rig, peer: str) -> set[int]:
    """Return every total of a peer's QPs after they are set up."""
    found = set()
    for index in rig.table.qps_of(peer):
        view = rig.view(index)
        found |= {view.tx["packets"], view.tx["retransmits"], view.rx["packets"]}
        found |= {path.values[name] for path in rig.paths(index) for name in TOTALS}
    return found


@pytest.mark.parametrize("who", ["the daemon", "its successor"])
def test_a_peer_in_anothers_place_begins_at_nothing(rig: Rig, who: str) -> None:
    """The peer that had the place before is gone from the configuration, and so are its totals."""
    h2, h3 = (peer for peer in rig.config.peers if peer.name in ("h2", "h3"))
    place = rig.table.peers.indices["h2"]
    set_up(rig, 100)
    count(rig, windows=True)
    rig.table.ready("h2")
    without = replace(rig.config, peers=tuple(p for p in rig.config.peers if p.name != "h2"))
    if who == "the daemon":
        rig.current = without
        rig.table.peers.drop_prefixes()
        rig.table.remove_peer(h2)
        rig.current = rig.config
    else:
        rig.table.remove_peer(h3)
        rig.table = QpTable(rig.dp, lambda: rig.current)
        rig.current = without
        rig.table.adopt()
        rig.current = rig.config
    newcomer = h2 if who == "the daemon" else h3
    rig.table.peers.add((newcomer,))
    assert rig.table.peers.indices[newcomer.name] == place
    set_up(rig, 7000, newcomer.name)
    assert totals(rig, newcomer.name) == {0}
    assert rig.free_slots("tx_free") == RING_SLOTS
