# SPDX-License-Identifier: GPL-2.0-only
"""The one entry of the map `host`: what the programs know of this host."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from socket import htons

from mrcd.config import redundant as kinds
from mrcd.config.config import Config
from mrcd.datapath import tuning
from mrcd.datapath.datapath import Datapath
from mrcd.datapath.mrc0 import Ends
from mrcd.fabric import underlay
from mrcd.handshake.sealing import mac1_key
from mrcd.wire.abi import ABI

_HOST = ABI.structs["mrc_host"]
_SECOND_NS = 1_000_000_000


def planes_told(datapath: Datapath) -> int:
    """Return the mask of planes that the programs use now; 0 in new maps."""
    return int(datapath.read("host", 0, _HOST)["plane_mask"])


def cell_bytes(datapath: Datapath) -> int:
    """Return the longest cell that the programs send now; 0 in new maps."""
    return int(datapath.read("host", 0, _HOST)["cell_bytes"])


def congestion(config: Config, mbps: int) -> dict[str, int]:
    """Return the members that congestion control needs.

    A plane that serves carries `mbps` in the mean (0: unknown).

    `cc_target_ns` is the delay that a sender alone may cause, 0 without congestion control, and
    `cc_rate` what the planes that serve carry together, in bytes a millisecond.
    """
    wanted = config.transport.congestion_control
    known = mbps or tuning.CC_RATE_MBPS
    packet_ns = config.fabric.mtu * 8000 // known
    target_ns = max(tuning.CC_TARGET_NS, tuning.CC_TARGET_PACKETS * packet_ns)
    if wanted == "off" or (wanted == "auto" and not mbps):
        target_ns = 0
    return {"cc_target_ns": target_ns, "cc_rate": len(config.serving) * known * 125}


def redundant(named: Sequence[str]) -> dict[str, int | tuple[int, ...]]:
    """Return the members that say which packets are sent on two planes at once."""
    ports, dscps = kinds.split(named)
    return {
        "redundant": int(bool(named)),
        "redundant_dscps": sum(1 << dscp for dscp in dscps),
        "redundant_ports": tuple(map(htons, ports + [0] * (kinds.MOST - len(ports)))),
    }


def pace(config: Config, qps: int) -> dict[str, int]:
    """Return the members that say how many probes the clock may send, with room for `qps` QPs.

    Each plane of each QP is probed once in PROBE_IDLE_NS, if half of the budget allows.
    """
    pps = config.transport.probe_pps
    turns = max(1, qps) * config.fabric.planes
    return {
        "probe_gap_ns": _SECOND_NS // pps,
        "probe_most": max(1, pps * tuning.PROBE_CREDIT_NS // _SECOND_NS),
        "idle_gap_ns": max(2 * _SECOND_NS // pps, tuning.PROBE_IDLE_NS // turns),
    }


def _survey_key(datapath: Datapath) -> tuple[int, ...]:
    """Return the key of survey probes' tags, two words: random in new maps, the same ever after."""
    words = _HOST.unpack_array(datapath.read_raw("host", 0, _HOST.size), "survey_key")
    return words if any(words) else struct.unpack("=QQ", os.urandom(16))


def _mac1_key(config: Config) -> tuple[int, ...]:
    """Return the key of mac1, two words; zeros without keys."""
    ring = config.keyring
    return (0, 0) if ring is None else struct.unpack("=QQ", mac1_key(ring.public))


def write(
    datapath: Datapath,
    config: Config,
    ends: Ends,
    *,
    mac: bytes,
    planes: int,
    mbps: int,
    cells: int,
) -> None:
    """Write the entry.

    `mac` is the address of mrc0, `planes` the mask of planes to use, `mbps` what a plane carries
    in the mean (0: unknown), `cells` the longest cell in bytes. All other members come from the
    configuration and from mrcd/datapath/tuning.py.
    """
    fabric, transport = config.fabric, config.transport
    datapath.write(
        "host",
        0,
        _HOST,
        link_ifindex=ends.link,
        planes=fabric.planes,
        qps=max(1, datapath.sizes.qps),
        plane_mask=planes,
        standby=config.standby,
        **redundant(config.mrc0.redundant),
        block=int.from_bytes(fabric.block.network_address.packed[:4], "little"),
        udp_port=htons(transport.udp_port),
        control_port=htons(transport.control_port),
        cell_port=htons(transport.cell_port),
        reo_min_ns=tuning.REO_MIN_NS,
        reo_max_ns=tuning.REO_MAX_NS,
        fifo_slack_ns=tuning.FIFO_SLACK_NS,
        rto_min_ns=tuning.RTO_MIN_NS,
        hole_timeout_ns=tuning.HOLE_TIMEOUT_NS,
        sack_packets=tuning.SACK_PACKETS,
        sack_bytes=tuning.SACK_BYTES,
        sack_gap_ns=tuning.SACK_GAP_NS,
        queue_target_ns=tuning.QUEUE_TARGET_NS,
        probe_interval_ns=tuning.PROBE_INTERVAL_NS,
        probe_idle_ns=tuning.PROBE_IDLE_NS,
        hold_base_ns=tuning.HOLD_BASE_NS,
        hold_max_ns=tuning.HOLD_MAX_NS,
        judge_ns=tuning.JUDGE_NS,
        judge_slack_ns=tuning.JUDGE_SLACK_NS,
        slow_slack_ns=tuning.SLOW_SLACK_NS,
        relays=int(config.keys.forward),
        cell_block=int.from_bytes(fabric.underlay6.network_address.packed[:4], "little"),
        lower_ifindex=ends.lower,
        cut_ifindex=ends.cut,
        cut_back_ifindex=ends.cut_back,
        park_ifindex=ends.cut_back,
        beat_ifindex=ends.beat,
        rest_ifindex=ends.rest,
        **pace(config, datapath.sizes.qps),
        cell_bytes=cells,
        circle_ns=tuning.CIRCLE_NS,
        solicit_ns=tuning.SOLICIT_NS,
        **congestion(config, mbps),
        retry_limit=transport.retry_limit,
        retry_s=transport.retry_s,
        datagram_max_ms=transport.datagram_max_ms,
        inner=1,
        keyed=int(config.keyring is not None),
        survey_key=_survey_key(datapath),
        mac1_key=_mac1_key(config),
        hops_min=underlay.of(fabric).hops_min,
        link_mac=tuple(mac),
        dscp_data=fabric.classes.trimmable,
        dscp_again=fabric.classes.retransmit,
        dscp_whole=fabric.classes.no_trim,
        dscp_control=fabric.classes.control,
        dscp_trimmed=fabric.classes.trimmed,
        dscp_lasthop=fabric.classes.trimmed_lasthop,
    )
