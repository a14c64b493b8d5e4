# SPDX-License-Identifier: GPL-2.0-only
"""Test the pcapng writer: its blocks are parsed by hand and read by tshark."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from cli.capture.pcapng import Writer, block
from rigs.oracle import vector
from tests.tshark import SCRIPT

TIME_NS = 1_763_000_000_123_456_789
PLANES = [("plane0", "plane 0 of h1"), ("plane1", "plane 1 of h1")]


def blocks(data: bytes) -> list[tuple[int, bytes]]:
    """Return the type and body of each block, and check that both of its lengths agree."""
    found = []
    while data:
        kind, length = struct.unpack_from("=II", data)
        assert length % 4 == 0
        assert struct.unpack_from("=I", data, length - 4) == (length,)
        found.append((kind, data[8 : length - 4]))
        data = data[length:]
    return found


def options(data: bytes) -> dict[int, bytes]:
    found = {}
    while data:
        code, length = struct.unpack_from("=HH", data)
        if code == 0:
            assert data == bytes(4)
            break
        found[code] = data[4 : 4 + length]
        data = data[4 + (length + 3) // 4 * 4 :]
    return found


@pytest.fixture
def file() -> io.BytesIO:
    return io.BytesIO()


@pytest.fixture
def writer(file: io.BytesIO) -> Writer:
    return Writer(file, PLANES, 1000, "mrcctl 0.1.0", "captured by mrcd on h1")


def test_section_and_interfaces(file: io.BytesIO, writer: Writer) -> None:
    (section, head), *interfaces = blocks(file.getvalue())
    assert section == 0x0A0D0D0A
    assert struct.unpack_from("=IHHQ", head) == (0x1A2B3C4D, 1, 0, (1 << 64) - 1)
    assert options(head[16:]) == {1: b"captured by mrcd on h1", 4: b"mrcctl 0.1.0"}
    assert [kind for kind, _ in interfaces] == [1, 1]
    for (_kind, body), (name, description) in zip(interfaces, PLANES, strict=True):
        assert struct.unpack_from("=HHI", body) == (1, 0, 1000)
        assert options(body[8:]) == {2: name.encode(), 3: description.encode(), 9: b"\x09"}


@pytest.mark.parametrize("size", [14, 15, 16, 17])
def test_packet(file: io.BytesIO, writer: Writer, size: int) -> None:
    data = bytes(range(size))
    writer.write(1, TIME_NS, data, 1500, "tx", "path plane 1")
    kind, body = blocks(file.getvalue())[-1]
    assert kind == 6
    interface, high, low, kept, length = struct.unpack_from("=IIIII", body)
    assert (interface, high << 32 | low, kept, length) == (1, TIME_NS, size, 1500)
    assert body[20 : 20 + size] == data
    behind = body[20 + (size + 3) // 4 * 4 :]
    assert options(behind) == {1: b"path plane 1", 2: struct.pack("=I", 2)}


def test_statistics(file: io.BytesIO, writer: Writer) -> None:
    for _ in range(3):
        writer.write(1, TIME_NS, b"x" * 20, 20, "rx", "")
    writer.finish(TIME_NS - 5, TIME_NS, [0, 4])
    (first, one), (second, two) = blocks(file.getvalue())[-2:]
    assert (first, second) == (5, 5)
    found = [options(body[12:]) for body in (one, two)]
    assert [struct.unpack("=Q", each[4])[0] for each in found] == [0, 7]
    assert [struct.unpack("=Q", each[5])[0] for each in found] == [0, 4]
    high, low = struct.unpack("=II", found[0][2])
    assert high << 32 | low == TIME_NS - 5


def test_block_without_options() -> None:
    assert block(9, b"four", []) == struct.pack("=II", 9, 16) + b"four" + struct.pack("=I", 16)


def test_tshark_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "some.pcapng"
    frames = [vector("data-v4"), vector("sack"), vector("data-rtx-ackreq")]
    with path.open("wb") as out:
        writer = Writer(out, PLANES, 262144, "mrcctl 0.1.0", "captured by mrcd on h1")
        for number, frame in enumerate(frames):
            kept = frame[:100] if number == 1 else frame
            writer.write(
                number % 2, TIME_NS + number, kept, len(frame), "tx" if number else "rx",
                f"path plane {number}",
            )  # fmt: skip
        writer.finish(TIME_NS, TIME_NS + 9, [0, 0])
    program = shutil.which("tshark")
    assert program is not None, "tshark is not installed: run make setup"
    fields = ["frame.comment", "frame.interface_name", "frame.time_epoch", "frame.len",
              "frame.cap_len", "frame.packet_flags_direction", "mrc.bth.opcode"]  # fmt: skip
    done = subprocess.run(
        [program, "-n", "-X", f"lua_script:{SCRIPT}", "-r", str(path), "-T", "fields",
         *(part for field in fields for part in ("-e", field))],
        capture_output=True, text=True, check=True, timeout=50,
    )  # fmt: skip
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["path plane 0", "path plane 1", "path plane 2"]
    assert [row[1] for row in rows] == ["plane0", "plane1", "plane0"]
    assert rows[0][2].endswith(".123456789")
    assert [int(row[3]) for row in rows] == [len(frame) for frame in frames]
    assert int(rows[1][4]) == 100
    assert [int(row[5], 0) for row in rows] == [1, 2, 2]
    assert int(rows[0][6], 0) == 0xCA
