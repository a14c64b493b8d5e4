# SPDX-License-Identifier: GPL-2.0-only
"""Made-up snapshots, like those that a daemon takes."""

from __future__ import annotations

from mrcd.datapath.census import Paths, PeerCount, PlaneCount
from mrcd.handshake.channel import Drop
from mrcd.report.metrics import MAPS, PeerSample, PlaneState, Snapshot
from mrcd.wire.abi import COUNTERS


def plane_state(index: int) -> PlaneState:
    return PlaneState(
        index=index,
        interface=f"plane{index}",
        carrier=True,
        usable=index != 1,
        drained=index == 1,
        sick=False,
        unreached=3 * (index == 2),
        swallowed=2 * (index == 3),
        tx_packets=1000 + index,
        tx_bytes=9_000_000,
        rx_packets=500,
        rx_bytes=50_000,
    )


def peer_sample(index: int, planes: int) -> PeerSample:
    return PeerSample(
        name=f"h{index + 2}",
        state=("established", "connecting", "silent")[index % 3],
        heard_age_s=None if index % 3 == 1 else 0.25,
        mtu=8872,
        count=PeerCount(
            ready=4,
            tx_packets=100 + index,
            rx_packets=200,
            retransmits=3,
            outstanding=10,
            window=8192,
            kept=7,
            waiting=2,
            paths=Paths(good=500, skip=1, assumed_bad=10, denied=1, in_use=400, slow=2),
        ),
        planes=[
            PlaneCount(open=True, share=0.5, srtt_ns=0 if plane else 81_500, loss=0.01, marked=0.25)
            for plane in range(planes)
        ],
        ports=0b1101 & (1 << planes) - 1,
        key_age_s=None if index % 3 == 1 else 61.5,
        cells_lost=index == 2,
    )


def snapshot(peers: int = 3, planes: int = 4) -> Snapshot:
    """Return a snapshot. Plane 1 is drained, and the value of counter i is i.

    Every third peer is silent, and another third was never heard.
    """
    return Snapshot(
        host="h1",
        version="0.1.0",
        routing="srv6",
        xdp="native",
        tc="tcx",
        start_time_s=1.7e9,
        degraded=1,
        clock_runs=12345,
        ring_slots=8192,
        counters={name: index for index, name, _meaning in COUNTERS},
        planes=[plane_state(index) for index in range(planes)],
        plane_paths=[Paths(good=100, skip=plane, in_use=90) for plane in range(planes)],
        peers=[peer_sample(index, planes) for index in range(peers)],
        used=dict.fromkeys(MAPS, peers),
        capacity=dict.fromkeys(MAPS, 2 * peers),
        faults={"loss": 2},
        survey_hosts_heard=2,
        denied_rules=1,
        secured=True,
        admitted=1,
        channel_drops={why.name.lower(): index for index, why in enumerate(Drop)},
    )
