# SPDX-License-Identifier: GPL-2.0-only
"""Test the filter of bpf(2) commands: as a program, and in the kernel."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from mrcd.linux import bpf, seccomp

_ALLOW, _EPERM = 0x7FFF0000, 0x00050001
IN_THE_KERNEL = """
import errno
from mrcd.linux import bpf, rights, seccomp

def refused(command):
    try:
        bpf.call(command, b"", "try")
    except OSError as error:
        return error.errno == errno.EPERM
    return False

rights.give_up()
before = [refused(command) for command in (bpf.LINK_CREATE, bpf.MAP_LOOKUP_ELEM)]
seccomp.only_bpf_commands(seccomp.DAEMON_BPF)
after = [refused(command) for command in (bpf.LINK_CREATE, bpf.PROG_LOAD, bpf.MAP_LOOKUP_ELEM)]
print(before, after)
"""


def run(code: bytes, number: int, arch: int, argument: int) -> int:
    """Run a filter as the kernel does, and return its verdict."""
    data = struct.pack("=IIQQ", number, arch, 0, argument)
    at = value = 0
    while True:
        kind, yes, no, k = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if kind == 0x06:
            return int(k)
        if kind == 0x20:
            value = struct.unpack_from("=I", data, k)[0]
        else:
            at += yes if (value == k if kind == 0x15 else value >= k) else no


@pytest.mark.parametrize("command", range(64))
def test_only_listed_commands_pass(command: int) -> None:
    code = seccomp.filter_of(sorted(seccomp.DAEMON_BPF), bpf.SYSCALL)
    verdict = run(code, bpf.SYSCALL, seccomp._AUDIT_ARCH, command)
    assert verdict == (_ALLOW if command in seccomp.DAEMON_BPF else _EPERM)


def test_other_system_calls_pass_and_other_ways_to_call_do_not() -> None:
    code = seccomp.filter_of([1], bpf.SYSCALL)
    assert run(code, 0, seccomp._AUDIT_ARCH, 5) == _ALLOW
    assert run(code, bpf.SYSCALL | 0x40000000, seccomp._AUDIT_ARCH, 1) == _EPERM
    assert run(code, 0, 0x40000003, 1) == _EPERM  # i386


def test_nothing_that_loads_or_attaches_is_listed() -> None:
    barred = {bpf.MAP_CREATE, bpf.PROG_LOAD, bpf.LINK_CREATE, bpf.PROG_GET_FD_BY_ID}
    assert not barred & set(seccomp.DAEMON_BPF)


def test_the_kernel_takes_the_filter() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_KERNEL], capture_output=True, text=True, timeout=30,
        check=True,
    )  # fmt: skip
    assert done.stdout == "[False, False] [True, True, False]\n"
