# SPDX-License-Identifier: GPL-2.0-only
"""Test what mrcctl says of a name that no object has: the exit code, and what is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.console import exits
from cli.console.exits import NAMES_LISTED, NoSuchObject
from cli.quick import command
from tests.unit.command_line import run

WRONG = {
    "peer": [
        ("peer", "show", "h9"),
        ("path", "list", "--peer", "h9"),
        ("path", "probe", "h9"),
        ("path", "watch", "--peer", "h9"),
        ("path", "deny", "p1", "--peer", "h9"),
        ("path", "allow", "p1", "--peer", "h9"),
        ("conn", "list", "--peer", "h9"),
        ("capture", "--peer", "h9"),
        ("ping", "h9"),
        ("key", "rotate", "h9"),
    ],
    "plane": [
        ("plane", "drain", "eth9"),
        ("plane", "undrain", "eth9"),
        ("path", "list", "--plane", "eth9"),
        ("path", "probe", "h2", "--plane", "eth9"),
        ("ping", "h2", "--plane", "eth9"),
        ("capture", "--plane", "eth9"),
    ],
    "element": [
        ("path", "deny", name) for name in ("p9", "p1t0-9", "p1t0-1:p1t1-9", "h2:p9", "h9", "0x9")
    ],
}
KNOWN = {"peer": ("h2, h3",), "plane": ("0 (plane0), 1 (plane1)",), "element": ("p0", "0x", "h1")}


@pytest.mark.parametrize(
    ("kind", "words"), [(kind, words) for kind, several in WRONG.items() for words in several]
)
def test_a_wrong_name_exits_4_with_what_is_known(
    server: Path, kind: str, words: tuple[str, ...]
) -> None:
    result = run(server, *words)
    assert result.exit_code == exits.NO_SUCH_OBJECT
    assert result.stderr.startswith(f"mrcctl: no {kind} '")
    assert all(name in result.stderr.split("known: ")[1] for name in KNOWN[kind])
    assert result.stdout == ""


def test_a_nic_that_is_none_is_told_with_those_there_are() -> None:
    with pytest.raises(NoSuchObject, match=r"no interface 'nosuch9'; known: .*lo"):
        command._raise_links(["nosuch9"])


def test_of_thousands_of_names_the_first_and_the_like_are_listed() -> None:
    message = NoSuchObject("peer", "gpu77x", [f"gpu{i}" for i in range(10_000)]).format_message()
    assert message.startswith("no peer 'gpu77x'; known: gpu0, gpu1, ")
    assert f" and {10_000 - NAMES_LISTED:,} more; did you mean gpu77" in message
    assert len(message) < 500
    few = NoSuchObject("peer", "b", ["a"]).format_message()
    assert few == "no peer 'b'; known: a"
    assert NoSuchObject("peer", "b", []).format_message() == "no peer 'b'; known: none"
