# SPDX-License-Identifier: GPL-2.0-only
"""Test that all refused messages are counted and few are logged."""

from __future__ import annotations

import json
from io import StringIO

from mrcd.service import log
from mrcd.service.ratelog import INTERVAL_NS, Rejections


def test_one_a_second_is_logged_with_how_many_there_were() -> None:
    stream = StringIO()
    log.configure("json", stream=stream, strict=True)
    rejections = Rejections("handshake.rejected")
    start = 10 * INTERVAL_NS
    for after in (0, 1, INTERVAL_NS - 1, INTERVAL_NS, INTERVAL_NS + 1, 3 * INTERVAL_NS):
        rejections.add(2, f"after {after}", now_ns=start + after)
    assert rejections.count == 6
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["plane"], line["count"]) for line in lines] == [
        ("handshake.rejected", 2, 1),
        ("handshake.rejected", 2, 4),
        ("handshake.rejected", 2, 6),
    ]
    assert [line["reason"] for line in lines] == [
        "after 0",
        f"after {INTERVAL_NS}",
        f"after {3 * INTERVAL_NS}",
    ]
