# SPDX-License-Identifier: GPL-2.0-only
"""The errors of the control interface, as varlink knows them.

No ``from __future__ import annotations`` here: asyncvarlink builds the interface from the
annotations and needs the types themselves.
"""

from asyncvarlink import TypedVarlinkErrorReply

from mrcd.model import INTERFACE


class NoSuchPeer(TypedVarlinkErrorReply, interface=INTERFACE):
    """No peer of that name is configured; "known" lists those that are."""

    class Parameters:
        name: str
        known: list[str]


class BadElement(TypedVarlinkErrorReply, interface=INTERFACE):
    """The text names no element of the fabric, or none that is denied; "reason" lists them."""

    class Parameters:
        element: str
        reason: str


class NoPathLeft(TypedVarlinkErrorReply, interface=INTERFACE):
    """The rule would leave no path to these peers; "force" makes it all the same."""

    class Parameters:
        element: str
        peers: list[str]


class NoSuchPlane(TypedVarlinkErrorReply, interface=INTERFACE):
    """There is no plane of that number; "known" lists those there are."""

    class Parameters:
        plane: int
        known: list[int]


class LastUsablePlane(TypedVarlinkErrorReply, interface=INTERFACE):
    """Draining this plane would leave no usable one; "force" does it all the same."""

    class Parameters:
        plane: int


class NotPermitted(TypedVarlinkErrorReply, interface=INTERFACE):
    """The caller may watch, but not call this method; "writers" says who may."""

    class Parameters:
        method: str
        uid: int
        writers: str


class BadConfig(TypedVarlinkErrorReply, interface=INTERFACE):
    """The text is no configuration to run with; every problem is one line of "problems"."""

    class Parameters:
        problems: list[str]


class NotApplicable(TypedVarlinkErrorReply, interface=INTERFACE):
    """The configuration is good but cannot be applied now, or nothing waits to be confirmed."""

    class Parameters:
        reason: str


class CannotCapture(TypedVarlinkErrorReply, interface=INTERFACE):
    """Another capture runs, or the programs that record cannot be used; "reason" says which."""

    class Parameters:
        reason: str


class Internal(TypedVarlinkErrorReply, interface=INTERFACE):
    """The daemon failed to answer; its log has the details."""

    class Parameters:
        message: str
