# SPDX-License-Identifier: GPL-2.0-only
"""Run tshark with the project's dissector."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "wireshark" / "mrc.lua"
SOURCE = SCRIPT.read_text()
FIELDS = [f"mrc.{name}" for name in re.findall(r'^field\("\w+", "([\w.]+)"', SOURCE, re.M)]
EXPERTS = re.findall(r'ProtoExpert\.new\(\s*"([\w.]+)"', SOURCE)
Row = dict[str, str]


def tshark(
    frames: Sequence[bytes], folder: Path, *options: str, fields: Sequence[str] = ()
) -> list[Row]:
    """Return the fields that tshark finds in each of these Ethernet frames."""
    program = shutil.which("tshark")
    assert program is not None, "tshark is not installed: run make setup"
    file = folder / "frames.pcap"
    records = (struct.pack("=IIII", 0, 0, len(each), len(each)) + each for each in frames)
    file.write_bytes(struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + b"".join(records))
    wanted = [*FIELDS, *EXPERTS, "_ws.col.Info", "_ws.lua.error", *fields]
    command = [program, "-n", "-X", f"lua_script:{SCRIPT}", "-r", str(file), "-T", "fields"]
    command += [part for name in wanted for part in ("-e", name)] + ["-E", "occurrence=f", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr
    rows = [dict(zip(wanted, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]
    assert len(rows) == len(frames)
    assert [row["_ws.lua.error"] for row in rows if row["_ws.lua.error"]] == []
    return [{name: value for name, value in row.items() if value} for row in rows]
