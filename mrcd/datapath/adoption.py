# SPDX-License-Identifier: GPL-2.0-only
"""Find a pinned data path and decide whether it can be taken over.

A data path that is taken over keeps its maps, so QPs, windows, rings and paths go on as if nothing
had happened. Programs may differ: they are loaded over the maps and replaced on the interfaces.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from mrcd.config.config import QPS_MAX_ALL, Config
from mrcd.datapath import layoutkey, pins, sizes, tuning
from mrcd.datapath.datapath import Datapath, DatapathError
from mrcd.datapath.loader import MAPS, PROGRAMS, source
from mrcd.datapath.qptable import evs_per_plane
from mrcd.datapath.sizes import Sizes
from mrcd.fabric import classes, underlay
from mrcd.fabric.loops import loops_of
from mrcd.linux import bpfmap, kernel


def sizes_of(config: Config) -> Sizes:
    """Return the least that the maps must hold for a configuration."""
    return Sizes(
        mtu=config.mtu,
        window=2 * config.transport.mpr,
        ring_slots=config.transport.ring_slots,
        peers=len(config.peers),
        qps=len(config.peers) * config.transport.qps_per_peer,
        evs=evs_per_plane(config),
        prefixes=len(config.own_prefixes) + sum(len(peer.allowed) for peer in config.peers),
        loops=len(loops_of(config.fabric, config.host)),
        encap=config.fabric.routing.code,
        cell_slots=tuning.CELL_SLOTS if config.cells else 1,
        xdp=config.transport.xdp == "native",
        decap=kernel.has_decap(),
        next_hops=underlay.of(config.fabric).next_hops,
        cell_udp=config.cell_udp,
    )


DISCOVERED = 15
"""Peers for which there is room from the start where hosts find each other."""


def with_room(needed: Sizes, qps_per_peer: int, *, discover: bool = False) -> Sizes:
    """Return the capacities of new maps, with room for more peers, prefixes and loops.

    discover: hosts find each other, so that peers come without notice.
    """
    most = max(needed.peers, QPS_MAX_ALL // qps_per_peer)  # further QPs would have no number
    likely = max(needed.peers, DISCOVERED) if discover else needed.peers
    peers = min(sizes.room_for_peers(likely), most)
    return replace(
        needed,
        peers=peers,
        qps=peers * qps_per_peer,
        prefixes=sizes.room_for_prefixes(needed.prefixes),
        loops=sizes.room_for_loops(needed.loops),
    )


def layout_of(config: Config, needed: Sizes) -> str:
    """Return the key of the layout that a configuration needs with this build."""
    fabric, host, transport = config.fabric, config.host, config.transport
    identity: dict[str, object] = {
        "host": [host.name, host.t0, host.port],
        "fabric": [
            fabric.planes,
            fabric.t1,
            str(fabric.block),
            str(fabric.underlay6),
            str(fabric.gateway),
            fabric.mtu,
            fabric.ipv4,
            fabric.trim,
            *classes.keys(fabric.classes).values(),
        ],
        "interfaces": [config.mrc0.name, *config.interfaces],
        "transport": [
            transport.udp_port,
            transport.control_port,
            transport.cell_port,
            transport.qps_per_peer,
            transport.evs,
            transport.ev_min_active,
            transport.tc,
            transport.framing,
            transport.cell_envelope,
        ],
    }
    if not fabric.described:
        identity["network"] = fabric.routing.paths
    return layoutkey.layout_key(source(), needed, MAPS, identity)


def code_of(layout: Sizes) -> str:
    """Return the key of this build's programs for a layout."""
    return sizes.code_key(source(), layout, os.uname().release)


@dataclass(frozen=True, slots=True)
class Found:
    """The sizes of pinned maps that can be taken over, or why they cannot; neither without maps."""

    sizes: Sizes | None = None
    refused: str | None = None


def find(folder: Path, key: str, needed: Sizes) -> Found:
    """Look for maps of the layout `key` with room for what is needed. Change nothing."""
    home = pins.layout(folder, key)
    if not home.is_dir():
        others = sorted(entry.name for entry in folder.iterdir() if _is_data_path(entry))
        if others:
            return Found(refused=f"it has another layout ({', '.join(others)}, not {home.name})")
        return Found()
    probe = Datapath(home, needed)
    try:
        probe.open_maps()
        there = _capacities(probe, needed)
        lacking = there.lacking(needed)
        if lacking:
            return Found(refused=f"its maps are too small: {'; '.join(lacking)}")
        wrong = _wrong_sizes(probe, there)
        if wrong:
            return Found(refused=f"its maps are not those of its layout: {wrong}")
        return Found(sizes=there)
    except (OSError, DatapathError) as error:
        return Found(refused=f"it is not whole: {error}")
    finally:
        probe.close()


def whole_code(folder: Path) -> bool:
    """Return whether a folder holds every program."""
    return all((folder / name).exists() for name in PROGRAMS)


def _is_data_path(entry: Path) -> bool:
    return entry.name.startswith("layout-") or entry.name in MAPS


def _entries(probe: Datapath, name: str) -> int:
    return bpfmap.described(probe.maps[name]).entries


def _capacities(probe: Datapath, needed: Sizes) -> Sizes:
    return replace(
        needed,
        peers=_entries(probe, "peers"),
        qps=_entries(probe, "qps"),
        prefixes=_entries(probe, "prefixes"),
        loops=_entries(probe, "loops"),
    )


def _wrong_sizes(probe: Datapath, there: Sizes) -> str:
    """Describe the maps whose number of entries does not follow from the capacities."""
    expected = there.entries()
    found = {name: _entries(probe, name) for name in expected}
    return ", ".join(
        f"{name} has {found[name]} entries, not {count}"
        for name, count in expected.items()
        if found[name] != count
    )
