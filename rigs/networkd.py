# SPDX-License-Identifier: GPL-2.0-only
"""Run systemd-networkd in a host of a lab, apart from the machine's own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "packaging" / "examples" / "networkd"
"""The project's files for a host's networkd."""
_END_S = 20


@contextlib.contextmanager
def networkd(running: Any, host: str, folder: Path) -> Iterator[Path]:
    """Run networkd in a host with the files of a folder; yield its log, with all details."""
    script, log = Path(__file__).with_name("networkd.sh"), folder / "log"
    command = ["ip", "netns", "exec", running.namespace(host), "unshare", "-m", "bash"]
    with log.open("w") as out:
        process = subprocess.Popen([*command, str(script), str(folder)], stdout=out, stderr=out)
    try:
        yield log
        assert process.poll() is None, log.read_text()[-2000:]
    finally:
        process.terminate()
        process.wait(_END_S)
