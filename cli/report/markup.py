# SPDX-License-Identifier: GPL-2.0-only
"""Build a page of HTML and SVG as a tree, so that no text can become markup.

The page is well-formed both as HTML and as XML. It takes nothing from anywhere else: its policy
forbids the browser to load or to run anything.
"""

from __future__ import annotations

import re
from html import escape
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Child = Element | str | int | None

# Characters that XML does not allow, and those that make text run in the other direction.
_UNSAFE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u200d\u2010-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd"
    "\U00010000-\U0010ffff]"
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def clean(text: str) -> str:
    """Replace what no page may contain, or what would reorder the text around it, by U+FFFD."""
    return _UNSAFE.sub("\ufffd", text)


def el(tag: str, *children: Child, **attributes: str | float | None) -> Element:
    """Return an element.

    `children` are elements, and text to be escaped; None is left out. In the names of `attributes`
    an underscore stands for a hyphen, and one at the end is dropped: `class_`, `stroke_width`.
    """
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            text = value if isinstance(value, str) else f"{value:g}"
            made.set(name.rstrip("_").replace("_", "-"), clean(text))
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            made.append(child)
            last = child
        elif child is not None and last is not None:
            last.tail = (last.tail or "") + clean(str(child))
        elif child is not None:
            made.text = (made.text or "") + clean(str(child))
    return made


def document(title: str, style: str, body: Element) -> str:
    """Return the whole page; `style` is CSS without the characters < and &."""
    text = ElementTree.tostring(body, encoding="unicode", short_empty_elements=False)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(clean(title))}</title>\n<style>\n{style}</style>\n</head>\n"
        f"{text}\n</html>\n"
    )
