# SPDX-License-Identifier: GPL-2.0-only
"""Load the programs at the ports of a lab's switches (bpf/lab_port.c).

They are compiled once on a machine, by a process of its own, and kept beside the data path's; a
package brings them. A program gets its numbers when it is loaded, which takes a fraction of a
millisecond, and replacing one program by another is atomic.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from cli.lab import state
from cli.lab.state import LabFailed
from mrcd.datapath import bytecode, loader
from mrcd.datapath.bytecode import Bytecode
from mrcd.linux import bpf
from mrcd.wire.sources import bpf_dir

PROGRAMS = ("lab_fault", "lab_mark", "lab_trim", "lab_spread", "lab_pass")
MAP = "lab_ports"
FIELDS = (
    "busy_until", "ps_per_byte", "some", "all", "full", "marked",
    "first_until", "first_full", "cut_as", "trimmed", "dropped",
)  # fmt: skip
"""The members of struct lab_port, 64 bits each."""
ENTRY = struct.Struct(f"={len(FIELDS)}Q")
_PLACE = re.compile(r"^#define LAB_(\w+)_PLACE (\d+)", re.MULTILINE)


def load(name: str, ports: int | None = None, **numbers: int) -> int:
    """Load a program and return its file descriptor.

    ports: the map of ports, for programs that have one. numbers: those that the source has places
    for, in lower case; others are 0. Raises BpfError with the end of the verifier's log.
    """
    return verified(name, ports, **numbers)[0]


def verified(name: str, ports: int | None = None, **numbers: int) -> tuple[int, str]:
    """Load a program; return its file descriptor and the verifier's figures."""
    places = _places()
    values = dict.fromkeys(places.values(), 0) | {places[key]: n for key, n in numbers.items()}
    maps = {} if ports is None else {MAP: ports}
    code = bytecode.instructions(_code(), name, maps, values)
    kind = bpf.PROG_TYPE_XDP if name == "lab_pass" else bpf.PROG_TYPE_SCHED_CLS
    flags = bpf.F_XDP_HAS_FRAGS if name == "lab_pass" else 0
    return bpf.load_program(kind, code, name=name, flags=flags)


def create_ports(count: int) -> int:
    """Create a map of ports and return its file descriptor."""
    code = _code()
    (size,) = (each.description.value_size for each in code.maps if each.name == MAP)
    assert size == ENTRY.size, "FIELDS are those of struct lab_port"
    return bytecode.make_maps(code, {MAP}, {MAP: count})[MAP]


def entry(**values: int) -> bytes:
    """Return a port's entry of the map; what is not given is 0."""
    return ENTRY.pack(*(values.get(name, 0) for name in FIELDS))


def read(held: bytes) -> dict[str, int]:
    """Return the members of an entry by name."""
    return dict(zip(FIELDS, ENTRY.unpack(held), strict=True))


def compile_into(folder: Path) -> None:
    """Compile the programs and keep them in a folder; raise LabFailed if that fails."""
    command = [sys.executable, "-W", "ignore", "-m", "mrcd.datapath.compiler"]
    done = subprocess.run(
        [*command, str(folder), str(_source()), *PROGRAMS, "--", MAP],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LabFailed(f"the programs of switch ports cannot be compiled: {done.stderr.strip()}")


def key() -> str:
    """Return the name under which the compiled programs are kept."""
    return bytecode.key_of(_source().read_text(), [])


def _source() -> Path:
    return bpf_dir() / "lab_port.c"


@lru_cache(maxsize=1)
def _places() -> Mapping[str, int]:
    """Return the numbers that stand for others in the programs, by name."""
    return {name.lower(): int(number) for name, number in _PLACE.findall(_source().read_text())}


@lru_cache(maxsize=1)
def _code() -> Bytecode:
    kept, cache = key(), state.CACHE_DIR
    found = bytecode.read(loader.shipped(), kept) or bytecode.read(cache, kept)
    if found is None:
        with bytecode.alone(cache, kept):
            if bytecode.read(cache, kept) is None:
                compile_into(cache)
            found = bytecode.read(cache, kept)
    if found is None:
        raise LabFailed(f"{cache}: what was compiled cannot be read again")
    return found


if __name__ == "__main__":
    compile_into(Path(sys.argv[1]))
