# SPDX-License-Identifier: GPL-2.0-only
"""The routing of a fabric and the encapsulation that it needs (pure).

The codes are those of MRC_ENCAP_* in bpf/mrc_wire.h; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

ENCAP_FULL = 0
ENCAP_REDUCED = 1
ENCAP_ECMP6 = 2
ENCAP_ECMP4 = 3
HOPS_SENT = 255
"""The hop limit with which daemons' messages leave: no packet from farther away arrives with more
than what is left after the longest path (RFC 5082)."""
HOPS_MAX = 3
"""The most switches on a path: T0, T1, T0."""
KEYS = ("routing", "encap", "underlay")

_SHOWN = ("srv6", "srv6, reduced", "ecmp over IPv6", "ecmp over IPv4")
PATHS_MAX = 128
"""The most paths of a plane without a fabric: EVs of a QP's set, of which a slot has seven bits."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The `routing`, `encap` and `underlay` keys of a fabric file.

    mode: "srv6", where an EV names a path, or "ecmp", where switches hash the EV. encap: with srv6,
    whether packets have an inner IPv6 header ("full") or not ("reduced"). underlay: with ecmp, the
    IP version of the planes. paths: the EVs of each plane where there is no fabric, only a network
    about which nothing is known (mrcd/fabric/network.py); 0 in a fabric.
    """

    mode: Literal["srv6", "ecmp"] = "srv6"
    encap: Literal["full", "reduced"] = "full"
    underlay: Literal[6, 4] = 6
    paths: int = 0

    @property
    def network(self) -> bool:
        """Return whether there is no fabric, only a network between the NICs' own addresses."""
        return self.paths > 0

    @property
    def code(self) -> int:
        """The MRC_ENCAP_* code that the data path is compiled for."""
        if self.mode == "ecmp":
            return ENCAP_ECMP4 if self.underlay == 4 else ENCAP_ECMP6
        return ENCAP_REDUCED if self.encap == "reduced" else ENCAP_FULL

    @property
    def shown(self) -> str:
        """The routing's display name."""
        if self.network:
            several = f", {self.paths} paths" if self.paths > 1 else ""
            return f"any network over IPv{self.underlay}{several}"
        return _SHOWN[self.code]

    def problems(self) -> list[tuple[str, object, str]]:
        """Return keys that contradict each other: (key, value, what it must be)."""
        if self.mode == "ecmp" and self.encap != "full":
            return [("encap", self.encap, 'left out where routing is "ecmp"')]
        if self.mode == "srv6" and self.underlay != 6:
            return [("underlay", self.underlay, '6 where routing is "srv6"')]
        return []


SRV6 = Routing()


def read(table: Mapping[str, Any], complain: Callable[[str, object, str], None]) -> Routing:
    """Read the three keys of a [fabric] table; `complain` is called for each wrong one."""
    options: dict[str, tuple[object, ...]] = {
        "routing": ("srv6", "ecmp"),
        "encap": ("full", "reduced"),
        "underlay": (6, 4),
    }
    values = {}
    for key, allowed in options.items():
        value = table.get(key, allowed[0])
        if value not in allowed or isinstance(value, bool):
            shown = (
                f'"{option}"' if isinstance(option, str) else str(option) for option in allowed
            )
            complain(key, value, " or ".join(shown))
            value = allowed[0]
        values[key] = value
    routing = Routing(values["routing"], values["encap"], values["underlay"])
    for problem in routing.problems():
        complain(*problem)
        return SRV6
    return routing


def keys(routing: Routing) -> dict[str, str | int]:
    """Return the keys as they stand in a fabric file, without those that do not apply."""
    if routing.mode == "ecmp":
        return {"routing": routing.mode, "underlay": routing.underlay}
    return {"routing": routing.mode, "encap": routing.encap}
