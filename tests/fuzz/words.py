# SPDX-License-Identifier: GPL-2.0-only
"""Words that targets whose inputs are JSON try in place of anything."""

JSON = (
    "Infinity",
    "NaN",
    "-1",
    "1e400",
    "9" * 30,
    "9" * 4400,
    "[" * 1100,
    '"\\ud800"',
    '"\\u0000"',
    "null",
    "true",
    "{}",
)
