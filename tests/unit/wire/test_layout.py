# SPDX-License-Identifier: GPL-2.0-only
"""Test the C headers as read by Python against the C compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mrcd.wire.packet import WIRE, Header, read_header
from mrcd.wire.sources import bpf_dir

HEADERS = ("mrc_wire.h", "mrc_abi.h")


def c_program(header: Header) -> str:
    lines = [
        "#include <stddef.h>",
        "#include <stdio.h>",
        "#include <linux/bpf.h>",
        f'#include "{header.path}"',
        "int main(void) {",
    ]
    for name, layout in header.structs.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field in layout.fields:
            member = f"((struct {name} *)0)->{field}"
            offset = f"offsetof(struct {name}, {field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", {offset}, sizeof({member}));')
    for name in header.constants:
        lines.append(f'printf("{name} %llu\\n", (unsigned long long){name});')
    return "\n".join([*lines, "return 0; }"])


@pytest.mark.parametrize("name", HEADERS)
def test_read_header__agrees_with_the_c_compiler(name: str, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler installed")
    header = read_header(bpf_dir() / name)
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(c_program(header))
    subprocess.run([compiler, "-Wall", "-Werror", "-o", program, source], check=True, timeout=60)
    said = subprocess.run([program], check=True, capture_output=True, text=True, timeout=10).stdout
    expected = []
    for struct_name, layout in header.structs.items():
        expected.append(f"{struct_name} {layout.size}")
        for field in layout.fields.values():
            expected.append(f"{struct_name}.{field.name} {field.offset} {field.size}")
    expected += [f"{constant} {value}" for constant, value in header.constants.items()]
    assert said.splitlines() == expected


@pytest.mark.parametrize("name", HEADERS)
def test_read_header__misses_no_define_and_no_struct(name: str) -> None:
    header = read_header(bpf_dir() / name)
    lines = header.path.read_text().splitlines()
    defines = {line.split()[1] for line in lines if line.startswith("#define ")}
    assert defines - header.constants.keys() == {name.upper().replace(".", "_")}
    structs = {line.split()[1] for line in lines if line.startswith("struct ")}
    assert structs == header.structs.keys()


def test_read_header__lengths_are_those_of_the_structs() -> None:
    for which in (
        "BTH", "METH", "RETH", "IMMDT", "AETH", "SETH", "CC_STATE", "PETH", "NETH", "ERTH", "EETH",
    ):  # fmt: skip
        length = WIRE.constants[f"MRC_{which}_LEN"]
        assert length == WIRE.structs[f"mrc_{which.lower()}"].size


def test_read_header__nominal_sizes_are_those_with_an_ipv6_header() -> None:
    behind_udp = WIRE.MRC_BTH_LEN + WIRE.MRC_WRITE_LEN + WIRE.MRC_ICRC_LEN
    assert WIRE.MRC_UDP_LEN + behind_udp + 40 == WIRE.MRC_DATA_NOMINAL
    assert WIRE.MRC_CELL_NOMINAL == 40


def test_read_header__tail_of_a_cell_in_udp_is_udp_vxlan_and_ethernet() -> None:
    vxlan = 8
    assert WIRE.MRC_UDP_LEN + vxlan + WIRE.MRC_ETH_LEN == WIRE.MRC_CELL_TAIL


def test_read_header__wire_structs_have_no_holes() -> None:
    for layout in WIRE.structs.values():
        assert sum(field.size for field in layout.fields.values()) == layout.size


def test_header__unknown_constant_names_the_file() -> None:
    with pytest.raises(AttributeError, match=r"mrc_wire\.h defines no MRC_NONSENSE"):
        _ = WIRE.MRC_NONSENSE


def test_struct__arrays_and_both_byte_orders(tmp_path: Path) -> None:
    path = tmp_path / "sample.h"
    path.write_text(
        "#ifndef S_H\n#define S_H\n#define N 3u /* how\n * many */\n#include <x.h>\n"
        "struct s { /* c */\n\t__u8 a;\n\t__u16 b[N];\n\t__u64 c;\n};\n#endif\n"
    )
    for order, tail in (("big", "0000000000000007"), ("little", "0700000000000000")):
        header = read_header(path, order)  # type: ignore[arg-type]
        assert header.N == 3
        assert header.comments == {"N": "how many"}
        layout = header.structs["s"]
        packed = layout.pack(a=1, b=(2, 3, 4), c=7)
        assert packed[8:].hex() == tail
        assert layout.unpack(b"x" + packed, 1) == {"a": 1, "c": 7}
        assert layout.unpack_array(b"x" + packed, "b", 1) == (2, 3, 4)
        with pytest.raises(ValueError, match="2 items, not 3"):
            layout.pack(b=(1, 2))
        with pytest.raises(ValueError, match="256 does not fit"):
            layout.pack(a=256)
        with pytest.raises(ValueError, match="15 bytes are too short"):
            layout.unpack(packed[:15])
