# SPDX-License-Identifier: GPL-2.0-only
"""The C library, for system calls that neither Python 3.11 nor pyroute2 makes."""

from __future__ import annotations

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)


def call(what: str, function: str, *args: object) -> int:
    """Call a function of the C library and return its result.

    Integers are passed as C's int: pass an address by ctypes.byref. Raises OSError, which names
    `what` was tried, when the result is negative.
    """
    result = int(getattr(LIBC, function)(*args))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result
