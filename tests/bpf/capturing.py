# SPDX-License-Identifier: GPL-2.0-only
"""A rig whose programs record packets, read back as `mrcctl capture` reads them."""

from __future__ import annotations

from cli.capture.packets import Packet, Packets
from mrcd.datapath.capture import _FIRST, Wanted
from mrcd.linux import bpf, bpfmap
from mrcd.linux.ringbuf import RingBuffer
from mrcd.model import CaptureInfo, CapturePeer
from mrcd.wire.abi import CAPTURE
from rigs.rig import PLANES, QPS_PER_PEER, Rig

STATE = CAPTURE.structs["mrc_capturing"]
_HEAD = CAPTURE.structs["mrc_capture"]


class CapturingRig:
    """A rig that runs the programs of a capture; `ordinary` are its programs without one."""

    rig: Rig

    def __init__(self, rig: Rig, ordinary: dict[str, int], maps: dict[str, int]) -> None:
        self.rig = rig
        self.ordinary = ordinary
        self.maps = maps
        self.ring = RingBuffer(maps["captures"], bpfmap.described(maps["captures"]).entries)
        self.ring.skip()
        config = rig.config
        self.info = CaptureInfo(
            host=config.host.name,
            encap=config.fabric.routing.code,
            udp_port=config.transport.udp_port,
            cell_port=config.transport.cell_port if rig.dp.sizes.cell_udp else None,
            interfaces=[f"plane{k}" for k in range(PLANES)],
            peers=[CapturePeer(index=i, name=name) for name, i in rig.table.peers.indices.items()],
            qps_per_peer=QPS_PER_PEER,
        )
        self.want()

    def want(self, wanted: Wanted | None = None) -> None:
        """Record the wanted packets from now on, all by default; reset the counts of lost ones."""
        bpf.update(self.maps["capturing"], _FIRST, self._packed(wanted or Wanted(survey=True)))

    def _packed(self, wanted: Wanted) -> bytes:
        return wanted.packed(lambda peer: self.rig.table.peers.indices[peer])

    def lost(self) -> tuple[int, ...]:
        """Return the number of packets that found no room in the ring, by plane."""
        raw = bpf.lookup(self.maps["capturing"], _FIRST, STATE.size)
        assert raw is not None
        return STATE.unpack_array(raw, "lost")

    def seen(self) -> list[Packet]:
        """Return the packets recorded since the last call, ordered by time."""
        packets = Packets(self.info, 0)
        packets.add(self.ring.take())
        return list(packets.release())

    def record(self) -> tuple[dict[str, int], bytes]:
        """Return the only record since the last call: its head, and the packet's bytes."""
        (record,) = self.ring.take()
        return _HEAD.unpack(record), record[_HEAD.size :]

    def close(self) -> None:
        """Stop recording and close the ring."""
        bpf.update(self.maps["capturing"], _FIRST, bytes(STATE.size))
        self.ring.close()
