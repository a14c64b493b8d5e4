# SPDX-License-Identifier: GPL-2.0-only
"""``python -m cli`` is ``mrcctl``."""

from cli.main import main

if __name__ == "__main__":
    main()
