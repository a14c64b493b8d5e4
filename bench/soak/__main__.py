# SPDX-License-Identifier: GPL-2.0-only
"""Run a soak as ``python -m bench.soak``."""

from bench.soak.soak import main

if __name__ == "__main__":
    main()
