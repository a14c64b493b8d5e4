# SPDX-License-Identifier: GPL-2.0-only
"""Fuzz a target of Python code: `python -m tests.fuzz.guided TARGET [OPTION OF LIBFUZZER]...`.

atheris has mrcd, and the libraries of Python that read for it, say which branches are taken.
"""

from __future__ import annotations

import importlib
import shlex
import sys

import atheris  # type: ignore[import-not-found]

INSTRUMENTED = ["mrcd", "cli", "tomllib", "asyncvarlink", "ipaddress"]


def main() -> None:
    """Run until libFuzzer ends the process."""
    target = sys.argv[1]
    with atheris.instrument_imports(include=INSTRUMENTED):
        module = importlib.import_module(f"tests.fuzz.{target}")
    # To merge corpora, libFuzzer starts itself again by a shell.
    itself = shlex.join([sys.executable, "-m", "tests.fuzz.guided", target])
    atheris.Setup([itself, *sys.argv[2:]], module.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
