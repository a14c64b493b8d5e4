# SPDX-License-Identifier: GPL-2.0-only
"""Run ``mrcctl`` as ``python -m cli``."""

from cli.main import main

if __name__ == "__main__":
    main()
