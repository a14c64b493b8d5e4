# SPDX-License-Identifier: GPL-2.0-only
"""Offload features and speed of an interface, by pyroute2's SIOCETHTOOL (linux/ethtool.h).

The most common features have commands of their own, which need no string table. The others go by
the names that `ethtool -k` shows. All act in the calling thread's network namespace: enter it first
(mrcd.linux.netns.entered).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyroute2.ethtool.ioctl import IoctlEthtool, NoSuchDevice, NotSupportedError

from mrcd.linux.privileged import client, requests

_UNKNOWN_MBPS = 0xFFFFFFFF  # SPEED_UNKNOWN
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
    if (channel := client.current()) is not None:
        channel.ask(requests.SetFeatures(name, **wanted))
        return
    with contextlib.closing(IoctlEthtool(name)) as device:
        for feature, value in wanted.items():
            if value is not None:
                with _trying(f"set {feature} of {name}"):
                    device.set_offload_flag(_FLAGS[feature], int(value))


def link_mbps(name: str) -> int:
    """Return the speed of the link of interface `name`; 0 if there is no link or no speed."""
    with contextlib.closing(IoctlEthtool(name)) as device:
        try:
            with _trying(f"read the speed of {name}"):
                found = device.get_cmd()
        except OSError:  # the driver of a virtual interface may know no speed
            return 0
    speed = int(found.speed) | int(found.speed_hi) << 16
    return 0 if speed == _UNKNOWN_MBPS else speed


def named_features(name: str) -> dict[str, bool]:
    """Return every feature of interface `name`, by the names of `ethtool -k`."""
    with contextlib.closing(IoctlEthtool(name)) as device, _trying(f"read features of {name}"):
        features = device.get_features()
        return {feature: features[feature] for feature, *_ in features}


def set_named(name: str, wanted: Mapping[str, bool]) -> None:
    """Switch features of interface `name`, by the names of `ethtool -k`.

    A feature that this kernel does not know, or that is as wanted, is left alone. Raises OSError if
    the driver does not let another one be changed.
    """
    with contextlib.closing(IoctlEthtool(name)) as device:
        with _trying(f"read features of {name}"):
            features = device.get_features()
        change = [each for each in wanted if each in features and features[each] != wanted[each]]
        for feature in change:
            features[feature] = wanted[feature]
        if change:
            with _trying(f"set {', '.join(change)} of {name}"):
                device.set_features(features)
