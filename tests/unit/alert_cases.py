# SPDX-License-Identifier: GPL-2.0-only
"""Made-up scrapes for every alert, both some on which it must fire and some on which it must not.

A series is its text in the exposition format and its values, one a minute, in the notation of
Prometheus' own rule tests: "1+2x3" is 1, 3, 5, 7, and "0x5" is six zeros. Several such terms follow
each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

H1 = 'instance="h1",job="mrcd"'


@dataclass(frozen=True, slots=True)
class Case:
    """Scraped series, and the labels of the alerts that fire `at_min` minutes after the start."""

    series: dict[str, str]
    at_min: int
    fires: tuple[dict[str, str], ...] = ()


def planes(name: str, *values: str) -> dict[str, str]:
    """Return a series for each plane."""
    return {
        f'{name}{{{H1},plane="{plane}",interface="eth{plane}"}}': value
        for plane, value in enumerate(values)
    }


def one(name: str, value: str, labels: str = "") -> dict[str, str]:
    return {f"{name}{{{H1}{',' if labels else ''}{labels}}}": value}


def plane(number: int) -> dict[str, str]:
    return {"instance": "h1", "job": "mrcd", "plane": str(number), "interface": f"eth{number}"}


def peer(number: int) -> dict[str, str]:
    return {"peer": f"h{number}"}


def sessions(hosts: int, values: Callable[[int, int], str]) -> dict[str, str]:
    """Return what each of so many hosts says of each other; `values` by their numbers."""
    return {
        f'mrcd_peer_established{{instance="h{here}",job="mrcd",peer="h{there}"}}': values(
            here, there
        )
        for here in range(hosts)
        for there in range(hosts)
        if here != there
    }


HOST = {"instance": "h1", "job": "mrcd"}
HOST_ONLY = {"instance": "h1"}
BUSY = "0+600000000x40"

CASES: dict[str, tuple[Case, ...]] = {
    "MrcdUnreachable": (
        Case(one("up", "1x3 0x9"), 8, (HOST,)),
        Case(one("up", "1x3 0x1 1x9"), 8),
        Case({'up{instance="x",job="node"}': "0x9"}, 8),
    ),
    "MrcdRestarts": (
        Case(one("mrcd_start_time_seconds", "10x5 20x5 30x5 40x5 50x5"), 29, (HOST,)),
        Case(one("mrcd_start_time_seconds", "10x5 20x5 30x19"), 29),
    ),
    "MrcdDegraded": (
        Case(one("mrcd_degraded_reasons", "0x3 2x30"), 25, (HOST,)),
        Case(one("mrcd_degraded_reasons", "0x3 2x9 0x1 1x20"), 25),
    ),
    "MrcdClockStopped": (
        Case(
            one("mrcd_clock_runs_total", "5+100x3 305x9")
            | one("mrcd_peer_outstanding_packets", "7x13", 'peer="h2"'),
            12,
            (HOST,),
        ),
        Case(
            one("mrcd_clock_runs_total", "5x13")
            | one("mrcd_peer_outstanding_packets", "0x13", 'peer="h2"'),
            12,
        ),
        Case(
            one("mrcd_clock_runs_total", "5+100x13")
            | one("mrcd_peer_outstanding_packets", "7x13", 'peer="h2"'),
            12,
        ),
    ),
    "MrcdNoPlane": (
        Case(planes("mrcd_plane_usable", "1x2 0x9", "0x11"), 5, (HOST_ONLY,)),
        Case(planes("mrcd_plane_usable", "1x9", "0x9"), 5),
    ),
    "MrcdLastPlane": (
        Case(planes("mrcd_plane_usable", "1x9", "0x9"), 5, (HOST_ONLY,)),
        Case(planes("mrcd_plane_usable", "1x9", "1x9", "0x9"), 5),
        Case(planes("mrcd_plane_usable", "1x9"), 5),  # there never was a second plane
    ),
    "MrcdPlaneDown": (
        Case(
            planes("mrcd_plane_usable", "1x9", "1x2 0x7")
            | planes("mrcd_plane_drained", "0x9", "0x9"),
            6,
            (plane(1),),
        ),
        Case(
            planes("mrcd_plane_usable", "1x9", "0x9") | planes("mrcd_plane_drained", "0x9", "1x9"),
            6,
        ),
    ),
    "MrcdPlaneDead": (
        Case(planes("mrcd_plane_unreached_peers", "0x9", "0x2 7x7"), 6, (plane(1),)),
        Case(planes("mrcd_plane_unreached_peers", "0x9", "0x2 7x0 0x7"), 6),
    ),
    "MrcdPlaneDrained": (
        Case(planes("mrcd_plane_drained", "0x1500", "1x1500"), 1450, (plane(1),)),
        Case(planes("mrcd_plane_drained", "0x1500", "1x1000 0x2 1x500"), 1450),
    ),
    "MrcdPlaneDeviates": (
        Case(
            planes("mrcd_plane_tx_bytes_total", BUSY, BUSY, "0+100000000x40", BUSY)
            | planes("mrcd_plane_usable", "1x40", "1x40", "1x40", "1x40"),
            30,
            (plane(2),),
        ),
        Case(
            planes("mrcd_plane_tx_bytes_total", BUSY, "0+500000000x40")
            | planes("mrcd_plane_usable", "1x40", "1x40"),
            30,
        ),
        Case(  # almost nothing is sent at all
            planes("mrcd_plane_tx_bytes_total", "0+1000x40", "0x40")
            | planes("mrcd_plane_usable", "1x40", "1x40"),
            30,
        ),
        Case(  # another alert covers this
            planes("mrcd_plane_tx_bytes_total", BUSY, "0x40")
            | planes("mrcd_plane_usable", "1x40", "0x40"),
            30,
        ),
    ),
    "MrcdPeerLost": (
        Case(sessions(40, lambda here, there: "1x2 0x9" if there == 7 else "1x11"), 6, (peer(7),)),
        # host 7 is cut off, and cannot say so: one alert, since those that it misses are reached
        Case(
            sessions(40, lambda here, there: "1x2 0x9" if 7 in (here, there) else "1x11"),
            6,
            (peer(7),),
        ),
        Case(sessions(2, lambda here, there: "1x2 0x9"), 6, (peer(0), peer(1))),
        Case(sessions(3, lambda here, there: "1x2 0x1 1x9"), 6),
        Case(sessions(40, lambda here, there: "0x9" if (here, there) == (3, 7) else "1x9"), 6),
    ),
    "MrcdPeersMissing": (
        Case(
            sessions(40, lambda here, there: "0x9" if (here, there) == (3, 7) else "1x9"),
            6,
            ({"instance": "h3"},),
        ),
        Case(
            sessions(40, lambda here, there: "1x2 0x9" if 7 in (here, there) else "1x11"),
            6,
            ({"instance": "h7"},),
        ),
        Case(sessions(40, lambda here, there: "1x2 0x9" if there == 7 else "1x11"), 6),
    ),
    "MrcdInsecure": (
        Case(one("mrcd_secured", "0x70"), 65, (HOST,)),
        Case(one("mrcd_secured", "1x70"), 65),
    ),
    "MrcdQpsFailed": (
        Case(one("mrcd_qps_failed", "0x2 4x9"), 6, (HOST,)),
        Case(one("mrcd_qps_failed", "0x2 4x0 0x9"), 6),
    ),
    "MrcdForged": (
        Case(
            one("mrcd_drops_total", "0+600x15", 'reason="tag"'),
            12,
            ({**HOST_ONLY, "reason": "tag"},),
        ),
        Case(one("mrcd_drops_total", "0+6x15", 'reason="replay"'), 12),
    ),
    "MrcdPlaneSwallows": (
        Case(planes("mrcd_plane_swallowed_peers", "0x9", "0x2 3x7"), 6, (plane(1),)),
        Case(planes("mrcd_plane_swallowed_peers", "0x9", "0x2 3x0 0x7"), 6),
    ),
    "MrcdCellsLost": (
        Case(
            one("mrcd_peer_cells_lost", "1x12", 'peer="h2"')
            | one("mrcd_peer_cells_lost", "0x12", 'peer="h3"'),
            9,
            (HOST_ONLY,),
        ),
        Case(one("mrcd_peer_cells_lost", "1x3 0x9", 'peer="h2"'), 9),
    ),
    "MrcdPeerPlaneSlow": (
        Case(
            one("mrcd_peer_plane_share_ratio", "0.25x20", 'peer="h2",plane="1"')
            | one("mrcd_peer_plane_share_ratio", "1x20", 'peer="h2",plane="0"')
            | one("mrcd_peer_plane_usable", "1x20", 'peer="h2",plane="1"')
            | one("mrcd_peer_plane_usable", "1x20", 'peer="h2",plane="0"'),
            15,
            ({**HOST, "peer": "h2", "plane": "1"},),
        ),
        Case(
            one("mrcd_peer_plane_share_ratio", "0.25x20", 'peer="h2",plane="1"')
            | one("mrcd_peer_plane_usable", "0x20", 'peer="h2",plane="1"'),
            15,
        ),
    ),
    "MrcdPathsBad": (
        Case(
            one("mrcd_paths", "60x20", 'plane="0",state="GOOD"')
            | one("mrcd_paths", "40x20", 'plane="0",state="ASSUMED_BAD"')
            | planes("mrcd_plane_usable", "1x20"),
            10,
            ({**HOST_ONLY, "plane": "0"},),
        ),
        Case(
            one("mrcd_paths", "90x20", 'plane="0",state="GOOD"')
            | one("mrcd_paths", "10x20", 'plane="0",state="ASSUMED_BAD"')
            | planes("mrcd_plane_usable", "1x20"),
            10,
        ),
        Case(
            one("mrcd_paths", "0x20", 'plane="0",state="GOOD"')
            | one("mrcd_paths", "9x20", 'plane="0",state="ASSUMED_BAD"')
            | planes("mrcd_plane_usable", "0x20"),
            10,
        ),
    ),
    "MrcdFabricFault": (
        Case(
            one("mrcd_faults", "0x2 1x9", 'kind="loss"')
            | one("mrcd_faults", "0x11", 'kind="dead"'),
            6,
            ({**HOST_ONLY, "kind": "loss"},),
        ),
        Case(one("mrcd_faults", "0x9", 'kind="loss"'), 6),
    ),
    "MrcdDataLost": (
        Case(one("mrcd_hole_skipped_total", "5x3 9x4"), 6, (HOST,)),
        Case(one("mrcd_hole_skipped_total", "5x9"), 6),
    ),
    "MrcdRetransmissions": (
        Case(
            one("mrcd_retransmissions_total", "0+3000x30", 'rule="fifo"')
            | one("mrcd_retransmissions_total", "0+3000x30", 'rule="guard"')
            | one("mrcd_tx_packets_total", "0+100000x30"),
            20,
            (HOST_ONLY,),
        ),
        Case(
            one("mrcd_retransmissions_total", "0+1000x30", 'rule="fifo"')
            | one("mrcd_tx_packets_total", "0+100000x30"),
            20,
        ),
        Case(  # a large share of very little
            one("mrcd_retransmissions_total", "0+10x30", 'rule="fifo"')
            | one("mrcd_tx_packets_total", "0+20x30"),
            20,
        ),
    ),
    "MrcdRingFull": (
        Case(
            one("mrcd_ring_slots_used", "7000x9", 'ring="tx"')
            | one("mrcd_ring_slots", "8192x9", 'ring="tx"'),
            5,
            ({**HOST, "ring": "tx"},),
        ),
        Case(
            one("mrcd_ring_slots_used", "4000x9", 'ring="tx"')
            | one("mrcd_ring_slots", "8192x9", 'ring="tx"'),
            5,
        ),
    ),
    "MrcdDropsForWantOfRoom": (
        Case(
            one("mrcd_drops_total", "0+600x30", 'reason="window"')
            | one("mrcd_drops_total", "0x30", 'reason="ring"'),
            20,
            ({**HOST_ONLY, "reason": "window"},),
        ),
        Case(one("mrcd_drops_total", "0+600x30", 'reason="no_peer"'), 20),
        Case(one("mrcd_drops_total", "0+6x30", 'reason="window"'), 20),
    ),
    "MrcdNoPath": (
        Case(
            one("mrcd_drops_total", "0x3 1+1x20", 'reason="no_path"'),
            10,
            ({**HOST, "reason": "no_path"},),
        ),
        Case(one("mrcd_drops_total", "5x20", 'reason="no_path"'), 10),
    ),
    "MrcdDamage": (
        Case(
            one("mrcd_drops_total", "0+60x20", 'reason="icrc"'), 15, ({**HOST, "reason": "icrc"},)
        ),
        Case(one("mrcd_drops_total", "7x20", 'reason="icrc"'), 15),
    ),
    "MrcdEventsLost": (
        Case(one("mrcd_event_lost_total", "5x3 9x4"), 6, (HOST,)),
        Case(one("mrcd_event_lost_total", "5x9"), 6),
    ),
    "MrcdForeignPackets": (
        Case(
            one("mrcd_drops_total", "0+600x30", 'reason="sid"'),
            20,
            ({**HOST_ONLY, "reason": "sid"},),
        ),
        Case(one("mrcd_drops_total", "0+600x30", 'reason="early"'), 20),
    ),
}
