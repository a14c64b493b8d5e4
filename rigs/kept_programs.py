# SPDX-License-Identifier: GPL-2.0-only
"""Give the kernel all programs that are kept, and count what its verifier walks in each.

    python -m rigs.kept_programs [--files] [FOLDER]    (as root)

compiles into FOLDER what is not there yet, and prints a report as JSON. With --files, the report
lists the files that this process needed, so that the same can run on a machine that has no others.
Without FOLDER nothing is compiled: the programs are those that an installed package has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from cli.lab import portprograms
from cli.lab.state import CACHE_DIR
from mrcd.datapath import bytecode, loader, precompile
from mrcd.datapath.bytecode import Bytecode
from mrcd.datapath.sizes import Sizes
from mrcd.fabric.routing import ENCAP_ECMP4, ENCAP_ECMP6, ENCAP_FULL
from mrcd.linux import bpf, kernel
from mrcd.wire.abi import ABI

WALKED_MAX = 700_000
"""The most instructions that a verifier may walk in a program. The kernel refuses a million."""
PROGRAMS = (*loader.PROGRAMS, *portprograms.PROGRAMS)
_ENCAPS = {ENCAP_FULL: "uSIDs", ENCAP_ECMP6: "IPv6", ENCAP_ECMP4: "IPv4"}
_EVS = 128
"""EVs of a plane in a QP's set, which the loader writes into programs: the default, doubled."""


@dataclass(slots=True)
class Report:
    """What a kernel said of the programs.

    walked: instructions walked in each program, at most. where: for which configuration that is.
    refused: the end of the verifier's log, by configuration. files: those that were needed.
    """

    kernel: str
    walked: dict[str, int] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    loads: int = 0
    files: list[str] = field(default_factory=list)

    def count(self, program: str, where: str, verifier: str) -> None:
        """Count a program that was taken."""
        found = re.search(r"processed (\d+) insns", verifier)
        assert found, f"{program}: the verifier says {verifier!r}"
        self.loads += 1
        if int(found[1]) > self.walked.get(program, 0):
            self.walked[program] = int(found[1])
            self.where[program] = where

    def faults(self) -> list[str]:
        """Say what is wrong: a program that was refused, has not been seen, or walks too far."""
        said = [f"{where}: {log}" for where, log in self.refused.items()]
        said += [f"{name} was not loaded" for name in PROGRAMS if name not in self.walked]
        said += [
            f"{name} ({self.where[name]}): {walked:,} instructions walked,"
            f" more than the {WALKED_MAX:,} allowed of the kernel's million"
            for name, walked in self.walked.items()
            if walked > WALKED_MAX
        ]
        return [f"Linux {self.kernel}: {fault}" for fault in said]


def kept() -> Iterator[Sizes]:
    """Yield what is compiled in: what the package brings, and the same for native XDP.

    A host with `xdp = "native"` compiles that itself, and keeps it. Captures use the programs of
    tc.
    """
    for sizes in precompile.usual():
        yield sizes
        if not sizes.capture:
            yield replace(sizes, xdp=True)


def named(sizes: Sizes) -> str:
    """Return a name of a configuration, for a report."""
    words = [f"MTU {sizes.mtu}", _ENCAPS[sizes.encap]]
    words += [word for word in ("xdp", "capture") if getattr(sizes, word)]
    return ", ".join(words)


def compile_all(folder: Path, wanted: Sequence[Sizes]) -> None:
    """Compile into a folder what is not there, as many at a time as there are CPUs."""
    text = loader.source()
    missing = [
        sizes
        for sizes in wanted
        if bytecode.read(folder, bytecode.key_of(text, sizes.defines())) is None
    ]
    if bytecode.read(folder, portprograms.key()) is None:
        portprograms.compile_into(folder)
    if missing:
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(partial(precompile.compile_into, folder, CACHE_DIR), missing))


def verified(folder: Path, wanted: Sequence[Sizes]) -> Report:
    """Load the programs of these sizes from a folder; return what the verifier said.

    Each is loaded once, for the first of the configurations that have the same.
    """
    report = Report(os.uname().release)
    known: set[bytes] = set()
    text = loader.source()
    for compiled in wanted:
        code = bytecode.read(folder, bytecode.key_of(text, compiled.defines()))
        where = named(compiled)
        assert code is not None, f"{folder} has no programs for {where}"
        sizes = replace(compiled, evs=_EVS, decap=kernel.has_decap())
        new = [name for name in loader.PROGRAMS if _add(known, _identity(code, name, sizes))]
        maps = bytecode.make_maps(code, {each.name for each in code.maps}, sizes.entries())
        with ThreadPoolExecutor(loader.VERIFIED_AT_ONCE) as pool:
            said = list(pool.map(partial(_verify, code, maps, sizes), new))
        for name, (verifier, refusal) in zip(new, said, strict=True):
            if refusal:
                report.refused[f"{name}, {where}"] = refusal
            else:
                report.count(name, where, verifier)
        for fd in maps.values():
            os.close(fd)
    _verify_ports(report)
    return report


def _add(known: set[bytes], identity: bytes) -> bool:
    """Add to what is known; return whether it was new."""
    new = identity not in known
    known.add(identity)
    return new


def _identity(code: Bytecode, name: str, sizes: Sizes) -> bytes:
    """Return a digest of what the verifier sees of a program: its instructions, its kind, its maps.

    Programs of several configurations are often the same.
    """
    insns = code.programs[name]
    kind = loader._kind(name, sizes)
    places: defaultdict[int, int] = defaultdict(int)
    bytecode.pointed(insns, places)  # adds those that the instructions refer to
    maps = [code.maps[place] for place in sorted(places)]
    seen = [(each.name, replace(each.description, btf_id=0)) for each in maps]
    return hashlib.sha256(repr((name, kind, seen)).encode() + insns).digest()


def _verify(code: Bytecode, maps: Mapping[str, int], sizes: Sizes, name: str) -> tuple[str, str]:
    """Load a program, and close it; return the verifier's figures, or why it was refused."""
    numbers = {ABI.EVS_PLACE: sizes.evs, ABI.DECAP_PLACE: int(sizes.decap)}
    kind, flags = loader._kind(name, sizes)
    insns = bytecode.instructions(code, name, maps, numbers)
    try:
        fd, verifier = bpf.load_program(kind, insns, name=name, flags=flags)
    except bpf.BpfError as error:
        return "", str(error)
    os.close(fd)
    return verifier, ""


def _verify_ports(report: Report) -> None:
    """Load the programs at the ports of a lab's switches."""
    ports = portprograms.create_ports(1)
    for name in portprograms.PROGRAMS:
        try:
            fd, verifier = portprograms.verified(name, ports)
        except bpf.BpfError as error:
            report.refused[name] = str(error)
            continue
        report.count(name, "labs", verifier)
        os.close(fd)
    os.close(ports)


def files_of_this_process() -> list[str]:
    """Return the modules and shared objects that this process has loaded."""
    modules = {
        str(file)
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None))
    }
    mapped = {
        line.split(maxsplit=5)[5]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if len(line.split(maxsplit=5)) == 6
    }
    return sorted(modules | {path for path in mapped if Path(path).is_file()})


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, load, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="list the files that were needed")
    parser.add_argument("folder", type=Path, nargs="?")
    options = parser.parse_args(arguments)
    if options.folder is None:
        report = verified(loader.shipped(), list(precompile.usual()))
    else:
        wanted = list(kept())
        compile_all(options.folder, wanted)
        report = verified(options.folder, wanted)
    if options.files:
        report.files = files_of_this_process()
    print(json.dumps(asdict(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
