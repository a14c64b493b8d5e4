# SPDX-License-Identifier: GPL-2.0-only
"""Run mrcd as a build that speaks other versions would: `speaking.py OLDEST NEWEST OPTIONS`.

The numbers are set before the daemon begins. Nothing in mrcd itself can change them.
"""

from __future__ import annotations

import sys

from mrcd.handshake import versions


def main() -> None:
    versions.OLDEST, versions.NEWEST = int(sys.argv[1]), int(sys.argv[2])
    sys.argv[1:3] = []
    from mrcd.main import main as daemon

    daemon()


if __name__ == "__main__":
    main()
