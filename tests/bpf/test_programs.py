# SPDX-License-Identifier: GPL-2.0-only
"""The programs as loaded: their sizes and layouts, and the maps that both sides share.

instructions.json holds each program's length, with mrc_receive at tc and at XDP. A change of more
than the tolerance is either a mistake (a helper inlined once more) or intended. For an intended
one, `MRC_RECORD_INSTRUCTIONS=1 pytest tests/bpf/test_programs.py` rewrites the file, and the commit
gives the reason.
"""

from __future__ import annotations

import json
import os
import re
import struct
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from cli.lab import portprograms
from mrcd.datapath import compiler, loader
from mrcd.datapath.datapath import Datapath
from mrcd.linux import bpfmap
from mrcd.wire.abi import ABI, COUNTERS
from mrcd.wire.packet import Header, read_header
from rigs.rig import WINDOW, Rig, code_of
from tests.bpf.conftest import ROUTINGS

RECORD = Path(__file__).with_name("instructions.json")
TOLERANCE = 0.05
LABS_OWN = "lab_port.c"
VERIFIER_MAX = 1_000_000  # the kernel's limit of instructions walked
JMP, JMP32 = 5, 6  # classes of instructions
JA, JEQ, CALL, EXIT = 0x05, 0x15, 0x85, 0x95
both_hooks = pytest.mark.parametrize("at_xdp", [False, True], ids=["tc", "xdp"])


@both_hooks
def test_instruction_counts(built_rig: Rig) -> None:
    found = {report.name: report.instructions for report in built_rig.report}
    hook = "xdp" if built_rig.dp.sizes.xdp else "tc"
    records = json.loads(RECORD.read_text())
    if os.environ.get("MRC_RECORD_INSTRUCTIONS"):
        records[hook] = found
        RECORD.write_text(json.dumps(records, indent=2) + "\n")
    recorded = records[hook]
    assert found.keys() == recorded.keys()
    for name, count in found.items():
        change = count / recorded[name] - 1
        assert abs(change) <= TOLERANCE, (
            f"{name} has {count} instructions, {change:+.1%} against {recorded[name]} in"
            f" {RECORD.name}: if that is meant, record it with MRC_RECORD_INSTRUCTIONS=1"
        )


@both_hooks
def test_verifier_has_room(built_rig: Rig) -> None:
    """Allow a quarter of the limit, since what is walked is most of a start.

    Linux 6.1 walks up to 1.7 times as much as Linux 6.18.
    """
    for report in built_rig.report:
        found = re.search(r"processed (\d+) insns", report.verifier)
        assert found, report.verifier
        assert int(found[1]) < VERIFIER_MAX / 4, f"{report.name}: {report.verifier}"


def following(step: tuple[int, int, int, int], at: int) -> list[tuple[int, bool]]:
    """Return the successors of an instruction, and for each whether a jump leads to it."""
    opcode, _registers, offset, _imm = step
    if opcode & 7 not in (JMP, JMP32) or opcode == CALL:
        return [(at + 1, False)]
    if opcode == EXIT:
        return []
    if opcode == JA:
        return [(at + 1 + offset, True)]
    return [(at + 1, True), (at + 1 + offset, True)]


def falls_into_loops(code: bytes) -> list[tuple[int, int]]:
    """Find instructions other than jumps that fall through to the head of their own loop.

    The walk is that of Linux 6.1 (check_cfg in kernel/bpf/verifier.c), which refuses such programs.
    """
    steps = [struct.unpack_from("<BBhi", code, at) for at in range(0, len(code), 8)]
    found = []
    walked = {0: following(steps[0], 0)}  # with the successors not walked yet, innermost last
    done = set()
    while walked:
        at, ways = next(reversed(walked.items()))
        if not ways:
            done.add(at)
            del walked[at]
            continue
        target, jumped = ways.pop(0)
        if target in walked and not jumped:
            found.append((at, target))
        elif target not in walked and target not in done:
            walked[target] = following(steps[target], target)
    return found


@both_hooks
@pytest.mark.parametrize("routing", ROUTINGS, ids=lambda routing: routing.shown)
def test_no_instruction_falls_into_a_loop(built_rig: Rig) -> None:
    """Linux 6.1 refuses that, later kernels do not."""
    code = code_of(built_rig.dp.sizes)
    for name in loader.PROGRAMS:
        found = falls_into_loops(code.programs[name])
        assert not found, f"{name}: {found}; share.h has a barrier against it"


def test_a_fall_into_a_loop_is_found() -> None:
    def insn(opcode: int, offset: int = 0) -> bytes:
        return struct.pack("<BBhi", opcode, 0, offset, 0)

    move, leave = insn(0xBF), insn(EXIT)
    assert falls_into_loops(insn(JA, 1) + move + move + insn(JEQ, -3) + leave) == [(1, 2)]
    assert falls_into_loops(move + move + insn(JEQ, -2) + leave) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("host", "mrc_host"),
        ("planes", "mrc_plane"),
        ("peers", "mrc_peer"),
        ("peer_planes", "mrc_peer_plane"),
        ("qps", "mrc_qp"),
        ("txs", "mrc_tx"),
        ("rxs", "mrc_rx"),
        ("tx_entries", "mrc_tx_entry"),
        ("rx_entries", "mrc_rx_entry"),
        ("paths", "mrc_path"),
        ("clock", "mrc_clock"),
        ("loop_paths", "mrc_peer_plane"),
        ("loops", "mrc_loop"),
        ("survey", "mrc_survey"),
    ],
)
def test_map_values_have_the_structs_size(built_rig: Rig, name: str, kind: str) -> None:
    assert bpfmap.described(built_rig.dp.maps[name]).value_size == ABI.structs[kind].size


def test_maps_have_the_sizes_asked_for(built_rig: Rig) -> None:
    size = built_rig.dp.sizes
    entries = {name: bpfmap.described(fd).entries for name, fd in built_rig.dp.maps.items()}
    assert entries["qps"] == entries["txs"] == entries["rxs"] == size.qps
    assert entries["tx_entries"] == 2 * entries["rx_entries"] == size.qps * WINDOW
    assert entries["tx_ring"] == entries["rx_ring"] == size.ring_slots
    assert entries["tx_free"] == entries["rx_free"] == size.ring_slots
    assert entries["paths"] == size.qps * ABI.MRC_MAX_PLANES * size.evs
    assert entries["counters"] == entries["counter_names"] == ABI.MRC_COUNTERS_ROOM
    assert len(COUNTERS) == ABI.MRC_C_COUNT <= ABI.MRC_COUNTERS_ROOM


def test_datapath_refuses_maps_of_another_layout(built_rig: Rig, tmp_path: Path) -> None:
    other = Datapath(tmp_path, built_rig.dp.sizes)
    other.maps = {**built_rig.dp.maps, "qps": built_rig.dp.maps["planes"]}
    with pytest.raises(Exception, match=r"map qps holds values of \d+ bytes"):
        other._check_layouts()
    other.maps = built_rig.dp.maps
    other._check_layouts()


def test_rig_sets_every_member_of_the_host(rig: Rig) -> None:
    """Require a value in the rig for every tuning constant: tests would run with zero otherwise."""
    members = {name for name in ABI.structs["mrc_host"].fields if not name.startswith("pad")}
    assert rig.host_members == members


def assertions(header: Header) -> str:
    """Return C that compiles only if the compiler lays structs out as Python does."""
    lines = []
    for name, layout in header.structs.items():
        lines.append(f'_Static_assert(sizeof(struct {name}) == {layout.size}, "{name}");')
        lines += [
            f"_Static_assert(__builtin_offsetof(struct {name}, {field.name}) == {field.offset} &&"
            f" sizeof(((struct {name} *)0)->{field.name}) == {field.size},"
            f' "{name}.{field.name}");'
            for field in layout.fields.values()
        ]
    return "\n".join(lines)


@pytest.mark.parametrize("file", ["mrc_wire.h", "mrc_abi.h"])
def test_the_programs_compiler_and_python_agree_on_layouts(built_rig: Rig, file: str) -> None:
    from bcc import BPF  # type: ignore[import-untyped]

    path = ABI.path.parent / file
    text = f"#include <uapi/linux/bpf.h>\n{path.read_text()}\n{assertions(read_header(path))}\n"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        BPF(text=text, cflags=["-Wall", "-Werror"])
        with pytest.raises(Exception, match="compile"):  # a false assertion is noticed
            BPF(text=text + '_Static_assert(sizeof(int) == 3, "");', debug=0)


@pytest.mark.parametrize("capture", [False, True])
def test_programs_compile_without_a_warning(built_rig: Rig, capture: bool) -> None:
    from bcc import BPF  # type: ignore[import-untyped]

    defines = replace(built_rig.dp.sizes, capture=capture).defines()
    flags, text = [*compiler.FLAGS, "-Werror", *defines], loader.source()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        BPF(text=text, cflags=flags)
        with pytest.raises(Exception, match="compile"):  # a warning is noticed
            BPF(text=text + "\nstatic inline int f(void) { int unused; return 0; }\n", cflags=flags)


def test_programs_of_switch_ports_compile_without_a_warning() -> None:
    if os.geteuid() != 0:
        pytest.skip("compiling BPF programs needs root")
    text = (ABI.path.parent / LABS_OWN).read_text()
    made = compiler.compiled(text, ["-Werror"], portprograms.PROGRAMS, [portprograms.MAP])
    assert set(made.programs) == set(portprograms.PROGRAMS)
    with pytest.raises(RuntimeError, match="compile"):
        compiler.compiled(text + "\nint f(void) { int unused; return 0; }\n", ["-Werror"], [], [])


def test_every_file_is_part_of_the_programs() -> None:
    whole = loader.source()
    for path in ABI.path.parent.glob("*.[ch]"):
        if path.name not in ("mrc.c", LABS_OWN):
            assert path.read_text() in whole, f"{path.name} is not included by mrc.c"
