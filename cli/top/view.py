# SPDX-License-Identifier: GPL-2.0-only
"""What the user of ``mrcctl top`` looks at: the keys, and what each does to the view (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

from mrcd.model import PathInfo

Sort = Literal["trouble", "lost", "sent", "srtt"]
SORTS: tuple[Sort, ...] = get_args(Sort)

HELP = (
    ("up, down", "scroll the paths by a line"),
    ("PgUp, PgDn", "scroll them by a page"),
    ("s", "sort by trouble, lost, sent, srtt, in turn"),
    ("/", "show only a peer or plane: h2, 2, p2, eth2;"),
    ("", "Enter keeps the text, Esc shows all again"),
    ("h, ?", "this help; any key leaves it"),
    ("q, Ctrl-C", "quit"),
)
"""Each key and what it does; the longest line fits 60 columns."""

_SEQUENCES = {
    b"A": "up",
    b"B": "down",
    b"5~": "pgup",
    b"6~": "pgdn",
    b"": "esc",
}
_KEY = re.compile(rb"\x1b[\[O]([0-9;]*[A-Za-z~])|\x1b()|([^\x1b])")


@dataclass(frozen=True, slots=True)
class View:
    """The part of the paths that is shown, and what the next key means."""

    first: int = 0  # row of the paths, from 0
    sort: Sort = "trouble"
    wanted: str = ""  # text that a path's peer or plane must match
    typing: bool = False  # whether keys go to `wanted`
    help: bool = False
    ended: bool = False


def keys(data: bytes) -> list[str]:
    """Return the keys in what a terminal sent: up, down, pgup, pgdn, esc, or a character each.

    Other keys that send a sequence are left out.
    """
    found = []
    for sequence, _escape, character in _KEY.findall(data):
        if character:
            found.append(character.decode("latin-1"))
        elif (name := _SEQUENCES.get(sequence)) is not None:
            found.append(name)
    return found


def pressed(view: View, key: str, *, page: int, rows: int) -> View:
    """Return the view after a key; `page` of the `rows` of paths fit the screen."""
    if view.typing:
        return _typed(view, key)
    if key in ("q", "Q"):
        return replace(view, ended=True)
    if view.help:
        return replace(view, help=False)
    if key in ("h", "?"):
        return replace(view, help=True)
    if key == "s":
        following = SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)]
        return replace(view, sort=following, first=0)
    if key == "/":
        return replace(view, typing=True, wanted="", first=0)
    if key == "esc":
        return replace(view, wanted="", first=0)
    by = {"up": -1, "down": 1, "pgup": -page, "pgdn": page}.get(key, 0)
    return replace(view, first=max(0, min(view.first + by, rows - page)))


def _typed(view: View, key: str) -> View:
    """Return the view after a key that belongs to the text being typed."""
    if key in ("\r", "\n"):
        return replace(view, typing=False)
    if key == "esc":
        return replace(view, typing=False, wanted="")
    if key in ("\x7f", "\b"):
        return replace(view, wanted=view.wanted[:-1])
    if len(key) == 1 and key.isprintable():
        return replace(view, wanted=view.wanted + key)
    return view


def matches(wanted: str, path: PathInfo, nic: str) -> bool:
    """Return whether a path is to a peer, or on a plane with this NIC, that a text names."""
    text = wanted.strip().lower()
    return (
        text in (str(path.plane), f"p{path.plane}")
        or text in path.peer.lower()
        or text in nic.lower()
    )
