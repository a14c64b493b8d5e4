# SPDX-License-Identifier: GPL-2.0-only
"""Offload features of an interface, by pyroute2's SIOCETHTOOL (linux/ethtool.h).

The one-feature commands of `ethtool -K` are enough here and need no string tables. They act in the
calling thread's network namespace: enter it first (mrcd.linux.netns.entered).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from pyroute2.ethtool.ioctl import IoctlEthtool, NoSuchDevice, NotSupportedError

_FLAGS = {
    "tx_checksum": "tx-checksumming",
    "sg": "scatter-gather",
    "tso": "tcp-segmentation-offload",
    "gso": "generic-segmentation-offload",
    "gro": "generic-receive-offload",
}


@dataclass(frozen=True, slots=True)
class Features:
    """The offloads of an interface. `gro` makes a veth run NAPI."""

    tx_checksum: bool
    sg: bool
    tso: bool
    gso: bool
    gro: bool


@contextlib.contextmanager
def _trying(what: str) -> Iterator[None]:
    """Turn a refusal into OSError, from which pyroute2's own exceptions do not derive."""
    try:
        yield
        return
    except NoSuchDevice:
        code = errno.ENODEV
    except NotSupportedError:
        code = errno.EOPNOTSUPP
    except OSError as error:
        code = error.errno or 0
    raise OSError(code, f"could not {what}: {os.strerror(code)}")


def get_features(name: str) -> Features:
    """Return the features of interface `name` in this thread's network namespace."""
    with contextlib.closing(IoctlEthtool(name)) as device, _trying(f"read features of {name}"):
        flags = device.get_offload_flags()
    return Features(**{feature: flags[flag] for feature, flag in _FLAGS.items()})


def set_features(
    name: str,
    *,
    tx_checksum: bool | None = None,
    sg: bool | None = None,
    tso: bool | None = None,
    gso: bool | None = None,
    gro: bool | None = None,
) -> None:
    """Switch the given features of `name`; None leaves a feature as it is.

    The kernel also switches off what depends on a feature: without tx_checksum there is no tso.
    """
    wanted = {"tx_checksum": tx_checksum, "sg": sg, "tso": tso, "gso": gso, "gro": gro}
    with contextlib.closing(IoctlEthtool(name)) as device:
        for feature, value in wanted.items():
            if value is not None:
                with _trying(f"set {feature} of {name}"):
                    device.set_offload_flag(_FLAGS[feature], int(value))
