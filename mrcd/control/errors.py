# SPDX-License-Identifier: GPL-2.0-only
"""The errors that the control interface returns over varlink.

No ``from __future__ import annotations`` here: asyncvarlink builds the interface from the
annotations and needs the types themselves.
"""

from asyncvarlink import TypedVarlinkErrorReply

from mrcd.model import INTERFACE


class NoSuchPeer(TypedVarlinkErrorReply, interface=INTERFACE):
    """No peer of that name is configured; "known" lists the configured peers."""

    class Parameters:
        name: str
        known: list[str]


class BadElement(TypedVarlinkErrorReply, interface=INTERFACE):
    """The text names no element of the fabric, or none that is denied; "reason" lists those."""

    class Parameters:
        element: str
        reason: str


class NoPathLeft(TypedVarlinkErrorReply, interface=INTERFACE):
    """The rule would leave no path to these peers; "force" adds it anyway."""

    class Parameters:
        element: str
        peers: list[str]


class NoSuchPlane(TypedVarlinkErrorReply, interface=INTERFACE):
    """No plane has that number; "known" lists the planes."""

    class Parameters:
        plane: int
        known: list[int]


class LastUsablePlane(TypedVarlinkErrorReply, interface=INTERFACE):
    """Draining this plane would leave no usable one; "force" drains it anyway."""

    class Parameters:
        plane: int


class NotPermitted(TypedVarlinkErrorReply, interface=INTERFACE):
    """The caller may watch, but not call this method; "writers" names the callers that may."""

    class Parameters:
        method: str
        uid: int
        writers: str


class BadConfig(TypedVarlinkErrorReply, interface=INTERFACE):
    """The text is not a valid configuration; "problems" lists every problem on a line."""

    class Parameters:
        problems: list[str]


class NotApplicable(TypedVarlinkErrorReply, interface=INTERFACE):
    """The configuration is valid but cannot be applied now, or none waits to be confirmed."""

    class Parameters:
        reason: str


class NoKeys(TypedVarlinkErrorReply, interface=INTERFACE):
    """The daemon runs with insecure = true, so there are no keys."""

    class Parameters:
        pass


class CannotCapture(TypedVarlinkErrorReply, interface=INTERFACE):
    """Another capture is running, or the recording programs cannot be used; "reason" says which."""

    class Parameters:
        reason: str


class CannotMeasure(TypedVarlinkErrorReply, interface=INTERFACE):
    """The plane cannot be measured now, or another one is being measured; "reason" says why."""

    class Parameters:
        reason: str


class Internal(TypedVarlinkErrorReply, interface=INTERFACE):
    """The daemon failed to answer; its log has the details."""

    class Parameters:
        message: str
