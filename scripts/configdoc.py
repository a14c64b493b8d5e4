# SPDX-License-Identifier: GPL-2.0-only
"""Write the tables of [transport], [keys] and [service] in docs/reference.md from their keys.

Run it (`make docs`) when a key changes (mrcd/config/sections.py). A test compares.
"""

from __future__ import annotations

import re
from pathlib import Path

from mrcd.config import key
from mrcd.config.sections import Keys, Service, Transport

REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"
SECTIONS = {"keys": Keys, "transport": Transport, "service": Service}
_HEAD = "| key | default | values | |\n|---|---|---|---|\n"


def reference(text: str) -> str:
    """Return the reference with the tables as they should be."""
    for name, section in SECTIONS.items():
        table = _HEAD + "".join(f"{row}\n" for row in key.rows(section))
        place = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text, found = re.subn(
            place, lambda match, table=table: match[1] + table + match[2], text, flags=re.DOTALL
        )
        assert found == 1, f"docs/reference.md has no <!-- {name} --> ... <!-- /{name} -->"
    return text


if __name__ == "__main__":
    REFERENCE.write_text(reference(REFERENCE.read_text()))
