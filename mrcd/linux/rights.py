# SPDX-License-Identifier: GPL-2.0-only
"""Capabilities of this process, by capset(2) and prctl(2): to keep some, or to give up all.

Numbers are those of linux/capability.h, linux/prctl.h and linux/securebits.h.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Collection, Iterator
from pathlib import Path

from mrcd.linux import libc

NET_ADMIN = 12
NET_RAW = 13
SYS_ADMIN = 21
PERFMON = 38
BPF = 39

_VERSION_3 = 0x20080522
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_AMBIENT_RAISE = 2
_AMBIENT_CLEAR_ALL = 4
_NOROOT_LOCKED = 0x3
_SETS = {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    """One half of the sets: the bits of 32 capabilities."""

    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    ]


def held(pid: int | str = "self") -> dict[str, int]:
    """Return the capability sets of a process as /proc shows them, by their names there."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.split(":\t") for line in lines if ":\t" in line)
    return {name: int(value, 16) for name, value in pairs if name in _SETS}


def mask(numbers: Collection[int]) -> int:
    """Return a set of capabilities as /proc shows it."""
    return sum(1 << number for number in set(numbers))


def _prctl(what: str, option: int, *args: int) -> int:
    words = [ctypes.c_ulong(word) for word in (*args, 0, 0, 0, 0)[:4]]
    return libc.call(what, "prctl", option, *words)


def _capset(effective: int, permitted: int) -> None:
    """Set this thread's sets; what is permitted may also be inherited."""
    halves = (_Data * 2)()
    for index, half in enumerate(halves):
        shift = 32 * index
        half.effective = effective >> shift & 0xFFFFFFFF
        half.permitted = half.inheritable = permitted >> shift & 0xFFFFFFFF
    header = _Header(_VERSION_3, 0)
    libc.call("set capabilities", "capset", ctypes.byref(header), ctypes.byref(halves))


def _bound(kept: int) -> None:
    """Keep only these capabilities in the bounding set. Without CAP_SETPCAP it stays as it is."""
    number = 0
    while True:
        try:
            _prctl("read the bounding set", _PR_CAPBSET_READ, number)
        except OSError:  # the kernel has no capability of this number
            return
        if not kept >> number & 1:
            try:
                _prctl("shrink the bounding set", _PR_CAPBSET_DROP, number)
            except PermissionError:
                return
        number += 1


def keep(effective: Collection[int], spare: Collection[int] = ()) -> None:
    """Give up all capabilities but these, as far as they are held; `spare` ones have no effect.

    Call this while the process has one thread. From then on, nothing that it runs has more, and a
    user id of 0 has no meaning of its own. Other processes of this user cannot look into it.
    """
    permitted = held()["CapPrm"] & (mask(effective) | mask(spare))
    _prctl("refuse new privileges", _PR_SET_NO_NEW_PRIVS, 1)
    _bound(permitted)
    with contextlib.suppress(PermissionError):  # without CAP_SETPCAP: a container's root
        _prctl("lock the secure bits", _PR_SET_SECUREBITS, _NOROOT_LOCKED)
    _prctl("clear ambient capabilities", _PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    if held()["CapPrm"] or held()["CapInh"]:  # a service without any may not even call capset(2)
        _capset(permitted & mask(effective), permitted)
    if permitted:
        _prctl("close this process to debuggers", _PR_SET_DUMPABLE, 0)


def give_up() -> None:
    """Give up every capability for good."""
    keep(())


@contextlib.contextmanager
def inherited(numbers: Collection[int]) -> Iterator[None]:
    """Let programs that are started in a block have these capabilities, as far as they are held."""
    permitted = held()["CapPrm"]
    try:
        for number in numbers:
            if permitted >> number & 1:
                _prctl("raise an ambient capability", _PR_CAP_AMBIENT, _AMBIENT_RAISE, number)
        yield
    finally:
        _prctl("clear ambient capabilities", _PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
