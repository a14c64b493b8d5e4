# SPDX-License-Identifier: GPL-2.0-only
"""Interface attributes that only sysfs has, in this process's network namespace.

/sys shows the namespace of whoever mounted it. Where that is another one than
ours, a sysfs of our own is opened with the mount system calls, attached nowhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator

_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_FSCONFIG_CMD_CREATE = 6
_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *args: object) -> int:
    result = int(_libc.syscall(number, *args))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"cannot open sysfs: {os.strerror(ctypes.get_errno())}")
    return result


@contextlib.contextmanager
def _own() -> Iterator[int]:
    """A descriptor of the root of a sysfs of this network namespace."""
    context = _call(_SYS_FSOPEN, b"sysfs", 0)
    try:
        _call(_SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        root = _call(_SYS_FSMOUNT, context, 0, 0)
    finally:
        os.close(context)
    try:
        yield root
    finally:
        os.close(root)


def write_interfaces(names: Iterable[str], attribute: str, value: str) -> None:
    """Write an attribute of interfaces, for instance "queues/rx-0/rps_cpus".

    OSError says what could not be written.
    """
    with _own() as root:
        for name in names:
            try:
                fd = os.open(f"class/net/{name}/{attribute}", os.O_WRONLY, dir_fd=root)
            except OSError as error:
                raise OSError(
                    error.errno, f"cannot open {attribute} of {name}: {error.strerror}"
                ) from None
            try:
                os.write(fd, value.encode())
            finally:
                os.close(fd)


def all_cpus() -> int:
    """Every online CPU, a bit each."""
    return (1 << (os.cpu_count() or 1)) - 1


def cpu_mask(mask: int) -> str:
    """A set of CPUs as sysfs writes it: groups of 32 bits, most significant first."""
    groups = []
    while mask:
        groups.append(f"{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
    return ",".join(reversed(groups)) or "0"
