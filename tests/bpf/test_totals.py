# SPDX-License-Identifier: GPL-2.0-only
"""What paths, QPs and peers have counted does not fall, whoever of them dies and comes back."""

from __future__ import annotations

import itertools

from mrcd.abi import ABI
from mrcd.handshake import LocalQp, RemoteQp
from mrcd.pathstate import State
from mrcd.qptable import TOTALS
from tests.bpf.rig import MPR, Rig

_PATH, _TX, _RX = (ABI.structs[name] for name in ("mrc_path", "mrc_tx", "mrc_rx"))
QPNS = itertools.count(0x110000)


def set_up(rig: Rig, psn: int) -> None:
    indices = rig.table.qps_of("h2")
    rig.table.configure(
        "h2",
        tuple((LocalQp(i, next(QPNS), psn), RemoteQp(next(QPNS), psn)) for i in indices),
        MPR,
    )


def counted(rig: Rig) -> list[tuple[int, ...]]:
    """The totals of every path."""
    return [
        tuple(path.values[name] for name in ("ev", *TOTALS))
        for index in rig.table.qps_of("h2")
        for path in rig.table.paths(index)
    ]


def count(rig: Rig, *, windows: bool) -> None:
    """Traffic, as the programs would have counted it: another number for each.

    windows: also in the windows, whose sets of paths do not outlive it.
    """
    numbers = itertools.count(1)
    for index in rig.table.qps_of("h2"):
        for path in rig.table.paths(index):
            at = rig.table._path_index(index, path.plane, path.slot)
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
    before, view = counted(rig), rig.table.view(index)
    assert view.tx["packets"] > 0
    rig.table.reset(tuple(rig.table.qps_of("h2")))
    assert rig.table.view(index).tx["packets"] == view.tx["packets"]  # while it is down, too
    set_up(rig, 7000)  # the peer came back
    after = rig.table.view(index)
    assert counted(rig) == before
    assert [after.tx[name] for name in ("packets", "retransmits")] == [view.tx["packets"], 5]
    assert after.rx["packets"] == view.rx["packets"]
    assert after.tx["next"] == 7000
    path = rig.table.paths(index)[0]
    assert (path.values["loss_ppm"], path.values["srtt_ns"]) == (0, 0)  # history is not a total


def test_totals_of_another_ev_are_not_inherited(rig: Rig) -> None:
    set_up(rig, 100)
    index = rig.table.qps_of("h2")[0]
    rig.dp.write("paths", rig.table._path_index(index, 0, 0), _PATH, ev=0x7777_0000, sent=5)
    set_up(rig, 200)
    assert rig.table.paths(index)[0].values["sent"] == 0


def test_a_path_that_leaves_and_comes_back_keeps_its_totals(rig: Rig) -> None:
    set_up(rig, 100)
    count(rig, windows=False)
    before = counted(rig)
    rig.table.ready("h2")
    index = rig.table.qps_of("h2")[0]
    for denied in (True, False):
        rig.table.deny(index, 0, 0, denied=denied)
        assert (rig.table.paths(index)[0].state is State.DENIED) is denied
        assert counted(rig) == before
