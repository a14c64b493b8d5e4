# SPDX-License-Identifier: GPL-2.0-only
"""Compile programs with bcc. No other module imports it.

bcc and its compiler take some 200 MB that no lasting process should keep: this runs in processes of
their own, which end soon.

    python -m mrcd.datapath.compiler FOLDER SOURCE PROGRAM... -- MAP...

keeps the programs of a file in FOLDER, under the key of its text (mrcd/datapath/bytecode.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mrcd.datapath import bytecode
from mrcd.datapath.bytecode import Bytecode

FLAGS = (
    "-Wall", "-Wno-unused-function",
    "-Wno-unknown-warning-option", "-Wno-duplicate-decl-specifier", "-Wno-ignored-attributes",
)  # fmt: skip
"""Kernel headers are not ours, and those of Linux 6.12 make clang 14 warn. Nothing is an error."""


class NoCompiler(RuntimeError):
    """There is no bcc on this machine."""


def compiled(
    text: str, defines: Sequence[str], programs: Sequence[str], maps: Sequence[str]
) -> Bytecode:
    """Compile a text, for which bcc makes maps of its own on the way; they are closed again.

    `defines` are options of the compiler. Raises NoCompiler, or RuntimeError with what bcc says.
    """
    try:
        from bcc import BPF  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError as error:
        headers = f"linux-headers-{os.uname().release}"
        raise NoCompiler(
            f"bcc is missing ({error}): install python3-bpfcc and {headers}"
        ) from error
    try:
        module = BPF(text=text.encode(), cflags=[*FLAGS, *defines])
    except Exception as error:
        raise RuntimeError(
            f"bcc cannot compile the programs: {error}; it needs the kernel headers in "
            f"/lib/modules/{os.uname().release}/build (package linux-headers; `make setup` "
            "installs or links them)"
        ) from error
    try:
        return bytecode.taken(
            {name: bytes(module.dump_func(name.encode())) for name in programs},
            {name: int(module[name.encode()].map_fd) for name in maps},
        )
    finally:
        module.cleanup()


def main() -> int:
    """Run as the child process."""
    folder, source, *names = sys.argv[1:]
    at = names.index("--")
    programs, maps = names[:at], names[at + 1 :]
    text = Path(source).read_text()
    try:
        bytecode.write(Path(folder), bytecode.key_of(text, []), compiled(text, [], programs, maps))
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
