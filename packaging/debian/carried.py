#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only
"""Print the stanzas of debian/copyright for the Python packages in a folder."""

import re
import sys
from email.message import Message
from importlib.metadata import distributions
from pathlib import Path

OWN = "mrcd"
LICENCE_FILE = re.compile(r"\.dist-info/(licenses/|LICENSE)")
"""Where a wheel has its licence; older build tools do not make the folder."""
ON_DEBIAN = {
    "Apache License": "Apache-2.0",
    "GNU GENERAL PUBLIC LICENSE": "GPL-2",
    "GNU LIBRARY GENERAL PUBLIC LICENSE": "LGPL-2",
    "GNU LESSER GENERAL PUBLIC LICENSE": "LGPL-2.1",
}
"""Headings of the licences whose text every Debian system has, and the names of the files."""


def indented(text: str) -> str:
    """Return a text as the continuation lines of a field."""
    return "\n".join(f" {line.rstrip()}" if line.strip() else " ." for line in text.splitlines())


def body(text: str) -> str:
    """Return a licence's text, or a reference if every Debian system has it."""
    heading = text.lstrip().splitlines()[0].strip()
    if heading in ON_DEBIAN:
        return (
            f" On Debian systems, the text is in /usr/share/common-licenses/{ON_DEBIAN[heading]}."
        )
    return indented(text)


def classified(metadata: Message) -> str:
    """Return the licence by the classifiers, which older packages have instead of an expression."""
    prefix = "License :: OSI Approved :: "
    found = [each for each in metadata.get_all("Classifier", []) if each.startswith(prefix)]
    return " AND ".join(each.removeprefix(prefix).removesuffix(" License") for each in found)


def main(folder: str) -> None:
    for package in sorted(distributions(path=[folder]), key=lambda found: found.name):
        if package.name == OWN:
            continue
        metadata = package.metadata
        files = package.files or []
        texts = [Path(str(file.locate())) for file in files if LICENCE_FILE.search(str(file))]
        author = metadata["Author-email"] or metadata["Author"] or "its authors"
        # A short name may contain spaces only around "or" and "and".
        licence = metadata["License-Expression"] or metadata["License"] or classified(metadata)
        short = re.sub(r"\b(OR|AND)\b", lambda word: word[0].lower(), licence)
        tops = sorted({str(file).split("/")[0] for file in files} - {".."})
        print(f"\nFiles: {' '.join(f'usr/lib/mrcd/*/{top}/*' for top in tops)}")
        print(f"Copyright: {author}")
        print(f"License: {short}")
        for text in texts:
            print(body(text.read_text()))


if __name__ == "__main__":
    main(sys.argv[1])
