# SPDX-License-Identifier: GPL-2.0-only
"""What the maps hold, and the fingerprint under which a data path is pinned (pure).

Two numbers decide whether a running data path can be taken over. The *layout* is everything that
the maps' contents depend on: their definitions, the structs in them, what the programs are
compiled for, who this host is. Capacities are not in it: they are read from the kernel, and a map
that holds more than is needed will do. The *code* is the programs' text and what it is compiled
with: other code with the same layout is loaded over the same maps.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mrcd.wire import Header

_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_MAP = re.compile(r"^BPF_\w+\([^;]*\);", re.M)
_STRUCT = re.compile(r"^struct \w+ \{.*?^\};", re.M | re.S)
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the maps are made for.

    mtu: mrc0's, bytes. window: PSNs, a power of two, at least twice the MPR.
    evs: EVs of one plane in a QP's set, a power of two. encap: one of
    MRC_ENCAP_*. peers, qps, prefixes and loops are capacities. capture: the
    programs also record what they see (bpf/capture.c).
    """

    mtu: int
    window: int
    ring_slots: int
    peers: int
    qps: int
    evs: int
    prefixes: int
    loops: int = 1
    encap: int = 0
    capture: bool = False

    def defines(self) -> list[str]:
        """The CFG_ constants the programs are compiled with."""
        return [
            f"-DCFG_MTU={self.mtu}",
            f"-DCFG_SLOT_BYTES={-(-self.mtu // 8) * 8}",
            f"-DCFG_WINDOW={self.window}",
            f"-DCFG_RING_SLOTS={self.ring_slots}",
            f"-DCFG_MAX_PEERS={max(1, self.peers)}",
            f"-DCFG_MAX_QPS={max(1, self.qps)}",
            f"-DCFG_EVS={self.evs}",
            f"-DCFG_MAX_PREFIXES={max(1, self.prefixes)}",
            f"-DCFG_LOOPS={max(1, self.loops)}",
            f"-DCFG_ENCAP={self.encap}",
            f"-DCFG_CAPTURE={int(self.capture)}",
            f"-DCFG_ACTIVE_WORDS={-(-max(1, self.qps) // 64)}",
        ]

    def lacking(self, needed: Sizes) -> list[str]:
        """What of `needed` does not fit into these capacities, in words."""
        return [
            f"{name}: {getattr(self, name)} fit, {getattr(needed, name)} are wanted"
            for name in ("peers", "qps", "prefixes", "loops")
            if getattr(self, name) < getattr(needed, name)
        ]


def room_for_peers(count: int) -> int:
    """Peers that maps for `count` of them are made for.

    At least one more fits, so that adding one needs no other maps. A QP costs some 150 KB, so the
    room is four at first and about an eighth of many: 4 for 1, 12 for 10, 10,240 for 10,000.
    """
    step = max(4, (1 << max(0, count.bit_length() - 1)) // 8)
    return -(-(count + 1) // step) * step


def room_for_prefixes(count: int) -> int:
    """Prefixes take memory only when they are there."""
    return max(1024, 4 * count)


def room_for_loops(count: int) -> int:
    """A loop costs some 200 bytes; more hosts may mean more of them."""
    return -(-(count + 1) // 64) * 64


# ---- fingerprints --------------------------------------------------------------------------


def _structs(header: Header) -> dict[str, Any]:
    return {
        name: [
            struct.size,
            [[f.name, f.offset, f.item_size, f.count] for f in struct.fields.values()],
        ]
        for name, struct in header.structs.items()
    }


def definitions(maps_header: str) -> list[str]:
    """Every map and every struct that a header declares, white space and comments aside."""
    bare = _COMMENT.sub("", maps_header)
    return [" ".join(text.split()) for text in (*_MAP.findall(bare), *_STRUCT.findall(bare))]


def layout_key(
    sizes: Sizes,
    maps_header: str,
    treaty: Mapping[str, Header],
    identity: Mapping[str, object],
) -> str:
    """The name of a layout.

    treaty: the two headers. identity: what else the maps' contents mean something for, JSON.
    """
    text = json.dumps(
        {
            "compiled": [sizes.mtu, sizes.window, sizes.ring_slots, sizes.evs, sizes.encap],
            "maps": definitions(maps_header),
            "structs": {name: _structs(header) for name, header in treaty.items()},
            "constants": {name: dict(header.constants) for name, header in treaty.items()},
            "identity": dict(identity),
        },
        sort_keys=True,
        default=str,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def code_key(source: str, sizes: Sizes, kernel: str, *, xdp_frags: bool) -> str:
    """The name of compiled programs. kernel: its release, whose headers they were compiled with."""
    text = "\n".join([source, *sizes.defines(), kernel, str(xdp_frags)])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
