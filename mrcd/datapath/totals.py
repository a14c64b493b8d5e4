# SPDX-License-Identifier: GPL-2.0-only
"""The counters of a data path that another build may have begun.

The map `counters` has room for more counters than there are, and `counter_names` beside it says
whose count each entry is. A build with more counters, fewer, or others takes the map over: where
the names differ, counts move to where this build's programs count, and a new counter begins at 0.
Counters that this build does not know keep their entries, so that they go on after a downgrade and
an upgrade, unless this build counts something else there.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from mrcd.datapath.datapath import Datapath
from mrcd.linux import bpf, bpfbatch
from mrcd.wire.abi import ABI, COUNTERS

_NAME = ABI.structs["mrc_counter_name"]


def moves(there: Sequence[str], ours: Sequence[str]) -> dict[int, int | None]:
    """Return where the count of each counter of ours is now whose entry another name has.

    `there` are the names of all entries, "" where there was no counter; None: it begins at 0.
    """
    known = {name: index for index, name in enumerate(there) if name}
    return {
        index: known.get(name)
        for index, name in enumerate(ours)
        if there[index] != name and (there[index] or name in known)
    }


def renamed(there: Sequence[str], ours: Sequence[str]) -> dict[int, str]:
    """Return the names of the entries that get another one; no name stands twice afterwards."""
    wanted = dict(enumerate(ours)) | {
        index: "" for index in range(len(ours), len(there)) if there[index] in ours
    }
    return {index: name for index, name in wanted.items() if there[index] != name}


def take_over(datapath: Datapath) -> None:
    """Make the entries of the counters those of this build; new maps get their names.

    Programs count meanwhile: of a counter that moves, a few counts may be lost.
    """
    counters, names = datapath.maps["counters"], datapath.maps["counter_names"]
    there = [
        raw.rstrip(b"\0").decode(errors="replace")
        for raw in bpfbatch.lookup(names, 0, ABI.MRC_COUNTERS_ROOM, _NAME.size)
    ]
    ours = [name for _index, name, _help in COUNTERS]
    _move(counters, moves(there, ours))
    for index, name in renamed(there, ours).items():
        raw = name.encode().ljust(_NAME.size, b"\0")
        bpf.update(names, struct.pack("=I", index), raw)


def _move(counters: int, wanted: Mapping[int, int | None]) -> None:
    size = 8 * bpf.possible_cpus()
    counts = {
        index: bytes(size) if source is None else bpfbatch.lookup(counters, source, 1, size)[0]
        for index, source in wanted.items()
    }
    for index, count in counts.items():
        bpf.update(counters, struct.pack("=I", index), count)
