# SPDX-License-Identifier: GPL-2.0-only
"""Test how a page's blocks are read, and what it shows compared with what was shown."""

from __future__ import annotations

import pytest

from rigs.reader import Step, missing, steps

PAGE = """\
<!-- type on a, b -->
```
ping
```
<!-- watch on a, exit 6 -->
```
mrcctl status
```
<!-- shown on a -->
```
degraded
```
<!-- ended on b -->
<!-- stopped on a, b -->
<!-- not typed: it costs money -->
```
buy
```
"""


def test_a_page_is_read_step_by_step() -> None:
    assert steps(PAGE) == [
        Step("type", ("a", "b"), "ping\n"),
        Step("watch", ("a",), "mrcctl status\n", 6),
        Step("shown", ("a",), "degraded\n"),
        Step("ended", ("b",), ""),
        Step("stopped", ("a", "b"), ""),
        Step("not typed", (), "buy\n"),
    ]


@pytest.mark.parametrize("comment", ["", "<!-- typed on a -->\n", "<!-- not typed -->\n"])
def test_a_block_of_which_nothing_is_said_is_an_error(comment: str) -> None:
    with pytest.raises(AssertionError, match="1 blocks have no comment"):
        steps(f"{PAGE}{comment}```\nping\n```\n")


SAID = """\
mrcd 0.2.0~dev1 on a: degraded, up 1 min 3 s (pid 7)
  ! plane 1: no path gets through to peer b, for 3.1 s; fault map: between a:eth2 and b:eth2 dead
    0  eth1       usable           -         12   957482        1295    924914
150 packets transmitted, 150 received, 0% packet loss, time 15099ms
"""


@pytest.mark.parametrize(
    "shown",
    [
        "mrcd 0.1.0 on a: degraded, up 29 s (pid 11186)",
        "    0  eth1       usable           -         1334    957482        1295    924914",
        "60 packets transmitted, 60 received, 0% packet loss, time 6100ms",
        SAID,
    ],
)
def test_what_varies_may_vary(shown: str) -> None:
    assert missing(shown, SAID.replace("\n", "\r\n")) is None


@pytest.mark.parametrize(
    "shown",
    [
        "mrcd 0.1.0 on b: degraded, up 29 s (pid 11186)",
        "mrcd 0.1.0 on a: ok, up 29 s (pid 11186)",
        "    1  eth1       usable           -         1334    957482        1295    924914",
        "150 packets transmitted, 150 received, 1% packet loss, time 15100ms",
        "mrcd 0.1.0 on a: degraded",
    ],
)
def test_all_else_may_not(shown: str) -> None:
    assert missing(shown, SAID) == shown


def test_lines_come_in_the_order_of_the_page() -> None:
    assert missing("two\none", "one\ntwo\n") == "one"
