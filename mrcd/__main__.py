# SPDX-License-Identifier: GPL-2.0-only
"""Run the daemon with `python -m mrcd`."""

from mrcd.main import main

main()
