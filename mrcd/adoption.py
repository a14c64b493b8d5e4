# SPDX-License-Identifier: GPL-2.0-only
"""What of a data path is pinned already, and whether it can be taken over.

Taken over means: the same maps, so that QPs, windows, rings and paths go on as if nothing had
happened. Programs may differ; they are loaded over the maps and replaced on the interfaces.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from mrcd import bpfsys, pins, sizes
from mrcd.abi import ABI
from mrcd.config import QPS_MAX_ALL, Config
from mrcd.datapath import Datapath, DatapathError
from mrcd.loader import MAPS, PROGRAMS, source
from mrcd.loops import loops_of
from mrcd.paths import bpf_dir
from mrcd.qptable import evs_per_plane
from mrcd.sizes import Sizes
from mrcd.wire import WIRE


def sizes_of(config: Config) -> Sizes:
    """What the maps must hold for a configuration, and not more."""
    return Sizes(
        mtu=config.mtu,
        window=2 * config.transport.mpr,
        ring_slots=config.transport.ring_slots,
        peers=len(config.peers),
        qps=len(config.peers) * config.transport.qps_per_peer,
        evs=evs_per_plane(config),
        prefixes=sum(len(peer.allowed) for peer in config.peers),
        loops=len(loops_of(config.fabric, config.host)),
        encap=config.fabric.routing.code,
    )


def with_room(needed: Sizes, qps_per_peer: int) -> Sizes:
    """The capacities new maps are made with: peers, prefixes and loops may be added."""
    most = max(needed.peers, QPS_MAX_ALL // qps_per_peer)  # QPs beyond have no number
    peers = min(sizes.room_for_peers(needed.peers), most)
    return replace(
        needed,
        peers=peers,
        qps=peers * qps_per_peer,
        prefixes=sizes.room_for_prefixes(needed.prefixes),
        loops=sizes.room_for_loops(needed.loops),
    )


def layout_of(config: Config, needed: Sizes) -> str:
    """The key of the layout that a configuration needs with this build."""
    fabric, host, transport = config.fabric, config.host, config.transport
    identity = {
        "host": [host.name, host.t0, host.port],
        "fabric": [
            fabric.planes,
            fabric.t1,
            str(fabric.block),
            str(fabric.underlay6),
            str(fabric.gateway),
            fabric.mtu,
            fabric.ipv4,
        ],
        "interfaces": [config.mrc0.name, *config.interfaces],
        "transport": [
            transport.udp_port,
            transport.control_port,
            transport.qps_per_peer,
            transport.evs,
            transport.ev_min_active,
            transport.xdp,
            transport.tc,
        ],
    }
    maps_header = (bpf_dir() / "maps.c").read_text()
    return sizes.layout_key(needed, maps_header, {"abi": ABI, "wire": WIRE}, identity)


def code_of(layout: Sizes, *, xdp_frags: bool) -> str:
    """The key of this build's programs for a layout."""
    return sizes.code_key(source(), layout, os.uname().release, xdp_frags=xdp_frags)


@dataclass(frozen=True, slots=True)
class Found:
    """What is pinned: maps that serve, or the reason why those there are do not."""

    sizes: Sizes | None = None
    refused: str | None = None


def find(folder: Path, key: str, needed: Sizes) -> Found:
    """Look for maps of the layout `key`, with room for what is needed. Changes nothing."""
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
    """Whether a folder holds every program."""
    return all((folder / name).exists() for name in PROGRAMS)


def older_code(layout: Path) -> Path | None:
    """Programs of another build for these maps, which serve until our own are compiled."""
    for entry in sorted(layout.glob("code-*")):
        if whole_code(entry):
            return entry
    return None


def _is_data_path(entry: Path) -> bool:
    return entry.name.startswith("layout-") or entry.name in MAPS


def _entries(probe: Datapath, name: str) -> int:
    return bpfsys.map_info(probe.maps[name])[3]


def _capacities(probe: Datapath, needed: Sizes) -> Sizes:
    return replace(
        needed,
        peers=_entries(probe, "peers"),
        qps=_entries(probe, "qps"),
        prefixes=_entries(probe, "prefixes"),
        loops=_entries(probe, "loops"),
    )


def _wrong_sizes(probe: Datapath, there: Sizes) -> str:
    """Maps whose number of entries does not follow from the capacities, in words."""
    planes = ABI.MRC_MAX_PLANES
    expected = {
        "peer_planes": there.peers * planes,
        "sources": there.peers * planes,
        "balances": there.peers,
        "txs": there.qps,
        "rxs": there.qps,
        "tx_entries": there.qps * there.window,
        "rx_entries": there.qps * (there.window // 2),
        "paths": there.qps * planes * there.evs,
        "loop_paths": there.loops,
        "active": -(-there.qps // 64),
        "tx_ring": there.ring_slots,
        "rx_ring": there.ring_slots,
    }
    found = {name: _entries(probe, name) for name in expected}
    return ", ".join(
        f"{name} has {found[name]} entries, not {count}"
        for name, count in expected.items()
        if found[name] != count
    )
