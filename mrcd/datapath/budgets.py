# SPDX-License-Identifier: GPL-2.0-only
"""Read what the data path has refused of messages to the daemon, by source (bpf/admit.c)."""

from __future__ import annotations

from mrcd.datapath.datapath import Datapath
from mrcd.linux import bpfbatch
from mrcd.wire.abi import ABI

_BUDGET = ABI.structs["mrc_budget"]
PLANES, ELSEWHERE = "(planes)", "(elsewhere)"

Refused = tuple[int, int]
"""Messages beyond the budget, and forged ones."""


def refused(datapath: Datapath) -> tuple[dict[int, Refused], dict[str, Refused]]:
    """Return what was refused by a peer's place in the maps, and of other addresses.

    Who was refused nothing is left out.
    """
    places = _read(datapath, "peer_budgets", datapath.sizes.peers)
    nets = _read(datapath, "net_budgets", ABI.MRC_NET_BUDGETS + 1)
    planes = nets[: ABI.MRC_NET_BUDGETS]
    others = {
        PLANES: (sum(each[0] for each in planes), sum(each[1] for each in planes)),
        ELSEWHERE: nets[ABI.MRC_REST_BUDGET],
    }
    return (
        {place: found for place, found in enumerate(places) if any(found)},
        {source: found for source, found in others.items() if any(found)},
    )


def _read(datapath: Datapath, name: str, count: int) -> list[Refused]:
    raws = bpfbatch.lookup(datapath.maps[name], 0, count, _BUDGET.size)
    values = [_BUDGET.unpack(raw) for raw in raws]
    return [(value["refused"], value["forged"]) for value in values]
