# SPDX-License-Identifier: GPL-2.0-only
"""Make the maps and the programs, and pin them in a bpffs.

This runs as a short-lived child process (`python -m mrcd.datapath.loader`) that loads, pins and
exits, because bcc and its compiler take some 200 MB that a daemon should not keep. bcc is not even
imported (mrcd/datapath/compiler.py) when an earlier start has kept the compiled programs
(mrcd/datapath/bytecode.py).

bcc only compiles. bpf(2) itself makes the maps and loads the programs: it accepts flags and returns
the verifier's figures (mrcd/linux/bpf.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from mrcd.datapath import bytecode, compiler, pins
from mrcd.datapath.bytecode import Bytecode
from mrcd.datapath.compiler import NoCompiler
from mrcd.datapath.sizes import Sizes as Sizes
from mrcd.linux import bpf
from mrcd.wire.abi import ABI
from mrcd.wire.sources import bpf_dir

MAPS = [
    "host",
    "planes",
    "addresses",
    "prefixes",
    "peers",
    "peer_planes",
    "relays",
    "sources",
    "balances",
    "qps",
    "txs",
    "rxs",
    "keys",
    "peer_keys",
    "replays",
    "peer_budgets",
    "net_budgets",
    "indices",
    "told",
    "tx_entries",
    "rx_entries",
    "paths",
    "loop_paths",
    "loops",
    "survey",
    "chains",
    "judge_states",
    "tails",
    "tx_ring",
    "rx_ring",
    "tx_free",
    "rx_free",
    "tx_cells",
    "rx_cells",
    "tx_cells_free",
    "rx_cells_free",
    "rooms",
    "active",
    "clock",
    "events",
    "counters",
    "counter_names",
]
CAPTURE_MAPS = ["captures", "capturing", "capture_records"]
"""Maps that only recording programs have."""
PROGRAMS = (
    "mrc_spray",
    "mrc_receive",
    "mrc_deliver",
    "mrc_cell",
    "mrc_drain",
    "mrc_solicit",
    "mrc_release",
    "mrc_refuse",
    "mrc_redundant",
    "mrc_unreachable",
    "mrc_learn",
    "mrc_probe",
    "mrc_resend",
    "mrc_beat",
    "mrc_tick",
    "mrc_idle",
    "mrc_judge",
    "mrc_control",
    "mrc_survey",
)
TAILS = {
    f"mrc_{name.removeprefix('TAIL_').lower()}": place
    for name, place in ABI.constants.items()
    if name.startswith("TAIL_") and name != "TAIL_COUNT"
}
"""Targets of tail calls, and their places in the map `tails`."""
_NICE_BESIDE_TRAFFIC = 10


VERIFIED_AT_ONCE = 4
"""Programs that the kernel verifies at once."""


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """A loaded program: its number of instructions, and the verifier's figures."""

    name: str
    instructions: int
    verifier: str
    compiled: bool = True  # by this process, not kept from an earlier start


_INCLUDE = re.compile(r'^#include "([a-z0-9_]+\.[ch])"$', re.MULTILINE)


def source() -> str:
    """Return the programs as one text, with the project's own files expanded in place.

    bcc rewrites map accesses in the main file only, so files that access maps must be part of it.
    """
    folder = bpf_dir()

    def expand(match: re.Match[str]) -> str:
        return (folder / match.group(1)).read_text()

    return _INCLUDE.sub(expand, (folder / "mrc.c").read_text())


def shipped() -> Path:
    """Return the folder of the compiled programs that a package brings; it need not exist."""
    return bpf_dir() / "compiled"


def kept(sizes: Sizes, cache: Path | None) -> bool:
    """Return whether programs of these sizes need no compiler, as far as this process can see."""
    if cache is None:
        return False
    key = bytecode.key_of(source(), sizes.compiled().defines())
    try:
        return (shipped() / key).exists() or (cache / key).exists()
    except PermissionError:  # the folder of a process that may do more
        return True


def load(
    sizes: Sizes, *, cache: Path | None = None
) -> tuple[dict[str, int], dict[str, int], list[ProgramReport]]:
    """Make maps and programs; return map descriptors, program descriptors and a report.

    Programs that were compiled before come from the folder `cache`, others are left there. Raises
    BpfError when the kernel refuses a program, RuntimeError when bcc cannot compile (usually
    because kernel headers are missing, which `make setup` installs).
    """
    return _loaded({}, sizes, cache)


def load_over(
    maps: Mapping[str, int], sizes: Sizes, *, cache: Path | None = None
) -> tuple[dict[str, int], dict[str, int], list[ProgramReport]]:
    """Load programs for existing maps; as `load`, but return the maps of a capture."""
    return _loaded(maps, sizes, cache)


def _loaded(
    there: Mapping[str, int], sizes: Sizes, cache: Path | None
) -> tuple[dict[str, int], dict[str, int], list[ProgramReport]]:
    """Load programs for the maps `there`, and make the maps that are missing."""
    text, compiled = source(), sizes.compiled()
    if cache is None:
        return given_to_kernel(compilation(text, compiled), there, sizes, compiled=True)
    key = bytecode.key_of(text, compiled.defines())
    refused: Exception | None = None
    with contextlib.ExitStack() as turn:
        code = bytecode.read(cache, key) or bytecode.read(shipped(), key)
        if code is None:
            # Daemons that start together need one compilation.
            turn.enter_context(bytecode.alone(cache, key))
            code = bytecode.read(cache, key)
        if code is not None:
            try:
                return given_to_kernel(code, there, sizes, compiled=False)
            except (bpf.BpfError, KeyError) as error:
                refused = error
                bytecode.forget(cache, key)  # this kernel's verifier must accept new ones
        try:
            code = compilation(text, compiled)
        except RuntimeError as error:
            if refused is None:
                raise
            raise RuntimeError(f"kept programs cannot be loaded: {refused}\n{error}") from refused
        result = given_to_kernel(code, there, sizes, compiled=True)
        with contextlib.suppress(OSError):  # without a cache every start compiles
            bytecode.write(cache, key, code)
    return result


def given_to_kernel(
    code: Bytecode, there: Mapping[str, int], sizes: Sizes, *, compiled: bool
) -> tuple[dict[str, int], dict[str, int], list[ProgramReport]]:
    missing = {each.name for each in code.maps} - there.keys()
    made = bytecode.make_maps(code, missing, sizes.entries())
    maps = {**there, **made}
    numbers = {ABI.EVS_PLACE: sizes.evs, ABI.DECAP_PLACE: int(sizes.decap)}
    with contextlib.ExitStack() as failed:
        for fd in made.values():
            failed.callback(os.close, fd)
        insns = {name: bytecode.instructions(code, name, maps, numbers) for name in PROGRAMS}

        def load_one(name: str) -> tuple[int, str]:
            kind, flags = _kind(name, sizes)
            loaded = bpf.load_program(kind, insns[name], name=name, flags=flags)
            failed.callback(os.close, loaded[0])
            return loaded

        with ThreadPoolExecutor(VERIFIED_AT_ONCE) as pool:  # the verifier takes most of a start
            loaded = dict(zip(insns, pool.map(load_one, insns), strict=True))
        programs = {name: fd for name, (fd, _verdict) in loaded.items()}
        if not there:
            point_tails(maps, programs)
        failed.pop_all()
    report = [
        ProgramReport(name, len(insns[name]) // 8, verdict, compiled)
        for name, (_fd, verdict) in loaded.items()
    ]
    return made, programs, report


def _kind(name: str, sizes: Sizes) -> tuple[int, int]:
    """Return the type and the flags that a program is loaded with."""
    if name == "mrc_receive" and sizes.xdp:
        return bpf.PROG_TYPE_XDP, bpf.F_XDP_HAS_FRAGS
    return bpf.PROG_TYPE_SCHED_CLS, 0


def point_tails(maps: Mapping[str, int], programs: Mapping[str, int]) -> None:
    """Make these programs the targets of tail calls."""
    for name, place in TAILS.items():
        bpf.update(maps["tails"], struct.pack("=I", place), struct.pack("=I", programs[name]))


def compilation(text: str, sizes: Sizes) -> Bytecode:
    """Compile a text with bcc; raise RuntimeError when that fails."""
    names = [*MAPS, *(CAPTURE_MAPS if sizes.capture else ())]
    try:
        return compiler.compiled(text, sizes.defines(), PROGRAMS, names)
    except NoCompiler as error:
        raise RuntimeError(
            f"the programs for this configuration (mrc0's MTU {sizes.mtu}, window {sizes.window}) "
            f"have to be compiled, and {error}, or use an MTU of 1500 or 9000 on the planes and "
            "the default mpr, for which the package brings programs"
        ) from error


def fill_rings(maps: Mapping[str, int], slots: int, cell_slots: int) -> None:
    """Mark every slot of both rings as free, those of packets and those of cells."""
    free = {"tx_free": slots, "rx_free": slots}
    free |= {"tx_cells_free": cell_slots, "rx_cells_free": cell_slots}
    for name, count in free.items():
        for slot in range(count):
            bpf.update(maps[name], None, struct.pack("=I", slot))
    room = ABI.structs["mrc_room"]
    for ring, count in ((ABI.MRC_ROOM_PACKETS, slots), (ABI.MRC_ROOM_CELLS, cell_slots)):
        bpf.update(maps["rooms"], struct.pack("=I", ring), room.pack(free=count, all=count))


def build(
    folder: Path,
    code: str,
    sizes: Sizes,
    *,
    adopt: bool,
    cache: Path | None = None,
) -> list[ProgramReport]:
    """Make and pin a layout's folder; with `adopt`, only the programs in it. Return a report."""
    if adopt:
        maps = {name: bpf.get(folder / name) for name in MAPS}
        own, programs, report = load_over(maps, sizes, cache=cache)
        target = pins.draft(pins.code(folder, code))
        for name, fd in own.items():
            bpf.pin(fd, target / name)
    else:
        maps, programs, report = load(sizes, cache=cache)
        fill_rings(maps, sizes.ring_slots, sizes.cell_slots)
        whole = pins.draft(folder)
        for name, fd in maps.items():
            bpf.pin(fd, whole / name)
        target = pins.code(whole, code)
        target.mkdir()
    for name, fd in programs.items():
        bpf.pin(fd, target / name)
    pins.complete(target if adopt else whole)
    return report


def main() -> int:
    """Run as the child process: read the order as JSON on stdin, write a report to stdout."""
    order = json.load(sys.stdin)
    with contextlib.suppress(OSError):
        # This process inherits the daemon's priority, which is above others. Beside a running data
        # path, compiling must yield to the packets.
        os.setpriority(os.PRIO_PROCESS, 0, _NICE_BESIDE_TRAFFIC if order["adopt"] else 0)
    order |= {"folder": Path(order["folder"]), "sizes": Sizes(**order["sizes"])}
    order |= {"cache": Path(order["cache"]) if order["cache"] else None}
    try:
        report = build(**order)
    except (OSError, RuntimeError) as error:
        json.dump({"error": str(error)}, sys.stdout)
        return 1
    json.dump({"programs": [asdict(entry) for entry in report]}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
