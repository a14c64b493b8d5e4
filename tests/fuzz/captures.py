# SPDX-License-Identifier: GPL-2.0-only
"""Records of a capture: heads are the programs', the packets behind them anybody's."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path

from cli.capture.packets import Packets, comment, line
from cli.capture.pcapng import Writer
from mrcd.model import CaptureInfo, CapturePeer
from mrcd.wire.abi import ABI, CAPTURE
from mrcd.wire.packet import WIRE
from rigs.oracle import vector

VECTORS = Path(__file__).parents[1] / "vectors"
ENCAPS = (
    WIRE.MRC_ENCAP_FULL, WIRE.MRC_ENCAP_REDUCED, WIRE.MRC_ENCAP_ECMP6, WIRE.MRC_ENCAP_ECMP4,
)  # fmt: skip
KINDS = (CAPTURE.MRC_CAPTURE_TX, CAPTURE.MRC_CAPTURE_RX, CAPTURE.MRC_CAPTURE_OUTCOME)
WHYS = (CAPTURE.MRC_CAPTURE_PASSED, ABI.MRC_C_RX_PACKETS, ABI.MRC_C_TX_PACKETS)
NONE = CAPTURE.MRC_CAPTURE_NONE
RECORD = CAPTURE.structs["mrc_capture"]
_SETTING = struct.Struct("=BBBBBH")
_BLOCK = struct.Struct("=II")


def _info(setting: int) -> CaptureInfo:
    port = WIRE.MRC_CELL_PORT_DEFAULT if setting & 4 else None
    return CaptureInfo(
        host="h1", encap=ENCAPS[setting & 3], udp_port=WIRE.MRC_UDP_PORT_DEFAULT, cell_port=port,
        interfaces=["plane0", "plane1"], peers=[CapturePeer(index=0, name="h2")], qps_per_peer=16,
    )  # fmt: skip


def check(data: bytes) -> None:
    """Read records that are packed one behind the other, and write them in both forms."""
    if len(data) < 1:
        return
    info = _info(data[0])
    packets, at, count = Packets(info, 10), 1, 0
    while at + _SETTING.size <= len(data):
        kind, why, plane, peer, key, length = _SETTING.unpack_from(data, at)
        at += _SETTING.size
        body = data[at : at + (length & 0x1FF)]
        at += len(body)
        head = RECORD.pack(
            time_ns=at << 20, length=length, key=key, peer=peer if peer < 4 else NONE,
            qp=peer, why=WHYS[why % 3] if why < 128 else why, plane=plane, kind=KINDS[kind % 3],
        )  # fmt: skip
        packets.add([head + body])
        count += KINDS[kind % 3] != CAPTURE.MRC_CAPTURE_OUTCOME
    file = io.BytesIO()
    writer = Writer(file, [(name, "") for name in info.interfaces], 4096, "mrcctl", "")
    found = list(packets.release())
    for packet in found:
        assert "\n" not in line(packet)
        line(packet).encode()
        if packet.about.plane < 2:
            about = packet.about
            writer.write(
                about.plane, about.time_ns, packet.data, about.length, about.direction,
                comment(about),
            )  # fmt: skip
    writer.finish(0, 1, [0, 0])
    assert len(found) == count
    _check_blocks(file.getvalue())


def _check_blocks(text: bytes) -> None:
    """Assert that the file is a chain of blocks that say their lengths at both ends."""
    at = 0
    while at < len(text):
        _kind, length = _BLOCK.unpack_from(text, at)
        assert length % 4 == 0
        assert text[at + length - 4 : at + length] == length.to_bytes(4, "little")
        at += length
    assert at == len(text)


def seeds() -> Iterator[bytes]:
    """Yield each golden packet, as each kind of fabric has it."""
    for path in sorted(VECTORS.glob("*.hex")):
        frame = vector(path.stem)[:511]
        for setting in range(8):
            first = _SETTING.pack(1, 0, 1, 0, 7, len(frame)) + frame
            yield bytes([setting]) + first + _SETTING.pack(2, 1, 1, 0, 7, 0)
