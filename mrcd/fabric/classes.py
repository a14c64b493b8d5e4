# SPDX-License-Identifier: GPL-2.0-only
"""The classes of packets, which DSCPs tell to the switches of a fabric (pure).

They stand in the fabric file because all hosts and switches must agree on them: a receiver tells a
trimmed packet from a damaged one by its DSCP, and a switch tells by it what it may trim. The usual
values are those of MRC_DSCP_* in bpf/mrc_wire.h; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

DSCP_MAX = 63


@dataclass(frozen=True, slots=True)
class Classes:
    """Section [dscp] of a fabric file.

    trimmable: data that a switch may cut to its headers instead of dropping it. retransmit: the
    same, sent again. no_trim: data on a way that does not trim. control: SACKs, NACKs, probes,
    endpoint packets and the hand-shake. trimmed: what a switch has cut. trimmed_lasthop: what it
    has cut at the port that leads to a host.
    """

    trimmable: int = 3
    retransmit: int = 7
    no_trim: int = 0
    control: int = 46
    trimmed: int = 43
    trimmed_lasthop: int = 47

    @property
    def shown(self) -> str:
        """The classes as `mrcctl config` shows them."""
        return ", ".join(f"{key} {value}" for key, value in asdict(self).items())

    def problems(self) -> Iterator[tuple[str, int, str]]:
        """Yield (key, value, what it must be) for each class that cannot be told from another.

        Data and data sent again may share a class: a switch treats both alike.
        """
        held = asdict(self)
        if self.trimmable == 0 or self.retransmit == 0:
            key = "trimmable" if self.trimmable == 0 else "retransmit"
            yield key, 0, "1 to 63: 0 is the class of packets that are not MRC's"
        for later, key in enumerate(held):
            for other in list(held)[:later]:
                if held[key] == held[other] and {key, other} != {"trimmable", "retransmit"}:
                    yield key, held[key], f"another number than {other}"
                    break


USUAL = Classes()


def read(table: object, complain: Callable[[str, object, str], None]) -> Classes:
    """Read the section [dscp]; `complain` is called with key, value and rule for each wrong one."""
    if not isinstance(table, Mapping):
        complain("dscp", table, "a table: [dscp]")
        return USUAL
    values: dict[str, Any] = {}
    known = [field.name for field in fields(Classes)]
    for key, value in table.items():
        if key not in known:
            complain(f"dscp.{key}", value, f"left out; known: {', '.join(known)}")
        elif not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= DSCP_MAX:
            complain(f"dscp.{key}", value, f"a whole number, 0 to {DSCP_MAX}")
        else:
            values[key] = value
    if len(values) < len(table):
        return USUAL
    found = Classes(**values)
    wrong = list(found.problems())
    for key, number, wanted in wrong:
        complain(f"dscp.{key}", number, wanted)
    return USUAL if wrong else found


def keys(classes: Classes) -> dict[str, int]:
    """Return the section as it stands in a fabric file."""
    return asdict(classes)
