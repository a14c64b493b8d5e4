# SPDX-License-Identifier: GPL-2.0-only
"""Take system calls from this process for good, by a seccomp filter (linux/seccomp.h).

A filter is a program of classic BPF (linux/filter.h) that the kernel runs before each call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from mrcd.linux import bpf, libc

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_AUDIT_ARCH = 0xC000003E if os.uname().machine == "x86_64" else 0xC00000B7
_X32 = 0x40000000
"""Bit of the numbers by which x86-64 knows the same calls with 32-bit pointers."""
_NR_AT, _ARCH_AT, _ARGUMENT_AT = 0, 4, 16  # struct seccomp_data; its first argument's low half
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06

DAEMON_BPF = (
    bpf.MAP_LOOKUP_ELEM,
    bpf.MAP_UPDATE_ELEM,
    bpf.MAP_DELETE_ELEM,
    bpf.MAP_GET_NEXT_KEY,
    bpf.MAP_LOOKUP_BATCH,
    bpf.MAP_UPDATE_BATCH,
    bpf.OBJ_PIN,
    bpf.OBJ_GET,
    bpf.OBJ_GET_INFO_BY_FD,
    bpf.PROG_TEST_RUN,
    bpf.LINK_UPDATE,
    bpf.LINK_DETACH,
)
"""What the daemon does with maps, programs and links that it has. To attach a program by its
descriptor takes no capability, so that is what the filter is for."""


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def only_bpf_commands(commands: Iterable[int]) -> None:
    """Have all bpf(2) commands but these refused with EPERM, in every thread started from now on.

    The process must have given up new privileges. A kernel without filters changes nothing.
    """
    code = filter_of(sorted(commands), bpf.SYSCALL)
    text = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(text))
    option, mode = ctypes.c_ulong(_PR_SET_SECCOMP), ctypes.c_ulong(_MODE_FILTER)
    try:
        libc.call("filter system calls", "prctl", option, mode, ctypes.byref(program), 0, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def filter_of(commands: list[int], number: int) -> bytes:
    """Return the filter that refuses other first arguments of the system call `number`."""
    last = len(commands)
    rows = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 0, 4 + last, _AUDIT_ARCH),
        (_LOAD, 0, 0, _NR_AT),
        (_AT_LEAST, 2 + last, 0, _X32),
        (_EQUAL, 0, 2 + last, number),
        (_LOAD, 0, 0, _ARGUMENT_AT),
        *((_EQUAL, last - index, 0, command) for index, command in enumerate(commands)),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *row) for row in rows)
