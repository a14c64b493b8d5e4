# SPDX-License-Identifier: GPL-2.0-only
"""python -m mrcd."""

from mrcd.main import main

main()
