# SPDX-License-Identifier: GPL-2.0-only
"""Turn the daemon's errors into messages: what was refused, why, and how to fix it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from cli.console.exits import (
    BadElement,
    CommandError,
    NoSuchObject,
    NotPermitted,
    RefusedConfiguration,
)
from mrcd.model import INTERFACE


def refused(error: str, parameters: bytes, path: str) -> CommandError:
    """Return the exception for a reply with `error`; `path` is the control socket."""
    say = _SAID.get(error.removeprefix(f"{INTERFACE}."))
    if say is not None:
        try:
            return say(msgspec.json.decode(parameters, type=dict[str, Any]))
        except (msgspec.MsgspecError, KeyError):
            pass  # a daemon of another version: show the error as it came
    return CommandError(f"mrcd at {path} answered {error} {parameters.decode(errors='replace')}")


def _no_such_peer(told: dict[str, Any]) -> CommandError:
    return NoSuchObject("peer", told["name"], told["known"])


def _no_such_plane(told: dict[str, Any]) -> CommandError:
    return NoSuchObject("plane", str(told["plane"]), map(str, told["known"]))


def _bad_element(told: dict[str, Any]) -> CommandError:
    return BadElement(told["reason"])


def _no_path_left(told: dict[str, Any]) -> CommandError:
    return CommandError(
        f"denying {told['element']} leaves no path to {', '.join(told['peers'])};"
        " use --force to deny it anyway"
    )


def _last_usable_plane(told: dict[str, Any]) -> CommandError:
    return CommandError(
        f"plane {told['plane']} is the last usable one: nothing could be sent without it. "
        "Bring another plane up first, or use --force"
    )


def _not_permitted(told: dict[str, Any]) -> CommandError:
    return NotPermitted(
        f"{told['method']} refused: uid {told['uid']} may only watch; changes are allowed to: "
        f"{told['writers']}. Run it with sudo, or `usermod -aG mrcd USER` and log in again"
    )


def _no_keys(_told: dict[str, Any]) -> CommandError:
    return CommandError("mrcd runs with insecure = true, without keys; see `mrcctl key generate`")


def _bad_config(told: dict[str, Any]) -> CommandError:
    return RefusedConfiguration(told["problems"])


def _not_applicable(told: dict[str, Any]) -> CommandError:
    return CommandError(f"refused, nothing was changed: {told['reason']}")


def _cannot_capture(told: dict[str, Any]) -> CommandError:
    return CommandError(f"cannot capture: {told['reason']}")


def _cannot_measure(told: dict[str, Any]) -> CommandError:
    return CommandError(f"cannot measure: {told['reason']}")


_SAID: Mapping[str, Callable[[dict[str, Any]], CommandError]] = {
    "NoSuchPeer": _no_such_peer,
    "NoSuchPlane": _no_such_plane,
    "BadElement": _bad_element,
    "NoPathLeft": _no_path_left,
    "LastUsablePlane": _last_usable_plane,
    "NotPermitted": _not_permitted,
    "BadConfig": _bad_config,
    "NotApplicable": _not_applicable,
    "NoKeys": _no_keys,
    "CannotCapture": _cannot_capture,
    "CannotMeasure": _cannot_measure,
}
