# SPDX-License-Identifier: GPL-2.0-only
"""Test the keys of mrcctl top: what each does to the view, and what a frame shows of it."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest

from cli.top.frame import WHOLE, Reading, frame
from cli.top.view import HELP, SORTS, View, keys, pressed
from tests.unit.cli.test_top import drawn, grown, readings


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b[5~\x1b[6~", ["pgup", "pgdn"]),
        (b"\x1b[1;5C\x1b[Hs", ["s"]),  # others are nothing, not letters
        (b"\x1b", ["esc"]),
        (b"/h2\x7f\r", ["/", "h", "2", "\x7f", "\r"]),
    ],
)
def test_keys_of_a_terminal(data: bytes, found: list[str]) -> None:
    assert keys(data) == found


@pytest.mark.parametrize(
    ("first", "key", "then"),
    [
        (0, "down", 1), (0, "up", 0), (5, "up", 4), (0, "pgdn", 10), (15, "pgup", 5),
        (89, "down", 90), (90, "down", 90), (85, "pgdn", 90), (4, "pgup", 0), (7, "x", 7),
    ],
)  # fmt: skip
def test_scrolling_ends_with_the_paths(first: int, key: str, then: int) -> None:
    assert pressed(View(first=first), key, page=10, rows=100).first == then


def test_few_paths_do_not_scroll() -> None:
    assert pressed(View(), "down", page=10, rows=3).first == 0


def after(*typed: str, view: View = WHOLE) -> View:
    return reduce(lambda before, key: pressed(before, key, page=10, rows=100), typed, view)


def test_s_goes_through_the_orders_from_the_top() -> None:
    assert [after(*"s" * times).sort for times in range(5)] == [*SORTS, SORTS[0]]
    assert after("s", view=View(first=7)).first == 0


def test_a_text_is_typed_and_kept_or_given_up() -> None:
    assert after(*"/hq2") == View(wanted="hq2", typing=True)  # no key of its own
    assert after(*"/h23", "\x7f", "\r") == View(wanted="h2")
    assert after(*"/h2", "esc") == View()
    assert after(*"/h2", "\r", "esc") == View()
    assert after(*"/h2", "\r", "/", "\r") == View()


@pytest.mark.parametrize("key", ["h", "?"])
def test_help_is_left_by_any_key_and_q_still_quits(key: str) -> None:
    assert after(key).help
    assert after(key, "down") == View()
    assert after(key, "q").ended
    assert after("q").ended


def several() -> tuple[Reading, Reading]:
    before, now = readings(paths=100)
    ways = list(now.paths)
    ways[70] = replace(ways[70], state="ASSUMED_BAD", srtt_us=10.0)
    ways[50] = replace(grown(ways[50], lost=7, sent=9), srtt_us=20.0)
    ways[61] = replace(grown(ways[61], sent=500), srtt_us=900.0)
    return before, replace(now, paths=ways)


def evs(lines: list[str]) -> list[int]:
    """Return the EVs of the paths in a frame, from the top."""
    return [int(word, 16) for line in lines for word in line.split() if word.startswith("0x")]


@pytest.mark.parametrize(
    ("view", "first"),
    [
        (View(), [70, 50, 61]),
        (View(sort="lost"), [50]),
        (View(sort="sent"), [61, 50]),
        (View(sort="srtt"), [61, 50, 70]),
        (View(first=1), [50, 61]),
        (View(sort="sent", first=1), [50]),
        (View(wanted="p1"), [61, 1, 3]),
        (View(wanted="1", first=1), [1, 3, 5]),  # plane 1 and peer h1 are the same paths
        (View(wanted="eth0"), [70, 50, 0]),
        (View(wanted="H0"), [70, 50, 0]),
    ],
)
def test_a_frame_shows_the_view(view: View, first: list[int]) -> None:
    lines = drawn(*several(), 80, 24, view)
    assert evs(lines)[: len(first)] == first
    assert len(lines) <= 24


def test_a_frame_says_what_is_shown_of_the_paths() -> None:
    before, now = several()
    made = frame(before, now, {}, width=80, height=24, clock="")
    assert (made.page, made.rows) == (len(evs(drawn(before, now, 80, 24))), 100)
    last = View(first=99)  # more than there are below: the last page
    text = "\n".join(drawn(before, now, 80, 24, last))
    assert f"paths {101 - made.page} to 100 of 100, by trouble" in text
    text = "\n".join(drawn(before, now, 80, 24, View(wanted="h1", sort="sent")))
    assert f'paths 1 to {made.page} of 50, matching "h1", by sent' in text
    assert 'no paths, matching "x", by lost' in "\n".join(
        drawn(before, now, 80, 24, View(wanted="x", sort="lost"))
    )
    assert "/h_" in drawn(before, now, 80, 24, View(wanted="h", typing=True))


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (200, 12)])
def test_help_fits(size: tuple[int, int]) -> None:
    lines = drawn(*several(), *size, View(help=True))
    assert len(lines) <= size[1]
    text = "\n".join(lines)
    assert all(key in text and meaning in text for key, meaning in HELP)
    assert evs(lines) == []
